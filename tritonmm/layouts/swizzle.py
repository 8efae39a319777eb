"""Swizzles: XOR one bit field of an offset into another, so that a column of a tile is spread over all banks.

    bits of the offset      x x x Y Y Y x x x x Z Z Z m m m m      Swizzle(b=3, m=4, s=7)
                                  ^-b-^         ^-b-^ ^--m--^
                                      ^------s------^
    bits of the result      x x x Y Y Y x x x x A A A m m m m      A = Z xor Y

m: the lowest m bits stay unchanged, so vectors of 2**m elements stay contiguous. b: width of both fields. s: how many
bits the source Y lies above the target Z; below it if s is negative. The source is not changed, so a swizzle is its own
inverse. It is CuTe's `Swizzle<B,M,S>`.
"""

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tritonmm.layouts.algebra import composition
from tritonmm.layouts.layout import IntTuple, Layout, offsets_of

PHASE_BITS = 1024
"""Bits that shared memory serves at once: 32 banks of 4 bytes."""


@dataclass(frozen=True, slots=True)
class Swizzle:
    """Swizzle(b, m, s). Raises ValueError for b < 0, m < 0, or overlapping fields, |s| < b.

    >>> Swizzle(3, 0, 3)(0b101000)
    45
    """

    b: int
    m: int
    s: int

    def __post_init__(self):
        for name in ("b", "m", "s"):
            try:
                object.__setattr__(self, name, operator.index(getattr(self, name)))
            except TypeError:
                raise ValueError(f"Swizzle: {name} is {getattr(self, name)!r}; it must be an integer") from None
        for name in ("b", "m"):
            if getattr(self, name) < 0:
                raise ValueError(f"{self}: {name} is {getattr(self, name)}; it must be >= 0")
        if abs(self.s) < self.b:
            raise ValueError(
                f"{self}: |s| is {abs(self.s)}; it must be >= b, or the {self.b} bits overlap their source"
            )

    @classmethod
    def parse(cls, text: str) -> "Swizzle":
        """The swizzle of a text such as "swizzle<3,4,3>", in any case. Raises ValueError."""
        found = re.fullmatch(r"\s*swizzle\s*<\s*(\d+)\s*,\s*(\d+)\s*,\s*(-?\d+)\s*>\s*", text, re.IGNORECASE)
        if not found:
            raise ValueError(f"{text!r} is not a swizzle; it is spelled swizzle<b,m,s>, as in swizzle<3,3,3>")
        return cls(*map(int, found.groups()))

    @classmethod
    def for_tile(cls, row_elems: int, elem_bits: int, vector_elems: int = 1) -> "Swizzle":
        """The swizzle that makes every column of a row-major tile readable without bank conflicts. Offsets are in
        elements.

        row_elems: elements of a row, a power of two.
        elem_bits: bits of an element, a power of two.
        vector_elems: elements of a row that one thread accesses at once, a power of two; at most 16 bytes and one row.

        m covers a vector. b covers all vectors of a phase. s covers a row, or a phase if a row is shorter: rows within
        one phase do not conflict, so only later phases have to move. Vectors of less than 4 bytes leave conflicts in a
        column, one way for each vector in a 4-byte word, because a warp has only 32 threads.

        Raises ValueError for other values.

        >>> str(Swizzle.for_tile(64, 16, 8))
        'Swizzle<3,3,3>'
        """
        for name, value in (("row_elems", row_elems), ("elem_bits", elem_bits), ("vector_elems", vector_elems)):
            log2(value, f"Swizzle.for_tile: {name}")
        if vector_elems * elem_bits > 128 or vector_elems > row_elems:
            raise ValueError(
                f"Swizzle.for_tile: vectors of {vector_elems} elements of {elem_bits} bits; at most 128 bits, and at"
                f" most the row of {row_elems}"
            )
        phase = PHASE_BITS // elem_bits
        m = log2(vector_elems)
        return cls(log2(phase) - m, m, log2(max(phase, row_elems)) - m)

    @classmethod
    def for_chunks(cls, row_bytes: int, chunk_bytes: int, elem_bytes: int) -> "Swizzle":
        """The swizzle x_chunk ^= y, on offsets in elements, for rows of `row_bytes` bytes in chunks of `chunk_bytes`.

        All chunks of a row take part, whether they are more or fewer than those of a phase. Row numbers count modulo
        the chunks of a row.
        """
        names = {"row_bytes": row_bytes, "chunk_bytes": chunk_bytes, "elem_bytes": elem_bytes}
        row, chunk, elem = (log2(value, f"Swizzle.for_chunks: {name}") for name, value in names.items())
        if not elem <= chunk <= row:
            raise ValueError(f"Swizzle.for_chunks: elem_bytes <= chunk_bytes <= row_bytes does not hold for {names}")
        return cls(row - chunk, chunk - elem, row - chunk)

    @property
    def source(self) -> int:
        """Mask of the bits Y."""
        return (1 << self.b) - 1 << self.m + max(0, self.s)

    @property
    def target(self) -> int:
        """Mask of the bits Z."""
        return (1 << self.b) - 1 << self.m + max(0, -self.s)

    def __call__(self, offset):
        """The swizzled offset: of an integer or of an integer array."""
        y = offset & self.source
        return offset ^ (y >> self.s if self.s >= 0 else y << -self.s)

    @property
    def period(self) -> int:
        """The least p with swizzle(i + p) = swizzle(i) + p for every i. The swizzle permutes each range of p
        offsets."""
        return 1 << self.b + self.m + abs(self.s) if self.b else 1

    def row_period(self, row_elems: int) -> int:
        """Rows of a row-major tile after which the pattern repeats."""
        return math.lcm(self.period, row_elems) // row_elems

    def unswizzled_rows(self, rows: int, row_elems: int, columns: Sequence[int] | None = None) -> list[int]:
        """Rows of a row-major tile that the swizzle does not change, in the given columns or in all."""
        offsets = Layout.row_major(rows, row_elems).offsets()
        if columns is not None:
            offsets = offsets[:, list(columns)]
        return np.flatnonzero((self(offsets) == offsets).all(axis=1)).tolist()

    def compose(self, layout: Layout) -> "Swizzled":
        """The layout followed by this swizzle; the same as `composition(swizzle, layout)`."""
        return Swizzled(self, layout)

    def __str__(self) -> str:
        return f"Swizzle<{self.b},{self.m},{self.s}>"


@dataclass(frozen=True, slots=True)
class Swizzled:
    """A layout followed by a swizzle: swizzle(layout(coordinate))."""

    swizzle: Swizzle
    layout: Layout

    def __call__(self, *coord):
        return self.swizzle(self.layout(*coord))

    def compose(self, other) -> "Swizzled":
        """(swizzle o layout) o other = swizzle o (layout o other)."""
        return Swizzled(self.swizzle, composition(self.layout, other))

    @property
    def shape(self) -> IntTuple:
        """The layout's shape."""
        return self.layout.shape

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.layout.size

    @property
    def cosize(self) -> int:
        """One more than the largest offset. It may exceed the layout's."""
        return int(self.offsets().max()) + 1

    def offsets(self) -> np.ndarray:
        """All offsets: int64, with one axis for each mode."""
        return offsets_of(self)

    def __str__(self) -> str:
        return f"{self.swizzle} o {self.layout}"


def log2(value: int, name: str = "value") -> int:
    """The exponent of a power of two. Raises ValueError, naming `name`, for any other value."""
    if not isinstance(value, int) or value < 1 or value & (value - 1):
        raise ValueError(f"{name} is {value!r}; it must be a power of two")
    return value.bit_length() - 1
