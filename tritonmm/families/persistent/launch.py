"""Launches the persistent kernel of plain Triton.

TMA descriptors are made on the host. On the device they would need memory from `triton.set_allocator`, a context
variable that other threads, autograd's among them, do not see.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from triton.tools.tensor_descriptor import TensorDescriptor

from tritonmm.families.persistent.kernel import PersistentSpec, persistent_kernel
from tritonmm.families.persistent.rules import output_pieces
from tritonmm.launch import Plan, addend_strides, described, launch_options
from tritonmm.launch.interpreter import INTERPRETED


@dataclass(frozen=True, slots=True)
class PersistentPlan(Plan):
    kernel: ClassVar[Any] = persistent_kernel

    def arguments(self, a, b, out, alpha=1.0, beta=1.0, c=None, bias=None, scales=None):
        p, config = self.problem, self.config
        order, factors, along = self.order
        a_transposed, b_transposed = (letter == "t" for letter in p.layout)
        block_m, block_n, block_k = config.block_m, config.block_n, config.block_k
        pieces = output_pieces(config, p)
        a, b, out = (x.unsqueeze(0) if x.dim() == 2 else x for x in (a, b, out))
        spec = PersistentSpec(
            block_m=block_m,
            block_n=block_n,
            block_k=block_k,
            pieces=pieces,
            order=order,
            along=along,
            a_transposed=a_transposed,
            b_transposed=b_transposed,
            scaled=p.epilogue.scaled,
            interpreted=INTERPRETED,
        )
        arguments = (
            _describe(a.mT, block_k, block_m) if a_transposed else _describe(a, block_m, block_k),
            _describe(b.mT, block_n, block_k) if b_transposed else _describe(b, block_k, block_n),
            _describe(out, block_m, block_n // pieces) if p.out_alignment == 16 else None,
            out, c, bias, float(alpha), float(beta), self.table, factors,
            p.m, p.n, -(-p.k // block_k), self.launched, self.programs, out.stride(), addend_strides(c, out), spec,
        )  # fmt: skip
        return arguments, launch_options(self.device, num_warps=config.num_warps, num_stages=config.num_stages)


def _describe(x, rows: int, cols: int) -> TensorDescriptor:
    return TensorDescriptor(*described(x), [1, rows, cols])
