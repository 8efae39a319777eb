"""What the Hopper kernel can multiply, and how its consumers divide a tile."""

from tritonmm.config import Config
from tritonmm.dtypes import FP8, HALF
from tritonmm.families.common_rules import (
    MAX_SHARED_BYTES,
    ONE_DIE,
    one_die_reason,
    operands_reason,
    shared_memory_reason,
    tma_reason,
)
from tritonmm.gpu import TRITON, Gpu
from tritonmm.model.chunks import chunk_k, chunks
from tritonmm.problem import Problem

HAS_CLUSTERS = TRITON.startswith("3.9.")
"""Whether clusters run under this Triton. Older ones lack what they need; a newer one may number the kernel's
parameters otherwise, which `device/cluster.py` names in PTX and `tests/crosscompile.py` checks."""


def reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """Why a config is not legal, or ""."""
    return (
        _operands_reason(problem, gpu)
        or operands_reason(problem, gpu)
        or tma_reason(problem)
        or _accumulation_reason(config, problem)
        or _tile_reason(config, problem, gpu)
        or shared_memory_reason(shared_bytes(config, problem, gpu), gpu)
        or _cluster_reason(config, problem)
        or one_die_reason(config, ONE_DIE)
    )


def _operands_reason(problem: Problem, gpu: Gpu) -> str:
    """Why operands are not what wgmma multiplies, or "": those of 2 bytes as they lie, others with K contiguous."""
    p = problem
    if gpu.capability != 90:
        return f"the hopper kernel needs sm_90; {gpu.name} is {gpu.arch}"
    if p.element_bytes != p.b_element_bytes:
        return f"dtypes are {p.dtype} and {p.b_dtype}; the hopper kernel multiplies operands of one size"
    if p.dtype == "fp64" or (p.dtype == "fp32" and p.precision != "tf32"):
        return f"dtype is {p.dtype} {p.precision}; the hopper kernel multiplies bf16, fp16, tf32, int8 and fp8"
    if p.k_major and p.layout != "nt" and "s" not in p.layout:
        return f"layout is {p.layout}; tensor cores take {p.dtype} as nt, and repack makes it so"
    if p.group != 128:
        return f"group is {p.group}; the hopper kernel scales 128 elements of K"
    if p.block_scaled and p.dtype not in FP8:
        return f"dtype is {p.dtype} with {p.scales} scales; the hopper kernel scales groups of fp8"
    return ""


def _accumulation_reason(config: Config, problem: Problem) -> str:
    """Why a config does not sum K as all others do with invariant accumulation, or ""."""
    for name in ("split_k", "split_tail"):
        splits = getattr(config, name)
        if problem.fixes_sums and splits not in (1, chunks(problem)):
            cut = f", or {chunks(problem)} one chunk of {chunk_k(problem)} each" if chunk_k(problem) else ""
            return f"{name} is {splits}; with invariant accumulation one program sums all of K{cut}"
    return ""


def _tile_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """Why a config is not legal for operands that are, or "": its consumers must be able to divide the tile."""
    steps = -(-problem.k // config.block_k)
    for name in ("split_k", "split_tail"):
        if getattr(config, name) > min(steps, gpu.sms):
            return f"{name} is {getattr(config, name)}; there are {steps} steps of K and {gpu.sms} SMs"
    if config.split_k > 1 and config.split_tail > 1:
        return f"split_k and split_tail are {config.split_k} and {config.split_tail}; if all are split there is no tail"
    if config.num_warps not in (4, 8, 12):
        return f"num_warps is {config.num_warps}; 1, 2 or 3 consumer warpgroups have 4, 8 or 12"
    if config.num_stages < 2:
        return f"num_stages is {config.num_stages}; the pipeline needs at least 2"
    consumers_m, consumers_n = consumer_grid(config)
    block_m, block_n = config.cta_tile
    rows, cols = block_m // consumers_m, block_n // consumers_n
    divides = (rows * consumers_m, cols * consumers_n) == (block_m, block_n)
    if not divides or rows not in (64, 128) or cols % 32 or not 32 <= cols <= 384:
        return (
            f"blocks {block_m}x{block_n} of {config.num_warps // 4} consumers: each needs 64 or 128 rows"
            " and a multiple of 32 columns, up to 384"
        )
    subtiles = n_subtiles(config)
    if subtiles[-1] & (subtiles[-1] - 1):
        return f"block_n is {config.block_n}; {cols} columns of a consumer are not the sum of two powers of two"
    if len(subtiles) > 1 and (consumers_n > 1 or config.cluster or config.split_k > 1 or config.split_tail > 1):
        return f"a consumer has two N-subtiles, of {subtiles[0]} + {subtiles[1]} columns; clusters and split K need one"
    unit = 128 // problem.element_bytes
    if config.block_k not in (unit, 2 * unit):
        return f"block_k is {config.block_k}; {unit} or {2 * unit}, lines of 128 or 256 bytes"
    if problem.promotes and (config.block_k != 128 or len(subtiles) > 1):
        return (
            f"blocks {block_m}x{block_n}x{config.block_k}: sums that are added in fp32 need steps of 128, and one"
            " N-subtile a consumer"
        )
    if problem.cols_per_scale == 128 and 128 % cols and cols % 128:
        return f"a consumer has {cols} columns; scales of 128 columns need a divisor or a multiple of 128"
    registers = rows * cols // 128
    if problem.promotes:  # a part of the sums, before it is added to the others; and what adding C takes beside them
        registers += min(registers, 64) + 64 * problem.epilogue.c
    if chunks(problem) > 1:  # the sums of a chunk, beside those of all before it
        registers *= 2
    if problem.block_scaled and problem.cols_per_scale == 1:  # the scales of its columns
        registers += min(cols, 128) // 4
    if registers > (192 if config.num_warps == 8 else 128):
        return f"{registers} accumulator registers a thread leave no room for the others"
    if problem.promotes and rows * cols > 64 * 128 and problem.out_alignment < 16:
        return f"a tile of {block_m}x{block_n} leaves no registers to add sums in fp32 and to store without TMA"
    reads_twice = bool(problem.symmetric) and not problem.mirrors_output
    largest = 128 * 256 if problem.out_alignment < 16 or reads_twice else 192 * 192
    if block_m * block_n > largest and (problem.epilogue.c or problem.out_alignment < 16):
        return f"a tile of {block_m}x{block_n} leaves no registers to add C or to store without TMA; 128x256 does"
    if problem.epilogue.c and problem.out_alignment < 16 and (block_m > 128 or config.num_warps == 12):
        return f"adding C to an output that TMA cannot store spills registers: {block_m} rows, {config.num_warps} warps"
    return ""


def _cluster_reason(config: Config, problem: Problem) -> str:
    """Why a config has no legal cluster, or "": two CTAs share an operand, and each loads half of it for both, in boxes
    of 64 x 64."""
    if not config.cluster:
        return ""
    if problem.symmetric:
        return f"cluster is {config.cluster!r}; clusters do not mirror the elements of a symmetric product"
    if config.split_k != 1 or config.split_tail != 1:
        return f"split_k, split_tail are {config.split_k}, {config.split_tail}; clusters do not split K"
    if config.block_k != 64 or problem.dtype not in HALF:
        return f"block_k is {config.block_k} and dtype {problem.dtype}; clusters load boxes of 64 of bf16 or fp16"
    shared, divided = ("block_n", "block_m") if config.cluster == "m" else ("block_m", "block_n")
    for name, part in ((shared, 128), (divided, 2)):
        if getattr(config, name) % part:
            return f"{name} is {getattr(config, name)}; in a cluster:{config.cluster} it must be a multiple of {part}"
    if config.cta_tile[1] // consumer_grid(config)[1] < 64:
        return f"block_n is {config.block_n}; each consumer of a cluster needs 64 columns"
    return "" if HAS_CLUSTERS else f"cluster is {config.cluster!r}; it needs Triton 3.9, this is {TRITON}"


def consumer_grid(config: Config) -> tuple[int, int]:
    """How the consumer warpgroups divide the rows and the columns of a CTA's tile."""
    consumers = config.num_warps // 4
    along_m = consumers if config.cta_tile[0] >= 64 * consumers else 1
    return along_m, consumers // along_m


def n_subtiles(config: Config) -> tuple[int, ...]:
    """Widths, powers of two, of a consumer's N-subtiles: one or two, the wider first.

    Gluon's blocks have powers of two of columns; each N-subtile is a block with its own wgmma and accumulator. With one
    or three consumers none is wider than 128: ptxas takes the registers of a wgmma from a thread's share at launch,
    before the producer gives up its own.
    """
    cols = config.cta_tile[1] // consumer_grid(config)[1]
    widest = 256 if config.num_warps == 8 else 128
    first = min(1 << (cols.bit_length() - 1), widest)
    return (first, cols - first) if cols > first else (first,)


def output_buffers(config: Config, problem: Problem) -> tuple[int, int]:
    """Columns of the pieces in which a consumer writes its part of a tile, and shared buffers it cycles through.

    A piece is as wide as TMA swizzles, 128 bytes, or half of that where shared memory is short. Two buffers, if they
    fit, let one be stored while the next is converted. A symmetric product has one, and one for the piece transposed.
    Where C is added to an output that TMA cannot store, pieces are small enough for their addresses to stay in
    registers.
    """
    consumers_m, consumers_n = consumer_grid(config)
    block_m, block_n = config.cta_tile
    cols = min(n_subtiles(config)[-1], 128 // problem.out_element_bytes)
    if problem.epilogue.c and problem.out_alignment < 16:
        cols = min(cols, 1024 * consumers_m // block_m)
    most = 1 + (block_n // (consumers_n * cols) % 2 == 0)  # in turn, from one tile to the next too
    for choice in ((cols, most), (cols, 1), (cols // 2, 2), (cols // 2, 1)):
        if problem.symmetric and choice[1] > 1:
            continue
        if _shared(config, problem, *choice) <= MAX_SHARED_BYTES:
            break
    return choice


def shared_bytes(config: Config, problem: Problem, gpu: Gpu) -> int:
    """Shared memory of one CTA, in bytes."""
    return _shared(config, problem, *output_buffers(config, problem))


def _shared(config: Config, problem: Problem, piece_cols: int, buffers: int) -> int:
    consumers_n = consumer_grid(config)[1]
    block_m = config.cta_tile[0]
    stages = config.num_stages * config.step_bytes(problem)
    out = block_m * consumers_n * piece_cols * problem.out_element_bytes * buffers * (2 if problem.symmetric else 1)
    scaled = block_m + max(32, config.block_n // problem.cols_per_scale)  # rows and columns
    scales = config.num_stages * scaled * 4 if problem.block_scaled else 0
    return stages + out + scales + 1024  # barriers and alignment
