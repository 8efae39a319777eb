"""Tile orders worth estimating: the group size that minimizes the operand bytes per wave, and others near it."""

import functools
import math

from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model import l2_groups
from tritonmm.model.groups import average
from tritonmm.model.l2_laws import programs_per_sm
from tritonmm.orders import Dies, Grouped, SwizzleMerge, Triangular
from tritonmm.orders.triangular import MOST_ASPECT
from tritonmm.problem import Problem

NEAR = 2.0
"""Groups of up to so many times more tiles than the square root says are worth an estimate, or fewer."""

NEAR_OF_DIES = 1.5
"""The same for the groups that dies have. There are two orders of each, and no closed form of what they read."""

WHOLE = 1.5
"""How much longer than best a group of tiles may be that is all of the output's shorter side, along which neighbours
share no less than along the other: see `group_order`."""


def group_order(problem: Problem, gpu: Gpu, block_m: int, block_n: int) -> SwizzleMerge | Triangular | Grouped | Dies:
    """Groups of as many tiles as make a wave's operands least, along the side on which programs next to each other
    share what is larger.

    A wave of `sms` tiles, f tall and sms / f wide, reads f * block_m rows of A and sms / f * block_n columns of B.
    Their sum is least where both are equal. The SMs read faster what their neighbours read too. So tiles that are
    taller than wide have neighbours with the same rows: 2160x1408x3904 takes 38.9 us so in tiles of 192 x 64, and 43.5
    along the columns. And the shorter side of the output is grouped whole, if that makes waves little longer than they
    should be: 14240x448x8384 takes 167 us in tiles of 192 x 128 with the four tiles of a row next to each other, and
    189 in groups of nine rows (h200-orders.csv and h200-orders-2.csv in autotune/results).

    Of a symmetric product they are groups of rows of its triangle. Of a grouped one they are those of a group of
    average size; where groups divide K, the longest comes first, so that the shortest fill the last wave. A GPU's dies
    each have a range of the groups that suit the SMs of one die.
    """
    if problem.ragged:
        one = _group_order(average(problem), gpu.sms, block_m, block_n)
        return Grouped(one, largest_first=problem.ragged == "k")
    if problem.symmetric:
        tall = max(1, round(math.sqrt(gpu.sms * block_n / block_m)))
        return Triangular(min(max(1, -(-problem.m // block_m)), tall), aspect=(block_m, block_n))
    one = _group_order(problem, gpu.sms // gpu.dies, block_m, block_n)
    return Dies(gpu.dies, one) if gpu.dies > 1 else one


def _group_order(problem: Problem, sms: int, block_m: int, block_n: int) -> SwizzleMerge:
    """`group_order` of one product for so many SMs."""
    tiles_m, tiles_n = max(1, -(-problem.m // block_m)), max(1, -(-problem.n // block_n))
    tall = max(1, round(math.sqrt(sms * block_n / block_m)))
    wide = max(1, round(math.sqrt(sms * block_m / block_n)))
    if 1 < tiles_n < tiles_m and tiles_n <= wide * (WHOLE if block_m >= block_n else 1):
        return SwizzleMerge(tiles_n, along="n")
    if tiles_m <= tiles_n and tiles_m <= tall * (WHOLE if block_n >= block_m else 1):
        return SwizzleMerge(tiles_m)
    return SwizzleMerge(min(tiles_n, wide), along="n") if block_m > block_n else SwizzleMerge(min(tiles_m, tall))


@functools.lru_cache(maxsize=1024)
def nearby(
    tiles_m: int, tiles_n: int, sms: int, block_m: int, block_n: int, near: float = NEAR
) -> tuple[SwizzleMerge, ...]:
    """Orders for a grid of tiles, along both axes: groups of about equal size, and the whole side.

    near: how many times more tiles than the square root says a group has at most, or fewer at least.
    """
    if min(tiles_m, tiles_n) <= 1 or tiles_m * tiles_n <= 2:
        return ()
    found = []
    for along, side, best in (
        ("m", tiles_m, math.sqrt(sms * block_n / block_m)),
        ("n", tiles_n, math.sqrt(sms * block_m / block_n)),
    ):
        least, most = best / near, best * near
        sizes = {-(-side // groups) for groups in range(max(1, int(side / most)), int(side / least) + 2)}
        found += [SwizzleMerge(size, along=along) for size in sorted(sizes) if least <= size <= most or size == side]
    return tuple(found)


def orders_of_dies(config: Config, problem: Problem, gpu: Gpu) -> tuple[Dies, ...]:
    """Orders of a config's tiles that a GPU's dies divide among them; none for a GPU of one die.

    Groups are of about as many tiles as make the operands of a die's wave least. A die has one range of such an order,
    or ranges of a wave: then the dies are near each other, and share more of what they read in the cache behind their
    L2s. HipKittens' best chunks are of one or two waves (arXiv 2511.08083, table 4).
    """
    if gpu.dies == 1 or problem.symmetric or problem.ragged:
        return ()
    wave = max(1, gpu.sms // gpu.dies * programs_per_sm(problem, config, gpu))
    found = []
    for order in nearby(*config.tiles(problem), wave, config.block_m, config.block_n, NEAR_OF_DIES):
        of_a_wave = -(-wave // order.factors[0]) * order.factors[0]  # whole columns of a group
        found += [Dies(gpu.dies, order, chunk=chunk) for chunk in (None, of_a_wave)]
    return tuple(found)


def has_triangle(blocks: tuple[int, ...]) -> bool:
    """Whether there is a triangular order of tiles of block_m x block_n."""
    return max(blocks[:2]) // math.gcd(*blocks[:2]) <= MOST_ASPECT


def orders_of(config: Config, problem: Problem, gpu: Gpu) -> tuple[SwizzleMerge | Triangular | Grouped, ...]:
    """The orders of a config's tiles worth estimating, for all tiles of the GPU together: see `orders_of_dies`."""
    if problem.ragged:
        of_one = nearby(*config.tiles(average(problem)), gpu.sms, config.block_m, config.block_n)
        return tuple(Grouped(order, largest_first=problem.ragged == "k") for order in of_one)
    grid = *config.tiles(problem), gpu.sms // config.ctas, config.block_m, config.block_n
    if not problem.symmetric:
        return nearby(*grid)
    factors = sorted({order.factors[0] for order in nearby(*grid) if order.along == "m"})
    return tuple(Triangular(factor, aspect=(config.block_m, config.block_n)) for factor in factors)


def run_bytes(problem: Problem, config: Config, gpu: Gpu) -> int:
    """Contiguous bytes of the output that the programs of a wave write together.

    Groups of tiles write runs as wide as the group; whole rows of tiles, one after the other, are contiguous. Orders
    without groups write about a square. Those of dies write as each die by itself does.
    """
    tiles_m, tiles_n = config.tiles(problem)
    order, sms = config.order, gpu.sms
    if isinstance(config.order, Dies):
        order, sms = config.order.inner, -(-sms // config.order.dies)
    if isinstance(order, Triangular):
        factor, along = order.factors[0], "m"
    else:
        factor, along = l2_groups.groups(order) or (math.isqrt(sms), "m")
    row_bytes = max(1, problem.n) * problem.out_element_bytes
    if factor >= tiles_n if along == "n" else factor == 1:
        return row_bytes * config.block_m
    width = factor if along == "n" else -(-sms // min(factor, max(1, tiles_m)))
    return min(row_bytes, width * config.block_n * problem.out_element_bytes)
