"""Grouped products of bf16 or fp16 activations by int8, fp8 or int4 weights: a mixture of experts in 8 and 4 bits."""

import torch

from tritonmm.config import Config
from tritonmm.torch_ops import grouped_operator
from tritonmm.torch_ops.checks import check_config, check_dims
from tritonmm.torch_ops.grouped_checks import check_bias, check_offsets
from tritonmm.torch_ops.grouped_product import GroupedHow
from tritonmm.torch_ops.mode import check_accumulation
from tritonmm.torch_ops.quantized import check_weights, check_without_grad, if_given, stored_weight, weight_scales

Tensor = torch.Tensor

NAME = "weight_only_grouped_mm"


def weight_only_grouped_mm(
    input: Tensor,
    weight: Tensor,
    scale: Tensor,
    *,
    offs: Tensor,
    bias: Tensor | None = None,
    config: Config | None = None,
    accumulation: str = "",
) -> Tensor:
    """`weight_only_linear` of groups of rows, each by weights of its own: (t, k) by (g, n, k) to (t, n).

    input: bf16 or fp16, the rows of one group after those of another; the result has its dtype.
    weight: int8 or fp8 (e4m3 or e5m2); or int8 as `nn.int8.pack` packs it, (g, n, ceil(k / 16), 16); or int4 as
        `nn.int4.pack` packs it, uint8 (g, n, ceil(k / 32) * 16).
    scale: fp32. (g, n) or (g, n, 1): one for each row of weight. (g, n, k / group): one for each `group` elements of a
        row, 16 (not of int4), 32, 64 or 128. For int4 it may be int32 instead, (g, n, k / group), with zero points as
        in `weight_only_linear`. Any strides; fastest if the scales of one group of K are contiguous.
    offs: int32 [g], where each group ends, as in `grouped_mm`: the host never reads it, groups may be empty, wrong
        offsets are clamped. Rows past the last one are not read, and are uninitialised memory in the result.
    bias: (g, n), of a floating-point dtype, added to each row of its group before the result is rounded.
    config: one with an order over groups, such as "groups/swizzle-merge:8".
    accumulation: as in `grouped_mm`.

    Weights are converted on their way to the tensor cores, and those of empty groups are not read. Any strides and any
    sizes. The result is contiguous, and bitwise reproducible from run to run. It has no derivative: RuntimeError if an
    operand requires grad while grad mode is on.

    Raises RuntimeError for shapes, dtypes, devices, scales or offsets that do not fit; TypeError for arguments of a
    wrong type; ValueError for a config that is not legal and for an unknown `accumulation`.

    >>> tokens = torch.ones(10, 64, device="cuda", dtype=torch.bfloat16)
    >>> experts = torch.full((3, 32, 64), 2, device="cuda", dtype=torch.int8)
    >>> offs = torch.tensor([4, 4, 10], device="cuda", dtype=torch.int32)  # 4 tokens, none and 6
    >>> scale = torch.full((3, 32), 0.5, device="cuda")
    >>> tritonmm.weight_only_grouped_mm(tokens, experts, scale, offs=offs)[0, 0].item()
    64.0
    """
    check_accumulation(accumulation)
    check_without_grad(NAME, input, weight, scale, *if_given(bias))
    check_config(NAME, config)
    check_dims(NAME, input=(input, 2))
    stored = stored_weight(NAME, weight, 3)
    right = stored.mT
    check_weights(NAME, input, weight, input, right)
    check_offsets(NAME, input, right, offs)
    groups, n, _ = stored.shape
    k = input.shape[1]
    if bias is not None:
        check_bias(NAME, input, right, offs, bias)
        if not bias.is_floating_point():
            raise RuntimeError(f"{NAME}: bias is {bias.dtype}; it must be of a floating-point dtype")
    scale, scales, group = weight_scales(NAME, stored, scale, k)
    how = GroupedHow("ieee", input.dtype, None, scale, scales, accumulation, group=group)
    if not k:  # there are no weights to be scaled
        right, how = input.new_empty(groups, 0, n), GroupedHow("ieee", accumulation=accumulation)
    return grouped_operator.compute(input, right, offs, bias=bias, config=config, how=how)
