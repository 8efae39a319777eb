"""An order that is given tile by tile."""

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tritonmm.orders.order import Order


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Table(Order):
    """An order given as a permutation of a grid's tiles.

    tiles: integers of shape (tiles_m * tiles_n, 2); row i is the tile (m, n) of launch index i. The grid is read from
        the table, and the table fits only that grid.

    Raises ValueError unless every tile of the grid occurs exactly once. Equal tables compare equal and have equal
    hashes.

    >>> Table([(0, 0), (1, 0)]).grid
    (2, 1)
    """

    name: ClassVar[str] = "table"
    closed_form: ClassVar[bool] = False

    tiles: np.ndarray
    grid: tuple[int, int]
    digest: str

    def __init__(self, tiles):
        given = np.asarray(tiles)
        if given.ndim != 2 or given.shape[1] != 2 or not len(given) or given.dtype.kind not in "iu":
            raise ValueError(f"Table: needs integers of shape (tiles, 2), got {given.dtype} of shape {given.shape}")
        rows = given.astype(np.int64)
        if rows.min() < 0:
            raise ValueError(f"Table: not a permutation: negative tile {tuple(rows[rows.min(axis=1) < 0][0].tolist())}")
        tiles_m, tiles_n = (int(x) + 1 for x in rows.max(axis=0))
        if tiles_m * tiles_n != len(rows):
            raise ValueError(
                f"Table: not a permutation: {len(rows)} tiles given, but they span a grid of {tiles_m} x {tiles_n}"
            )
        linear = rows[:, 0] * tiles_n + rows[:, 1]
        times = np.bincount(linear, minlength=len(rows))
        if times.max() > 1:
            twice = divmod(int(times.argmax()), tiles_n)
            raise ValueError(f"Table: not a permutation: tile {twice} occurs {int(times.max())} times")
        frozen = rows.astype(np.int32)
        frozen.flags.writeable = False
        object.__setattr__(self, "tiles", frozen)
        object.__setattr__(self, "grid", (tiles_m, tiles_n))
        object.__setattr__(self, "digest", hashlib.sha256(frozen.tobytes()).hexdigest())

    def launched(self, tiles_m, tiles_n):
        if (tiles_m, tiles_n) != self.grid:
            raise ValueError(f"{self} does not fit a grid of {tiles_m} x {tiles_n} tiles")
        return len(self.tiles)

    def _map(self, i, tiles_m, tiles_n):
        return self.tiles[i, 0], self.tiles[i, 1]

    def __reduce__(self):
        return Table, (self.tiles,)  # copies and unpickled tables are checked and read-only too

    def __eq__(self, other):
        return isinstance(other, Table) and self.digest == other.digest

    def __hash__(self):
        return hash(self.digest)

    def __str__(self) -> str:
        return f"table({self.grid[0]}x{self.grid[1]}, {self.digest[:8]})"

    __repr__ = __str__
