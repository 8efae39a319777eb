"""Launches the kernel that streams weights of a byte through TMA."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tritonmm.config import Config
from tritonmm.kernels.weights import Streaming, weights_kernel
from tritonmm.launch import Plan, addend_strides, described, line_divisor, scale_arguments, workspace
from tritonmm.launch.hopper import GLUON_DTYPES
from tritonmm.problem import Problem
from tritonmm.weights import gathered_cols, groups, meeting, piece_cols, resident, rounds, share, share_cols, slice_k


@dataclass(frozen=True, slots=True)
class WeightsPlan(Plan):
    """streaming: what is static about the kernel."""

    kernel: ClassVar[Any] = weights_kernel

    streaming: Streaming = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "streaming", _streaming(self))

    def workspace(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums and flags of one launch on the current stream: none where every share is of whole tiles."""
        config, parts = self.config, {"gather": 2 * self.grid, "share": self.grid, "": 0}[self.streaming.meeting]
        return (
            workspace.sums(parts * config.block_m * config.block_n, self.device),
            workspace.flags(self.launched * self.streaming.consumers if parts else 0, self.device),
        )

    def arguments(self, a, b, out, alpha=1.0, beta=1.0, c=None, bias=None, scales=None):
        p, config, streaming = self.problem, self.config, self.streaming
        a, b, out = (x.unsqueeze(0) if x.dim() == 2 else x for x in (a, b, out))
        *_, scale_b, stride_sn, stride_sk = scale_arguments(p, scales)
        edge = None
        if streaming.rest:
            edge = TensorDescriptor(*described(a), streaming.edge_block, streaming.edge_shared)
        arguments = (
            TensorDescriptor(*described(a), streaming.x_box, streaming.x_shared),
            TensorDescriptor(*described(b.mT), streaming.w_block, streaming.w_shared),
            out, out.stride(1), out.stride(2), float(alpha), float(beta), bias, c, *addend_strides(c, out)[1:],
            p.m, p.n, *config.tiles(p), self.launched, -(-p.k // config.block_k),
            *share(config, p, self.grid, self.launched), self.table, self.order[1], *self.workspace(), edge,
            scale_b, stride_sn, stride_sk, streaming,
        )  # fmt: skip
        # Programs that wait for each other: a cooperative grid is resident as a whole, or not started.
        return arguments, {
            "num_warps": 4, "maxnreg": streaming.registers, "launch_cooperative_grid": streaming.meeting == "share",
            "launch_pdl": True,
        }  # fmt: skip


def _streaming(plan: WeightsPlan) -> Streaming:
    p, config = plan.problem, plan.config
    name, _, along = plan.order
    return Streaming(
        config.block_n,
        config.block_m,
        config.block_k,
        slice_k(config, p),
        piece_cols(config, p),
        meeting(config, plan.grid, plan.launched),
        rounds(config, plan.grid, plan.launched) > 0,
        gathered_cols(config, p),
        share_cols(config, p),
        config.num_stages,
        config.num_warps // 4,
        resident(config, p),
        GLUON_DTYPES[p.dtype],
        GLUON_DTYPES[p.b_dtype],
        GLUON_DTYPES[p.out_dtype],
        p.scales,
        groups(config, p),
        -(-p.k // p.group) if groups(config, p) > 1 else 0,
        p.epilogue.scaled,
        p.epilogue.bias,
        p.epilogue.c,
        line_divisor(p.out_alignment // p.out_element_bytes, p.n),
        name,
        along,
        *_boxes(p, config),
        p.m > config.block_m and p.m % config.block_m > 0,
    )


def _boxes(problem: Problem, config: Config) -> tuple[int, int, int]:
    """`Streaming.edge`, `rest` and `all_rows` for so many rows, if boxes with fewer rows than the block hold them: one
    of a power of two, and one for those that it leaves. There are no registers for more boxes, nor beside those of
    three consumers of 128 columns that gather parts."""
    rows = max(problem.m, 8)
    edge = 1 << (rows.bit_length() - 1)
    rest = max(8, 1 << (rows - edge - 1).bit_length()) if rows > edge else 0
    if rest == edge:
        edge, rest = 2 * edge, 0
    full = config.persistent and config.num_warps == 12 and config.block_m == 128
    return (0, 0, 0) if full or edge + rest >= config.block_m else (edge, rest, edge + rest)
