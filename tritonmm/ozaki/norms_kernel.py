"""Scales of the lines of an operand, the rows of A or columns of B, in two kernels: `scaling.py` has the definition.

1. `chunk_norms_kernel` reads the operand once. A program finds the exponent and the sum of squares of one chunk of K
   for a block of lines, and stores both in one int64.
2. `scales_kernel` adds up the chunks of each line and finds its scale.

Supports fp32 and fp64; any sizes, strides and alignment; every GPU and the interpreter.
"""

from dataclasses import dataclass

import triton
import triton.language as tl

from tritonmm.device.constexpr_args import Static
from tritonmm.device.exponent import exponent_above, times_power_of_two
from tritonmm.device.numeric import block_offsets
from tritonmm.device.pdl import follow_previous_grid

EXPONENT_BIAS = tl.constexpr(2048)
"""Added to a chunk's exponent, -1073 to 1024, before it is stored."""

SUM_BITS = tl.constexpr(40)
"""Bits of a chunk's sum of squares, which are stored below its exponent."""

SUM_MASK = tl.constexpr((1 << 40) - 1)

NONFINITE_CHUNK = tl.constexpr(1 << 60)
"""Stored for a chunk with an infinity or NaN."""

NONFINITE = tl.constexpr(1 << 20)
"""The scale of a line with an infinity or NaN."""


@dataclass(frozen=True)
class NormSpec(Static):
    """What `chunk_norms_kernel` is compiled for."""

    lines: int  # of a block
    chunk: int  # elements of K in a chunk, `scaling.CHUNK`
    bits: int  # `scaling.NORM_BITS`
    wide: bool  # offsets within a block have 64 bits


@triton.jit
def chunk_norms_kernel(x, norms, lines, k, chunks, stride_xb, stride_line, stride_k, S: tl.constexpr):
    """norms[batch, line, chunk] = the exponent and the sum of squares of a chunk, or NONFINITE_CHUNK; 0 for zeros.

    Grid: batch x blocks of lines x chunks.
    """
    follow_previous_grid()
    blocks = tl.cdiv(lines, S.lines)
    chunk = tl.program_id(0) % chunks
    line = tl.program_id(0) // chunks % blocks * S.lines
    batch = (tl.program_id(0) // chunks // blocks).to(tl.int64)
    first = x + batch * stride_xb + line.to(tl.int64) * stride_line + chunk.to(tl.int64) * S.chunk * stride_k
    across, along = block_offsets(S.lines, S.wide), block_offsets(S.chunk, S.wide)
    inside = (across < lines - line)[:, None] & (along < k - chunk * S.chunk)[None, :]
    loaded = tl.load(first + across[:, None] * stride_line + along[None, :] * stride_k, mask=inside, other=0.0)
    bits = loaded.to(tl.float64).to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
    largest = tl.max(bits, axis=1)  # of non-negative values: bits compare as values do, and NaN is the largest
    finite = largest < 0x7FF0000000000000
    e = exponent_above(tl.where(finite, largest, 0))
    magnitude = tl.where(finite[:, None], bits, 0).to(tl.float64, bitcast=True)
    above = times_power_of_two(magnitude, S.bits - e[:, None]).to(tl.int32) + 1
    above = tl.where(bits > 0, above, 0)
    squares = tl.sum((above * above).to(tl.int64), axis=1)
    packed = ((e.to(tl.int64) + EXPONENT_BIAS) << SUM_BITS) | squares
    packed = tl.where(finite, tl.where(largest > 0, packed, 0), NONFINITE_CHUNK)
    target = norms + (batch * lines + line + tl.arange(0, S.lines)) * chunks + chunk
    tl.store(target, packed, mask=tl.arange(0, S.lines) < lines - line)


@dataclass(frozen=True)
class ScaleSpec(Static):
    """What `scales_kernel` is compiled for. squared, exponent: as in `scaling.Scaling`."""

    lines: int
    chunks: int  # at least those of a line, a power of two
    squared: int
    exponent: int


@triton.jit
def scales_kernel(norms, scales, counts, lines, chunks, S: tl.constexpr):
    """scales[line] = the exponent of two that makes a line integers; 0 for zeros, NONFINITE with an infinity or NaN.

    norms: [lines, chunks], of all batches. scales: int32. counts: None, or set to 0. Grid: blocks of lines.
    """
    follow_previous_grid()
    line = tl.program_id(0) * S.lines + tl.arange(0, S.lines)
    chunk = tl.arange(0, S.chunks)
    inside = (line < lines)[:, None] & (chunk < chunks)[None, :]
    packed = tl.load(norms + line.to(tl.int64)[:, None] * chunks + chunk[None, :], mask=inside, other=0)
    exponents = (packed >> SUM_BITS).to(tl.int32)
    e = tl.max(exponents, axis=1)
    finite = tl.max(packed, axis=1) < NONFINITE_CHUNK
    below = tl.minimum(2 * (e[:, None] - exponents), 62).to(tl.int64)
    squares = packed & SUM_MASK
    squares = (squares + ((tl.full((), 1, tl.int64) << below) - 1)) >> below
    total = tl.sum(tl.where(packed > 0, squares, 0), axis=1)
    scale = S.exponent + EXPONENT_BIAS - e
    for i in tl.static_range(1, 19):  # total * 4**i <= squared; a total above 0 is at least 2**26
        scale += (total <= (S.squared >> (2 * i))).to(tl.int32)
    scale = tl.where(total > 0, scale, 0)
    tl.store(scales + line, tl.where(finite, scale, NONFINITE), mask=line < lines)
    if counts is not None:
        tl.store(counts + line, tl.zeros(line.shape, tl.int64), mask=line < lines)
