"""Rules of legality that several kernel families share. Each returns why a config is not legal, or ""."""

from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.problem import Problem


def shared_memory_reason(shared: int, gpu: Gpu) -> str:
    """shared: bytes that one CTA takes."""
    return (
        f"{shared} bytes of shared memory exceed the {gpu.shared_bytes} of {gpu.name}; fewer stages or a smaller tile"
        if shared > gpu.shared_bytes
        else ""
    )


def single_cta_reason(config: Config) -> str:
    """What families ask that have no clusters."""
    if config.cluster:
        return f"cluster is {config.cluster!r}; the {config.kernel} kernel has programs of one CTA"
    return ""


def unsplit_reason(config: Config) -> str:
    """What families ask that do not split K."""
    if config.split_k != 1 or config.split_tail != 1:
        splits = f"{config.split_k}, {config.split_tail}"
        return f"split_k, split_tail are {splits}; the {config.kernel} kernel does not split K"
    return ""


def power_of_two_reason(config: Config) -> str:
    """What Triton asks of blocks and warps."""
    for name in ("block_m", "block_n", "block_k", "num_warps"):
        value = getattr(config, name)
        if value & (value - 1):
            return f"{name} is {value}; Triton needs a power of two"
    return f"num_warps is {config.num_warps}; at most 16" if config.num_warps > 16 else ""


def dot_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """What tl.dot asks of dtypes, and of the depth of a step."""
    p = problem
    if p.precision == "tf32x3" and not gpu.is_nvidia:
        return f"precision is tf32x3; {gpu.name} has none, bf16x3 it has"
    if p.element_bytes == 1 and config.block_k < 32:
        return f"block_k is {config.block_k}; tl.dot needs at least 32 of {p.dtype}"
    if p.grouped and p.group % config.block_k:
        return f"block_k is {config.block_k}; it must divide the {p.group} elements of K that share a scale"
    if p.promotes and config.block_k > 128:
        return f"block_k is {config.block_k}; sums of fp8 are added in fp32 every 128 elements of K, or more often"
    return operands_reason(problem, gpu)


def operands_reason(problem: Problem, gpu: Gpu) -> str:
    """What all portable kernels ask of operands: dtypes that the GPU has, and scales of one GEMM."""
    p = problem
    if "fp8e4m3" in (p.dtype, p.b_dtype) and gpu.is_nvidia and gpu.capability < 89:
        return f"dtype is {p.dtype}, {p.b_dtype}; fp8e4m3 needs sm_89, {gpu.name} is {gpu.arch}"
    return f"batch is {p.batch}; scales are those of one product" if p.scales and p.batch > 1 else ""


def tma_reason(problem: Problem) -> str:
    """What all kernels ask that load by TMA."""
    if "s" in problem.layout:
        return f"layout is {problem.layout}; TMA needs a contiguous dimension in each operand"
    for name, alignment in (("a", problem.a_alignment), ("b", problem.b_alignment)):
        if alignment < 16:
            return f"{name} is aligned to {alignment} bytes; TMA needs addresses and strides of multiples of 16"
    if not problem.k:
        return "k is 0; TMA describes no empty operand"
    return ""


def accumulator_limit(config: Config, problem: Problem, gpu: Gpu) -> int:
    """Sums a thread may hold before others spill, seen by compiling for each target."""
    on_cuda_cores = ("ieee", "tf32") if gpu.capability >= 100 else ("ieee",)
    if problem.dtype == "fp32" and problem.precision in on_cuda_cores:
        return 32  # FMA on operands in registers
    if problem.precision.endswith("x3"):
        if problem.alignment < 16:  # the parts of operands are in registers, and an address for each
            return 16 if gpu.capability >= 90 else 8
        return 64 if problem.precision == "bf16x3" and gpu.capability >= 90 else 32
    if problem.dtype == "fp64":
        if gpu.capability >= 100:
            return 8  # FMA, of two registers each
        return 32 if problem.alignment == 16 and config.num_warps <= 8 else 16
    if problem.b_dtype == "int8" and gpu.is_nvidia and gpu.capability != 90:
        return 32  # bytes are put in order, or converted, in registers
    wgmma = problem.element_bytes == problem.b_element_bytes <= 2 and not problem.promotes
    return 128 if gpu.capability == 90 and wgmma else 64  # wgmma reads shared memory


def portable_shared_bytes(config: Config, problem: Problem) -> int:
    """Shared memory of one CTA where Triton's compiler lays out the stages, in bytes; the epilogue reuses them."""
    epilogue = config.block_m * config.block_n * problem.out_element_bytes
    return max(config.num_stages * config.step_bytes(problem), epilogue) + 1024  # barriers and alignment
