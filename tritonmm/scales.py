"""How operands are scaled: the values of `Problem.scales`."""

import math
from collections.abc import Sequence

SCALES = ("", "tensor", "row", "group", "group-zero", "1x128*1x128", "1x128*128x128", "128x128*1x128")
"""How operands are scaled, see `Problem`."""

FORMER_SCALES = {"1x1": "1x128*1x128", "1x128": "1x128*128x128", "128x1": "128x128*1x128"}
"""Former spellings in tables and stores, rows of A by columns of B that share a scale, and the present ones."""

GROUPED_SCALES = {
    "m": ("", "row", "group", "group-zero", "1x128*1x128", "1x128*128x128"),
    "k": ("", "row"),
}
"""Scales that grouped products have, by what the groups divide. Blocks of 128 rows of A would cross groups."""


def scales_of(m: int, n: int, k: int, of_a: Sequence[int], of_b: Sequence[int]) -> str:
    """Which of `SCALES` two scales of these shapes are, of 8-bit operands; "" if none. The first that fits: kinds have
    shapes in common where m or n is 1, or K has one group."""
    if math.prod(of_a) == math.prod(of_b) == 1:
        return "tensor"
    groups, rows, cols = (-(-x // 128) for x in (k, m, n))
    shapes = {
        "row": ((m, 1), (1, n)),
        "1x128*128x128": ((m, groups), (groups, cols)),
        "128x128*1x128": ((rows, groups), (groups, n)),
        "1x128*1x128": ((m, groups), (groups, n)),
    }
    return next((name for name, both in shapes.items() if (tuple(of_a), tuple(of_b)) == both), "")
