"""A product in panels, such that the planes of one panel fit a bounded workspace; and the int8 products of a panel."""

from collections.abc import Iterator
from typing import NamedTuple

from tritonmm.moduli import MOST_K
from tritonmm.problem import Problem

PITCH = 16
"""Elements that divide the length of a line of a plane, and the lines of a plane of B: TMA needs 16 bytes."""

WORKSPACE = 2 * 2**30
"""Bytes of planes at a time, at most, but for panels of `FEWEST` rows and columns. With 15 moduli an 8192^3 product has
two panels, and each operand is quantized once."""

PART = 256
LONGEST_PART = MOST_K // PART * PART
"""Elements that divide a part of K, but for the last one, and the most of a part: sums fit int32."""

FEWEST = 256
"""Rows and columns of the smallest panel."""


class Panel(NamedTuple):
    """Rows of A, columns of B and matrices of the batch that are multiplied together. columns has at least one slice:
    the planes of the rows serve all of them."""

    batch: slice
    rows: slice
    columns: tuple[slice, ...]


def panels(m: int, n: int, k: int, batch: int, moduli: int) -> Iterator[Panel]:
    """The panels of a product. They cover each element of the output once; there are none if it has none."""
    if not m * n * batch:
        return
    together = max(1, min(batch, WORKSPACE // max(1, moduli * _bytes(m, n, k))))
    height = min(m, max(FEWEST, WORKSPACE // 2 // (together * moduli * round_up(k))))
    left = WORKSPACE - together * moduli * min(m, height) * round_up(k)
    width = min(n, max(FEWEST, left // (together * moduli * (round_up(k) + _outputs(k) * height))))
    for first in range(0, batch, together):
        for rows in _slices(m, height):
            yield Panel(slice(first, min(first + together, batch)), rows, tuple(_slices(n, width)))


def round_up(elements: int) -> int:
    """`elements` or the next multiple of PITCH; at least one, as no tensor map is empty."""
    return max(1, -(-elements // PITCH)) * PITCH


def parts_of(k: int) -> list[slice]:
    """The parts of K, of a line of a plane, that are multiplied one after the other: nearly equal multiples of
    `PART`."""
    line = round_up(k)
    each = -(-line // -(-line // LONGEST_PART) // PART) * PART
    return [slice(start, min(start + each, line)) for start in range(0, line, each)]


def products_of(m: int, n: int, k: int, batch: int, moduli: int) -> Problem:
    """The int8 products of a panel: m rows of A by n columns of B, as lines of planes, for each matrix of the batch."""
    return Problem(m, round_up(n), round_up(k), batch * moduli, "int8", layout="nt", moduli=moduli)


def _bytes(m: int, n: int, k: int) -> int:
    """Bytes of the planes of one modulus."""
    return (m + n) * round_up(k) + _outputs(k) * m * round_up(n)


def _outputs(k: int) -> int:
    """Planes of the output for one modulus: with a second part of K there is one that is added to the other."""
    return min(2, len(parts_of(k)))


def _slices(size: int, most: int) -> Iterator[slice]:
    """`size` in slices of at most `most`, of nearly equal multiples of FEWEST."""
    count = -(-size // most)
    share = -(-size // count)
    each = size if count == 1 else min(-(-share // FEWEST), most // FEWEST) * FEWEST
    for start in range(0, size, each):
        yield slice(start, min(start + each, size))
