"""Problem -> Config: what was measured to be fastest, or else the legal config with the shortest estimated time."""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tritonmm import cost, skinny, tuned
from tritonmm import gpu as gpus
from tritonmm.config import Config, step_bytes
from tritonmm.gpu import Gpu
from tritonmm.orders import SwizzleMerge
from tritonmm.problem import KINDS, Problem
from tritonmm.skinny import LAUNCH_US


@dataclass(frozen=True, slots=True)
class _Tile:
    """A tile that is tried: its shape, and what it reaches.

    share: of the peak rate, by a full wave within its loop over K; fixed_us: microseconds a wave beside
    that loop. The hopper kernel's, but for 64x64, are fits to an H200 (burst, 2026-11-21): 31 products,
    autotune/results/h200-hopper-tiles.csv, and for the larger tiles 17, h200-hopper-strips.csv. Their mean
    error is 2 to 3%, 6 to 7% for 64x128 and 128x64. The others are estimates.
    """

    kernel: str
    blocks: tuple[int, int, int]
    num_stages: int
    num_warps: int
    share: float
    fixed_us: float


_HALF = (
    _Tile("hopper", (192, 256, 64), 3, 12, 0.89, 3.70),
    _Tile("hopper", (256, 192, 64), 3, 8, 0.88, 3.40),
    _Tile("hopper", (192, 192, 64), 4, 12, 0.87, 3.20),
    _Tile("hopper", (128, 256, 64), 4, 8, 0.87, 2.40),
    _Tile("hopper", (256, 128, 64), 4, 8, 0.85, 2.40),
    _Tile("hopper", (128, 192, 64), 5, 8, 0.85, 1.80),
    _Tile("hopper", (192, 128, 64), 5, 12, 0.85, 1.75),
    _Tile("hopper", (128, 128, 64), 6, 8, 0.79, 0.85),
    _Tile("hopper", (64, 256, 64), 5, 8, 0.78, 1.10),
    _Tile("hopper", (64, 128, 64), 8, 8, 0.65, 0.55),
    _Tile("hopper", (128, 64, 64), 8, 8, 0.52, 0.50),
    _Tile("hopper", (64, 64, 64), 8, 4, 0.40, 0.25),
    _Tile("persistent", (128, 256, 64), 3, 8, 0.80, 2.5),
    _Tile("persistent", (128, 128, 64), 4, 8, 0.70, 1.0),
    _Tile("persistent", (128, 64, 64), 4, 4, 0.50, 0.5),
    _Tile("tile", (128, 256, 64), 3, 8, 0.77, 2.5),
    _Tile("tile", (256, 128, 64), 3, 8, 0.76, 2.5),
    _Tile("tile", (128, 128, 64), 4, 8, 0.62, 1.0),
    _Tile("tile", (128, 128, 32), 3, 8, 0.50, 1.0),
    _Tile("tile", (128, 64, 64), 4, 4, 0.45, 0.5),
    _Tile("tile", (64, 128, 64), 4, 4, 0.45, 0.5),
    _Tile("tile", (64, 64, 64), 4, 4, 0.32, 0.5),
    _Tile("tile", (64, 64, 32), 3, 4, 0.28, 0.5),
    _Tile("tile", (32, 64, 128), 4, 4, 0.20, 0.5),
    _Tile("tile", (16, 64, 128), 4, 4, 0.12, 0.5),
    _Tile("tile", (16, 32, 128), 5, 2, 0.07, 0.5),
    _Tile("tile", (32, 32, 32), 2, 4, 0.05, 0.5),
)
_FP32 = (
    _Tile("tile", (128, 128, 16), 4, 8, 0.55, 1.0),
    _Tile("tile", (128, 64, 16), 4, 8, 0.45, 0.5),
    _Tile("tile", (64, 64, 16), 4, 4, 0.35, 0.5),
    _Tile("tile", (32, 64, 32), 3, 4, 0.20, 0.5),
    _Tile("tile", (32, 32, 32), 3, 4, 0.12, 0.5),
    _Tile("tile", (16, 32, 16), 4, 2, 0.07, 0.5),
)


def _of_depth(block_k: int, share: float) -> tuple[_Tile, ...]:
    """The hopper kernel's tiles for operands of another size: as many bytes of K, and so as long, in a step."""
    tiles = (tile for tile in _HALF if tile.kernel == "hopper")
    return tuple(replace(t, blocks=(*t.blocks[:2], block_k), share=t.share * share) for t in tiles)


# All shares of the following are estimates.
_BYTE = (
    *_of_depth(128, 0.9),
    _Tile("tile", (128, 128, 128), 3, 8, 0.50, 1.0),
    _Tile("tile", (128, 128, 64), 4, 8, 0.45, 1.0),
    _Tile("tile", (128, 64, 64), 4, 8, 0.35, 0.5),
    _Tile("tile", (64, 128, 128), 4, 4, 0.40, 0.5),
    _Tile("tile", (64, 64, 128), 4, 4, 0.28, 0.5),
    _Tile("tile", (64, 64, 64), 4, 4, 0.25, 0.5),
    _Tile("tile", (32, 64, 128), 4, 4, 0.15, 0.5),
    _Tile("tile", (32, 64, 64), 4, 4, 0.13, 0.5),
    _Tile("tile", (16, 64, 64), 4, 4, 0.08, 0.5),
    _Tile("tile", (64, 64, 32), 3, 4, 0.20, 0.5),
    _Tile("tile", (32, 32, 32), 2, 4, 0.04, 0.5),
)
_TF32 = (
    *_of_depth(32, 0.95),
    _Tile("tile", (128, 128, 32), 4, 8, 0.60, 1.0),
    _Tile("tile", (64, 128, 32), 4, 4, 0.40, 0.5),
    _Tile("tile", (64, 64, 32), 4, 4, 0.30, 0.5),
)
_THREE_PRODUCTS = (
    _Tile("tile", (128, 128, 32), 3, 8, 0.60, 1.0),
    _Tile("tile", (64, 128, 32), 3, 8, 0.45, 0.5),
    _Tile("tile", (64, 64, 32), 3, 4, 0.40, 0.5),
    _Tile("tile", (64, 64, 32), 3, 8, 0.35, 0.5),
    _Tile("tile", (32, 32, 32), 3, 4, 0.12, 0.5),
)
_FP64 = (
    _Tile("tile", (128, 64, 16), 3, 8, 0.75, 0.5),
    _Tile("tile", (64, 64, 16), 3, 4, 0.70, 0.5),
    _Tile("tile", (32, 64, 16), 3, 4, 0.45, 0.5),
    _Tile("tile", (32, 32, 16), 3, 4, 0.30, 0.5),
    _Tile("tile", (16, 32, 16), 3, 2, 0.15, 0.5),
)
_WEIGHTS = (  # of another dtype than what multiplies them
    _Tile("tile", (128, 128, 64), 3, 8, 0.45, 1.0),
    _Tile("tile", (64, 128, 64), 4, 8, 0.35, 0.5),
    _Tile("tile", (64, 64, 64), 4, 4, 0.28, 0.5),
    _Tile("tile", (32, 64, 128), 4, 4, 0.20, 0.5),
    _Tile("tile", (16, 64, 128), 4, 4, 0.12, 0.5),
    _Tile("tile", (64, 64, 32), 3, 4, 0.20, 0.5),
    _Tile("tile", (16, 32, 32), 4, 2, 0.06, 0.5),
    _Tile("tile", (16, 32, 16), 4, 2, 0.04, 0.5),
)


def _tiles(problem: Problem) -> tuple[_Tile, ...]:
    """The tiles that are tried for operands of those dtypes."""
    p = problem
    if p.element_bytes != p.b_element_bytes:
        return _WEIGHTS
    if p.dtype == "fp32":
        return {"ieee": _FP32, "tf32": _TF32 + _FP32}.get(p.precision, _THREE_PRODUCTS)
    return {1: _BYTE, 2: _HALF, 8: _FP64}[p.element_bytes]


FIRST_US = 2.5
"""From the start of a launch to its first product, and from its last one to its end, where memory is the limit."""

STREAM_SHARE = {"hopper": 0.8, "persistent": 0.8, "tile": 0.55}
"""Of the bandwidth of device memory, what a kernel reaches that waits for nothing else (H200, 2026-11-21)."""

SM_BANDWIDTH = 111e9
"""Bytes/s that an SM receives while all do (H200, 2026-11-21)."""

SPLIT_US = 3.8
"""What a launch with split tiles costs beside its work: a cooperative grid, and the meeting of the parts."""

SPLITS = (2, 3, 4, 6, 8, 12, 16, 32)
"""Parts in which a tile may be multiplied."""

PARTIAL_BANDWIDTH = 6e12
"""Bytes/s at which the parts of split tiles write and read their fp32 sums (H200, 2026-11-21)."""

NARROW_SHARE = {1: 0.25, 2: 0.25, 4: 0.5, 8: 0.8, 16: 1.0}
"""What is left of the tile kernel's rate where operands are aligned to so many bytes only: its loads are that narrow,
and those of less than 4 bytes are not asynchronous. Estimates, and for tensor cores: fp32 products are slow anyway."""


AGREES = 1.05
"""How much longer than the shortest of all the estimate of a neighbour's config may be.

Of 123 pairs of neighbours in autotune/results (h200-skinny, h200-hopper-strips, h200-hopper-tiles) it lets 9 winners of
one replace the estimates' choice for the other: skinny ones gain 1.3% in the mean, hopper ones, to which the estimates
were fitted, lose 0.1%, none more than 4%. With 1.15 hopper ones lose 2% in the mean and 13% at worst.
"""


class Choice(NamedTuple):
    """A config for a problem.

    us: the microseconds it takes, measured if `is_measured` and estimated if not; origin: why it is this one.
    """

    us: float
    config: Config
    origin: str
    is_measured: bool = False


def select(m: int, n: int, k: int, *, dtype: str = "bf16", layout: str = "nn", gpu: Gpu | str | None = None) -> Config:
    """The config that `tritonmm.matmul` would use for an m x k by k x n product.

    dtype: a name of `problem.KINDS`, such as "bf16" or "tf32"; layout: "nn", "nt", "tn" or "tt"; gpu: a `Gpu`, a name
    that `gpu.spec` knows, or None for this machine's (the H200 where there is none). Deterministic, given the tuned
    tables.
    Raises ValueError for unknown names or negative sizes.
    """
    if not isinstance(gpu, Gpu):
        gpu = gpus.default() if gpu is None else gpus.spec(gpu)
    if dtype not in KINDS:
        raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join(KINDS)}")
    return choose(Problem.dense(m, n, k, layout=layout, **KINDS[dtype]), gpu)


def choose(problem: Problem, gpu: Gpu, kernel: str = "") -> Config:
    """The config of `best`."""
    return best(problem, gpu, kernel).config


def best(problem: Problem, gpu: Gpu, kernel: str = "") -> Choice:
    """The legal config, of any kernel family or of the one that is named, that should be fastest.

    That is the tuned tables' for this problem; where they have none, a neighbour's that the estimates do not speak
    against; and else the one with the shortest estimate. Raises ValueError where no config of that family is legal.
    """
    return _remembered(tuned.tables(gpu))(problem, gpu, kernel)


@functools.lru_cache(maxsize=4)
def _remembered(tables: tuned.Tables):
    """`best_by` of those tables, which are forgotten with its answers soon after others have taken their place."""
    return functools.lru_cache(maxsize=4096)(functools.partial(best_by, tables=tables))


def best_by(problem: Problem, gpu: Gpu, kernel: str, tables: tuned.Tables) -> Choice:
    """`best` with other tables than this machine's."""
    for row in tables.exact(problem):
        if kernel in ("", row.config.kernel) and row.config.fits(problem, gpu):
            return Choice(row.us, row.config, f"measured to be fastest on {row.date} with Triton {row.triton}", True)
    shortest = estimated(problem, gpu, kernel)
    for row in tables.near(problem):
        if kernel in ("", row.config.kernel):
            us, config = min(_moved(row, problem, gpu), key=lambda pair: pair[0], default=(math.inf, None))
            if us <= shortest.us * AGREES:
                above = f"its estimate is {us / shortest.us - 1:.1%} above the shortest"
                return Choice(us, config, f"measured to be fastest for {row.problem} nearby, and {above}")
    return shortest


def estimated(problem: Problem, gpu: Gpu, kernel: str = "") -> Choice:
    """`best` without tables: the config with the shortest estimate."""
    least, found, reason = math.inf, None, f"no tile of kernel {kernel!r}"
    for config, times in _candidates(problem, gpu, kernel):
        shorter = [pair for pair in times if pair[0] < least]  # first, since to see what is legal takes longer
        if shorter:
            fit = config.fits(problem, gpu)
            reason = fit.reason or reason
            for us, split in _legal(config, shorter, problem, gpu) if fit else ():
                if us < least:
                    least, found = us, split
    if found is None:
        raise ValueError(f"no config for {problem} on {gpu.name}: {reason}")
    return Choice(least, found, "the shortest estimate of all legal configs")


def timed(problem: Problem, gpu: Gpu, kernel: str = "") -> dict[Config, float]:
    """All legal configs that are estimated and their microseconds, the shortest estimate first."""
    found = []
    for config, times in _candidates(problem, gpu, kernel):
        if config.fits(problem, gpu):
            found += _legal(config, times, problem, gpu)
    return {config: us for us, config in sorted(found, key=lambda pair: pair[0])}


def _legal(
    config: Config, times: list[tuple[float, int]], problem: Problem, gpu: Gpu
) -> Iterator[tuple[float, Config]]:
    """Those of `times` whose split_tail is legal, where the config without one is."""
    for us, splits in times:
        split = replace(config, split_tail=splits) if splits > 1 else config
        if splits == 1 or split.fits(problem, gpu):
            yield us, split


def _candidates(problem: Problem, gpu: Gpu, kernel: str) -> Iterator[tuple[Config, list[tuple[float, int]]]]:
    """Configs that are worth it, be they legal or not, each with its estimated microseconds by its split_tail."""
    if kernel == "skinny" or (not kernel and _is_skinny(problem)):
        for us, config in skinny.timed(problem, gpu):
            yield config, [(us, 1)]
    for tile in _tiles(problem):
        if kernel in ("", tile.kernel):
            factor = _factor(problem, gpu, *tile.blocks[:2])
            for relayout in ("", problem.unaligned) if problem.unaligned else ("",):
                config = _config(tile, factor, relayout)
                yield config, _estimates(config, tile, problem, gpu)


def _moved(row: tuned.Row, problem: Problem, gpu: Gpu) -> Iterator[tuple[float, Config]]:
    """What was tuned for one problem as it is for another nearby, where it is legal and has an estimate, and that.

    The order's factor and what splits K follow the number of tiles.
    """
    config = row.config
    tiles_m, tiles_n = config.tiles(problem)
    if config.kernel == "skinny":
        then_m, then_n = config.tiles(row.problem)
        programs = then_m * then_n * row.problem.batch * config.split_k
        steps = -(-problem.k // config.block_k)
        splits = max(1, min(round(programs / (tiles_m * tiles_n * problem.batch)), steps))
        config = replace(config, split_k=splits)
        if config.fits(problem, gpu):
            yield skinny.estimate_us(config, problem, gpu), config
        return
    blocks = *config.cta_tile, config.block_k
    tile = next((t for t in _tiles(problem) if (t.kernel, t.blocks) == (config.kernel, blocks)), None)
    if isinstance(config.order, SwizzleMerge):
        config = replace(config, order=SwizzleMerge(_factor(problem, gpu, config.block_m, config.block_n)))
    config = replace(config, split_tail=1)
    if tile and config.split_k == 1 and config.fits(problem, gpu):
        yield from _legal(config, _estimates(config, tile, problem, gpu), problem, gpu)


def _is_skinny(problem: Problem) -> bool:
    """Whether the skinny kernel is worth an estimate: the output has few rows, or few columns, and is long."""
    if problem.sum_dtype != "fp32" or problem.element_bytes == 1:
        return False
    return problem.k > 0 and min(problem.m, problem.n) <= 64 and max(problem.m, problem.n) >= 512


@functools.lru_cache(maxsize=4096)
def _config(tile: _Tile, factor: int, relayout: str) -> Config:
    block_m, block_n, block_k = tile.blocks
    return Config(
        kernel=tile.kernel,
        block_m=block_m,
        block_n=block_n,
        block_k=block_k,
        num_stages=tile.num_stages,
        num_warps=tile.num_warps,
        persistent=tile.kernel != "tile",
        order=SwizzleMerge(factor),
        relayout=relayout,
    )


def _factor(problem: Problem, gpu: Gpu, block_m: int, block_n: int) -> int:
    # A wave of `sms` tiles, f tall and sms / f wide, reads f * block_m rows of A and sms / f * block_n
    # columns of B. Their sum is least where both are equal.
    factor = max(1, round(math.sqrt(gpu.sms * block_n / block_m)))
    return min(factor, max(1, -(-problem.m // block_m)))


def _estimates(config: Config, tile: _Tile, problem: Problem, gpu: Gpu) -> list[tuple[float, int]]:
    """Estimated microseconds of a config that splits no tiles, and 1; and of the same with other values of split_tail,
    where there is a tail that may be split."""
    block_m, block_n = config.cta_tile
    element_bytes = problem.element_bytes
    flops = 2 * block_m * block_n * config.block_k * gpu.sms
    share = tile.share
    if config.kernel == "tile" and (element_bytes <= 2 or problem.precision != "ieee"):
        share *= NARROW_SHARE[problem.relaid(config.relayout).alignment]
    rate = gpu.rate(problem.dtype, problem.precision) * share
    step_us = max(flops / rate, step_bytes(config, problem) / SM_BANDWIDTH) * 1e6
    loop_us = max(1, -(-problem.k // config.block_k)) * step_us
    tiles_m, tiles_n = config.tiles(problem)
    rounds, tail = divmod(tiles_m * tiles_n * problem.batch * config.ctas, gpu.sms)
    rounds_us = rounds * (loop_us + tile.fixed_us)
    memory_us = FIRST_US + problem.compulsory_bytes / (gpu.bandwidth * STREAM_SHARE[config.kernel]) * 1e6
    launch_us = LAUNCH_US + cost.relayout_seconds(problem, config, gpu) * 1e6
    us = rounds_us + math.ceil(tail / gpu.sms) * (loop_us + tile.fixed_us)
    times = [(launch_us + math.hypot(us, memory_us), 1)]  # both at once, but not perfectly
    if tail and config.kernel == "hopper" and not config.cluster:
        for splits in SPLITS:
            parts = tail * splits
            if parts > 2 * gpu.sms:
                break
            us = rounds_us + math.ceil(parts / gpu.sms) * (loop_us / splits + tile.fixed_us)
            split_us = SPLIT_US + 8 * parts * block_m * block_n / PARTIAL_BANDWIDTH * 1e6  # sums, written and read
            times.append((launch_us + math.hypot(us, memory_us) + split_us, splits))
    return times
