"""fp32 arithmetic of GPUs in NumPy: the fused multiply-add, which NumPy lacks. NumPy's own + and * round as GPUs do."""

import numpy as np
from numpy.typing import ArrayLike

Array = np.ndarray


def fma(x: ArrayLike, y: ArrayLike, z: ArrayLike) -> Array:
    """x * y + z of fp32 arrays that broadcast, rounded once, to the nearest fp32 and ties to even."""
    p, q, r = (np.asarray(each, np.float64) for each in (x, y, z))
    with np.errstate(all="ignore"):
        return _rounded_sum(np.atleast_1d(p * q), r).reshape(np.broadcast_shapes(p.shape, q.shape, r.shape))


def add_products(total: Array, a: Array, b: Array) -> Array:
    """total plus the products of a and b along K, by one fused multiply-add each in ascending order of K.

    total: float64, fp32 numbers. a, b: float64, fp32 numbers, (K, ...), broadcast to (K, *total.shape).
    """
    with np.errstate(all="ignore"):
        for x, y in zip(a, b, strict=True):
            total = _rounded_sum(x * y, total).astype(np.float64)
    return total


def _rounded_sum(x: Array, y: Array) -> Array:
    """x + y of float64, rounded once, to fp32.

    float64 rounds it first. The second rounding errs only if that made it the middle of two fp32 numbers, which leaves
    the last 28 bits of 52 zero. Rounded to odd instead, an inexact sum is never in the middle (Boldo and Melquiond,
    Emulation of FMA and correctly rounded sums).
    """
    total = x + y
    if not np.all(total.view(np.int64) & ((1 << 28) - 1)):
        total = _rounded_to_odd(total, x, y)
    return total.astype(np.float32)


def _rounded_to_odd(total: Array, x: Array, y: Array) -> Array:
    """`total`, which is x + y in float64, or if that is not exact its neighbour on the other side that is odd."""
    y_part = total - x
    error = (x - (total - y_part)) + (y - y_part)
    bits = total.view(np.int64)
    inexact = (np.abs(error) > 0) & (bits & 1 == 0)  # the error next to infinities is NaN
    outward = (error > 0) == (total > 0)
    return (bits + np.where(inexact, np.where(outward, 1, -1), 0)).view(np.float64)
