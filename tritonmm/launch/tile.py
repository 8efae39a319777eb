"""Launches the portable kernel."""

from dataclasses import dataclass
from typing import Any, ClassVar

import triton

from tritonmm.kernels.tile import tile_kernel
from tritonmm.launch import Plan, addend_strides, divisor, early_start, strides

INTERPRETED = not isinstance(tile_kernel, triton.JITFunction)
"""Whether kernels run in Triton's interpreter: TRITON_INTERPRET was set before the first import."""


@dataclass(frozen=True, slots=True)
class TilePlan(Plan):
    kernel: ClassVar[Any] = tile_kernel

    def arguments(self, a, b, out, alpha=1.0, beta=1.0, c=None, bias=None):
        p, config = self.problem, self.config
        order, factors, along = self.order
        spans = *strides(a), *strides(b), *strides(out), *addend_strides(c, out)
        elements = min(p.alignment, p.out_alignment) // max(p.element_bytes, p.out_element_bytes)
        options = {
            "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k,
            "ORDER": order, "ALONG": along,
            "LAYOUT_A": p.layout[0], "LAYOUT_B": p.layout[1], "DIVISOR": divisor(p, elements, p.n),
            "PERSISTENT": config.persistent, "SCALED": p.epilogue.scaled, "PRECISION": p.precision,
            "WIDE": max(spans) * max(config.block_m, config.block_n, config.block_k) >= 2**31,
            "INTERPRETED": INTERPRETED,
            "num_warps": config.num_warps, "num_stages": config.num_stages, **early_start(self.device),
        }  # fmt: skip
        arguments = (
            a, b, out, c, bias, float(alpha), float(beta), self.table, factors,
            p.m, p.n, p.k, self.launched, self.programs, *spans,
        )  # fmt: skip
        return arguments, options
