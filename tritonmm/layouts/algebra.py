"""The algebra of layouts: composition, complement, inverses, division.

The operations are CuTe's. Each has the law that defines it, and `tests/layouts/test_algebra.py` checks that law at
every coordinate. An operation raises ValueError if no layout obeys its law, even where CuTe returns a layout that does
not.
"""

import math

from tritonmm.layouts.layout import Layout, prefixes


def coalesce(layout: Layout) -> Layout:
    """The flat layout with the fewest modes that maps every number of the domain to the same offset.

    >>> str(coalesce(Layout((2, (1, 6)), (1, (6, 2)))))
    '12:1'
    """
    return _from_leaves(_merged(layout))


def composition(a, b):
    """The layout c with c(i) = a(b(i)) for every i; its shape refines b's shape.

    a: a layout, or a `Swizzled` layout, which stays swizzled.
    b: a layout, an integer n for n:1, or a tuple of these, one for each of the first modes of a. The other modes of a
        stay unchanged.

    Raises ValueError if a(b(i)) is no layout: a step of b ends between two coordinates of a mode of a, or two modes of
    b carry into a third mode of a.

    >>> str(composition(Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1))))
    '((2,2),3):((24,2),8)'
    """
    if not isinstance(a, Layout):
        return a.compose(b)
    if isinstance(b, tuple):
        if len(b) > len(a):
            raise ValueError(f"composition: {len(b)} modes do not fit the {len(a)} of {a}")
        return Layout.of(*(composition(a[i], b[i]) if i < len(b) else a[i] for i in range(len(a))))
    b = Layout(b) if isinstance(b, int) else b
    modes = _merged(a, extend=True)
    used = [0] * len(modes)

    def through(shape, stride) -> Layout:
        if isinstance(shape, tuple):
            return Layout.of(*map(through, shape, stride))
        parts = _through(modes, used, shape, stride)
        if parts is None:
            raise ValueError(f"composition: {a} after {b} is no layout: {shape}:{stride} straddles its modes")
        return _from_leaves(parts)

    return through(b.shape, b.stride)


def _through(modes: list[tuple[int, int]], used: list[int], shape: int, stride: int) -> list[tuple[int, int]] | None:
    """The leaves of shape:stride followed by a layout with these modes, or None if that is no layout.

    used: for each mode, the largest coordinate reached by all leaves together so far. Below the mode's extent nothing
        is carried, and the offsets of several leaves add up.
    """
    parts = []
    for i, (extent, step) in enumerate(modes):
        last = i == len(modes) - 1
        if last or (shape - 1) * stride < extent:
            count = shape
        elif stride % extent == 0:
            stride //= extent
            continue
        elif extent % stride == 0 and shape % (extent // stride) == 0:
            count = extent // stride
        else:
            return None
        used[i] += (count - 1) * stride
        if used[i] >= extent and not last:
            return None
        if count > 1:
            parts.append((count, stride * step))
        shape //= count
        if shape == 1:
            break
        stride = 1  # this mode is full; the next step enters the next mode
    return parts


def complement(layout: Layout, bound: int) -> Layout:
    """The layout of the offsets below `bound` that `layout` does not reach. Together they cover 0 .. bound - 1, each
    offset once.

    The result ascends from 0. It reaches past `bound` if the last repetition is incomplete. Raises ValueError if two
    leaves of the layout overlap.

    >>> str(complement(Layout(4, 2), 16))
    '(2,2):(1,8)'
    """
    gaps, reached = [], 1
    for stride, extent in sorted((step, extent) for extent, step in layout.leaves() if extent > 1 and step > 0):
        if stride % reached:
            raise ValueError(f"complement: {layout} overlaps itself at stride {stride}")
        gaps.append((stride // reached, reached))
        reached = stride * extent
    return coalesce(_from_leaves([*gaps, (-(-bound // reached), reached)]))


def right_inverse(layout: Layout) -> Layout:
    """The largest layout r with layout(r(i)) = i for every i below r's size.

    >>> str(right_inverse(Layout.row_major(2, 4)))
    '(4,2):(2,1)'
    """
    taken, reached = [], 1
    places = prefixes(layout.shape)
    for (extent, stride), place in sorted(zip(layout.leaves(), places, strict=True), key=lambda leaf: leaf[0][1]):
        if extent > 1 and stride > 0:
            if stride != reached:
                break
            taken.append((extent, place))
            reached *= extent
    return coalesce(_from_leaves(taken))


def left_inverse(layout: Layout) -> Layout:
    """A layout l with l(layout(i)) = i for every i of the domain. Raises ValueError if two coordinates have the same
    offset.

    >>> left_inverse(Layout(4, 2))(6)
    3
    """
    if any(extent > 1 and stride == 0 for extent, stride in layout.leaves()):
        raise ValueError(f"left_inverse: {layout} maps several coordinates to one offset")
    return right_inverse(Layout.of(layout, complement(layout, layout.cosize)))


def logical_divide(layout: Layout, tiler) -> Layout:
    """The layout in two modes, the coordinate in a tile and the tile's number: d(i, j) = layout(tiler(i) +
    complement(j)).

    tiler: a layout, an integer n for n:1, or a tuple of these that divides the modes of the layout one by one.

    >>> str(logical_divide(Layout(16), 4))
    '(4,4):(1,4)'
    """
    if isinstance(tiler, tuple):
        if len(tiler) > len(layout):
            raise ValueError(f"logical_divide: {len(tiler)} modes do not fit the {len(layout)} of {layout}")
        divided = (logical_divide(layout[i], each) for i, each in enumerate(tiler))
        return Layout.of(*divided, *list(layout)[len(tiler) :])
    tiler = Layout(tiler) if isinstance(tiler, int) else tiler
    return composition(layout, Layout.of(tiler, complement(tiler, layout.size)))


def zipped_divide(layout: Layout, tiler) -> Layout:
    """`logical_divide` with all tile modes first: ((tile of mode 0, of 1, ..), (tile number in mode 0, in 1, ..))."""
    divided = logical_divide(layout, tiler)
    if not isinstance(tiler, tuple):
        return divided
    count = len(tiler)
    tiles = [divided[i][0] for i in range(count)]
    rests = [divided[i][1] for i in range(count)] + list(divided)[count:]
    return Layout.of(Layout.of(*tiles), Layout.of(*rests))


def tiled_divide(layout: Layout, tiler) -> Layout:
    """`zipped_divide` with its second mode unpacked: ((tile of mode 0, of 1, ..), tile number in mode 0, in 1, ..)."""
    tile, rest = zipped_divide(layout, tiler)
    return Layout.of(tile, *rest)


def _merged(layout: Layout, extend: bool = False) -> list[tuple[int, int]]:
    """The leaves, without those of extent 1, and with adjacent leaves joined where one continues the other.

    extend: numbers past the size must map to the same offsets too. Then a last leaf of extent 1 is kept, because they
        continue in it.
    """
    merged: list[tuple[int, int]] = []
    leaves = layout.leaves()
    for i, (extent, stride) in enumerate(leaves):
        if extent == 1 and not (extend and i == len(leaves) - 1):
            continue
        if merged and math.prod(merged[-1]) == stride:
            merged[-1] = merged[-1][0] * extent, merged[-1][1]
        else:
            merged.append((extent, stride))
    return merged or [(1, 0)]


def _from_leaves(leaves: list[tuple[int, int]]) -> Layout:
    if len(leaves) < 2:
        return Layout(*(leaves[0] if leaves else (1, 0)))
    shape, stride = zip(*leaves, strict=True)
    return Layout(shape, stride)
