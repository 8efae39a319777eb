"""The definition of products by residues, in exact integers and fractions, one element at a time."""

import math
from fractions import Fraction

import numpy as np
import torch

from tritonmm.moduli import MODULI

FORMATS = {torch.float64: (53, -1074, 1024), torch.float32: (24, -149, 128)}
"""Bits of the significand, exponent of the smallest subnormal, and the first power of two that is not finite."""


def scale_of(line: list[Fraction], moduli: int) -> int:
    """The power of two that a line of finite elements is multiplied by."""
    sums = []
    for start in range(0, len(line), 256):
        chunk = [abs(x) for x in line[start : start + 256]]
        if any(chunk):
            e = exponent_above(max(chunk))
            sums.append((e, sum((floored(x, 14 - e) + 1) ** 2 for x in chunk if x)))
    if not sums:
        return 0
    e = max(e for e, _ in sums)
    total = sum(-(-x >> 2 * (e - of_chunk)) for of_chunk, x in sums)
    product = math.prod(MODULI[:moduli])
    squared = math.isqrt(product * 127 // 256) ** 2
    s = 200 - e
    while total > floored(Fraction(squared), -2 * (s + e - 14)):  # total is whole: rounding down decides the same
        s -= 1
    return s


def floored(x: Fraction, power: int) -> int:
    """floor(x * 2**power) if the denominator of x is a power of two. Products of fractions would take longer."""
    shift = power - (x.denominator.bit_length() - 1)
    return x.numerator << shift if shift >= 0 else x.numerator >> -shift


def exponent_above(x: Fraction) -> int:
    """The smallest e with x < 2**e."""
    e = x.numerator.bit_length() - x.denominator.bit_length() + 1
    while x < Fraction(2) ** (e - 1):
        e -= 1
    return e


def rounded(x: Fraction, dtype: torch.dtype) -> float:
    """x to nearest, ties to even, as a float that is a value of dtype."""
    bits, least, beyond = FORMATS[dtype]
    if not x:
        return 0.0
    unit = Fraction(2) ** max(exponent_above(abs(x)) - bits, least)
    found = round(x / unit) * unit
    if abs(found) >= Fraction(2) ** beyond:
        return math.inf if x > 0 else -math.inf
    return float(found) if x > 0 else -float(abs(found))


def product(a: torch.Tensor, b: torch.Tensor, moduli: int) -> torch.Tensor:
    """The product of two matrices of finite elements."""
    rows = [[Fraction(x) for x in row] for row in a.double().tolist()]
    cols = [[Fraction(x) for x in col] for col in b.double().mT.tolist()]
    scales_a, scales_b = ([scale_of(line, moduli) for line in lines] for lines in (rows, cols))
    left, right = (
        np.array([[round(x * Fraction(2) ** s) for x in line] for line, s in zip(lines, scales, strict=True)], object)
        for lines, scales in ((rows, scales_a), (cols, scales_b))
    )
    exact = left @ right.T
    assert all(2 * abs(x) < math.prod(MODULI[:moduli]) for x in exact.ravel())
    found = [
        [rounded(x * Fraction(2) ** -(s + t), a.dtype) for x, t in zip(row, scales_b, strict=True)]
        for row, s in zip(exact, scales_a, strict=True)
    ]
    return torch.tensor(found, dtype=torch.float64).to(a.dtype)
