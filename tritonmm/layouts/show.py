"""Terminal output: a swizzle applied to a tile, and the register fragments of a tensor-core instruction."""

from dataclasses import dataclass

import numpy as np

from tritonmm.layouts.algebra import composition
from tritonmm.layouts.banks import BANK_BYTES, BANKS, WARP, Conflicts, bank_conflicts
from tritonmm.layouts.layout import Layout
from tritonmm.layouts.mma_atoms import Atom, atom
from tritonmm.layouts.swizzle import Swizzle
from tritonmm.layouts.tv import owners

ELEM_BITS = {"f8": 8, "f16": 16, "bf16": 16, "f32": 32, "f64": 64}
"""Bits of an element by type name, as the command line takes it."""

MOST_ROWS = MOST_COLUMNS = 32


def parse(text: str) -> Swizzle | Atom:
    """The swizzle or the atom of a name on the command line: "swizzle<3,4,3>" or an atom's name. Raises ValueError."""
    return Swizzle.parse(text) if text.lower().lstrip().startswith("swizzle") else atom(text)


@dataclass(frozen=True, slots=True)
class SwizzledTile:
    """A row-major tile, plain and swizzled, accessed in units of 2**m elements, at most 16 bytes.

    Raises ValueError if a row is not a multiple of the unit.
    """

    swizzle: Swizzle
    rows: int
    cols: int
    elem_bits: int

    def __post_init__(self):
        if self.cols % self.unit:
            raise ValueError(f"a row of {self.cols} elements is no multiple of {self.unit}, the unit of {self.swizzle}")

    @property
    def unit(self) -> int:
        """Elements of one access."""
        return min(1 << self.swizzle.m, 128 // self.elem_bits)

    @property
    def access_bytes(self) -> int:
        """Bytes of one access."""
        return self.unit * self.elem_bits // 8

    def addresses(self, swizzled: bool) -> np.ndarray:
        """The first byte of each unit: rows x units."""
        tile = Layout.row_major(self.rows, self.cols)
        tile = composition(self.swizzle, tile) if swizzled else tile
        return tile.offsets()[:, :: self.unit] * self.elem_bits // 8

    def banks(self, swizzled: bool) -> np.ndarray:
        """The first bank of each unit: rows x units."""
        return self.addresses(swizzled) // BANK_BYTES % BANKS

    def worst(self, swizzled: bool, along: str) -> Conflicts:
        """The conflicts of the worst warp instruction that reads units down a "column" of the tile, or along a
        "row"."""
        addresses = self.addresses(swizzled)
        lines = addresses if along == "row" else addresses.T
        starts = range(0, lines.shape[1], WARP)
        found = (bank_conflicts(each[i : i + WARP], self.access_bytes) for each in lines for i in starts)
        return max(found, key=lambda each: each.worst)

    def lines(self) -> list[str]:
        """The banks of the swizzled tile as a table, with its period, its unmoved rows and its bank conflicts."""
        swizzle, reach = self.swizzle, composition(self.swizzle, Layout.row_major(self.rows, self.cols)).cosize
        banks = self.banks(swizzled=True)
        lines = [f"{swizzle} on {self.rows} x {self.cols} elements of {self.elem_bits} bits, row-major"]
        heads = range(0, self.cols, self.unit)
        lines += _table(banks.astype(str), [str(i) for i in range(self.rows)], [str(head) for head in heads], "row")
        lines.append(f"each number is the bank where {_count(self.unit, 'element')}, {self.access_bytes} bytes, begin")
        still = swizzle.unswizzled_rows(self.rows, self.cols)
        rows = swizzle.row_period(self.cols)
        period = f"{_count(swizzle.period, 'element')}, {_count(rows, 'row')}"
        lines.append(f"period: {period}; unchanged rows: {_some(still)}")
        for along in ("column", "row"):
            plain, swizzled = (self.worst(each, along) for each in (False, True))
            lines.append(f"a {along} read, {self.access_bytes} bytes a thread: plain {plain}; swizzled {swizzled}")
        if reach > self.rows * self.cols:
            lines.append(f"it reaches element {reach - 1}: the tile is smaller than the swizzle and needs more memory")
        return lines


def lines(shown: SwizzledTile | Atom) -> list[str]:
    """Terminal output for a swizzled tile or an atom."""
    return shown.lines() if isinstance(shown, SwizzledTile) else _atom_lines(shown)


def _atom_lines(atom: Atom) -> list[str]:
    """TV layout of each operand in registers, and thread.value of every element."""
    result, *inputs = (kind.lower() for kind in atom.types)
    lines = [f"{atom.name}: {atom.m} x {atom.n} x {atom.k}, {result} = {inputs[0]} * {inputs[1]} + {inputs[2]},"
             f" {atom.threads} threads"]  # fmt: skip
    for letter, (tv, shape) in atom.operands().items():
        rows, cols = {"A": ("m", "k"), "B": ("n", "k"), "C": ("m", "n")}[letter]
        threads, values = owners(tv, shape)
        cells = np.char.add(np.char.add(threads.astype(str), "."), values.astype(str))
        lines += ["", f"{letter} ({rows}, {cols}): thread, value -> {rows} + {shape[0]} {cols}  {tv}"]
        lines += _table(cells, [str(i) for i in range(shape[0])], [str(i) for i in range(shape[1])], f"{rows}\\{cols}")
    return [*lines, "", "each element as thread.value"]


def _table(cells: np.ndarray, rows: list[str], cols: list[str], corner: str) -> list[str]:
    """The cells as a table with heads. A table that is too large to read is truncated, with a note."""
    high, wide = min(len(rows), MOST_ROWS), min(len(cols), MOST_COLUMNS)
    width = max(map(len, (*cols[:wide], *cells[:high, :wide].ravel())))
    left = max(map(len, (*rows[:high], corner)))
    more = " ..." if wide < len(cols) else ""
    lines = [" ".join([corner.rjust(left), *(each.rjust(width) for each in cols[:wide])]) + more]
    for i in range(high):
        lines.append(" ".join([rows[i].rjust(left), *(each.rjust(width) for each in cells[i, :wide])]) + more)
    if high < len(rows) or more:
        lines.append(f"... {len(rows)} x {len(cols)} in all")
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _some(rows: list[int]) -> str:
    shown = ", ".join(map(str, rows[:8]))
    return (shown + (", ..." if len(rows) > 8 else "")) or "none"
