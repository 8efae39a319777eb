"""Thread-value layouts: which elements of a tile each thread holds.

A TV layout maps (thread, value) to an element number of the tile. Elements are numbered down the columns: in a tile of
16 rows, element 33 is row 1 of column 2. Composed with the tile's layout in memory, it gives the offset of each value
of each thread.
"""

from collections.abc import Sequence

import numpy as np

from tritonmm.layouts.algebra import composition, left_inverse, zipped_divide
from tritonmm.layouts.banks import WARP, Conflicts, bank_conflicts
from tritonmm.layouts.layout import Layout


def inverse_tv(tv: Layout, shape: tuple[int, ...]) -> Layout:
    """The layout from a coordinate of the tile to thread + threads * value. `divmod` by the number of threads separates
    the two.

    Raises ValueError if an element is held by no thread or by several.
    """
    inverse = left_inverse(tv)
    if tv.size != Layout(shape).size or inverse.size < tv.size:
        raise ValueError(f"inverse_tv: {tv} does not give each element of a {shape} tile to one thread")
    return composition(inverse, Layout(shape))


def owners(tv: Layout, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The thread that holds each element, and the element's value index in that thread: two arrays of the tile's
    shape."""
    values, threads = np.divmod(inverse_tv(tv, shape).offsets(), tv[0].size)
    return threads, values


def partition(tile, tv: Layout, atom: tuple[int, ...]):
    """A tile in memory divided among threads: (thread, (value, (repetition of each mode))) -> offset.

    tile: a `Layout` or `Swizzled`.
    atom: the shape that `tv` covers; it is repeated over the tile.
    """
    if not isinstance(tile, Layout):
        return type(tile)(tile.swizzle, partition(tile.layout, tv, atom))
    inside, rest = zipped_divide(tile, tuple(atom))
    threads, values = composition(inside, tv)
    return Layout.of(threads, Layout.of(values, rest))


def blocked(
    shape: tuple[int, int],
    size_per_thread: Sequence[int],
    threads_per_warp: Sequence[int],
    warps: Sequence[int],
    order: Sequence[int],
) -> Layout:
    """The TV layout of Triton's BlockedLayout on a tile. Threads are numbered warp by warp.

    Each argument has a number for each of the tile's two modes; `order` lists the modes, the fastest first. Raises
    ValueError if the layout is larger than the tile.
    """
    lanes: list[Layout] = []
    wide: list[Layout] = []
    values: list[Layout] = []
    repeats: list[Layout] = []
    for dim in order:
        first = step = (1, shape[0])[dim]
        for modes, count in ((values, size_per_thread), (lanes, threads_per_warp), (wide, warps)):
            modes.append(Layout(count[dim], step))
            step *= count[dim]
        spanned = step // first
        if shape[dim] % spanned:
            raise ValueError(f"blocked: {spanned} elements along mode {dim} do not divide the {shape[dim]} of the tile")
        repeats.append(Layout(shape[dim] // spanned, step))
    return Layout.of(Layout.of(*lanes, *wide), Layout.of(*values, *repeats))


def vector_elems(offsets, elem_bytes: int) -> int:
    """The most elements that one access of a thread can cover: contiguous in memory, aligned, at most 16 bytes.

    offsets: layout (thread, value) -> offset in elements, as `composition(tile, tv)` returns it.
    """
    return _accesses(offsets, elem_bytes)[1]


def warp_conflicts(offsets, elem_bytes: int) -> list[Conflicts]:
    """The bank conflicts of every instruction with which the warps access a tile in shared memory, warp by warp.

    offsets: as in `vector_elems`, which determines the width of the accesses.
    """
    firsts, width = _accesses(offsets, elem_bytes)
    return [
        bank_conflicts(addresses, width * elem_bytes)
        for warp in range(0, len(firsts), WARP)
        for addresses in firsts[warp : warp + WARP].T
    ]


def _accesses(layout, elem_bytes: int) -> tuple[np.ndarray, int]:
    """Byte address of each access of each thread, and the elements that one access covers."""
    offsets = layout.offsets()
    # The compiler is free to reorder registers, so values are taken in the order of their addresses.
    offsets = offsets[:, np.argsort(offsets[0], kind="stable")]
    threads, values = offsets.shape
    width = 16 // elem_bytes
    while width > 1:
        if values % width == 0:
            groups = offsets.reshape(threads, -1, width)
            together = (groups - groups[:, :, :1] == np.arange(width)).all()
            if together and not (groups[:, :, 0] % width).any():
                break
        width //= 2
    return offsets[:, ::width] * elem_bytes, width
