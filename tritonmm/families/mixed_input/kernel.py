"""GEMM of 8-bit or 4-bit weights with bf16 or fp16 activations on Hopper, by TMA and wgmma.

Supports: A (activations) of bf16 or fp16, B (weights) of int8, fp8 or int4, K contiguous in both; scales of each row of
the weights or of groups of K; groups of rows of activations; sm_90. Measured times: docs/notebook/mixed_input.md.

The kernel computes W @ X^T: the weights W [n, k] are wgmma's first operand, the activations X [m, k] its second.

1. The producer warp fills a pipeline of `num_stages` stages with both operands by TMA, and with the scales of their
   groups by cp.async. A step of K is a stage, or the two stages of a scale group. `device/pipeline.py` proves that no
   stage is overwritten early and that nobody waits for ever.
2. One to three consumer warpgroups each read their rows of weights from shared memory into the registers of wgmma's
   first operand, convert them there and multiply them by X: see `mainloop.py`. Loads, conversion and MMA overlap.
3. A tile has one to three subtiles of activations, powers of two, as 64 and 8 for 72 rows, each with a descriptor,
   buffers and sums of its own. The same slice of weights in registers multiplies all. This keeps tiles close to the
   number of rows, and so what they load and multiply.
4. Programs have whole tiles, shares of tiles, or both: see `scheduler.py`. The parts of a shared tile are added by one
   of four fixups: see `epilogue.py`. Rows of activations may be those of groups, each with weights of its own: tiles
   are whole then. A group's last tile also multiplies the rows that follow, and does not write them.
5. The epilogue applies scales, alpha, bias and C, rounds once and stores.

Constraints: see `rules.py`; most bound the registers of a consumer's thread.

Determinism: parts are added in the order of K, whichever program adds them, and two parts in either order, which has
the same bits. Results are bitwise the same from run to run.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
)

from tritonmm.device import ordered_mma
from tritonmm.device.gluon_compat import copy_async, let_next_grid_start, tma_load, unhoisted, wait_for_previous_grid
from tritonmm.device.numeric import multiple_of
from tritonmm.device.pipeline import next_use
from tritonmm.families.mixed_input.epilogue import (
    Epilogue,
    Output,
    Scales,
    end_assistance,
    last_arriver,
    reduce_scatter,
    row_factors,
    store_assisted,
    write,
    write_assisted,
)
from tritonmm.families.mixed_input.mainloop import Pipeline, multiply
from tritonmm.families.mixed_input.scheduler import (
    Groups,
    Schedule,
    line_of,
    line_of_groups,
    moved_inside,
    origin,
    place_in_groups,
    rounds_of,
    work_at,
)


@gluon.jit
def fetch_scales(stage, step, first_n, indices, n, scales, pipeline, S: gl.constexpr):
    """The producer starts to copy the scales of a step's groups into a stage. indices: of a consumer's rows, 0, 1, ...

    `full` counts each of its threads once the thread's copies are there.
    """
    GROUPS: gl.constexpr = S.scale_groups
    CONSUMERS: gl.constexpr = S.consumers
    for who in gl.static_range(CONSUMERS):
        rows = gl.minimum(first_n + who * S.rows + indices, n - 1)  # what lies beyond is not written
        for i in gl.static_range(GROUPS):
            group = step if GROUPS == 1 else gl.minimum(step * GROUPS + i, S.all_groups - 1)
            at = scales.at + group.to(gl.int64) * scales.stride_k + rows.to(gl.int64) * scales.stride_n
            copy_async(pipeline.scales.index((stage * CONSUMERS + who) * GROUPS + i), at)
    async_copy.mbarrier_arrive(pipeline.full.index(stage), increment_count=False)


@gluon.jit
def load(a_descs, b_desc, m, n, pipeline, schedule, groups, scales, S: gl.constexpr):
    """The producer: loads both operands of every step of the program's work into the pipeline."""
    CONSUMERS: gl.constexpr = S.consumers
    PARTS: gl.constexpr = S.stages_of_step
    SUBTILES: gl.constexpr = len(S.subtiles)
    if S.ragged:
        wait_for_previous_grid()  # which made the table of groups
        at, end = line_of_groups(schedule, groups)
    else:
        at, end = line_of(schedule, S)
        wait_for_previous_grid()
    let_next_grid_start()
    SCALES: gl.constexpr = S.scale_layout
    indices = gl.arange(0, S.rows, SCALES)
    if SUBTILES > 2:  # LLVM would use these ahead of all partitions, and consumers would keep the results
        indices = unhoisted(indices)
        n = unhoisted(n)
        scales = Scales(scales.at, unhoisted(scales.stride_n), scales.stride_k)
    stage = 0
    phase = 1
    while at < end:
        tile, first, last, stride, at = work_at(at, end, schedule, S)
        if S.ragged:
            group, first_n, first_m, _ = place_in_groups(tile, schedule, groups, S)
        else:
            group = 0
            first_n, first_m = origin(tile, schedule, S)
            first_m = moved_inside(first_m, m, S)
        for step in range(first, unhoisted(last), stride):
            for part in gl.static_range(PARTS):
                k = (step * PARTS + part) * S.block_k
                mbarrier.wait(pipeline.empty.index(stage), phase)
                bar = pipeline.full.index(stage)
                mbarrier.expect(bar, S.stage_bytes)
                for i in gl.static_range(CONSUMERS):
                    w_k = k // S.per_word if S.per_word else k
                    tma_load(b_desc, [group, first_n + i * S.rows, w_k], bar, pipeline.w.index(stage * CONSUMERS + i))
                for i in gl.static_range(SUBTILES):
                    tma_load(a_descs[i], [0, first_m + S.starts[i], k], bar, pipeline.x[i].index(stage))
                if S.scale_groups:
                    own = scales.at
                    if S.ragged:
                        own += group.to(gl.int64) * groups.stride_scale
                    of_group = Scales(own, scales.stride_n, scales.stride_k)
                    fetch_scales(stage, step, first_n, indices, n, of_group, pipeline, S)
                stage, phase = next_use(stage, phase, S.num_stages)


@gluon.jit
def consume_tile(
    at, end, stage, phase, output, epilogue, pipeline, schedule, groups, scratch, scales,
    WHO: gl.constexpr, S: gl.constexpr,
):  # fmt: skip
    """Consumer WHO's part of the tile at `at`: where the program's work goes on, and the pipeline position."""
    tile, first, last, stride, at = work_at(at, end, schedule, S)
    bias = epilogue.bias
    if S.ragged:
        group, first_n, first_m, group_end = place_in_groups(tile, schedule, groups, S)
        first_n += WHO * S.rows
        output = Output(output.at, output.stride_m, output.stride_n, first_m, group_end, output.n, output.buf)
        if S.scales != "":
            own = scales.at + group.to(gl.int64) * groups.stride_scale
            scales = Scales(own, scales.stride_n, scales.stride_k)
        if S.bias:
            bias += group.to(gl.int64) * output.n
    else:
        first_n, first_m = origin(tile, schedule, S)
        first_n += WHO * S.rows
        output = Output(output.at, output.stride_m, output.stride_n, first_m, output.m, output.n, output.buf)
        first_m = moved_inside(first_m, output.m, S)
    FACTORS: gl.constexpr = gl.SliceLayout(1, S.sums[0] if S.rounds_first else S.stored)
    factors = row_factors(first_n, output.n, scales, FACTORS, S.ahead, S)
    epilogue = Epilogue(
        epilogue.alpha, epilogue.beta, bias, epilogue.c, epilogue.stride_cm, epilogue.stride_cn, factors, scales
    )
    sums, stage, phase = multiply(pipeline, stage, phase, first, last, stride, WHO, S)
    if S.fixup == "reduce-scatter":
        reduce_scatter(sums, tile, first_n, first_m, scratch, output, epilogue, WHO, S)
    elif S.fixup == "exchange":
        if last - first == schedule.steps:
            write(sums, first_n, first_m, output, epilogue, S)
        else:
            reduce_scatter(sums, gl.program_id(0) // 2, first_n, first_m, scratch, output, epilogue, WHO, S)
    elif S.fixup == "assist":
        shared = tile - rounds_of(schedule, S) * gl.num_programs(0)
        if first == 0:
            write_assisted(sums, last < schedule.steps, shared, first_n, first_m, scratch, output, epilogue, WHO, S)
        else:
            store_assisted(sums, shared, scratch, WHO, S)
    elif S.fixup == "last-arriver":
        if last - first == schedule.steps:
            write(sums, first_n, first_m, output, epilogue, S)
        else:
            shared = tile - rounds_of(schedule, S) * gl.num_programs(0)
            last_arriver(sums, shared, first, last, first_n, first_m, schedule, scratch, output, epilogue, WHO, S)
    else:
        write(sums, first_n, first_m, output, epilogue, S)
    return at, stage, phase


@gluon.jit
def consume(output, epilogue, pipeline, schedule, groups, scratch, scales, WHO: gl.constexpr, S: gl.constexpr):
    """Consumer WHO: multiplies its rows of every tile of the program's work, and writes or stores their sums."""
    # Triton 3.6 does not know in a partition what its arguments are multiples of, nor that one is 1.
    stride_m = multiple_of(output.stride_m, S.divisor)
    stride_n = 1 if S.divisor > 1 else output.stride_n
    buf = output.buf.index(WHO) if S.rounds_first else None
    output = Output(output.at, stride_m, stride_n, None, output.m, multiple_of(output.n, S.divisor), buf)
    if S.ragged:
        wait_for_previous_grid()
        at, end = line_of_groups(schedule, groups)
    else:
        at, end = line_of(schedule, S)
        wait_for_previous_grid()
    stage = 0
    phase = 0
    ordered_mma.begin(WHO, S)
    if S.fixup == "reduce-scatter":  # the program's work lies in one tile
        consume_tile(at, end, stage, phase, output, epilogue, pipeline, schedule, groups, scratch, scales, WHO, S)
    else:
        while at < end:
            at, stage, phase = consume_tile(
                at, end, stage, phase, output, epilogue, pipeline, schedule, groups, scratch, scales, WHO, S
            )
    if S.fixup == "assist":
        end_assistance(schedule, scratch, WHO, S)
    ordered_mma.end(WHO, S)


@gluon.jit
def allocate_x(SUBTILE: gl.constexpr, S: gl.constexpr):
    """The pipeline's buffers for a subtile of X."""
    SHAPE: gl.constexpr = [S.num_stages] + S.x_blocks[SUBTILE]
    SHARED: gl.constexpr = S.x_shared[SUBTILE]
    return gl.allocate_shared_memory(S.dtype, SHAPE, SHARED)


@gluon.jit
def allocate_pipeline(S: gl.constexpr):
    """The pipeline's shared memory, with its barriers initialized."""
    STAGES: gl.constexpr = S.num_stages
    CONSUMERS: gl.constexpr = S.consumers
    SUBTILES: gl.constexpr = len(S.subtiles)
    W_SHARED: gl.constexpr = S.w_shared
    BARRIERS: gl.constexpr = mbarrier.MBarrierLayout()
    w_bufs = gl.allocate_shared_memory(S.w_dtype, [STAGES * CONSUMERS] + S.w_block, W_SHARED)
    x_bufs = ()
    for i in gl.static_range(SUBTILES):
        x_bufs += (allocate_x(i, S),)
    scale_bufs = ()
    if S.scale_groups:
        FLAT: gl.constexpr = S.flat_shared
        scale_bufs = gl.allocate_shared_memory(gl.float32, [STAGES * CONSUMERS * S.scale_groups, S.rows], FLAT)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIERS)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIERS)
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=CONSUMERS)
        mbarrier.init(full.index(i), count=S.fills)
    fence_async_shared()
    return Pipeline(w_bufs, x_bufs, scale_bufs, empty, full)


@gluon.jit
def allocate_pieces(S: gl.constexpr):
    """Shared memory for a piece of each consumer, in which it changes layout; or None."""
    buffers = None
    if S.rounds_first:
        DTYPE: gl.constexpr = S.out_dtype
        SHAPE: gl.constexpr = [S.consumers, S.rows, S.piece_cols]
        SHARED: gl.constexpr = S.piece_shared
        buffers = gl.allocate_shared_memory(DTYPE, SHAPE, SHARED)
    return buffers


RUNTIME_INTEGERS = [
    "stride_om", "stride_cm", "stride_cn", "m", "n", "tiles_m", "tiles_n", "tiles", "steps",
    "shared_steps", "sharers", "stride_sn", "stride_sk", "stride_sg",
]  # fmt: skip
"""Not specialized: any value runs the same binary. Not in tuples: Triton specializes a tuple's elements regardless."""


@gluon.jit(do_not_specialize=RUNTIME_INTEGERS)
def mixed_input_kernel(
    a_desc, a_desc_1, a_desc_2, b_desc, out, stride_om, stride_on, alpha, beta, bias, c, stride_cm, stride_cn,
    m, n, tiles_m, tiles_n, tiles, steps, shared_steps, sharers, table, factors, workspace, flags,
    scale_b, stride_sn, stride_sk, groups, stride_sg, S: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """out[m, n] = alpha * sum over k of X[m, k] * W[n, k] * scale + bias[n] + beta * c[m, n], rounded once.

    a_desc to a_desc_2, b_desc: descriptors of X, in blocks of each subtile, and of W, in blocks of a consumer's rows.
    tiles_m to factors: see `Schedule`. Strides are in elements; those of scale_b, fp32, along the rows of W and groups
    of K, and stride_sg from one of `groups` to the next. workspace: two tiles for each program for the last-arriver
    fixup, one for reduce-scatter and exchange; one for each tile of the last round for assist. flags: one, its lower 31
    bits zero, for each index of the order and consumer.
    groups: None, or the table of `device/groups.py`. W then has a matrix for each group, and bias a row.
    Grid: as many programs as take all tiles, none without a step.
    """
    CONSUMERS: gl.constexpr = S.consumers
    REGISTERS: gl.constexpr = S.consumer_registers
    LOADER: gl.constexpr = S.loader_registers
    pipeline = allocate_pipeline(S)
    a_descs = (a_desc, a_desc_1, a_desc_2)
    schedule = Schedule(tiles_m, tiles_n, tiles, steps, shared_steps, sharers, table, factors)
    scratch = (workspace, flags)
    scales = Scales(scale_b, stride_sn, stride_sk)
    groups = Groups(groups, stride_sg)
    output = Output(out, stride_om, stride_on, None, m, n, allocate_pieces(S))
    epilogue = Epilogue(alpha, beta, bias, c, stride_cm, stride_cn, None, None)
    if CONSUMERS == 1:
        gl.warp_specialize(
            [
                (consume, (output, epilogue, pipeline, schedule, groups, scratch, scales, 0, S)),
                (load, (a_descs, b_desc, m, n, pipeline, schedule, groups, scales, S)),
            ],
            [1],
            [LOADER],
        )
    elif CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consume, (output, epilogue, pipeline, schedule, groups, scratch, scales, 0, S)),
                (consume, (output, epilogue, pipeline, schedule, groups, scratch, scales, 1, S)),
                (load, (a_descs, b_desc, m, n, pipeline, schedule, groups, scales, S)),
            ],
            [4, 1],
            [REGISTERS, LOADER],
        )
    else:
        gl.static_assert(CONSUMERS == 3, "1 to 3 consumers")
        gl.warp_specialize(
            [
                (consume, (output, epilogue, pipeline, schedule, groups, scratch, scales, 0, S)),
                (consume, (output, epilogue, pipeline, schedule, groups, scratch, scales, 1, S)),
                (consume, (output, epilogue, pipeline, schedule, groups, scratch, scales, 2, S)),
                (load, (a_descs, b_desc, m, n, pipeline, schedule, groups, scales, S)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, LOADER],
        )
