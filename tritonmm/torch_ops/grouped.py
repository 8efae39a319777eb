"""Grouped products: one launch for many GEMMs whose sizes only the device knows, as in a mixture of experts."""

import torch

from tritonmm.config import Config
from tritonmm.torch_ops import grouped_operator, operator
from tritonmm.torch_ops.checks import check_config, check_operands
from tritonmm.torch_ops.dense import how_of
from tritonmm.torch_ops.grouped_checks import check_bias, check_groups
from tritonmm.torch_ops.grouped_product import DEFAULT, GroupedHow
from tritonmm.torch_ops.operands import batched

Tensor = torch.Tensor


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    config: Config | None = None,
    precision: str = "",
    accumulation: str = "",
) -> Tensor:
    """Multiplies groups of rows, columns or K by their own matrices, as torch.nn.functional.grouped_mm.

    The number of dimensions says what the groups divide:

    - (t, k) by (g, k, n) to (t, n): the rows of mat_a, each group times its matrix of mat_b.
    - (g, m, k) by (k, t) to (m, t): the columns of mat_b.
    - (m, t) by (t, n) to (g, m, n): K. A group without elements gives zeros, or the bias.
    - (g, m, k) by (g, k, n) to (g, m, n): nothing, it is a `bmm`.

    offs: int32 [g], where each group ends, on the operands' device; None if both are 3-D. Group i is
        offs[i - 1]:offs[i] of the t rows, columns or elements of K. The host never reads the values, so a call never
        waits for the device. They are clamped to 0 and t, and one below an earlier one counts as that one. Rows and
        columns past the last offset are never read. In the result they are uninitialised memory, as in torch. In
        derivatives, where torch leaves them uninitialised too, they are 0.
    bias: (g, n), added to each row of its group before the result is rounded. Not for groups of columns.
    out_dtype: torch.float32 for fp32 results of bf16 and fp16 operands. By default the operands' dtype.
    config: one with an order over groups, such as "groups/swizzle-merge:8"; for two 3-D operands as in `bmm`.
    precision, accumulation: see `tritonmm.torch_ops.dense`.

    bf16, fp16, fp32 or fp64, with any strides and any alignment; any size may be 0. The result is contiguous, and
    bitwise reproducible from run to run. Derivatives of any order, in forward and reverse mode, are grouped products.
    Autocast casts nothing here, as in torch.

    Raises RuntimeError, as torch does, for shapes, dtypes, devices or offsets that do not fit; NotImplementedError for
    a bias of groups of columns, for other dtypes and layouts, and under vmap; TypeError for arguments of a wrong type;
    ValueError for a config that is not legal and for an unknown `precision` or `accumulation`.

    >>> tokens, experts = torch.randn(10, 32, device="cuda"), torch.randn(3, 32, 16, device="cuda")
    >>> offs = torch.tensor([4, 4, 10], device="cuda", dtype=torch.int32)  # 4 tokens, none and 6
    >>> out = tritonmm.grouped_mm(tokens, experts, offs=offs)
    >>> out.shape
    torch.Size([10, 16])
    >>> tritonmm.grouped_mm(tokens.mT, out, offs=offs).shape  # the gradient of the experts, where out is that of out
    torch.Size([3, 32, 16])
    """
    how = how_of(mat_a, precision, accumulation, out_dtype)
    check_operands("grouped_mm", mat_a, mat_b, *(() if bias is None else (bias,)))
    check_config("grouped_mm", config)
    check_groups("grouped_mm", mat_a, mat_b, offs)
    if bias is not None:
        check_bias("grouped_mm", mat_a, mat_b, offs, bias)
    if offs is None:
        shape = batched("grouped_mm", mat_a, mat_b)
        c = None if bias is None else bias.unsqueeze(1).expand(shape)
        return operator.compute(mat_a, mat_b, c=c, config=config, how=how)
    asked = DEFAULT if how is None else GroupedHow(how.precision, how.out_dtype, accumulation=how.accumulation)
    return grouped_operator.compute(mat_a, mat_b, offs, bias=bias, config=config, how=asked)
