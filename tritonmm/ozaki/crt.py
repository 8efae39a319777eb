"""Constants of the Chinese remainder theorem in parts that fp64 adds and multiplies without rounding.

The integer X with residues r_l of N moduli p_l and |X| < P / 2 is sum(w_l * r_l) - q * P, where w_l is 1 modulo p_l and
0 modulo the others, and q is the sum over P, rounded. Each constant is written in at most three signed digits of
`bits` bits. A residue has 8 bits, so a digit of the sum is below 16 * 2**7 * 2**41 = 2**52, and q times one of P below
2**51: both are exact in fp64.

Of up to 8 moduli, |X| is below 2**63: integers modulo 2**64 hold it (`Crt64`).
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

from tritonmm.moduli import MODULI

DIGIT_BITS = 42
"""Bits of a digit at most: see above."""

MOST_OF_64_BITS = 8
"""Moduli whose product is below 2**64, at most."""

FRACTION_BITS = 20
"""Bits of the fractions of `Crt64`: sums of residues times fractions fit int32, and are exact enough that the quotient
is rounded to the right integer."""


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
    weights = tuple(_digits(_weight(p, product), bits, digits) for p in primes)
    return Crt(bits, weights, _digits(product, bits, digits), 2 ** (bits * (digits - 1)) / product)


@dataclass(frozen=True)
class Crt64:
    """Constants for N moduli whose product fits 64 bits: sums of weights times residues are taken modulo 2**64.

    low, high: each w_l is high * 2**32 + low, low without a sign. fractions: w_l over P in units of 2**-FRACTION_BITS,
    rounded. product: P as an int64, which is equal to it modulo 2**64.
    start, fraction: initial values of the sums of residues times weights, as an int64, and times fractions. They make
    up for the 128 that is added to each residue; `fraction` has 1/2 besides, for rounding.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    fractions: tuple[int, ...]
    product: int
    start: int
    fraction: int


@functools.cache
def crt64(moduli: int) -> Crt64:
    """The constants for the first `moduli` of `MODULI`, at most MOST_OF_64_BITS."""
    product = math.prod(MODULI[:moduli])
    weights = [_weight(p, product) for p in MODULI[:moduli]]
    fractions = [((weight << FRACTION_BITS + 1) + product) // (2 * product) for weight in weights]
    return Crt64(
        tuple(weight % (1 << 32) for weight in weights),
        tuple(weight >> 32 for weight in weights),
        tuple(fractions),
        _int64(product),
        _int64(-128 * sum(weights)),
        (1 << FRACTION_BITS - 1) - 128 * sum(fractions),
    )


def _int64(value: int) -> int:
    """The int64 that is equal to a value modulo 2**64."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _weight(p: int, product: int) -> int:
    """The integer of least magnitude that is 1 modulo p and 0 modulo the other factors of the product."""
    weight = product // p * pow(product // p, -1, p)
    return weight - product if 2 * weight > product else weight


def _digits(value: int, bits: int, count: int) -> tuple[int, ...]:
    """`value` in signed digits, the lowest first; the last one is what remains."""
    found = []
    for _ in range(count - 1):
        digit = (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
        found.append(digit)
        value = (value - digit) >> bits
    return (*found, value)
