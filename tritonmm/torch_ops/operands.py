"""The operands of torch's functions as two matrices, or two batches of matrices, in the dtype of autocast."""

import math

import torch

from tritonmm.torch_ops.checks import broadcast_batch, check_dims, check_inner, shape_of

Tensor = torch.Tensor


def matrices(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """The operands of `matmul` as two matrices or two batches of matrices, and the shape of its result."""
    if not a.dim() or not b.dim():
        raise RuntimeError(f"matmul: both operands need at least one dimension, but they have {a.dim()} and {b.dim()}")
    left = a.unsqueeze(0) if a.dim() == 1 else a
    right = b.unsqueeze(1) if b.dim() == 1 else b
    check_inner("matmul", a, b, left, right)
    batch = broadcast_batch("matmul", left, right)
    rows = () if a.dim() == 1 else (left.shape[-2],)
    cols = () if b.dim() == 1 else (right.shape[-1],)
    return *_folded(left, right, batch), (*batch, *rows, *cols)


def batched(name: str, a: Tensor, b: Tensor) -> tuple[int, int, int]:
    """Checks the operands of a batched matmul; (batch, m, n)."""
    check_dims(name, **{"the first batch": (a, 3), "the second batch": (b, 3)})
    if a.shape[0] != b.shape[0]:
        raise RuntimeError(f"{name}: batches differ: {shape_of(a)} has {a.shape[0]}, {shape_of(b)} has {b.shape[0]}")
    check_inner(name, a, b, a, b)
    return a.shape[0], a.shape[1], b.shape[2]


def cast(name: str, out: Tensor | None, *operands: Tensor) -> tuple[Tensor, ...]:
    """The operands in autocast's dtype for a function. As in torch, they are not cast if `out` is given."""
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


def _folded(a: Tensor, b: Tensor, batch: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The operands of the same matmul in 2-D or 3-D: views if the strides allow it, else copies."""
    if not batch:
        return a, b
    if b.dim() == 2 and _is_foldable(a):
        return a.reshape(math.prod(a.shape[:-1]), a.shape[-1]), b
    count = math.prod(batch)
    a, b = (x.expand(*batch, *x.shape[-2:]).reshape(count, *x.shape[-2:]) for x in (a, b))
    return a, b


def _is_foldable(a: Tensor) -> bool:
    """Whether the batch and row dimensions of `a` form one dimension with one stride."""
    next_stride = None
    for size, stride in zip(reversed(a.shape[:-1]), reversed(a.stride()[:-1]), strict=True):
        if size != 1:
            if next_stride is not None and stride != next_stride:
                return False
            next_stride = size * stride
    return True
