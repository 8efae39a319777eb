"""Launches the kernel of fp32 on CUDA cores and fp64 on tensor cores."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from triton.experimental.gluon import language as gl

from tritonmm.config import Config
from tritonmm.families.exact.kernel import Slicing, sliced_kernel
from tritonmm.families.exact.rules import vector, warp_grid
from tritonmm.launch import Plan, addend_strides, early_start, needs_int64, strides
from tritonmm.problem import Problem


@dataclass(frozen=True, slots=True)
class SlicedPlan(Plan):
    """slicing: what is static about the kernel, for operands with few enough elements between their lines."""

    kernel: ClassVar[Any] = sliced_kernel

    slicing: Slicing = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "slicing", _slicing(self.problem, self.config, self.order))

    def arguments(self, a, b, out, alpha=1.0, beta=1.0, c=None, bias=None, scales=None):
        p, config = self.problem, self.config
        a_strides, b_strides, out_strides, c_strides = strides(a), strides(b), strides(out), addend_strides(c, out)
        wide = needs_int64(
            config.block_m, config.block_n, config.block_k,
            a_strides[1:], strides(b.mT)[1:], out_strides[1:], c_strides[1:],
        )  # fmt: skip
        slicing = replace(self.slicing, wide=True) if wide else self.slicing
        sums, flags = self.workspace() if config.split_k > 1 else (None, None)
        arguments = (
            a, b, out, c, bias, float(alpha), float(beta), self.table, self.order[1], sums, flags,
            p.m, p.n, p.k, self.launched, self.programs,
            *a_strides, *b_strides, *out_strides, *c_strides, slicing,
        )  # fmt: skip
        options = {"num_warps": config.num_warps, **early_start(self.device)}
        if p.dtype == "fp32" and p.layout == "tn" and slicing.clamped and config.split_k == 1:
            # What takes hardly more than 128 registers: ptxas spills some for the warps that this makes room for.
            options["maxnreg"] = min(255, 65_536 // (32 * config.num_warps))
        return arguments, options


def _slicing(problem: Problem, config: Config, order: tuple[str, tuple[int, ...], str]) -> Slicing:
    p = problem
    name, _, along = order
    stored = max(1, p.out_alignment // p.element_bytes) | p.n
    return Slicing(
        config.block_m,
        config.block_n,
        config.block_k,
        config.num_stages,
        warp_grid(config, p),
        gl.float64 if p.dtype == "fp64" else gl.float32,
        p.layout,
        vector(p),
        stored & -stored,
        name,
        along,
        p.epilogue.scaled,
        config.split_k,
        p.dtype == "fp32" and p.k % config.block_k == 0,
    )
