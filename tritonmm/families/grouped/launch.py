"""Launches the grouped kernel: its arguments and its constants."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tritonmm.families.grouped.kernel import grouped_gemm
from tritonmm.families.grouped.rules import MOST_ROWS, out_buffers
from tritonmm.families.grouped.spec import GroupedSpec
from tritonmm.launch import Plan, described, launch_options, scale_arguments, scale_group_stride
from tritonmm.launch.gluon_dtypes import GLUON_DTYPES

ANY = 0x7FFF0000
"""The size of a dimension in which every coordinate is inside."""


@dataclass(frozen=True, slots=True)
class GroupedHopperPlan(Plan):
    kernel: ClassVar[Any] = grouped_gemm

    def arguments(self, a, b, out, alpha=1.0, beta=1.0, c=None, bias=None, scales=None, groups=None):
        p, config = self.problem, self.config
        name, factors, along = self.order
        spec = GroupedSpec(
            config.block_m,
            config.block_n,
            config.block_k,
            config.num_stages,
            ragged=p.ragged,
            dtype=GLUON_DTYPES[p.dtype],
            b_dtype=GLUON_DTYPES[p.b_dtype],
            out_dtype=GLUON_DTYPES[p.out_dtype],
            sum_dtype=GLUON_DTYPES[p.sum_dtype],
            b_transposed=p.layout[1] == "t",
            two_level=p.promotes,
            bias=p.epilogue.bias,
            scales=p.scales,
            order=name,
            along=along,
            joined=config.order.joined,
            out_buffers=out_buffers(config, p),
        )
        a, b, out = (x.unsqueeze(0) if x.dim() == 2 else x for x in (a, b, out))
        small_a = None
        if p.ragged == "m":
            rows, shape, strides = described(a)
            a_desc = TensorDescriptor(rows, shape, strides, spec.a_block, spec.a_shared)
            small_a = TensorDescriptor(rows, shape, strides, spec.small_block, spec.a_shared)
            b_desc = TensorDescriptor(*described(b.mT if spec.b_transposed else b), spec.b_block, spec.b_shared)
            out_desc = ragged(out[0], spec.out_block, spec.out_shared)
        else:
            a_desc, b_desc = ragged(a[0].mT, spec.a_block, spec.a_shared), ragged(b[0], spec.b_block, spec.b_shared)
            out_desc = TensorDescriptor(*described(out), spec.out_block, spec.out_shared)
        scale_a, stride_sam, _, scale_b, stride_sbn, _ = scale_arguments(scales)
        tiles_m, tiles_n = config.tiles(p)
        arguments = (
            a_desc, small_a, b_desc, out_desc, out, float(alpha), float(beta), bias, groups,
            p.n, p.k, tiles_m, tiles_n, self.programs, factors,
            scale_a, stride_sam, scale_b, stride_sbn, scale_group_stride(p, scales), spec,
        )  # fmt: skip
        return arguments, launch_options(self.device, num_warps=4, maxnreg=spec.registers)


def ragged(x: torch.Tensor, block: list[int], layout) -> TensorDescriptor:
    """A descriptor of rows of x, [rows, columns], that end wherever the device says: TMA neither reads nor writes what
    follows, and reads it as zeros.

    Its coordinates are (2**30, end, 2**30 - end + row, column). The third dimension has 2**30 rows, so `end` is the
    first row outside. Its coordinate is 2**30 - end too high for the address: the second dimension, with the stride of
    a row too, adds `end` rows, and the first takes 2**30 rows away. It does so by a stride of 2**34 elements less a
    row, because strides are not negative: 2**30 * 2**34 elements are 0 in addresses of 64 bits. Triton's
    `tools/ragged_tma.py` has this method.
    """
    row = x.stride(0) if x.shape[0] > 1 else described(x.unsqueeze(0))[2][1]
    return TensorDescriptor(x, [ANY, ANY, MOST_ROWS, x.shape[1]], [2**34 - row, row, row, 1], block, layout)
