"""Grouped products of fp8 or int8 operands with scales: a mixture of experts in 8 bits."""

import math

import torch

from tritonmm.config import Config
from tritonmm.torch_ops import grouped_operator
from tritonmm.torch_ops.checks import check_config, shape_of
from tritonmm.torch_ops.grouped_checks import check_bias, check_groups
from tritonmm.torch_ops.grouped_product import GroupedHow
from tritonmm.torch_ops.mode import check_accumulation
from tritonmm.torch_ops.operands import batched
from tritonmm.torch_ops.quantized import FP8_DTYPES, check_out_dtype, check_without_grad, if_given

Tensor = torch.Tensor


def scaled_grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    *,
    config: Config | None = None,
    accumulation: str = "",
) -> Tensor:
    """`grouped_mm` of (mat_a * scale_a) and (mat_b * scale_b), with the arguments of torch._scaled_grouped_mm.

    mat_a, mat_b: as in `grouped_mm`, in fp8 of either kind, also one of each, or both int8.
    scale_a, scale_b: fp32. Their shapes say what each scale applies to, in the terms of
        torch.nn.functional.ScalingType:

        - RowWise, a row of mat_a or a column of mat_b: the operand's shape without k, as (t,) for a mat_a of (t, k) and
          (g, n) for a mat_b of (g, k, n). Where groups divide k, (g * m,) and (g * n,), one group after the other.
        - BlockWise1x128, a row or column by 128 elements of k: ceil(k / 128) in place of k, as (t, ceil(k / 128)) and
          (g, ceil(k / 128), n). Not where groups divide k.
        - BlockWise128x128, for one operand, with BlockWise1x128 for the other: (g, ceil(k / 128), ceil(n / 128)) for a
          3-D mat_b. For mat_a where groups divide columns: (g, ceil(m / 128), ceil(k / 128)).
    offs: as in `grouped_mm`.
    bias: (g, n), of a floating-point dtype. Not for groups of columns.
    scale_result: None. It would scale fp8 results, which are not supported.
    out_dtype: torch.bfloat16 (also for None), torch.float16 or torch.float32.
    use_fast_accum, accumulation: as in `scaled_mm`.
    config: as in `grouped_mm`.

    Any strides and any sizes. The result is contiguous, and uninitialised past the last offset, as in `grouped_mm`.
    Bitwise reproducible from run to run. It has no derivative: RuntimeError if an operand requires grad while grad mode
    is on.

    Raises RuntimeError for shapes, dtypes, devices, scales or offsets that do not fit; NotImplementedError for a bias
    of groups of columns, other output dtypes and `scale_result`; ValueError for a config that is not legal.

    >>> tokens = torch.ones(10, 32, device="cuda").to(torch.float8_e4m3fn)
    >>> experts = torch.ones(3, 16, 32, device="cuda").to(torch.float8_e4m3fn).mT
    >>> offs = torch.tensor([4, 4, 10], device="cuda", dtype=torch.int32)
    >>> of_tokens, of_experts = torch.full((10,), 0.5, device="cuda"), torch.ones(3, 16, device="cuda")
    >>> tritonmm.scaled_grouped_mm(tokens, experts, of_tokens, of_experts, offs)[0, 0].item()
    16.0
    """
    check_accumulation(accumulation)
    check_without_grad("scaled_grouped_mm", mat_a, mat_b, scale_a, scale_b, *if_given(bias))
    a, b = mat_a, mat_b
    if not (a.dtype in FP8_DTYPES and b.dtype in FP8_DTYPES) and not a.dtype == b.dtype == torch.int8:
        raise RuntimeError(
            f"scaled_grouped_mm: operands must be fp8, or both int8, but they are {a.dtype} and {b.dtype}"
        )
    if scale_result is not None:
        raise NotImplementedError(
            "scaled_grouped_mm: scale_result is given; it would scale fp8 results, and there are none"
        )
    check_config("scaled_grouped_mm", config)
    check_groups("scaled_grouped_mm", a, b, offs)
    if bias is not None:
        check_bias("scaled_grouped_mm", a, b, offs, bias)
        if not bias.is_floating_point():
            raise RuntimeError(f"scaled_grouped_mm: bias is {bias.dtype}; it must be of a floating-point dtype")
    if offs is None:
        batched("scaled_grouped_mm", a, b)
    out_dtype = check_out_dtype("scaled_grouped_mm", out_dtype or torch.bfloat16)
    scale_a, scale_b, scales = matched(a, b, scale_a, scale_b, offs)
    precision = "fast" if use_fast_accum and a.dtype in FP8_DTYPES else "ieee"
    if offs is not None:
        how = GroupedHow(precision, out_dtype, scale_a, scale_b, scales, accumulation)
        return _compute(a, b, offs, bias, config, how)
    groups, m, _ = a.shape
    if groups * m >= 2**31:
        raise RuntimeError(f"scaled_grouped_mm: mat_a is {shape_of(a)}; a batch must have fewer than 2**31 rows")
    how = GroupedHow(precision, out_dtype, scale_a.flatten(0, 1), scale_b, scales, accumulation)
    rows, offs = rows_of_batch(a)
    found = _compute(rows, b, offs, bias, config, how)
    return found.view(groups, m, b.shape[2])


def rows_of_batch(a: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of a batch as those of groups of one size: all of them, and where each group ends."""
    groups, m, k = a.shape
    return a.reshape(groups * m, k), torch.arange(1, groups + 1, dtype=torch.int32, device=a.device) * m


def _compute(a: Tensor, b: Tensor, offs: Tensor, bias: Tensor | None, config: Config | None, how: GroupedHow) -> Tensor:
    if not a.shape[-1] and a.dim() + b.dim() == 5:  # there are no groups of k to have scales
        how = GroupedHow(out_dtype=how.out_dtype)
        a, b = a.to(torch.bfloat16), b.to(torch.bfloat16)
    return grouped_operator.compute(a, b, offs, bias=bias, config=config, how=how)


def matched(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, offs: Tensor | None) -> tuple[Tensor, Tensor, str]:
    """The scales as `GroupedHow` takes them, those of a batch 3-D, and which of `problem.SCALES` they are.

    Raises RuntimeError for scales of other shapes or dtypes.
    """
    (m, k), n = a.shape[-2:], b.shape[-1]
    of_k = offs.shape[0] if offs is not None and a.dim() == b.dim() else None  # groups that divide k
    if of_k is not None:
        wanted = {"row": ((of_k * m,), (of_k * n,))}
    else:
        of_a, of_b = a.shape[:-2], b.shape[:-2]
        parts, rows, cols = (math.ceil(x / 128) for x in (k, m, n))
        wanted = {
            "row": ((*of_a, m), (*of_b, n)),
            "1x128*1x128": ((*of_a, m, parts), (*of_b, parts, n)),
            "1x128*128x128": ((*of_a, m, parts), (*of_b, parts, cols)),
        }
        if a.dim() > b.dim():
            wanted["1x128*128x128"] = (*of_a, rows, parts), (*of_b, parts, n)
    shapes = tuple(scale_a.shape), tuple(scale_b.shape)
    found = next((name for name, both in wanted.items() if both == shapes), "")
    if not found or not scale_a.dtype == scale_b.dtype == torch.float32:
        said = ", or ".join(f"{list(first)} and {list(second)}" for first, second in wanted.values())
        raise RuntimeError(
            f"scaled_grouped_mm: scales are {scale_a.dtype} {list(scale_a.shape)} and {scale_b.dtype}"
            f" {list(scale_b.shape)}; for {shape_of(a)} by {shape_of(b)} they must be float32, {said}"
        )
    if found == "row":
        if of_k is not None:
            scale_a, scale_b = scale_a.view(of_k, m), scale_b.view(of_k, n)
        scale_a, scale_b = scale_a.unsqueeze(-1), scale_b.unsqueeze(-2)
    return scale_a, scale_b, found
