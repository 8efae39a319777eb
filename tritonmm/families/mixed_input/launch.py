"""Launches the kernel that streams weights of a byte through TMA."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tritonmm.families.mixed_input.kernel import Streaming, weights_kernel
from tritonmm.families.mixed_input.rules import (
    gathered_cols,
    groups,
    meeting,
    piece_cols,
    rescales,
    resident,
    rounds,
    share,
    share_cols,
    slice_k,
    strips,
)
from tritonmm.launch import Plan, addend_strides, described, line_divisor, scale_arguments, workspace
from tritonmm.launch.gluon_dtypes import GLUON_DTYPES


@dataclass(frozen=True, slots=True)
class WeightsPlan(Plan):
    """streaming: what is static about the kernel."""

    kernel: ClassVar[Any] = weights_kernel

    streaming: Streaming = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "streaming", _streaming(self))

    def workspace(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums and flags of one launch on the current stream: none where every share is of whole tiles."""
        config, streaming = self.config, self.streaming
        slots, tiles = (streaming.slots * self.grid, self.launched) if streaming.meeting else (0, 0)
        return workspace.split_k(slots, tiles, config.block_m * config.block_n, streaming.consumers, self.device)

    def arguments(self, a, b, out, alpha=1.0, beta=1.0, c=None, bias=None, scales=None):
        p, config, streaming = self.problem, self.config, self.streaming
        a, b, out = (x.unsqueeze(0) if x.dim() == 2 else x for x in (a, b, out))
        *_, scale_b, stride_sn, stride_sk = scale_arguments(p, scales)
        blocks = zip(streaming.x_blocks, streaming.x_shared, strict=True)
        strip, *second = [TensorDescriptor(*described(a), *block) for block in blocks]
        arguments = (
            strip, *(second or [None]),
            TensorDescriptor(*described(b.mT), streaming.w_block, streaming.w_shared),
            out, out.stride(1), out.stride(2), float(alpha), float(beta), bias, c, *addend_strides(c, out)[1:],
            p.m, p.n, *config.tiles(p), self.launched, -(-p.k // config.block_k),
            *share(config, p, self.grid, self.launched), self.table, self.order[1], *self.workspace(),
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
        strips(config),
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
        rescales(config, p),
        p.epilogue.scaled,
        p.epilogue.bias,
        p.epilogue.c,
        line_divisor(p.out_alignment // p.out_element_bytes, p.n),
        name,
        along,
        p.m > config.block_m and p.m % config.block_m > 0,
    )
