"""What the portable kernel can compute."""

from tritonmm.config import Config
from tritonmm.dtypes import FP8
from tritonmm.families.common_rules import (
    HAS_FP64,
    accumulator_limit,
    dot_reason,
    one_chain_reason,
    portable_shared_bytes,
    power_of_two_reason,
    shared_memory_reason,
    single_cta_reason,
    unsplit_reason,
    uses_wgmma,
)
from tritonmm.gpu import Gpu
from tritonmm.problem import Problem

REFERENCE = {
    "half": (64, 64, 32, 4),
    "byte": (64, 64, 32, 4),
    "mixed": (64, 64, 32, 4),
    "tf32": (32, 64, 32, 4),
    "fp32": (32, 32, 32, 4),
    "three products": (32, 32, 32, 4),
    "fp64": (32, 32, 16, 4),
}
"""block_m, block_n, block_k and num_warps of the one tile with invariant accumulation, for each `kind` of operands,
where nothing shows that all tiles sum alike. Each is legal on every GPU, and one of those that the time model lists."""

UNALIGNED_BYTES = 40
"""Bytes of A and B that a thread may load one by one in a step: each has a 64-bit address. Found by compiling."""

WARPS_OF_SM = 12
"""Warps of an SM at most, where programs that loop over tiles share it: each thread may then have 168 registers."""


def reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """As `Family.reason`: blocks are powers of two of at least 16 that fit registers and shared memory."""
    if why := power_of_two_reason(config):
        return why
    if min(config.block_m, config.block_n, config.block_k) < 16:
        return f"blocks {config.block_m}x{config.block_n}x{config.block_k}: tl.dot needs at least 16 in each"
    if why := unsplit_reason(config) or single_cta_reason(config):
        return why
    if problem.ragged and not config.persistent:
        return "persistent is False; only the device knows how many tiles groups have, so programs loop over them"
    if why := dot_reason(config, problem, gpu) or _accumulation_reason(config, problem, gpu):
        return why
    if why := shared_memory_reason(portable_shared_bytes(config, problem, gpu), gpu):
        return why
    registers = config.block_m * config.block_n // (config.num_warps * (32 if gpu.is_nvidia else 64))
    if registers > accumulator_limit(config, problem, gpu):
        return (
            f"{registers} accumulator registers a thread leave no room for operands; use more warps or a smaller tile"
        )
    loaded = (config.block_m + config.block_n) * config.block_k // (config.num_warps * (32 if gpu.is_nvidia else 64))
    if min(problem.element_bytes, problem.b_element_bytes) <= 1 and problem.alignment < 4 and loaded > UNALIGNED_BYTES:
        return f"{loaded} bytes a thread are loaded one by one; at most {UNALIGNED_BYTES} leave registers for addresses"
    return ""


def programs_of_sm(config: Config, problem: Problem, gpu: Gpu) -> int:
    """Programs that a launch has for each SM, where programs loop over tiles.

    One; of groups with weights of 8 and 4 bits as many as fit, as in a launch of a program for each tile. Few rows have
    small tiles, and one such program does not keep enough loads under way to read weights as fast as memory can.
    """
    if not problem.ragged or problem.element_bytes == problem.b_element_bytes:
        return 1
    return max(1, min(gpu.shared_bytes // portable_shared_bytes(config, problem, gpu), WARPS_OF_SM // config.num_warps))


def kind(problem: Problem) -> str:
    """The kind of operands, by their dtypes and precision, that tiles are listed for."""
    p = problem
    if p.element_bytes != p.b_element_bytes:
        return "mixed"
    if p.dtype == "fp32":
        return {"ieee": "fp32", "tf32": "tf32"}.get(p.precision, "three products")
    return {1: "byte", 2: "half", 8: "fp64"}[p.element_bytes]


def reference(problem: Problem) -> tuple[int, int, int, int]:
    """The tile of `REFERENCE` for a problem; a smaller one where 16 elements of K share a scale."""
    return (16, 32, 16, 2) if problem.group == 16 else REFERENCE[kind(problem)]


def _accumulation_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """Why the sums are not those of other configs with invariant accumulation, or ""."""
    p = problem
    if not p.fixes_sums:
        return ""
    blocks = config.block_m, config.block_n, config.block_k, config.num_warps
    if p.dtype == "fp64" and HAS_FP64 and gpu.capability == 90:
        return "dtype is fp64; with invariant accumulation only the exact kernel multiplies it on sm_90, without groups"
    if gpu.capability != 90 or kind(p) in ("three products", "fp64"):
        wanted = reference(p)
        if blocks == wanted:
            return ""
        tile, warps = "x".join(map(str, wanted[:3])), wanted[3]
        return f"with invariant accumulation of such operands the tile must be {tile} of {warps} warps on {gpu.name}"
    if p.promotes and config.block_k != p.group:
        return f"block_k is {config.block_k}; with invariant accumulation sums of {p.group} elements of K are added"
    if (p.dtype in FP8 or p.element_bytes != p.b_element_bytes) and not uses_wgmma(config.block_m, config):
        given = f"block_m and num_warps are {config.block_m} and {config.num_warps}"
        return f"{given}; invariant accumulation of fp8 and 8-bit weights needs wgmma: at least 64 rows and 4 warps"
    return one_chain_reason(config, problem)
