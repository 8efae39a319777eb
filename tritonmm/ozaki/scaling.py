"""How rows and columns are scaled to integers: by the largest power of two for which N moduli
determine every result.

With P the product of the moduli, a sum X of products of integers is determined by its residues if |X| < P / 2. By
Cauchy-Schwarz it is enough that the norms of a row and of a column are at most Q = sqrt(P / 2) each. The norm of a line
is bounded from above by a sum of squares of integers, which no order of summation can change:

    chunk c of `CHUNK` elements:  max |x| < 2**e_c,   S_c = sum of (floor(|x| 2**(14 - e_c)) + 1)**2 over x != 0
    the line:                     e = max e_c,        S = sum of ceil(S_c / 4**(e - e_c))
    scale:                        the largest s with S * 4**(s + e - 14) <= Q**2

and the integers are 2**s * x, rounded to nearest, ties to even.
"""

import functools
import math
from typing import NamedTuple

from tritonmm.moduli import MODULI

CHUNK = 256
"""Elements of a line that share an exponent in its norm. It decides bits, so it is the same for all shapes and GPUs."""

FEW_CHUNKS = 8
"""Chunks of a line up to which each program of `residues_kernel` finds the scales of its lines itself, where nothing is
counted: then the norms that it reads are half the bytes of its elements, or less. It decides no bits."""

SLACK = 128
"""1 / SLACK of P / 2 is left for the rounding of operands to integers and for that of the quotient by P."""

NORM_BITS = 14
"""Bits of the integers that are squared: CHUNK * 2**28 and K * 2**28 fit int64 with room."""


class Scaling(NamedTuple):
    """Constants of the scale for N moduli.

    bound: Q, the largest norm of a scaled line. Elements are smaller in magnitude.
    squared, exponent: Q**2 * 2**28 is squared * 4**exponent, rounded down, with 2**60 <= squared < 2**62.
    """

    bound: int
    squared: int
    exponent: int


@functools.cache
def scaling(moduli: int) -> Scaling:
    """The constants for the first `moduli` of `MODULI`."""
    product = math.prod(MODULI[:moduli])
    bound = math.isqrt(product * (SLACK - 1) // (2 * SLACK))
    largest = bound**2 << 2 * NORM_BITS
    exponent = (largest.bit_length() - 61) // 2
    squared = largest >> 2 * exponent if exponent >= 0 else largest << -2 * exponent
    return Scaling(bound, squared, exponent)
