"""Launches the Hopper kernel: its arguments and its constants."""

from dataclasses import dataclass, field
from inspect import signature
from typing import Any, ClassVar

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tritonmm.config import Config
from tritonmm.dtypes import DTYPES
from tritonmm.families.hopper import kernel as hopper
from tritonmm.families.hopper.boxes import Boxes
from tritonmm.families.hopper.rules import consumer_grid, n_subtiles, output_buffers
from tritonmm.families.hopper.schedule import Schedule
from tritonmm.families.hopper.tiling import Tiling
from tritonmm.launch import Plan, addend_strides, described, launch_options, scale_arguments, workspace
from tritonmm.launch.gluon_dtypes import GLUON_DTYPES
from tritonmm.model.chunks import chunk_k
from tritonmm.moduli import MODULI
from tritonmm.problem import Problem

ROUNDS = {"round_f32_to_tf32": True} if "round_f32_to_tf32" in signature(TensorDescriptor).parameters else {}
"""The option by which TMA rounds fp32 to tf32 as it loads. Tensor cores alone truncate 13 bits, which makes all sums of
positive products too small; so it is with Triton 3.6, which lacks the option, and in the other families."""


def load_options(problem: Problem) -> dict[str, bool]:
    """Options of the descriptors of A and B. Invariant sums truncate tf32: only that is the same everywhere."""
    rounds = problem.dtype == "fp32" and problem.accumulation == "any"
    return ROUNDS if rounds else {}


@dataclass(frozen=True, slots=True)
class HopperPlan(Plan):
    """schedule: how tiles are distributed over programs; tiling: the kernel's constants."""

    kernel: ClassVar[Any] = hopper.gemm

    schedule: Schedule
    tiling: Tiling = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        split, splits = self.schedule.split, self.schedule.splits
        mixed = 0 < split < self.programs
        at_once = self.programs + split * (splits - 1) <= self.grid
        affinity = self.schedule.affinity
        tiling = _tiling(self.problem, self.config, self.order, splits if split else 1, mixed, at_once, affinity)
        object.__setattr__(self, "tiling", tiling)

    def workspace(self) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Sums and flags of one launch on the current stream, for a plan that splits tiles or assigns them to SMs."""
        config = self.config
        split, splits = self.schedule.split, self.schedule.splits
        if self.schedule.affinity:
            return None, workspace.flags(1 + self.grid, self.device)
        elements = config.block_m * config.block_n
        return workspace.split_k(split * splits, split, elements, self.tiling.consumers, self.device)

    @property
    def skippable(self) -> bool:
        """As `Plan.skippable`. False for clusters, whose CTAs wait for each other, and for SM-assigned tiles, which
        programs claim by flags."""
        return not self.tiling.cluster and not self.tiling.affinity

    def arguments(self, a, b, out, alpha=1.0, beta=1.0, c=None, bias=None, scales=None, skip=None):
        p, config, tiling = self.problem, self.config, self.tiling
        split, splits, affinity = self.schedule.split, self.schedule.splits, self.schedule.affinity
        a, b, out = (x.unsqueeze(0) if x.dim() == 2 else x for x in (a, b, out))
        tiles_m, tiles_n = config.tiles(p)
        sums, flags = self.workspace() if split or affinity else (None, None)
        sums = sums if sums is None else sums.view(DTYPES[p.sum_dtype])
        b_stored = b.mT if tiling.b_transposed else b
        loads = load_options(p)
        b_descs = [_describe(b_stored, *block, **loads) for block in zip(tiling.b_boxes, tiling.b_shared, strict=True)]
        arguments = (
            _describe(a.mT if tiling.a_transposed else a, tiling.a_box, tiling.a_shared, **loads),
            b_descs[0],
            _describe(out, tiling.out_block, tiling.out_shared) if tiling.tma_store else None,
            out, out.stride(0), out.stride(1), out.stride(2),
            float(alpha), float(beta), bias, c, *addend_strides(c, out),
            p.m, p.n, self.programs + split * (splits - 1), self.programs - split, splits,
            self.launched, tiles_m, tiles_n, -(-p.k // tiling.block_k),
            self.table, self.order[1], sums, flags, b_descs[1] if len(b_descs) > 1 else None,
            _describe(a, tiling.ragged_block, tiling.ragged_shared, **loads) if tiling.boxes else None,
            *scale_arguments(scales),
            _describe(out, tiling.mirrored_block, tiling.mirrored_shared) if p.symmetric and tiling.tma_store else None,
            skip, tiling,
        )  # fmt: skip
        # The parts of a split tile wait for each other: a cooperative grid is resident as a whole, or not started.
        return arguments, launch_options(
            self.device,
            num_warps=4,
            num_ctas=tiling.ctas,
            maxnreg=tiling.registers,
            launch_cooperative_grid=split > 0,
        )


def _tiling(
    problem: Problem,
    config: Config,
    order: tuple[str, tuple[int, ...], str],
    splits: int,
    mixed: bool,
    at_once: bool,
    affinity: str,
) -> Tiling:
    name, _, along = order
    consumers_m, consumers_n = consumer_grid(config)
    piece_cols, buffers = output_buffers(config, problem)
    ctas_n = 2 if config.cluster == "n" else 1  # a tiling's columns are those of both CTAs
    rows = config.block_m // consumers_m
    # Overflow tiles, which split-merge has, write nothing because they are beyond the matrix.
    boxes = Boxes.of(config, problem, mixed, at_once and name != "split-merge")
    return Tiling(
        config.block_m,
        config.block_n,
        config.block_k,
        config.num_stages,
        dtype=GLUON_DTYPES[problem.dtype],
        out_dtype=GLUON_DTYPES[problem.out_dtype],
        consumers_m=consumers_m,
        consumers_n=consumers_n,
        n_subtiles=tuple(ctas_n * width for width in n_subtiles(config)),
        a_transposed=problem.layout[0] == "t",
        b_transposed=problem.layout[1] == "t",
        piece_cols=ctas_n * piece_cols,
        out_buffers=buffers,
        store="staged" if problem.out_alignment < 16 else "rows" if boxes.equal else "tma",
        scaled=problem.epilogue.scaled,
        bias=problem.epilogue.bias,
        add_c=problem.epilogue.c,
        batched=problem.batch > 1,
        reduce_rows=_reduce_rows(rows, config.block_n // consumers_n, splits),
        cluster=config.cluster,
        order=name,
        along=along,
        b_dtype=GLUON_DTYPES[problem.b_dtype],
        sum_dtype=GLUON_DTYPES[problem.sum_dtype],
        two_level=problem.promotes,
        chunk_steps=chunk_k(problem) // config.block_k,
        scales=problem.scales,
        box_rows=boxes.rows,
        last_box_rows=boxes.last,
        tile_rows=boxes.equal or boxes.tile_rows(problem.m, rows),
        shifts=boxes.shifts,
        equal_tiles=boxes.equal > 0,
        symmetric=bool(problem.symmetric),
        mirrors_output=problem.mirrors_output,
        affinity=affinity,
        moduli=MODULI[: problem.moduli],
    )


def _reduce_rows(rows: int, cols: int, splits: int) -> int:
    """`Tiling.reduce_rows` for a consumer's part of a tile: a program's share, if that is 16 to 128 bytes a thread."""
    share = 1 << (-(-rows // splits) - 1).bit_length()
    return min(max(share, 512 // cols), 4096 // cols, rows) if splits > 1 else 0


def _describe(x: torch.Tensor, block: list[int], layout, **loads: bool) -> TensorDescriptor:
    return TensorDescriptor(*described(x), block, layout, **loads)
