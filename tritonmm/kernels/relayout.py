"""Copies operands that TMA cannot address to where it can: one of a product, or both in one launch.

An operand is lines of contiguous elements: rows where its layout is "n", columns where it is "t". In
the copy each line starts on a cache line of its own. The rest of that line's last cache line is left
as it was, but for what completes a word: nothing reads it, since descriptors are made with the true
sizes and TMA fills with zeros beyond them.

Lines are copied in words of 8 bytes, whatever address they start at. The source is read in aligned
words, and each word of the copy is put together from two neighbours, shifted by as many bytes as the
line is off: a warp then moves 256 bytes with an instruction instead of the 64 of 2-byte elements, and
finds the second neighbour in L1. Only words that hold an element of the line are read; their other
bytes may be another tensor's, and go no further than the end of the copy's line.

An operand that is contiguous along neither dimension is gathered, element by element, into rows.
"""

import triton
import triton.language as tl

INTEGERS = ["split", *(f"{x}_{name}" for x in "xy" for name in
            ("lines", "length", "pitch", "stride_batch", "stride_line", "stride_element"))]  # fmt: skip


@triton.jit
def copy_tile(
    source, target, tile, lines, length, pitch, stride_batch, stride_line, stride_element,
    LINES: tl.constexpr, WORDS: tl.constexpr, STRIDED: tl.constexpr,
):  # fmt: skip
    """One tile of LINES x WORDS words, or elements if STRIDED. Tiles are counted along lines, then down the batch."""
    BYTES: tl.constexpr = source.dtype.element_ty.primitive_bitwidth // 8
    if STRIDED:
        words = length
    else:
        words = ((length.to(tl.int64) * BYTES + 7) // 8).to(tl.int32)
    across = tl.cdiv(words, WORDS)
    down = tl.cdiv(lines, LINES)
    at = tile % across * WORDS + tl.arange(0, WORDS)
    line = tile // across % down * LINES + tl.arange(0, LINES)
    inside = (line < lines)[:, None] & (at < words)[None, :]
    line = line.to(tl.int64)
    batch = (tile // across // down).to(tl.int64)
    source += batch * stride_batch + line * stride_line
    target += (batch * lines + line) * pitch
    if STRIDED:
        elements = tl.load(source[:, None] + at.to(tl.int64)[None, :] * stride_element, mask=inside)
        tl.store(target[:, None] + at[None, :], elements, mask=inside)
    else:
        begin = source.to(tl.int64)
        skew = begin & 7
        first = (begin - skew).to(tl.pointer_type(tl.uint64))[:, None] + at[None, :]
        follows = at[None, :] + 1 < ((skew + length.to(tl.int64) * BYTES + 7) // 8)[:, None]
        low = tl.load(first, mask=inside)
        high = tl.load(first + 1, mask=inside & follows)
        shift = (8 * skew).to(tl.uint64)[:, None]
        # In two steps, since a shift by all 64 bits, where the line is not off, is none or undefined.
        word = (low >> shift) | ((high << 1) << (63 - shift))
        tl.store(target.to(tl.pointer_type(tl.uint64))[:, None] + at[None, :], word, mask=inside)


@triton.jit(do_not_specialize=INTEGERS)
def relayout_kernel(
    split,
    x, x_copy, x_lines, x_length, x_pitch, x_stride_batch, x_stride_line, x_stride_element,
    y, y_copy, y_lines, y_length, y_pitch, y_stride_batch, y_stride_line, y_stride_element,
    TILE: tl.constexpr, X_WORDS: tl.constexpr, Y_WORDS: tl.constexpr,
    X_STRIDED: tl.constexpr, Y_STRIDED: tl.constexpr,
):  # fmt: skip
    """x_copy[batch, line, element] = x[batch, line, element], and of y where it is given.

    A copy's lines start `pitch` elements apart, a multiple of 16 bytes, and its batches `lines` lines apart; strides
    are those of the source, in elements, the last one 1 unless STRIDED. Grid: a program for each tile of TILE words, of
    which a line has X_WORDS; the first `split` are x's.
    """
    tile = tl.program_id(0)
    if y is None:
        copy_tile(
            x, x_copy, tile, x_lines, x_length, x_pitch, x_stride_batch, x_stride_line, x_stride_element,
            TILE // X_WORDS, X_WORDS, X_STRIDED,
        )  # fmt: skip
    else:
        if tile < split:
            copy_tile(
                x, x_copy, tile, x_lines, x_length, x_pitch, x_stride_batch, x_stride_line, x_stride_element,
                TILE // X_WORDS, X_WORDS, X_STRIDED,
            )  # fmt: skip
        else:
            copy_tile(
                y, y_copy, tile - split, y_lines, y_length, y_pitch, y_stride_batch, y_stride_line, y_stride_element,
                TILE // Y_WORDS, Y_WORDS, Y_STRIDED,
            )  # fmt: skip
