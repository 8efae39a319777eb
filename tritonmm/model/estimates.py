"""How long each tile takes, for ranking what was never measured: a fit to an H200.

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
128 x 32 to h200-columns-32.csv. What the shortest estimate of all reaches, `python -m tritonmm.autotune.studies.regret` says of
each file. The skinny and the weights kernel have estimates of their own, see `skinny.py` and `streams.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tritonmm.config import Config
from tritonmm.families.hopper.rules import consumer_grid
from tritonmm.families.hopper.sm_affinity import seats
from tritonmm.gpu import Gpu
from tritonmm.model import cost
from tritonmm.problem import Problem


@dataclass(frozen=True, slots=True)
class Kernel:
    """What limits a kernel beside its tile.

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


_BY_TMA = Kernel(
    stream=0.91, again=0.08, sm_bandwidth=274e9, l2_bandwidth=20.7e12, merged=0.6, crossed=1.96, late=0.5,
    late_stream=0.12, half_lines=0.4, step_overlap=5, overlap=2.22, absent=0.6, drain_us=0.31,
)  # fmt: skip
KERNELS = {
    "hopper": _BY_TMA,
    "persistent": _BY_TMA,
    "tile": Kernel(stream=1.07, sm_bandwidth=286e9, l2_bandwidth=34e12, crossed=2.65, overlap=1.27, caution=1.15),
    "sliced": Kernel(stream=0.55, sm_bandwidth=203e9, l2_bandwidth=21.6e12, crossed=0.6, overlap=2.3),
}

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

SPLIT_BY = {"hopper": "split_tail", "sliced": "split_k"}
"""The kernels whose tiles are split where that is shorter, and what says so in a config."""

DEALT = {"": 1.0, "singles": 0.945, "pairs": 0.92}
"""What is left of a tile's time where more tiles than half of the SMs are dealt, see `seats`. Beside 231 configs that
are not dealt, 28 and 27 that are fit 0.945 and 0.885 (h200-beside-2.csv in autotune/results); but those in pairs have
96 to 256 rows, where others take less than estimated, too. Up to half of the SMs it is as if they were not dealt."""

SPLIT_US = 1.59
"""What a launch with split tiles costs beside its work: a cooperative grid, and the meeting of the parts. This and the
next are fits for the Hopper kernel, and are meant for the sliced one too."""

PART_US = 0.014
"""The same for each part: its sums are added up after those of the part before it."""

PARTIAL_BANDWIDTH = 4.5e12
"""Bytes/s at which the parts of split tiles write and read their fp32 sums."""

GATHER_BANDWIDTH = 45e9
"""Bytes/s at which the one program of the sliced kernel that arrives last reads the fp32 sums of all parts: 66 split
configs of h200-mixed420.csv and -mixed210.csv are off by 19% with it (root mean square), 36% without."""

NARROW_SHARE = {1: 1.0, 2: 1.0, 4: 0.5, 8: 0.8, 16: 1.0}
"""What is left of the tile kernel's rate where operands are aligned to so many bytes only: its loads are that narrow.
For tensor cores: fp32 products are slow anyway. Loads of less than 4 bytes have limits of their own:"""

TRANSPOSED_SHARE = 0.3
"""What is left of the tile kernel's rate in tf32 where an operand does not lie along K, as wgmma needs it: eight
products of h200-mixed420.csv."""

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

BOX_ROWS = 32
"""Rows of the boxes in which the Hopper kernel loads 65 to 127 rows of A for a consumer of 128. The persistent kernel
loads whole blocks."""

BEYOND = 1.05
"""Caution where TMA is asked for 8 rows beyond the matrix or more. Most such tiles are as fast as others; with 28 of
them 100x7168x8192, which memory limits, took 50 us in tiles of 128 x 64, and 37 with 4 (h200-splits.csv, h200-rest.csv
in autotune/results)."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile that is tried: its shape, and what it reaches.

    share: of the peak rate, by a full wave within its loop over K where nothing else limits it; fixed_us: microseconds
    a wave beside that loop; resident: programs that an SM runs at once, a wave's. Fewer take as long: what a thread
    waits for, others of its SM fill. Those of 16-bit operands are fits, see above; the sliced kernel's of fp64 are
    within 12% of five products of 1024 and 4096 (autotune/results/h200-sliced.csv); fp32's are within 5% of what whole
    tiles took for nine products of 1000 to 8192 rows (autotune/results/h200-sliced-2.csv), but for the last, which is
    for unaligned operands and errs by 36%. The others are estimates.
    """

    kernel: str
    blocks: tuple[int, int, int]
    num_stages: int
    num_warps: int
    share: float
    fixed_us: float
    resident: int = 1


_HALF = (
    Tile("hopper", (192, 256, 64), 3, 12, 0.96, 2.32),
    Tile("hopper", (256, 192, 64), 3, 8, 0.94, 2.53),
    Tile("hopper", (192, 192, 64), 4, 12, 0.98, 1.72),
    Tile("hopper", (128, 256, 64), 4, 8, 0.98, 1.48),
    Tile("hopper", (256, 128, 64), 4, 8, 0.975, 1.57),
    Tile("hopper", (128, 192, 64), 5, 8, 0.975, 1.34),
    Tile("hopper", (192, 128, 64), 5, 12, 0.965, 1.01),
    Tile("hopper", (128, 128, 64), 6, 8, 0.98, 0.82),
    Tile("hopper", (64, 256, 64), 5, 8, 0.985, 0.95),
    Tile("hopper", (192, 64, 64), 6, 12, 0.79, 0.60),
    Tile("hopper", (192, 96, 64), 5, 12, 0.86, 1.0),
    Tile("hopper", (128, 96, 64), 7, 8, 0.88, 0.90),
    Tile("hopper", (64, 160, 64), 7, 4, 0.80, 1.02),
    Tile("hopper", (64, 128, 64), 8, 4, 0.88, 0.57),
    Tile("hopper", (64, 128, 128), 4, 4, 0.83, 0.69),
    Tile("hopper", (64, 96, 64), 8, 4, 0.70, 0.60),
    Tile("hopper", (128, 64, 64), 8, 4, 0.865, 0.50),
    Tile("hopper", (128, 64, 128), 4, 4, 0.715, 0.53),
    Tile("hopper", (64, 64, 64), 8, 4, 0.56, 0.35),
    Tile("hopper", (64, 64, 128), 6, 4, 0.695, 0.39),
    Tile("hopper", (128, 32, 64), 11, 4, 0.56, 0.50),
    Tile("hopper", (64, 32, 128), 8, 4, 0.415, 0.31),
    Tile("persistent", (128, 256, 64), 3, 8, 0.85, 2.0),
    Tile("persistent", (128, 128, 64), 4, 8, 0.75, 1.2),
    Tile("persistent", (128, 64, 64), 4, 4, 0.60, 0.6),
    Tile("tile", (128, 256, 64), 3, 8, 1.03, 1.91),
    Tile("tile", (256, 128, 64), 3, 8, 0.83, 2.00),
    Tile("tile", (128, 128, 64), 4, 8, 0.86, 1.18),
    Tile("tile", (128, 128, 32), 3, 8, 0.39, 0.66),
    Tile("tile", (128, 64, 64), 4, 4, 0.67, 0.66),
    Tile("tile", (64, 128, 64), 4, 4, 0.74, 0.62),
    Tile("tile", (64, 64, 64), 4, 4, 0.46, 0.29),
    Tile("tile", (64, 64, 32), 3, 4, 0.26, 0.18),
    Tile("tile", (32, 64, 128), 4, 4, 0.174, 0.21),
    Tile("tile", (16, 64, 128), 4, 4, 0.109, 0.07),
    Tile("tile", (16, 32, 128), 5, 2, 0.063, 0.03),
    Tile("tile", (32, 32, 32), 2, 4, 0.089, 0.06),
)
_FP32 = (
    Tile("sliced", (64, 64, 16), 4, 2, 0.72, 1.0, resident=4),
    Tile("sliced", (128, 128, 32), 2, 8, 0.725, 1.0),
    Tile("sliced", (64, 64, 16), 3, 4, 0.55, 0.5, resident=2),
    Tile("tile", (128, 128, 16), 4, 8, 0.28, 1.0),
    Tile("tile", (128, 64, 16), 4, 8, 0.19, 0.5),
    Tile("tile", (64, 64, 16), 4, 4, 0.15, 0.5),
    Tile("tile", (32, 64, 32), 3, 4, 0.10, 0.5),
    Tile("tile", (32, 32, 32), 3, 4, 0.06, 0.5),
    Tile("tile", (16, 32, 16), 4, 2, 0.035, 0.5),
)


def _of_depth(block_k: int, share: float) -> tuple[Tile, ...]:
    """The hopper kernel's tiles for operands of another size: as many bytes of K, and so as long, in a step."""
    tiles = {tile.blocks[:2]: tile for tile in reversed(_HALF) if tile.kernel == "hopper"}
    return tuple(replace(t, blocks=(*shape, block_k), share=t.share * share) for shape, t in tiles.items())


_BYTE = (
    *_of_depth(128, 0.9),
    Tile("tile", (128, 128, 128), 3, 8, 0.50, 1.0),
    Tile("tile", (128, 128, 64), 4, 8, 0.45, 1.0),
    Tile("tile", (128, 64, 64), 4, 8, 0.35, 0.5),
    Tile("tile", (64, 128, 128), 4, 4, 0.40, 0.5),
    Tile("tile", (64, 64, 128), 4, 4, 0.28, 0.5),
    Tile("tile", (64, 64, 64), 4, 4, 0.25, 0.5),
    Tile("tile", (32, 64, 128), 4, 4, 0.15, 0.5),
    Tile("tile", (32, 64, 64), 4, 4, 0.13, 0.5),
    Tile("tile", (16, 64, 64), 4, 4, 0.08, 0.5),
    Tile("tile", (64, 64, 32), 3, 4, 0.20, 0.5),
    Tile("tile", (32, 32, 32), 2, 4, 0.04, 0.5),
)
_GROUPED_SHARES = {
    (64, 32): 0.24, (64, 64): 0.36, (64, 128): 0.55, (128, 64): 0.53, (192, 64): 0.55, (64, 256): 0.74,
    (128, 128): 0.73, (128, 256): 0.81, (192, 128): 0.82, (256, 128): 0.79,
}  # fmt: skip
"""Of the hopper kernel's tiles where groups of K have scales: fits to what they took for eight products of 300 to 8192
rows with Triton 3.6 and 3.9, nine of ten within 10% (autotune/results/h200-grouped-triton-3.6.0.csv and -3.9.0.csv).
Since consumers take turns, see `kernels/turns.py`, what is chosen for the suite "grouped" reaches 99.6% of the best
with 3.6 and 99.9% with 3.9, 97 and 99% at worst (h200-grouped-2-triton-3.6.0.csv and -3.9.0.csv). With 192 x 128 at
0.80 it was 99.7% and 99.5%: 8192^3 takes 804 and 781 us in such tiles, and 796 and 817 in 128 x 256."""

_GROUPED = tuple(
    replace(t, share=_GROUPED_SHARES.get(t.blocks[:2], t.share)) if t.kernel == "hopper" else t for t in _BYTE
)
_TF32 = (
    *_of_depth(32, 0.95),
    Tile("tile", (128, 128, 32), 4, 8, 0.60, 1.0),
    Tile("tile", (64, 128, 32), 4, 4, 0.40, 0.5),
    Tile("tile", (64, 64, 32), 4, 4, 0.30, 0.5),
)
_THREE_PRODUCTS = (
    Tile("tile", (128, 128, 32), 3, 8, 0.60, 1.0),
    Tile("tile", (64, 128, 32), 3, 8, 0.45, 0.5),
    Tile("tile", (64, 64, 32), 3, 4, 0.40, 0.5),
    Tile("tile", (64, 64, 32), 3, 8, 0.35, 0.5),
    Tile("tile", (32, 32, 32), 3, 4, 0.12, 0.5),
)
_FP64 = (
    Tile("sliced", (128, 64, 32), 4, 8, 0.90, 1.0),
    Tile("sliced", (64, 64, 16), 3, 4, 0.85, 0.5),
    Tile("sliced", (64, 32, 16), 4, 4, 0.85, 0.5),
    Tile("tile", (128, 64, 16), 3, 8, 0.75, 0.5),
    Tile("tile", (64, 64, 16), 3, 4, 0.70, 0.5),
    Tile("tile", (32, 64, 16), 3, 4, 0.45, 0.5),
    Tile("tile", (32, 32, 16), 3, 4, 0.30, 0.5),
    Tile("tile", (16, 32, 16), 3, 2, 0.15, 0.5),
)
_WEIGHTS = (  # of another dtype than what multiplies them
    Tile("tile", (128, 128, 64), 3, 8, 0.45, 1.0),
    Tile("tile", (64, 128, 64), 4, 8, 0.35, 0.5),
    Tile("tile", (64, 64, 64), 4, 4, 0.28, 0.5),
    Tile("tile", (32, 64, 128), 4, 4, 0.20, 0.5),
    Tile("tile", (16, 64, 128), 4, 4, 0.12, 0.5),
    Tile("tile", (64, 64, 32), 3, 4, 0.20, 0.5),
    Tile("tile", (16, 32, 32), 4, 2, 0.06, 0.5),
    Tile("tile", (16, 32, 16), 4, 2, 0.04, 0.5),
)


def tiles_of(problem: Problem) -> tuple[Tile, ...]:
    """The tiles that are tried for operands of those dtypes."""
    p = problem
    if p.element_bytes != p.b_element_bytes:
        return _WEIGHTS
    if p.dtype == "fp32":
        return {"ieee": _FP32, "tf32": _TF32 + _FP32}.get(p.precision, _THREE_PRODUCTS)
    if p.grouped:
        return _GROUPED
    tiles = {1: _BYTE, 2: _HALF, 8: _FP64}[p.element_bytes]
    return tiles if p.alignment >= 4 else tuple(t for t in tiles if not _spills(t, p.layout))


def _spills(tile: Tile, layout: str) -> bool:
    """Whether the tile kernel has no registers for the addresses where each element is loaded by itself: 57x10385x5735
    takes 1568 us in tiles of 128 x 64 x 64 then, and 179 in 64 x 64 x 64 (autotune/results/h200-random66.csv)."""
    block_m, block_n, block_k = tile.blocks
    threads = 32 * tile.num_warps
    elements, sums = (block_m + block_n) * block_k, block_m * block_n
    too_many = elements + sums > MOST_VALUES * threads or (layout == "nt" and elements > MOST_ELEMENTS * threads)
    return tile.kernel == "tile" and too_many


def crossing(problem: Problem, relayout: str) -> tuple[bool, bool]:
    """Whether the lines of A, and of B, as they are stored, begin anywhere in cache lines."""
    p = problem
    a_line = (p.k if p.layout[0] == "n" else p.m) * p.element_bytes
    b_line = (p.k if p.layout[1] == "t" else p.n) * p.b_element_bytes
    return "a" not in relayout and a_line % CACHE_LINE > 0, "b" not in relayout and b_line % CACHE_LINE > 0


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
    64, but 7.8 and 7.7 where launches run in turn (autotune/results/h200-halves.csv). Dealt tiles, see `seats`, do not.
    """
    return 2 * (1 - busy / gpu.sms) if 2 * busy > gpu.sms else 0.0


def estimates(config: Config, tile: Tile, problem: Problem, gpu: Gpu) -> list[tuple[float, int]]:
    """Estimated microseconds of a config that splits no tiles, and 1; and of the same with tiles split in other numbers
    of parts, all or those of the tail, see `SPLIT_BY`, where there is room for them."""
    p, kernel = problem, KERNELS[config.kernel]
    block_m, block_n = config.cta_tile
    tiles_m, tiles_n = config.tiles(p)
    tiles = tiles_m * tiles_n * p.batch * config.ctas
    a_cost, b_cost = (1 + kernel.crossed * crosses for crosses in crossing(p, config.relayout))
    if p.relaid(config.relayout).layout[1] == "n" and block_n * p.b_element_bytes % CACHE_LINE:
        b_cost *= 1 + kernel.half_lines

    share = tile.share
    if config.kernel == "tile" and (p.element_bytes <= 2 or p.precision != "ieee"):
        share *= NARROW_SHARE[p.relaid(config.relayout).alignment]
        share *= TRANSPOSED_SHARE if p.precision == "tf32" and p.layout != "nt" else 1
    programs = gpu.sms * tile.resident
    rows = block_m // consumer_grid(config)[0] if config.kernel == "hopper" else block_m
    present = (min(block_m, -(-p.m // rows) * rows) / block_m) ** kernel.absent
    flops = 2 * block_m * block_n * config.block_k * programs * present
    # Of a tile's operands, what lies beyond the matrices is not read.
    a_line, b_line = p.element_bytes * a_cost * min(block_m, p.m), p.b_element_bytes * b_cost * min(block_n, p.n)
    if config.cluster == "m":  # an SM asks for half of the shared operand, and is sent the other
        b_line *= (1 + 1 / b_cost) / 2
    if config.cluster == "n":
        a_line *= (1 + 1 / a_cost) / 2
    received = (a_line + b_line) * config.block_k * tile.resident
    aligned = (p.element_bytes * min(block_m, p.m) + p.b_element_bytes * min(block_n, p.n)) * config.block_k
    crossed_us = max(0.0, received / tile.resident - aligned) / kernel.sm_bandwidth * 1e6
    multiplying, receiving = flops / (gpu.rate(p.dtype, p.precision) * share), received / kernel.sm_bandwidth
    step_us = joined((multiplying, receiving), kernel.step_overlap) * 1e6
    steps = max(1, -(-p.k // config.block_k))
    loop_us = steps * step_us

    a_bytes = p.m * p.k * p.batch * p.element_bytes * tiles_n * a_cost
    b_bytes = p.n * p.k * p.batch * p.b_element_bytes * tiles_m * b_cost
    again_bytes = kernel.again * ((tiles_n > 1) * p.operand_bytes("a") + (tiles_m > 1) * p.operand_bytes("b"))
    read_bytes = p.compulsory_bytes + again_bytes
    rounds, tail = divmod(tiles, programs)
    over = p.m % BOX_ROWS
    # In boxes of 8, 16 or 32 rows, all but 7 of which are there, as `launch/hopper.py` chooses them.
    boxed = p.layout[0] == "n" and (0 < over <= 16 or (block_m <= 128 and not 16 < over <= 24))
    beyond = kernel is _BY_TMA and rows > p.m > BOX_ROWS and (config.kernel == "persistent" or not boxed)
    caution = kernel.caution * (BEYOND if beyond else 1)
    splits_all = SPLIT_BY.get(config.kernel) == "split_k"
    launch_us = LAUNCH_US + cost.relayout_seconds(p, config, gpu) * 1e6
    if p.out_alignment < 16:
        launch_us += p.m * p.n * p.batch * p.out_element_bytes / STAGED_BANDWIDTH * 1e6

    loads_us = elements_us(config, p, gpu, tiles) if config.kernel == "tile" and p.alignment < 4 else 0.0

    def total_us(splits: int) -> float:
        dealt = seats(config, p, gpu) if splits == 1 else ""
        whole, split = (0, tiles) if splits > 1 and splits_all else (rounds, tail)
        parts = split * splits
        sums = 8 * parts * p.m / tiles_m * block_n if splits > 1 else 0  # written and read, of rows that are there
        compute_us = whole * (loop_us + tile.fixed_us) + math.ceil(parts / programs) * (
            loop_us / splits + tile.fixed_us
        )
        compute_us = max(compute_us, loads_us)
        busy = gpu.sms if whole else min(parts, gpu.sms)
        crowded = 0.0 if dealt else _beyond_half(busy, gpu)
        compute_us += kernel.late * crowded * steps * crossed_us / splits
        bandwidth = min(gpu.bandwidth * kernel.stream * (busy / gpu.sms) ** FEWER, busy * LONE_BANDWIDTH)
        if min(tiles_m, tiles_n) == 1:
            bandwidth /= 1 + kernel.late_stream * crowded
        memory_us = FIRST_US + read_bytes / bandwidth * 1e6
        at_once = splits > 1 and not whole and parts <= programs
        asked = (a_bytes + b_bytes) * (kernel.merged if at_once else 1)
        l2_us = FIRST_US + (asked + sums) / kernel.l2_bandwidth * 1e6
        together_us = joined((compute_us, memory_us, l2_us), kernel.overlap)
        drain_us = kernel.drain_us * block_m * block_n / 1e4 * busy / gpu.sms
        left = DEALT[dealt] if 2 * busy > gpu.sms else 1.0
        us = launch_us + together_us * caution * left + drain_us
        if splits > 1:
            us += SPLIT_US + PART_US * splits + sums / PARTIAL_BANDWIDTH * 1e6
            if splits_all:  # one program adds up all parts of its tile
                us += 4 * splits * min(block_m, p.m) * block_n / GATHER_BANDWIDTH * 1e6
        return us

    if not tiles:
        return [(launch_us, 1)]
    times = [(total_us(1), 1)]
    if tail and config.kernel in SPLIT_BY and not config.cluster:
        split = tiles if splits_all else tail
        times += [(total_us(splits), splits) for splits in SPLITS if split * splits <= 2 * programs]
    return times
