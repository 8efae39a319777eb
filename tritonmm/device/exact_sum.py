"""Sums of fp64 values without error, and rounded to odd: what is added to them later is rounded as if it were exact.

Source: Boldo and Melquiond, Emulation of a FMA and correctly rounded sums, IEEE Transactions on Computers 57, 2008.
"""

import triton
import triton.language as tl


@triton.jit
def fast_two_sum(a, b):
    """(sum, error) of a + b, where |a| >= |b| or a is 0."""
    total = a + b
    return total, b - (total - a)


@triton.jit
def odd_sum(a, b):
    """a + b, and where that is not a value of fp64, the one of its two neighbours with an odd significand."""
    total = a + b
    of_b = total - a
    error = (a - (total - of_b)) + (b - of_b)
    bits = total.to(tl.int64, bitcast=True)
    away = tl.where((error > 0) == (total > 0), 1, -1).to(tl.int64)
    move = (error != 0) & ((bits & 1) == 0)
    return tl.where(move, bits + away, bits).to(tl.float64, bitcast=True)
