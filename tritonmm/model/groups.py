"""Groups whose sizes only the device knows, as the models see them: the sizes to expect, and equal groups instead."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
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
    one = replace(problem, ragged="", groups=0, scales="")
    if problem.ragged == "k":
        return replace(one, k=-(-problem.k // problem.groups))
    return replace(one, m=-(-problem.m // problem.groups))


def as_equal(problem: Problem, config: Config, rows: int = 0) -> Equal:
    """The grouped product of a config, of the sizes to expect, as equal groups.

    rows: tiles with fewer rows than others take as long as their own, rounded up to a multiple of these. By default all
        take equally long.
    """
    p = problem
    order = config.order.inner if isinstance(config.order, Grouped) else config.order
    one = config.ordered(order)
    if p.ragged == "k":
        batch = replace(average(p), batch=p.groups)
        return Equal(batch, one, p.groups * math.prod(one.tiles(batch)), p.operand_bytes("ab"), p.output_bytes)
    sizes = [size for size in expected_sizes(p.m, p.groups) if size]
    batch = replace(average(p), batch=max(1, len(sizes)), m=-(-p.m // max(1, len(sizes))))
    rows = rows or config.block_m
    units = -(-min(config.block_m, batch.m) // rows)  # of a tile of the batch
    rows_of_tiles = -(-sum(-(-size // rows) for size in sizes) // units)
    read = p.operand_bytes("a") + p.operand_bytes("b") // p.groups * len(sizes)
    return Equal(batch, one, rows_of_tiles * one.tiles(batch)[1], read, p.output_bytes)
