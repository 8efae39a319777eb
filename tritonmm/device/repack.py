"""Copies operands that TMA cannot address to where it can: one of a product, or both in one launch.

An operand is lines of contiguous elements: rows where its layout is "n", columns where it is "t". The
lines of the copy start at multiples of 16 bytes. What is between two of them is left as it was, but
for what completes a word: nothing reads it, since descriptors are made with the true sizes and TMA
fills with zeros beyond them.

Lines are copied in words of 8 bytes, whatever address they start at. The source is read in aligned
words, and each word of the copy is put together from two neighbours, shifted by as many bytes as the
line is off: a warp then moves 256 bytes with an instruction instead of the 64 of 2-byte elements, and
finds the second neighbour in L1. Only words that hold an element of the line are read; their other
bytes may be another tensor's, and go no further than the end of the copy's line.

An operand that is contiguous along neither dimension is gathered, element by element, into rows. One whose
lines are to lie along the other dimension is transposed, a tile at a time: read along its own lines, and
written along those of the copy in 16 bytes each.
"""

import triton
import triton.language as tl

from tritonmm.device.numeric import multiple_of
from tritonmm.device.pdl import follow_previous_grid

UNSPECIALIZED = ["split", "tiles_each", "x", "y", *(f"{x}_{name}" for x in "xy" for name in
                 ("lines", "length", "pitch", "stride_batch", "stride_line", "stride_element"))]  # fmt: skip
"""One compiled kernel copies from any address, in any sizes."""


@triton.jit
def copy_tiles(
    source, target, program, tiles_each, lines, length, pitch, stride_batch, stride_line, stride_element,
    TILE: tl.constexpr, WORDS: tl.constexpr, STRIDED: tl.constexpr, DIVISOR: tl.constexpr,
):  # fmt: skip
    """Up to `tiles_each` tiles of an operand, one below the other, of TILE words each, WORDS of a line.

    If STRIDED, words are elements. So they are if DIVISOR, and the source's lines lie across those of the copy: it
    divides their length, the elements between two of them and the address. Programs are counted along the lines, then
    down the lines, then along the batch.
    """
    LINES: tl.constexpr = TILE // WORDS
    BYTES: tl.constexpr = source.dtype.element_ty.primitive_bitwidth // 8
    words = length
    slack = 0
    if not (STRIDED or DIVISOR):
        words = ((length.to(tl.int64) * BYTES + 7) // 8).to(tl.int32)
        slack = (words.to(tl.int64) * 8 - length.to(tl.int64) * BYTES).to(tl.int32)
    across = tl.cdiv(words, WORDS)
    down = tl.cdiv(lines, LINES * tiles_each)
    at = program % across * WORDS + tl.arange(0, WORDS)
    first = program // across % down * (LINES * tiles_each)
    batch = (program // across // down).to(tl.int64)
    source += batch * stride_batch
    target += batch * lines * pitch
    for start in range(first, tl.minimum(first + LINES * tiles_each, lines), LINES):
        line = start + tl.arange(0, LINES)
        inside = (line < lines)[:, None] & (at < words)[None, :]
        sources = source + line.to(tl.int64) * stride_line
        targets = target + line.to(tl.int64) * pitch
        if DIVISOR:
            VECTOR: tl.constexpr = 16 // BYTES
            across_lines = (at < words)[:, None] & (line < multiple_of(lines, DIVISOR))[None, :]
            columns = tl.multiple_of(source, DIVISOR * BYTES) + at.to(tl.int64)[:, None] * multiple_of(
                stride_element, DIVISOR
            )
            elements = tl.trans(tl.load(columns + line[None, :], mask=across_lines))
            targets = tl.multiple_of(target, 16) + line.to(tl.int64) * multiple_of(pitch, VECTOR)
            whole = (line < lines)[:, None] & (at < tl.cdiv(words, VECTOR) * VECTOR)[None, :]
            tl.store(targets[:, None] + at[None, :], elements, mask=whole)
        elif STRIDED:
            elements = tl.load(sources[:, None] + at.to(tl.int64)[None, :] * stride_element, mask=inside)
            tl.store(targets[:, None] + at[None, :], elements, mask=inside)
        else:
            skew = sources.to(tl.int64) & 7
            held = words + (skew > slack)  # the words that hold the line: skewed, it may reach into one more
            aligned = (sources.to(tl.int64) - skew).to(tl.pointer_type(tl.uint64))[:, None] + at[None, :]
            low = tl.load(aligned, mask=inside)
            high = tl.load(aligned + 1, mask=inside & (at[None, :] + 1 < held[:, None]))
            shift = (8 * skew).to(tl.uint64)[:, None]
            # In two steps, since a shift by all 64 bits, where the line is not skewed, is undefined.
            word = (low >> shift) | ((high << 1) << (63 - shift))
            tl.store(targets.to(tl.pointer_type(tl.uint64))[:, None] + at[None, :], word, mask=inside)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def repack_kernel(
    split, tiles_each,
    x, x_copy, x_lines, x_length, x_pitch, x_stride_batch, x_stride_line, x_stride_element,
    y, y_copy, y_lines, y_length, y_pitch, y_stride_batch, y_stride_line, y_stride_element,
    TILE: tl.constexpr, WORDS: tl.constexpr, STRIDED: tl.constexpr, DIVISOR: tl.constexpr,
):  # fmt: skip
    """x_copy[batch, line, element] = x[batch, line, element], and the same of y.

    A copy's lines start `pitch` elements apart, a multiple of 16 bytes, and its batches `lines` lines apart; strides
    are those of the source, in elements, the last one 1 unless STRIDED, and the one before where DIVISOR is not 0.
    Grid: the programs of x, which are `split`, and those of y, if any; each copies up to `tiles_each` tiles of TILE
    words, of which a line has WORDS.
    """
    follow_previous_grid()
    program = tl.program_id(0)
    strides = x_stride_batch.to(tl.int64), x_stride_line.to(tl.int64), x_stride_element.to(tl.int64)
    operand = x, x_copy, x_lines, x_length, x_pitch
    if program >= split:
        program -= split
        strides = y_stride_batch.to(tl.int64), y_stride_line.to(tl.int64), y_stride_element.to(tl.int64)
        operand = y, y_copy, y_lines, y_length, y_pitch
    copy_tiles(
        operand[0], operand[1], program, tiles_each, operand[2], operand[3], operand[4],
        strides[0], strides[1], strides[2], TILE, WORDS, STRIDED, DIVISOR,
    )  # fmt: skip
