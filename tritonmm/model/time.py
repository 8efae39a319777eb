"""The time of a config: the terms that several kernel families share. A fit to an H200.

A product of T tiles is ceil(T / SMs) rounds. In a round a tile walks along K; a step takes as long as its products at
the tile's share of the peak rate, or as receiving its operands at the bandwidth of an SM. All rounds together take no
less than device memory, or L2, needs for what is read of it. Nothing overlaps perfectly: these are joined by p-norms. A
launch, copies of operands and the meeting of split tiles come on top.

Operands whose lines are no multiples of 128 bytes cost almost three times as much on their way to the SMs: each
128-byte row of a tile lies in two cache lines.

The constants are fits to one H200 (burst, 2026-11-22), in which the ranks within a product count more than the times:
of the hopper kernel to 13,344 times of 285 products, of the tile kernel to 3,258, in h200-random60.csv, -random64,
-random66, -random-all, -random-fit and -splits-2 in autotune/results. Relative to its product, a config within 30% of
the best is off by 4.4% (standard deviation), and was by 4.9% in h200-random68.csv while nothing was fitted to it; those
of the tile kernel by 12%. Loads of single elements, and what takes longer on just more than half of the SMs (`late`,
`late_stream`), are fitted to h200-random60.csv to -random76.csv, tiles of 96 columns to h200-columns-96.csv, those of
128 x 32 to h200-columns-32.csv. What the shortest estimate of all reaches of each file is said by
`python -m tritonmm.autotune.studies.regret`. Families with a model of their own say so in their `model.py`.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model import cost
from tritonmm.orders import SwizzleMerge
from tritonmm.problem import Problem


@dataclass(frozen=True, slots=True)
class Limits:
    """What limits a kernel family besides its tiles.

    stream: share of the bandwidth of device memory; again: what reading an operand for more than one row or column of
    tiles costs, as a share of reading it from there once; sm_bandwidth: bytes/s that an SM receives while all do;
    l2_bandwidth: bytes/s that all SMs together ask of L2; merged: what is left of that where all tiles are split
    and their parts run at once, since programs next to each other then read the same; crossed: what a byte costs
    more whose line crosses cache lines; half_lines: the same of B in lines of 64 bytes; late: what both of these take
    longer, as a share, where just more than half of the SMs are busy, see `_beyond_half`; late_stream: the same of
    device memory, where the lines of one operand are for one tile each; step_overlap, overlap: the p of the p-norms for
    a step and for the whole; absent: the power with which a step's products grow with the consumers that have rows,
    where not all have; drain_us: from the end of the last tiles to that of their stores, for 10^4 elements of a tile on
    every SM; caution: what the estimates are multiplied by that err more than others, since the shortest of many
    estimates is likely one that errs.
    """

    stream: float
    sm_bandwidth: float
    l2_bandwidth: float
    crossed: float
    overlap: float
    again: float = 0.0
    late: float = 0.0
    late_stream: float = 0.0
    half_lines: float = 0.0
    step_overlap: float = math.inf
    absent: float = 0.0
    merged: float = 1.0
    drain_us: float = 0.0
    caution: float = 1.0


BY_TMA = Limits(
    stream=0.91, again=0.08, sm_bandwidth=274e9, l2_bandwidth=20.7e12, merged=0.6, crossed=1.96, late=0.5,
    late_stream=0.12, half_lines=0.4, step_overlap=5, overlap=2.22, absent=0.6, drain_us=0.31,
)  # fmt: skip
"""Of the families that load by TMA and are persistent."""

LAUNCH_US = 1.44
"""What a launch costs that follows another, its first loads included."""

FIRST_US = 0.33
"""From there to the first product, and from the last one to the end, where memory is the limit."""

FEWER = 0.07
"""The power with which what device memory delivers falls with the share of SMs that are busy."""

LONE_BANDWIDTH = 200e9
"""Bytes/s that one SM reads from device memory, where few do."""

SPLITS = (2, 3, 4, 6, 8, 12, 16, 32)
"""Parts in which a tile may be multiplied."""

SPLIT_US = 1.59
"""What a launch with split tiles costs beside its work: a cooperative grid, and the meeting of the parts. This and the
next are fits for the Hopper kernel, and stand for the exact one too."""

PART_US = 0.014
"""The same for each part: its sums are added up after those of the part before it."""

PARTIAL_BANDWIDTH = 4.5e12
"""Bytes/s at which the parts of split tiles write and read their fp32 sums."""

GATHER_BANDWIDTH = 45e9
"""Bytes/s at which the one program of the exact kernel that arrives last reads the fp32 sums of all parts: 66 split
configs of h200-mixed420.csv and -mixed210.csv are off by 19% with it (root mean square), 36% without."""

STAGED_BANDWIDTH = 2.7e12
"""Bytes/s at which unaligned outputs are written, an element a thread, beside all other work. Read off 36 unaligned
products of h200-random60.csv to -random72.csv, whose best configs are then off by 6% in the median."""

ELEMENT_RATE = 30e9
"""Elements that an SM loads in a second where they come one by one, since their alignment allows no more. This and the
next two are fits to the unaligned products of h200-random60.csv to -random76.csv: a config that is within 50% of the
best that loads so is off by 11% (root mean square) if it is a skinny one, and by 24% if it is the tile kernel's, in
files that were left out of the fit, too."""

ELEMENTS_WAIT_US = 0.6
"""What a step takes besides, however many programs there are: no copies of 2 bytes run ahead, so each program waits for
memory, stores to shared memory and waits for its threads, one after the other."""

ELEMENT_US = 0.006
"""What that takes longer for each such element of a step and thread: not all are in flight at once."""

REGISTERS = 65536
"""Of an SM, for all programs that it runs at once."""

THREAD_REGISTERS = 255
"""The most that a thread can have."""

VALUE_REGISTERS = 2.4
"""What each such element of a step takes of them, with its address and mask; and each sum, with what is beside it. Five
of six kernels are within 25% of what ptxas says."""

MOST_VALUES = 128
"""Such elements of a step and sums that a thread has registers for; with more it spills."""

MOST_ELEMENTS = 80
"""The same of the elements alone where K is the contiguous dimension of both operands: ptxas then spills a thousand
bytes of kernels that spill nothing in the other layouts."""

CACHE_LINE = 128

BEYOND = 1.05
"""Caution where TMA is asked for 8 rows beyond the matrix or more. Most such tiles are as fast as others; with 28 of
them 100x7168x8192, which memory limits, took 50 us in tiles of 128 x 64, and 37 with 4 (h200-splits.csv, h200-rest.csv
in autotune/results)."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile that is tried: its shape, and what it reaches.

    share: of the peak rate, by a full wave within its loop over K where nothing else limits it; fixed_us: microseconds
    a wave beside that loop; resident: programs that an SM runs at once, a wave's. Fewer take as long: what a thread
    waits for, others of its SM fill. Those of 16-bit operands are fits, see above; the exact kernel's of fp64 are
    within 12% of five products of 1024 and 4096 (autotune/results/h200-sliced.csv); fp32's are within 5% of what whole
    tiles took for nine products of 1000 to 8192 rows (autotune/results/h200-sliced-2.csv), but for the last, which is
    for unaligned operands and errs by 36%. The others are estimates.
    """

    blocks: tuple[int, int, int]
    num_stages: int
    num_warps: int
    share: float
    fixed_us: float
    resident: int = 1


@dataclass(frozen=True, slots=True)
class Terms:
    """What a family adds to the time of one of its configs.

    rows: of a tile, those of one consumer: consumers without rows multiply nothing; share: a factor of the tile's share
    of the peak rate; caution: a factor of the whole; loads_us: what loads of single elements take at least;
    affinity: what SM affinity leaves of the time of a config that splits nothing, None where there is none;
    split: the field of the config, "split_k" or "split_tail", by which tiles may be split, or "".
    """

    rows: int
    share: float = 1.0
    caution: float = 1.0
    loads_us: float = 0.0
    affinity: float | None = None
    split: str = ""


@functools.lru_cache(maxsize=4096)
def config_of(kernel: str, tile: Tile, persistent: bool, order: SwizzleMerge, repack: str = "") -> Config:
    """The config of a tile, in a family."""
    return Config(
        kernel, *tile.blocks, tile.num_stages, tile.num_warps, persistent=persistent, order=order, repack=repack
    )


def with_split(config: Config, field: str, parts: int) -> Config:
    """The config whose tiles are split into that many parts by `Terms.split`, one of its fields."""
    return replace(config, split_k=parts) if field == "split_k" else replace(config, split_tail=parts)


def crossing(problem: Problem, repack: str) -> tuple[bool, bool]:
    """Whether the lines of A, and of B, as they are stored, begin anywhere in cache lines."""
    p = problem
    a_line = (p.k if p.layout[0] == "n" else p.m) * p.element_bytes
    b_line = (p.k if p.layout[1] == "t" else p.n) * p.b_element_bytes
    return "a" not in repack and a_line % CACHE_LINE > 0, "b" not in repack and b_line % CACHE_LINE > 0


def elements_resident(config: Config, gpu: Gpu) -> int:
    """Programs for which an SM has registers where elements are loaded one by one."""
    values = (config.block_m + config.block_n) * config.block_k + config.block_m * config.block_n
    most = THREAD_REGISTERS * config.num_warps * (32 if gpu.is_nvidia else 64)
    return max(1, int(REGISTERS / min(values * VALUE_REGISTERS, most)))


def elements_us(config: Config, problem: Problem, gpu: Gpu, programs: int) -> float:
    """Microseconds of so many programs that load elements one by one.

    Those that an SM runs at once wait at the same time, and load after each other. What lies beyond the matrices is not
    loaded.
    """
    p = problem
    a_step = (min(config.block_m, p.m) + min(config.block_n, p.n)) * min(config.block_k, p.k)
    a_thread = (config.block_m + config.block_n) * config.block_k / (config.num_warps * (32 if gpu.is_nvidia else 64))
    rounds, most = -(-programs // (gpu.sms * elements_resident(config, gpu))), -(-programs // gpu.sms)  # on one SM
    wait_us = rounds * (ELEMENTS_WAIT_US + a_thread * ELEMENT_US)
    return max(1, -(-p.k // (config.block_k * config.split_k))) * (wait_us + most * a_step / ELEMENT_RATE * 1e6)


def joined(times: Sequence[float], p: float) -> float:
    """The p-norm of times that overlap: their maximum for an infinite p."""
    longest = max(times)
    return longest and longest * sum([(time / longest) ** p for time in times]) ** (1 / p)


def _beyond_half(busy: int, gpu: Gpu) -> float:
    """1 where just more than half of the SMs are busy, falling to 0 where all are; 0 up to half of them.

    Two grids of half of the SMs fit beside each other. Larger ones get what the grid before them has left, whole GPCs
    and others not at all, and share what a GPC receives: 59x4352x968 takes 7.9 us in 68 tiles and 59x4096x968 6.4 in
    64, but 7.8 and 7.7 where launches run in turn (autotune/results/h200-halves.csv). Dealt tiles do not.
    """
    return 2 * (1 - busy / gpu.sms) if 2 * busy > gpu.sms else 0.0


def times(
    config: Config, tile: Tile, limits: Limits, terms: Terms, problem: Problem, gpu: Gpu
) -> Iterator[tuple[float, Config]]:
    """Estimated microseconds of a config that splits no tiles, and it; and of the same with its tiles split in parts,
    where there is room for them."""
    p = problem
    block_m, block_n = config.cta_tile
    tiles_m, tiles_n = config.tiles(p)
    tiles = tiles_m * tiles_n * p.batch * config.ctas
    a_cost, b_cost = (1 + limits.crossed * crosses for crosses in crossing(p, config.repack))
    if p.repacked(config.repack).layout[1] == "n" and block_n * p.b_element_bytes % CACHE_LINE:
        b_cost *= 1 + limits.half_lines

    programs = gpu.sms * tile.resident
    present = (min(block_m, -(-p.m // terms.rows) * terms.rows) / block_m) ** limits.absent
    flops = 2 * block_m * block_n * config.block_k * programs * present
    # Of a tile's operands, what lies beyond the matrices is not read.
    a_line, b_line = p.element_bytes * a_cost * min(block_m, p.m), p.b_element_bytes * b_cost * min(block_n, p.n)
    if config.cluster == "m":  # an SM asks for half of the shared operand, and is sent the other
        b_line *= (1 + 1 / b_cost) / 2
    if config.cluster == "n":
        a_line *= (1 + 1 / a_cost) / 2
    received = (a_line + b_line) * config.block_k * tile.resident
    aligned = (p.element_bytes * min(block_m, p.m) + p.b_element_bytes * min(block_n, p.n)) * config.block_k
    crossed_us = max(0.0, received / tile.resident - aligned) / limits.sm_bandwidth * 1e6
    multiplying = flops / (gpu.rate(p.dtype, p.precision) * (tile.share * terms.share))
    receiving = received / limits.sm_bandwidth
    step_us = joined((multiplying, receiving), limits.step_overlap) * 1e6
    steps = max(1, -(-p.k // config.block_k))
    loop_us = steps * step_us

    a_bytes = p.m * p.k * p.batch * p.element_bytes * tiles_n * a_cost
    b_bytes = p.n * p.k * p.batch * p.b_element_bytes * tiles_m * b_cost
    again_bytes = limits.again * ((tiles_n > 1) * p.operand_bytes("a") + (tiles_m > 1) * p.operand_bytes("b"))
    read_bytes = p.compulsory_bytes + again_bytes
    rounds, tail = divmod(tiles, programs)
    caution = limits.caution * terms.caution
    splits_all = terms.split == "split_k"
    launch_us = LAUNCH_US + cost.repack_seconds(p, config, gpu) * 1e6
    if p.out_alignment < 16:
        launch_us += p.m * p.n * p.batch * p.out_element_bytes / STAGED_BANDWIDTH * 1e6

    def total_us(splits: int) -> float:
        has_affinity = splits == 1 and terms.affinity is not None
        whole, split = (0, tiles) if splits > 1 and splits_all else (rounds, tail)
        parts = split * splits
        sums = 8 * parts * p.m / tiles_m * block_n if splits > 1 else 0  # written and read, of rows that are there
        compute_us = whole * (loop_us + tile.fixed_us) + math.ceil(parts / programs) * (
            loop_us / splits + tile.fixed_us
        )
        compute_us = max(compute_us, terms.loads_us)
        busy = gpu.sms if whole else min(parts, gpu.sms)
        crowded = 0.0 if has_affinity else _beyond_half(busy, gpu)
        compute_us += limits.late * crowded * steps * crossed_us / splits
        bandwidth = min(gpu.bandwidth * limits.stream * (busy / gpu.sms) ** FEWER, busy * LONE_BANDWIDTH)
        if min(tiles_m, tiles_n) == 1:
            bandwidth /= 1 + limits.late_stream * crowded
        memory_us = FIRST_US + read_bytes / bandwidth * 1e6
        at_once = splits > 1 and not whole and parts <= programs
        asked = (a_bytes + b_bytes) * (limits.merged if at_once else 1)
        l2_us = FIRST_US + (asked + sums) / limits.l2_bandwidth * 1e6
        together_us = joined((compute_us, memory_us, l2_us), limits.overlap)
        drain_us = limits.drain_us * block_m * block_n / 1e4 * busy / gpu.sms
        left = terms.affinity if has_affinity and terms.affinity and 2 * busy > gpu.sms else 1.0
        us = launch_us + together_us * caution * left + drain_us
        if splits > 1:
            us += SPLIT_US + PART_US * splits + sums / PARTIAL_BANDWIDTH * 1e6
            if splits_all:  # one program adds up all parts of its tile
                us += 4 * splits * min(block_m, p.m) * block_n / GATHER_BANDWIDTH * 1e6
        return us

    if not tiles:
        yield launch_us, config
        return
    yield total_us(1), config
    if tail and terms.split and not config.cluster:
        split = tiles if splits_all else tail
        for splits in SPLITS:
            if split * splits <= 2 * programs:
                yield total_us(splits), with_split(config, terms.split, splits)
