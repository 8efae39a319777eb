"""Launches the warp-specialised Hopper kernel: TMA descriptors, what is static about it, and its split tiles."""

from dataclasses import dataclass, field
from inspect import signature
from typing import Any, ClassVar

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tritonmm.config import Config
from tritonmm.families.hopper import kernel as hopper
from tritonmm.families.hopper.rules import consumer_grid, consumer_strips, output_buffers
from tritonmm.families.hopper.schedule import Schedule
from tritonmm.families.hopper.tiling import Tiling
from tritonmm.launch import Plan, addend_strides, described, scale_arguments, workspace
from tritonmm.launch.gluon_dtypes import GLUON_DTYPES
from tritonmm.problem import DTYPES, Problem

ROUNDS = {"round_f32_to_tf32": True} if "round_f32_to_tf32" in signature(TensorDescriptor).parameters else {}
"""What has TMA round fp32 to tf32 while it loads. Tensor cores alone cut 13 bits off, which makes all products of
positive operands too small; so it is with a Triton that cannot say this, 3.6 for one."""

FEW_TILES = 4
"""Of more tiles along M the last has no rows of others, and no box of its own size: the time it takes matters less
there than rows that are written twice, which made large products up to 2% slower (autotune/results/h200-overlaps.csv);
and a box of its own made kernels of the largest tiles spill registers under Triton 3.9."""


EDGE = 32
"""Rows of the boxes in which a tile's rows come that are fewer than a consumer's."""


@dataclass(frozen=True, slots=True)
class HopperPlan(Plan):
    """schedule: how tiles are distributed; tiling: what is static about the kernel."""

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
        """Sums and flags of one launch on the current stream, for a plan that splits tiles or deals them to SMs."""
        config = self.config
        split, splits = self.schedule.split, self.schedule.splits
        if self.schedule.affinity:
            return None, workspace.flags(1 + self.grid, self.device)
        elements = config.block_m * config.block_n
        return workspace.split_k(split * splits, split, elements, self.tiling.consumers, self.device)

    def arguments(self, a, b, out, alpha=1.0, beta=1.0, c=None, bias=None, scales=None):
        p, config, tiling = self.problem, self.config, self.tiling
        split, splits, affinity = self.schedule.split, self.schedule.splits, self.schedule.affinity
        a, b, out = (x.unsqueeze(0) if x.dim() == 2 else x for x in (a, b, out))
        tiles_m, tiles_n = config.tiles(p)
        sums, flags = self.workspace() if split or affinity else (None, None)
        sums = sums if sums is None else sums.view(DTYPES[p.sum_dtype])
        b_stored = b.mT if tiling.b_transposed else b
        tf32 = p.dtype == "fp32"
        b_descs = [_describe(b_stored, *block, tf32) for block in zip(tiling.b_boxes, tiling.b_shared, strict=True)]
        arguments = (
            _describe(a.mT if tiling.a_transposed else a, tiling.a_box, tiling.a_shared, tf32),
            b_descs[0],
            _describe(out, tiling.out_block, tiling.out_shared) if tiling.tma_store else None,
            out, out.stride(0), out.stride(1), out.stride(2),
            float(alpha), float(beta), bias, c, *addend_strides(c, out),
            p.m, p.n, self.programs + split * (splits - 1), self.programs - split, splits,
            self.launched, tiles_m, tiles_n, -(-p.k // tiling.block_k),
            self.table, self.order[1], sums, flags, b_descs[1] if len(b_descs) > 1 else None,
            _describe(a, tiling.edge_block, tiling.edge_shared, tf32) if tiling.boxes else None,
            *scale_arguments(p, scales), tiling,
        )  # fmt: skip
        # The parts of a split tile wait for each other: a cooperative grid is resident as a whole, or not started.
        options = {
            "num_warps": 4, "num_ctas": tiling.ctas, "maxnreg": tiling.registers,
            "launch_cooperative_grid": split > 0, "launch_pdl": True,
        }  # fmt: skip
        return arguments, options


def _tiling(
    problem: Problem,
    config: Config,
    order: tuple[str, tuple[int, ...], str],
    splits: int,
    mixed: bool,
    at_once: bool,
    seats: str,
) -> Tiling:
    name, _, along = order
    consumers_m, consumers_n = consumer_grid(config)
    piece_cols, buffers = output_buffers(config, problem)
    ctas_n = 2 if config.cluster == "n" else 1  # a tiling's columns are those of both CTAs
    rows = config.block_m // consumers_m
    # Overflow tiles, which split-merge has, write nothing because they are beyond the matrix.
    even = _even_rows(problem, config, rows) if at_once and name != "split-merge" else 0
    edge, rest, shifts = (EDGE, even % EDGE, False) if even else _edge(problem, config, rows, mixed)
    return Tiling(
        config.block_m,
        config.block_n,
        config.block_k,
        config.num_stages,
        dtype=GLUON_DTYPES[problem.dtype],
        out_dtype=GLUON_DTYPES[problem.out_dtype],
        consumers_m=consumers_m,
        consumers_n=consumers_n,
        strips=tuple(ctas_n * strip for strip in consumer_strips(config)),
        a_transposed=problem.layout[0] == "t",
        b_transposed=problem.layout[1] == "t",
        piece_cols=ctas_n * piece_cols,
        out_buffers=buffers,
        store="staged" if problem.out_alignment < 16 else "rows" if even else "tma",
        scaled=problem.epilogue.scaled,
        bias=problem.epilogue.bias,
        add_c=problem.epilogue.c,
        batched=problem.batch > 1,
        share_rows=_share_rows(rows, config.block_n // consumers_n, splits),
        cluster=config.cluster,
        order=name,
        along=along,
        b_dtype=GLUON_DTYPES[problem.b_dtype],
        sum_dtype=GLUON_DTYPES[problem.sum_dtype],
        promotes=problem.promotes,
        scales=problem.scales,
        edge=edge,
        rest=rest,
        all_rows=even or (problem.m // edge * edge + rest if rest and edge < rows else 0),
        shifts=shifts,
        even=even > 0,
        seats=seats,
    )


def _share_rows(rows: int, cols: int, splits: int) -> int:
    """`Tiling.share_rows` for a consumer's part of a tile: a program's share, if that is 16 to 128 bytes a thread."""
    share = 1 << (-(-rows // splits) - 1).bit_length()
    return min(max(share, 512 // cols), 4096 // cols, rows) if splits > 1 else 0


def rest_rows(m: int, edge: int) -> int:
    """Rows of the box for those of m rows that fill no box of `edge`: at most 7 are not there. 0 where there are none,
    or where it would be no smaller."""
    rest = max(8, 1 << (m % edge - 1).bit_length())
    return rest if m % edge and rest < edge and rest - m % edge < 8 else 0


def _even_rows(problem: Problem, config: Config, rows: int) -> int:
    """Rows of each tile where all have as many, see `Tiling.even`, if those are fewer than a consumer's; or 0."""
    tiles = -(-problem.m // config.block_m)
    if tiles < 2 or rows < config.block_m or config.cluster or _once(problem) or not _loads_boxes(problem, config):
        return 0
    even = -(-problem.m // (8 * tiles)) * 8
    if even % EDGE and not rest_rows(even, EDGE):
        even += -even % EDGE
    return even if even < rows else 0


def _loads_boxes(problem: Problem, config: Config) -> bool:
    """Whether rests come in boxes: with more panels and consumers the loader would spill its 24 registers."""
    panels = config.block_k * problem.element_bytes // 128
    return problem.layout[0] == "n" and (panels == 1 or (panels == 2 and consumer_grid(config)[0] == 1))


def _once(problem: Problem) -> bool:
    """Whether no row can be written by two consumers, with the same bits: C may be the output, and scales of 128 rows
    lie still."""
    return problem.epilogue.c or problem.scales == "128x1"


def _edge(problem: Problem, config: Config, rows: int, mixed: bool) -> tuple[int, int, bool]:
    """`Tiling.edge`, `rest` and `shifts`, for consumers of so many rows; `mixed`: some tiles are split, others not."""
    p = problem
    if p.m % config.block_m == 0 or config.cluster:
        return 0, 0, False
    panels = config.block_k * p.element_bytes // 128 if p.layout[0] == "n" else 0
    edge = EDGE if p.m < rows else rows
    few = p.m <= FEW_TILES * config.block_m
    if few and _loads_boxes(p, config) and (rest := rest_rows(p.m, edge)):
        return edge, rest, False
    once = mixed or _once(p)  # sums of split tiles are added in another order
    # Nor may TMA begin within 16 bytes along a line: that is an illegal instruction.
    unaligned = p.layout[0] == "t" and p.m * p.element_bytes % 16 > 0
    shifts = few and rows < p.m and not once and not unaligned
    if shifts or p.m % rows == 0:
        return rows, 0, shifts
    # Four boxes of a tile are as many as the loader issues in the time of a step.
    edge = next((edge for edge in (16, 32, 64) if panels in (1, 2) and config.block_m // edge <= 4), rows)
    return (edge if -p.m % config.block_m >= edge else 0), 0, False


def _describe(x: torch.Tensor, block: list[int], layout, tf32: bool = False) -> TensorDescriptor:
    return TensorDescriptor(*described(x), block, layout, **(ROUNDS if tf32 else {}))
