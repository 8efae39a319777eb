"""Fewer combinations: hazards that are of two parameters at most do not need every combination of three."""

from collections.abc import Sequence


def all_pairs(first: Sequence, second: Sequence, third: Sequence) -> list[tuple]:
    """(x, y, z) for every x and y, the z's in turn, so that each z is met with each x and with each y."""
    assert len(third) <= min(len(first), len(second))
    return [(x, y, third[(i + j) % len(third)]) for i, x in enumerate(first) for j, y in enumerate(second)]
