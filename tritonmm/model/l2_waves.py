"""The counts of a launch from a sample of its waves: for the orders that have no closed form."""

import functools
import math

import numpy as np

from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model.l2_laws import (
    GROUP,
    Constants,
    Counts,
    concurrent,
    held_bytes,
    scaled,
    staggered,
    sum_bytes,
    survives,
    written_share,
)
from tritonmm.orders import Order
from tritonmm.problem import Problem

# Waves that `of_cache` looks at, of a longer launch.
FIRST_WAVES = 17
LAST_WAVES = 6

# Depths of a panel, as shares of K, at which `of_cache` asks whether it is still there.
DEPTHS = np.array([0.125, 0.375, 0.625, 0.875])


def sampled(problem: Problem, config: Config, gpu: Gpu, constants: Constants) -> Counts:
    """The counts of a launch of which all programs share an L2, see `of_cache`."""
    programs, held = concurrent(problem, config, gpu), held_bytes(gpu, constants)
    return of_cache(problem, config, programs, held, constants, room=written_share(gpu, constants))


def of_cache(
    problem: Problem,
    config: Config,
    programs: int,
    held: float,
    constants: Constants,
    most_waves: float = math.inf,
    dies: int = 1,
    die: int = 0,
    room: float = 1.0,
) -> Counts:
    """The counts of one cache from the first and the last waves of a launch; the first stand for those between.

    programs: those of a wave that read through it. held: bytes that it holds of what they read. most_waves: of launches
    of more, not all are looked at. dies, die: it has every program of a launch, or those that run on one of
    several dies. room: of a written byte, see `written_share`.

    Where L2 remembers many waves, as with small tiles and a short K, all of them are looked at, which takes longer; not
    of symmetric products, which are estimated at the first call of each, and of which a batch has very many waves.
    Of orders without overflow programs. The panels of A and B of a product of A by A transposed are the same memory,
    which is fetched once.
    """
    tiles_m, tiles_n = config.tiles(problem)
    tiles = tiles_m * tiles_n if config.order.everywhere else config.order.launched(tiles_m, tiles_n)
    passes = problem.batch * config.split_k
    launched = -(-(tiles * passes - die) // dies)
    waves = -(-launched // programs)
    k, a_elem, b_elem = problem.k / config.split_k, problem.element_bytes, problem.b_element_bytes
    area = min(programs * config.block_m * config.block_n, problem.m * problem.n)
    # What a wave that is a square touches.
    least = math.sqrt(area) * k * (a_elem + b_elem) + area * sum_bytes(problem, config)
    remembered = held * (1 + constants.spread) / least
    few = remembered < LAST_WAVES // 2 or not config.order.everywhere or waves > most_waves
    wave, weight = _chosen(waves, sampled=few)
    m, n, part, real = _tiles(config.order, tiles_m, tiles_n, tiles, passes, programs, few, dies, die)
    parts = int(part[-1, -1]) + 1
    rows, cols = _extents(problem.m, config.block_m) * a_elem, _extents(problem.n, config.block_n) * b_elem
    size = np.concatenate([np.tile(rows, parts), np.tile(cols, parts), [0.0]])
    idle, first_b = len(size) - 1, parts * tiles_m
    a = np.where(real, part * tiles_m + m, idle)
    b = np.where(real, part * tiles_n + n + first_b, idle)
    used = _marked(len(wave), len(size), a, b)

    asked_a, asked_b = size[a], size[b]
    written = (asked_a * asked_b).sum(axis=1) * (room * sum_bytes(problem, config) / (a_elem * b_elem))
    panels_a, panels_b = (
        scaled(
            exact,
            *(float(weight @ x) for x in (asked.sum(axis=1), _paired(panel, asked), _nearby(panel, size), distinct)),
        )
        for exact, panel, asked, distinct in (
            (launched / tiles_m * problem.m * a_elem, a, asked_a, used[:, :first_b] @ size[:first_b]),
            (launched / tiles_n * problem.n * b_elem, b, asked_b, used[:, first_b:] @ size[first_b:]),
        )
    )
    if problem.symmetric == "gram":
        used, size = _of_one_operand(problem, config, m, n, part, real, parts)
    apart = 1.0 if dies > 1 else 1 - staggered(config, constants)
    missed = weight @ _missed(used, wave, size, k, written, held, apart, constants)
    return Counts(panels_a, panels_b, float(missed), waves)


@functools.lru_cache(maxsize=64)
def _tiles(
    order: Order,
    tiles_m: int,
    tiles_n: int,
    tiles: int,
    passes: int,
    programs: int,
    sampled: bool,
    dies: int,
    die: int,
):
    """(m, n, pass, whether there is such a tile) of the programs of the chosen waves, arrays of (waves, programs).

    Kept, as a curve takes longer to follow than all the rest, and a tuner asks for the same grid again and again.
    """
    total = tiles * passes
    launched = -(-(total - die) // dies)
    wave, _ = _chosen(-(-launched // programs), sampled=sampled)
    index = (wave[:, None] * programs + np.arange(programs)) * dies + die
    real = index < total
    index = np.minimum(index, total - 1).astype(np.int32 if total < 2**31 else np.int64)
    part = index // tiles
    m, n = order._map(index - part * tiles, tiles_m, tiles_n)
    return m, n, _renumbered(part), real


def _marked(waves: int, panels: int, *wanted):
    """(waves, panels), 1.0 where that wave wants that panel. wanted: panels of the programs, (waves, programs)."""
    used = np.zeros((waves, panels))
    flat, at = used.reshape(-1), np.arange(waves)[:, None] * panels
    for panel in wanted:
        flat[panel + at] = 1.0
    return used


def _of_one_operand(problem: Problem, config: Config, m, n, part, real, parts: int):
    """Which panels the waves want, and the size of each, where rows of A are the columns of B: panels of as many rows
    as divide the tile's rows and columns."""
    rows = math.gcd(config.block_m, config.block_n)
    extents = _extents(problem.m, rows) * problem.element_bytes
    count = len(extents)
    wanted = [
        np.where(real, part * count + np.minimum(tile * (block // rows) + i, count - 1), parts * count)
        for tile, block in ((m, config.block_m), (n, config.block_n))
        for i in range(block // rows)
    ]
    return _marked(len(m), parts * count + 1, *wanted), np.concatenate([np.tile(extents, parts), [0.0]])


def _chosen(waves: int, *, sampled: bool):
    """Waves to look at, ascending, and how many each stands for."""
    if waves <= FIRST_WAVES + LAST_WAVES or not sampled:
        return np.arange(waves), np.ones(waves)
    wave = np.concatenate([np.arange(FIRST_WAVES), np.arange(waves - LAST_WAVES, waves)])
    counted = LAST_WAVES // 2  # the others are only what L2 remembers of
    weight = np.ones(len(wave))
    weight[1:FIRST_WAVES] = (waves - 1 - counted) / (FIRST_WAVES - 1)
    weight[FIRST_WAVES:-counted] = 0
    return wave, weight


def _renumbered(part):
    """The passes, ascending, numbered without gaps."""
    steps = np.diff(part.ravel(), prepend=part[0, 0])
    return np.cumsum(np.minimum(steps, 1)).reshape(part.shape)


def _extents(size: int, block: int):
    """Rows of each row of tiles."""
    found = np.full(-(-size // block), block, dtype=np.float64)
    found[-1] = size - block * (len(found) - 1)
    return found


def _paired(panel, asked):
    """Bytes a unit of K that both SMs of a TPC want, in every wave: programs 2j and 2j + 1 run there."""
    even = panel.shape[1] // 2 * 2
    return (asked[:, 1:even:2] * (panel[:, 0:even:2] == panel[:, 1:even:2])).sum(axis=1)


def _nearby(panel, size):
    """Bytes a unit of K that groups of SMs want, in every wave, each panel of a group once. size: of every panel."""
    waves, programs = panel.shape
    groups = -(-programs // GROUP)
    padded = np.full((waves, groups * GROUP), len(size) - 1)  # the last panel is nobody's and empty
    padded[:, :programs] = panel
    ordered = np.sort(padded.reshape(waves, groups, GROUP), axis=2)
    first = np.diff(ordered, axis=2, prepend=-1) > 0
    return (size[ordered] * first).sum(axis=(1, 2))


def _missed(used, wave, size, k, written, held, apart, constants):
    """Bytes that each wave must fetch. used: (waves, panels), 1.0 where that wave wants that panel. apart: share of a
    tile's time between the last program of a wave and the first of the next.

    For a panel that an earlier wave was the last to use, the bytes touched at depth x of K since then: those used
    later, and by both, whole; what only that wave used, from x on; what only this one uses, up to x. Of the last two,
    and of what that wave wrote, `apart` counts: the rest is touched before its last use, or after the next.
    """
    wanted = used @ size
    missed = wanted * k
    unseen = np.ones_like(used)
    newer, older, since = np.zeros(len(wave)), wanted.copy(), np.zeros(len(wave))
    for age in range(1, len(wave)):
        before = wave[age:] - wave[:-age] == age
        last = used[:-age] * unseen[age:] * before[:, None]
        live, kept = last @ size, (last * used[age:]) @ size
        older[age:] -= kept
        since[age:] += written[:-age] * before
        whole = (newer[age:] + kept) * k + since[age:] - (1 - apart) * written[:-age]
        partly = np.outer(live - kept, 1 - DEPTHS) + np.outer(older[age:], DEPTHS)
        touched = whole[:, None] + apart * k * partly
        missed[age:] -= kept * k * survives(touched, held, constants).mean(axis=1)
        newer[age:] += live
        if (newer * k + since)[age:].min() > held * (1 + constants.spread):
            break
        unseen[age:] -= last
    return missed
