"""Tile orders: in which sequence a GEMM visits the tiles of its output.

A product of M x N output tiles launches (or walks, when persistent) a one-dimensional index
``i = 0, 1, 2, ...``; an order maps each index to a tile (m, n). Programs that run at the same time
have neighbouring indices, so the order decides which rows of A and columns of B are wanted
together, and with that what the L2 cache can serve.

Every order but `SplitMerge` is a bijection on every grid: ``launched == tiles_m * tiles_n`` and each
tile is visited exactly once. The maps are written once, for Python integers and for numpy arrays
alike; `tritonmm.device.order` is the same arithmetic on the device.

Sources: `SwizzleMerge` and `SplitMerge` are the two schemes compared in NVIDIA/Fuser issue #3942.
With one factor SwizzleMerge is the same map as Triton's grouped ordering (GROUP_M in Triton's
matmul tutorial); what it adds is the list of factors. Against `SplitMerge` it adds the absence of
overflow tiles.
"""

import hashlib
import operator
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

__all__ = [
    "ColumnMajor",
    "Hilbert",
    "Morton",
    "Order",
    "RowMajor",
    "Serpentine",
    "SplitMerge",
    "SwizzleMerge",
    "Table",
    "parse",
]


@dataclass(frozen=True)
class Order:
    """A map from launch index to output tile. Subclasses are frozen, hashable values.

    `closed_form` says that the device computes the map with a few integer operations; the other
    orders are uploaded as a table of `linear(tiles_m, tiles_n)`.
    """

    name: ClassVar[str]
    closed_form: ClassVar[bool] = True
    factors: ClassVar[tuple[int, ...]] = ()
    along: ClassVar[str] = "m"

    def launched(self, tiles_m: int, tiles_n: int) -> int:
        """Programs to launch for a grid of tiles_m x tiles_n tiles."""
        return tiles_m * tiles_n

    def tile(self, i: int, tiles_m: int, tiles_n: int) -> tuple[int, int] | None:
        """The tile (m, n) of launch index `i`, or None where program `i` is overflow and idles.

        Raises IndexError unless 0 <= i < launched(tiles_m, tiles_n).
        """
        launched = self.launched(tiles_m, tiles_n)
        if not 0 <= i < launched:
            raise IndexError(f"launch index {i} is outside 0..{launched - 1} of {self} on {tiles_m} x {tiles_n} tiles")
        rows, cols = self._map(np.array([i], dtype=np.int64), tiles_m, tiles_n)
        m, n = int(rows[0]), int(cols[0])
        return (m, n) if m < tiles_m and n < tiles_n else None

    def visit(self, tiles_m: int, tiles_n: int) -> np.ndarray:
        """The whole order as an int32 array of shape (launched, 2); overflow rows are (-1, -1)."""
        m, n = self._map(np.arange(self.launched(tiles_m, tiles_n), dtype=np.int64), tiles_m, tiles_n)
        tiles = np.stack((m, n), axis=1).astype(np.int32)
        tiles[(m >= tiles_m) | (n >= tiles_n)] = -1
        return tiles

    def linear(self, tiles_m: int, tiles_n: int) -> np.ndarray:
        """`visit` as int32 of shape (launched,): m * tiles_n + n, and -1 for overflow."""
        tiles = self.visit(tiles_m, tiles_n)
        return np.where(tiles[:, 0] < 0, -1, tiles[:, 0] * tiles_n + tiles[:, 1]).astype(np.int32)

    def _map(self, i: np.ndarray, tiles_m: int, tiles_n: int) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError

    def __str__(self) -> str:
        factors = ":" + ",".join(map(str, self.factors)) if self.factors else ""
        return f"{self.name}{factors}{'@n' if self.along == 'n' else ''}"


@dataclass(frozen=True)
class RowMajor(Order):
    """Row after row of tiles: i -> (i // N, i % N)."""

    name: ClassVar[str] = "row-major"

    def _map(self, i, tiles_m, tiles_n):
        return i // tiles_n, i % tiles_n


@dataclass(frozen=True)
class ColumnMajor(Order):
    """Column after column of tiles: i -> (i % M, i // M)."""

    name: ClassVar[str] = "column-major"

    def _map(self, i, tiles_m, tiles_n):
        return i % tiles_m, i // tiles_m


@dataclass(frozen=True, init=False)
class _Factored(Order):
    """An order that cuts one axis into megarows. `along="n"` swaps the roles of the two axes."""

    factors: tuple[int, ...]  # type: ignore[misc]  # a constant of other orders' classes, and a value of these
    along: str  # type: ignore[misc]

    def __init__(self, *factors: int, along: str = "m"):
        object.__setattr__(self, "factors", tuple(_factor(f, self.name) for f in factors))
        if along not in ("m", "n"):
            raise ValueError(f'{self.name}: along is {along!r}; it must be "m" (megarows of rows) or "n" (of columns)')
        object.__setattr__(self, "along", along)

    def _map(self, i, tiles_m, tiles_n):
        if self.along == "n":
            n, m = self._megarows(i, tiles_n, tiles_m)
        else:
            m, n = self._megarows(i, tiles_m, tiles_n)
        return m, n

    def _megarows(self, i, rows, cols):
        raise NotImplementedError

    def __repr__(self) -> str:
        along = ', along="n"' if self.along == "n" else ""
        return f"{type(self).__name__}({', '.join(map(str, self.factors))}{along})"


class SplitMerge(_Factored):
    """Split the rows by f, reorder, merge: [M/f, f, N] -> [M/f, N * f].

    Where f does not divide M the split rounds up, so ceil(M / f) * f * N programs are launched and
    the surplus ones fall outside of the grid: they are the overflow that SwizzleMerge avoids.
    """

    name: ClassVar[str] = "split-merge"

    def __init__(self, factor: int, *, along: str = "m"):
        super().__init__(factor, along=along)

    def launched(self, tiles_m, tiles_n):
        cut, other = (tiles_n, tiles_m) if self.along == "n" else (tiles_m, tiles_n)
        (f,) = self.factors
        return -(-cut // f) * f * other

    def _megarows(self, i, rows, cols):
        (f,) = self.factors
        megarow = i // (cols * f)
        pos = i - megarow * (cols * f)
        return megarow * f + pos % f, pos // f


class SwizzleMerge(_Factored):
    """Megarows of f rows, walked column by column; the last megarow is as high as what is left.

    A list of factors recurses: T(M, N, []) is row-major, and T(M, N, [f, *rest]) cuts megarows of f
    rows (the last of height h <= f) and visits each as (n, m) = T(N, h, rest), axes swapped. One
    factor is the formula of issue #3942, two make f1 x f2 super-tiles. No program overflows.
    """

    name: ClassVar[str] = "swizzle-merge"

    def __init__(self, *factors: int, along: str = "m"):
        if not factors:
            raise ValueError("swizzle-merge: no factor given; it takes one or more (row-major is the order with none)")
        super().__init__(*factors, along=along)

    def _megarows(self, i, rows, cols):
        row = col = 0
        for f in self.factors:
            start = i // (f * cols) * f
            i = i - start * cols
            row, col = col, row + start
            rows, cols = cols, np.minimum(f, rows - start)
        row, col = row + i // cols, col + i % cols
        return (col, row) if len(self.factors) % 2 else (row, col)


class Serpentine(_Factored):
    """SwizzleMerge(f) whose every other megarow runs backwards, from its last tile to its first.

    The turn begins at the columns that the previous megarow has just used.
    """

    name: ClassVar[str] = "serpentine"

    def __init__(self, factor: int, *, along: str = "m"):
        super().__init__(factor, along=along)

    def _megarows(self, i, rows, cols):
        (f,) = self.factors
        start = i // (f * cols) * f
        height = np.minimum(f, rows - start)
        pos = i - start * cols
        pos = np.where(start // f % 2 == 1, height * cols - 1 - pos, pos)
        return start + pos % height, pos // height


@dataclass(frozen=True)
class _Curve(Order):
    """A curve over the enclosing power-of-two square, its indices outside of the grid left out.

    Found per index by descending the quadtree: a quadrant is skipped by the number of grid tiles
    that it holds, so the order has no overflow on any rectangle and needs no sorting.
    """

    closed_form: ClassVar[bool] = False
    quadrants: ClassVar[tuple[tuple[int, int], ...]]  # (row, column) of each quadrant, in the order of visit
    turns: ClassVar[tuple[int, ...]]  # how each quadrant is turned: bit 0 transposes, bit 1 flips both axes

    def _map(self, i, tiles_m, tiles_n):
        row, col, turned = np.zeros_like(i), np.zeros_like(i), np.zeros_like(i)
        side = 1 << max(tiles_m - 1, tiles_n - 1, 0).bit_length()
        while side > 1:
            side //= 2
            found = np.zeros(i.shape, dtype=bool)
            next_row, next_col, next_turned = row, col, turned
            for (down, right), turn in zip(self.quadrants, self.turns, strict=True):
                r = np.where(turned & 1, right, down) ^ (turned >> 1)
                c = np.where(turned & 1, down, right) ^ (turned >> 1)
                r, c = row + r * side, col + c * side
                tiles = np.clip(tiles_m - r, 0, side) * np.clip(tiles_n - c, 0, side)
                here = ~found & (i < tiles)
                next_row, next_col = np.where(here, r, next_row), np.where(here, c, next_col)
                next_turned = np.where(here, turned ^ turn, next_turned)
                found |= here
                i = np.where(found, i, i - tiles)
            row, col, turned = next_row, next_col, next_turned
        return row, col


@dataclass(frozen=True)
class Morton(_Curve):
    """The Z curve (Morton, 1966): the bits of m and n interleaved."""

    name: ClassVar[str] = "morton"
    quadrants: ClassVar[tuple[tuple[int, int], ...]] = ((0, 0), (0, 1), (1, 0), (1, 1))
    turns: ClassVar[tuple[int, ...]] = (0, 0, 0, 0)


@dataclass(frozen=True)
class Hilbert(_Curve):
    """The Hilbert curve (1891): on a power-of-two square each tile is a neighbour of the one before."""

    name: ClassVar[str] = "hilbert"
    quadrants: ClassVar[tuple[tuple[int, int], ...]] = ((0, 0), (1, 0), (1, 1), (0, 1))
    turns: ClassVar[tuple[int, ...]] = (1, 0, 0, 3)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Table(Order):
    """Any permutation of a grid's tiles that a user brings.

    tiles: integers of shape (tiles_m * tiles_n, 2), row i the tile (m, n) of index i. The grid is
    read from the table, and the table fits only that grid. Raises ValueError unless every tile of
    the grid occurs exactly once. Equal tables compare equal and hash alike.
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
        return Table, (self.tiles,)  # what is unpickled or copied is checked, and read-only, as what is made

    def __eq__(self, other):
        return isinstance(other, Table) and self.digest == other.digest

    def __hash__(self):
        return hash(self.digest)

    def __str__(self) -> str:
        return f"table({self.grid[0]}x{self.grid[1]}, {self.digest[:8]})"

    __repr__ = __str__


_ORDERS = (RowMajor, ColumnMajor, SplitMerge, SwizzleMerge, Serpentine, Morton, Hilbert)
_SPELLED: dict[str, Any] = {order.name: order for order in _ORDERS}
_SPELLING = re.compile(r"(?P<name>[a-z]+(?:-[a-z]+)*)(?::(?P<factors>-?\d+(?:,-?\d+)*))?(?:@(?P<along>[mn]))?")


def parse(text: str) -> Order:
    """The order that `text` spells: the inverse of str(order), e.g. "swizzle-merge:16,8@n".

    Raises ValueError for what is not a spelling of an order. A `Table` has no spelling.
    """
    match = _SPELLING.fullmatch(text.strip()) if isinstance(text, str) else None
    cls = _SPELLED.get(match["name"]) if match else None
    if match is None or cls is None:
        known = ", ".join(name + (":8" if issubclass(o, _Factored) else "") for name, o in _SPELLED.items())
        raise ValueError(f"unknown order {text!r}; the spellings are {known}, also swizzle-merge:16,8 and ...@n")
    factors = [int(f) for f in match["factors"].split(",")] if match["factors"] else []
    if not issubclass(cls, _Factored):
        if factors or match["along"]:
            raise ValueError(f"order {text!r}: {cls.name} takes neither factors nor @m/@n")
        return cls()
    if not factors or (len(factors) > 1 and cls is not SwizzleMerge):
        wants = "one or more factors" if cls is SwizzleMerge else "exactly one factor"
        raise ValueError(f"order {text!r}: {cls.name} takes {wants}, as in {cls.name}:8")
    return cls(*factors, along=match["along"] or "m")


def _factor(value: int, name: str) -> int:
    try:
        factor = operator.index(value)
    except TypeError:
        factor = 0
    if not 0 < factor < 2**31 or isinstance(value, bool):
        raise ValueError(f"{name}: factor {value!r} is not a positive integer below 2**31")
    return factor
