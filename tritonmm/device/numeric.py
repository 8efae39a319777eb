"""Integers and rounding that kernels of plain Triton share."""

import triton
import triton.language as tl


@triton.jit
def multiple_of(x, DIVISOR: tl.constexpr):
    if DIVISOR > 1:
        x = x // DIVISOR * DIVISOR
    return x


@triton.jit
def block_offsets(BLOCK: tl.constexpr, WIDE: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    if WIDE:
        offsets = offsets.to(tl.int64)
    return offsets


@triton.jit
def rounded(x, DTYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    """x in DTYPE, to the nearest value, ties to even; bf16 from fp32."""
    if INTERPRETED and DTYPE == tl.bfloat16:  # the interpreter truncates: round the bits that it drops
        bits = x.to(tl.int32, bitcast=True)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
        x = tl.where(x == x, nearest, x)
    return x.to(DTYPE)
