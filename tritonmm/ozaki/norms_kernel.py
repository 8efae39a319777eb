"""Scales of the lines of operands, the rows of A and columns of B, in two steps: `scaling.py` has the definition.

1. `chunk_norms_kernel` reads the operands once. A program finds the exponent and the sum of squares of one chunk of K
   for a block of lines of one of them, and stores both in one int64.
2. `line_scales` adds up the chunks of lines and finds their scales: in `scales_kernel`, or where a line has few chunks,
   in each program of `residues_kernel`, which saves a launch.

One launch serves both operands, or one of them alone. Small products are so short that launches count.

Supports fp32 and fp64; any sizes, strides and alignment; every GPU and the interpreter.
"""

import struct
from dataclasses import dataclass

import triton
import triton.language as tl

from tritonmm.device.constexpr_args import ConstexprArgs
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
class NormSpec(ConstexprArgs):
    """What `chunk_norms_kernel` is compiled for."""

    lines: int  # of a block
    chunk: int  # elements of K in a chunk, `scaling.CHUNK`
    part: int  # consecutive elements of a chunk that are one row of the block
    bits: int  # `scaling.NORM_BITS`
    wide: bool  # offsets within a block have 64 bits

    @property
    def parts(self):
        """Rows of the block for each line."""
        return self.chunk // self.part


@triton.jit
def fp32_integers(bits, BITS: tl.constexpr):
    """`integers` of fp32, in fp32."""
    largest = tl.max(tl.max(bits, axis=0), axis=1)
    finite = largest < 0x7F800000
    # Times 2**24, subnormals are normal.
    normal = (tl.where(finite, largest, 0).to(tl.float32, bitcast=True) * 16777216.0).to(tl.int32, bitcast=True) >> 23
    e = tl.where(largest >> 23 == 0, normal - 24, largest >> 23) - 126
    shift = BITS - tl.where(finite, e, BITS)
    half = shift >> 1  # 2**shift need not be a value of fp32
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    second = ((shift - half + 127) << 23).to(tl.float32, bitcast=True)
    magnitude = (bits & tl.where(finite, 0x7FFFFFFF, 0)[None, :, None]).to(tl.float32, bitcast=True)
    scaled = magnitude * first[None, :, None] * second[None, :, None]
    return scaled.to(tl.int32) + tl.minimum(bits, 1), e, finite, largest > 0


@triton.jit
def fp64_integers(bits, BITS: tl.constexpr):
    """`integers` of fp64."""
    largest = tl.max(tl.max(bits, axis=0), axis=1)
    finite = largest < 0x7FF0000000000000
    e = exponent_above(tl.where(finite, largest, 0))
    magnitude = tl.where(finite[None, :, None], bits, 0).to(tl.float64, bitcast=True)
    above = times_power_of_two(magnitude, BITS - e[None, :, None]).to(tl.int32) + 1
    return tl.where(bits > 0, above, 0), e, finite, largest > 0


@triton.jit
def integers(x, BITS: tl.constexpr):
    """(squared, exponent, finite, nonzero) of a block x, [parts, lines, part].

    squared: the integers of `scaling.py` whose squares are summed, up to 2**BITS, of x's shape. Of each line: the
    exponent, whether all elements are finite, and whether one is not zero.
    """
    # The bits of non-negative values compare as the values do, and NaN is the largest.
    if x.dtype == tl.float32:
        found = fp32_integers(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, BITS)
    else:
        found = fp64_integers(x.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF, BITS)
    return found


@triton.jit
def sum_of_squares(x):
    """The sum of squares of each line, int64. x: as in `integers`, up to 2**14.

    Eight squares fit uint32. Sums of their lower 16 bits and of the upper ones are faster than sums of int64.
    """
    tl.static_assert(x.shape[0] <= 8)
    squares = tl.sum((x * x).to(tl.uint32), axis=0)
    low, high = (squares & 0xFFFF).to(tl.int32), (squares >> 16).to(tl.int32)
    return (tl.sum(high, axis=1).to(tl.int64) << 16) + tl.sum(low, axis=1)


@triton.jit
def chunk_norms(
    program, x, norms, counts, special, lines, k, chunks, stride_xb, stride_line, stride_k, S: tl.constexpr
):  # fmt: skip
    """What one program of `chunk_norms_kernel` does for its operand, of batch x blocks of lines x chunks."""
    blocks = tl.cdiv(lines, S.lines)
    chunk = program % chunks
    line = program // chunks % blocks * S.lines
    batch = (program // chunks // blocks).to(tl.int64)
    first = x + batch * stride_xb + line.to(tl.int64) * stride_line + chunk.to(tl.int64) * S.chunk * stride_k
    rows = block_offsets(S.parts * S.lines, S.wide)  # the first part of each line, then the second
    across, along = rows % S.lines, rows[:, None] // S.lines * S.part + block_offsets(S.part, S.wide)[None, :]
    inside = (across < lines - line)[:, None] & (along < k - chunk * S.chunk)
    loaded = tl.load(first + (across[:, None] * stride_line + along * stride_k), mask=inside, other=0.0)
    loaded = tl.reshape(loaded, (S.parts, S.lines, S.part))
    above, e, finite, nonzero = integers(loaded, S.bits)
    packed = ((e.to(tl.int64) + EXPONENT_BIAS) << SUM_BITS) | sum_of_squares(above)
    packed = tl.where(finite, tl.where(nonzero, packed, 0), NONFINITE_CHUNK)
    of_block = tl.arange(0, S.lines)
    of_lines = of_block < lines - line
    tl.store(norms + (batch * lines + line + of_block) * chunks + chunk, packed, mask=of_lines)
    if counts is not None:  # noqa: SIM102  # when it is compiled
        if chunk == 0:
            zeros = tl.zeros(of_block.shape, tl.int64)
            tl.store(counts + batch * lines + line + of_block, zeros, mask=of_lines)
    if program == 0:
        tl.store(special, 0)


@triton.jit(do_not_specialize=["first_of_b"])
def chunk_norms_kernel(
    a, a_norms, a_counts, a_special, b, b_norms, b_counts, b_special, a_lines, b_lines, k, chunks, first_of_b,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bn, stride_bk, A: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """norms[batch, line, chunk] = the exponent and the sum of squares of a chunk, or NONFINITE_CHUNK; 0 for zeros.

    Sets counts, which may be None, and special to 0. b: the other operand, or None. Grid: the programs of a, which are
    first_of_b, and those of b.
    """
    follow_previous_grid()
    program = tl.program_id(0)
    if b is None or program < first_of_b:
        chunk_norms(program, a, a_norms, a_counts, a_special, a_lines, k, chunks, stride_ab, stride_am, stride_ak, A)
    else:
        chunk_norms(
            program - first_of_b,
            b,
            b_norms,
            b_counts,
            b_special,
            b_lines,
            k,
            chunks,
            stride_bb,
            stride_bn,
            stride_bk,
            B,
        )


@dataclass(frozen=True)
class ScaleSpec(ConstexprArgs):
    """What `line_scales` is compiled for. squared, exponent: as in `scaling.Scaling`."""

    lines: int
    chunks: int  # at least those of a line, a power of two
    squared: int
    exponent: int

    @property
    def squared_bits(self):
        """The bits of the largest fp64 up to squared, as an integer. Sums of squares have at most 53 bits."""
        cut = self.squared.bit_length() - 53
        return struct.unpack("<q", struct.pack("<d", float(self.squared >> cut << cut)))[0]


@triton.jit
def line_scales(norms, line, of_lines, chunks, S: tl.constexpr):
    """The exponents of two that make lines integers; 0 for zeros and lines that are not `of_lines`, NONFINITE with an
    infinity or NaN. norms: [lines, chunks]; line: numbers of lines, int64."""
    chunk = tl.arange(0, S.chunks)
    inside = of_lines[:, None] & (chunk < chunks)[None, :]
    packed = tl.load(norms + line[:, None] * chunks + chunk[None, :], mask=inside, other=0)
    exponents = (packed >> SUM_BITS).to(tl.int32)
    largest = tl.max(packed, axis=1)
    e = (largest >> SUM_BITS).to(tl.int32)
    finite = largest < NONFINITE_CHUNK
    below = tl.minimum(2 * (e[:, None] - exponents), 62).to(tl.int64)
    squares = packed & SUM_MASK
    squares = (squares + ((tl.full((), 1, tl.int64) << below) - 1)) >> below
    total = tl.sum(tl.where(packed > 0, squares, 0), axis=1)
    # The largest i with total * 4**i <= squared: to multiply by 4 adds 2 to the exponent of fp64, which is exact here.
    room = S.squared_bits - total.to(tl.float64).to(tl.int64, bitcast=True)
    scale = S.exponent + EXPONENT_BIAS - e + (room >> 53).to(tl.int32)
    scale = tl.where(total > 0, scale, 0)
    return tl.where(finite, scale, NONFINITE)


@triton.jit
def store_scales(scale, scales, special, line, mask):
    """Stores the scales of lines, and 1 to special if one is NONFINITE. Lines that are not in the mask have others."""
    tl.store(scales + line, scale, mask=mask)
    found = tl.max(tl.where(mask & (scale == NONFINITE), 1, 0), axis=0)
    if found > 0:
        tl.store(special, 1)


@triton.jit
def find_scales(program, norms, scales, special, lines, chunks, S: tl.constexpr):
    """What one program of `scales_kernel` does for its operand, of blocks of lines."""
    line = program.to(tl.int64) * S.lines + tl.arange(0, S.lines)
    store_scales(line_scales(norms, line, line < lines, chunks, S), scales, special, line, line < lines)


@triton.jit(do_not_specialize=["first_of_b"])
def scales_kernel(
    a_norms, a_scales, a_special, b_norms, b_scales, b_special, a_lines, b_lines, chunks, first_of_b, S: tl.constexpr
):  # fmt: skip
    """scales[line] = those of `line_scales`, int32; special = 1 if one of an operand is NONFINITE.

    norms: [lines, chunks], of all batches. b: None, or the other operand. Grid: blocks of lines of a, then of b.
    """
    follow_previous_grid()
    program = tl.program_id(0)
    if b_norms is None or program < first_of_b:
        find_scales(program, a_norms, a_scales, a_special, a_lines, chunks, S)
    else:
        find_scales(program - first_of_b, b_norms, b_scales, b_special, b_lines, chunks, S)
