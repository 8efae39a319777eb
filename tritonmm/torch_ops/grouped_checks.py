"""What grouped products require of their operands, with torch's exception classes."""

import torch

from tritonmm.torch_ops.checks import check_inner, shape_of

Tensor = torch.Tensor


def check_groups(name: str, a: Tensor, b: Tensor, offs: Tensor | None) -> None:
    """Raises unless the operands can be multiplied in groups that end at `offs`."""
    for operand, x in (("mat_a", a), ("mat_b", b)):
        if x.dim() not in (2, 3):
            raise RuntimeError(f"{name}: {operand} must be 2-D or 3-D, but it is {x.dim()}-D, {shape_of(x)}")
    check_inner(name, a, b, a, b)
    if a.dim() == b.dim() == 3:
        if offs is not None:
            raise RuntimeError(
                f"{name}: offs is given for {shape_of(a)} by {shape_of(b)}; two 3-D operands are a batch, so leave"
                " it out"
            )
        return
    if offs is None:
        raise RuntimeError(
            f"{name}: offs is missing for {shape_of(a)} by {shape_of(b)}; give int32 [groups], where each group ends"
        )
    check_offsets(name, a, b, offs)


def check_offsets(name: str, a: Tensor, b: Tensor, offs: Tensor) -> None:
    """Raises unless groups of the operands can end at `offs`."""
    if not isinstance(offs, Tensor):
        raise TypeError(f"{name}: offs must be a Tensor, not {type(offs).__name__}")
    if offs.dim() != 1 or offs.dtype != torch.int32:
        raise RuntimeError(f"{name}: offs is {offs.dtype} {list(offs.shape)}; it must be torch.int32 [groups]")
    if offs.device != a.device:
        raise RuntimeError(f"{name}: offs is on {offs.device}, the operands on {a.device}; it must be there too")
    for operand, x in (("mat_a", a), ("mat_b", b)):
        if x.dim() == 3 and x.shape[0] != offs.shape[0]:
            raise RuntimeError(
                f"{name}: offs has {offs.shape[0]} elements, {operand} is {shape_of(x)}; there must be one for each of"
                f" its {x.shape[0]} groups"
            )


def check_bias(name: str, a: Tensor, b: Tensor, offs: Tensor | None, bias: Tensor) -> None:
    if a.dim() == 3 and b.dim() == 2:
        raise NotImplementedError(
            f"{name}: bias is given for {shape_of(a)} by {shape_of(b)}; groups of columns have none, add it after"
        )
    shape = (a if offs is None else offs).shape[0], b.shape[-1]
    if bias.shape != shape:
        raise RuntimeError(f"{name}: bias is {list(bias.shape)}; for these operands it must be {list(shape)}")
