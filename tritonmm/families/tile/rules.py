"""What the portable kernel can compute."""

from tritonmm.config import Config
from tritonmm.families.common_rules import (
    accumulator_limit,
    dot_reason,
    portable_shared_bytes,
    power_of_two_reason,
    shared_memory_reason,
    single_cta_reason,
    unsplit_reason,
)
from tritonmm.gpu import Gpu
from tritonmm.problem import Problem

UNALIGNED_BYTES = 40
"""Bytes of A and B that a thread may load one by one in a step: each has a 64-bit address. Found by compiling."""


def reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """As `Family.reason`: blocks are powers of two of at least 16 that fit registers and shared memory."""
    if why := power_of_two_reason(config):
        return why
    if min(config.block_m, config.block_n, config.block_k) < 16:
        return f"blocks {config.block_m}x{config.block_n}x{config.block_k}: tl.dot needs at least 16 in each"
    if why := unsplit_reason(config) or single_cta_reason(config):
        return why
    if why := dot_reason(config, problem, gpu):
        return why
    if why := shared_memory_reason(portable_shared_bytes(config, problem), gpu):
        return why
    registers = config.block_m * config.block_n // (config.num_warps * (32 if gpu.is_nvidia else 64))
    if registers > accumulator_limit(config, problem, gpu):
        return (
            f"{registers} accumulator registers a thread leave no room for operands; use more warps or a smaller tile"
        )
    loaded = (config.block_m + config.block_n) * config.block_k // (config.num_warps * (32 if gpu.is_nvidia else 64))
    if 1 in (problem.element_bytes, problem.b_element_bytes) and problem.alignment < 4 and loaded > UNALIGNED_BYTES:
        return f"{loaded} bytes a thread are loaded one by one; at most {UNALIGNED_BYTES} leave registers for addresses"
    return ""
