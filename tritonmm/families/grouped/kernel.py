"""Warp-specialized grouped GEMM for Hopper (sm_90), with TMA and wgmma: groups divide the rows of A, or K.

Supports
    bf16, fp16, fp8 and int8 operands; a bias for each group; scales of rows and columns; orders over groups.

How it works. At most one program runs on each SM, and is specialized into warps once:

    1. The scheduler warp takes one tile of the order after the other, by an atomic counter, looks up its group
       (`device/groups.py`), and queues it for the others. Tiles take differently long, so none is assigned before a
       program needs it.
    2. The producer warp loads the K steps of each tile by TMA into a pipeline of shared buffers (`device/pipeline.py`).
    3. Each of two or three consumer warpgroups multiplies its part of the tile's columns, and writes them by TMA.

Tiles are multiplied transposed. wgmma multiplies 64 rows at least, but any multiple of 8 columns. So its rows are
columns of the output, 64 or 128 for each consumer, and its columns are rows of the output, of which a group may have
any number. The rows of a group are divided equally among its tiles, in units of BOX = 16, and each tile loads,
multiplies and writes its own rows: there is code for each number of rows that `rules.widths` lists. Pieces of 32 rows
are transposed on their way to shared memory.

Edges of groups. Rows after the last one of a tile are loaded as they are, up to a multiple of 16, and multiplied; they
only count for rows of the output that are not written. The descriptors of the output, and of operands where groups
divide K, end where the tile's rows or the group's K end (`launch.ragged`): TMA does not write what follows, and reads
it as zeros. So no group touches or reads into the sums of another.

Results are bitwise reproducible: a tile's sums do not depend on the program that computes it. Measurements:
docs/notebook/grouped.md.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tritonmm.device.columns import split_columns
from tritonmm.device.epilogue import scaled_plus_bias
from tritonmm.device.gluon_compat import (
    aggregate,
    barrier,
    computed,
    let_next_grid_start,
    tma_load,
    tma_store,
    wait_for_previous_grid,
)
from tritonmm.device.groups import TAKEN, part_of, rows_of_tiles, tile_of
from tritonmm.device.pipeline import next_use, release, waited
from tritonmm.families.grouped.rules import MOST_ROWS

FAR = gl.constexpr(MOST_ROWS)
"""The rows of a ragged descriptor, see `launch.ragged`."""


@aggregate
class Operands:
    """TMA descriptors: of A's rows, of small boxes of them, or None, and of B."""

    a: gl.tensor
    small_a: gl.tensor
    b: gl.tensor


@aggregate
class Pipeline:
    """Shared buffers and barriers of the K steps; `device/pipeline.py` has the protocol."""

    a: gl.shared_memory_descriptor  # [stages, *a_rows]
    b: gl.shared_memory_descriptor  # [stages * consumers, *b_block]
    empty: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor


@aggregate
class Scheduler:
    """What the order of the tiles depends on."""

    table: gl.tensor  # of groups
    tiles_m: gl.tensor  # of a product, where groups divide K
    tiles_n: gl.tensor
    tiles: gl.tensor  # of all groups, where they divide K
    k: gl.tensor
    factors: gl.tuple


@aggregate
class Queue:
    """The next tiles of a program, from its scheduler to its producer and its consumers. A slot is used as a stage of
    `device/pipeline.py` is: the scheduler fills it, and all others release it."""

    tiles: gl.shared_memory_descriptor  # [slots, 32], the fields of a tile
    free: gl.shared_memory_descriptor  # a barrier for each slot: it may be overwritten
    ready: gl.shared_memory_descriptor  # a barrier for each slot: there is a tile


@aggregate
class Output:
    """Where a consumer writes, and what it multiplies by and adds."""

    desc: gl.tensor
    buffers: gl.shared_memory_descriptor  # [consumers * out_buffers, *out_block]
    bias: gl.tensor  # [groups, n], or None
    n: gl.tensor
    scale_a: gl.tensor  # of each row, or None
    stride_sam: gl.tensor
    scale_b: gl.tensor  # of each group and column, or None
    stride_sbk: gl.tensor
    stride_sbn: gl.tensor


@gluon.jit
def count_tiles(scheduler, SPEC: gl.constexpr):
    """Tiles of all groups."""
    if SPEC.ragged == "m":
        return rows_of_tiles(scheduler.table) * scheduler.tiles_n
    else:
        return scheduler.tiles


@gluon.jit
def tile_at(i, scheduler, SPEC: gl.constexpr):
    """The tile of index i: its group, its first row and column; the end of the group's rows, or of its K where that is
    divided; its first element of K, and how many steps of K it has."""
    ORDER: gl.constexpr = SPEC.order
    ALONG: gl.constexpr = SPEC.along
    if SPEC.ragged == "m":
        group, row, end, n = tile_of(
            i, scheduler.tiles_n, scheduler.table, scheduler.factors, SPEC.block_m, SPEC.box, ORDER, ALONG, SPEC.joined
        )
        first = i * 0
        size = scheduler.k
    else:
        group, first, end, m, n = part_of(
            i, scheduler.tiles_m, scheduler.tiles_n, scheduler.table, scheduler.factors, ORDER, ALONG
        )
        row = m * SPEC.block_m
        size = end - first
    steps = size // SPEC.block_k + (size % SPEC.block_k > 0).to(gl.int32)
    return group, row, n * SPEC.block_n, end, first, steps


@gluon.jit
def schedule(scheduler, queue, SPEC: gl.constexpr):
    """The scheduler's partition: takes one tile after the other and queues it, until there is none.

    Tiles take differently long. So no tile is a program's before the program is about to begin with it.
    """
    SLOTS: gl.constexpr = SPEC.slots
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    lanes = gl.arange(0, 32, LANES)
    wait_for_previous_grid()
    tiles = count_tiles(scheduler, SPEC)
    slot = 0
    phase = 1
    is_tile = True
    while is_tile:
        mbarrier.wait(queue.free.index(slot), phase)
        i = gl.atomic_add(scheduler.table + TAKEN, 1, sem="relaxed", scope="gpu")
        is_tile = i < tiles
        group, row, col, end, first, steps = tile_at(gl.where(is_tile, i, 0), scheduler, SPEC)
        steps = gl.where(is_tile, steps, -1)
        fields = gl.where(lanes == 0, group, gl.where(lanes == 1, row, col))
        fields = gl.where(lanes == 3, end, gl.where(lanes == 4, first, gl.where(lanes == 5, steps, fields)))
        queue.tiles.index(slot).store(fields)
        mbarrier.arrive(queue.ready.index(slot), count=1)
        slot, phase = next_use(slot, phase, SLOTS)


@gluon.jit
def field(fields, J: gl.constexpr, WARPS: gl.constexpr):
    """Field J of a tile, none of which is below -1."""
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    return gl.max(gl.where(gl.arange(0, 32, LANES) == J, fields, -1), 0)


@gluon.jit
def next_tile(queue, slot, phase, WARPS: gl.constexpr, SPEC: gl.constexpr):
    """The tile in a slot of the queue, as `tile_at` returns it, for a partition of WARPS warps, and the position after
    the slot. The steps are -1 if there are no more tiles."""
    SLOTS: gl.constexpr = SPEC.slots
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    mbarrier.wait(queue.ready.index(slot), phase)
    fields = queue.tiles.index(slot).load(LANES)
    group, row, col = field(fields, 0, WARPS), field(fields, 1, WARPS), field(fields, 2, WARPS)
    end, first, steps = field(fields, 3, WARPS), field(fields, 4, WARPS), field(fields, 5, WARPS)
    barrier()  # all warps have read it
    mbarrier.arrive(queue.free.index(slot), count=1)
    slot, phase = next_use(slot, phase, SLOTS)
    return group, row, col, end, first, steps, slot, phase


@gluon.jit
def load(operands, pipeline, queue, SPEC: gl.constexpr):
    """The producer's partition: the operands of all tiles of this program."""
    stage = 0
    phase = 1
    slot = 0
    slot_phase = 0
    wait_for_previous_grid()
    let_next_grid_start()
    group, row, col, end, first, steps, slot, slot_phase = next_tile(queue, slot, slot_phase, 1, SPEC)
    while steps >= 0:
        if SPEC.ragged == "m":
            BOXES: gl.constexpr = SPEC.block_m // SPEC.box
            left = gl.minimum(end - row, SPEC.block_m)
            count = (left + SPEC.box - 1) // SPEC.box
            for j in gl.static_range(BOXES):
                if count == j + 1:
                    stage, phase = load_tile(
                        group, row, col, end, first, steps, stage, phase, operands, pipeline, j + 1, SPEC
                    )
        else:
            stage, phase = load_tile(group, row, col, end, first, steps, stage, phase, operands, pipeline, 0, SPEC)
        group, row, col, end, first, steps, slot, slot_phase = next_tile(queue, slot, slot_phase, 1, SPEC)


@gluon.jit
def load_tile(
    group, row, col, end, first, steps, stage, phase, operands, pipeline, BOXES: gl.constexpr, SPEC: gl.constexpr
):  # fmt: skip
    """Loads the K steps of a tile from a pipeline position on; returns the position after them.

    BOXES: how many times `SPEC.box` rows of A it has, where groups divide rows.
    """
    CONSUMERS: gl.constexpr = SPEC.consumers
    AT: gl.constexpr = SPEC.boxes[BOXES]
    BYTES: gl.constexpr = SPEC.fixed_bytes + BOXES * SPEC.small_bytes
    for step in range(steps):
        k = first + step * SPEC.block_k
        mbarrier.wait(pipeline.empty.index(stage), phase)
        bar = pipeline.full.index(stage)
        mbarrier.expect(bar, BYTES)
        for who in gl.static_range(CONSUMERS):
            buf = pipeline.b.index(stage * CONSUMERS + who)
            at = col + who * SPEC.cols
            if SPEC.ragged == "k":
                tma_load(operands.b, [FAR, end, FAR - end + k, at], bar, buf)
            elif SPEC.b_transposed:
                tma_load(operands.b, [group, at, k], bar, buf)
            else:
                tma_load(operands.b, [group, k, at], bar, buf)
        rows = pipeline.a.index(stage)
        if SPEC.ragged == "k":
            tma_load(operands.a, [FAR, end, FAR - end + k, row], bar, rows)
        else:
            for j in gl.static_range(len(AT)):
                box = rows.slice(AT[j][0], AT[j][1], dim=1)
                if AT[j][1] == SPEC.wide_box:
                    tma_load(operands.a, [0, row + AT[j][0], k], bar, box)
                else:
                    tma_load(operands.small_a, [0, row + AT[j][0], k], bar, box)
        stage, phase = next_use(stage, phase, SPEC.num_stages)
    return stage, phase


@gluon.jit
def consume(output, pipeline, queue, WHO: gl.constexpr, SPEC: gl.constexpr):
    """Consumer WHO's partition: multiplies and writes its columns of all tiles of this program."""
    WIDTHS: gl.constexpr = SPEC.widths
    stage = 0
    phase = 0
    slot = 0
    slot_phase = 0
    buffer = 0
    wait_for_previous_grid()
    group, row, col, end, _, steps, slot, slot_phase = next_tile(queue, slot, slot_phase, 4, SPEC)
    while steps >= 0:
        col += WHO * SPEC.cols
        if SPEC.ragged == "m":
            left = gl.minimum(end - row, SPEC.block_m)
            for j in gl.static_range(len(WIDTHS)):
                if (left > WIDTHS[j][0]) & (left <= WIDTHS[j][1]):
                    stage, phase, buffer = consume_tile(
                        group, row, col, end, steps, stage, phase, buffer, output, pipeline, WHO, WIDTHS[j][1], SPEC
                    )
        else:
            stage, phase, buffer = consume_tile(
                group, row, col, end, steps, stage, phase, buffer, output, pipeline, WHO, SPEC.block_m, SPEC
            )
        group, row, col, end, _, steps, slot, slot_phase = next_tile(queue, slot, slot_phase, 4, SPEC)
    tma.store_wait(0)


@gluon.jit
def consume_tile(
    group, row, col, end, steps, stage, phase, buffer, output, pipeline,
    WHO: gl.constexpr, WIDTH: gl.constexpr, SPEC: gl.constexpr,
):  # fmt: skip
    """Multiplies and writes consumer WHO's columns of a tile of at most WIDTH rows. Returns the position in the
    pipeline after it, and the next of the consumer's output buffers."""
    ROWS: gl.constexpr = SPEC.subtiles[WIDTH // SPEC.box]
    sums, stage, phase = multiply(steps, stage, phase, pipeline, WHO, ROWS, SPEC)
    for j in gl.static_range(len(ROWS)):
        buffer = write(sums[j], group, row, col, end, buffer, output, WHO, SPEC)
        row += ROWS[j]
    return stage, phase, buffer


@gluon.jit
def zeros(ROWS: gl.constexpr, SPEC: gl.constexpr):
    """The accumulator of so many rows, transposed."""
    LAYOUT: gl.constexpr = SPEC.acc_layout(ROWS)
    SHAPE: gl.constexpr = [SPEC.cols, ROWS]
    return gl.zeros(SHAPE, SPEC.sum_dtype, LAYOUT)


@gluon.jit
def rows_of_a(pipeline, stage, FIRST: gl.constexpr, COUNT: gl.constexpr, SPEC: gl.constexpr):
    """Rows of A in a stage, as the right operand of wgmma, [K, rows]."""
    rows = pipeline.a.index(stage)
    if SPEC.ragged == "m":
        return rows.reshape([SPEC.block_m, SPEC.block_k]).slice(FIRST, COUNT, dim=0).permute((1, 0))
    else:
        return rows.reshape([SPEC.block_k, SPEC.block_m]).slice(FIRST, COUNT, dim=1)


@gluon.jit
def cols_of_b(pipeline, stage, WHO: gl.constexpr, SPEC: gl.constexpr):
    """Consumer WHO's columns of B in a stage, as the left operand of wgmma, [columns, K]."""
    buf = pipeline.b.index(stage * SPEC.consumers + WHO)
    if SPEC.b_transposed:
        return buf.reshape([SPEC.cols, SPEC.block_k])
    else:
        return buf.reshape([SPEC.block_k, SPEC.cols]).permute((1, 0))


@gluon.jit
def multiply(steps, stage, phase, pipeline, WHO: gl.constexpr, ROWS: gl.constexpr, SPEC: gl.constexpr):
    """The sums of consumer WHO over the next `steps` uses of the pipeline, for ROWS rows each, and the position after
    them."""
    accs = ()
    for j in gl.static_range(len(ROWS)):
        accs += (zeros(ROWS[j], SPEC),)
    if SPEC.two_level:
        for _ in range(steps):
            mbarrier.wait(pipeline.full.index(stage), phase)
            left = cols_of_b(pipeline, stage, WHO, SPEC)
            sums = ()
            for j in gl.static_range(len(ROWS)):
                right = rows_of_a(pipeline, stage, ROWS[0] * j, ROWS[j], SPEC)
                part = warpgroup_mma(left, right, zeros(ROWS[j], SPEC), is_async=True, use_acc=False)
                part = warpgroup_mma_wait(0, (part,))
                sums += (computed(accs[j] + part),)
            accs = sums
            stage, phase = next_use(stage, phase, SPEC.num_stages)
            release(pipeline.empty, stage, True, SPEC)
    else:
        for step in range(steps):
            mbarrier.wait(pipeline.full.index(stage), phase)
            left = cols_of_b(pipeline, stage, WHO, SPEC)
            sums = ()
            for j in gl.static_range(len(ROWS)):
                right = rows_of_a(pipeline, stage, ROWS[0] * j, ROWS[j], SPEC)
                sums += (warpgroup_mma(left, right, accs[j], is_async=True, use_acc=step > 0),)
            accs = waited(sums, len(ROWS))  # the previous step is done with its stage
            release(pipeline.empty, stage, step > 0, SPEC)
            stage, phase = next_use(stage, phase, SPEC.num_stages)
        accs = waited(accs, 0)
        release(pipeline.empty, stage, steps > 0, SPEC)
    return accs, stage, phase


@gluon.jit
def finished(x, group, row, col, end, output, SPEC: gl.constexpr):
    """The block of sums x, [columns, rows], that starts at (row, col), times the scales, plus the bias."""
    LAYOUT: gl.constexpr = x.type.layout
    cols = col + gl.arange(0, x.shape[0], gl.SliceLayout(1, LAYOUT))
    is_col = cols < output.n
    of_rows, of_cols, added = None, None, None
    if SPEC.scales == "row":
        rows = row + gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT))
        of_rows = gl.load(output.scale_a + rows * output.stride_sam, mask=rows < end, other=0.0)[None, :]
        of_group = output.scale_b + group.to(gl.int64) * output.stride_sbk
        of_cols = gl.load(of_group + cols * output.stride_sbn, mask=is_col, other=0.0)[:, None]
    if SPEC.bias:
        at = output.bias + group.to(gl.int64) * output.n + cols
        added = gl.load(at, mask=is_col, other=0.0).to(gl.float32)[:, None]
    if SPEC.sum_dtype != SPEC.out_dtype:
        x = x.to(gl.float32)
    return scaled_plus_bias(x, of_rows, of_cols, None, added)


@gluon.jit
def write(x, group, row, col, end, buffer, output, WHO: gl.constexpr, SPEC: gl.constexpr):
    """Finishes the sums x, [columns, rows], and writes them piece by piece, as far as they are the tile's. Returns the
    buffer after those that it used, in turn."""
    DTYPE: gl.constexpr = SPEC.out_dtype
    BUFFERS: gl.constexpr = SPEC.out_buffers
    ROWS: gl.constexpr = min(x.shape[1], SPEC.piece)
    COUNT: gl.constexpr = x.shape[1] // ROWS
    pieces = split_columns(x, COUNT, 1)
    for i in gl.static_range(COUNT):
        at = row + i * ROWS
        piece = finished(pieces[i], group, at, col, end, output, SPEC).to(DTYPE).permute((1, 0))
        buf = output.buffers.index(WHO * BUFFERS + buffer)
        tma.store_wait(BUFFERS - 1)  # TMA has read what this buffer held
        # The last piece of a tile may have fewer rows than the buffer: those after them are beyond `end`.
        buf.reshape([SPEC.piece, SPEC.cols]).slice(0, ROWS, dim=0).store(piece)
        fence_async_shared()
        if SPEC.ragged == "m":
            tma_store(output.desc, [FAR, end, FAR - end + at, col], buf)
        else:
            tma_store(output.desc, [group, at, col], buf)
        buffer = gl.where(buffer == BUFFERS - 1, 0, buffer + 1)
    return buffer


@gluon.jit(do_not_specialize=["n", "k", "tiles_m", "tiles_n", "tiles", "stride_sam", "stride_sbn", "stride_sbk"])
def grouped_gemm(
    a_desc, a_desc_1, b_desc, out_desc, out, alpha, beta, bias, groups, n, k, tiles_m, tiles_n, tiles, factors,
    scale_a, stride_sam, scale_b, stride_sbn, stride_sbk, SPEC: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """out = A @ B + bias for each group, rounded once.

    The descriptors are those of `GroupedSpec`'s blocks; a_desc_1 is that of small boxes of A, where groups divide rows.
    out, alpha, beta: not used; every launch has them. groups: the table of `device/groups.py`. tiles: of all groups,
    where these divide K.
    """
    STAGES: gl.constexpr = SPEC.num_stages
    CONSUMERS: gl.constexpr = SPEC.consumers
    REGISTERS: gl.constexpr = SPEC.consumer_registers
    LOADER: gl.constexpr = SPEC.loader_registers
    A_SHARED: gl.constexpr = SPEC.a_shared
    B_SHARED: gl.constexpr = SPEC.b_shared
    OUT_SHARED: gl.constexpr = SPEC.out_shared
    a_bufs = gl.allocate_shared_memory(SPEC.dtype, [STAGES] + SPEC.a_rows, A_SHARED)
    b_bufs = gl.allocate_shared_memory(SPEC.b_dtype, [STAGES * CONSUMERS] + SPEC.b_block, B_SHARED)
    out_bufs = gl.allocate_shared_memory(SPEC.out_dtype, [CONSUMERS * SPEC.out_buffers] + SPEC.out_block, OUT_SHARED)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=CONSUMERS)
        mbarrier.init(full.index(i), count=1)
    SLOTS: gl.constexpr = SPEC.slots
    FLAT: gl.constexpr = SPEC.flat_shared
    slots = gl.allocate_shared_memory(gl.int32, [SLOTS, 32], FLAT)
    free = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SLOTS):
        mbarrier.init(free.index(i), count=CONSUMERS + 1)
        mbarrier.init(ready.index(i), count=1)
    queue = Queue(tiles=slots, free=free, ready=ready)
    fence_async_shared()
    operands = Operands(a=a_desc, small_a=a_desc_1, b=b_desc)
    pipeline = Pipeline(a=a_bufs, b=b_bufs, empty=empty, full=full)
    scheduler = Scheduler(table=groups, tiles_m=tiles_m, tiles_n=tiles_n, tiles=tiles, k=k, factors=factors)
    output = Output(
        desc=out_desc, buffers=out_bufs, bias=bias, n=n,
        scale_a=scale_a, stride_sam=stride_sam, scale_b=scale_b, stride_sbk=stride_sbk, stride_sbn=stride_sbn,
    )  # fmt: skip
    if CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consume, (output, pipeline, queue, 0, SPEC)),
                (consume, (output, pipeline, queue, 1, SPEC)),
                (load, (operands, pipeline, queue, SPEC)),
                (schedule, (scheduler, queue, SPEC)),
            ],
            [4, 1, 1],
            [REGISTERS, LOADER, LOADER],
        )
    else:
        gl.static_assert(CONSUMERS == 3, "2 or 3 consumers")
        gl.warp_specialize(
            [
                (consume, (output, pipeline, queue, 0, SPEC)),
                (consume, (output, pipeline, queue, 1, SPEC)),
                (consume, (output, pipeline, queue, 2, SPEC)),
                (load, (operands, pipeline, queue, SPEC)),
                (schedule, (scheduler, queue, SPEC)),
            ],
            [4, 4, 1, 1],
            [REGISTERS, REGISTERS, LOADER, LOADER],
        )
