"""Launches the kernel of fp32 on CUDA cores and fp64 on tensor cores."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from triton.experimental.gluon import language as gl

from tritonmm.config import Config
from tritonmm.kernels.sliced import Slicing, sliced_kernel
from tritonmm.launch import Plan, addend_strides, early_start, strides
from tritonmm.problem import Problem
from tritonmm.sliced import vector, warp_grid


@dataclass(frozen=True, slots=True)
class SlicedPlan(Plan):
    """slicing: what is static about the kernel."""

    kernel: ClassVar[Any] = sliced_kernel

    slicing: Slicing = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "slicing", _slicing(self.problem, self.config, self.order))

    def arguments(self, a, b, out, alpha=1.0, beta=1.0, c=None, bias=None, scales=None):
        p = self.problem
        arguments = (
            a, b, out, c, bias, float(alpha), float(beta), self.table, self.order[1], p.m, p.n, p.k, self.launched,
            *strides(a), *strides(b), *strides(out), *addend_strides(c, out), self.slicing,
        )  # fmt: skip
        return arguments, {"num_warps": self.config.num_warps, **early_start(self.device)}


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
    )
