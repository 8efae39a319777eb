"""Orders of the tiles of many products at once: a grouped GEMM, whose groups have sizes that only the device knows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tritonmm.orders.groups_of_tiles import Serpentine, SwizzleMerge
from tritonmm.orders.order import ColumnMajor, Order, RowMajor

INNER = (RowMajor, ColumnMajor, SwizzleMerge, Serpentine)
"""Orders of the tiles of a group: those with a closed form and no idle program."""


@dataclass(frozen=True, init=False)
class Grouped(Order):
    """The tiles of all groups of a grouped GEMM as one sequence, with no idle program for any sizes.

    A group is a product with its own number of rows of tiles; all have the same number of columns of tiles.

    inner: the order of the tiles of a group: row-major, column-major, swizzle-merge or serpentine.
    largest_first: the group with the most rows, or elements of K, comes first, and of equal ones the first in memory.
        Else groups come as they lie in memory.
    joined: the rows of tiles of all groups are one grid, in the sequence of the groups, which `inner` visits as a
        whole. So its groups of tiles may reach across several small groups. Else each group is visited by itself.

    On a plain grid of tiles, which is one group, it is `inner`.

    >>> Grouped(SwizzleMerge(2)).visit_groups([1, 2], 2).tolist()
    [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1]]
    >>> str(Grouped(SwizzleMerge(2), largest_first=True))
    'largest-groups/swizzle-merge:2'
    """

    name: ClassVar[str] = "groups"

    inner: Order
    largest_first: bool
    joined: bool

    def __init__(self, inner: Order, *, largest_first: bool = False, joined: bool = False):
        if not isinstance(inner, INNER):
            known = ", ".join(order.name for order in INNER)
            raise ValueError(f"{self.name}: the order of a group is {inner}; it must be one of {known}")
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "largest_first", bool(largest_first))
        object.__setattr__(self, "joined", bool(joined))

    @property
    def factors(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.inner.factors

    @property
    def along(self) -> str:  # type: ignore[override]
        return self.inner.along

    def sequence(self, sizes: Sequence[int]) -> np.ndarray:
        """The groups in the order of visit. sizes: of each group, rows of the operand or elements of K."""
        known = np.asarray(sizes, dtype=np.int64)
        return np.argsort(-known, kind="stable") if self.largest_first else np.arange(len(known))

    def visit_groups(self, tiles_m: Sequence[int], tiles_n: int, sizes: Sequence[int] | None = None) -> np.ndarray:
        """All tiles in launch order as (group, m, n): int32 of shape (sum(tiles_m) * tiles_n, 3).

        tiles_m: rows of tiles of each group. sizes: of each group, what "largest" means; by default tiles_m.
        """
        rows = np.asarray(tiles_m, dtype=np.int64)
        groups = self.sequence(tiles_m if sizes is None else sizes)
        if not self.joined:
            parts = [(g, self.inner.visit(int(rows[g]), tiles_n)) for g in groups if rows[g]]
            found = [np.column_stack((np.full(len(tiles), g), tiles)) for g, tiles in parts]
            return np.concatenate(found).astype(np.int32) if found else np.zeros((0, 3), np.int32)
        group_of = np.repeat(groups, rows[groups])
        first = np.concatenate(([0], np.cumsum(rows[groups])))[:-1]
        row_of = np.arange(len(group_of)) - np.repeat(first, rows[groups])
        if not len(group_of):
            return np.zeros((0, 3), np.int32)
        tiles = self.inner.visit(len(group_of), tiles_n)
        return np.column_stack((group_of[tiles[:, 0]], row_of[tiles[:, 0]], tiles[:, 1])).astype(np.int32)

    def _map(self, i, tiles_m, tiles_n):
        return self.inner._map(i, tiles_m, tiles_n)

    def __str__(self) -> str:
        return f"{'joined-' * self.joined}{'largest-' * self.largest_first}{self.name}/{self.inner}"

    def __repr__(self) -> str:
        options = "".join(f", {name}=True" for name in ("largest_first", "joined") if getattr(self, name))
        return f"Grouped({self.inner!r}{options})"
