"""Problem -> Config: the legal config with the shortest estimated time, in the order that suits its waves."""

import functools
import math
from dataclasses import dataclass, replace

from tritonmm import cost, skinny
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

    def config(self, problem: Problem, gpu: Gpu) -> Config:
        block_m, block_n, block_k = self.blocks
        return Config(
            kernel=self.kernel,
            block_m=block_m,
            block_n=block_n,
            block_k=block_k,
            num_stages=self.num_stages,
            num_warps=self.num_warps,
            persistent=self.kernel != "tile",
            order=SwizzleMerge(_factor(problem, gpu, block_m, block_n)),
        )


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

PARTIAL_BANDWIDTH = 6e12
"""Bytes/s at which the parts of split tiles write and read their fp32 sums (H200, 2026-11-21)."""

NARROW_SHARE = {1: 0.25, 2: 0.25, 4: 0.5, 8: 0.8, 16: 1.0}
"""What is left of the tile kernel's rate where operands are aligned to so many bytes only: its loads are that narrow,
and those of less than 4 bytes are not asynchronous. Estimates, and for tensor cores: fp32 products are slow anyway."""


def select(m: int, n: int, k: int, *, dtype: str = "bf16", layout: str = "nn", gpu: Gpu | str | None = None) -> Config:
    """The config that `tritonmm.matmul` would use for an m x k by k x n product.

    dtype: a name of `problem.KINDS`, such as "bf16" or "tf32"; layout: "nn", "nt", "tn" or "tt"; gpu: a
    `Gpu`, a name that `gpu.spec` knows, or None for this machine's (the H200 where there is none). Deterministic.
    Raises ValueError for unknown names or negative sizes.
    """
    if not isinstance(gpu, Gpu):
        gpu = gpus.default() if gpu is None else gpus.spec(gpu)
    if dtype not in KINDS:
        raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join(KINDS)}")
    return choose(Problem.dense(m, n, k, layout=layout, **KINDS[dtype]), gpu)


def choose(problem: Problem, gpu: Gpu, kernel: str = "") -> Config:
    """The legal config with the shortest estimated time, of any kernel family or of the one that is named.

    Raises ValueError where no config of that family is legal.
    """
    return best(problem, gpu, kernel)[1]


@functools.lru_cache(maxsize=4096)
def best(problem: Problem, gpu: Gpu, kernel: str = "") -> tuple[float, Config]:
    """The estimated time in microseconds of what `choose` chooses, and that config."""
    timed = skinny.timed(problem, gpu) if kernel == "skinny" or (not kernel and _is_skinny(problem)) else []
    reason = f"no tile of kernel {kernel!r}"
    for tile in _tiles(problem):
        if kernel in ("", tile.kernel):
            for config in _with_relayout(tile.config(problem, gpu), problem):
                fit = config.fits(problem, gpu)
                reason = fit.reason or reason
                if fit:
                    timed += [(_estimate_us(c, tile, problem, gpu), c) for c in _with_tails(config, problem, gpu)]
    if not timed:
        raise ValueError(f"no config for {problem} on {gpu.name}: {reason}")
    return min(timed, key=lambda pair: pair[0])


def _is_skinny(problem: Problem) -> bool:
    """Whether the skinny kernel is worth an estimate: the output has few rows, or few columns, and is long."""
    if problem.sum_dtype != "fp32" or problem.element_bytes == 1:
        return False
    return problem.k > 0 and min(problem.m, problem.n) <= 64 and max(problem.m, problem.n) >= 512


def _factor(problem: Problem, gpu: Gpu, block_m: int, block_n: int) -> int:
    # A wave of `sms` tiles, f tall and sms / f wide, reads f * block_m rows of A and sms / f * block_n
    # columns of B. Their sum is least where both are equal.
    factor = max(1, round(math.sqrt(gpu.sms * block_n / block_m)))
    return min(factor, max(1, -(-problem.m // block_m)))


def _with_relayout(config: Config, problem: Problem):
    yield config
    if problem.unaligned:
        yield replace(config, relayout=problem.unaligned)


def _with_tails(config: Config, problem: Problem, gpu: Gpu):
    yield config
    if config.kernel == "hopper":
        for splits in (2, 3, 4, 6, 8):
            split = replace(config, split_tail=splits)
            if split.split_tiles(problem, gpu)[0] and split.fits(problem, gpu):
                yield split


def _estimate_us(config: Config, tile: _Tile, problem: Problem, gpu: Gpu) -> float:
    steps = max(1, -(-problem.k // config.block_k))
    flops = 2 * config.block_m * config.block_n * config.block_k * gpu.sms
    share = tile.share
    if config.kernel == "tile" and (problem.element_bytes <= 2 or problem.precision != "ieee"):
        share *= NARROW_SHARE[problem.relaid(config.relayout).alignment]
    rate = gpu.rate(problem.dtype, problem.precision) * share
    step_us = max(flops / rate, step_bytes(config, problem) / SM_BANDWIDTH) * 1e6
    loop_us = steps * step_us
    tiles_m, tiles_n = config.tiles(problem)
    tiles = tiles_m * tiles_n * problem.batch
    rounds, tail = divmod(tiles, gpu.sms)
    us = rounds * (loop_us + tile.fixed_us)
    split_us = 0.0
    if config.split_tail > 1:
        parts = tail * config.split_tail
        sums = 8 * parts * config.block_m * config.block_n  # written and read
        us += math.ceil(parts / gpu.sms) * (loop_us / config.split_tail + tile.fixed_us)
        split_us = SPLIT_US + sums / PARTIAL_BANDWIDTH * 1e6
    else:
        us += math.ceil(tail / gpu.sms) * (loop_us + tile.fixed_us)
    memory_us = FIRST_US + problem.compulsory_bytes / (gpu.bandwidth * STREAM_SHARE[config.kernel]) * 1e6
    copies_us = cost.relayout_seconds(problem, config, gpu) * 1e6
    return LAUNCH_US + copies_us + math.hypot(us, memory_us) + split_us  # both at once, but not perfectly
