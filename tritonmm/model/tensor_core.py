"""A bit-exact model of the sums of Hopper's tensor cores.

A tensor core adds the products of one output element in steps of K, 16 for bf16 and fp16, 8 for tf32 and 32 for fp8, in
ascending order of K. One step adds its products to the accumulator, an fp32 number that begins as 0:

1. Products are exact. The exponent of a product is the sum of its factors' exponents: its significand, from 1 to 4, is
   not normalized. A subnormal factor has the exponent of the smallest normal number. A product that is 0 has none, and
   neither has an accumulator that is 0.
2. E is the largest exponent among the products and the accumulator, but at least -133.
3. Each of them is cut toward zero to a multiple of 2**(E - bits), and these are added exactly.
4. The sum is cut toward zero to an fp32 number. Zero is +0. From 2**128 on it is infinity, which the next step adds to.

`bits` is 25; for fp8 it is 13, and the sum keeps 13 fraction bits. Infinities and NaNs follow IEEE 754. fp32 operands
are cut toward zero to tf32, which has 10 fraction bits.

The model is that of Khattak and Mikaitis (arXiv 2512.07004) and MMA-Sim (arXiv 2511.10909). On an H100 and an H200
wgmma gave these bits for all formats, and mma.sync for all but fp8.

Everything is float64 arithmetic on numbers that it represents exactly: integers below 2**53 times powers of two.
"""

from typing import NamedTuple

import numpy as np

Array = np.ndarray


class Sums(NamedTuple):
    """How tensor cores add the products of a format.

    step: products that are added at once. bits: below the largest exponent of a step. fraction_bits: of a step's sum.
    """

    step: int
    bits: int
    fraction_bits: int


SUMS = {
    "bf16": Sums(16, 25, 23),
    "fp16": Sums(16, 25, 23),
    "tf32": Sums(8, 25, 23),
    "fp8e4m3": Sums(32, 13, 13),
    "fp8e5m2": Sums(32, 13, 13),
}

LEAST_EXPONENT = {"bf16": -126, "fp16": -14, "tf32": -126, "fp8e4m3": -6, "fp8e5m2": -14}
"""Exponent of the smallest normal number of a format."""

FLOOR = -133
"""The smallest exponent to which the terms of a step are aligned."""

NO_EXPONENT = -4096
"""Exponent of 0: smaller than all others, also when another is added."""

CEILING = 512
"""Exponents of infinity and NaN count as this: the scale that it makes is a float64. No product reaches it."""


class Operand(NamedTuple):
    """The first dimension is K. values: float64. exponents: int16."""

    values: Array
    exponents: Array


def operand(values: Array, fmt: str) -> Operand:
    """Numbers of a format in `SUMS` as tensor cores see them, from float64. tf32 is cut from fp32."""
    if fmt == "tf32":
        values = cut(values, 10)
    return Operand(values, exponent(values, LEAST_EXPONENT[fmt]))


def add_products(total: Array, a: Operand, b: Operand, sums: Sums) -> Array:
    """total plus the products of a and b, all along K, as tensor cores add them.

    total: float64, fp32 numbers. a, b: (K, ...), broadcast to (K, *total.shape). K is padded with zeros to whole steps.
    """
    with np.errstate(all="ignore"):
        for at in range(0, a.values.shape[0], sums.step):
            step = slice(at, at + sums.step)
            products = a.values[step] * b.values[step]
            top = (a.exponents[step] + b.exponents[step]).max(axis=0)
            top = np.clip(np.maximum(top, exponent(total, -126)), FLOOR, CEILING)
            unit = power_of_two(sums.bits - top)
            products *= unit
            whole = np.trunc(products, out=products).sum(axis=0)
            whole += np.trunc(total * unit)
            total = cut(whole * power_of_two(top - sums.bits), sums.fraction_bits)
    return total


def cut(x: Array, fraction_bits: int) -> Array:
    """float64 cut toward zero to numbers of fp32's range with so many fraction bits; -0 becomes +0."""
    kept = (x.view(np.int64) & -(1 << (52 - fraction_bits))).view(np.float64)
    sizes = np.abs(x)
    if sizes.size and not (sizes.max() < 2.0**128 and sizes.min() >= 2.0**-126):
        unit = 2.0 ** (-126 - fraction_bits)
        kept = np.where(sizes < 2.0**-126, np.trunc(x / unit) * unit, kept)
        kept = np.where(sizes >= 2.0**128, np.copysign(np.inf, x), kept)
        kept = np.where(np.isnan(x), np.nan, kept)
    return kept + 0.0


def exponent(x: Array, least: int) -> Array:
    """Exponents of contiguous float64, as int16: at least `least`, and `NO_EXPONENT` for 0."""
    field = x.view(np.int16)[..., 3::4] >> 4 & 0x7FF  # bits 52 to 62
    return np.where(field == 0, np.int16(NO_EXPONENT), np.maximum(field - 1023, least))


def power_of_two(exponents: Array) -> Array:
    """2.0**exponents, of integers from -1022 to 1023."""
    return ((exponents.astype(np.int64) + 1023) << 52).view(np.float64)
