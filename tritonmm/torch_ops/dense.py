"""torch's matrix products, computed by tritonmm: same arguments, shapes, exception classes and derivatives.

All take bf16, fp16, fp32 or fp64 tensors of one dtype and one device, of any strides, and of sizes that may be 0; int8
and fp8 are `quantized`'s. Sums are taken in fp32, of fp64 in fp64, and rounded once, after alpha, beta, bias and C:
what torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction and its like would allow, no kernel does. fp32
operands follow torch.backends.cuda.matmul.fp32_precision: IEEE products, or tf32 where it says "tf32". Results are
bitwise the same from run to run. Differentiable any number of times, forwards and backwards, without `out`.

precision: how fp32 operands are multiplied, instead: "ieee", "tf32", or as sums of three products of tensor cores,
    "tf32x3" (about as exact as IEEE products) or "bf16x3" (between tf32 and that, and faster). So are derivatives.
out_dtype: of mm and bmm: torch.float32 for bf16 and fp16 operands, whose sums are then not rounded.

out: where to put the result; resized, with torch's warning, if its shape is wrong. It may share memory with an
    operand: the product is then computed aside and copied.
config: how to do it, instead of what `select` chooses.
tune: "first-call" has the configs that should be fastest measured when operands are the first of their kind, which
    takes seconds; see `first_call.tune`. What wins is used by all later calls, and by other processes.

Raises RuntimeError, as torch does, for shapes that cannot be multiplied, for dtypes or devices that differ, and for CPU
tensors unless Triton's interpreter is on; NotImplementedError for dtypes and layouts that tritonmm does not multiply;
TypeError for operands, alpha, beta or a config of another type; ValueError for a config that cannot do it, or for
another `tune`.
"""

import math
from typing import Any

import torch
from torch.autograd.graph import increment_version

from tritonmm.config import Config
from tritonmm.problem import PRECISIONS
from tritonmm.torch_ops import first_call
from tritonmm.torch_ops.call_cache import again, keep
from tritonmm.torch_ops.checks import (
    addend,
    broadcast_batch,
    check_dims,
    check_inner,
    check_operands,
    expanded,
    is_same,
    overlap,
    prepare_out,
    scalar,
    shape_of,
)
from tritonmm.torch_ops.operator import compute, is_plain
from tritonmm.torch_ops.product import How, product

Tensor = torch.Tensor


def mm(
    input: Tensor,
    mat2: Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    config: Config | None = None,
    precision: str = "",
    tune: str = "",
) -> Tensor:
    """The product of two matrices, (m, k) and (k, n), as torch.mm."""
    how = _how(input, precision, out_dtype)
    if config is None and not tune and how is None and (found := again("mm", input, mat2, None, out)) is not None:
        return found
    input, mat2 = _cast("mm", out, input, mat2)
    check_operands("mm", input, mat2)
    check_dims("mm", input=(input, 2), mat2=(mat2, 2))
    check_inner("mm", input, mat2, input, mat2)
    shape = input.shape[0], mat2.shape[1]
    return _deliver("mm", (input, mat2), input, mat2, shape, out=out, config=config, how=how, tune=tune)


def bmm(
    input: Tensor,
    mat2: Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    config: Config | None = None,
    precision: str = "",
    tune: str = "",
) -> Tensor:
    """The products of two stacks of matrices, (batch, m, k) and (batch, k, n), as torch.bmm."""
    how = _how(input, precision, out_dtype)
    if config is None and not tune and how is None and (found := again("bmm", input, mat2, None, out)) is not None:
        return found
    input, mat2 = _cast("bmm", out, input, mat2)
    check_operands("bmm", input, mat2)
    shape = _batched("bmm", input, mat2)
    return _deliver("bmm", (input, mat2), input, mat2, shape, out=out, config=config, how=how, tune=tune)


def matmul(
    input: Tensor,
    other: Tensor,
    *,
    out: Tensor | None = None,
    config: Config | None = None,
    precision: str = "",
    tune: str = "",
) -> Tensor:
    """The product of two tensors of at least one dimension, as torch.matmul.

    1-D operands are row and column vectors and lose their dimension in the result; dimensions before
    the last two are a batch and broadcast.
    """
    how = _how(input, precision)
    if config is None and not tune and how is None and (found := again("matmul", input, other, None, out)) is not None:
        return found
    input, other = _cast("matmul", out, input, other)
    check_operands("matmul", input, other)
    left, right, shape = matrices(input, other)
    return _deliver("matmul", (input, other), left, right, shape, out=out, config=config, how=how, tune=tune)


def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor | None = None,
    precision: str = "",
) -> Tensor:  # fmt: skip
    """beta * input + alpha * (mat1 @ mat2), as torch.addmm; `input` broadcasts to (m, n).

    beta = 0 leaves `input` unread, alpha = 0 the matrices: NaNs in what is unread do not matter.
    """
    if not precision and (found := again("addmm", mat1, mat2, input, out, alpha, beta)) is not None:
        return found
    input, mat1, mat2 = _cast("addmm", out, input, mat1, mat2)
    check_operands("addmm", mat1, mat2, input)
    check_dims("addmm", mat1=(mat1, 2), mat2=(mat2, 2))
    check_inner("addmm", mat1, mat2, mat1, mat2)
    shape = mat1.shape[0], mat2.shape[1]
    given, how = (mat1, mat2, input), _how(mat1, precision)
    return _deliver("addmm", given, mat1, mat2, shape, added=input, alpha=alpha, beta=beta, out=out, how=how)


def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor | None = None,
    precision: str = "",
) -> Tensor:  # fmt: skip
    """beta * input + alpha * bmm(batch1, batch2), as torch.baddbmm; otherwise as `addmm`."""
    if not precision and (found := again("baddbmm", batch1, batch2, input, out, alpha, beta)) is not None:
        return found
    input, batch1, batch2 = _cast("baddbmm", out, input, batch1, batch2)
    check_operands("baddbmm", batch1, batch2, input)
    shape = _batched("baddbmm", batch1, batch2)
    given, how = (batch1, batch2, input), _how(batch1, precision)
    return _deliver("baddbmm", given, batch1, batch2, shape, added=input, alpha=alpha, beta=beta, out=out, how=how)


def addbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor | None = None
) -> Tensor:
    """beta * input + alpha * the sum of bmm(batch1, batch2) over the batch, as torch.addbmm; otherwise as `addmm`.

    It is one product whose K is batch * k, so the sum is rounded once too.
    """
    input, batch1, batch2 = _cast("addbmm", out, input, batch1, batch2)
    check_operands("addbmm", batch1, batch2, input)
    batch, m, n = _batched("addbmm", batch1, batch2)
    k = batch * batch1.shape[2]
    a, b = batch1.transpose(0, 1).reshape(m, k), batch2.reshape(k, n)
    return _deliver("addbmm", (batch1, batch2, input), a, b, (m, n), added=input, alpha=alpha, beta=beta, out=out)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, precision: str = "") -> Tensor:
    """input @ weight.T + bias, as torch.nn.functional.linear: (..., k), (n, k) and (n,) to (..., n)."""
    if not precision and (found := again("linear", input, weight, bias)) is not None:
        return found
    given = _cast("linear", None, input, weight) if bias is None else _cast("linear", None, input, weight, bias)
    check_operands("linear", *given)
    input, weight = given[:2]
    if weight.dim() not in (1, 2) or not input.dim():
        raise RuntimeError(
            f"linear: input needs a dimension and weight one or two, but they are {input.dim()}-D and {weight.dim()}-D"
        )
    if weight.dim() == 1:
        found = matmul(input, weight, precision=precision)
        return found if bias is None else found + expanded("linear", given[2], found.shape)
    right = weight.t()
    left = input.unsqueeze(0) if input.dim() == 1 else input
    check_inner("linear", input, weight, left, right)
    rows, cols = left.shape[:-1], right.shape[1]
    left = left.reshape(math.prod(rows), left.shape[-1])
    shape = *input.shape[:-1], cols
    how = _how(input, precision)
    if bias is None:
        return _deliver("linear", given, left, right, shape, how=how)
    added = given[2]
    if bias.dim() > 1 and input.dim() != 2 and not (input.is_contiguous() and sum(x != 1 for x in bias.shape) == 1):
        # As in torch, which else adds it to rows of a matrix, in which the result has another shape.
        added = expanded("linear", added, shape).reshape(left.shape[0], cols)
    return _deliver("linear", given, left, right, shape, added=added, how=how)


def mv(input: Tensor, vec: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The product of a matrix (m, k) and a vector (k,), as torch.mv."""
    if (found := again("mv", input, vec, None, out)) is not None:
        return found
    input, vec = _cast("mv", out, input, vec)
    check_operands("mv", input, vec)
    check_dims("mv", input=(input, 2), vec=(vec, 1))
    right = vec.unsqueeze(1)
    check_inner("mv", input, vec, input, right)
    return _deliver("mv", (input, vec), input, right, input.shape[:1], out=out)


def dot(input: Tensor, tensor: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The product of two vectors of one length, as torch.dot."""
    if (found := again("dot", input, tensor, None, out)) is not None:
        return found
    input, tensor = _cast("dot", out, input, tensor)
    check_operands("dot", input, tensor)
    check_dims("dot", input=(input, 1), tensor=(tensor, 1))
    if input.shape != tensor.shape:
        raise RuntimeError(f"dot: vectors need one length, but they have {shape_of(input)} and {shape_of(tensor)}")
    return _deliver("dot", (input, tensor), input.unsqueeze(0), tensor.unsqueeze(1), (), out=out)


def matrices(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """The operands of `matmul` as two matrices or two stacks of them, and the shape of its result."""
    if not a.dim() or not b.dim():
        raise RuntimeError(f"matmul: both operands need at least one dimension, but they have {a.dim()} and {b.dim()}")
    left = a.unsqueeze(0) if a.dim() == 1 else a
    right = b.unsqueeze(1) if b.dim() == 1 else b
    check_inner("matmul", a, b, left, right)
    batch = broadcast_batch("matmul", left, right)
    rows = () if a.dim() == 1 else (left.shape[-2],)
    cols = () if b.dim() == 1 else (right.shape[-1],)
    return *_folded(left, right, batch), (*batch, *rows, *cols)


def _how(a: Tensor, precision: str, out_dtype: torch.dtype | None = None) -> How | None:
    """What is asked for beside the product itself, checked; None if nothing is."""
    if not precision and out_dtype is None:
        return None
    dtype = getattr(a, "dtype", None)
    if precision and (dtype != torch.float32 or precision not in PRECISIONS["fp32"]):
        known = ", ".join(PRECISIONS["fp32"])
        raise ValueError(f"precision is {precision!r} for {dtype}; it is one of {known}, and for torch.float32")
    if out_dtype not in (None, dtype) and (out_dtype != torch.float32 or dtype not in (torch.bfloat16, torch.float16)):
        raise RuntimeError(f"out_dtype is {out_dtype} for {dtype}; it is the operands', or float32 for bf16 and fp16")
    return How(precision, out_dtype)


def _deliver(
    name: str,
    operands: tuple[Tensor, ...],
    a: Tensor,
    b: Tensor,
    shape: tuple[int, ...],
    *,
    added: Tensor | None = None,
    alpha: float = 1,
    beta: float = 1,
    out: Tensor | None = None,
    config: Config | None = None,
    how: How | None = None,
    tune: str = "",
) -> Tensor:
    """alpha * a @ b + beta * added, in `shape`. operands: the function's, checked: those that a, b and added are views
    or copies of, in this order."""
    alpha, beta = scalar(name, "alpha", alpha), scalar(name, "beta", beta)
    if config is not None and not isinstance(config, Config):
        raise TypeError(f"{name}: config is {config!r}; it must be a tritonmm.Config, or None to have one chosen")
    folded = *a.shape[:-1], b.shape[-1]
    addends = {} if added is None else addend(name, added, beta, folded)
    options: dict[str, Any] = {"alpha": alpha, "beta": beta, "config": config, "how": how, **addends}
    if tune:
        _check_tune(name, tune, config)
    if out is None:
        if tune:
            first_call.tune(a, b)
        found = compute(a, b, **options)
        result = found if found.shape == shape else found.reshape(shape)
        if config is None and how is None:
            keep(name, operands, alpha, beta, result, a, b, **addends)
        return result
    prepare_out(name, out, shape, *operands, dtype=how and how.out_dtype)
    target = _target(out, folded, a, b, **addends)
    if tune:
        first_call.tune(a, b, target)
    if target is None:
        return out.copy_(compute(a, b, **options).reshape(shape))
    increment_version(out)  # kernels write what autograd may have saved
    product(a, b, target, **options)
    if config is None and how is None:
        keep(name, operands, alpha, beta, out, a, b, **addends)
    return out


def _check_tune(name: str, tune: str, config: Config | None) -> None:
    if tune != "first-call":
        raise ValueError(f'{name}: tune is {tune!r}; it must be "first-call", or "" for no tuning')
    if config is not None:
        raise ValueError(f"{name}: both config and tune are given; what is to be tuned has no config yet")


def _target(
    out: Tensor, shape: tuple[int, ...], *operands: Tensor, c: Tensor | None = None, bias: Tensor | None = None
):
    """`out` as kernels can write it, or None where its strides, its memory or a transform of torch forbid that."""
    read = operands if bias is None else (*operands, bias)
    if not all(is_plain(x, out) for x in (*read, *(() if c is None else (c,)))):
        return None
    try:
        target = out.view(shape)
    except RuntimeError:
        return None
    if any(overlap(target, x) for x in read):
        return None
    # Every element of c is read by the program that writes it, before it does.
    return target if c is None or is_same(target, c) or not overlap(target, c) else None


def _cast(name: str, out: Tensor | None, *operands: Tensor) -> tuple[Tensor, ...]:
    """The operands as autocast has them for a function. As in torch, those that are given an `out` are left alone."""
    first = operands[0]
    if out is not None or not isinstance(first, Tensor):
        return operands
    kind = first.device.type
    if kind not in ("cuda", "cpu") or not torch.is_autocast_enabled(kind):
        return operands
    dtype = torch.get_autocast_dtype(kind)
    if (kind, name) in (("cpu", "mv"), ("cpu", "dot")):
        return operands
    if name == "dot":  # on GPUs both get the wider dtype of the two
        if not any(isinstance(x, Tensor) and x.dtype == torch.float32 for x in operands):
            return operands
        dtype = torch.float32
    return tuple(
        x.to(dtype)
        if isinstance(x, Tensor) and x.device.type == kind and x.is_floating_point() and x.dtype != torch.float64
        else x
        for x in operands
    )


def _batched(name: str, a: Tensor, b: Tensor) -> tuple[int, int, int]:
    """The shape of the products of two stacks of matrices, which are checked."""
    check_dims(name, **{"the first batch": (a, 3), "the second batch": (b, 3)})
    if a.shape[0] != b.shape[0]:
        raise RuntimeError(f"{name}: batches differ: {shape_of(a)} has {a.shape[0]}, {shape_of(b)} has {b.shape[0]}")
    check_inner(name, a, b, a, b)
    return a.shape[0], a.shape[1], b.shape[2]


def _folded(a: Tensor, b: Tensor, batch: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The same product as one 2-D or 3-D one, by views where strides allow and copies where not."""
    if not batch:
        return a, b
    if b.dim() == 2 and _is_foldable(a):
        return a.reshape(math.prod(a.shape[:-1]), a.shape[-1]), b
    count = math.prod(batch)
    a, b = (x.expand(*batch, *x.shape[-2:]).reshape(count, *x.shape[-2:]) for x in (a, b))
    return a, b


def _is_foldable(a: Tensor) -> bool:
    """Whether the batch and row dimensions of `a` are one evenly strided dimension."""
    next_stride = None
    for size, stride in zip(reversed(a.shape[:-1]), reversed(a.stride()[:-1]), strict=True):
        if size != 1:
            if next_stride is not None and stride != next_stride:
                return False
            next_stride = size * stride
    return True
