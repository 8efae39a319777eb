"""The producer warp of the Hopper kernel: loads the operands of every K step by TMA."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from tritonmm.device import cluster
from tritonmm.device.gluon_compat import let_next_grid_start, tma_load, wait_for_previous_grid
from tritonmm.device.pipeline import next_use
from tritonmm.families.hopper import ragged
from tritonmm.families.hopper.claim import first_tile, next_tile
from tritonmm.families.hopper.scheduler import origin, work_at, work_items
from tritonmm.families.hopper.two_level_sums import load_scales


@gluon.jit
def load_block(desc, batch, line, k, bar, buf, K_FIRST: gl.constexpr, pred=True):
    """One block of A or B; `line` is its first row of A or column of B. K_FIRST: K is the outer dimension in memory."""
    if K_FIRST:
        tma_load(desc, [batch, k, line], bar, buf, pred)
    else:
        tma_load(desc, [batch, line, k], bar, buf, pred)


@gluon.jit
def load(operands, pipeline, scheduler, m, n, scales, claim, TILING: gl.constexpr):
    """The producer's partition: the operands of all items of this program."""
    stage = 0
    phase = 1
    wait_for_previous_grid()
    if TILING.affinity == "":  # else the claim warp does
        let_next_grid_start()
    items = work_items(scheduler)
    if TILING.affinity != "":
        item = first_tile(items, claim, 1)
        while item < items:
            stage, phase = load_item(item, stage, phase, operands, pipeline, scheduler, m, n, scales, TILING)
            item = next_tile(item, items, claim, 1)
    else:
        for item in range(gl.program_id(0), items, gl.num_programs(0)):
            stage, phase = load_item(item, stage, phase, operands, pipeline, scheduler, m, n, scales, TILING)
    if TILING.ctas > 1:
        cluster.drain(pipeline.empty, stage, phase, TILING.num_stages)


@gluon.jit
def load_item(item, stage, phase, operands, pipeline, scheduler, m, n, scales, TILING: gl.constexpr):
    """Loads the operands of an item's K steps from a pipeline position on; returns the position after them."""
    CONSUMERS_M: gl.constexpr = TILING.consumers_m
    CONSUMERS_N: gl.constexpr = TILING.consumers_n
    A_K_FIRST: gl.constexpr = TILING.a_transposed
    B_K_FIRST: gl.constexpr = not TILING.b_transposed
    N_SUBTILES: gl.constexpr = TILING.n_subtiles
    tile, first, end, stride, split_tile = work_at(item, scheduler, TILING)
    batch, row, col = origin(tile, scheduler, TILING)
    row = ragged.first_of_tile(row, m, TILING)
    for step in range(first, end, stride):
        k = step * TILING.block_k
        mbarrier.wait(pipeline.empty.index(stage), phase)
        bar = pipeline.full.index(stage)
        if TILING.box_rows:
            ragged.expect(bar, m - row, TILING)
        else:
            mbarrier.expect(bar, TILING.stage_bytes)
        if TILING.cluster == "n":
            bufs = pipeline.a.index(stage * CONSUMERS_M)
            cluster.load_half(bufs, bar, batch, row, k, "a", A_K_FIRST, TILING.block_m)
        else:
            for i in gl.static_range(CONSUMERS_M):
                buf = pipeline.a.index(stage * CONSUMERS_M + i)
                at = row + i * TILING.rows
                if TILING.boxes:
                    ragged.load(operands, batch, at, m - at, k, bar, buf, TILING)
                else:
                    line = ragged.first_row(at, m, TILING)
                    load_block(operands.a, batch, line, k, bar, buf, A_K_FIRST, not TILING.box_rows or at < m)
        if TILING.cluster == "m":
            bufs = pipeline.b[0].index(stage * CONSUMERS_N)
            cluster.load_half(bufs, bar, batch, col, k, "b", B_K_FIRST, TILING.block_n)
        else:
            for i in gl.static_range(CONSUMERS_N):
                at = col + i * TILING.cols
                for j in gl.static_range(len(N_SUBTILES)):
                    buf = pipeline.b[j].index(stage * CONSUMERS_N + i)
                    load_block(operands.b[j], batch, at, k, bar, buf, B_K_FIRST)
                    at += N_SUBTILES[j]
        if TILING.block_scaled:
            load_scales(stage, step, row, col, m, n, scales, pipeline, TILING)
        stage, phase = next_use(stage, phase, TILING.num_stages)
    return stage, phase
