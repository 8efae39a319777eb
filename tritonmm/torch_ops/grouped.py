"""Grouped products: one launch for many GEMMs whose sizes only the device knows, as in a mixture of experts."""

import torch

from tritonmm.config import Config
from tritonmm.torch_ops import grouped_operator, operator
from tritonmm.torch_ops.checks import check_inner, check_operands, shape_of
from tritonmm.torch_ops.dense import how_of
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
    if config is not None and not isinstance(config, Config):
        raise TypeError(f"grouped_mm: config is {config!r}; it must be a tritonmm.Config, or None to have one chosen")
    _check_groups(mat_a, mat_b, offs)
    if bias is not None:
        _check_bias(mat_a, mat_b, offs, bias)
    if offs is None:
        shape = batched("grouped_mm", mat_a, mat_b)
        c = None if bias is None else bias.unsqueeze(1).expand(shape)
        return operator.compute(mat_a, mat_b, c=c, config=config, how=how)
    asked = DEFAULT if how is None else GroupedHow(how.precision, how.out_dtype, how.accumulation)
    return grouped_operator.compute(mat_a, mat_b, offs, bias=bias, config=config, how=asked)


def _check_groups(a: Tensor, b: Tensor, offs: Tensor | None) -> None:
    """Raises unless the operands can be multiplied in groups that end at `offs`."""
    for name, x in (("mat_a", a), ("mat_b", b)):
        if x.dim() not in (2, 3):
            raise RuntimeError(f"grouped_mm: {name} must be 2-D or 3-D, but it is {x.dim()}-D, {shape_of(x)}")
    check_inner("grouped_mm", a, b, a, b)
    if a.dim() == b.dim() == 3:
        if offs is not None:
            raise RuntimeError(
                f"grouped_mm: offs is given for {shape_of(a)} by {shape_of(b)}; two 3-D operands are a batch, so leave"
                " it out"
            )
        return
    if offs is None:
        raise RuntimeError(
            f"grouped_mm: offs is missing for {shape_of(a)} by {shape_of(b)}; give int32 [groups], where each"
            " group ends"
        )
    if not isinstance(offs, Tensor):
        raise TypeError(f"grouped_mm: offs must be a Tensor, not {type(offs).__name__}")
    if offs.dim() != 1 or offs.dtype != torch.int32:
        raise RuntimeError(f"grouped_mm: offs is {offs.dtype} {list(offs.shape)}; it must be torch.int32 [groups]")
    if offs.device != a.device:
        raise RuntimeError(f"grouped_mm: offs is on {offs.device}, the operands on {a.device}; it must be there too")
    for name, x in (("mat_a", a), ("mat_b", b)):
        if x.dim() == 3 and x.shape[0] != offs.shape[0]:
            raise RuntimeError(
                f"grouped_mm: offs has {offs.shape[0]} elements, {name} is {shape_of(x)}; there must be one for each of"
                f" its {x.shape[0]} groups"
            )


def _check_bias(a: Tensor, b: Tensor, offs: Tensor | None, bias: Tensor) -> None:
    if a.dim() == 3 and b.dim() == 2:
        raise NotImplementedError(
            f"grouped_mm: bias is given for {shape_of(a)} by {shape_of(b)}; groups of columns have none, add it after"
        )
    shape = (a if offs is None else offs).shape[0], b.shape[-1]
    if bias.shape != shape:
        raise RuntimeError(f"grouped_mm: bias is {list(bias.shape)}; for these operands it must be {list(shape)}")
