"""What the exact kernel can multiply, and how its warps divide a tile."""

from tritonmm.config import Config
from tritonmm.families.common_rules import (
    portable_shared_bytes,
    power_of_two_reason,
    shared_memory_reason,
    single_cta_reason,
)
from tritonmm.gpu import TRITON, Gpu
from tritonmm.problem import Problem, divisor

HAS_FP64 = TRITON.startswith(("3.6.", "3.9."))
"""Whether this Triton's blocks of fp64 are known: those of its dot with 3.6, ours with 3.9; see `gluon_api.mma_f64`."""


def reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """Why a config is not legal, or ""."""
    return (
        power_of_two_reason(config)
        or _tile_reason(config, problem, gpu)
        or single_cta_reason(config)
        or shared_memory_reason(portable_shared_bytes(config, problem), gpu)
    )


def _tile_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """Why a config of powers of two is not legal, or "".

    Operands are multiplied in registers, of any shape and strides: fp32 on CUDA cores, fp64 on tensor cores.
    """
    p = problem
    if gpu.capability != 90:
        return f"the exact kernel was fitted to sm_90; {gpu.name} is {gpu.arch}"
    if p.dtype not in ("fp32", "fp64") or (p.b_dtype, p.out_dtype, p.precision) != (p.dtype, p.dtype, "ieee"):
        return f"dtype is {p.dtype} {p.precision}; the exact kernel multiplies fp32 ieee and fp64"
    if p.dtype == "fp64" and not HAS_FP64:
        return "dtype is fp64; the exact kernel multiplies it with Triton 3.6 and 3.9"
    if config.split_tail != 1:
        return f"split_tail is {config.split_tail}; the exact kernel splits the K of all tiles, or of none"
    if config.split_k > 1 and config.num_stages < 3:
        return f"num_stages is {config.num_stages}; the ring of two steps leaves no registers to add up parts of K"
    if config.split_k > (1 if p.dtype == "fp64" else max(1, -(-p.k // config.block_k))):
        steps = -(-p.k // config.block_k)
        return f"split_k is {config.split_k}; there are {steps} steps of K, and parts of fp64 cannot meet in fp32 sums"
    if config.num_stages < 2:
        return f"num_stages is {config.num_stages}; one is filled while another is read"
    least = (32, 32, 16) if p.dtype == "fp64" else (16, 32, 8)
    if config.block_m < least[0] or config.block_n < least[1] or not least[2] <= config.block_k <= 32:
        blocks = f"{config.block_m}x{config.block_n}x{config.block_k}"
        return f"blocks {blocks}: at least {'x'.join(map(str, least))}, and at most 32 of K"
    if warp_grid(config, p) == (0, 0):
        return f"{config.num_warps} warps do not divide {config.block_m}x{config.block_n} into whole blocks of a warp"
    registers = config.block_m * config.block_n // (32 * config.num_warps)
    if registers > (32 if p.dtype == "fp64" else 64):
        return f"{registers} sums a thread leave no room for the operands; more warps or a smaller tile"
    copies = (config.block_m + config.block_n) * config.block_k // (32 * config.num_warps * vector(p))
    if copies > (16 if registers <= 32 and config.split_k == 1 else 8):
        return f"{copies} copies a thread, of {vector(p)} elements each, leave no room for their addresses"
    if registers > 32 and vector(p) * p.element_bytes < 16:
        return f"copies of {vector(p) * p.element_bytes} bytes need masks, and {registers} sums leave no room for them"
    return ""


def vector(problem: Problem) -> int:
    """Elements that are copied at once: at most 16 bytes, as many as divide the lines of both operands."""
    return divisor(problem, problem.alignment // problem.element_bytes)


def warp_grid(config: Config, problem: Problem) -> tuple[int, int]:
    """How the warps divide the rows and the columns of a tile, so that they read least; (0, 0): not at all.

    A warp sums blocks of 16 x 8 on tensor cores; on CUDA cores 4 x 8 threads have 4 x 4 elements each, or more.
    """
    block_m, block_n, warps = config.block_m, config.block_n, config.num_warps
    unit_m, unit_n, rows, cols = (16, 8, 1, 1) if problem.dtype == "fp64" else (16, 32, 4, 8)
    grids = [(m, warps // m) for m in (1, 2, 4, 8, 16) if warps % m == 0]
    whole = [(m, n) for m, n in grids if block_m % (unit_m * m) == 0 and block_n % (unit_n * n) == 0]
    return min(whole, key=lambda grid: block_m / (rows * grid[0]) + block_n / (cols * grid[1]), default=(0, 0))
