"""Space-filling curves."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tritonmm.orders.order import Order


@dataclass(frozen=True)
class _Curve(Order):
    """A space-filling curve over the enclosing power-of-two square, without the indices outside of the grid.

    Each index is found by descending the quadtree: a quadrant is skipped by the number of grid tiles in it. So no
        program is idle on any rectangle, and nothing is sorted.
    """

    closed_form: ClassVar[bool] = False
    quadrants: ClassVar[tuple[tuple[int, int], ...]]  # (row, column) of each quadrant, in the order of visit
    transforms: ClassVar[tuple[int, ...]]  # of the curve in each quadrant: bit 0 transposes, bit 1 flips both axes

    def _map(self, i, tiles_m, tiles_n):
        row, col, turned = np.zeros_like(i), np.zeros_like(i), np.zeros_like(i)
        side = 1 << max(tiles_m - 1, tiles_n - 1, 0).bit_length()
        while side > 1:
            side //= 2
            found = np.zeros(i.shape, dtype=bool)
            next_row, next_col, next_turned = row, col, turned
            for (down, right), transform in zip(self.quadrants, self.transforms, strict=True):
                r = np.where(turned & 1, right, down) ^ (turned >> 1)
                c = np.where(turned & 1, down, right) ^ (turned >> 1)
                r, c = row + r * side, col + c * side
                tiles = np.clip(tiles_m - r, 0, side) * np.clip(tiles_n - c, 0, side)
                here = ~found & (i < tiles)
                next_row, next_col = np.where(here, r, next_row), np.where(here, c, next_col)
                next_turned = np.where(here, turned ^ transform, next_turned)
                found |= here
                i = np.where(found, i, i - tiles)
            row, col, turned = next_row, next_col, next_turned
        return row, col


@dataclass(frozen=True)
class Morton(_Curve):
    """The Z curve (Morton, 1966): the index interleaves the bits of m and n."""

    name: ClassVar[str] = "morton"
    quadrants: ClassVar[tuple[tuple[int, int], ...]] = ((0, 0), (0, 1), (1, 0), (1, 1))
    transforms: ClassVar[tuple[int, ...]] = (0, 0, 0, 0)


@dataclass(frozen=True)
class Hilbert(_Curve):
    """The Hilbert curve (1891): on a power-of-two square, consecutive tiles are neighbours."""

    name: ClassVar[str] = "hilbert"
    quadrants: ClassVar[tuple[tuple[int, int], ...]] = ((0, 0), (1, 0), (1, 1), (0, 1))
    transforms: ClassVar[tuple[int, ...]] = (1, 0, 0, 3)
