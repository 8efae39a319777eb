"""Rules of legality that several kernel families share, and limits of the hardware.

A function whose name ends in `_reason` returns why a config is not legal, or "".
"""

from tritonmm.alignment import power_of_two
from tritonmm.config import Config
from tritonmm.dtypes import BYTES, PACKED
from tritonmm.gpu import TRITON, Gpu
from tritonmm.model.chunks import chunks
from tritonmm.orders import Dies
from tritonmm.problem import Epilogue, Problem

SM_REGISTERS = 65_536
"""32-bit registers of an SM of compute capability 8.0 to 10.0. Source: CUDA C++ Programming Guide."""

MAX_SHARED_BYTES = 232_448
"""Shared memory of one CTA on sm_90, in bytes: 227 KiB. Source: CUDA C++ Programming Guide, compute capability 9.0."""

THREAD_REGISTERS = 255
"""32-bit registers that a thread may have. Source: as above."""

HAS_FP64 = TRITON.startswith(("3.6.", "3.9."))
"""True if the layout of fp64 MMA is known for this Triton: its dot's with 3.6, `gluon_compat.mma_f64`'s with 3.9. Then
sm_90 has a kernel for fp64 besides the portable one."""

ONE_DIE = "sm_90 has one die"
"""Why families for sm_90 alone take no order of dies."""

PLAIN = Epilogue()
"""The epilogue that only rounds."""

PADDED_BYTES = 16
"""On gfx950 Triton 3.9 pads the stages, which are copied to shared memory directly: by at most one byte for so many.
Found by compiling every kind of operands: one for 21 at most, in bf16 tiles of 128 x 256 x 64."""

BARRIER_BYTES = 1024
"""Bytes of shared memory that are counted for the mbarriers and the alignment of a CTA's buffers: an upper bound."""


def shared_memory_reason(shared: int, gpu: Gpu) -> str:
    """shared: bytes of shared memory that one CTA needs."""
    return (
        f"{shared} bytes of shared memory exceed the {gpu.shared_bytes} of {gpu.name}; fewer stages or a smaller tile"
        if shared > gpu.shared_bytes
        else ""
    )


def single_cta_reason(config: Config) -> str:
    """For families without clusters."""
    if config.cluster:
        return f"cluster is {config.cluster!r}; the {config.kernel} kernel has no clusters"
    return ""


def one_die_reason(config: Config, why: str) -> str:
    """For families that divide no order among dies. why: the reason for that."""
    if isinstance(config.order, Dies):
        return f"order is {config.order}; the {config.kernel} kernel does not divide tiles among dies: {why}"
    return ""


def unsplit_reason(config: Config) -> str:
    """For families that do not split K."""
    if config.split_k != 1 or config.split_tail != 1:
        splits = f"{config.split_k}, {config.split_tail}"
        return f"split_k, split_tail are {splits}; the {config.kernel} kernel does not split K"
    return ""


def asymmetric_reason(config: Config, problem: Problem) -> str:
    """For families that write each element they compute once."""
    return f"the {config.kernel} kernel does not write symmetric products" if problem.symmetric else ""


def one_chain_reason(config: Config, problem: Problem) -> str:
    """What invariant accumulation requires of families that sum K in one chain: one program, and no chunks."""
    if not problem.fixes_sums:
        return ""
    if chunks(problem) > 1:
        return f"invariant sums of K = {problem.k} have {chunks(problem)} chunks; {config.kernel} sums all in one chain"
    if config.split_k == config.split_tail == 1:
        return ""
    splits = f"{config.split_k}, {config.split_tail}"
    return f"split_k, split_tail are {splits}; with invariant accumulation one program sums all of K"


def other_gpu_reason(config: Config, gpu: Gpu) -> str:
    """Why a family has no invariant accumulation on a GPU other than a Hopper: its sums were not compared there."""
    return f"on {gpu.name} invariant accumulation is the portable kernel's alone; {config.kernel} was compared on sm_90"


def uses_wgmma(rows: int, config: Config) -> bool:
    """Whether Triton multiplies blocks of so many rows, of operands of at most 2 bytes, by wgmma on sm_90."""
    return rows >= 64 and config.num_warps >= 4


def power_of_two_reason(config: Config) -> str:
    """Blocks and warps are powers of two in Triton."""
    for name in ("block_m", "block_n", "block_k", "num_warps"):
        value = getattr(config, name)
        if value & (value - 1):
            return f"{name} is {value}; Triton needs a power of two"
    return f"num_warps is {config.num_warps}; at most 16 are legal" if config.num_warps > 16 else ""


def dot_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """What tl.dot requires of dtypes and block_k."""
    p = problem
    if p.precision == "tf32x3" and not gpu.is_nvidia:
        return f"precision is tf32x3; {gpu.name} has no tf32, use bf16x3"
    if p.precision == "tf32" and not (gpu.is_nvidia or gpu.arch == "gfx942"):
        return f"precision is tf32; {gpu.name} has no tf32, use bf16x3"
    if p.element_bytes == 1 and config.block_k < 32:
        return f"block_k is {config.block_k}; tl.dot needs at least 32 of {p.dtype}"
    together, _ = PACKED.get(p.b_dtype, (1, 1))
    if config.block_k < together:
        return f"block_k is {config.block_k}; {p.b_dtype} is packed {together} elements of K at a time"
    if p.block_scaled and p.group % config.block_k:
        return f"block_k is {config.block_k}; it must divide the {p.group} elements of K that share a scale"
    if p.promotes and config.block_k > 128:
        return f"block_k is {config.block_k}; sums of fp8 are added in fp32 at least every 128 elements of K"
    return operands_reason(problem, gpu)


def operands_reason(problem: Problem, gpu: Gpu) -> str:
    """What all portable kernels require: dtypes that the GPU has, and no batch with scales."""
    p = problem
    if "fp8e4m3" in (p.dtype, p.b_dtype) and gpu.is_nvidia and gpu.capability < 89:
        return f"dtype is {p.dtype}, {p.b_dtype}; fp8e4m3 needs sm_89, {gpu.name} is {gpu.arch}"
    return f"batch is {p.batch}; a GEMM with scales must have a batch of 1" if p.scales and p.batch > 1 else ""


def tma_reason(problem: Problem) -> str:
    """What TMA requires of A and B."""
    if "s" in problem.layout:
        return f"layout is {problem.layout}; TMA needs a contiguous dimension in each operand"
    for name, alignment in (("a", problem.a_alignment), ("b", problem.b_alignment)):
        if alignment < 16:
            return f"{name} is aligned to {alignment} bytes; TMA needs addresses and strides that are multiples of 16"
    if not problem.k:
        return "k is 0; TMA has no descriptor for an empty operand"
    return ""


def accumulator_limit(config: Config, problem: Problem, gpu: Gpu) -> int:
    """Sums that a thread may hold: the largest powers of two with which no kernel of `tests/test_compile.py` spills.

    The other registers of a thread hold operands, addresses and masks.
    """
    on_cuda_cores = ("ieee", "tf32") if gpu.capability >= 100 else ("ieee",)
    if problem.dtype == "fp32" and problem.precision in on_cuda_cores:
        return 32  # FMA: operands are in registers
    if problem.precision.endswith("x3"):
        if problem.alignment < 16:  # parts of operands, and an address for each element
            return 16 if gpu.capability >= 90 else 8
        return 64 if problem.precision == "bf16x3" and gpu.capability >= 90 else 32
    if problem.dtype == "fp64":
        if gpu.capability >= 100:
            return 8  # FMA: two registers an element
        return 32 if problem.alignment == 16 and config.num_warps <= 8 else 16
    of_experts = problem.ragged and problem.element_bytes != problem.b_element_bytes
    if (problem.b_dtype in ("int8", *PACKED) or of_experts) and gpu.is_nvidia and gpu.capability != 90:
        return 32  # 8-bit operands are permuted or converted in registers
    by_element = min(problem.alignment, problem.out_alignment) < 16
    if by_element and problem.epilogue.c and gpu.capability != 90:
        return 32  # an address and a mask for each element of C and of the output
    wgmma = problem.element_bytes == problem.b_element_bytes <= 2 and not problem.promotes
    return 128 if gpu.capability == 90 and wgmma else 64  # wgmma reads operands from shared memory


def portable_shared_bytes(config: Config, problem: Problem, gpu: Gpu) -> int:
    """Shared memory of one CTA of a kernel in plain Triton, in bytes: an upper bound.

    The pipeline holds the operands of num_stages steps and, where B is of 1 byte and A of 2, a block of B converted to
    A's dtype; of tf32x3 it may hold more. Afterwards a tile of sums changes layout in the same memory: in the dtype of
    the sums if anything is done with them before they are rounded, else in the output's. `tests/compile_random.py`
    compares it with what kernels need.
    """
    p = problem
    converted = int(config.block_n * config.block_k * max(0.0, p.element_bytes - p.b_element_bytes))
    if p.precision == "tf32x3":  # a block of B is written again as two of tf32, in the place of one of the stages
        converted = max(0, 2 * config.block_n * config.block_k * p.element_bytes - config.step_bytes(p))
    pipeline = config.num_stages * config.step_bytes(p) + converted
    if p.ragged and p.scales == "group-zero":  # a row of scales changes layout meanwhile
        pipeline += config.block_n * int(BYTES["fp32"])
    if gpu.arch == "gfx950":
        pipeline += pipeline // PADDED_BYTES
    is_plain = not (p.scales or p.symmetric or p.epilogue != PLAIN or config.split_k > 1)
    element = p.out_element_bytes if is_plain else max(p.out_element_bytes, int(BYTES[p.sum_dtype]))
    return max(pipeline, config.block_m * config.block_n * element) + BARRIER_BYTES


def divisor(problem: Problem, elements: int, *lines: int) -> int:
    """The largest power of two, at most `elements`, that divides the lengths of the contiguous lines of A and B, and
    `lines`.

    elements: the elements that the alignment of addresses and strides holds; 0 counts as 1.
    """
    p = problem
    bits = max(1, elements)
    for line in ({"n": p.k, "t": p.m}.get(p.layout[0], 1), {"n": p.n, "t": p.k}.get(p.layout[1], 1), *lines):
        bits |= line
    return power_of_two(bits)
