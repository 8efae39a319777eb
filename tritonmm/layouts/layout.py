"""Layouts: functions from coordinates to offsets, as CuTe defines them (NVIDIA CUTLASS, `include/cute/layout.hpp`).

A layout is a shape and a stride of one nesting, written shape:stride. It takes a coordinate in three forms,
which agree:

    Layout(((2, 2), 4), ((1, 8), 2))      ((2,2),4):((1,8),2)
    layout((1, 0), 3) = 1*1 + 0*8 + 3*2   a coordinate of the shape's nesting
    layout(1, 3)                          a number a mode; (1, 0) is the mode's coordinate 1
    layout(13)                            one number; (1, 3) is the shape's coordinate 13

Numbers count with the leftmost mode fastest. Past a mode's last coordinate they continue in the last leaf, so that a
layout is defined on all integers >= 0; its domain is 0 .. size - 1. Coordinates may be numpy arrays.
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
    """Whether two nested tuples have one nesting."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int)
    return len(a) == len(b) and all(map(congruent, a, b))


@dataclass(frozen=True, slots=True)
class Layout:
    """shape:stride; without a stride the compact one, leftmost mode fastest.

    Extents are integers >= 1 and strides integers >= 0.
    """

    shape: IntTuple
    stride: IntTuple = None  # type: ignore[assignment]  # it is made before anybody sees the layout

    def __post_init__(self):
        shape = _integers(self.shape, "shape", 1)
        stride = _compact(shape, iter(prefixes(shape))) if self.stride is None else _integers(self.stride, "stride", 0)
        if not congruent(shape, stride):
            raise ValueError(f"Layout: shape {_text(shape)} and stride {_text(stride)} are not nested alike")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "stride", stride)

    @classmethod
    def row_major(cls, *shape: int) -> "Layout":
        """The compact layout whose rightmost mode is fastest: row_major(8, 64) is (8,64):(64,1)."""
        return cls(shape, tuple(reversed(prefixes(shape[::-1]))))

    @classmethod
    def of(cls, *layouts: "Layout") -> "Layout":
        """The layout that has these as its modes."""
        return cls(tuple(each.shape for each in layouts), tuple(each.stride for each in layouts))

    def __call__(self, *coord):
        """The offset of a coordinate: an int, or an array where the coordinate has arrays."""
        return _offset(coord[0] if len(coord) == 1 else coord, self.shape, self.stride)

    def __len__(self) -> int:
        """The number of modes."""
        return 1 if isinstance(self.shape, int) else len(self.shape)

    def __getitem__(self, mode: int) -> "Layout":
        """One mode as a layout."""
        if isinstance(self.shape, int) or isinstance(self.stride, int):
            return (self,)[mode]
        return Layout(self.shape[mode], self.stride[mode])

    def __iter__(self) -> Iterator["Layout"]:
        return (self[i] for i in range(len(self)))

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return math.prod(flatten(self.shape))

    @property
    def cosize(self) -> int:
        """One more than the largest offset."""
        return 1 + sum((extent - 1) * step for extent, step in self.leaves())

    def leaves(self) -> list[tuple[int, int]]:
        """(extent, stride) of each leaf, left to right."""
        return list(zip(flatten(self.shape), flatten(self.stride), strict=True))

    def offsets(self) -> np.ndarray:
        """Every offset: an int64 array with an axis a mode."""
        return offsets_of(self)

    def __str__(self) -> str:
        return f"{_text(self.shape)}:{_text(self.stride)}"


def offsets_of(layout) -> np.ndarray:
    """What `layout` maps every coordinate of its shape to, an axis a mode."""
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
    """The product of the leaves before each leaf."""
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
