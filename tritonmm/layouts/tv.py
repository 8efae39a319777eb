"""Thread-value layouts: which elements of a tile each thread holds.

A TV layout maps (thread, value) to the number of a coordinate of a tile; numbers count down the columns, so that in a
tile of 16 rows 33 is row 1 of column 2. Followed by the tile's layout in memory, it gives the offset of each value of
each thread.
"""

from collections.abc import Sequence

import numpy as np

from tritonmm.layouts.algebra import composition, left_inverse, zipped_divide
from tritonmm.layouts.banks import WARP, Conflicts, bank_conflicts
from tritonmm.layouts.layout import Layout


def inverse_tv(tv: Layout, shape: tuple[int, ...]) -> Layout:
    """Coordinate of the tile -> thread + threads * value; `divmod` by threads takes it apart.

    Raises ValueError where several threads hold one element, or none does.
    """
    inverse = left_inverse(tv)
    if tv.size != Layout(shape).size or inverse.size < tv.size:
        raise ValueError(f"inverse_tv: {tv} does not give each element of a {shape} tile to one thread")
    return composition(inverse, Layout(shape))


def owners(tv: Layout, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The thread, and which of its values, that hold each element of the tile; arrays of the tile's shape."""
    values, threads = np.divmod(inverse_tv(tv, shape).offsets(), tv[0].size)
    return threads, values


def partition(tile, tv: Layout, atom: tuple[int, ...]):
    """A tile in memory, dealt to threads: (thread, (value, (repetition of each mode))) -> offset.

    tile: its layout, or `Swizzled` one; atom: the shape that `tv` deals out and that is repeated over the tile.
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
    """The TV layout of Triton's BlockedLayout on a tile, threads numbered warp by warp.

    Each argument has a number for each of the tile's two modes; `order` names the modes, the fastest first. Raises
    ValueError where the layout is larger than the tile.
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


def vector_elems(dealt, elem_bytes: int) -> int:
    """How many elements one access of a thread can have: neighbours in memory, aligned, at most 16 bytes.

    dealt: (thread, value) -> offset in elements, as `composition(tile, tv)` gives it.
    """
    return _accesses(dealt, elem_bytes)[1]


def warp_conflicts(dealt, elem_bytes: int) -> list[Conflicts]:
    """The conflicts of every instruction with which warps access a tile in shared memory, warp by warp.

    dealt: as in `vector_elems`, which says how wide the accesses are.
    """
    firsts, width = _accesses(dealt, elem_bytes)
    return [
        bank_conflicts(addresses, width * elem_bytes)
        for warp in range(0, len(firsts), WARP)
        for addresses in firsts[warp : warp + WARP].T
    ]


def _accesses(dealt, elem_bytes: int) -> tuple[np.ndarray, int]:
    """Byte address of every access of every thread, and the elements that one has."""
    offsets = dealt.offsets()
    # A compiler numbers registers as it likes: values are taken in the order in which they lie in memory.
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
