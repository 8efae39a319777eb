"""torch's matrix products, computed by tritonmm: same shapes, same exception classes."""

import itertools
import math
import warnings

import torch

from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.plan import INTERPRETED, plan_for
from tritonmm.problem import Problem, dtype_name
from tritonmm.select import choose


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, config: Config | None = None
) -> torch.Tensor:
    """The product of two tensors, with torch.matmul's shape rules.

    a, b: bf16, fp16 or fp32 tensors of one dtype and one device, of at least one dimension, any
        strides. 1-D operands are row and column vectors and lose their dimension in the result;
        dimensions before the last two are a batch and broadcast. Sizes may be 0, and K = 0 gives zeros.
    out: where to put the result; resized, with torch's warning, if its shape is wrong. It may share
        memory with an input: the product is then computed aside and copied.
    config: how to do it, instead of what `select` chooses.

    Sums are taken in fp32 and rounded once. fp32 operands follow
    torch.backends.cuda.matmul.fp32_precision: IEEE products, or tf32 where it says "tf32".
    Results are bitwise the same from run to run. Differentiable, any number of times, without `out`.

    Raises RuntimeError, as torch does, for shapes that cannot be multiplied, for dtypes or devices
    that differ, and for CPU tensors unless Triton's interpreter is on; NotImplementedError for dtypes
    that tritonmm does not multiply; ValueError for a config that cannot do it.
    """
    _check_operands(a, b)
    left = a.unsqueeze(0) if a.dim() == 1 else a
    right = b.unsqueeze(1) if b.dim() == 1 else b
    if left.shape[-1] != right.shape[-2]:
        raise RuntimeError(
            f"matmul: inner dimensions differ: {_shape(a)} has {left.shape[-1]} columns, {_shape(b)} has"
            f" {right.shape[-2]} rows"
        )
    try:
        batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except RuntimeError:
        raise RuntimeError(f"matmul: batch dimensions of {_shape(a)} and {_shape(b)} do not broadcast") from None
    rows = () if a.dim() == 1 else (left.shape[-2],)
    cols = () if b.dim() == 1 else (right.shape[-1],)
    shape = *batch, *rows, *cols

    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        if out is not None:
            raise RuntimeError("matmul: out= does not support automatic differentiation, but an operand requires grad")
        return _Product.apply(*_folded(left, right, batch), config).reshape(shape)
    if out is None:
        out = a.new_empty(shape)
    else:
        _check_out(out, a, shape)
    left, right = _folded(left.resolve_neg(), right.resolve_neg(), batch)
    target = _as_product(out, left, right)
    if target is None or _shares_memory(out, a) or _shares_memory(out, b):
        return out.copy_(_product(left, right, config).view(shape))
    _product(left, right, config, target)
    return out


class _Product(torch.autograd.Function):
    """`_product` with its derivatives, which are products again and so differentiable themselves."""

    @staticmethod
    def forward(ctx, a, b, config):
        ctx.save_for_backward(a, b)
        return _product(a.resolve_neg(), b.resolve_neg(), config)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad_a = matmul(grad, b.mT) if ctx.needs_input_grad[0] else None
        grad_b = matmul(a.mT, grad) if ctx.needs_input_grad[1] else None
        return grad_a, grad_b, None


def _product(
    a: torch.Tensor, b: torch.Tensor, config: Config | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """out = a @ b for (m, k) by (k, n), or (batch, m, k) by (batch, k, n); `out` is made if not given."""
    if out is None:
        out = a.new_empty((*a.shape[:-1], b.shape[-1]))
    problem = Problem.of(a, b, out, _fp32_precision())
    if config is None:
        gpu = gpus.of_device(a.device.index) if a.is_cuda else gpus.default()
        config = choose(problem, gpu, "tile" if INTERPRETED else "")  # the others do not run in the interpreter
    return plan_for(problem, config, a.device)(a, b, out)


def _folded(a: torch.Tensor, b: torch.Tensor, batch: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
    """The same product as one 2-D or 3-D one, by views where strides allow and copies where not."""
    if not batch:
        return a, b
    if b.dim() == 2 and _is_foldable(a):
        return a.reshape(math.prod(a.shape[:-1]), a.shape[-1]), b
    count = math.prod(batch)
    a, b = (x.expand(*batch, *x.shape[-2:]).reshape(count, *x.shape[-2:]) for x in (a, b))
    return a, b


def _is_foldable(a: torch.Tensor) -> bool:
    """Whether the batch and row dimensions of `a` are one evenly strided dimension."""
    sizes, strides = a.shape[:-1], a.stride()[:-1]
    pairs = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(pairs))


def _as_product(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    """`out` viewed in the shape of the folded product a @ b, or None where its strides forbid it."""
    try:
        return out.view(*a.shape[:-1], b.shape[-1])
    except RuntimeError:
        return None


def _check_operands(a: torch.Tensor, b: torch.Tensor) -> None:
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"matmul: {name} must be a Tensor, not {type(x).__name__}")
    if not a.dim() or not b.dim():
        raise RuntimeError(f"matmul: both operands need at least one dimension, but they have {a.dim()} and {b.dim()}")
    if a.dtype != b.dtype:
        raise RuntimeError(f"matmul: both operands need the same dtype, but they are {a.dtype} and {b.dtype}")
    dtype_name(a.dtype)
    if a.device != b.device:
        raise RuntimeError(f"matmul: both operands need the same device, but they are on {a.device} and {b.device}")
    if not a.is_cuda and not (INTERPRETED and a.device.type == "cpu"):
        raise RuntimeError(
            f"matmul: the operands are on {a.device}, and tritonmm computes on GPUs; move them to one, or set"
            " TRITON_INTERPRET=1 before importing tritonmm to run its kernels on the CPU in Triton's interpreter"
        )
    if a.is_cuda and INTERPRETED:
        raise RuntimeError(
            "matmul: TRITON_INTERPRET is set, so kernels run on CPU tensors only; unset it to use the GPU"
        )


def _check_out(out: torch.Tensor, a: torch.Tensor, shape: tuple[int, ...]) -> None:
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"matmul: out must be a Tensor, not {type(out).__name__}")
    if out.dtype != a.dtype:
        raise RuntimeError(f"matmul: out must have dtype {a.dtype}, but it has {out.dtype}")
    if out.device != a.device:
        raise RuntimeError(f"matmul: out must be on {a.device}, but it is on {out.device}")
    if torch.is_grad_enabled() and out.requires_grad:
        raise RuntimeError("matmul: out= does not support automatic differentiation, but out requires grad")
    if out.shape != shape:
        if out.numel():
            warnings.warn(
                f"matmul: out has shape {_shape(out)} and is resized to {list(shape)}; torch deprecates resizing an"
                " out that is not empty, call out.resize_(0) first to do it knowingly",
                stacklevel=3,
            )
        out.resize_(shape)
    if any(size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise RuntimeError("matmul: several elements of out share one memory location; clone() it first")


def _shares_memory(out: torch.Tensor, x: torch.Tensor) -> bool:
    return out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def _fp32_precision() -> str:
    # fp32_precision, not allow_tf32: reading the latter raises once the former has been set.
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


def _shape(x: torch.Tensor) -> str:
    return "x".join(map(str, x.shape))
