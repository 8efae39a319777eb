"""Launches the kernel of fp32 on CUDA cores and fp64 on tensor cores."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from triton.experimental.gluon import language as gl

from tritonmm.config import Config
from tritonmm.families.common_rules import SM_REGISTERS, THREAD_REGISTERS
from tritonmm.families.exact.kernel import exact_kernel
from tritonmm.families.exact.rules import vector, warp_grid
from tritonmm.families.exact.spec import ExactSpec
from tritonmm.launch import Plan, addend_strides, launch_options, line_divisor, needs_int64, strides
from tritonmm.problem import Problem


@dataclass(frozen=True, slots=True)
class ExactPlan(Plan):
    """spec: what the kernel is compiled for where offsets within a tile fit 32 bits."""

    kernel: ClassVar[Any] = exact_kernel

    spec: ExactSpec = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "spec", _spec(self.problem, self.config, self.order))

    @property
    def skippable(self) -> bool:
        return True

    def arguments(self, a, b, out, alpha=1.0, beta=1.0, c=None, bias=None, scales=None, skip=None):
        p, config = self.problem, self.config
        a_strides, b_strides, out_strides, c_strides = strides(a), strides(b), strides(out), addend_strides(c, out)
        # Of a symmetric product a tile is written transposed, too.
        mirrored = [x[:0:-1] for x in (out_strides, c_strides)] if p.symmetric else []
        wide = needs_int64(
            config.block_m, config.block_n, config.block_k,
            a_strides[1:], strides(b.mT)[1:], out_strides[1:], c_strides[1:], *mirrored,
        )  # fmt: skip
        spec = replace(self.spec, wide=True) if wide else self.spec
        sums, flags = self.workspace() if config.split_k > 1 else (None, None)
        arguments = (
            a, b, out, c, bias, float(alpha), float(beta), self.table, self.order[1], sums, flags, skip,
            p.m, p.n, p.k, self.launched, self.programs,
            a_strides, b_strides, out_strides, c_strides, spec,
        )  # fmt: skip
        options = launch_options(self.device, num_warps=config.num_warps)
        if p.dtype == "fp32" and p.layout == "tn" and spec.clamped and config.split_k == 1:
            # The kernel needs hardly more than 128 registers, and ptxas would spill to keep to 128 for more occupancy.
            options["maxnreg"] = min(THREAD_REGISTERS, SM_REGISTERS // (32 * config.num_warps))
        return arguments, options


def _spec(problem: Problem, config: Config, order: tuple[str, tuple[int, ...], str]) -> ExactSpec:
    p = problem
    name, _, along = order
    return ExactSpec(
        block_m=config.block_m,
        block_n=config.block_n,
        block_k=config.block_k,
        num_stages=config.num_stages,
        warp_grid=warp_grid(config, p),
        dtype=gl.float64 if p.dtype == "fp64" else gl.float32,
        layout=p.layout,
        vector=vector(p),
        divisor=line_divisor(p.out_alignment // p.element_bytes, p.n),
        order=name,
        along=along,
        scaled=p.epilogue.scaled,
        split_k=config.split_k,
        symmetric=bool(p.symmetric),
        whole_steps=p.dtype == "fp32" and p.k % config.block_k == 0,
    )
