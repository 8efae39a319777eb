"""What the grouped kernel can multiply, and how it cuts tiles."""

import itertools

from tritonmm.config import Config
from tritonmm.dtypes import FP8, HALF
from tritonmm.families.common_rules import (
    BARRIER_BYTES,
    MAX_SHARED_BYTES,
    ONE_DIE,
    one_chain_reason,
    one_die_reason,
    operands_reason,
    shared_memory_reason,
    single_cta_reason,
    tma_reason,
    unsplit_reason,
)
from tritonmm.gpu import Gpu
from tritonmm.problem import Problem

CONSUMERS = {128: 2, 192: 3, 256: 2}
"""Consumer warpgroups that divide a tile's columns, by their number."""

WIDEST = {2: 256, 3: 128}
"""Rows of an accumulator at most, by the number of consumers. wgmma takes its registers from a thread's share at
launch: with two consumers that is 168, enough for 128 of sums, with three 128, enough for 64."""

BOX = 16
"""Rows of the small boxes of A and of the narrowest tile: rows are loaded and multiplied in multiples of it."""

WIDE_BOX = 64
"""Rows of the larger boxes of A: with both sizes the producer loads A in at most six boxes a step."""

PIECE = 32
"""Rows of the pieces in which the output is written."""

MOST_ROWS = 2**30
"""Rows of all groups, at most: `launch.ragged` describes the end of a group so."""


def reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """As `Family.reason`."""
    return (
        _operands_reason(problem, gpu)
        or operands_reason(problem, gpu)
        or tma_reason(problem)
        or unsplit_reason(config)
        or single_cta_reason(config)
        or one_die_reason(config, ONE_DIE)
        or one_chain_reason(config, problem)
        or _tile_reason(config, problem)
        or shared_memory_reason(shared_bytes(config, problem, gpu), gpu)
    )


def _operands_reason(problem: Problem, gpu: Gpu) -> str:
    """Why operands are not what the kernel multiplies, or ""."""
    p = problem
    if not p.ragged:
        return "the grouped kernel multiplies groups only"
    if gpu.capability != 90:
        return f"the grouped kernel needs sm_90; {gpu.name} is {gpu.arch}"
    if not (p.dtype == p.b_dtype and p.dtype in (*HALF, "int8")) and not (p.dtype in FP8 and p.b_dtype in FP8):
        return f"dtypes are {p.dtype} and {p.b_dtype}; the grouped kernel multiplies bf16, fp16, fp8 and int8"
    if p.scales not in ("", "row"):
        return f"scales are {p.scales!r}; the grouped kernel has scales of rows and columns"
    layouts = ("tn",) if p.ragged == "k" else ("nt", "nn") if p.dtype in HALF else ("nt",)
    if p.layout not in layouts or (p.ragged == "k" and p.dtype not in HALF):
        return f"layout is {p.layout} of {p.dtype}; where groups divide {p.ragged}, TMA and wgmma take {_taken(p)}"
    if p.out_alignment < 16:
        return f"the output is aligned to {p.out_alignment} bytes; TMA stores need 16"
    if max(p.m, p.k) > MOST_ROWS:
        return f"m and k are {p.m} and {p.k}; at most {MOST_ROWS}"
    return ""


def _taken(problem: Problem) -> str:
    if problem.ragged == "k":
        return "tn of bf16 and fp16"
    return "nt and nn of bf16 and fp16, and nt of others"


def _tile_reason(config: Config, problem: Problem) -> str:
    """Why a tile is not legal, or ""."""
    block_m, block_n, block_k = config.block_m, config.block_n, config.block_k
    if config.num_stages < 2:
        return f"num_stages is {config.num_stages}; the pipeline needs at least 2"
    consumers = CONSUMERS.get(block_n, 0)
    if block_m not in (64, 128, 256) or not consumers or (block_m * block_n > 128 * 256 and block_n != 192):
        return f"blocks are {block_m}x{block_n}; 64, 128 or 256 rows by 128, 192 or 256 columns, but not 256x256"
    if config.num_warps != 4 * consumers:
        return f"num_warps is {config.num_warps}; the {consumers} consumers of {block_n} columns have {4 * consumers}"
    if block_n == 192 and problem.element_bytes < 2:
        return f"blocks are {block_m}x{block_n} of {problem.dtype}; 192 columns leave no registers for scales"
    line = 128 // problem.element_bytes
    if block_k != line:
        return f"block_k is {block_k}; lines of 128 bytes have {line} elements of {problem.dtype}"
    if problem.promotes and block_m * block_n > 128 * 128:
        return f"blocks are {block_m}x{block_n}; sums that are added in fp32 need 128 * 128 elements at most"
    return ""


def widths(block_m: int) -> tuple[tuple[int, int], ...]:
    """Of each number of rows for which there is code, ascending: the one below it, and itself.

    wgmma multiplies powers of two of rows in Triton. So those are sums of one or two, in units of BOX.
    """
    found = [rows for rows in range(BOX, block_m + BOX, BOX) if rows.bit_count() <= 2]
    return tuple(itertools.pairwise([0, *found]))


def subtiles(width: int, consumers: int) -> tuple[int, ...]:
    """Rows of the accumulators of a tile of `width` rows: one, or two where it is no power of two or more than one
    holds."""
    first = min(1 << max(0, width.bit_length() - 1), WIDEST[consumers])
    return (first, width - first) if width > first else (first,)


def boxes(count: int) -> tuple[tuple[int, int], ...]:
    """First row and number of rows of the boxes that hold `count` times BOX rows: as many of WIDE_BOX rows as fit."""
    rows = count * BOX
    whole = rows // WIDE_BOX * WIDE_BOX
    wide = ((at, WIDE_BOX) for at in range(0, whole, WIDE_BOX))
    return (*wide, *((at, BOX) for at in range(whole, rows, BOX)))


def out_buffers(config: Config, problem: Problem) -> int:
    """Shared buffers of one piece that a consumer cycles through: as many as fit, and at most all pieces of a tile.

    One is converted while those before it are stored.
    """
    count = config.block_m // PIECE
    while count > 2 and _shared(config, problem, count) > MAX_SHARED_BYTES:
        count //= 2
    return count


def shared_bytes(config: Config, problem: Problem, gpu: Gpu) -> int:
    """Shared memory of one CTA, in bytes."""
    return _shared(config, problem, out_buffers(config, problem))


def _shared(config: Config, problem: Problem, buffers: int) -> int:
    pieces = buffers * PIECE * config.block_n * problem.out_element_bytes
    return config.num_stages * config.step_bytes(problem) + pieces + BARRIER_BYTES
