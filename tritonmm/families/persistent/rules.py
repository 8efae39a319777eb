"""What the persistent kernel can compute."""

from tritonmm.config import Config
from tritonmm.dtypes import HALF
from tritonmm.families.common_rules import (
    BARRIER_BYTES,
    asymmetric_reason,
    one_chain_reason,
    one_die_reason,
    other_gpu_reason,
    shared_memory_reason,
    single_cta_reason,
    tma_reason,
    unsplit_reason,
)
from tritonmm.gpu import Gpu
from tritonmm.problem import Problem


def reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """As `Family.reason`: what TMA can address, and tiles that leave registers for the epilogue."""
    if gpu.capability not in (90, 100, 103):
        return f"the persistent kernel needs sm_90, sm_100 or sm_103; {gpu.name} is {gpu.arch}"
    if problem.dtype not in HALF or problem.b_dtype not in HALF:
        return f"dtypes are {problem.dtype} and {problem.b_dtype}; the persistent kernel multiplies bf16 and fp16"
    if why := tma_reason(problem):
        return why
    if why := unsplit_reason(config) or single_cta_reason(config) or asymmetric_reason(config, problem):
        return why
    if why := one_die_reason(config, "which die of sm_100 runs which program is not documented"):
        return why
    heights = (64, 128, 256) if gpu.capability == 90 and config.num_warps == 4 else (128, 256)
    for name, legal in (
        ("num_warps", (4, 8)),
        ("block_m", heights),  # halves of less tall tiles go through shared memory to be written
        ("block_n", (64, 128, 256)),
        ("block_k", (32, 64, 128)),
    ):
        if getattr(config, name) not in legal:
            return f"{name} is {getattr(config, name)}; it must be one of {', '.join(map(str, legal))}"
    if config.num_stages < 2:
        return f"num_stages is {config.num_stages}; it must be at least 2 for loads to overlap"
    if problem.fixes_sums and gpu.capability != 90:
        return other_gpu_reason(config, gpu)
    if why := one_chain_reason(config, problem):
        return why
    registers = config.block_m * config.block_n // (32 * config.num_warps)
    masked = problem.out_alignment < 16
    if registers > (64 if masked and (problem.epilogue.c or config.num_warps == 4) else 128):
        return f"{registers} accumulator registers a thread leave no room for others; use more warps or a smaller tile"
    return shared_memory_reason(shared_bytes(config, problem, gpu), gpu)


def output_pieces(config: Config, problem: Problem) -> int:
    """Pieces, along the columns, in which the kernel writes a tile.

    By TMA a thread writes 128 bytes of a piece, or 64 with C. By masked stores, which need an address for each element,
    it writes 16 elements, or 8 with C.
    """
    if problem.out_alignment < 16:
        elements = 8 if problem.epilogue.c else 16
    else:
        elements = (64 if problem.epilogue.c else 128) // problem.out_element_bytes
    return max(1, config.block_m * config.block_n // (32 * config.num_warps * elements))


def shared_bytes(config: Config, problem: Problem, gpu: Gpu) -> int:
    """Shared memory of one CTA, in bytes."""
    pipeline = config.num_stages * config.step_bytes(problem)
    piece = config.block_m * config.block_n // output_pieces(config, problem)
    out = piece * problem.out_element_bytes
    if problem.epilogue.c:  # C changes layout through shared memory of its own; it may be fp32
        out = (out if problem.out_alignment == 16 else 0) + piece * 4
    return pipeline + out + BARRIER_BYTES
