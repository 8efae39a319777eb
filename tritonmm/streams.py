"""The weights kernel's configs worth trying for a problem, ranked by what limits a stream of weights."""

from dataclasses import replace

from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.orders import RowMajor
from tritonmm.problem import Problem
from tritonmm.weights import programs, resident

BLOCKS = {
    # Rows of the activations: (rows of the weights, block_k, num_stages, num_warps)
    16: ((128, 128, 4, 8), (128, 256, 2, 8), (192, 128, 6, 12), (256, 128, 5, 8)),
    32: ((128, 128, 7, 8), (192, 128, 5, 12), (256, 128, 5, 8)),
    64: ((128, 128, 6, 8), (192, 128, 5, 12), (256, 128, 4, 8)),
}  # fmt: skip

STREAM = 0.89
"""Of the bandwidth of device memory, what all programs together reach."""

L2_BANDWIDTH = 6.5e12
"""Bytes/s that all SMs together read through L2, the activations for each tile again among them."""

CONVERTED = 40e9
"""Weights that an SM converts and multiplies in a second."""

FIXED_US = 3.5
"""A launch that follows another, the start of its programs and their end."""

GATHER_US = 1.5
"""What it costs that parts of a tile meet: stores, a count and loads, one after the other."""

GATHER_BANDWIDTH = 100e9
"""Bytes/s at which the one program that arrives last reads the sums of all parts."""


def timed(problem: Problem, gpu: Gpu) -> list[tuple[float, Config]]:
    """Estimated microseconds of candidates, be they legal or not, and them, in ascending order. Deterministic."""
    size = 1 << (max(16, min(problem.m, 64)) - 1).bit_length()
    found = {}
    for rows, block_k, stages, warps in BLOCKS[size]:
        config = Config("weights", size, rows, block_k, stages, warps, persistent=True, order=RowMajor())
        tiles_m, tiles_n = config.tiles(problem)
        whole = gpu.sms * resident(config, problem) // max(tiles_m * tiles_n, 1)
        for split in {1, whole, whole // 2}:
            shared = replace(config, split_k=max(split, 1))
            found[shared] = estimate_us(shared, problem, gpu)
    return sorted(((us, config) for config, us in found.items()), key=lambda pair: pair[0])


def estimate_us(config: Config, problem: Problem, gpu: Gpu) -> float:
    """What reads, conversion or L2 take, whichever is longest, a launch, and the gathering of parts."""
    p = problem
    tiles_m, tiles_n = config.tiles(p)
    tiles = tiles_m * tiles_n
    steps = -(-p.k // config.block_k)
    count = max(1, programs(config, p, gpu, tiles))
    read_us = p.compulsory_bytes / (STREAM * gpu.bandwidth) * 1e6
    l2_us = (p.operand_bytes("b") * tiles_m + p.operand_bytes("a") * tiles_n) / L2_BANDWIDTH * 1e6
    held = min(resident(config, p), -(-count // gpu.sms))  # an SM's programs share what it converts
    converted_us = -(-tiles * steps // count) * config.block_n * config.block_k * held / CONVERTED * 1e6
    us = FIXED_US + max(read_us, l2_us, converted_us)
    if tiles % count:
        parts = 1 + -(-count // tiles)
        us += GATHER_US + parts * config.block_n * min(config.block_m, p.m) * 4 / GATHER_BANDWIDTH * 1e6
    return us
