"""What the exact kernel can multiply, and how its warps divide a tile."""

from tritonmm.config import Config
from tritonmm.families.common_rules import (
    HAS_FP64,
    ONE_DIE,
    divisor,
    one_chain_reason,
    one_die_reason,
    portable_shared_bytes,
    power_of_two_reason,
    shared_memory_reason,
    single_cta_reason,
)
from tritonmm.gpu import Gpu
from tritonmm.problem import Problem

# Limits of what a thread holds, beyond which ptxas spills: found by compiling for sm_90 (`tests/test_compile.py`).

MAX_SUMS = {"fp32": 64, "fp64": 32}
"""Elements that a thread sums."""

MAX_SUMS_WITH_MASKS = 32
"""Elements that a thread sums where copies are shorter than 16 bytes and need masks."""

MAX_COPIES = 8
"""Copies that a thread issues in a step, each with an address of its own."""

MAX_COPIES_OF_FEW_SUMS = 16
"""The same where a thread sums at most MAX_SUMS_WITH_MASKS elements and K is not split."""


def reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """Why a config is not legal, or ""."""
    return (
        power_of_two_reason(config)
        or one_chain_reason(config, problem)
        or _tile_reason(config, problem, gpu)
        or single_cta_reason(config)
        or shared_memory_reason(portable_shared_bytes(config, problem, gpu), gpu)
        or one_die_reason(config, ONE_DIE)
    )


def _tile_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """Why the dtypes or blocks of a config of powers of two are not legal, or "". Shapes and strides all are."""
    p = problem
    if gpu.capability != 90:
        return f"the exact kernel needs sm_90; {gpu.name} is {gpu.arch}"
    if p.dtype not in ("fp32", "fp64") or (p.b_dtype, p.out_dtype, p.precision) != (p.dtype, p.dtype, "ieee"):
        return f"dtype is {p.dtype} {p.precision}; the exact kernel multiplies fp32 ieee and fp64"
    if p.dtype == "fp64" and not HAS_FP64:
        return "dtype is fp64; the exact kernel supports it with Triton 3.6 and 3.9"
    if config.split_tail != 1:
        return f"split_tail is {config.split_tail}; the exact kernel splits the K of all tiles, or of none"
    if config.split_k > 1 and config.num_stages < 3:
        return (
            f"num_stages is {config.num_stages}; split-K needs at least 3: with 2 no registers are left to add up parts"
        )
    steps = -(-p.k // config.block_k)
    if config.split_k > (1 if p.dtype == "fp64" else max(1, steps)):
        why = "parts of fp64 do not fit the fp32 workspace" if p.dtype == "fp64" else f"there are {steps} steps of K"
        return f"split_k is {config.split_k}; {why}"
    if config.num_stages < 2:
        return f"num_stages is {config.num_stages}; it must be at least 2: one is filled while another is read"
    least = (32, 32, 16) if p.dtype == "fp64" else (16, 32, 8)
    if config.block_m < least[0] or config.block_n < least[1] or not least[2] <= config.block_k <= 32:
        blocks = f"{config.block_m}x{config.block_n}x{config.block_k}"
        return f"blocks {blocks}: they must be at least {'x'.join(map(str, least))}, and block_k at most 32"
    if warp_grid(config, p) == (0, 0):
        return f"{config.num_warps} warps do not divide {config.block_m}x{config.block_n} into whole warp tiles"
    sums = config.block_m * config.block_n // (32 * config.num_warps)
    if sums > MAX_SUMS[p.dtype]:
        return f"{sums} sums a thread leave no room for the operands; use more warps or a smaller tile"
    copies = (config.block_m + config.block_n) * config.block_k // (32 * config.num_warps * vector(p))
    if copies > (MAX_COPIES_OF_FEW_SUMS if sums <= MAX_SUMS_WITH_MASKS and config.split_k == 1 else MAX_COPIES):
        return f"{copies} copies a thread, of {vector(p)} elements each, leave no room for their addresses"
    if sums > MAX_SUMS_WITH_MASKS and vector(p) * p.element_bytes < 16:
        return f"copies of {vector(p) * p.element_bytes} bytes need masks, and {sums} sums leave no room for them"
    return ""


def vector(problem: Problem) -> int:
    """Elements of a copy: at most 16 bytes, and a divisor of the contiguous lines of both operands."""
    return divisor(problem, problem.alignment // problem.element_bytes)


def warp_grid(config: Config, problem: Problem) -> tuple[int, int]:
    """Warps along the rows and along the columns of a tile, such that they read least; (0, 0) if none divide it.

    A warp tile is a multiple of 16 x 8 on tensor cores. On CUDA cores 4 x 8 threads sum 4 x 4 elements each, or more.
    """
    block_m, block_n, warps = config.block_m, config.block_n, config.num_warps
    unit_m, unit_n, rows, cols = (16, 8, 1, 1) if problem.dtype == "fp64" else (16, 32, 4, 8)
    grids = [(m, warps // m) for m in (1, 2, 4, 8, 16) if warps % m == 0]
    whole = [(m, n) for m, n in grids if block_m % (unit_m * m) == 0 and block_n % (unit_n * n) == 0]
    return min(whole, key=lambda grid: block_m / (rows * grid[0]) + block_n / (cols * grid[1]), default=(0, 0))
