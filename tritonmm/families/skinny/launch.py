"""Launches the skinny kernel: which operand is streamed, and the workspace of split-K."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tritonmm.config import Config
from tritonmm.families.skinny.kernel import SkinnySpec, skinny_kernel
from tritonmm.families.skinny.rules import streams_a
from tritonmm.launch import Plan, addend_strides, launch_options, line_divisor, needs_int64, scale_arguments, strides
from tritonmm.launch.interpreter import INTERPRETED, dot_precision
from tritonmm.problem import Problem


@dataclass(frozen=True, slots=True)
class SkinnyPlan(Plan):
    kernel: ClassVar[Any] = skinny_kernel

    @property
    def operands(self) -> dict[str, str]:
        return {"w": "a", "x": "b"} if streams_a(self.config) else {"w": "b", "x": "a"}

    def arguments(self, a, b, out, alpha=1.0, beta=1.0, c=None, bias=None, scales=None):
        p, config = self.problem, self.config
        order, factors, along = self.order
        # A [m, k], B [k, n] and the output as the kernel sees them: W [rows, k], X [cols, k], out [rows, cols].
        swapped = streams_a(config)
        if p.b_dtype == "int8p":
            b = b.mT.view(torch.int8).mT
        a_strides, b_strides = strides(a), _swap(strides(b))
        out_strides, c_strides, bias_strides = strides(out), addend_strides(c, out), (0, 1)
        layout_a, layout_b = p.layout[0], p.layout[1].translate(_TRANSPOSED)
        if swapped:
            w, x, rows, cols, block_r, block_c = a, b, p.m, p.n, config.block_m, config.block_n
            w_strides, x_strides, layouts = a_strides, b_strides, (layout_a, layout_b)
            held = p.a_alignment // p.element_bytes, p.b_alignment // int(p.b_element_bytes)
        else:
            w, x, rows, cols, block_r, block_c = b, a, p.n, p.m, config.block_n, config.block_m
            w_strides, x_strides, layouts = b_strides, a_strides, (layout_b, layout_a)
            held = p.b_alignment // int(p.b_element_bytes), p.a_alignment // p.element_bytes
            out_strides, c_strides, bias_strides = _swap(out_strides), _swap(c_strides), (1, 0)
        sums, flags = self.workspace() if config.split_k > 1 else (None, None)
        wide = needs_int64(
            block_r, block_c, config.block_k,
            w_strides[1:], x_strides[1:], out_strides[1:], c_strides[1:],
        )  # fmt: skip
        spec = SkinnySpec(
            block_r=block_r,
            block_c=block_c,
            block_k=config.block_k,
            split_k=config.split_k,
            order=order,
            along=along,
            swapped=swapped,
            batched=p.batch > 1,
            layouts=layouts,
            divisors=(
                line_divisor(held[0], p.k if layouts[0] == "n" else rows),
                line_divisor(held[1], p.k if layouts[1] == "n" else cols),
            ),
            even_k=p.k > 0 and p.k % config.block_k == 0,
            num_stages=config.num_stages,
            unroll=_unroll(block_r * block_c // config.num_warps, config.split_k),
            scaled=p.epilogue.scaled,
            group=p.group if p.block_scaled else 0,
            packed=p.b_dtype == "int8p",
            interleaved=_interleaved(config, p, layouts[0]),
            precision=dot_precision(p),
            wide=wide,
            interpreted=INTERPRETED,
        )
        scale_b, stride_sn, stride_sk = scale_arguments(scales)[3:]
        arguments = (
            w, x, out, c, bias, float(alpha), float(beta), self.table, factors, sums, flags,
            rows, cols, p.k, self.launched, self.programs,
            w_strides, x_strides, out_strides, c_strides, bias_strides, scale_b, (stride_sn, stride_sk), spec,
        )  # fmt: skip
        return arguments, launch_options(self.device, num_warps=config.num_warps, num_stages=config.num_stages)


_TRANSPOSED = str.maketrans("nt", "tn")


def _swap(spans: tuple[int, int, int]) -> tuple[int, int, int]:
    return spans[0], spans[2], spans[1]


def _interleaved(config: Config, problem: Problem, layout: str) -> bool:
    """True if operands are multiplied in an order of K in which a thread loads 16 8-bit weights at once.

    It is the order of mma.sync, which Triton uses with fewer than wgmma's four warps.
    """
    bytes_along_k = problem.b_element_bytes == 1 and layout == "n"
    return (
        bytes_along_k and config.num_warps < 4 and config.block_k % 64 == 0 and min(config.block_m, config.block_n) > 1
    )


FIXUP_REGISTERS = 32
"""Registers of a thread for the sums of other parts whose loads are in flight together."""


def _unroll(elements: int, splits: int) -> int:
    """Parts whose loads are in flight together. elements: of a tile, for each warp of 32 threads."""
    return max(1, min(FIXUP_REGISTERS * 32 // max(elements, 1), splits - 1))
