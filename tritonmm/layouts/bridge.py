"""Conversion to and from Gluon's shared layouts, for tiles of rows x columns. Triton is imported when a function is
called.

    Gluon                                                here
    SwizzledSharedLayout(vec, per_phase, max_phase)      Swizzle(b, m, s) o row-major, where vec = 2**m,
                                                         max_phase = 2**b, per_phase * columns = 2**(m + s)
    NVMMASharedLayout(width)                             panels of `width` bytes a row, one below the other, each row
                                                         swizzled by Swizzle<log2(width / 16), 4, 3> on bytes
    PaddedSharedLayout(interval, padding)                a layout: strides grow by the padding, no swizzle

`order` [0, 1] and `transposed` exchange rows and columns.
"""

from collections.abc import Sequence

import numpy as np

from tritonmm.layouts.algebra import coalesce
from tritonmm.layouts.layout import Layout
from tritonmm.layouts.swizzle import Swizzle, Swizzled, log2

TMA_BOX = 256
"""The most elements that TMA copies along one dimension."""


def to_triton(tile: Layout | Swizzled, elem_bits: int | None = None):
    """The Gluon layout that stores element (row, column) at offset tile(row, column).

    elem_bits: None for a SwizzledSharedLayout, or a PaddedSharedLayout if the tile has gaps. With the bits of an
        element: the NVMMASharedLayout that TMA and wgmma take for such elements.

    Raises ValueError if Gluon has no such layout.
    """
    from triton.experimental.gluon import language as gl

    swizzle, layout = (tile.swizzle, tile.layout) if isinstance(tile, Swizzled) else (Swizzle(0, 0, 0), tile)
    if len(layout) != 2:
        raise ValueError(f"to_triton: {tile} has {len(layout)} modes; a tile has rows and columns")
    shape = layout[0].size, layout[1].size
    for extent in shape:
        log2(extent, "to_triton: an extent")
    if elem_bits is not None:
        return gl.NVMMASharedLayout(*_nvmma_of(tile, shape, elem_bits))
    fast = 1 if layout[1].leaves()[0][1] == 1 or layout[1].size == 1 else 0
    order = [fast, 1 - fast]
    pads = _paddings(layout, fast)
    if pads:
        if swizzle.b:
            raise ValueError(f"to_triton: {tile} is padded and swizzled; Gluon has either")
        return gl.PaddedSharedLayout.with_identity_for([list(pair) for pair in pads], list(shape), order)
    row = shape[fast]
    if swizzle.b and (swizzle.s < 0 or 1 << swizzle.m + swizzle.s < row or 1 << swizzle.m + swizzle.b > row):
        raise ValueError(
            f"to_triton: {swizzle} does not move elements within their row of {row} by its number only, as"
            " SwizzledSharedLayout does"
        )
    per_phase = (1 << swizzle.m + swizzle.s) // row if swizzle.b else 1
    return gl.SwizzledSharedLayout(1 << swizzle.m, per_phase, 1 << swizzle.b, order)


def from_triton(layout, shape: Sequence[int]) -> Layout | Swizzled:
    """The offset of (row, column), in elements, in a tile of `shape` with this Gluon shared layout.

    Raises ValueError for other kinds of layouts, for tiles of several CTAs, and for tiles that TMA cannot address.
    """
    from triton.experimental.gluon import language as gl

    if len(shape) != 2 or getattr(layout, "cga_layout", None) or getattr(layout, "block_bases", None):
        raise ValueError(f"from_triton: {layout} of {tuple(shape)}; only tiles of rows x columns in one CTA")
    if isinstance(layout, gl.SwizzledSharedLayout):
        fast = layout.order[0]
        tile = Layout.row_major(*shape) if fast == 1 else Layout(tuple(shape))
        m = log2(layout.vec)
        b = log2(min(layout.max_phase, max(1, shape[fast] // layout.vec)))  # Triton ignores phases beyond the row
        return Swizzled(Swizzle(b, m, log2(layout.per_phase * shape[fast]) - m), tile) if b else tile
    if isinstance(layout, gl.NVMMASharedLayout) and not layout.fp4_padded:
        return _nvmma(shape, layout.swizzle_byte_width, layout.element_bitwidth, layout.transposed)
    if isinstance(layout, gl.PaddedSharedLayout):
        return _padded(layout, shape)
    raise ValueError(f"from_triton: {layout} is no SwizzledSharedLayout, NVMMASharedLayout or PaddedSharedLayout")


def _nvmma(shape: Sequence[int], width: int, elem_bits: int, transposed: bool) -> Layout | Swizzled:
    rows, cols = reversed(shape) if transposed else shape
    panel = width * 8 // elem_bits if width else min(cols, TMA_BOX)
    if rows < 8 or rows > TMA_BOX or cols < panel:
        raise ValueError(
            f"NVMMASharedLayout: {rows} rows of {cols} elements of {elem_bits} bits; swizzling {width} bytes takes 8 to"
            f" {TMA_BOX} rows of at least {panel}"
        )
    tile = Layout((rows, (panel, cols // panel)), (panel, (1, rows * panel)))
    tile = Layout.of(*(coalesce(mode) for mode in (reversed(list(tile)) if transposed else tile)))
    return Swizzled(Swizzle(log2(width // 16), log2(128 // elem_bits), 3), tile) if width else tile


def _nvmma_of(tile, shape: Sequence[int], elem_bits: int) -> tuple[int, int, int, bool]:
    """Arguments of the NVMMASharedLayout that equals `tile`."""
    for width in (128, 64, 32, 0):
        for transposed in (False, True):
            try:
                known = _nvmma(shape, width, elem_bits, transposed)
            except ValueError:
                continue
            if np.array_equal(known.offsets(), tile.offsets()):
                return width, elem_bits, 2, transposed
    raise ValueError(f"to_triton: {tile} of {elem_bits}-bit elements is no layout that TMA writes")


def _paddings(layout: Layout, fast: int) -> list[tuple[int, int]]:
    """(interval, padding) pairs; none if the layout is compact with mode `fast` fastest."""
    pads: list[tuple[int, int]] = []
    before = 1
    for extent, stride in (*coalesce(layout[fast]).leaves(), *coalesce(layout[1 - fast]).leaves()):
        if extent == 1:
            continue
        padding = stride - before - sum(before // interval * each for interval, each in pads)
        if padding < 0 or padding & (padding - 1) or (padding and before == 1):
            raise ValueError(f"to_triton: {layout} has stride {stride} after {before} elements; no padding gives it")
        if padding:
            pads.append((before, padding))
        before *= extent
    return pads


def _padded(layout, shape: Sequence[int]) -> Layout:
    bits: list[list[tuple[int, int]]] = [[], []]  # of each dimension: (bit of the coordinate, its stride)
    for i, basis in enumerate(layout.offset_bases):
        reached = (1 << i) + sum((1 << i) // interval * padding for interval, padding in layout.interval_padding_pairs)
        for dim in (0, 1):
            if basis[dim]:
                bits[dim].append((basis[dim], reached))
    whole = len(layout.offset_bases) == log2(shape[0]) + log2(shape[1])
    found = [sorted(bit for bit, _ in each) for each in bits]
    if not whole or found != [[1 << i for i in range(log2(extent))] for extent in shape]:
        raise ValueError(f"from_triton: the bases of {layout} are not those of a tile of {tuple(shape)}, bit by bit")
    leaves = [[(1, 0), *((2, stride) for _, stride in sorted(each))] for each in bits]
    return Layout.of(*(coalesce(Layout(*zip(*each, strict=True))) for each in leaves))
