"""The time of a config: the terms that several kernel families share.

A GEMM of T tiles is ceil(T / SMs) rounds. In a round a tile walks along K. A step takes as long as its mma at the
tile's share of the peak rate, or as receiving its operands at the bandwidth of an SM. All rounds together take no less
than device memory needs for the bytes that the tile order moves, and than L2 needs for the requests that reach it; both
are the L2 model's bytes for the config's own order. Nothing overlaps perfectly: these times are joined by p-norms. A
launch, copies of operands, the fixup of split tiles and the last stores come on top.

Operands whose lines are no multiples of 128 bytes cost almost three times as much on their way to the SMs: each
128-byte row of a tile lies in two cache lines.

The constants are those of `model.constants`. How far estimates are off, and what is chosen by them, is said by
`python -m tritonmm.autotune.studies.fit_time` and `... .regret`. Families with a model of their own say so in their
`model.py`.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model import constants, l2, tile_order
from tritonmm.model.record import Limits, Shared, Tile
from tritonmm.problem import Problem

SPLITS = (2, 3, 4, 6, 8, 12, 16, 32)
"""Parts in which a tile may be split along K."""

CACHE_LINE = 128

BEYOND = 1.05
"""Caution where TMA is asked for 8 rows beyond the matrix or more. Most such tiles are as fast as others; with 28 of
them 100x7168x8192, which memory limits, took 50 us in tiles of 128 x 64, and 37 with 4 (h200-splits.csv, h200-rest.csv
in autotune/results)."""


MIRROR_US = 2.0
"""What a tile of a symmetric product takes longer, as it is written twice: of `MIRRORED` elements or more, and of fewer
in proportion. With it the estimates of 27 products are 3% short in the median (autotune/results/h100-symmetric.csv)."""

MIRRORED = 128 * 128


class Parts(NamedTuple):
    """Microseconds of each part of a launch on its own.

    mma, dram, l2 overlap with each other; launch, repack, split_k and drain come before or after them.
    """

    mma: float = 0.0
    dram: float = 0.0
    l2: float = 0.0
    launch: float = 0.0
    repack: float = 0.0
    split_k: float = 0.0
    drain: float = 0.0


class Time(NamedTuple):
    """Estimated microseconds of a config, and what they are made of."""

    us: float
    parts: Parts = Parts()

    @property
    def bound(self) -> str:
        """The part that takes longest."""
        return max(zip(self.parts, Parts._fields, strict=True))[1]

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {us:.1f}" for name, us in zip(Parts._fields, self.parts, strict=True) if us >= 0.05)
        return f"{self.us:.1f} us, bound by {self.bound} ({parts})"


UNKNOWN = Time(math.inf)
"""Of a config for which its family has no estimate."""


class Terms(NamedTuple):
    """What a family adds to the time of one of its configs.

    rows: rows of the tile that one consumer has; consumers without rows of A multiply nothing.
    share: factor of the tile's share of the peak rate. caution: factor of the whole.
    loads_us: the least that loads of single elements take.
    has_affinity: whether tiles are assigned to SMs, whatever the grid before has left of them.
    """

    rows: int
    share: float = 1.0
    caution: float = 1.0
    loads_us: float = 0.0
    has_affinity: bool = False


def crossing(problem: Problem, repack: str) -> tuple[bool, bool]:
    """Whether the lines of A, and of B, as they are stored, begin anywhere in cache lines."""
    p = problem
    a_line = (p.k if p.layout[0] == "n" else p.m) * p.element_bytes
    b_line = (p.k if p.layout[1] == "t" else p.n) * p.b_element_bytes
    return "a" not in repack and a_line % CACHE_LINE > 0, "b" not in repack and b_line % CACHE_LINE > 0


def joined(times: Sequence[float], p: float) -> float:
    """The p-norm of times that overlap: their maximum for an infinite p."""
    longest = max(times)
    if not longest or p == math.inf:
        return longest
    total = 0.0
    for time in times:
        total += (time / longest) ** p
    return longest * total ** (1 / p)


def beyond_half(busy: int, gpu: Gpu) -> float:
    """1 where just more than half of the SMs are busy, falling to 0 where all are; 0 up to half of them.

    Two grids of half of the SMs fit beside each other. Larger ones get what the grid before them has left, whole GPCs
    and others not at all, and share what a GPC receives: 59x4352x968 takes 7.9 us in 68 tiles and 59x4096x968 6.4 in
    64, but 7.8 and 7.7 where launches run in turn (autotune/results/h200-halves.csv). Assigned tiles do not.
    """
    return 2 * (1 - busy / gpu.sms) if 2 * busy > gpu.sms else 0.0


def repack_us(problem: Problem, config: Config, gpu: Gpu, shared: Shared) -> float:
    """Microseconds of the copies of `config.repack`: a launch, and each byte read and written once."""
    if not config.repack:
        return 0.0
    copied = problem.operand_bytes(config.repack)
    return shared.repack_us + 2e6 * copied / (gpu.bandwidth * shared.repack_share)


def whole(config: Config) -> Config:
    """The config that splits no tiles."""
    return config if config.split_k == config.split_tail == 1 else config.changed(split_k=1, split_tail=1)


class Sizes(NamedTuple):
    """What all launches of a problem have in common, of operands as they are or repacked."""

    a_size: int  # bytes of an element
    b_size: float
    out_size: int
    a_bytes: int
    b_bytes: int
    a_crosses: bool  # lines begin anywhere in cache lines
    b_crosses: bool
    has_b_rows: bool  # lines of B lie along N
    outputs: int  # elements
    rate: float  # FLOP/s


@functools.lru_cache(maxsize=64)
def sizes(problem: Problem, repack: str, gpu: Gpu) -> Sizes:
    """The sizes of a problem with the operands `repack` copied into aligned rows."""
    p = problem
    return Sizes(
        p.element_bytes,
        p.b_element_bytes,
        p.out_element_bytes,
        p.operand_bytes("a"),
        p.operand_bytes("b"),
        *crossing(p, repack),
        p.repacked(repack).layout[1] == "n",
        p.m * p.n * p.batch,
        gpu.rate(p.dtype, p.precision),
    )


class Moved(NamedTuple):
    """What the tile order decides.

    ctas: CTAs launched. dram_bytes: read from and written to device memory, or as many as take as long as what the dies
    of a GPU exchange with the cache behind their L2s. l2_bytes: of the requests that reach L2.
    has_affinity: as in `Terms`.
    """

    ctas: int
    dram_bytes: float
    l2_bytes: float
    has_affinity: bool


class Launch(NamedTuple):
    """What the time of a config depends on besides its tile order and the number of parts in which tiles are split."""

    ctas: int  # of all tiles
    programs: int  # that run at the same time
    loop_us: float  # of a tile's steps of K, and of what else its parts along K share
    fixed_us: float  # of a tile besides
    crossed_us: float  # of the loop, for lines that cross cache lines
    loads_us: float  # of loads of single elements, all of them
    operand_bytes: float  # of A and B
    again_bytes: float  # read from device memory once more, whatever the order
    output_bytes: float
    longest_run: float  # bytes of the output that lie together and are written together, at most
    asked: float  # bytes of operands that all tiles ask for
    requests: float  # the same with what lines that cross cache lines add
    tile_sums: float  # elements of an average tile
    most_sums: float  # elements of the largest tile
    drain_us: float  # of a tile on every SM
    before_us: float  # launch
    repack_us: float
    after_us: float  # unaligned stores
    caution: float

    @classmethod
    def of(
        cls, config: Config, tile: Tile, limits: Limits, terms: Terms, problem: Problem, gpu: Gpu, shared: Shared
    ) -> "Launch":
        """The launch of a config of at least one tile, however its tiles are ordered and split."""
        p, known = problem, sizes(problem, config.repack, gpu)
        block_m, block_n = config.cta_tile
        tiles_m, tiles_n = config.tiles(p)
        tiles = config.order.launched(tiles_m, tiles_n) if p.symmetric else tiles_m * tiles_n
        block_k, resident, cluster = config.block_k, tile.resident, config.cluster
        a_size, b_size, a_bytes, b_bytes = known.a_size, known.b_size, known.a_bytes, known.b_bytes
        rows, cols = min(block_m, p.m), min(block_n, p.n)  # of a tile, those that are not beyond the output

        # A step of a full wave: its mma, and its operands on their way to the SMs.
        a_cost, b_cost = 1 + limits.crossed * known.a_crosses, 1 + limits.crossed * known.b_crosses
        if known.has_b_rows and block_n * b_size % CACHE_LINE:
            b_cost *= 1 + limits.half_lines
        programs = gpu.sms * resident
        present = (min(block_m, -(-p.m // terms.rows) * terms.rows) / block_m) ** limits.absent
        flops = 2 * block_m * block_n * block_k * programs * present
        a_line, b_line = a_size * rows * a_cost, b_size * cols * b_cost
        if cluster == "m":  # an SM asks for half of the shared operand, and is sent the other
            b_line *= (1 + 1 / b_cost) / 2
        if cluster == "n":
            a_line *= (1 + 1 / a_cost) / 2
        received = (a_line + b_line) * block_k
        mma_us = 1e6 * flops / (known.rate * (tile.share * terms.share))
        step_us = joined((mma_us, 1e6 * received * resident / limits.sm_bandwidth), limits.step_overlap)
        if config.num_stages < tile.num_stages:
            # Every stage of an SM's programs comes round once in the latency of its load and its step.
            stages = config.num_stages * l2.programs_per_sm(p, config, gpu)
            step_us = max(step_us, (shared.load_latency_us + step_us) / stages)
        steps = max(1, -(-p.k // block_k))
        crossed = received - (a_size * rows + b_size * cols) * block_k

        asked_a, asked_b = a_bytes * tiles / tiles_m, b_bytes * tiles / tiles_n
        outputs, out_size = known.outputs, known.out_size
        return cls(
            ctas=tiles * p.batch * config.ctas,
            programs=programs,
            loop_us=steps * step_us + (MIRROR_US * min(1.0, block_m * block_n / MIRRORED) if p.symmetric else 0.0),
            fixed_us=tile.fixed_us,
            crossed_us=1e6 * steps * max(0.0, crossed) / limits.sm_bandwidth,
            loads_us=terms.loads_us,
            operand_bytes=p.distinct_operand_bytes,
            again_bytes=limits.again * ((tiles_n > 1) * a_bytes + (tiles_m > 1) * b_bytes),
            output_bytes=outputs * out_size,
            longest_run=p.n * out_size * config.block_m,
            asked=asked_a + asked_b,
            requests=asked_a * a_cost + asked_b * b_cost,
            tile_sums=p.m / tiles_m * block_n,
            most_sums=rows * block_n,
            drain_us=limits.drain_us * block_m * block_n / 1e4,
            before_us=shared.launch_us + (shared.cluster_us if cluster else 0.0),
            repack_us=repack_us(p, config, gpu, shared),
            after_us=1e6 * outputs * out_size / shared.staged_bandwidth if p.out_alignment < 16 else 0.0,
            caution=limits.caution * terms.caution,
        )

    def moved(self, config: Config, problem: Problem, gpu: Gpu, limits: Limits, has_affinity: bool) -> Moved:
        """What the config's order moves, by the L2 model. The config splits nothing."""
        traffic = l2.estimate(problem, config, gpu, constants.of(gpu).l2)
        written = traffic.dram_write_bytes * (1 + limits.write_page / tile_order.run_bytes(problem, config, gpu))
        merged = traffic.l2_read_bytes / self.asked if self.asked else 1.0
        dram_bytes = traffic.dram_read_bytes + self.again_bytes + written
        if gpu.llc_bytes:  # as bytes of memory, where the cache behind the L2s of several dies takes longer
            behind = traffic.missed_bytes + traffic.dram_write_bytes
            dram_bytes = max(dram_bytes, behind * gpu.bandwidth / gpu.llc_bandwidth)
        return Moved(config.programs(problem) * config.ctas, dram_bytes, self.requests * merged, has_affinity)

    def least_moved(self, limits: Limits) -> Moved:
        """A lower bound for all orders: compulsory bytes, output in the longest runs, no idle program, SM affinity."""
        written = self.output_bytes * (1 + limits.write_page / self.longest_run)
        merged = self.operand_bytes / self.asked if self.asked else 1.0
        return Moved(self.ctas, self.operand_bytes + self.again_bytes + written, self.requests * merged, True)

    def time(self, moved: Moved, split_k: int, split_tail: int, limits: Limits, gpu: Gpu, shared: Shared) -> Time:
        """The time with all tiles, or those of the last round, split in so many parts."""
        rounds, tail = (0, moved.ctas) if split_k > 1 else divmod(moved.ctas, self.programs)
        splits = split_k * split_tail
        parts = tail * splits
        busy = gpu.sms if rounds else min(parts, gpu.sms)
        compute_us = rounds * (self.loop_us + self.fixed_us)
        compute_us += -(-parts // self.programs) * (self.loop_us / splits + self.fixed_us)
        compute_us = max(compute_us, self.loads_us)
        if not (moved.has_affinity and splits == 1):
            compute_us += limits.late * beyond_half(busy, gpu) * self.crossed_us / splits
        sums, split_us = self._fixup(tail, splits, split_k > 1, shared) if splits > 1 else (0.0, 0.0)
        drain_us = self.drain_us * busy / gpu.sms + self.after_us
        return self._time(moved, compute_us, busy, sums, split_us, drain_us, limits, gpu, shared)

    def least_split_us(self, moved: Moved, split_k: bool, limits: Limits, gpu: Gpu, shared: Shared) -> float:
        """A lower bound for every number of parts, in microseconds.

        All SMs share the K steps of the split tiles evenly, and the fixup is that of two parts. split_k: all tiles are
        split, not only those of the last round.
        """
        rounds, tail = (0, moved.ctas) if split_k else divmod(moved.ctas, self.programs)
        compute_us = rounds * (self.loop_us + self.fixed_us)
        compute_us += self.loop_us * (tail / self.programs) + self.fixed_us
        compute_us = max(compute_us, self.loads_us)
        sums, split_us = self._fixup(tail, 2, split_k, shared)
        drain_us = self.drain_us * (1.0 if rounds else min(2 * tail / gpu.sms, 1.0)) + self.after_us
        return self._time(moved, compute_us, gpu.sms, sums, split_us, drain_us, limits, gpu, shared).us

    def _fixup(self, tiles: int, splits: int, split_k: bool, shared: Shared) -> tuple[float, float]:
        """Bytes of the sums of so many split tiles, written and read, and microseconds of their fixup."""
        sums = 8 * tiles * splits * self.tile_sums
        split_us = shared.split_us + shared.part_us * splits + 1e6 * sums / shared.partial_bandwidth
        if split_k:  # one program adds up all parts of its tile
            split_us += 4e6 * splits * self.most_sums / shared.gather_bandwidth
        return sums, split_us

    def _time(
        self,
        moved: Moved,
        compute_us: float,
        busy: int,
        sums: float,
        split_us: float,
        drain_us: float,
        limits: Limits,
        gpu: Gpu,
        shared: Shared,
    ) -> Time:
        """The time, once what the tiles compute is known. busy: SMs that read from device memory at the same time."""
        bandwidth = min(gpu.bandwidth * limits.stream, busy * shared.lone_bandwidth)
        dram_us = shared.first_us + 1e6 * moved.dram_bytes / bandwidth
        l2_us = shared.first_us + 1e6 * (moved.l2_bytes + sums) / limits.l2_bandwidth
        us = joined((compute_us, dram_us, l2_us), limits.overlap) * self.caution
        us += self.before_us + self.repack_us + split_us + drain_us
        return Time(us, Parts(compute_us, dram_us, l2_us, self.before_us, self.repack_us, split_us, drain_us))
