"""L2 traffic of a tile order: the bytes a product moves between device memory, L2 and the SMs.

The programs that run at the same time form a *wave* and walk along K together. In a step each distinct panel of a wave,
rows of A or columns of B, is fetched from device memory at most once, however many programs want it. Whether it must
be fetched at all is the question of an LRU cache: it is still in L2 if the distinct bytes touched since its last use
fit the capacity. Finished tiles of C pass through L2 and take room there. That, the lockstep, predicts the DRAM reads
of most launches; two laws and a handful of constants are what a real GPU adds:

* programs drift apart. Persistent ones, which nothing brings together, fall behind each other a little in every step;
  where they are further apart than L2 reaches back, a panel is fetched twice;
* requests for one line that are close in time reach L2 as one: those of the two SMs of a TPC nearly always,
  those of other SMs sometimes, and both less where the programs wait for DRAM at different times.

Two speeds. `of` looks at a sample of the waves and is for choosing; `l2_simulator.simulate` goes through all of them
step by step and is for study. They share every law in this file.

The constants are fitted on half of the shapes that an H200 was counted on (`python -m tritonmm.autotune.fit_l2`) and
checked on the other half; docs/l2-model.md has the tables. On every other GPU they are unverified: `Gpu.verified`
says so, and `Traffic.verified` repeats it.
"""

import functools
import math
from dataclasses import dataclass, field

import numpy as np

from tritonmm.config import Config, shared_bytes
from tritonmm.gpu import Gpu, spec
from tritonmm.problem import Problem

__all__ = ["FITTED", "Constants", "Traffic", "concurrent", "of", "programs_per_sm", "traffic"]


@dataclass(frozen=True, slots=True)
class Constants:
    """What is fitted; every number has a meaning of its own.

    capacity: bytes that L2 holds for all SMs, as a share of its size. Each half keeps a copy of what its SMs read,
        so it is nearer to a half than to the whole.
    spread: how gradually L2 forgets, as a share of the capacity: what was touched (1 - spread) of it ago is there
        for sure, (1 + spread) ago gone for sure. A hashed cache with approximate replacement is no step.
    drift: by how much of a tile's time persistent programs differ after one tile; the lag is a random walk over their
        tiles. It counts where few programs share a panel.
    coupled: sharers of a panel, spread over the SMs, that keep each other together, so that nothing drifts.
    partner: sharers of a tile's other panel at which half of the requests merge that could: with fewer, the
        programs that want this panel wait for the other one at different times.
    merged: share of the requests by SMs of different TPCs that merge while the programs are together.
    apart: steps after which persistent programs are too far apart for that, by a factor of e.
    """

    capacity: float
    spread: float
    drift: float
    coupled: float
    partner: float
    merged: float
    apart: float


FITTED = Constants(capacity=0.571, spread=0.149, drift=0.103, coupled=13.0, partner=1.1, merged=0.231, apart=2860.0)
"""By `python -m tritonmm.autotune.fit_l2`, from the counters of an H200 (2026-11-21)."""

STEP = 64
"""Elements of K in the step that `Constants.apart` counts: that of the measured configs."""

# Bytes of a partial sum: products are summed in fp32.
PARTIAL_BYTES = 4

# Registers of a thread, read off what ptxas made of the tile kernel for sm_90: 117 with 32 accumulators, 184 with 64,
# 249 with 128, and never more than 255.
REGISTERS_PER_ACCUMULATOR = 2
OTHER_REGISTERS = 55
MOST_REGISTERS = 255

# Waves that `of` looks at, of a longer launch.
FIRST_WAVES = 17
LAST_WAVES = 6

# Depths of a panel, as shares of K, at which `of` asks whether it is still there.
DEPTHS = np.array([0.125, 0.375, 0.625, 0.875])


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one product moves, from a cold L2.

    l2_read_bytes: what the SMs ask of L2, after merging; fabric_bytes: what the parts of L2 fetch from each other;
    verified: whether the model was compared with counters of this GPU.
    """

    dram_read_bytes: int
    dram_write_bytes: int
    l2_read_bytes: int
    fabric_bytes: int = 0
    verified: bool = field(default=True, compare=False)

    @property
    def dram_bytes(self) -> int:
        return self.dram_read_bytes + self.dram_write_bytes

    @property
    def hit_rate(self) -> float:
        """Hits among the lookups, as counters have it: what one part of L2 fetches from another is a lookup
        more and a miss. 1.0 where nothing was read. It ranks orders wrongly on its own; compare the DRAM bytes.
        """
        lookups = self.l2_read_bytes + self.fabric_bytes
        return max(0.0, 1 - (self.dram_read_bytes + self.fabric_bytes) / lookups) if lookups else 1.0

    def __str__(self) -> str:
        read, write, l2 = (_gb(x) for x in (self.dram_read_bytes, self.dram_write_bytes, self.l2_read_bytes))
        note = "" if self.verified else " (unverified on this GPU)"
        return f"DRAM reads {read}, writes {write}; L2 reads {l2}, {self.hit_rate:.1%} hit{note}"


def traffic(
    m: int,
    n: int,
    k: int,
    config: Config,
    *,
    gpu: str | Gpu = "h200",
    dtype: str = "bf16",
    layout: str = "nn",
    batch: int = 1,
) -> Traffic:
    """The traffic of `batch` products of m x k by k x n. gpu: a `Gpu` or a name that `gpu.spec` knows.

    Deterministic. Raises ValueError for what `Problem` or `gpu.spec` refuses, and for a `Table`
    order of another grid.
    """
    problem = Problem(m, n, k, batch=batch, dtype=dtype, layout=layout)
    return of(problem, config, gpu if isinstance(gpu, Gpu) else spec(gpu))


@functools.lru_cache(maxsize=4096)
def of(problem: Problem, config: Config, gpu: Gpu) -> Traffic:
    """The traffic of `problem` done as `config` says on `gpu`, from a sample of the waves.

    With split_k every part of K is a pass over all tiles, and the partial sums are written and read
    once more: through L2 alone where all of them fit its capacity.
    """
    return estimate(problem, config, gpu, FITTED)


def estimate(problem: Problem, config: Config, gpu: Gpu, constants: Constants) -> Traffic:
    """`of` with other constants, for fitting them."""
    if not concurrent(problem, config, gpu):
        return Traffic(0, 0, 0, verified=gpu.verified)
    counts = _sampled(problem, config, gpu, constants)
    return joined(problem, config, gpu, constants, counts)


@dataclass(frozen=True, slots=True)
class Panels:
    """What all programs of a launch want of one operand, in bytes a unit of K.

    asked: all of it; paired: what both SMs of a TPC want; distinct: summed over waves, each panel of a wave once.
    """

    asked: float
    paired: float
    distinct: float

    @property
    def sharers(self) -> float:
        """Programs of a wave that want the same panel, on average."""
        return self.asked / self.distinct

    @property
    def tpcs(self) -> float:
        """TPCs of a wave that want the same panel, on average."""
        return (self.asked - self.paired) / self.distinct


@dataclass(frozen=True, slots=True)
class Counts:
    """A launch in lockstep: `missed` bytes are fetched from device memory by `waves` waves."""

    a: Panels
    b: Panels
    missed: float
    waves: float


def joined(problem: Problem, config: Config, gpu: Gpu, constants: Constants, counts: Counts) -> Traffic:
    """The traffic of a launch that in lockstep is `counts`: drift, merging and partial sums put in."""
    k = problem.k / config.split_k
    a, b = counts.a, counts.b
    held = held_bytes(gpu, constants)
    steps = counts.waves * k / STEP if config.persistent else 0.0
    asked = (a.asked + b.asked - _merged(a, b, steps, constants) - _merged(b, a, steps, constants)) * k
    read = counts.missed
    if config.persistent:
        reach = held * counts.waves / (a.distinct + b.distinct) / STEP
        read += sum(_drifted(panels, k / STEP, counts.waves, reach, constants) for panels in (a, b)) * k
    compulsory = problem.batch * problem.k * (problem.m * problem.element_bytes + problem.n * problem.b_element_bytes)
    read = max(compulsory, min(read, asked))

    # A line goes to every part of L2 that wants it, from the one that has it.
    tpcs = (a.tpcs * a.distinct + b.tpcs * b.distinct) / (a.distinct + b.distinct)
    fabric = read * (gpu.l2_partitions - 1) * (1 - (1 - 1 / gpu.l2_partitions) ** tpcs)

    outputs = problem.batch * problem.m * problem.n
    partial = outputs * config.split_k * PARTIAL_BYTES if config.split_k > 1 else 0
    spilled = partial if partial > held else 0
    written = outputs * problem.out_element_bytes + spilled
    return Traffic(round(read) + spilled, written, round(asked) + partial, round(fabric), gpu.verified)


def held_bytes(gpu: Gpu, constants: Constants) -> float:
    """Bytes that L2 holds of what all SMs read. 1 / capacity is how many copies a line has in an L2 of two parts;
    every further part is taken to add as many as the second, and an L2 of one part holds all of its size."""
    return gpu.l2_bytes / (1 + (gpu.l2_partitions - 1) * (1 / constants.capacity - 1))


def survives(touched, held: float, constants: Constants):
    """The share of lines that are still in L2 after `touched` bytes, of an L2 that holds `held`."""
    if not held:
        return np.zeros(np.shape(touched))
    return np.clip(0.5 + (1 - touched / held) / (2 * constants.spread), 0, 1)


def _merged(panels: Panels, other: Panels, steps: float, constants: Constants) -> float:
    """Bytes a unit of K that are asked for and do not reach L2."""
    together = other.sharers / (other.sharers + constants.partner)
    rest = panels.asked - panels.distinct - panels.paired
    return together * (panels.paired + constants.merged * math.exp(-steps / constants.apart) * rest)


def _drifted(panels: Panels, tile_steps: float, waves: float, reach: float, constants: Constants) -> float:
    """Bytes a unit of K fetched a second time by persistent programs, where L2 remembers `reach` steps.

    The programs part in two groups, a faster and a slower; a panel is fetched twice if both want it. Panels that the
    SMs of a TPC share, or many programs, keep their programs together.
    """
    if panels.sharers > constants.coupled or panels.paired > panels.asked / 4:
        return 0.0
    lag = constants.drift * tile_steps * math.sqrt(waves)
    return panels.distinct * (1 - 2.0 ** (1 - panels.sharers)) * (1 - reach / lag) if lag > reach else 0.0


def programs_per_sm(problem: Problem, config: Config, gpu: Gpu) -> int:
    """Programs that one SM holds: by shared memory, registers and warps, and one when persistent."""
    if config.persistent:
        return 1
    threads = config.num_warps * (32 if gpu.is_nvidia else 64)
    accumulators = config.block_m * config.block_n // threads
    registers = threads * min(REGISTERS_PER_ACCUMULATOR * accumulators + OTHER_REGISTERS, MOST_REGISTERS)
    file = 65_536 if gpu.is_nvidia else 131_072
    return max(1, min(gpu.shared_bytes // shared_bytes(config, problem), file // registers, 2048 // threads))


def concurrent(problem: Problem, config: Config, gpu: Gpu) -> int:
    """Programs that run at the same time: a wave, or the whole launch where that is less."""
    launched = config.order.launched(*config.tiles(problem)) * problem.batch * config.split_k
    return min(gpu.sms // config.ctas * programs_per_sm(problem, config, gpu), launched)


def _sampled(problem: Problem, config: Config, gpu: Gpu, constants: Constants) -> Counts:
    """The counts of a launch from its first and its last waves; the first ones stand for those between.

    Where L2 remembers many waves, as with small tiles and a short K, all of them are looked at, which takes longer.
    Overflow programs count as slots of their wave that read nothing.
    """
    tiles_m, tiles_n = config.tiles(problem)
    launched = config.order.launched(tiles_m, tiles_n)
    total = launched * problem.batch * config.split_k
    programs = concurrent(problem, config, gpu)
    waves = -(-total // programs)
    k, a_elem, b_elem = problem.k / config.split_k, problem.element_bytes, problem.b_element_bytes
    held = held_bytes(gpu, constants)
    area = min(programs * config.block_m * config.block_n, problem.m * problem.n)
    # What a wave that is a square touches.
    least = math.sqrt(area) * k * (a_elem + b_elem) + area * _sum_bytes(problem, config)
    remembered = held * (1 + constants.spread) / least
    wave, weight = _chosen(waves, sampled=remembered < LAST_WAVES // 2)

    index = wave[:, None] * programs + np.arange(programs)
    real = index < total
    index = np.minimum(index, total - 1).astype(np.int32)
    part = index // launched
    m, n = config.order._map(index - part * launched, tiles_m, tiles_n)
    if launched > tiles_m * tiles_n:
        real &= (m < tiles_m) & (n < tiles_n)
    part = _renumbered(part)
    parts = int(part[-1, -1]) + 1
    rows, cols = _extents(problem.m, config.block_m) * a_elem, _extents(problem.n, config.block_n) * b_elem
    size = np.concatenate([np.tile(rows, parts), np.tile(cols, parts), [0.0]])
    idle, first_b = len(size) - 1, parts * tiles_m
    a = np.where(real, part * tiles_m + m, idle)
    b = np.where(real, part * tiles_n + n + first_b, idle)
    used = np.zeros((len(wave), len(size)))
    flat, at = used.reshape(-1), np.arange(len(wave))[:, None] * len(size)
    flat[a + at] = flat[b + at] = 1.0

    asked_a, asked_b = size[a], size[b]
    written = (asked_a * asked_b).sum(axis=1) * (_sum_bytes(problem, config) / (a_elem * b_elem))
    passes = problem.batch * config.split_k
    panels = [
        _scaled(exact, *(float(weight @ x) for x in (asked.sum(axis=1), _paired(panel, asked), distinct)))
        for exact, panel, asked, distinct in (
            (passes * tiles_n * problem.m * a_elem, a, asked_a, used[:, :first_b] @ size[:first_b]),
            (passes * tiles_m * problem.n * b_elem, b, asked_b, used[:, first_b:] @ size[first_b:]),
        )
    ]
    missed = weight @ _missed(used, wave, size, k, written, held, constants)
    return Counts(*panels, float(missed), waves)


def _scaled(exact: float, asked: float, paired: float, distinct: float) -> Panels:
    """What a sample found, scaled to the bytes that all programs ask for, which are known."""
    return Panels(exact, paired * exact / asked, distinct * exact / asked)


def _sum_bytes(problem: Problem, config: Config) -> int:
    """Bytes of an element that a program writes."""
    return PARTIAL_BYTES if config.split_k > 1 else problem.out_element_bytes


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


def _missed(used, wave, size, k, written, held, constants):
    """Bytes that each wave must fetch. used: (waves, panels), 1.0 where that wave wants that panel.

    For a panel that an earlier wave was the last to use, the bytes touched at depth x of K since then: those used
    later, and by both, whole; what only that wave used, from x on; what only this one uses, up to x.
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
        whole = (newer[age:] + kept) * k + since[age:]
        touched = whole[:, None] + k * np.outer(live - kept, 1 - DEPTHS) + k * np.outer(older[age:], DEPTHS)
        missed[age:] -= kept * k * survives(touched, held, constants).mean(axis=1)
        newer[age:] += live
        if (newer * k + since)[age:].min() > held * (1 + constants.spread):
            break
        unseen[age:] -= last
    return missed


def _gb(size: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} B"
