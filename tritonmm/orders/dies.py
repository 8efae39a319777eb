"""Orders for GPUs of several dies, each with an L2 of its own, to which the hardware assigns programs round robin."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tritonmm.orders.curves import Hilbert, Morton
from tritonmm.orders.groups_of_tiles import Serpentine, SwizzleMerge, as_factor
from tritonmm.orders.order import ColumnMajor, Order, RowMajor

INNER = (RowMajor, ColumnMajor, SwizzleMerge, Serpentine, Morton, Hilbert)
"""Orders that dies may divide among them: bijections on every grid."""

WHOLE = 2**31 - 1
"""The chunk of a die that has one range of the whole order: more tiles than any grid has."""


@dataclass(frozen=True, init=False)
class Dies(Order):
    """Gives each die ranges of neighbouring tiles, on a GPU that runs program i on die i % dies.

    dies: how many there are. inner: the order that they divide among them: row-major, column-major, swizzle-merge,
        serpentine, morton or hilbert.
    chunk: tiles of a range. All dies work on `dies` neighbouring ranges at the same time, and share what they read in
        the cache behind their L2s. None: a single range for each die.

    This is the inverse of the round robin. A round is `dies * chunk` tiles of the inner order, of which die x has the
    x-th range. The last round may have fewer tiles. Then each die has a range of as many tiles as it runs programs,
    which differ by one at most. So the map is a bijection on every grid, and no program is idle, whether or not the
    dies divide the number of tiles.

    With persistent programs, tiles are on the same dies if the number of programs is a multiple of `dies`.

    Sources: the AMD MI300X assigns workgroups to its 8 XCDs round robin (ROCm/composable_kernel #3652). Ranges and
        chunks are HipKittens' (arXiv 2511.08083, section 3.4), which keep the last round in the inner order.

    >>> [Dies(2, RowMajor()).tile(i, 2, 2) for i in (0, 2, 1, 3)]  # programs 0 and 2 run on the first die
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    >>> str(Dies(8, SwizzleMerge(8), chunk=64))
    'dies:8,64/swizzle-merge:8'
    """

    dies: int
    inner: Order
    chunk: int | None

    prefix: ClassVar[str] = "dies"

    def __init__(self, dies: int, inner: Order, *, chunk: int | None = None):
        if not isinstance(inner, INNER):
            known = ", ".join(order.name for order in INNER)
            raise ValueError(f"dies: the order that dies divide is {inner}; it must be one of {known}")
        object.__setattr__(self, "dies", as_factor(dies, self.prefix, "number of dies"))
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "chunk", None if chunk is None else as_factor(chunk, self.prefix, "chunk"))

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name by which the device knows it."""
        return f"{self.prefix}/{self.inner.name}"

    @property
    def closed_form(self) -> bool:  # type: ignore[override]
        return self.inner.closed_form

    @property
    def factors(self) -> tuple[int, ...]:  # type: ignore[override]
        """The dies, the chunk and the factors of the inner order, as the device reads them."""
        return self.dies, self.chunk or WHOLE, *self.inner.factors

    @property
    def along(self) -> str:  # type: ignore[override]
        return self.inner.along

    def _map(self, i, tiles_m, tiles_n):
        return self.inner._map(place(i, tiles_m * tiles_n, self.dies, self.chunk or WHOLE), tiles_m, tiles_n)

    def __str__(self) -> str:
        return f"{self.prefix}:{self.dies}{f',{self.chunk}' if self.chunk else ''}/{self.inner}"

    def __repr__(self) -> str:
        return f"Dies({self.dies}, {self.inner!r}{f', chunk={self.chunk}' if self.chunk else ''})"


def place(i, tiles, dies, chunk):
    """The place in the inner order of launch index i."""
    pos = i // dies  # among the programs of its die
    first = pos // chunk * chunk  # that of the round
    rest = tiles - first * dies
    share = np.minimum(chunk, rest // dies)
    more = np.where(rest // dies < chunk, rest % dies, 0)  # dies that have a tile more
    die = i - pos * dies
    return first * dies + die * share + np.minimum(die, more) + pos - first
