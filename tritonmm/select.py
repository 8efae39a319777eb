"""Problem -> Config: a first choice by tile efficiency and waves, with the order that suits the wave."""

import functools
import math

from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.orders import SwizzleMerge
from tritonmm.problem import Problem

# (block_m, block_n, block_k, num_stages, num_warps): share of the peak that a full wave of them reaches
_TILES = {
    2: {  # bytes an element
        (128, 256, 64, 3, 8): 0.75,
        (256, 128, 64, 3, 8): 0.74,
        (128, 128, 64, 4, 8): 0.62,
        (128, 128, 32, 3, 8): 0.50,
        (128, 64, 64, 4, 4): 0.45,
        (64, 128, 64, 4, 4): 0.45,
        (64, 64, 64, 4, 4): 0.32,
        (64, 64, 32, 3, 4): 0.28,
        (32, 64, 128, 4, 4): 0.20,
        (16, 64, 128, 4, 4): 0.12,
        (16, 32, 128, 5, 2): 0.07,
        (32, 32, 32, 2, 4): 0.05,
    },
    4: {
        (128, 128, 16, 4, 8): 0.55,
        (128, 64, 16, 4, 8): 0.45,
        (64, 64, 16, 4, 4): 0.35,
        (32, 64, 32, 3, 4): 0.20,
        (32, 32, 32, 3, 4): 0.12,
        (16, 32, 16, 4, 2): 0.07,
    },
}


def select(m: int, n: int, k: int, *, dtype: str = "bf16", layout: str = "nn", gpu: Gpu | str | None = None) -> Config:
    """The config that `tritonmm.matmul` would use for an m x k by k x n product.

    dtype: a name such as "bf16"; layout: "nn", "nt", "tn" or "tt"; gpu: a `Gpu`, a name that
    `gpu.spec` knows, or None for this machine's (the H200 where there is none). Deterministic.
    Raises ValueError for unknown names or negative sizes.
    """
    if not isinstance(gpu, Gpu):
        gpu = gpus.default() if gpu is None else gpus.spec(gpu)
    return choose(Problem(m=m, n=n, k=k, dtype=dtype, layout=layout), gpu)


@functools.lru_cache(maxsize=4096)
def choose(problem: Problem, gpu: Gpu) -> Config:
    """The legal config with the shortest estimated time."""
    shares = _TILES[problem.element_bytes]
    configs = {_config(tile, problem, gpu): share for tile, share in shares.items()}
    legal = [config for config in configs if config.fits(problem, gpu)]
    return min(legal, key=lambda config: _estimate(config, problem, gpu, configs[config]))


def _config(tile: tuple[int, int, int, int, int], problem: Problem, gpu: Gpu) -> Config:
    block_m, block_n, block_k, num_stages, num_warps = tile
    # A wave of `sms` tiles, f tall and sms / f wide, reads f * block_m rows of A and sms / f * block_n
    # columns of B. Their sum is least where both are equal.
    factor = max(1, round(math.sqrt(gpu.sms * block_n / block_m)))
    tiles_m = max(1, -(-problem.m // block_m))
    return Config(
        block_m=block_m,
        block_n=block_n,
        block_k=block_k,
        num_stages=num_stages,
        num_warps=num_warps,
        order=SwizzleMerge(min(factor, tiles_m)),
    )


def _estimate(config: Config, problem: Problem, gpu: Gpu, share: float) -> float:
    tiles_m, tiles_n = config.tiles(problem)
    waves = math.ceil(tiles_m * tiles_n * problem.batch / gpu.sms)
    flops = 2 * config.block_m * config.block_n * max(problem.k, config.block_k) * gpu.sms
    return waves * flops / (gpu.rate(problem.dtype, problem.precision) * share)
