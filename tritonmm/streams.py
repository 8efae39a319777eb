"""The weights kernel's configs worth trying for a problem, ranked by what limits a stream of weights."""

from dataclasses import replace

from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.orders import RowMajor
from tritonmm.problem import Problem
from tritonmm.skinny import GATHER_US  # no product that was timed here is without tiles whose parts meet
from tritonmm.weights import programs, resident

MOST_ROWS = 64
"""Of the activations, where the kernel was timed; more are multiplied where it is asked for by name."""

BLOCKS = {
    # Rows of the activations: (rows of the weights, block_k, num_stages, num_warps). Those of 32 were timed with 24.
    16: ((128, 128, 4, 8), (128, 256, 2, 8), (128, 256, 4, 8)),
    32: ((128, 128, 7, 8), (128, 128, 4, 8), (192, 128, 5, 12), (256, 128, 5, 8)),
    64: ((128, 128, 6, 8), (192, 128, 5, 12), (256, 128, 4, 8)),
}

FIXED_US = 3.15
"""A launch that follows another, the start of its programs and their end."""

STREAM = 0.885
"""Of the bandwidth of device memory, what all programs together reach where nothing else takes time."""

STEP_US = 0.128
"""From step to step of a program: barriers, and the first slice's way to the tensor cores. Two programs of an SM hide
that of each other."""

LATENCY_US = 1.2
"""From a stage that is free to its next data."""

CONVERT_US = 1.7e-5
"""An SM's time for a weight that it reads and converts."""

MULTIPLY_US = 1.79e-7
"""An SM's time for a weight and a row of activations that it multiplies."""

SCALE_US = 1.19e-5
"""An SM's time for a sum of a step that it multiplies by its group's scale."""

PIECE_US = 0.38
"""A program's way from one tile or part of a tile to the next, while its tensor cores have nothing to do."""

OVERLAP = 3.1
"""The p of the p-norm that adds reading and computing: 1 would be one after the other."""

PART_US = 0.005
"""From the request of a part's sums to their arrival, of four at a time."""

GATHER_BANDWIDTH = 101e9
"""Bytes/s at which the one program that arrives last reads the sums of all parts."""


def timed(problem: Problem, gpu: Gpu) -> list[tuple[float, Config]]:
    """Estimated microseconds of candidates, be they legal or not, and them, in ascending order. Deterministic."""
    size = 1 << (max(16, min(problem.m, MOST_ROWS)) - 1).bit_length()
    found = []
    for rows, block_k, stages, warps in BLOCKS[size]:
        config = Config("weights", size, rows, block_k, stages, warps, persistent=True, order=RowMajor())
        found += [(estimate_us(shared, problem, gpu), shared) for shared in shares(config, problem, gpu)]
    return sorted(found, key=lambda pair: pair[0])


def shares(config: Config, problem: Problem, gpu: Gpu) -> list[Config]:
    """The config with as many programs as the SMs hold, and with such numbers, up to as many, that none cuts two tiles.

    split_k of `config` is of no account.
    """
    tiles_m, tiles_n = config.tiles(problem)
    full = (gpu.sms * held // max(tiles_m * tiles_n, 1) for held in range(resident(config, problem) + 1))
    most = max(1, -(-problem.k // config.block_k))
    return [replace(config, split_k=split) for split in sorted({min(max(1, split), most) for split in full})]


def estimate_us(config: Config, problem: Problem, gpu: Gpu) -> float:
    """A launch, what reading and computing take beside each other, and the gathering of parts.

    Constants are fits to an H200 (burst, 2026-11-22), 260 times of bf16 by int8 and fp8e4m3 with 16 to 64 rows in
    autotune/results/h200-weights-3.csv: off by 6% (root mean square); what they choose there takes 0.3% longer
    than the best of each product (geometric mean), at most 3%.
    """
    p = problem
    tiles_m, tiles_n = config.tiles(p)
    tiles = tiles_m * tiles_n
    steps = -(-p.k // config.block_k)
    count = max(1, programs(config, p, gpu, tiles))
    held = min(resident(config, p), -(-count // gpu.sms))  # an SM's programs share its units, and hide latencies
    weights_us = config.block_n * config.block_k * (CONVERT_US + MULTIPLY_US * config.block_m)
    scales_us = config.block_n * config.block_m * SCALE_US if p.grouped else 0.0
    pieces = -(-tiles // count) + (tiles % count > 0 and count % tiles > 0)  # of a program that cuts two tiles
    busy_us = weights_us + scales_us
    step_us = max(STEP_US + busy_us, held * busy_us, LATENCY_US / (config.num_stages - 1))
    compute_us = -(-tiles * steps // count) * step_us + pieces * PIECE_US
    again = p.operand_bytes("b") * max(0, tiles_m - 1)  # a program is long done with a panel when it needs it again
    read_us = (p.compulsory_bytes + again) / (STREAM * gpu.bandwidth) * 1e6
    us = FIXED_US + (read_us**OVERLAP + compute_us**OVERLAP) ** (1 / OVERLAP)
    if tiles % count:
        parts = -(-count // tiles) + (count % tiles > 0)
        us += GATHER_US + parts * (PART_US + config.block_n * config.block_m * 4 / GATHER_BANDWIDTH * 1e6)
    return us
