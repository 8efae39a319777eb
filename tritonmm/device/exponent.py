"""Exponents of fp64 values, powers of two, and values times powers of two."""

import triton
import triton.language as tl


@triton.jit
def exponent_above(bits):
    """The smallest e with x < 2**e, for finite x > 0 of fp64 given as bits. For 0 it is -1074."""
    subnormal = tl.where(bits >> 52 == 0, bits, 0).to(tl.float64, bitcast=True)
    normal = (subnormal * 18446744073709551616.0).to(tl.int64, bitcast=True) >> 52  # times 2**64
    e = tl.where(bits >> 52 == 0, normal - 64, bits >> 52)
    return tl.maximum(e - 1022, -1074).to(tl.int32)


@triton.jit
def power_of_two(e):
    """2**e as fp64, for int32 e from -1022 to 1023."""
    return ((e.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def times_power_of_two(x, e):
    """x * 2**e for e from -2044 to 2046, which broadcasts to x's shape.

    In two multiplications, as 2**e need not be a value of fp64. Exact, unless the result overflows or is subnormal.
    """
    half = e >> 1
    return (x * power_of_two(half)) * power_of_two(e - half)
