"""L2 traffic by going through every wave: the slow and exact form of `tritonmm.l2`, for study.

It follows every panel through an LRU, a step of block_k at a time, where `l2.of` samples waves and depths. An LRU needs
no list of slices for that: all panels of a wave advance together, so the bytes between two uses of a slice are sums
over whole panels plus a part that is linear in the step: see `_missed`. Drift and merging are as in `tritonmm.l2`.
On a GPU of several dies every L2 is an LRU of its own, and the cache behind them is one for the waves of all dies.
"""

import numpy as np

from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model import constants as fitted
from tritonmm.model import l2
from tritonmm.model.l2 import Traffic
from tritonmm.model.l2_laws import (
    GROUP,
    Constants,
    Counts,
    DieCounts,
    Panels,
    concurrent,
    held_bytes,
    staggered,
    sum_bytes,
    survives,
    written_share,
)
from tritonmm.problem import Problem

__all__ = ["simulate"]


def simulate(problem: Problem, config: Config, gpu: Gpu, constants: Constants | None = None) -> Traffic:
    """The traffic of `problem` done as `config` says on `gpu`. Deterministic.

    Raises ValueError for a `Table` order of another grid.
    """
    constants = constants or fitted.of(gpu).l2
    tiles_m, tiles_n = config.tiles(problem)
    if not tiles_m * tiles_n * problem.batch:
        return Traffic(0, 0, 0, verified=gpu.verified)
    passes = problem.batch * config.split_k  # what no two passes share: their panels
    rows = np.minimum(config.block_m, problem.m - config.block_m * np.arange(tiles_m))
    cols = np.minimum(config.block_n, problem.n - config.block_n * np.arange(tiles_n))
    m, n, part, wave, slot, die = _schedule(problem, config, gpu)

    # Panels are numbered: the row panels of A in every pass, then the column panels of B.
    a = part * tiles_m + m
    b = part * tiles_n + n + passes * tiles_m
    a_bytes, b_bytes = rows * problem.element_bytes, cols * problem.b_element_bytes
    row_bytes = np.concatenate([np.tile(a_bytes, passes), np.tile(b_bytes, passes)])
    k = problem.k if config.split_k == 1 else problem.k / config.split_k

    sums = rows[m] * cols[n] * sum_bytes(problem, config)
    ends = np.minimum(config.block_k * np.arange(1, -(-k // config.block_k) + 1), k)

    apart, room = (1.0, 1.0) if gpu.dies > 1 else (1 - staggered(config, constants), written_share(gpu, constants))

    def missed_by(mine, held):
        """What a cache misses through which these programs read."""
        waves = _distinct(wave[mine], a[mine], b[mine], len(row_bytes))
        written = np.bincount(wave[mine], weights=sums[mine]) * room
        return waves, _missed(waves, row_bytes, ends, written, held, apart, constants)

    everything = np.ones(len(wave), dtype=bool)
    if gpu.dies > 1:
        missed = sum(missed_by(die == x, gpu.l2_bytes / gpu.dies)[1] for x in np.unique(die))
        read = missed_by(everything, gpu.llc_bytes)[1] if gpu.llc_bytes else missed
        asked = (row_bytes[a].sum() + row_bytes[b].sum()) * k
        return l2.of_dies(problem, config, gpu, DieCounts(float(asked), float(missed), float(read)))
    waves, missed = missed_by(everything, held_bytes(gpu, constants))

    wanted = np.concatenate(waves)
    of_a = wanted < passes * tiles_m
    panels_a, panels_b = (
        Panels(
            float(row_bytes[panel].sum()),
            float(_paired(wave, slot, panel, row_bytes)),
            float(_nearby(wave, slot, panel, row_bytes)),
            float(row_bytes[wanted[mine]].sum()),
        )
        for panel, mine in ((a, of_a), (b, ~of_a))
    )
    return l2.joined(problem, config, gpu, constants, Counts(panels_a, panels_b, float(missed), len(waves)))


def _schedule(problem: Problem, config: Config, gpu: Gpu):
    """(m, n, pass, wave, slot, die) of every program that has a tile, as arrays.

    Overflow programs of SplitMerge read nothing and retire at once. In a plain launch the next
    program takes the slot, so the waves are those of the order without them. A persistent program
    goes on to its own next index: its j-th tile runs in wave j. On a GPU of several dies, each goes through the
    programs that run on it like that.
    """
    visit = config.order.visit(*config.tiles(problem))
    passes = problem.batch * config.split_k
    tile = np.tile(np.arange(len(visit)), passes)
    part = np.repeat(np.arange(passes), len(visit))
    real = visit[tile, 0] >= 0
    programs = concurrent(problem, config, gpu)
    if config.persistent:
        walks = np.zeros((-(-len(tile) // programs), programs), dtype=bool)
        walks.flat[: len(tile)] = real
        wave = (np.cumsum(walks, axis=0) - 1).ravel()[: len(tile)][real]
        slot = np.flatnonzero(real) % programs
        die = slot % gpu.dies
    else:
        die = np.flatnonzero(real) % gpu.dies
        wave, slot = np.empty_like(die), np.empty_like(die)
        for x in range(gpu.dies):
            mine = np.flatnonzero(die == x)
            wave[mine], slot[mine] = np.divmod(np.arange(len(mine)), -(-programs // gpu.dies))
    m, n = visit[tile[real]].astype(np.int64).T
    return m, n, part[real], wave, slot, die


def _distinct(wave, a, b, panels):
    """For every wave the distinct panels that it wants."""
    wanted = np.unique(np.concatenate([wave * panels + a, wave * panels + b]))
    wave, panel = np.divmod(wanted, panels)
    return np.split(panel, np.flatnonzero(np.diff(wave)) + 1)


def _paired(wave, slot, panel, row_bytes):
    """Bytes a unit of K of the panels that both SMs of a TPC want in the same wave."""
    slots = slot.max() + 1 + (slot.max() + 1) % 2
    grid = np.full((wave.max() + 1) * slots, -1)
    grid[wave * slots + slot] = panel
    even, odd = grid[::2], grid[1::2]
    return row_bytes[even[(even == odd) & (even >= 0)]].sum()


def _nearby(wave, slot, panel, row_bytes):
    """Bytes a unit of K that groups of SMs want in the same wave, each panel of a group once."""
    groups = slot.max() // GROUP + 1
    return row_bytes[np.unique((wave * groups + slot // GROUP) * len(row_bytes) + panel) % len(row_bytes)].sum()


def _missed(waves, row_bytes, ends, written, held, apart, constants):
    """Bytes that an L2 that holds `held` bytes must fetch for `waves`, an array of distinct panels each.

    A panel has row_bytes a unit of K; a step t covers K from ends[t - 1] to ends[t]; wave w writes
    written[w] bytes of C when it is done. For a panel of wave w last used by wave j, the bytes
    touched from step t of j to step t of w are, by panel:

        used after j, or by both j and w     all of K
        last used by j and not by w          from the start of t
        used by w and by neither j nor later to the end of t

    Of the last two, and of what j wrote, `apart` counts, the share of a tile's time between the last program of a wave
    and the first of the next.

    `live[j]` keeps the row bytes of the panels last used by wave j, so each is one sum.
    """
    if not len(ends):
        return 0
    k = ends[-1]
    starts = np.concatenate([[0], ends[:-1]])
    last = np.full(len(row_bytes), -1)
    live = np.zeros(len(waves))
    horizon = 0  # no wave before it can have left anything
    forgotten = held * (1 + constants.spread)
    missed = 0
    for w, panels in enumerate(waves):
        size = row_bytes[panels]
        age = last[panels] - horizon
        kept = np.bincount(age[age >= 0], weights=size[age >= 0], minlength=w - horizon)
        seen = live[horizon:w]
        newer = seen[::-1].cumsum()[::-1] - seen
        older = size.sum() - kept[::-1].cumsum()[::-1]
        since = written[horizon:w][::-1].cumsum()[::-1]
        missed += size.sum() * k
        for j in np.flatnonzero(kept):
            partly = (seen[j] - kept[j]) * (k - starts) + older[j] * ends
            touched = (newer[j] + kept[j]) * k + apart * partly + since[j] - (1 - apart) * written[horizon + j]
            missed -= kept[j] * ((ends - starts) * survives(touched, held, constants)).sum()
        live[horizon:w] -= kept
        live[w] = size.sum()
        last[panels] = w
        while horizon <= w and live[horizon + 1 : w + 1].sum() * k + written[horizon : w + 1].sum() > forgotten:
            horizon += 1
    return missed
