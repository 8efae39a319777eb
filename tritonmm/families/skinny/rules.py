"""What the skinny kernel can compute."""

from tritonmm.config import Config
from tritonmm.families.common_rules import (
    accumulator_limit,
    asymmetric_reason,
    dot_reason,
    one_chain_reason,
    one_die_reason,
    operands_reason,
    other_gpu_reason,
    portable_shared_bytes,
    power_of_two_reason,
    shared_memory_reason,
    single_cta_reason,
    uses_wgmma,
)
from tritonmm.gpu import Gpu
from tritonmm.problem import Problem


def reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """As `Family.reason`: the narrower of block_m and block_n is 1, on CUDA cores, or at least 16, on tensor cores."""
    if why := power_of_two_reason(config) or single_cta_reason(config) or _accumulation_reason(config, problem, gpu):
        return why
    if why := asymmetric_reason(config, problem) or one_die_reason(config, "it reads its streamed operand once"):
        return why
    if config.split_tail != 1:
        return f"split_tail is {config.split_tail}; the skinny kernel splits the K of all tiles, or of none"
    if problem.sum_dtype != "fp32" or problem.element_bytes == 1:
        return f"dtype is {problem.dtype}; the skinny kernel multiplies bf16, fp16 and fp32, and B of 1 byte"
    if problem.b_dtype == "int4":
        return "dtype of B is int4; the skinny kernel multiplies weights of 8 and 16 bits"
    if problem.b_dtype == "int8p" and (config.block_k < 16 or streams_a(config)):
        return f"block_k is {config.block_k}; int8p is packed 16 elements of K at a time, and is the streamed operand"
    if problem.scales and (problem.scales not in ("row", "group") or streams_a(config)):
        return f"scales are {problem.scales}; the skinny kernel takes scales of B, row or group, and streams B"
    narrow, wide = sorted((config.block_m, config.block_n))
    if problem.block_scaled and narrow == 1 and config.block_k < 16:
        return f"block_k is {config.block_k}; it must be at least 16 on CUDA cores, where 16 weights share a scale load"
    if why := (operands_reason(problem, gpu) if narrow == 1 else dot_reason(config, problem, gpu)):
        return why
    steps = max(1, -(-problem.k // config.block_k))
    if config.split_k > steps:
        return f"split_k is {config.split_k}; there are {steps} steps of K"
    threads = config.num_warps * (32 if gpu.is_nvidia else 64)
    if narrow == 1:
        elements = wide * config.block_k
        if not threads <= elements <= 64 * threads:
            return f"{wide}x{config.block_k} weights a step for {threads} threads: a thread must have 1 to 64 of them"
    else:
        if min(narrow, config.block_k) < 16:
            return (
                f"blocks {config.block_m}x{config.block_n}x{config.block_k}: the narrower of the first two must be 1,"
                " or all at least 16, as tensor cores need it"
            )
        registers = narrow * wide // threads
        limit = accumulator_limit(config, problem, gpu)
        if config.split_k > 1:  # registers for other parts' sums, and addresses of unaligned elements
            limit = min(limit, 64 if problem.alignment >= 4 else 32)
        if registers > limit:
            return (
                f"{registers} accumulator registers a thread leave no room for others; use more warps or a smaller tile"
            )
    return shared_memory_reason(portable_shared_bytes(config, problem, gpu), gpu)


def _accumulation_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """Why the sums are not those of other configs with invariant accumulation, or ""."""
    p = problem
    if not p.fixes_sums:
        return ""
    if gpu.capability != 90:
        return other_gpu_reason(config, gpu)
    if p.precision.endswith("x3"):
        return f"precision is {p.precision}; the skinny kernel has no invariant accumulation for that"
    if min(config.block_m, config.block_n) == 1:
        return "a block of 1 has another order of sums; invariant accumulation needs at least 16 rows and columns"
    if p.element_bytes != p.b_element_bytes and not uses_wgmma(max(config.block_m, config.block_n), config):
        return "mma.sync multiplies 8-bit weights in another order of K; invariant accumulation needs wgmma's 4 warps"
    if p.block_scaled and config.block_k != p.group:
        return f"block_k is {config.block_k}; with invariant accumulation a step is a scale group of {p.group} elements"
    return one_chain_reason(config, problem)


def streams_a(config: Config) -> bool:
    """True if A is the streamed operand and B the small one: the operand with the taller block is streamed."""
    return config.block_m > config.block_n
