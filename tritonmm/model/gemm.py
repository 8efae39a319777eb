"""A GEMM with its tensors, for the bit-exact model: what arguments mean, and which are refused."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from tritonmm.dtypes import FP8, HALF, short_name
from tritonmm.problem import Problem
from tritonmm.scales import SCALES, scales_of

Array = np.ndarray
Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Gemm:
    """A GEMM and its tensors. a, b and c may be on any device."""

    problem: Problem
    a: Tensor  # (batch, m, k)
    b: Tensor  # (batch, n, k)
    c: Tensor | None  # (batch, m, n)
    bias: Array | None  # fp32, (n,)
    scale_a: Array | None  # fp32, (rows, groups of K), see `Problem.scale_shapes`
    scale_b: Array | None  # fp32, (groups of K, columns)
    alpha: float
    beta: float


def checked(
    a: Any,
    b: Any,
    c: Any,
    bias: Any,
    alpha: float,
    beta: float,
    scale_a: Any,
    scale_b: Any,
    precision: str,
    out_dtype: torch.dtype | None,
) -> Gemm:
    """The GEMM of the arguments of `tritonmm.accumulation`, which has the errors too."""
    a, b = as_tensor("a", a), as_tensor("b", b)
    if not (a.dim() == b.dim() and a.dim() in (2, 3) and a.shape[-1] == b.shape[-2] and a.shape[:-2] == b.shape[:-2]):
        raise RuntimeError(
            f"a and b have shapes {list(a.shape)} and {list(b.shape)}; they must be (m, k) and (k, n), or (batch, m, k)"
            " and (batch, k, n)"
        )
    scale_a, scale_b = (None if x is None else as_tensor("a scale", x).cpu() for x in (scale_a, scale_b))
    problem = _problem(a, b, scale_a, scale_b, precision, out_dtype)
    if bias is not None:
        bias = as_tensor("bias", bias)
        if bias.shape != (problem.n,) or not bias.is_floating_point():
            raise RuntimeError(f"bias is {bias.dtype} {list(bias.shape)}; it must be of floats, [{problem.n}]")
        bias = bias.cpu().float().numpy()
    shape = (*a.shape[:-1], problem.n)
    c = None if c is None or beta == 0 else _expanded(as_tensor("c", c), shape)
    if c is not None and not c.is_floating_point():
        raise RuntimeError(f"c has dtype {c.dtype}; it must be of floats")
    if problem.out_dtype == "int32" and (bias is not None or c is not None or alpha != 1):
        raise ValueError("alpha, bias or c is given and the result is int32; out_dtype must be a floating-point dtype")
    a, b, c = (x if x is None or x.dim() == 3 else x.unsqueeze(0) for x in (a, b, c))
    shape_a, shape_b = problem.scale_shapes
    scale_a, scale_b = _matrix(scale_a, shape_a), _matrix(scale_b, shape_b)
    return Gemm(problem, a, b.mT, c, bias, scale_a, scale_b, float(alpha), float(beta))


def as_tensor(name: str, x: Any) -> Tensor:
    """A dense torch tensor as it is, a NumPy array as a tensor. Raises TypeError for anything else."""
    if isinstance(x, np.ndarray):
        shared = x.flags.writeable and min(x.strides, default=0) >= 0  # others torch does not share
        return torch.from_numpy(x if shared else x.copy())
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is of type {type(x).__name__}; it must be a torch tensor or a NumPy array")
    if x.layout != torch.strided:
        raise TypeError(f"{name} has layout {x.layout}; it must be dense")
    return x.detach()


def _problem(
    a: Tensor, b: Tensor, scale_a: Tensor | None, scale_b: Tensor | None, precision: str, out_dtype: torch.dtype | None
) -> Problem:
    """The problem of operands and scales."""
    dtype = short_name(a.dtype)
    if dtype == "fp64":
        raise NotImplementedError(f"a has dtype {a.dtype}; fp64 is not covered, only bf16, fp16, fp32, fp8 and int8")
    if precision in ("tf32x3", "bf16x3") or precision.startswith("ozaki"):
        raise NotImplementedError(f"precision is {precision!r}, which is not covered; 'ieee' and 'tf32' are")
    if not precision:
        tf32 = dtype == "fp32" and torch.backends.cuda.matmul.fp32_precision == "tf32"
        precision = "tf32" if tf32 else "ieee"
    if out_dtype is None and dtype == "int8" and scale_b is not None:
        out_dtype = torch.bfloat16  # as in scaled_mm
    problem = Problem(
        m=a.shape[-2],
        n=b.shape[-1],
        k=a.shape[-1],
        batch=a.shape[0] if a.dim() == 3 else 1,
        dtype=dtype,
        b_dtype=short_name(b.dtype),
        out_dtype=short_name(out_dtype or ""),
        precision=precision,
        accumulation="invariant",
    )
    if scale_a is None and scale_b is None:
        return problem
    if dtype in HALF and problem.b_dtype not in HALF:
        return replace(problem, scales=_weight_scales(problem, scale_a, scale_b))
    return replace(problem, scales=_scales(problem, scale_a, scale_b))


def _weight_scales(problem: Problem, scale_a: Tensor | None, scale_b: Tensor | None) -> str:
    n = problem.n
    if scale_a is None and scale_b is not None and scale_b.dtype == torch.float32:
        if scale_b.shape in ((n,), (n, 1), (1, n)):
            return "row"
        if scale_b.dim() == 2 and scale_b.shape[0] == n:
            raise NotImplementedError(f"scale_b is {list(scale_b.shape)}: scales of groups of K are not covered")
    raise RuntimeError(
        f"scales are {_spelled(scale_a)} and {_spelled(scale_b)}; for 8-bit weights scale_b must be float32 [{n}] or"
        f" [{n}, 1], and scale_a None"
    )


def _scales(problem: Problem, scale_a: Tensor | None, scale_b: Tensor | None) -> str:
    if problem.dtype not in ("int8", *FP8):
        raise RuntimeError(
            f"scales are given for {problem.dtype} by {problem.b_dtype}; they are for fp8, int8 and 8-bit weights"
        )
    name = ""
    if scale_a is not None and scale_b is not None and scale_a.dtype == scale_b.dtype == torch.float32:
        name = scales_of(problem.m, problem.n, problem.k, scale_a.shape, scale_b.shape)
    if name and problem.dtype == "int8" and name not in ("tensor", "row"):
        raise NotImplementedError(f"scales are those of {name} blocks; for int8 they are not covered")
    if name:
        return name
    shapes = [
        replace(problem, scales=name).scale_shapes
        for name in SCALES
        if name not in ("", "tensor", "group", "group-zero")
    ]
    legal = "; ".join(f"{list(x or ())} and {list(y)}" for x, y in shapes)
    raise RuntimeError(
        f"scales are {_spelled(scale_a)} and {_spelled(scale_b)}; they must be float32, of one element each, or {legal}"
    )


def _spelled(x: Tensor | None) -> str:
    return "None" if x is None else f"{x.dtype} {list(x.shape)}"


def _matrix(scale: Tensor | None, shape: tuple[int, int] | None) -> Array | None:
    return None if scale is None or shape is None else scale.reshape(shape).numpy()


def _expanded(c: Tensor, shape: tuple[int, ...]) -> Tensor:
    try:
        return c.expand(shape)
    except RuntimeError:
        raise RuntimeError(f"c has shape {list(c.shape)}, which does not broadcast to {list(shape)}") from None
