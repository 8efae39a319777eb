"""Codes of a layer's weights, of 8 or 4 bits, and their scales."""

import math
from collections.abc import Iterator

import torch

from tritonmm.nn import int4, int8
from tritonmm.torch_ops.checks import spanned
from tritonmm.torch_ops.operands import cast

Tensor = torch.Tensor

CODES = {
    "int8": (torch.int8, 127.0),
    "int8p": (torch.int8, 127.0),
    "int4": (torch.uint8, 7.0),
    "fp8": (torch.float8_e4m3fn, torch.finfo(torch.float8_e4m3fn).max),
}
"""The dtype of codes, and the largest that is used. int8p is packed as `int8.pack` does it."""

LEAST_SCALE = torch.finfo(torch.float32).tiny
"""Kernels may count smaller scales as 0."""

AT_ONCE = 2**26
"""Weights that are quantized at once: they need 12 bytes each meanwhile."""


def quantized(weight: Tensor, codes: str, group: int | None = None) -> tuple[Tensor, Tensor]:
    """Codes (n, k) of the dtype in `CODES`, int8p and int4 as `int8.pack` and `int4.pack` pack them, and fp32 scales,
    (n,), or (n, k / group) for each `group` of a row. All have a dimension of experts in front if `weight` does.

    weight: (n, k) or (experts, n, k), about codes * scale. A scale is the largest absolute value of its weights over
    the largest code; codes are rounded to nearest, ties to even.

    >>> quantized(torch.tensor([[0.5, -1.0]]), "int8")
    (tensor([[  64, -127]], dtype=torch.int8), tensor([0.0079]))
    """
    if weight.dim() == 3:
        found, scales = quantized(weight.flatten(0, 1), codes, group)
        of_experts = weight.shape[:2]
        return found.view(*of_experts, *found.shape[1:]), scales.view(*of_experts, *scales.shape[1:])
    dtype, most = CODES[codes]
    n, k = weight.shape
    groups = 1 if group is None else k // group
    shape = _packed(torch.empty(n, k, dtype=dtype, device="meta"), codes).shape
    found = torch.empty(shape, dtype=dtype, device=weight.device)
    scales = torch.empty(n, groups, dtype=torch.float32, device=weight.device)
    if groups > 1:
        scales = scales.view(groups, n).t()  # a step reads those of a group
    rows = max(1, AT_ONCE // max(k, 1))
    for first in range(0, n, rows):
        part = weight[first : first + rows].float().view(-1, groups, k // groups)
        scale = (part.abs().amax(-1) / most).clamp(min=LEAST_SCALE)
        part = (part / scale.unsqueeze(-1)).view(-1, k)
        if codes != "fp8":
            part = part.round() + (int4.ZERO if codes == "int4" else 0)
        found[first : first + rows] = _packed(part.to(dtype), codes)
        scales[first : first + rows] = scale
    return found, scales.squeeze(1) if group is None else scales


def _packed(codes: Tensor, kind: str) -> Tensor:
    """Codes (n, k) as layers have those of a kind in `CODES`."""
    pack = {"int8p": int8.pack, "int4": int4.pack}.get(kind)
    return pack(codes) if pack else codes


def dequantized(weight: Tensor, scale: Tensor, dtype: torch.dtype, k: int | None = None, *, lines: int = 1) -> Tensor:
    """weight * scale in dtype, (n, k) or (experts, n, k), rounded once; codes and scales as of `quantized`, or scales
    of `int4.with_zero_points`. k: of packed weights, by default all. lines: dimensions before K, 2 of experts.

    >>> dequantized(*quantized(torch.tensor([[0.5, -1.0]]), "int8"), torch.float32)
    tensor([[ 0.5039, -1.0000]])
    """
    zero: float | Tensor = 0.0
    if weight.dim() == lines + 2:
        weight = int8.unpack(weight, k)
    elif weight.dtype == torch.uint8:
        weight, zero = int4.unpack(weight, k), float(int4.ZERO)
    if scale.dtype == torch.int32:
        scale, zero = int4.scales_and_zero_points(scale)
        zero = zero.unsqueeze(-1)
    *rows, k = weight.shape
    groups = scale.shape[lines] if scale.dim() > lines else 1
    codes = weight.float().reshape(*rows, groups, k // max(groups, 1))
    return ((codes - zero) * scale.reshape(*rows, groups, 1)).reshape(weight.shape).to(dtype)


class QuantizedModule(torch.nn.Module):
    """A module that has codes and scales among its buffers. Casts such as `module.half()` leave these as they are.

    lines: dimensions of codes before K: 1 of a linear layer, 2 of experts.
    """

    lines: int

    def _operands(self) -> dict[str, tuple[str, int]]:
        """The names of buffers that hold codes, and of each that of its scales and its elements of K."""
        raise NotImplementedError

    def _described(self, name: str) -> str:
        """Codes of that name and their scales in the words of a module's repr."""
        weight = getattr(self, name)
        codes = "int4" if weight.dtype == torch.uint8 else str(weight.dtype).removeprefix("torch.")
        group = self._group_of(name)
        of_groups = "" if group is None else f", group={group}"
        zero_points = getattr(self, self._operands()[name][0]).dtype == torch.int32
        return f"weight={codes}{of_groups}" + (", zero_points=True" if zero_points else "")

    def _group_of(self, name: str) -> int | None:
        """Elements of a row of codes of that name that share a scale; None if all do."""
        of_scale, k = self._operands()[name]
        scale = getattr(self, of_scale)
        return None if scale.dim() == self.lines else k // max(scale.shape[-1], 1)

    def _room_of(self, weight: Tensor) -> int:
        """Elements of K that rows of codes have room for."""
        return math.prod(weight.shape[self.lines :]) * (2 if weight.dtype == torch.uint8 else 1)

    def _prepared(self, x: Tensor, k: int) -> Tensor:
        """Activations, cast as autocast asks for. Raises RuntimeError unless a row has k elements."""
        if x.shape[-1:] != (k,):
            raise RuntimeError(f"{type(self).__name__}: input is {list(x.shape)}; its last dimension must be {k}")
        return cast("weight_only_linear", None, x)[0]

    def _beyond(self, weight: Tensor, k: int) -> bool:
        """Whether rows of codes have room for more than k weights, and other codes than that of 0 there."""
        if weight.is_meta or k == self._room_of(weight):
            return False
        if weight.dtype == torch.uint8:
            return bool((int4.unpack(weight[..., -int4.TOGETHER // 2 :])[..., k % int4.TOGETHER :] != int4.ZERO).any())
        return bool(int8.unpack(weight[..., -1:, :])[..., k % int8.TOGETHER :].any())

    def _buffers_of_codes(self) -> Iterator[str]:
        for name, (scale, _) in self._operands().items():
            yield from (name, scale)

    def _apply(self, fn, recurse=True):
        before = {name: getattr(self, name) for name in self._buffers_of_codes()}
        super()._apply(fn, recurse)
        for name, old in before.items():
            found = getattr(self, name)
            # A cast or another memory format, maybe on another device. Codes are no numbers, nor images.
            if found.dtype != old.dtype or found.stride() != old.stride():
                setattr(self, name, old.to(found.device))
        return self

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors):
        refused = []
        for name, (_, k) in self._operands().items():
            key = f"{prefix}{name}"
            x, own = state_dict.get(key), getattr(self, name)
            is_packed = own.dtype == torch.int8 and own.dim() == self.lines + 2
            if is_packed and x is not None and x.dtype == torch.int8 and x.dim() == self.lines + 1:
                if x.shape[-1] != k:
                    errors.append(f"{key} has rows of {x.shape[-1]} elements; the module's have {k}")
                    refused.append(key)
                    del state_dict[key]
                    continue
                state_dict[key] = int8.pack(x)  # a file in which weights are not packed
            elif x is not None and (x.dtype, x.shape) == (own.dtype, own.shape) and self._beyond(x, k):
                errors.append(f"{key} has weights beyond the first {k} of a row; the module's rows have {k}")
        if not local_metadata.get("assign_to_params_buffers", False):
            for name in self._buffers_of_codes():
                x, own = state_dict.get(f"{prefix}{name}"), getattr(self, name)
                if x is not None and x.dtype != own.dtype:  # torch would cast it
                    otherwise = ", or load with assign=True" if x.shape == own.shape else ""
                    errors.append(
                        f"{prefix}{name} is {x.dtype} in the state_dict and {own.dtype} in the module: quantize the"
                        f" model by the same kind{otherwise}"
                    )
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)
        missing[:] = [key for key in missing if key not in refused]  # `errors` has these already

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, (of_scale, _) in () if keep_vars else self._operands().items():
            codes, scale = (destination[f"{prefix}{each}"] for each in (name, of_scale))
            if spanned(codes) != codes.nbytes:
                destination[f"{prefix}{name}"] = codes.contiguous()
            if scale.dim() == 2 and spanned(scale) != scale.nbytes:  # between those of siblings: files have their own
                destination[f"{prefix}{of_scale}"] = scale.mT.contiguous().mT
