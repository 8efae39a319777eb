"""Sizes of groups by the name of a distribution, to measure grouped GEMMs, which know them on the device alone.

A name may have a seed after a colon, as in "zipf:3"; without one it is 0. The same name, total and number of groups
give the same sizes on every machine.
"""

import math
import random
import re

from tritonmm.model.groups import divided
from tritonmm.problem import Problem

TYPICAL = "random"
"""The distribution where none is named: in sweeps and in the tuner, because tuned tables do not know the sizes."""

DISTRIBUTIONS = ("even", "random", "zipf", "empties", "one-hot")
"""even: equal sizes, as far as they divide the total.
random: the parts between random cuts of the total; of 64 groups the largest has 4.7 times the mean, on average.
zipf: the i-th largest group has 1 / i of the largest.
empties: half of the groups are empty, the others equal.
one-hot: one group has everything.

Which group has which size is random.
"""


def checked(spelled: str) -> str:
    """The spelling, if it is one. Raises ValueError for anything else.

    >>> from tritonmm.autotune.measuring import group_sizes
    >>> group_sizes.checked("zipf:3")
    'zipf:3'
    """
    if not isinstance(spelled, str) or not re.fullmatch(rf"({'|'.join(DISTRIBUTIONS)})(:[0-9]{{1,9}})?", spelled):
        known = ", ".join(DISTRIBUTIONS)
        raise ValueError(f"sizes is {spelled!r:.40}; it must be one of {known}, with a seed as in zipf:3 or without")
    return spelled


def group_sizes(spelled: str, total: int, groups: int) -> list[int]:
    """The size of each group; they add up to `total`.

    >>> from tritonmm.autotune.measuring.group_sizes import group_sizes
    >>> group_sizes("even", 10, 4)
    [2, 3, 3, 2]
    >>> group_sizes("one-hot", 10, 4)
    [0, 0, 0, 10]
    """
    name, _, seed = checked(spelled).partition(":")
    # Only random() is the same in every version of Python.
    chosen = random.Random(int(seed or 0))
    shares = _shares(name, groups, chosen)
    return divided(total, [share for _, share in sorted((chosen.random(), share) for share in shares)])


def sizes_of(problem: Problem, spelled: str = TYPICAL) -> list[int]:
    """The sizes of a problem's groups; none if it has no groups."""
    if not problem.ragged:
        return []
    return group_sizes(spelled, problem.m if problem.ragged == "m" else problem.k, problem.groups)


def _shares(name: str, groups: int, chosen: random.Random) -> list[float]:
    """The shares of a distribution, not in the order of the groups."""
    match name:
        case "random":
            return [-math.log1p(-chosen.random()) for _ in range(groups)]
        case "zipf":
            return [1 / (i + 1) for i in range(groups)]
        case "empties":
            return [float(i >= groups // 2) for i in range(groups)]
        case "one-hot":
            return [float(i == 0) for i in range(groups)]
        case _:  # even
            return [1.0] * groups
