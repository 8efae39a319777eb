"""Launches the tile kernel."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import triton.language as tl

from tritonmm.dtypes import PACKED
from tritonmm.families.common_rules import divisor
from tritonmm.families.tile.kernel import TileSpec, tile_kernel
from tritonmm.launch import (
    Plan,
    addend_strides,
    launch_options,
    line_divisor,
    needs_int64,
    scale_arguments,
    scale_group_stride,
    strides,
)
from tritonmm.launch.interpreter import INTERPRETED, dot_precision
from tritonmm.moduli import MODULI
from tritonmm.problem import Problem

_SUMS = {"fp32": tl.float32, "fp64": tl.float64, "int32": tl.int32}


@dataclass(frozen=True, slots=True)
class TilePlan(Plan):
    kernel: ClassVar[Any] = tile_kernel

    @property
    def skippable(self) -> bool:
        return True

    def arguments(self, a, b, out, alpha=1.0, beta=1.0, c=None, bias=None, scales=None, groups=None, skip=None):
        p, config = self.problem, self.config
        order, factors, along = self.order
        if p.b_dtype == "int8p":
            b = b.mT.view(torch.int8).mT
        a_strides, b_strides, out_strides, c_strides = strides(a), strides(b), strides(out), addend_strides(c, out)
        # Of a symmetric product a tile is written transposed, too.
        mirrored = [x[:0:-1] for x in (out_strides, c_strides)] if p.symmetric else []
        wide = needs_int64(
            config.block_m, config.block_n, config.block_k,
            a_strides[1:], strides(b.mT)[1:], out_strides[1:], c_strides[1:], *mirrored,
        )  # fmt: skip
        elements = min(p.alignment, p.out_alignment) // int(
            max(p.element_bytes, p.b_element_bytes, p.out_element_bytes)
        )
        shared = line = divisor(p, elements, p.n)
        if p.element_bytes != p.b_element_bytes:  # 16 bytes hold more elements of B than of A
            line = line_divisor(p.b_alignment, p.n if p.layout[1] == "n" else p.k | p.b_rows)
        if p.ragged == "k" and p.layout != "tn":  # a group may begin anywhere in the lines of an operand along K
            shared = line = 1
        spec = TileSpec(
            block_m=config.block_m,
            block_n=config.block_n,
            block_k=config.block_k,
            ragged=p.ragged,
            joined=p.ragged == "m" and config.order.joined,
            order=order,
            along=along,
            layout=p.layout,
            divisor=shared,
            b_divisor=line,
            packed=p.b_dtype if p.b_dtype in PACKED else "",
            persistent=config.persistent,
            scaled=p.epilogue.scaled,
            precision=dot_precision(p),
            sum_dtype=_SUMS[p.sum_dtype],
            promotes=p.promotes,
            symmetric=bool(p.symmetric),
            scales=p.scales,
            group=p.group if p.block_scaled else 0,
            moduli=MODULI[: p.moduli],
            wide=wide,
            interpreted=INTERPRETED,
        )
        arguments = (
            a, b, out, c, bias, float(alpha), float(beta), self.table, factors, groups, skip,
            p.m, p.n, p.k, self.launched, self.programs,
            a_strides, b_strides, out_strides, c_strides, *_scales(p, scales), spec,
        )  # fmt: skip
        return arguments, launch_options(self.device, num_warps=config.num_warps, num_stages=config.num_stages)


def _scales(problem: Problem, scales) -> tuple:
    """Scales of A and their strides, and of B. A scale of a whole tensor is read everywhere: its strides are 0."""
    a, *a_strides, b, stride_n, stride_k = scale_arguments(scales)
    if problem.scales == "tensor":
        return a, (0, 0), b, (0, 0, 0)
    return a, tuple(a_strides), b, (stride_n, stride_k, scale_group_stride(problem, scales))
