"""Tile orders: the sequence in which a GEMM visits the tiles of its output.

A GEMM of M x N output tiles launches programs ``i = 0, 1, 2, ...`` (a persistent kernel loops over the same indices).
An order maps each index to a tile (m, n). Programs that run at the same time have neighbouring indices, so the order
decides which rows of A and columns of B are read together, and with that the L2 hit rate. It never changes the result.

Every order except `SplitMerge` is a bijection on every grid: ``launched == tiles_m * tiles_n``, and each tile is
visited exactly once. `Triangular` is one on the tiles that meet the lower triangle. Each map is written once, for
Python integers and numpy arrays alike. `tritonmm.device.order` is the same arithmetic on the device.

Sources: NVIDIA/Fuser issue #3942 compares `SwizzleMerge` and `SplitMerge`. With one factor, `SwizzleMerge` is Triton's
    grouped ordering (GROUP_M in Triton's matmul tutorial). It also takes a list of factors, and unlike `SplitMerge` it
    launches no idle programs.
"""

import hashlib
import math
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
    "Triangular",
    "parse",
]

MOST_ASPECT = 8
"""The most that one side of a tile may be longer than the other in a triangular order."""


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

        >>> SwizzleMerge(8).tile(9, 16, 16)
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


@dataclass(frozen=True, init=False)
class _Factored(Order):
    """An order that cuts one axis into groups. `along="n"` swaps the roles of the two axes."""

    factors: tuple[int, ...]  # type: ignore[misc]  # a class constant of the other orders
    along: str  # type: ignore[misc]

    def __init__(self, *factors: int, along: str = "m"):
        object.__setattr__(self, "factors", tuple(_factor(f, self.name) for f in factors))
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


class SplitMerge(_Factored):
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


class SwizzleMerge(_Factored):
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
        return _merged(i, rows, cols, self.factors)


def _merged(i, rows, cols, factors):
    """T(rows, cols, factors) of `SwizzleMerge` at index i."""
    row = col = 0
    for f in factors:
        start = i // (f * cols) * f
        i = i - start * cols
        row, col = col, row + start
        rows, cols = cols, np.minimum(f, rows - start)
    row, col = row + i // cols, col + i % cols
    return (col, row) if len(factors) % 2 else (row, col)


class Serpentine(_Factored):
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
        object.__setattr__(self, "factors", tuple(_factor(f, self.name) for f in factors))
        height, width = (_factor(x, "triangular: aspect") for x in aspect)
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
            raise ValueError(f"{self} does not fit a grid of {tiles_m} x {tiles_n} tiles: no square matrix has so many")
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
        n, m = _merged(np.minimum(pos, height * shared - 1), shared, height, rest)
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


_ORDERS = (RowMajor, ColumnMajor, SplitMerge, SwizzleMerge, Serpentine, Triangular, Morton, Hilbert)
_SPELLED: dict[str, Any] = {order.name: order for order in _ORDERS}
_SPELLING = re.compile(
    r"(?P<name>[a-z]+(?:-[a-z]+)*)(?::(?P<factors>-?\d+(?:,-?\d+)*))?(?:@(?:(?P<along>[mn])|(?P<aspect>\d+x\d+)))?"
)


def parse(text: str) -> Order:
    """The order that `text` spells: the inverse of str(order). Raises ValueError for any other text. A `Table` has no
    spelling.

    >>> parse("swizzle-merge:16,8@n")
    SwizzleMerge(16, 8, along="n")
    """
    match = _SPELLING.fullmatch(text.strip()) if isinstance(text, str) else None
    cls = _SPELLED.get(match["name"]) if match else None
    if match is None or cls is None:
        known = ", ".join(
            name + (":8" if issubclass(o, _Factored | Triangular) else "") for name, o in _SPELLED.items()
        )
        raise ValueError(f"unknown order {text!r}; the spellings are {known}, also swizzle-merge:16,8 and ...@n")
    factors = [int(f) for f in match["factors"].split(",")] if match["factors"] else []
    if not issubclass(cls, _Factored | Triangular):
        if factors or match["along"] or match["aspect"]:
            raise ValueError(f"order {text!r}: {cls.name} takes neither factors nor @m/@n")
        return cls()
    several = cls in (SwizzleMerge, Triangular)
    if not factors or (len(factors) > 1 and not several):
        wants = "one or more factors" if several else "exactly one factor"
        raise ValueError(f"order {text!r}: {cls.name} takes {wants}, as in {cls.name}:8")
    if match["along" if cls is Triangular else "aspect"]:
        wants = "an aspect, as in triangular:8@2x1" if cls is Triangular else f"an axis, as in {cls.name}:8@n"
        raise ValueError(f"order {text!r}: {cls.name} takes {wants}")
    if cls is Triangular:
        height, width = map(int, (match["aspect"] or "1x1").split("x"))
        return Triangular(*factors, aspect=(height, width))
    return cls(*factors, along=match["along"] or "m")


def _factor(value: int, name: str) -> int:
    try:
        factor = operator.index(value)
    except TypeError:
        factor = 0
    if not 0 < factor < 2**31 or isinstance(value, bool):
        raise ValueError(f"{name}: factor {value!r} is not a positive integer below 2**31")
    return factor
