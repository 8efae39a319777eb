"""Constants of the Chinese remainder theorem in parts that fp64 adds and multiplies without rounding.

The integer X with residues r_l of N moduli p_l and |X| < P / 2 is sum(w_l * r_l) - q * P, where w_l is 1 modulo p_l and
0 modulo the others, and q is the sum over P, rounded. Each constant is written in at most three signed digits of
`bits` bits. A residue has 8 bits, so a digit of the sum is below 16 * 2**7 * 2**41 = 2**52, and q times one of P below
2**51: both are exact in fp64.
"""

import functools
import math
from typing import NamedTuple

from tritonmm.moduli import MODULI

DIGIT_BITS = 42
"""Bits of a digit at most: see above."""


class Crt(NamedTuple):
    """Constants for N moduli. Digits are signed integers below 2**(bits - 1) in magnitude, but for the last one.

    weights: the digits of each w_l, the lowest first; product: those of P.
    quotient: times the highest digit of the sum it is the sum over P, within 1 / SLACK.
    """

    bits: int
    weights: tuple[tuple[int, ...], ...]
    product: tuple[int, ...]
    quotient: float

    @property
    def digits(self) -> int:
        """Digits of each constant."""
        return len(self.product)


@functools.cache
def crt(moduli: int) -> Crt:
    """The constants for the first `moduli` of `MODULI`."""
    primes = MODULI[:moduli]
    product = math.prod(primes)
    digits = -(-product.bit_length() // DIGIT_BITS)
    bits = -(-product.bit_length() // digits)
    weights = []
    for p in primes:
        weight = product // p * pow(product // p, -1, p)
        weights.append(_digits(weight - product if 2 * weight > product else weight, bits, digits))
    return Crt(bits, tuple(weights), _digits(product, bits, digits), 2 ** (bits * (digits - 1)) / product)


def _digits(value: int, bits: int, count: int) -> tuple[int, ...]:
    """`value` in signed digits, the lowest first; the last one is what remains."""
    found = []
    for _ in range(count - 1):
        digit = (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
        found.append(digit)
        value = (value - digit) >> bits
    return (*found, value)
