"""Orders that cut one axis into groups of tiles: split-merge, swizzle-merge and serpentine."""

import operator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tritonmm.orders.order import Order


def as_factor(value: int, name: str, what: str = "factor") -> int:
    """`value` as an int. Raises ValueError, naming the order and what it is there, unless it is a positive int32."""
    try:
        factor = operator.index(value)
    except TypeError:
        factor = 0
    if not 0 < factor < 2**31 or isinstance(value, bool):
        raise ValueError(f"{name}: {what} {value!r} is not a positive integer below 2**31")
    return factor


@dataclass(frozen=True, init=False)
class Factored(Order):
    """An order that cuts one axis into groups. `along="n"` swaps the roles of the two axes."""

    factors: tuple[int, ...]  # type: ignore[misc]  # a class constant of the other orders
    along: str  # type: ignore[misc]

    def __init__(self, *factors: int, along: str = "m"):
        object.__setattr__(self, "factors", tuple(as_factor(f, self.name) for f in factors))
        if along not in ("m", "n"):
            raise ValueError(f'{self.name}: along is {along!r}; it must be "m" (groups of rows) or "n" (of columns)')
        object.__setattr__(self, "along", along)

    def _map(self, i, tiles_m, tiles_n):
        if self.along == "n":
            n, m = self._in_groups(i, tiles_n, tiles_m)
        else:
            m, n = self._in_groups(i, tiles_m, tiles_n)
        return m, n

    def _in_groups(self, i, rows, cols):
        raise NotImplementedError

    def __repr__(self) -> str:
        along = ', along="n"' if self.along == "n" else ""
        return f"{type(self).__name__}({', '.join(map(str, self.factors))}{along})"


class SplitMerge(Factored):
    """Split the rows by f, reorder, merge: [M/f, f, N] -> [M/f, N * f].

    Where f does not divide M, the split rounds up: ceil(M / f) * f * N programs are launched, and the surplus programs
        are idle. SwizzleMerge has no idle programs.
    """

    name: ClassVar[str] = "split-merge"

    def __init__(self, factor: int, *, along: str = "m"):
        super().__init__(factor, along=along)

    def launched(self, tiles_m, tiles_n):
        cut, other = (tiles_n, tiles_m) if self.along == "n" else (tiles_m, tiles_n)
        (f,) = self.factors
        return -(-cut // f) * f * other

    def _in_groups(self, i, rows, cols):
        (f,) = self.factors
        group = i // (cols * f)
        pos = i - group * (cols * f)
        return group * f + pos % f, pos // f


class SwizzleMerge(Factored):
    """Groups of f rows of tiles. Each group is visited column by column; the last one has fewer rows if f does not
    divide M.

    With one factor: group = i // (N * f), pos = i - group * N * f, and the tile is (group * f + pos % height, pos //
        height).

    A list of factors recurses inside each group with the axes swapped. T(M, N, []) is row-major; T(M, N, [f, *rest])
    visits a group of h <= f rows as (n, m) = T(N, h, rest). Two factors make super-tiles of f1 x f2 tiles. Every list
    is a bijection: no program is idle.

    >>> SwizzleMerge(2).visit(2, 2).tolist()
    [[0, 0], [1, 0], [0, 1], [1, 1]]
    """

    name: ClassVar[str] = "swizzle-merge"

    def __init__(self, *factors: int, along: str = "m"):
        if not factors:
            raise ValueError("swizzle-merge: no factor given; it takes one or more (row-major is the order with none)")
        super().__init__(*factors, along=along)

    def _in_groups(self, i, rows, cols):
        return merged(i, rows, cols, self.factors)


def merged(i, rows, cols, factors):
    """T(rows, cols, factors) of `SwizzleMerge` at index i."""
    row = col = 0
    for f in factors:
        start = i // (f * cols) * f
        i = i - start * cols
        row, col = col, row + start
        rows, cols = cols, np.minimum(f, rows - start)
    row, col = row + i // cols, col + i % cols
    return (col, row) if len(factors) % 2 else (row, col)


class Serpentine(Factored):
    """SwizzleMerge(f) with every other group in reverse, from its last tile to its first.

    A reversed group begins at the columns that the previous group used last.
    """

    name: ClassVar[str] = "serpentine"

    def __init__(self, factor: int, *, along: str = "m"):
        super().__init__(factor, along=along)

    def _in_groups(self, i, rows, cols):
        (f,) = self.factors
        start = i // (f * cols) * f
        height = np.minimum(f, rows - start)
        pos = i - start * cols
        pos = np.where(start // f % 2 == 1, height * cols - 1 - pos, pos)
        return start + pos % height, pos // height
