"""L2 traffic of a tile order: the bytes a product moves between device memory, L2 and the SMs.

The programs that run at the same time form a *wave* and walk along K together. In a step each distinct panel of a wave,
rows of A or columns of B, is fetched from device memory at most once, however many programs want it. Whether it must
be fetched at all is the question of an LRU cache: it is still in L2 if the distinct bytes touched since its last use
fit the capacity. Finished tiles of C pass through L2 and take room there. That, the lockstep, predicts the DRAM reads
of most launches; three laws and a handful of constants are what a real GPU adds:

* programs of a plain launch begin as others end, one after the other: the last of a wave are still at a panel when the
  next wave comes to it, and less is touched in between;
* programs drift apart. Persistent ones, which nothing brings together, fall behind each other a little in every tile;
  while they are further apart than L2 reaches back, a panel is fetched more than once;
* requests for one line that are close in time reach L2 as one: those of the two SMs of a TPC nearly always,
  those of other SMs sometimes, and both less where the programs wait for DRAM at different times.

A GPU of several dies has as many LRUs, and the cache behind them is another: see `l2_dies`. There, these laws are left
out.

Two speeds. `of` is for choosing: a closed form for orders that walk through groups (`l2_groups`), a sample of the
waves for all others (`l2_waves`). `l2_simulator.simulate` goes through all waves step by step and is for study. They
share every law here and in `l2_laws`.

The constants are in `model.constants`. `python -m tritonmm.autotune.studies.fit_l2` fits them to counters of an H200 on
half of the shapes, and checks them on the other half; docs/l2-model.md has the tables. On every other GPU they are
unverified: `Gpu.verified` says so, and `Traffic.verified` repeats it.
"""

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tritonmm.config import Config
from tritonmm.gpu import Gpu, spec
from tritonmm.model import constants as fitted
from tritonmm.model import l2_dies, l2_groups, l2_waves
from tritonmm.model.groups import Sized, as_equal, batches
from tritonmm.model.l2_laws import (
    DRIFT_TILE,
    PARTIAL_BYTES,
    STEP,
    Constants,
    Counts,
    DieCounts,
    Panels,
    concurrent,
    held_bytes,
    programs_per_sm,
    time_beyond,
)
from tritonmm.orders import SwizzleMerge
from tritonmm.problem import Problem

__all__ = ["Constants", "Traffic", "best_factor", "concurrent", "of", "programs_per_sm", "traffic"]

L2_BYTE = 0.6
"""What a byte read from L2 counts for when factors are compared, of one read from device memory: both take power that
the mma lacks. On the fitted sweeps 0.3 to 0.6 choose equally well, on the others 22 to 24 of 26 right; 0.6 was taken
with both in sight."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one product moves, from a cold L2.

    l2_read_bytes: what the SMs ask of L2, after merging; fabric_bytes: what the parts of L2 fetch from each other;
    missed_bytes: on a GPU of several dies, what their L2s fetch from the cache behind them or from memory, else 0;
    verified: whether the model was compared with counters of this GPU.
    """

    dram_read_bytes: int
    dram_write_bytes: int
    l2_read_bytes: int
    fabric_bytes: int = 0
    verified: bool = field(default=True, compare=False)
    missed_bytes: int = 0

    @property
    def dram_bytes(self) -> int:
        return self.dram_read_bytes + self.dram_write_bytes

    @property
    def hit_rate(self) -> float:
        """Hits among the lookups, as counters have it: what one part of L2 fetches from another is a lookup
        more and a miss. 1.0 where nothing was read. It ranks orders wrongly on its own; compare the DRAM bytes.
        """
        lookups = self.l2_read_bytes + self.fabric_bytes
        missed = self.missed_bytes or self.dram_read_bytes + self.fabric_bytes
        return max(0.0, 1 - missed / lookups) if lookups else 1.0

    @property
    def llc_hit_rate(self) -> float:
        """Hits of the cache behind the L2s of several dies, among what these miss. 1.0 on a GPU of one die."""
        return 1 - self.dram_read_bytes / self.missed_bytes if self.missed_bytes else 1.0

    def __str__(self) -> str:
        read, write, l2 = (_gb(x) for x in (self.dram_read_bytes, self.dram_write_bytes, self.l2_read_bytes))
        note = "" if self.verified else " (unverified on this GPU)"
        if self.missed_bytes:
            note = f"; the dies' L2s miss {_gb(self.missed_bytes)}, {self.llc_hit_rate:.1%} hit behind them{note}"
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
    order of another grid, and TypeError for a config that is not a `Config`.
    """
    if not isinstance(config, Config):
        raise TypeError(f"traffic: config is {config!r}; it must be a tritonmm.Config, as in Config('hopper')")
    problem = Problem(m, n, k, batch=batch, dtype=dtype, layout=layout)
    return of(problem, config, gpu if isinstance(gpu, Gpu) else spec(gpu))


@functools.lru_cache(maxsize=4096)
def of(problem: Problem, config: Config, gpu: Gpu) -> Traffic:
    """The traffic of `problem` done as `config` says on `gpu`.

    With split_k every part of K is a pass over all tiles, and the partial sums are written and read
    once more: through L2 alone where all of them fit its capacity. Of groups it is the traffic of equal ones, as many
    as are expected to have any rows. Where the sizes are known, it is the sum over the sizes: groups of one size are a
    batch.
    """
    if isinstance(problem, Sized):
        return _sized(problem, config, gpu)
    if problem.ragged:
        equal = as_equal(problem, config)
        return replace(of(equal.problem, equal.config, gpu), dram_write_bytes=equal.output_bytes)
    return estimate(problem, config, gpu, fitted.of(gpu).l2)


def _sized(problem: Sized, config: Config, gpu: Gpu) -> Traffic:
    """The traffic of groups of known sizes. Groups without rows move nothing; without elements of K they are zeros."""
    equal = as_equal(problem, config)
    moved = [of(batch, equal.config, gpu) for batch in batches(problem)]
    return Traffic(
        sum(each.dram_read_bytes for each in moved),
        equal.output_bytes,
        sum(each.l2_read_bytes for each in moved),
        sum(each.fabric_bytes for each in moved),
        gpu.verified,
        sum(each.missed_bytes for each in moved),
    )


def best_factor(problem: Problem, config: Config, gpu: Gpu, factors: Iterable[int]) -> int:
    """The factor of swizzle-merge, cut along the axis of `config.order`, that moves the fewest bytes.

    A byte that the SMs read from L2 counts for `L2_BYTE`, which decides where the operands fit L2 and every factor
    reads them from device memory once. Of equal factors the smallest. Deterministic.

    Raises ValueError without any factor.
    """

    factors = sorted(factors)
    if not factors:
        raise ValueError("best_factor: no factor given; it takes one or more")

    def moved(factor: int) -> float:
        found = of(problem, replace(config, order=SwizzleMerge(factor, along=config.order.along)), gpu)
        return found.dram_read_bytes + L2_BYTE * found.l2_read_bytes

    return min(factors, key=moved)


def estimate(problem: Problem, config: Config, gpu: Gpu, constants: Constants) -> Traffic:
    """`of` with other constants, for fitting them."""
    if not config.programs(problem):
        return Traffic(0, 0, 0, verified=gpu.verified)
    if gpu.dies > 1:
        return of_dies(problem, config, gpu, l2_dies.sampled(problem, config, gpu, constants))
    form = l2_groups.counted if l2_groups.groups(config.order) else l2_waves.sampled
    return joined(problem, config, gpu, constants, form(problem, config, gpu, constants))


def joined(problem: Problem, config: Config, gpu: Gpu, constants: Constants, counts: Counts) -> Traffic:
    """The traffic of a launch that in lockstep is `counts`: drift, merging and partial sums put in."""
    k = problem.k / config.split_k
    a, b = counts.a, counts.b
    held = held_bytes(gpu, constants)
    if config.dynamic:
        merged = sum(constants.scattered * max(0.0, panels.asked - panels.distinct) for panels in (a, b))
    else:
        steps = counts.waves * k / STEP if config.persistent else None
        merged = _merged(a, b, steps, constants) + _merged(b, a, steps, constants)
    asked = (a.asked + b.asked - merged) * k
    read = counts.missed
    if config.persistent:
        reach = held * counts.waves / (a.distinct + b.distinct) / STEP
        tile_steps = k / STEP * DRIFT_TILE / math.prod(config.cta_tile)
        lag = constants.drift * tile_steps * math.sqrt(counts.waves)
        read += sum(_drifted(panels, reach, lag) for panels in (a, b)) * k
    compulsory = problem.distinct_operand_bytes
    asked = max(asked, compulsory)
    read = max(compulsory, min(read, asked))

    # A line goes to every part of L2 that wants it, from the one that has it. Neighbouring SMs read through the same
    # part, and the programs of a persistent launch are on them in their order; those of a plain one are anywhere.
    wanting = [panels.groups if config.persistent else panels.tpcs for panels in (a, b)]
    sharers = (wanting[0] * a.distinct + wanting[1] * b.distinct) / (a.distinct + b.distinct)
    fabric = read * (gpu.l2_partitions - 1) * (1 - (1 - 1 / gpu.l2_partitions) ** sharers)

    outputs = problem.batch * problem.m * problem.n
    partial = outputs * config.split_k * PARTIAL_BYTES if config.split_k > 1 else 0
    spilled = partial if partial > held else 0
    written = outputs * problem.out_element_bytes + spilled
    return Traffic(round(read) + spilled, written, round(asked) + partial, round(fabric), gpu.verified)


def of_dies(problem: Problem, config: Config, gpu: Gpu, counts: DieCounts) -> Traffic:
    """The traffic of a launch on a GPU of several dies. Partial sums go through the largest cache that holds them."""
    compulsory = problem.distinct_operand_bytes
    asked = max(counts.asked, compulsory)
    missed = max(compulsory, min(counts.missed, asked))
    read = max(compulsory, min(counts.read, missed))
    outputs = problem.batch * problem.m * problem.n
    partial = outputs * config.split_k * PARTIAL_BYTES if config.split_k > 1 else 0
    spilled = partial if partial > max(gpu.llc_bytes, gpu.l2_bytes) else 0
    written = outputs * problem.out_element_bytes + spilled
    asked, missed, read = round(asked) + partial, round(missed) + partial, round(read) + spilled
    return Traffic(read, written, asked, verified=gpu.verified, missed_bytes=missed)


def _merged(panels: Panels, other: Panels, steps: float | None, constants: Constants) -> float:
    """Bytes a unit of K that are asked for and do not reach L2. steps: of persistent programs, which begin together and
    part; those of a plain launch begin wherever and whenever another has ended."""
    if steps is None:
        return panels.paired + constants.scattered * max(0.0, panels.asked - panels.paired - panels.distinct)
    together = other.sharers / (other.sharers + constants.partner)
    rest = max(0.0, panels.asked - panels.paired - panels.nearby)
    return together * (panels.paired + constants.merged * math.exp(-steps / constants.apart) * rest)


def _drifted(panels: Panels, reach: float, lag: float) -> float:
    """Bytes a unit of K fetched again by persistent programs that drift apart.

    reach: steps that L2 remembers. lag: standard deviation, in steps, of how late a program is at the end of the launch
    if it shares no panel. Programs that share one hold each other back, so their random walk is the mean of as many.

    Neighbouring SMs, `GROUP` of them, stay together. One group fetches a panel in time. Each of the others fetches it
    again while it is behind by more than `reach`: half of the time in which it is that far away, for it may be ahead.
    """
    others = panels.nearby - panels.distinct
    if others <= 0 or lag <= 0:
        return 0.0
    return others * time_beyond(reach / lag * math.sqrt(panels.sharers)) / 2


def _gb(size: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} B"
