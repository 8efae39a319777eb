"""torch's rules for operands and outputs, with torch's exception classes."""

import warnings
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from tritonmm.config import Config
from tritonmm.dtypes import dtype_name


def check_operands(name: str, *operands: torch.Tensor) -> None:
    """Raises unless all are dense tensors of one dtype that tritonmm multiplies, and of one device."""
    for x in operands:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: operands must be Tensors, not {type(x).__name__}")
    first = operands[0]
    for x in operands:
        if x.dtype != first.dtype:
            raise RuntimeError(f"{name}: operands need the same dtype, but they are {first.dtype} and {x.dtype}")
        if x.device != first.device:
            raise RuntimeError(f"{name}: operands need the same device, but they are on {first.device} and {x.device}")
        if x.layout != torch.strided:
            raise NotImplementedError(f"{name}: operands must be dense; got {x.layout}")
    dtype_name(first.dtype)


def check_config(name: str, config: object) -> None:
    """Raises TypeError for what is neither a `Config` nor None."""
    if config is not None and not isinstance(config, Config):
        raise TypeError(f"{name}: config is {config!r}; it must be a tritonmm.Config, or None to have one chosen")


def check_dims(name: str, **dims: tuple[torch.Tensor, int]) -> None:
    """Raises unless each tensor has as many dimensions as it must have."""
    for argument, (x, expected) in dims.items():
        if x.dim() != expected:
            raise RuntimeError(f"{name}: {argument} must be {expected}-D, but it is {x.dim()}-D, {shape_of(x)}")


def check_without_tangents(name: str, *tensors: torch.Tensor | None) -> None:
    """Raises if a tensor has a tangent of forward-mode differentiation, which an operator without derivatives would
    lose. Only for an operator's autograd kernel, which is the last to see tangents."""
    if any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise RuntimeError(f"{name}: it has no derivative, but an operand has a tangent, as in torch.func.jvp")


def check_inner(
    name: str, a: torch.Tensor, b: torch.Tensor, left: torch.Tensor, right: torch.Tensor, inner: str = "rows"
) -> None:
    """Raises unless left has as many columns as right has rows. left, right: a and b as matrices. inner: what these
    rows are in b, "columns" for a weight, which is multiplied transposed."""
    if left.shape[-1] != right.shape[-2]:
        raise RuntimeError(
            f"{name}: inner dimensions differ: {shape_of(a)} has {left.shape[-1]} columns, {shape_of(b)} has"
            f" {right.shape[-2]} {inner}"
        )


def broadcast_batch(name: str, a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    """The batch dimensions of a matmul, broadcast."""
    left, right = tuple(a.shape[:-2]), tuple(b.shape[:-2])
    left, right = (1,) * (len(right) - len(left)) + left, (1,) * (len(left) - len(right)) + right
    batch = []
    for x, y in zip(left, right, strict=True):
        if x != y and x != 1 and y != 1:
            raise RuntimeError(f"{name}: batch dimensions of {shape_of(a)} and {shape_of(b)} do not broadcast")
        batch.append(y if x == 1 else x)
    return tuple(batch)


_NUMPYS = np.number, np.bool_
_NUMBERS = int, float, torch.SymInt, torch.SymFloat


def scalar(name: str, argument: str, value: float | torch.Tensor) -> float:
    """alpha or beta as a number. Raises TypeError for other types, and RuntimeError for complex numbers."""
    given: Any = value
    if isinstance(given, _NUMPYS) or (isinstance(given, torch.Tensor) and not given.dim() and not given.requires_grad):
        value = given.item()
    if isinstance(value, complex):
        raise RuntimeError(f"{name}: {argument} is {value}; real operands need a real one")
    if not isinstance(value, _NUMBERS):
        raise TypeError(
            f"{name}: {argument} is {given!r}; it must be a number, or a tensor of no dimension that needs no gradient"
        )
    return value


def addend(name: str, c: torch.Tensor, alpha: float, beta: float, shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """c as an argument of `compute`: a bias, which kernels read once per tile, if it is a row vector and alpha and beta
    are 1. Then both have the same bits; an alpha is fused with the addition of a bias alone."""
    if alpha == beta == 1 and 0 < c.dim() <= len(shape) and c.numel() == c.shape[-1] == shape[-1]:
        return {"bias": c.reshape(shape[-1])}
    return {"c": expanded(name, c, shape)}


def expanded(name: str, x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """x broadcast to `shape`. Raises RuntimeError where it does not broadcast to that."""
    try:
        return x.expand(shape)
    except RuntimeError:
        raise RuntimeError(f"{name}: {shape_of(x)} does not broadcast to {list(shape)}") from None


def prepare_out(
    name: str,
    out: torch.Tensor,
    shape: tuple[int, ...],
    *operands: torch.Tensor,
    dtype: torch.dtype | None = None,
) -> None:
    """Resizes `out` if its shape is wrong, with torch's warning. Raises if it cannot store a result of `dtype`.

    It also raises where torch forbids writing to `out`: it requires grad, or is an inference tensor outside of
    inference mode.
    """
    dtype = dtype or operands[0].dtype
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"{name}: out must be a Tensor, not {type(out).__name__}")
    if out.layout != torch.strided:
        raise NotImplementedError(f"{name}: out must be dense; got {out.layout}")
    if out.dtype != dtype:
        raise RuntimeError(f"{name}: out must have dtype {dtype}, but it has {out.dtype}")
    if out.device != operands[0].device:
        raise RuntimeError(f"{name}: out must be on {operands[0].device}, but it is on {out.device}")
    if torch.is_grad_enabled():
        for x, what in (*((x, "an operand") for x in operands), (out, "out")):
            if x.requires_grad:
                raise RuntimeError(f"{name}: out= does not support automatic differentiation, but {what} requires grad")
    if not is_compiling() and out.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError(
            f"{name}: inplace update to inference tensor outside InferenceMode is not allowed; clone() out before it"
        )
    if out.shape != shape:
        if out.numel():
            warnings.warn(
                f"{name}: out has shape {shape_of(out)} and is resized to {list(shape)}; torch deprecates resizing an"
                " out that is not empty, call out.resize_(0) first to do it knowingly",
                stacklevel=4,
            )
        out.resize_(shape)
    if repeats(out):
        raise RuntimeError(f"{name}: several elements of out share one memory location; clone() it first")


def repeats(x: torch.Tensor) -> bool:
    """Whether several elements of x share one address."""
    return any(size > 1 and stride == 0 for size, stride in zip(x.shape, x.stride(), strict=True))


def spanned(x: torch.Tensor) -> int:
    """Bytes from the first element of x to the end of the last."""
    if not x.numel():
        return 0
    return (sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1) * x.itemsize


def overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether the memory ranges of x and y overlap, unless they are `separate_blocks`."""
    meet = x.data_ptr() < y.data_ptr() + spanned(y) and y.data_ptr() < x.data_ptr() + spanned(x)
    return meet and not separate_blocks(x, y)


def separate_blocks(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether x and y are blocks of one matrix that have no column in common, or no row if its columns are contiguous.

    They have no element in common then, even if their memory ranges overlap. A blocked factorisation updates one block
    of a matrix by products of others.
    """
    if x.dim() != 2 or y.dim() != 2 or x.itemsize != y.itemsize:
        return False
    (rows_x, width_x, pitch), (rows_y, width_y, pitch_y) = _lines(x), _lines(y)
    apart, rest = divmod(y.data_ptr() - x.data_ptr(), x.itemsize)
    if rest or pitch != pitch_y or not rows_x or not rows_y:
        return False
    return width_x <= apart % pitch <= pitch - width_y


def _lines(x: torch.Tensor) -> tuple[int, int, int]:
    """How many rows or columns of a matrix are contiguous lines, the length of each, and the elements from the first of
    one to the first of the next. Zeros if the matrix has no contiguous lines, or they overlap."""
    for rows, columns in ((0, 1), (1, 0)):
        if x.stride(columns) == 1 and x.stride(rows) >= x.shape[columns] > 0:
            return x.shape[rows], x.shape[columns], x.stride(rows)
    return 0, 0, 0


def is_same(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors of one dtype are the same view of the same memory."""
    return x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride()


def is_transposed(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether y is x with its last two dimensions exchanged, of the same memory. Both have one dtype."""
    there = x.mT
    is_alias = torch._C._is_alias_of(x, y)  # type: ignore[attr-defined]  # addresses of meta tensors are all 0
    if not is_alias or x.storage_offset() != y.storage_offset() or y.shape != there.shape:
        return False
    strides = zip(y.shape, y.stride(), there.stride(), strict=True)
    return all(size == 1 or a == b for size, a, b in strides)


def shape_of(x: torch.Tensor) -> str:
    return "x".join(map(str, x.shape))
