"""When a product of residues is proved to be as accurate as a native one, from its operands' scaled lines alone.

Lines are those of `scaling.py`, scaled but not rounded: x of A and y of B, with norms of Q at most. Rounding them to
integers changes a sum of products by at most, for two lines that both change,

    E = |x|_1 / 2 + |y|_1 / 2 + K / 4 <= sqrt(K) * Q + K / 4,

half of the first term where one of the operands has no element that changes, and 0 where neither has. A native sum has
errors of some u |x| |y|, and tau = min(2 sqrt(K), K / 2) of them are allowed. |x| |y| is bounded from below by counts:
with c_m elements of x of at least t_m = t_0 * 2**m, and d_n of y likewise, at least c_m + d_n - K places have both. So

    |x| |y| >= t_0**2 * sum of w_m * w_n * max(0, c_m + d_n - K),   w = 1, 1, 2.

The rule holds if E <= tau * u * that, for the least counts of all lines but those of zeros, whose products are exact.
Then results differ from the exact product by (tau + 1) * u * |a| |b| at most, and by half the least subnormal more. All
of it is in integers.

This is level 1 of the rule in the study of scheme II, with three thresholds and bounds of norms.
"""

import functools
import math
from fractions import Fraction
from typing import NamedTuple

from tritonmm.ozaki.scaling import scaling

BELOW = 3
"""t_0 is the power of two at or below Q / sqrt(K), over 2**BELOW. The largest element of a line is at least
Q / (2.1 * sqrt(K)), so each line but those of zeros has one of at least t_0."""

PRECISION_BITS = {"fp32": 24, "fp64": 53}
"""u is 2**-bits."""

MOST = 2**62
"""A limit that no counts reach: they sum up to 16 K at most."""


class Rule(NamedTuple):
    """Constants of the rule for a K and N moduli.

    threshold: t_0. one, both: what the sum of counts must be at least, where the elements of one operand change by
    rounding, and where those of both do.
    """

    threshold: float
    one: int
    both: int


@functools.lru_cache(maxsize=1024)
def rule(k: int, dtype: str, moduli: int) -> Rule:
    """The constants for operands of "fp32" or "fp64"."""
    k = max(1, k)
    bound = scaling(moduli).bound
    norm = math.isqrt(k * bound**2) + 1  # above sqrt(k) * bound
    below = math.isqrt(bound**2 // k).bit_length() - 1 - BELOW
    allowed = min(Fraction(math.isqrt(4 * k)), Fraction(k, 2)) / 2 ** PRECISION_BITS[dtype] * Fraction(4) ** below
    one, both = (min(MOST, math.ceil(error / allowed)) for error in (Fraction(norm, 2), norm + Fraction(k, 4)))
    return Rule(2.0**below, one, both)
