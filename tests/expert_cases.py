"""Grouped products by weights of 8 and 4 bits for tests: random codes with scales, and what they stand for."""

import torch

from tritonmm.nn import int8
from tritonmm.nn.int4 import pack, with_zero_points

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

WEIGHTS = ("int8", "int8p", "e4m3", "e5m2", "int4", "int4-zero")


class Experts:
    """Weights of groups as `weight_only_grouped_mm` takes them, and `dense`, what they stand for, in float64.

    group: elements of a row that share a scale; None if all do. exact: products of small integers with them are exact.
    """

    def __init__(self, kind: str, shape: tuple[int, int, int], group: int | None, device, exact: bool = True):
        g, n, k = shape
        parts = 1 if group is None else k // group
        if exact:
            scale = torch.randint(-2, 3, (g, n, parts), device=device).float().exp2()
        else:
            scale = torch.empty(g, n, parts, device=device).uniform_(-6, -4).exp2().bfloat16().float()
        most = {"int8": 127, "int8p": 127, "e4m3": 16, "e5m2": 8, "int4": 8, "int4-zero": 8}[kind] if not exact else 4
        values = torch.randint(-most, most + (not kind.startswith("int4")), shape, device=device)
        zero = torch.zeros(scale.shape, device=device, dtype=torch.int64)
        if kind == "int4-zero":
            zero = torch.randint(16, scale.shape, device=device)
        if kind.startswith("int4"):
            self.weight = pack(values + 8)
            values = values + 8 - (zero if kind == "int4-zero" else zero + 8).repeat_interleave(k // parts, 2)
        elif kind == "int8p":
            self.weight = int8.pack(values.char())
        else:
            self.weight = values.to({"int8": torch.int8, "e4m3": E4M3, "e5m2": E5M2}[kind])
        self.dense = values.double() * scale.double().repeat_interleave(k // parts, 2)
        self.scale = with_zero_points(scale, zero) if kind == "int4-zero" else scale
        if group is None and kind != "int4-zero":
            self.scale = self.scale[..., 0]
