"""Products of operands of one byte: int8, fp8 with scales, and weights of one byte beside bf16 and fp16.

Strides are any; what tensor cores cannot read where it lies is copied first, fastest is a row-major `a` and a
column-major `b`. Sums of int8 are taken in int32, all others in fp32. Results are bitwise the same from run to run.
Not differentiable: RuntimeError where an operand requires grad and grad mode is on.
"""

import math

import torch

from tritonmm.problem import DTYPES, FP8, HALF
from tritonmm.torch_ops.checks import check_dims, check_inner, prepare_out, shape_of
from tritonmm.torch_ops.operator import compute
from tritonmm.torch_ops.product import How

Tensor = torch.Tensor

FP8_DTYPES = tuple(DTYPES[name] for name in FP8)

OUTPUTS = tuple(DTYPES[name] for name in (*HALF, "fp32"))


def int_mm(input: Tensor, mat2: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The product of two int8 matrices, (m, k) and (k, n), in int32, as torch._int_mm; of any sizes, 0 included.

    Exact while sums stay within int32. Raises RuntimeError, as torch does, for other dtypes and shapes.
    """
    _check("int_mm", input, mat2)
    if not input.dtype == mat2.dtype == torch.int8:
        raise RuntimeError(f"int_mm: operands must be torch.int8, but they are {input.dtype} and {mat2.dtype}")
    if out is None:
        return compute(input, mat2)
    prepare_out("int_mm", out, (input.shape[0], mat2.shape[1]), input, mat2, dtype=torch.int32)
    return out.copy_(compute(input, mat2))


def scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """(a * scale_a) @ (b * scale_b) + bias, as torch._scaled_mm: (m, k) and (k, n) of fp8, in any mix of its kinds.

    scale_a, scale_b, fp32: one element each; (m, 1) and (1, n), a scale a row and a column; or of 128 elements of k
    each: (m, ceil(k / 128)) or (ceil(m / 128), ceil(k / 128)), and the same for b with n, transposed, not both in
    blocks of 128 rows and columns.
    bias: (n,); out_dtype: bf16 (None), fp16 or fp32. torch's None is a's dtype: outputs of fp8 tritonmm has not.
    use_fast_accum: add up as the tensor cores do, with about 13 bits on sm_90; otherwise every 128 elements of k in
        fp32. Scales of 128 elements always do the latter.

    What torch refuses and this does not: int8, e5m2 by e5m2, sizes that are no multiples of 16, any strides. Raises
    RuntimeError for other dtypes, shapes, and scales that fit none of these; NotImplementedError for other outputs.
    """
    _check("scaled_mm", a, b, scale_a, scale_b, bias)
    if not (a.dtype in FP8_DTYPES and b.dtype in FP8_DTYPES) and not a.dtype == b.dtype == torch.int8:
        raise RuntimeError(f"scaled_mm: operands must be fp8, or both int8, but they are {a.dtype} and {b.dtype}")
    out_dtype = _out_dtype("scaled_mm", out_dtype or torch.bfloat16)
    scale_a, scale_b, scales = matched_scales(a, b, scale_a, scale_b)
    _check_bias("scaled_mm", bias, b.shape[1])
    if not a.shape[1]:  # there are no groups of k to have scales
        out = a.new_zeros((a.shape[0], b.shape[1]), dtype=out_dtype)
        return out if bias is None else out.add_(bias)
    precision = "fast" if use_fast_accum and a.dtype in FP8_DTYPES else "ieee"
    return compute(a, b, bias=bias, how=How(precision, out_dtype, scale_a, scale_b, scales))


def matched_scales(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> tuple[Tensor, Tensor, str]:
    """The scales in two dimensions, and which of `problem.SCALES` they are. Raises RuntimeError for none of them."""
    (m, k), n = a.shape, b.shape[1]
    groups, rows, cols = (math.ceil(x / 128) for x in (k, m, n))
    if scale_a.dtype == scale_b.dtype == torch.float32:
        if scale_a.numel() == scale_b.numel() == 1:
            return scale_a.reshape(1, 1), scale_b.reshape(1, 1), "tensor"
        for name, left, right in (
            ("row", (m, 1), (1, n)),
            ("128x128*1x128", (rows, groups), (groups, n)),
            ("1x128*128x128", (m, groups), (groups, cols)),
            ("1x128*1x128", (m, groups), (groups, n)),
        ):
            if scale_a.shape == left and scale_b.shape == right:
                return scale_a, scale_b, name
    raise RuntimeError(
        f"scaled_mm: scales are {scale_a.dtype} {list(scale_a.shape)} and {scale_b.dtype} {list(scale_b.shape)}; for"
        f" {shape_of(a)} by {shape_of(b)} they must be float32, of one element each, ({m}, 1) and (1, {n}), or"
        f" ({m} or {rows}, {groups}) and ({groups}, {n} or {cols})"
    )


def weight_only_linear(input: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ (weight * scale).T + bias, in input's dtype: bf16 or fp16 (..., k), and int8 or fp8 weights (n, k).

    scale: fp32, (n,) or (n, 1), one for each row of the weights, or (n, k / group) one for each `group` elements of it,
    16, 32, 64 or 128; those below 2**-126 may count as 0. Weights are read once and converted on their way to tensor
    cores: with few rows of input that is what such a layer costs. Raises RuntimeError for other dtypes and shapes.
    """
    _check_operands("weight_only_linear", input, weight, scale, bias)
    check_dims("weight_only_linear", weight=(weight, 2))
    if not input.dim():
        raise RuntimeError("weight_only_linear: input needs at least one dimension, but it has none")
    rows, right = input.reshape(math.prod(input.shape[:-1]), input.shape[-1]), weight.t()
    check_inner("weight_only_linear", input, weight, rows, right)
    if input.dtype not in (torch.bfloat16, torch.float16) or weight.dtype not in (torch.int8, *FP8_DTYPES):
        raise RuntimeError(
            f"weight_only_linear: input must be bf16 or fp16 and weight int8 or fp8, but they are {input.dtype} and"
            f" {weight.dtype}"
        )
    n, k = weight.shape
    groups = scale.shape[1] if scale.dim() == 2 else 1
    group = 128 if groups == 1 else k // max(groups, 1)
    of_rows = scale.dtype == torch.float32 and scale.dim() in (1, 2) and scale.shape[0] == n
    if not of_rows or (groups > 1 and (group not in (16, 32, 64, 128) or group * groups != k)) or (k and not groups):
        raise RuntimeError(
            f"weight_only_linear: scale is {scale.dtype} {list(scale.shape)}; for weights {shape_of(weight)} it must be"
            f" float32 [{n}] or [{n}, {k} / group], with a group of 16, 32, 64 or 128"
        )
    _check_bias("weight_only_linear", bias, n)
    if not n or not k:  # no weights to be scaled
        out = input.new_zeros((*input.shape[:-1], n))
        return out if bias is None else out.add_(bias)
    how = How("ieee", input.dtype, None, scale.reshape(n, groups).t(), "row" if groups == 1 else "group", group)
    return compute(rows, right, bias=bias, how=how).reshape(*input.shape[:-1], n)


def _check(name: str, a: Tensor, b: Tensor, *others: Tensor | None) -> None:
    """Raises unless all are dense tensors of one device, none needs a derivative, and a @ b is one of matrices."""
    _check_operands(name, a, b, *others)
    check_dims(name, a=(a, 2), b=(b, 2))
    check_inner(name, a, b, a, b)


def _check_operands(name: str, first: Tensor, *others: Tensor | None) -> None:
    """Raises unless all are dense tensors of one device, and none needs a derivative."""
    for x in (first, *(x for x in others if x is not None)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: operands must be Tensors, not {type(x).__name__}")
        if x.device != first.device:
            raise RuntimeError(f"{name}: operands need the same device, but they are on {first.device} and {x.device}")
        if x.layout != torch.strided:
            raise NotImplementedError(f"{name}: operands must be dense; got {x.layout}")
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(f"{name}: it has no derivative, but an operand requires grad; detach() it first")


def _check_bias(name: str, bias: Tensor | None, n: int) -> None:
    if bias is not None and (bias.shape != (n,) or not bias.is_floating_point()):
        raise RuntimeError(f"{name}: bias is {bias.dtype} {list(bias.shape)}; it must be of floats, [{n}]")


def _out_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    if dtype not in OUTPUTS:
        raise NotImplementedError(f"{name}: out_dtype is {dtype}; it can be {', '.join(map(str, OUTPUTS))}")
    return dtype
