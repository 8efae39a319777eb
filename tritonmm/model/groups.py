"""Groups whose sizes only the device knows, as the models see them: the sizes to expect, and equal groups instead."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from tritonmm.config import Config
from tritonmm.orders import Grouped
from tritonmm.problem import Problem


class Equal(NamedTuple):
    """A grouped product as a batch of equal products, which the other models take.

    problem, config: the batch, with a matrix for each group that has any rows, in the order of a group's tiles.
    tiles: of all groups, as many of the batch's as take as long as those of the sizes to expect.
    operand_bytes, output_bytes: of the grouped product.
    """

    problem: Problem
    config: Config
    tiles: int
    operand_bytes: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class Sized(Problem):
    """A grouped problem with known sizes of the groups, for estimates alone: a call leaves them on the device.

    sizes: rows, or elements of K, of each group. Their sum is at most the total.

    Raises ValueError for sizes that the groups of the problem cannot have.
    """

    sizes: tuple[int, ...] = ()

    def __post_init__(self):
        Problem.__post_init__(self)
        if not self.ragged:
            raise ValueError(f"sizes are {list(self.sizes)}, but {self} has no groups")
        if len(self.sizes) != self.groups or not all(isinstance(x, int) and x >= 0 for x in self.sizes):
            raise ValueError(
                f"sizes are {list(self.sizes)}; they must be {self.groups} integers >= 0, one for each group"
            )
        if sum(self.sizes) > total(self):
            raise ValueError(f"sizes add up to {sum(self.sizes)}, more than the {total(self)} that are divided")


def sized(problem: Problem, sizes: Sequence[int]) -> Sized:
    """The problem with these sizes of its groups. Raises ValueError for those that they cannot have.

    >>> from tritonmm.model.groups import sized
    >>> problem = tritonmm.Problem.dense(4096, 1536, 2048, layout="nt", ragged="m", groups=3)
    >>> sized(problem, [4000, 0, 96]).sizes
    (4000, 0, 96)
    """
    return Sized(**_fields(problem), sizes=tuple(sizes))


def without_sizes(problem: Problem) -> Problem:
    """The same as a problem of which only the device knows the sizes."""
    return Problem(**_fields(problem)) if isinstance(problem, Sized) else problem


def _fields(problem: Problem) -> dict:
    return {field.name: getattr(problem, field.name) for field in fields(Problem)}


def total(problem: Problem) -> int:
    """Rows, or elements of K, of all groups."""
    return problem.m if problem.ragged == "m" else problem.k


def sizes_of(problem: Problem) -> list[int]:
    """The sizes of the groups where they are known, else those to expect."""
    return list(problem.sizes) if isinstance(problem, Sized) else expected_sizes(total(problem), problem.groups)


def size_class(total: int) -> int:
    """`total` rounded up to an eighth of its octave, exact up to 16: sizes of a class are computed with one config."""
    step = 1 << max(0, total.bit_length() - 4)
    return total if total <= 16 else -(-total // step) * step


def of_class(problem: Problem) -> Problem:
    """The problem of the largest total of its `size_class`, with operands as aligned as the problem's: what a grouped
    problem is tuned as, and what tuned tables are asked for.

    >>> from tritonmm.model.groups import of_class
    >>> print(of_class(tritonmm.Problem.dense(5001, 1536, 2048, layout="nt", ragged="m", groups=128)))
    5120x1536x2048 nt bf16 128 groups of m
    """
    of_any = without_sizes(problem)
    largest = size_class(total(problem))
    return replace(of_any, m=largest) if problem.ragged == "m" else replace(of_any, k=largest)


def expected_sizes(total: int, groups: int) -> list[int]:
    """Sizes that groups may have, the largest last: quantiles of an exponential distribution.

    So uneven is what a router gives to experts, more or less: the largest of 64 groups has 4.9 times the mean, and the
    smallest next to nothing.
    """
    return divided(total, [-math.log1p(-(g + 0.5) / groups) for g in range(groups)])


def divided(total: int, shares: Sequence[float]) -> list[int]:
    """`total` in whole parts about in proportion to the shares, of which one is above 0."""
    passed = [0.0, *itertools.accumulate(shares)]
    ends = [round(total * (each / passed[-1])) for each in passed]
    return [end - start for start, end in itertools.pairwise(ends)]


def average(problem: Problem) -> Problem:
    """The product of one group of average size."""
    one = _ungrouped(problem)
    if problem.ragged == "k":
        return replace(one, k=-(-problem.k // problem.groups))
    return replace(one, m=-(-problem.m // problem.groups))


def batches(problem: Problem) -> list[Problem]:
    """The products of the groups, of each size that is not 0 a batch."""
    one = _ungrouped(problem)
    counted = Counter(size for size in sizes_of(problem) if size)
    if problem.ragged == "m":
        return [replace(one, batch=count, m=size) for size, count in sorted(counted.items())]
    return [replace(one, batch=count, k=size) for size, count in sorted(counted.items())]


def _ungrouped(problem: Problem) -> Problem:
    return Problem(**_fields(problem) | {"ragged": "", "groups": 0, "scales": ""})


def as_equal(problem: Problem, config: Config, rows: int = 0) -> Equal:
    """The grouped product of a config as equal groups, of the known sizes or of those to expect.

    rows: tiles with fewer rows than others take as long as their own, rounded up to a multiple of these. By default all
        take equally long.
    """
    p = problem
    order = config.order.inner if isinstance(config.order, Grouped) else config.order
    one = config.ordered(order)
    used = sum(p.sizes) if isinstance(p, Sized) else total(p)  # rows or elements of K that belong to a group
    if p.ragged == "k":
        batch = replace(average(p), batch=p.groups, k=-(-used // p.groups))
        read = batch.operand_bytes("ab") if used < p.k else p.operand_bytes("ab")
        return Equal(batch, one, p.groups * math.prod(one.tiles(batch)), read, p.output_bytes)
    sizes = [size for size in sizes_of(p) if size]
    mean = -(-used // max(1, len(sizes)))
    batch = replace(average(p), batch=max(1, len(sizes)), m=max(mean, min(1, p.m)))
    rows = rows or config.block_m
    units = max(1, -(-min(config.block_m, batch.m) // rows))  # of a tile of the batch
    rows_of_tiles = -(-sum(-(-size // rows) for size in sizes) // units)
    read = p.operand_bytes("a") * used // max(1, p.m) + p.operand_bytes("b") // p.groups * len(sizes)
    return Equal(batch, one, rows_of_tiles * one.tiles(batch)[1], read, p.output_bytes * used // max(1, p.m))
