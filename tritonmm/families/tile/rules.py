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


def reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """The portable kernel: any shape, any strides; blocks are powers of two that the GPU can hold."""
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
            f"{registers} accumulator registers a thread leave no room for the operands; more warps or a smaller tile"
        )
    loaded = (config.block_m + config.block_n) * config.block_k // (config.num_warps * (32 if gpu.is_nvidia else 64))
    if 1 in (problem.element_bytes, problem.b_element_bytes) and problem.alignment < 4 and loaded > 40:
        return f"{loaded} bytes a thread, loaded one by one, and their addresses leave no room for others"
    return ""
