"""Layouts: functions from coordinates to offsets, as CuTe defines them (NVIDIA CUTLASS, `include/cute/layout.hpp`).

A layout is a shape and a stride with the same nesting, written shape:stride. A coordinate has three equivalent forms:

    Layout(((2, 2), 4), ((1, 8), 2))      ((2,2),4):((1,8),2)
    layout((1, 0), 3) = 1*1 + 0*8 + 3*2   a coordinate nested like the shape
    layout(1, 3)                          a number for each mode; (1, 0) is coordinate 1 of the first mode
    layout(13)                            one number; (1, 3) is coordinate 13 of the shape

Numbers count with the leftmost mode fastest. Past the last coordinate they continue in the last leaf, so a layout is
defined on all integers >= 0. Its domain is 0 .. size - 1. Coordinates may be numpy arrays.
"""

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

IntTuple = int | tuple["IntTuple", ...]


def flatten(x: IntTuple) -> tuple[int, ...]:
    """The leaves of nested tuples, left to right."""
    return (x,) if isinstance(x, int) else tuple(leaf for each in x for leaf in flatten(each))


def congruent(a: IntTuple, b: IntTuple) -> bool:
    """True if two nested tuples have the same nesting."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int)
    return len(a) == len(b) and all(map(congruent, a, b))


@dataclass(frozen=True, slots=True)
class Layout:
    """shape:stride. Frozen and hashable.

    shape: an integer >= 1, or nested tuples of them.
    stride: integers >= 0 with the nesting of `shape`; by default compact, with the leftmost mode fastest.

    Raises ValueError for other values.

    >>> Layout((4, 8), (8, 1))(2, 3)
    19
    """

    shape: IntTuple
    stride: IntTuple = None  # type: ignore[assignment]  # set in __post_init__

    def __post_init__(self):
        shape = _integers(self.shape, "shape", 1)
        stride = _compact(shape, iter(prefixes(shape))) if self.stride is None else _integers(self.stride, "stride", 0)
        if not congruent(shape, stride):
            raise ValueError(f"Layout: shape {_text(shape)} and stride {_text(stride)} have different nestings")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "stride", stride)

    @classmethod
    def row_major(cls, *shape: int) -> "Layout":
        """The compact layout with the rightmost mode fastest: row_major(8, 64) is (8,64):(64,1)."""
        extents = flatten(_integers(shape, "shape", 1))
        return cls(shape, tuple(reversed(prefixes(extents[::-1]))))

    @classmethod
    def of(cls, *layouts: "Layout") -> "Layout":
        """The layout with these layouts as its modes."""
        return cls(tuple(each.shape for each in layouts), tuple(each.stride for each in layouts))

    def __call__(self, *coord):
        """The offset of a coordinate: an integer, or an array if the coordinate contains arrays."""
        return _offset(coord[0] if len(coord) == 1 else coord, self.shape, self.stride)

    def __len__(self) -> int:
        """Number of modes."""
        return 1 if isinstance(self.shape, int) else len(self.shape)

    def __getitem__(self, mode: int) -> "Layout":
        """One mode, as a layout."""
        if isinstance(self.shape, int) or isinstance(self.stride, int):
            return (self,)[mode]
        return Layout(self.shape[mode], self.stride[mode])

    def __iter__(self) -> Iterator["Layout"]:
        return (self[i] for i in range(len(self)))

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return math.prod(flatten(self.shape))

    @property
    def cosize(self) -> int:
        """One more than the largest offset."""
        return 1 + sum((extent - 1) * step for extent, step in self.leaves())

    def leaves(self) -> list[tuple[int, int]]:
        """(extent, stride) of each leaf, left to right."""
        return list(zip(flatten(self.shape), flatten(self.stride), strict=True))

    def offsets(self) -> np.ndarray:
        """All offsets: int64, with one axis for each mode."""
        return offsets_of(self)

    def __str__(self) -> str:
        return f"{_text(self.shape)}:{_text(self.stride)}"


def offsets_of(layout) -> np.ndarray:
    """All offsets of `layout`, a `Layout` or `Swizzled`: int64, with one axis for each mode of its shape."""
    extents = [each.size for each in Layout(layout.shape)]
    return layout(np.arange(math.prod(extents))).reshape(extents, order="F")


def _offset(coord, shape, stride):
    if isinstance(coord, tuple):
        if isinstance(shape, int) or len(coord) != len(shape):
            raise ValueError(f"coordinate {coord} does not fit the shape {_text(shape)}")
        return sum(map(_offset, coord, shape, stride))
    if isinstance(shape, int):
        return coord * stride
    total = 0
    for i, (extents, strides) in enumerate(zip(shape, stride, strict=True)):
        extent = math.prod(flatten(extents))
        last = i == len(shape) - 1
        total += _offset(coord if last else coord % extent, extents, strides)
        coord = coord // extent
    return total


def prefixes(shape: IntTuple) -> list[int]:
    """For each leaf, the product of the extents before it."""
    products = [1]
    for extent in flatten(shape)[:-1]:
        products.append(products[-1] * extent)
    return products


def _compact(shape: IntTuple, strides: Iterator[int]) -> IntTuple:
    return next(strides) if isinstance(shape, int) else tuple(_compact(each, strides) for each in shape)


def _integers(x, name: str, least: int) -> IntTuple:
    if isinstance(x, tuple | list) and len(x):
        return tuple(_integers(each, name, least) for each in x)
    try:
        value = operator.index(x)
    except TypeError:
        value = least - 1
    if value < least:
        raise ValueError(f"Layout: {name} has {x!r}; it is nested tuples of integers >= {least}")
    return value


def _text(x: IntTuple) -> str:
    return str(x) if isinstance(x, int) else f"({','.join(map(_text, x))})"
