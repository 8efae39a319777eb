"""Codes of a layer's weights, of 8 or 4 bits, and their scales."""

import torch

from tritonmm.nn import int4, int8
from tritonmm.torch_ops.checks import spanned

Tensor = torch.Tensor

CODES = {
    "int8": (torch.int8, 127.0),
    "int8p": (torch.int16, 127.0),
    "int4": (torch.uint8, 7.0),
    "fp8": (torch.float8_e4m3fn, torch.finfo(torch.float8_e4m3fn).max),
}
"""The dtype of codes, and the largest that is used."""

LEAST_SCALE = torch.finfo(torch.float32).tiny
"""Kernels may count smaller scales as 0."""

AT_ONCE = 2**26
"""Weights that are quantized at once: they need 12 bytes each meanwhile."""


def quantized(weight: Tensor, codes: str, group: int | None = None) -> tuple[Tensor, Tensor]:
    """Codes (n, k) of the dtype in `CODES`, and fp32 scales, (n,), or (n, k / group) for each `group` of a row. int8p
    and int4 are packed as `int8.pack` and `int4.pack` do it. Weights of experts, (experts, n, k), become codes of
    (experts, n, k) with their scales.

    weight: (n, k), about codes * scale. A scale is the largest absolute value of its weights over the largest code;
    codes are rounded to nearest, ties to even.

    >>> quantized(torch.tensor([[0.5, -1.0]]), "int8")
    (tensor([[  64, -127]], dtype=torch.int8), tensor([0.0079]))
    """
    if weight.dim() == 3:
        found, scales = quantized(weight.flatten(0, 1), codes, group)
        of_experts = weight.shape[:2]
        return found.view(*of_experts, -1), scales.view(*of_experts, *scales.shape[1:])
    dtype, most = CODES[codes]
    n, k = weight.shape
    groups = 1 if group is None else k // group
    row = {"int8p": int8.packed_words(k), "int4": int4.packed_bytes(k)}.get(codes, k)
    found = torch.empty(n, row, dtype=dtype, device=weight.device)
    scales = torch.empty(groups, n, dtype=torch.float32, device=weight.device).t()  # a step reads those of a group
    rows = max(1, AT_ONCE // max(k, 1))
    for first in range(0, n, rows):
        part = weight[first : first + rows].float().view(-1, groups, k // groups)
        scale = (part.abs().amax(-1) / most).clamp(min=LEAST_SCALE)
        part = (part / scale.unsqueeze(-1)).view(-1, k)
        if codes == "int4":
            part = int4.pack((part.round() + int4.ZERO).to(dtype))
        elif codes == "int8p":
            part = int8.pack(part.round().char())
        found[first : first + rows] = (part.round() if codes == "int8" else part).to(dtype)
        scales[first : first + rows] = scale
    return found, scales.squeeze(1) if group is None else scales


def dequantized(weight: Tensor, scale: Tensor, dtype: torch.dtype, k: int | None = None) -> Tensor:
    """weight * scale in dtype, rounded once; codes and scales as of `quantized`, or scales of `int4.with_zero_points`.
    Those of experts, (experts, n, k), too. k: of packed weights, by default all.

    >>> dequantized(*quantized(torch.tensor([[0.5, -1.0]]), "int8"), torch.float32)
    tensor([[ 0.5039, -1.0000]])
    """
    if weight.dim() == 3:
        found = dequantized(weight.flatten(0, 1), scale.flatten(0, 1), dtype, k)
        return found.view(*weight.shape[:2], found.shape[1])
    zero: float | Tensor = 0.0
    if weight.dtype == torch.int16:
        weight = int8.unpack(weight, k)
    elif weight.dtype == torch.uint8:
        weight, zero = int4.unpack(weight, k), float(int4.ZERO)
    if scale.dtype == torch.int32:
        scale, zero = int4.scales_and_zero_points(scale)
        zero = zero.unsqueeze(2)
    n, k = weight.shape
    scale = scale.reshape(n, -1, 1)
    return ((weight.float().view(n, scale.shape[1], -1) - zero) * scale).view(n, k).to(dtype)


def group_of(weight: Tensor, scale: Tensor, in_features: int) -> int | None:
    """Elements of a row of weights that share a scale; None if all do."""
    return None if scale.dim() < weight.dim() else in_features // scale.shape[-1]


def room_of(weight: Tensor) -> int:
    """Elements of K that rows of codes have room for: two in an element of packed ones."""
    return weight.shape[-1] * (2 if weight.dtype in (torch.int16, torch.uint8) else 1)


def described(weight: Tensor, scale: Tensor, in_features: int) -> str:
    """Codes and scales in the words of a module's repr."""
    group = group_of(weight, scale, in_features)
    packed = {torch.int16: "int8", torch.uint8: "int4"}
    codes = packed.get(weight.dtype, str(weight.dtype).removeprefix("torch."))
    of_groups = "" if group is None else f", group={group}"
    return f"weight={codes}{of_groups}" + (", zero_points=True" if scale.dtype == torch.int32 else "")


class QuantizedModule(torch.nn.Module):
    """A module that has codes and scales among its buffers. Casts such as `module.half()` leave these as they are.

    codes: names of the buffers that hold codes or scales.
    """

    codes: tuple[str, ...] = ()

    def _apply(self, fn, recurse=True):
        before = {name: getattr(self, name) for name in self.codes}
        super()._apply(fn, recurse)
        for name, old in before.items():
            found = getattr(self, name)
            if found.dtype != old.dtype:  # a cast, maybe of another device: codes are no numbers to be cast
                setattr(self, name, old.to(found.device))
        return self

    def _load_from_state_dict(self, state_dict, prefix, *args):
        for name in self.codes:
            x = state_dict.get(f"{prefix}{name}")
            if x is not None and x.dtype == torch.int8 and getattr(self, name).dtype == torch.int16:
                state_dict[f"{prefix}{name}"] = int8.pack(x)  # a file in which weights are not packed
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in () if keep_vars else self.codes:
            x = destination[f"{prefix}{name}"]
            if x.dim() == 2 and spanned(x) != x.nbytes:  # scales between those of siblings: files have their own
                destination[f"{prefix}{name}"] = x.mT.contiguous().mT
