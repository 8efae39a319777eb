"""The interface of all orders, and the two without groups of tiles."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np


@dataclass(frozen=True)
class Order:
    """A map from launch index to output tile. Subclasses are frozen and hashable.

    closed_form: True if the device computes the map with a few integer operations. Other orders are uploaded as the
        table `linear(tiles_m, tiles_n)`.
    everywhere: True if every tile of the grid is visited.
    """

    name: ClassVar[str]
    closed_form: ClassVar[bool] = True
    everywhere: ClassVar[bool] = True
    factors: ClassVar[tuple[int, ...]] = ()
    along: ClassVar[str] = "m"

    def launched(self, tiles_m: int, tiles_n: int) -> int:
        """Programs to launch for a grid of tiles_m x tiles_n tiles."""
        return tiles_m * tiles_n

    def tile(self, i: int, tiles_m: int, tiles_n: int) -> tuple[int, int] | None:
        """The tile (m, n) of launch index `i`; None for an idle (overflow) program.

        Raises IndexError unless 0 <= i < launched(tiles_m, tiles_n).

        >>> tritonmm.orders.SwizzleMerge(8).tile(9, 16, 16)
        (1, 1)
        """
        launched = self.launched(tiles_m, tiles_n)
        if not 0 <= i < launched:
            raise IndexError(f"launch index {i} is outside 0..{launched - 1} of {self} on {tiles_m} x {tiles_n} tiles")
        rows, cols = self._map(np.array([i], dtype=np.int64), tiles_m, tiles_n)
        m, n = int(rows[0]), int(cols[0])
        return (m, n) if m < tiles_m and n < tiles_n else None

    def visit(self, tiles_m: int, tiles_n: int) -> np.ndarray:
        """All tiles in launch order, as int32 of shape (launched, 2). Rows of idle programs are (-1, -1)."""
        m, n = self._map(np.arange(self.launched(tiles_m, tiles_n), dtype=np.int64), tiles_m, tiles_n)
        tiles = np.stack((m, n), axis=1).astype(np.int32)
        tiles[(m >= tiles_m) | (n >= tiles_n)] = -1
        return tiles

    def linear(self, tiles_m: int, tiles_n: int) -> np.ndarray:
        """`visit` as linear tile numbers m * tiles_n + n: int32 of shape (launched,), -1 for idle programs."""
        tiles = self.visit(tiles_m, tiles_n)
        return np.where(tiles[:, 0] < 0, -1, tiles[:, 0] * tiles_n + tiles[:, 1]).astype(np.int32)

    def _map(self, i: np.ndarray, tiles_m: int, tiles_n: int) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError

    def __str__(self) -> str:
        factors = ":" + ",".join(map(str, self.factors)) if self.factors else ""
        return f"{self.name}{factors}{'@n' if self.along == 'n' else ''}"


@dataclass(frozen=True)
class RowMajor(Order):
    """One row of tiles after the other: i -> (i // N, i % N)."""

    name: ClassVar[str] = "row-major"

    def _map(self, i, tiles_m, tiles_n):
        return i // tiles_n, i % tiles_n


@dataclass(frozen=True)
class ColumnMajor(Order):
    """One column of tiles after the other: i -> (i % M, i // M)."""

    name: ClassVar[str] = "column-major"

    def _map(self, i, tiles_m, tiles_n):
        return i % tiles_m, i // tiles_m
