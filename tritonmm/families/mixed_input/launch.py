"""Launches the mixed-input kernel."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tritonmm.dtypes import PACKED
from tritonmm.families.mixed_input.kernel import mixed_input_kernel
from tritonmm.families.mixed_input.rules import (
    MOST_SUBTILES,
    at_once,
    column_pieces,
    fixup,
    ordered_mma,
    piece_cols,
    reads_ahead,
    rescales,
    resident,
    rounds,
    rounds_first,
    scale_groups,
    shared_work,
    slice_k,
    stages_of_step,
    step_k,
    subtiles,
    waiting_parts,
)
from tritonmm.families.mixed_input.spec import MixedInputSpec
from tritonmm.launch import (
    Plan,
    addend_strides,
    described,
    launch_options,
    line_divisor,
    scale_arguments,
    scale_group_stride,
    workspace,
)
from tritonmm.launch.gluon_dtypes import GLUON_DTYPES


@dataclass(frozen=True, slots=True)
class MixedInputPlan(Plan):
    """spec: what the kernel is compiled for."""

    kernel: ClassVar[Any] = mixed_input_kernel

    spec: MixedInputSpec = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "spec", _spec(self))

    def workspace(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums and flags of one launch on the current stream; empty where no tile is shared."""
        config, spec = self.config, self.spec
        slots, tiles = (spec.slots * self.grid, self.launched) if spec.fixup else (0, 0)
        if spec.fixup == "assist":
            slots = tiles % self.grid
        return workspace.split_k(slots, tiles, config.block_m * config.block_n, spec.consumers, self.device)

    def arguments(self, a, b, out, alpha=1.0, beta=1.0, c=None, bias=None, scales=None, groups=None):
        p, config, spec = self.problem, self.config, self.spec
        a, b, out = (x.unsqueeze(0) if x.dim() == 2 else x for x in (a, b, out))
        *_, scale_b, stride_sn, stride_sk = scale_arguments(scales)
        blocks = zip(spec.x_blocks, spec.x_shared, strict=True)
        weights = b.mT.view(torch.int16) if spec.per_word else b.mT
        descriptors = [TensorDescriptor(*described(a), *block) for block in blocks]
        arguments = (
            *descriptors, *[None] * (MOST_SUBTILES - len(descriptors)),
            TensorDescriptor(*described(weights), spec.w_block, spec.w_shared),
            out, out.stride(1), out.stride(2), float(alpha), float(beta), bias, c, *addend_strides(c, out)[1:],
            p.m, p.n, *config.tiles(p), self.launched, -(-p.k // step_k(config, p)),
            *shared_work(config, p, self.grid, self.launched), self.table, self.order[1], *self.workspace(),
            scale_b, stride_sn, stride_sk, groups, scale_group_stride(p, scales), spec,
        )  # fmt: skip
        # Programs that wait for each other: a cooperative grid is resident as a whole, or not started.
        return arguments, launch_options(
            self.device,
            num_warps=4,
            maxnreg=spec.registers,
            launch_cooperative_grid=spec.fixup == "reduce-scatter" or spec.splits_tail,
        )


def _spec(plan: MixedInputPlan) -> MixedInputSpec:
    p, config = plan.problem, plan.config
    name, _, along = plan.order
    how = fixup(config, plan.grid, plan.launched)
    return MixedInputSpec(
        block_r=config.block_n,
        subtiles=subtiles(config),
        block_k=config.block_k,
        stages_of_step=stages_of_step(config, p),
        slice_k=slice_k(config, p),
        piece_cols=piece_cols(config, p),
        rounds_first=rounds_first(p),
        fixup=how,
        in_rounds=rounds(config, plan.grid, plan.launched) > 0,
        parts=waiting_parts(config) if how in ("reduce-scatter", "exchange") else 0,
        pieces=column_pieces(config, p) if how not in ("", "assist") else (),
        num_stages=config.num_stages,
        consumers=config.num_warps // 4,
        resident=resident(config, p),
        dtype=GLUON_DTYPES[p.dtype],
        w_dtype=GLUON_DTYPES[p.b_dtype],
        packed=p.b_dtype if p.b_dtype in PACKED else "",
        out_dtype=GLUON_DTYPES[p.out_dtype],
        scales=p.scales,
        scale_groups=scale_groups(config, p),
        all_groups=-(-p.k // p.group) if scale_groups(config, p) > 1 else 0,
        ordered_mma=ordered_mma(config, p),
        reads_ahead=reads_ahead(config, p),
        at_once=at_once(config, p),
        rescales=rescales(config, p),
        scaled=p.epilogue.scaled,
        bias=p.epilogue.bias,
        add_c=p.epilogue.c,
        divisor=line_divisor(p.out_alignment // p.out_element_bytes, p.n),
        order=name,
        along=along,
        shifts=p.m > config.block_m and p.m % config.block_m > 0 and not p.ragged,
        ragged=bool(p.ragged),
        joined=bool(p.ragged) and config.order.joined,
    )
