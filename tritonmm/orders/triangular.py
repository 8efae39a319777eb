"""Triangular orders, for symmetric products."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tritonmm.orders.groups_of_tiles import as_factor, merged
from tritonmm.orders.order import Order

MOST_ASPECT = 8
"""The most that one side of a tile may be longer than the other in a triangular order."""


@dataclass(frozen=True, init=False)
class Triangular(Order):
    """The tiles that meet the lower triangle of a square output, in groups of f rows of tiles: for symmetric products.

    aspect: height and width of a tile, as a ratio: (1, 1) for square tiles, (2, 1) for 256x128. Row m has the tiles
        below ceil((m + 1) * height / width). No program is idle.

    A group is visited in two parts. The columns that all of its rows have come first, in the order
        SwizzleMerge(f, ...) has in a group; then the rest of each row, the stairs along the diagonal, row by row.

    Raises ValueError for a grid that no square matrix has with tiles of this aspect.

    >>> Triangular(2).visit(3, 3).tolist()
    [[0, 0], [1, 0], [1, 1], [2, 0], [2, 1], [2, 2]]
    """

    name: ClassVar[str] = "triangular"
    everywhere: ClassVar[bool] = False

    factors: tuple[int, ...]  # type: ignore[misc]
    aspect: tuple[int, int]

    def __init__(self, *factors: int, aspect: tuple[int, int] = (1, 1)):
        if not factors:
            raise ValueError("triangular: no factor given; it takes one or more")
        object.__setattr__(self, "factors", tuple(as_factor(f, self.name) for f in factors))
        height, width = (as_factor(x, "triangular: aspect") for x in aspect)
        common = math.gcd(height, width)
        object.__setattr__(self, "aspect", (height // common, width // common))
        if max(self.aspect) > MOST_ASPECT:
            raise ValueError(f"triangular: aspect is {aspect}; no side of the ratio can be above {MOST_ASPECT}")

    @property
    def along(self) -> str:  # type: ignore[override]
        """The aspect, as the device reads it."""
        return f"{self.aspect[0]}x{self.aspect[1]}"

    def launched(self, tiles_m, tiles_n):
        height, width = self.aspect
        if (tiles_m - 1) * height >= tiles_n * width or (tiles_n - 1) * width >= tiles_m * height:
            raise ValueError(
                f"{self} does not fit a grid of {tiles_m} x {tiles_n} tiles; the grid must be that of a square matrix,"
                f" as {tiles_m}x{self._width(tiles_m - 1)} is"
            )
        return self._above(tiles_m) - max(0, self._width(tiles_m - 1) - tiles_n)  # the last row may be cut

    def _width(self, m):
        """Tiles of row m, in a matrix that ends with no tile."""
        height, width = self.aspect
        return -(-(m + 1) * height // width)

    def _above(self, m):
        """Tiles of all rows above m: the sum of their widths."""
        height, width = self.aspect
        rounds, rest = m // width, m % width
        first = sum((-(-j * height // width)) * (rest >= j) for j in range(1, width))
        once = sum(-(-j * height // width) for j in range(1, width + 1))
        return rounds * once + rounds * (rounds - 1) // 2 * height * width + rounds * height * rest + first

    def _row(self, i):
        """The row of the i-th tile, row by row: a root that may be off by one, put right."""
        height, width = self.aspect
        slope = (height + width - 1) / (2 * height)
        m = np.maximum((np.sqrt(slope**2 + 2.0 * width / height * i) - slope).astype(np.int64), 0)
        while (over := self._above(m) > i).any():
            m = m - over
        while (under := self._above(m + 1) <= i).any():
            m = m + under
        return m

    def _map(self, i, tiles_m, tiles_n):
        first, *rest = self.factors
        start = self._row(i) // first * first
        pos = i - self._above(start)
        height = np.minimum(first, tiles_m - start)
        shared = self._width(start)
        n, m = merged(np.minimum(pos, height * shared - 1), shared, height, rest)
        # The rest of the rows: as many tiles as the rows of a triangle have beyond those that the first of them has.
        in_stairs = pos >= height * shared
        stairs = np.where(in_stairs, pos - height * shared, 0)
        row = start
        while (passed := in_stairs & (stairs >= (beyond := self._width(row) - shared))).any():
            stairs, row = np.where(passed, stairs - beyond, stairs), np.where(passed, row + 1, row)
        return np.where(in_stairs, row, start + m), np.where(in_stairs, shared + stairs, n)

    def __str__(self) -> str:
        aspect = "" if self.aspect == (1, 1) else f"@{self.aspect[0]}x{self.aspect[1]}"
        return f"{self.name}:{','.join(map(str, self.factors))}{aspect}"

    def __repr__(self) -> str:
        aspect = "" if self.aspect == (1, 1) else f", aspect={self.aspect}"
        return f"Triangular({', '.join(map(str, self.factors))}{aspect})"
