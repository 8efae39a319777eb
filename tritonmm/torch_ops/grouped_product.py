"""From tensors to the launches of a grouped GEMM: its plan is kept by the operands it was made for.

Nothing here reads the offsets on the host, so nothing waits for the device.
"""

from dataclasses import replace
from typing import NamedTuple

import torch

from tritonmm import families
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model.groups import of_class
from tritonmm.problem import Epilogue, Problem
from tritonmm.torch_ops.mode import required
from tritonmm.torch_ops.product import check_device, fp32_precision, gpu_of, key, remember, settled

Tensor = torch.Tensor


class GroupedHow(NamedTuple):
    """What is asked of a grouped GEMM, besides its operands and bias.

    precision, accumulation: as `Problem` has them; "" is what torch is set to, and what `enable` requires.
    out_dtype: of the output; None is the operands'.
    zeros: rows or columns of the output that belong to no group are 0. Else they are uninitialised memory.
    scale_a, scale_b: fp32 scales, with the dimensions of the operands: of a one for each row and scale group of K, of b
        one for each scale group and column, or block of columns. Where groups divide K, (groups, m, 1) and
        (groups, 1, n).
    scales: what they apply to, as in `Problem`, in which operands and output of groups of columns are transposed.
    group: elements of K that share a scale of weights of 8 or 4 bits.
    """

    precision: str = ""
    out_dtype: torch.dtype | None = None
    scale_a: Tensor | None = None
    scale_b: Tensor | None = None
    scales: str = ""
    accumulation: str = ""
    zeros: bool = False
    group: int = 128


DEFAULT = GroupedHow()


def grouped_product(
    a: Tensor,
    b: Tensor,
    offs: Tensor,
    *,
    bias: Tensor | None = None,
    config: Config | None = None,
    how: GroupedHow = DEFAULT,
    out: Tensor | None = None,
) -> Tensor:
    """The grouped product of plain tensors, a new contiguous one or `out`. The caller has checked shapes and dtypes.

    a: (total, k), b: (groups, k, n): out (total, n); bias: (groups, n). b may be int4 that is packed along K.
    a: (groups, m, k), b: (k, total): out (m, total); no bias.
    a: (m, total), b: (total, n): out (groups, m, n); bias: (groups, n).
    offs: int32 [groups], where each group ends on the device.
    out: of the result's shape and dtype, with any strides. It must not overlap the operands; `how.zeros` is not for it.
    """
    if out is None:
        is_padded = a.dim() != b.dim()
        new = a.new_zeros if how.zeros and is_padded else a.new_empty
        out = new(result_shape(a, b, offs), dtype=how.out_dtype or a.dtype)
    if not offs.shape[0]:
        return out
    left, right, target = (b.mT, a.mT, out.mT) if a.dim() == 3 else (a, b, out)
    if bias is not None:
        bias = bias.contiguous()
    if config is None:
        plan = _find(left, right, target, offs, bias, how)
    else:
        plan = _bind(left, right, target, bias, config, how)
    scales = _scales(how.scale_a, how.scale_b, is_transposed=a.dim() == 3) if how.scales else None
    plan(left, right, target, offs=offs.contiguous(), bias=bias, scales=scales)
    return out


def _scales(scale_a: Tensor | None, scale_b: Tensor, is_transposed: bool) -> tuple[Tensor | None, Tensor]:
    """The scales as a plan takes them."""
    if scale_a is None:  # of weights alone
        return None, scale_b
    if is_transposed:
        scale_a, scale_b = scale_b.mT, scale_a.mT
    if scale_a.dim() == 3:  # groups divide K
        return scale_a[..., 0].t(), scale_b.flatten(0, 1)
    return scale_a, scale_b


def result_shape(a: Tensor, b: Tensor, offs: Tensor) -> tuple[int, ...]:
    """The shape of the grouped product of operands that are not both 3-D."""
    batch = offs.shape if a.dim() == b.dim() else ()
    return *batch, a.shape[-2], b.shape[-1]


def problem_of(a: Tensor, b: Tensor, out: Tensor, how: GroupedHow = DEFAULT, bias: bool = False) -> Problem:
    """The problem of such a call. Groups of columns are those of rows of the transposed operands and output."""
    left, right, target = (b.mT, a.mT, out.mT) if a.dim() == 3 else (a, b, out)
    return Problem.of(
        left,
        right,
        target,
        how.precision or fp32_precision(),
        Epilogue(bias=bias),
        how.scales,
        how.group,
        accumulation=how.accumulation or required(),
        ragged="m" if right.dim() == 3 else "k",
    )


def _find(a: Tensor, b: Tensor, out: Tensor, offs: Tensor, bias: Tensor | None, how: GroupedHow):
    """The plan of such a call: a kept one, or a new one."""
    asked = (
        key(a, b), bias is not None, offs.shape[0], out.stride(), out.dtype, out.data_ptr() & 15,
        how.precision, how.scales, how.group, how.accumulation,
    )  # fmt: skip
    plan = _CALLS.get(asked)
    if plan is None:
        plan = _bind(a, b, out, bias, None, settled(how, asked))
        remember(_CALLS, asked, plan)
    return plan


def _bind(a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None, config: Config | None, how: GroupedHow):
    """The plan for operands of which a is 2-D."""
    from tritonmm.plan import INTERPRETED, plan_for

    check_device(a.device)
    problem = problem_of(a, b, out, how, bias is not None)
    if config is None:
        if INTERPRETED:  # NumPy adds up, in an order of its own
            problem = replace(problem, accumulation="any")
        config = chosen(problem, gpu_of(a.device), families.portable() if INTERPRETED else "")
    return plan_for(problem, config, a.device)


def chosen(problem: Problem, gpu: Gpu, kernel: str = "") -> Config:
    """The config for a grouped problem: that of the largest of its `size_class`, where it is legal.

    A new number of tokens in every step of a model would otherwise cost a new choice in every step.
    """
    from tritonmm.selection import choose

    config = choose(of_class(problem), gpu, kernel)
    return config if config.fits(problem, gpu) else choose(problem, gpu, kernel)


_CALLS: dict[tuple, object] = {}
