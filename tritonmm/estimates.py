"""How long each tile takes, for ranking what was never measured: a fit to an H200.

A product of T tiles is ceil(T / SMs) rounds. In a round a tile walks along K; a step takes as long as its products at
the tile's share of the peak rate, or as receiving its operands at the bandwidth of an SM. All rounds together take no
less than device memory, or L2, needs for what is read of it. Nothing overlaps perfectly: the three are joined by a
p-norm. A launch, copies of operands and the meeting of split tiles come on top.

Operands whose lines are no multiples of 128 bytes cost more than twice as much on their way to the SMs: each
128-byte row of a tile lies in two cache lines.

The constants are fits to one H200 (burst, 2026-11-22) by least squares of the logarithms: 2,478 times of the
hopper kernel on 84 products and 383 of the tile kernel on 144, autotune/results/h200-random-fit.csv. Configs within
30% of a product's best are off by 6% and 11% (standard deviations). What the shortest estimate of all reaches on
products that the hopper kernel's were not fitted to, `python -m tritonmm.autotune.regret
autotune/results/h200-random-all.csv` says. The skinny and the weights kernel have estimates of their own, see
`skinny.py` and `streams.py`.
"""

import math
from dataclasses import dataclass, replace

from tritonmm import cost
from tritonmm.config import Config, consumer_grid
from tritonmm.gpu import Gpu
from tritonmm.problem import Problem


@dataclass(frozen=True, slots=True)
class Kernel:
    """What limits a kernel beside its tile.

    stream: share of the bandwidth of device memory; sm_bandwidth: bytes/s that an SM receives while all do;
    l2_bandwidth: bytes/s that all SMs together ask of L2; merged: what is left of that where all tiles are split
    and their parts run at once, since programs next to each other then read the same; crossed: what a byte costs
    more whose line crosses cache lines; overlap: the p of the p-norm; drain_us: from the end of the last tiles to
    that of their stores, for 10^4 elements of a tile on every SM; caution: what the estimates are multiplied by
    that err more than others, since the shortest of many estimates is likely one that errs.
    """

    stream: float
    sm_bandwidth: float
    l2_bandwidth: float
    crossed: float
    overlap: float
    merged: float = 1.0
    drain_us: float = 0.0
    caution: float = 1.0


_BY_TMA = Kernel(
    stream=0.89, sm_bandwidth=212e9, l2_bandwidth=18.3e12, crossed=1.64, overlap=2.8, merged=0.7, drain_us=0.26
)
KERNELS = {
    "hopper": _BY_TMA,
    "persistent": _BY_TMA,
    "tile": Kernel(stream=0.55, sm_bandwidth=203e9, l2_bandwidth=21.6e12, crossed=2.5, overlap=1.7, caution=1.05),
    "sliced": Kernel(stream=0.55, sm_bandwidth=203e9, l2_bandwidth=21.6e12, crossed=0.6, overlap=2.3),
}

LAUNCH_US = 1.47
"""What a launch costs that follows another, its first loads included."""

FIRST_US = 0.54
"""From there to the first product, and from the last one to the end, where memory is the limit."""

FEWER = 0.2
"""The power with which what device memory delivers falls with the share of SMs that are busy: 9936x128x13888 takes
107 us in 104 tiles of 192 x 64, and 85 us where split tiles keep all SMs busy (h200-random60.csv in
autotune/results)."""

LONE_BANDWIDTH = 200e9
"""Bytes/s that one SM reads from device memory, where few do."""

SPLITS = (2, 3, 4, 6, 8, 12, 16, 32)
"""Parts in which a tile may be multiplied."""

SPLIT_BY = {"hopper": "split_tail", "sliced": "split_k"}
"""The kernels whose tiles are split where that is shorter, and what says so in a config."""

SPLIT_US = 1.1
"""What a launch with split tiles costs beside its work: a cooperative grid, and the meeting of the parts. This and the
next are fits to 400 times in autotune/results/h200-splits-2.csv, off by 4.5% (root mean square); those of the Hopper
kernel are meant for the sliced one too."""

PART_US = 0.04
"""The same for each part: its sums are added up after those of the part before it."""

PARTIAL_BANDWIDTH = 5e12
"""Bytes/s at which the parts of split tiles write and read their fp32 sums."""

NARROW_SHARE = {1: 0.28, 2: 0.28, 4: 0.5, 8: 0.8, 16: 1.0}
"""What is left of the tile kernel's rate where operands are aligned to so many bytes only: its loads are that narrow,
and those of less than 4 bytes are not asynchronous. For tensor cores: fp32 products are slow anyway."""

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
    Tile("hopper", (192, 256, 64), 3, 12, 0.92, 2.27),
    Tile("hopper", (256, 192, 64), 3, 8, 0.89, 2.27),
    Tile("hopper", (192, 192, 64), 4, 12, 0.93, 1.75),
    Tile("hopper", (128, 256, 64), 4, 8, 0.93, 1.57),
    Tile("hopper", (256, 128, 64), 4, 8, 0.92, 1.57),
    Tile("hopper", (128, 192, 64), 5, 8, 0.90, 1.22),
    Tile("hopper", (192, 128, 64), 5, 12, 0.92, 1.22),
    Tile("hopper", (128, 128, 64), 6, 8, 0.94, 0.86),
    Tile("hopper", (64, 256, 64), 5, 8, 0.90, 0.86),
    Tile("hopper", (192, 64, 64), 6, 12, 0.85, 0.45),
    Tile("hopper", (64, 160, 64), 7, 4, 0.79, 1.60),
    Tile("hopper", (64, 128, 64), 8, 4, 0.79, 0.51),
    Tile("hopper", (64, 128, 128), 4, 4, 0.79, 0.51),
    Tile("hopper", (128, 64, 64), 8, 4, 0.77, 0.51),
    Tile("hopper", (128, 64, 128), 4, 4, 0.65, 0.51),
    Tile("hopper", (64, 64, 64), 8, 4, 0.51, 0.34),
    Tile("hopper", (64, 64, 128), 6, 4, 0.63, 0.34),
    Tile("hopper", (64, 32, 128), 8, 4, 0.40, 0.25),
    Tile("persistent", (128, 256, 64), 3, 8, 0.85, 2.0),
    Tile("persistent", (128, 128, 64), 4, 8, 0.75, 1.2),
    Tile("persistent", (128, 64, 64), 4, 4, 0.60, 0.6),
    Tile("tile", (128, 256, 64), 3, 8, 0.9, 1.76),
    Tile("tile", (256, 128, 64), 3, 8, 0.8, 1.76),
    Tile("tile", (128, 128, 64), 4, 8, 0.71, 0.88),
    Tile("tile", (128, 128, 32), 3, 8, 0.41, 0.88),
    Tile("tile", (128, 64, 64), 4, 4, 0.47, 0.44),
    Tile("tile", (64, 128, 64), 4, 4, 0.57, 0.44),
    Tile("tile", (64, 64, 64), 4, 4, 0.28, 0.22),
    Tile("tile", (64, 64, 32), 3, 4, 0.146, 0.22),
    Tile("tile", (32, 64, 128), 4, 4, 0.124, 0.11),
    Tile("tile", (16, 64, 128), 4, 4, 0.093, 0.06),
    Tile("tile", (16, 32, 128), 5, 2, 0.047, 0.03),
    Tile("tile", (32, 32, 32), 2, 4, 0.03, 0.06),
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
    (64, 64): 0.25, (64, 128): 0.42, (128, 64): 0.40, (192, 64): 0.28, (64, 256): 0.525, (128, 128): 0.55,
    (128, 256): 0.69, (192, 128): 0.50, (256, 128): 0.68,
}  # fmt: skip
"""Of the hopper kernel's tiles where groups of K have scales: fits to what they took for five products of 1000 to 8192
rows, most within 6% (autotune/results/h200-grouped.csv). Those of 192 rows, which took up to 27% longer than the mean
of their times says, are lower. 64 x 64 is of an older study, h200-promoted.csv."""

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
    return {1: _BYTE, 2: _HALF, 8: _FP64}[p.element_bytes]


def crossing(problem: Problem, relayout: str) -> tuple[bool, bool]:
    """Whether the lines of A, and of B, as they are stored, begin anywhere in cache lines."""
    p = problem
    lines = (
        ("a", (p.k if p.layout[0] == "n" else p.m) * p.element_bytes),
        ("b", (p.k if p.layout[1] == "t" else p.n) * p.b_element_bytes),
    )
    return tuple(name not in relayout and length % CACHE_LINE > 0 for name, length in lines)


def estimates(config: Config, tile: Tile, problem: Problem, gpu: Gpu) -> list[tuple[float, int]]:
    """Estimated microseconds of a config that splits no tiles, and 1; and of the same with tiles split in other numbers
    of parts, all or those of the tail, see `SPLIT_BY`, where there is room for them."""
    p, kernel = problem, KERNELS[config.kernel]
    block_m, block_n = config.cta_tile
    tiles_m, tiles_n = config.tiles(p)
    tiles = tiles_m * tiles_n * p.batch * config.ctas
    a_cost, b_cost = (1 + kernel.crossed * crosses for crosses in crossing(p, config.relayout))

    share = tile.share
    if config.kernel == "tile" and (p.element_bytes <= 2 or p.precision != "ieee"):
        share *= NARROW_SHARE[p.relaid(config.relayout).alignment]
    programs = gpu.sms * tile.resident
    flops = 2 * block_m * block_n * config.block_k * programs
    # Of a tile's operands, what lies beyond the matrices is not read.
    a_line, b_line = p.element_bytes * a_cost * min(block_m, p.m), p.b_element_bytes * b_cost * min(block_n, p.n)
    if config.cluster == "m":  # an SM asks for half of the shared operand, and is sent the other
        b_line *= (1 + 1 / b_cost) / 2
    if config.cluster == "n":
        a_line *= (1 + 1 / a_cost) / 2
    received = (a_line + b_line) * config.block_k * tile.resident
    step_us = max(flops / (gpu.rate(p.dtype, p.precision) * share), received / kernel.sm_bandwidth) * 1e6
    loop_us = max(1, -(-p.k // config.block_k)) * step_us

    a_bytes = p.m * p.k * p.batch * p.element_bytes * tiles_n * a_cost
    b_bytes = p.n * p.k * p.batch * p.b_element_bytes * tiles_m * b_cost
    rounds, tail = divmod(tiles, programs)
    rows = block_m // consumer_grid(config)[0] if config.kernel == "hopper" else block_m
    over = p.m % BOX_ROWS
    # In boxes of 8, 16 or 32 rows, all but 7 of which are there, as `launch/hopper.py` chooses them.
    boxed = p.layout[0] == "n" and (0 < over <= 16 or (block_m <= 128 and not 16 < over <= 24))
    beyond = kernel is _BY_TMA and rows > p.m > BOX_ROWS and (config.kernel == "persistent" or not boxed)
    caution = kernel.caution * (BEYOND if beyond else 1)
    splits_all = SPLIT_BY.get(config.kernel) == "split_k"
    launch_us = LAUNCH_US + cost.relayout_seconds(p, config, gpu) * 1e6

    def total_us(splits: int) -> float:
        whole, split = (0, tiles) if splits > 1 and splits_all else (rounds, tail)
        parts = split * splits
        sums = 8 * parts * block_m * block_n if splits > 1 else 0  # written and read
        compute_us = whole * (loop_us + tile.fixed_us) + math.ceil(parts / programs) * (
            loop_us / splits + tile.fixed_us
        )
        busy = gpu.sms if whole else min(parts, gpu.sms)
        bandwidth = min(gpu.bandwidth * kernel.stream * (busy / gpu.sms) ** FEWER, busy * LONE_BANDWIDTH)
        memory_us = FIRST_US + p.compulsory_bytes / bandwidth * 1e6
        at_once = splits > 1 and not whole and parts <= programs
        asked = (a_bytes + b_bytes) * (kernel.merged if at_once else 1)
        l2_us = FIRST_US + (asked + sums) / kernel.l2_bandwidth * 1e6
        longest = max(compute_us, memory_us, l2_us)
        joined = sum((us / longest) ** kernel.overlap for us in (compute_us, memory_us, l2_us)) ** (1 / kernel.overlap)
        drain_us = kernel.drain_us * block_m * block_n / 1e4 * busy / gpu.sms
        us = launch_us + longest * joined * caution + drain_us
        if splits > 1:
            us += SPLIT_US + PART_US * splits + sums / PARTIAL_BANDWIDTH * 1e6
        return us

    if not tiles:
        return [(launch_us, 1)]
    times = [(total_us(1), 1)]
    if tail and config.kernel in SPLIT_BY and not config.cluster:
        split = tiles if splits_all else tail
        times += [(total_us(splits), splits) for splits in SPLITS if split * splits <= 2 * programs]
    return times
