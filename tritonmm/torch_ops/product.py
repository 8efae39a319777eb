"""From tensors to a launch: the plan of every GEMM is kept by the operands it was made for."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from tritonmm import families, forks
from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.dtypes import output_dtype
from tritonmm.moduli import SAFE
from tritonmm.problem import Epilogue, Problem
from tritonmm.torch_ops.checks import is_transposed
from tritonmm.torch_ops.mode import required

CACHED_CALLS = 4096
"""Calls that are kept, 0.9 kB each, and 2.3 kB with a plan of its own."""

BARE = (False, False, False)
"""The epilogue of a GEMM without alpha, bias and C."""


class How(NamedTuple):
    """What is asked of a GEMM, besides its operands and epilogue.

    precision: as `Problem.precision`; "" is what torch is set to.
    out_dtype: of a new output; None is `dtypes.default_output`.
    scale_a, scale_b: the scales of the operands; scales, group: what they apply to, as in `Problem`.
    accumulation: as `Problem.accumulation`; "" is what `enable` requires.
    symmetric: as `Problem.symmetric`. With "gram" b is a view of a, also for derivatives. With "" a product of a by a
        transposed may be computed as a symmetric one, too.
    """

    precision: str = ""
    out_dtype: torch.dtype | None = None
    scale_a: torch.Tensor | None = None
    scale_b: torch.Tensor | None = None
    scales: str = ""
    group: int = 128
    accumulation: str = ""
    symmetric: str = ""

    @property
    def is_usual(self) -> bool:
        """Whether a call of the same function with only tensors, alpha and beta asks for the same."""
        return not (self.precision or self.out_dtype or self.scales or self.accumulation)


class Call(NamedTuple):
    """The plan of a GEMM, and the shape and strides of a new output."""

    plan: Any  # a `plan.AnyPlan` or an `OzakiPlan`, whose modules import Triton: that takes longer than all of tritonmm
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    c: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    config: Config | None = None,
    how: How | None = None,
) -> torch.Tensor:
    """out = alpha * (a @ b) + bias + beta * c, of plain tensors; a new `out` if none is given.

    a: (m, k) or (batch, m, k). b: (k, n) or (batch, k, n). out: (m, n) or (batch, m, n), with any strides; it must not
    overlap a and b, and may be c itself. c: broadcastable to out's shape. bias: (n,). The caller has checked shapes and
    dtypes.

    As in BLAS, c is not read if beta is 0, and a and b are not read if alpha is 0: NaNs in them do not propagate.
    """
    if beta == 0:
        c = None
    if out is None and (how is not None or a.dtype is torch.int8):
        out = new_output(a, b, how and how.out_dtype)
    if alpha == 0:
        return _addends(a, b, out, c, bias, beta)
    if not a.shape[-1]:
        alpha = 1.0  # an empty sum is 0, also times NaN or infinity
    epilogue = (alpha != 1, bias is not None, c is not None)
    call = _bind(a, b, epilogue, out, config, how) if config else find(a, b, epilogue, out, how)
    if out is None:
        out = empty(call.shape, call.strides, a)
    if bias is not None and bias.stride(0) != 1:
        bias = bias.contiguous()
    scales = (how.scale_a, how.scale_b) if how and how.scales else None
    return call.plan(a, b, out, alpha=alpha, beta=beta, c=c, bias=bias, scales=scales)


def new_output(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """An uninitialised output for a @ b, of `dtype` or the default for a's dtype."""
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=dtype or output_dtype(a.dtype))


def key(a: torch.Tensor, b: torch.Tensor) -> tuple:
    """Everything about two operands that their plan depends on."""
    dtype = a.dtype
    at_a, at_b = a.data_ptr(), b.data_ptr()
    device_a, device_b = a.get_device(), b.get_device()  # numbers: they compare faster than devices
    return (
        a.shape,
        b.shape,
        a.stride(),
        b.stride(),
        dtype,
        b.dtype,
        a.device if device_a < 0 else device_a,
        b.device if device_b < 0 else device_b,
        (at_a & 15) << 4 | at_b & 15,  # each one's: (aligned, unaligned) is not (unaligned, aligned)
        at_a == at_b,  # with the strides, whether one is the other transposed
        fp32_precision() if dtype is torch.float32 else "ieee",
        required(),
    )


def find(
    a: torch.Tensor,
    b: torch.Tensor,
    epilogue: tuple[bool, bool, bool],
    out: torch.Tensor | None = None,
    how: How | None = None,
) -> Call:
    """The call of a GEMM with the epilogue (scaled, bias, c): a kept one, or a new one."""
    asked = about(a, b, out, epilogue, how)
    call = _CALLS.get(asked)
    if call is None:
        call = _bind(a, b, epilogue, out, None, settled(how or How(), asked))
        remember(_CALLS, asked, call)
    return call


def settled(how: How, asked: tuple) -> How:
    """`how` with the precision and accumulation of a key that begins with `key`: another thread may have changed them
    since."""
    *_, precision, accumulation = asked[0]
    return how._replace(precision=how.precision or precision, accumulation=how.accumulation or accumulation)


def adopt(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, config: Config, how: How | None = None) -> None:
    """From here on `config` computes a @ b of such operands, into a new output or one such as `out`."""
    remember(_CALLS, about(a, b, out, BARE, how), _bind(a, b, BARE, out, config, how))


def about(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None,
    epilogue: tuple[bool, bool, bool] = BARE,
    how: How | None = None,
) -> tuple:
    """The key that the call of a GEMM is kept by."""
    known = key(a, b), epilogue
    if how is not None:
        known += how.precision, how.scales, how.group, how.accumulation, how.symmetric
    return known if out is None else (*known, out.stride(), out.dtype, out.data_ptr() & 15)


def remember(entries: dict, about: tuple, entry: object) -> None:
    """Adds an entry to a bounded dict that is read without a lock; the oldest entries are dropped."""
    with _LOCK:
        while len(entries) >= CACHED_CALLS:
            del entries[next(iter(entries))]
        entries[about] = entry


def problem_of(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, epilogue: tuple[bool, bool, bool], how: How | None = None
) -> Problem:
    """The problem of these tensors, in the precision that is asked for or that torch is set to, and with the
    accumulation that is asked for or that `enable` requires."""
    how = how or How()
    precision, accumulation = how.precision or fp32_precision(), how.accumulation or required()
    return Problem.of(a, b, out, precision, Epilogue(*epilogue), how.scales, how.group, accumulation, how.symmetric)


def problem_for(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, epilogue: tuple[bool, bool, bool], how: How | None, kernel=""
) -> Problem:
    """`problem_of`; or, where b is a transposed, the same as a symmetric product if that is expected to be faster, and
    a symmetric one in full.

    kernel: the family whose kernels are considered; "" for all.
    """
    from tritonmm.selection import as_gram_if_faster, in_full_if_faster

    problem = problem_of(a, b, out, epilogue, how)
    if problem.ozaki:  # in full, whose elements above the diagonal have the bits of those opposite
        return problem
    if problem.symmetric == "gram" and problem.flops > 0:
        return in_full_if_faster(problem, gpu_of(a.device), kernel)
    is_gram = problem.may_be_symmetric and not problem.symmetric and problem.flops > 0 and is_transposed(a, b)
    return as_gram_if_faster(problem, gpu_of(a.device), kernel) if is_gram else problem


def fp32_precision() -> str:
    """How torch multiplies fp32 on GPUs, as `Problem.precision` says it."""
    # fp32_precision, not allow_tf32: reading the latter raises once the former has been set.
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


def gpu_of(device: torch.device) -> gpus.Gpu:
    """The GPU to plan for. For CPU tensors, in the interpreter, it is the default one."""
    return gpus.of_device(device.index) if device.type == "cuda" else gpus.default()


# Inductor's allocator, a third of the time of Tensor.new_empty: it neither dispatches nor looks at modes,
# both of which are settled where it is called.
_empty_cuda = torch._C._dynamo.guards._empty_strided_cuda
_empty_cpu = torch._C._dynamo.guards._empty_strided_cpu
_current_device = getattr(torch._C, "_cuda_getDevice", None)  # which a build for CPUs alone does not have


def empty(shape: tuple[int, ...], strides: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """A new tensor with the dtype and device of `like`."""
    index = like.get_device()
    if index < 0:
        return _empty_cpu(shape, strides, like.dtype)
    if index == _current_device():
        return _empty_cuda(shape, strides, like.dtype)
    return like.new_empty_strided(shape, strides)


def _bind(a, b, epilogue, out, config, how=None) -> Call:
    from tritonmm.plan import INTERPRETED, plan_for
    from tritonmm.selection import choose

    check_device(a.device)
    if out is None:
        out = new_output(a, b, None)
    if config is not None:
        problem = problem_of(a, b, out, epilogue, how)
        if not config.order.everywhere and problem.may_be_symmetric and not problem.symmetric and is_transposed(a, b):
            problem = replace(problem, symmetric="gram")
    else:
        kernel = families.portable() if INTERPRETED else ""  # the others need a GPU
        problem = problem_for(a, b, out, epilogue, how, kernel)
        if problem.ozaki:
            from tritonmm.torch_ops.ozaki_product import plan_of

            native = None
            if problem.precision == SAFE:
                native = problem_for(a, b, out, epilogue, (how or How())._replace(precision="ieee"), kernel)
            return Call(plan_of(problem, native, a.device), tuple(out.shape), out.stride())
        if INTERPRETED:  # NumPy adds up, in an order of its own
            problem = replace(problem, accumulation="any")
        config = choose(problem, gpu_of(a.device), kernel)
    return Call(plan_for(problem, config, a.device), tuple(out.shape), out.stride())


def check_device(device: torch.device) -> None:
    """Raises RuntimeError unless kernels run on tensors of that device."""
    from tritonmm.launch.interpreter import INTERPRETED

    if device.type == "cuda" and INTERPRETED:
        raise RuntimeError("TRITON_INTERPRET is set, so kernels run on CPU tensors only; unset it to use the GPU")
    if device.type != "cuda" and not (INTERPRETED and device.type == "cpu"):
        raise RuntimeError(
            f"the operands are on {device}, and tritonmm computes on GPUs; move them to one, or set"
            " TRITON_INTERPRET=1 before importing tritonmm to run its kernels on the CPU in Triton's interpreter"
        )


def _addends(a, b, out, c, bias, beta) -> torch.Tensor:
    """The result for alpha = 0: bias and beta * c."""
    if out is None:
        out = new_output(a, b, None)
    if c is None:
        return out.copy_(bias) if bias is not None else out.zero_()
    total = (c.double() if c.dtype == torch.float64 else c.float()) * beta
    return out.copy_(total if bias is None else total + bias)


_CALLS: dict[tuple, Call] = {}
_LOCK = forks.lock()
