"""Warp-specialised GEMM for Hopper (sm_90): out = alpha * A @ B + bias + beta * C, with TMA and wgmma.

Supports
    bf16, fp16, tf32, fp8 and int8 operands; alpha, bias and C; scales of a tensor, of rows and columns, or of groups of
    128 elements of K; batches; every tile order; symmetric products; split K; clusters of two CTAs (Triton 3.9).

How it works. At most one program runs on each SM, or pair of SMs, and is specialised into warps once:

    1. The producer warp (`producer.py`) loads the operands of every K step of every work item of the program by TMA,
       into a pipeline of `num_stages` shared buffers (`device/pipeline.py`).
    2. Each of 1 to 3 consumer warpgroups multiplies its rows or columns of the tile by wgmma (`mainloop.py`,
       `two_level_sums.py`), in one or two N-subtiles, each of a power of two of columns with an accumulator of its own.
    3. It finishes its part of the tile (`epilogue.py`) and writes it (`store.py`, `mirror.py`), by TMA where the output
       allows it, while the producer already loads the next item.
    4. A claim warp claims the tile where tiles are assigned to SMs (`claim.py`).

A work item (`scheduler.py`) is a tile, or one of `splits` parts of its K steps, whose programs then reduce and scatter
the tile (`split_k.py`). A program may be two CTAs of a cluster that divide the tile and share one operand
(`device/cluster.py`): the code is written for both at once, and layouts divide rows or columns between them.

The grid starts while the previous one in the stream still runs (programmatic dependent launch): its programs set up
barriers, and all partitions wait for the end of the previous grid before they touch memory. A grid with split tiles is
cooperative: it starts when the previous one has ended. A launch may be skipped by a flag that an earlier grid wrote:
then no partition has a work item.

Constraints
    Operands of 2 bytes are loaded as they lie; others need K contiguous. TMA needs addresses and strides that are
    multiples of 16 bytes. Elements outside of a tensor are loaded as zeros and not written; `ragged.py` loads ragged
    tiles in M. Split K and clusters exclude each other. `rules.py` has all rules of legality. Launches with clusters or
    SM-assigned tiles cannot be skipped.

Results are bitwise reproducible from run to run. Measurements: docs/notebook/hopper.md.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from tritonmm.device import cluster, ordered_mma
from tritonmm.device.gluon_compat import wait_for_previous_grid
from tritonmm.families.hopper import ragged
from tritonmm.families.hopper.claim import assigned_tile, claim_tile, first_tile, next_tile
from tritonmm.families.hopper.mainloop import multiply, multiply_chunks
from tritonmm.families.hopper.producer import load
from tritonmm.families.hopper.scheduler import origin, work_at, work_items
from tritonmm.families.hopper.split_k import reduce_scatter
from tritonmm.families.hopper.store import first_c, write
from tritonmm.families.hopper.two_level_sums import multiply_two_level
from tritonmm.families.hopper.values import Addends, Claim, Operands, Output, Pipeline, Scales, Scheduler, Workspace


@gluon.jit
def consume(output, addends, pipeline, scheduler, workspace, claim, WHO: gl.constexpr, TILING: gl.constexpr):
    """Consumer WHO's partition: multiplies and writes its part of all items of this program."""
    stage = 0
    phase = 0
    wait_for_previous_grid()
    items = work_items(scheduler)
    ordered_mma.begin(WHO, TILING)
    if TILING.affinity != "":
        item = first_tile(items, claim, 4)
        while item < items:
            stage, phase = consume_item(
                item, stage, phase, output, addends, pipeline, scheduler, workspace, WHO, TILING
            )
            item = next_tile(item, items, claim, 4)
    else:
        for item in range(gl.program_id(0), items, gl.num_programs(0)):
            stage, phase = consume_item(
                item, stage, phase, output, addends, pipeline, scheduler, workspace, WHO, TILING
            )
    ordered_mma.end(WHO, TILING)
    if TILING.tma_store:
        tma.store_wait(0)


@gluon.jit
def consume_item(
    item, stage, phase, output, addends, pipeline, scheduler, workspace, WHO: gl.constexpr, TILING: gl.constexpr
):  # fmt: skip
    """Multiplies and writes consumer WHO's part of an item; returns the pipeline position after it."""
    tile, first, end, stride, split_tile = work_at(item, scheduler, TILING)
    count = (end - first + stride - 1) // stride
    batch, row, col = origin(tile, scheduler, TILING)
    row = ragged.first_of_tile(row, output.m, TILING)
    mine = output
    if TILING.equal_tiles:  # the rows below are another tile's
        mine = Output(
            desc=output.desc, pointer=output.pointer,
            stride_b=output.stride_b, stride_m=output.stride_m, stride_n=output.stride_n,
            m=row + TILING.tile_rows, n=output.n, buffers=output.buffers,
            mirrored_desc=output.mirrored_desc, mirrored_buffers=output.mirrored_buffers,
        )  # fmt: skip
    row += WHO // TILING.consumers_n * TILING.rows
    col += WHO % TILING.consumers_n * TILING.cols
    if TILING.skips_empty:
        stage, phase, count = ragged.skip_empty(pipeline, stage, phase, count, output.m - row, WHO, TILING)
    row = ragged.first_row(row, output.m, TILING)
    early_c = first_c(batch, row, col, mine, addends, TILING)
    if TILING.two_level:
        accs, stage, phase = multiply_two_level(pipeline, stage, phase, count, WHO, TILING)
    elif TILING.chunk_steps:
        accs, stage, phase = multiply_chunks(pipeline, stage, phase, count, WHO, TILING)
    else:
        accs, stage, phase = multiply(pipeline, stage, phase, count, WHO, TILING)
    if TILING.split:
        if split_tile >= 0:
            part = first // TILING.chunk_steps if TILING.chunk_steps else first
            reduce_scatter(
                accs, batch, row, col, split_tile, part, scheduler.splits, workspace, mine, addends, WHO, TILING
            )
        else:
            write(accs, early_c, batch, row, col, mine, addends, WHO, TILING)
    else:
        write(accs, early_c, batch, row, col, mine, addends, WHO, TILING)
    return stage, phase


@gluon.jit
def allocate_b(SUBTILE: gl.constexpr, TILING: gl.constexpr):
    """The pipeline's buffers for one N-subtile of B."""
    SHAPE: gl.constexpr = [TILING.num_stages * TILING.consumers_n] + TILING.b_blocks[SUBTILE]
    SHARED: gl.constexpr = TILING.b_shared[SUBTILE]
    DTYPE: gl.constexpr = TILING.b_dtype or TILING.dtype
    return gl.allocate_shared_memory(DTYPE, SHAPE, SHARED)


@gluon.jit
def multiple_of(x, DIVISOR: gl.constexpr):
    """x, which DIVISOR divides, in a form that tells the compiler so."""
    return x // DIVISOR * DIVISOR


RUNTIME_INTEGERS = [
    "stride_ob", "stride_om", "stride_cb", "stride_cm", "stride_cn",
    "m", "n", "items", "whole", "splits", "launched", "tiles_m", "tiles_n", "steps",
    "stride_sam", "stride_sak", "stride_sbn", "stride_sbk",
]  # fmt: skip


@gluon.jit(do_not_specialize=RUNTIME_INTEGERS)
def gemm(
    a_desc, b_desc, out_desc, out, stride_ob, stride_om, stride_on,
    alpha, beta, bias, c, stride_cb, stride_cm, stride_cn,
    m, n, items, whole, splits, launched, tiles_m, tiles_n, steps, table, factors, workspace, flags,
    b_desc_1, a_desc_1, scale_a, stride_sam, stride_sak, scale_b, stride_sbn, stride_sbk, out_desc_1, skip,
    TILING: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """out[b, m, n] = alpha * sum over k of A * B + bias[n] + beta * c[b, m, n], rounded once.

    The descriptors are those of `Tiling`'s blocks: of B one for each N-subtile, at most two; a_desc_1 is for boxes of
    ragged tiles, and out_desc_1 for transposed pieces of a symmetric product. `values.py` says what the others are.
    workspace and flags: as `device/split_k.py` lays them out for the split tiles and consumers; or, where tiles are
    assigned to SMs, a flag for each program and one more. skip: None, or one int32: nothing is computed if it is not 0.
    """
    STAGES: gl.constexpr = TILING.num_stages
    CONSUMERS: gl.constexpr = TILING.consumers
    REGISTERS: gl.constexpr = TILING.consumer_registers
    LOADER: gl.constexpr = TILING.loader_registers
    A_SHARED: gl.constexpr = TILING.a_shared
    OUT_SHARED: gl.constexpr = TILING.out_shared
    BARRIERS: gl.constexpr = TILING.barrier_layout
    a_bufs = gl.allocate_shared_memory(TILING.dtype, [STAGES * TILING.consumers_m] + TILING.a_block, A_SHARED)
    b_bufs = ()
    for j in gl.static_range(len(TILING.n_subtiles)):
        b_bufs += (allocate_b(j, TILING),)
    out_bufs = gl.allocate_shared_memory(
        TILING.out_dtype, [CONSUMERS * TILING.out_buffers] + TILING.out_block, OUT_SHARED
    )
    mirrored_bufs = ()
    if TILING.symmetric:
        MIRRORED: gl.constexpr = TILING.mirrored_shared
        mirrored_bufs = gl.allocate_shared_memory(TILING.out_dtype, [CONSUMERS] + TILING.mirrored_block, MIRRORED)
    scale_bufs = ()
    if TILING.block_scaled:
        FLAT: gl.constexpr = TILING.flat_shared
        of_a = gl.allocate_shared_memory(gl.float32, [STAGES * TILING.consumers_m, TILING.rows], FLAT)
        of_b = gl.allocate_shared_memory(gl.float32, [STAGES, TILING.col_scales], FLAT)
        scale_bufs = (of_a, of_b)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, TILING.ctas], BARRIERS)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, TILING.ctas], BARRIERS)
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=TILING.releases)
        mbarrier.init(full.index(i), count=TILING.fills)
    claim = ()
    if TILING.affinity != "":
        assigned = assigned_tile(TILING)
        CLAIMED: gl.constexpr = TILING.flat_shared
        claimed = gl.allocate_shared_memory(gl.int32, [32], CLAIMED)
        ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        mbarrier.init(ready, count=1)
        claim = Claim(assigned=assigned, buffer=claimed, ready=ready)
    fence_async_shared()
    if TILING.ctas > 1:
        cluster.publish_barriers()
    if TILING.tma_store or TILING.store == "rows":  # TMA's rules hold for the stores of split tiles too
        n = multiple_of(n, TILING.out_vector)
        stride_om = multiple_of(stride_om, TILING.out_vector)
        stride_ob = multiple_of(stride_ob, TILING.out_vector)
    operands = Operands(a=a_desc, b=(b_desc, b_desc_1), ragged_a=a_desc_1)
    pipeline = Pipeline(a=a_bufs, b=b_bufs, empty=empty, full=full, scales=scale_bufs)
    scheduler = Scheduler(
        items=items, whole=whole, splits=splits, launched=launched, tiles_m=tiles_m, tiles_n=tiles_n, steps=steps,
        table=table, factors=factors, skip=skip,
    )  # fmt: skip
    output = Output(
        desc=out_desc, pointer=out, stride_b=stride_ob, stride_m=stride_om, stride_n=stride_on, m=m, n=n,
        buffers=out_bufs, mirrored_desc=out_desc_1, mirrored_buffers=mirrored_bufs,
    )  # fmt: skip
    scales = Scales(
        a=scale_a, stride_am=stride_sam, stride_ak=stride_sak, b=scale_b, stride_bn=stride_sbn, stride_bk=stride_sbk
    )
    addends = Addends(
        alpha=alpha, beta=beta, bias=bias, c=c, stride_cb=stride_cb, stride_cm=stride_cm, stride_cn=stride_cn,
        scales=scales,
    )  # fmt: skip
    scratch = Workspace(sums=workspace, flags=flags)
    if TILING.affinity != "":
        gl.static_assert(CONSUMERS == 1, "1 consumer")
        gl.warp_specialize(
            [
                (consume, (output, addends, pipeline, scheduler, scratch, claim, 0, TILING)),
                (load, (operands, pipeline, scheduler, m, n, scales, claim, TILING)),
                (claim_tile, (flags, claim)),
            ],
            [1, 1],
            [LOADER, 24],
        )
    elif CONSUMERS == 1:
        gl.warp_specialize(
            [
                (consume, (output, addends, pipeline, scheduler, scratch, claim, 0, TILING)),
                (load, (operands, pipeline, scheduler, m, n, scales, claim, TILING)),
            ],
            [1],
            [LOADER],
        )
    elif CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consume, (output, addends, pipeline, scheduler, scratch, claim, 0, TILING)),
                (consume, (output, addends, pipeline, scheduler, scratch, claim, 1, TILING)),
                (load, (operands, pipeline, scheduler, m, n, scales, claim, TILING)),
            ],
            [4, 1],
            [REGISTERS, LOADER],
        )
    else:
        gl.static_assert(CONSUMERS == 3, "1, 2 or 3 consumers")
        gl.warp_specialize(
            [
                (consume, (output, addends, pipeline, scheduler, scratch, claim, 0, TILING)),
                (consume, (output, addends, pipeline, scheduler, scratch, claim, 1, TILING)),
                (consume, (output, addends, pipeline, scheduler, scratch, claim, 2, TILING)),
                (load, (operands, pipeline, scheduler, m, n, scales, claim, TILING)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, LOADER],
        )
    if TILING.ctas > 1:
        cluster.leave_together()
