"""Warp-specialised GEMM for Hopper (sm_90): TMA in, wgmma, TMA out; bf16, fp16, tf32, fp8 and int8.

One program an SM, or pair of SMs, walks work items. Its warps are specialised once, for the whole walk:

    loader       one warp; fills a ring of `num_stages` shared buffers by TMA
    consumers    1 to 3 warpgroups; each multiplies its own rows (or columns) of the tile and
                 writes them out, while the loader already fills the ring for the next item
    usher        one warp, where tiles are dealt to SMs: `claim.py`

`pipeline.py` says why the ring neither overwrites what is read nor waits for ever.

A and B are loaded as they lie in memory, whichever dimension is contiguous, and wgmma reads the
transposed view of the buffer where needed; of other than 2-byte operands it cannot, and they lie with
K contiguous. Ragged edges come out of TMA: elements outside of the tensor read as zero and are not
written. Of rows that are not there most are not even asked for: `ragged.py`.

Split tiles. An item is a whole tile, or one of `splits` parts of its K steps. The first `whole`
items are whole tiles; from there on as many tiles as the programs can multiply in one go are a group,
whose items are first parts, then second parts, and so on; the programs of a tile add up and write a
share of its rows each: `split_k.py`.

Clusters. A program may be two CTAs that divide the tile and share one operand (`Tiling.cluster`):
everything here is then written for both at once, the layouts deal rows or columns to them, and
`cluster.py` says how the ring works across them. Split tiles and clusters exclude each other.

Starting early. The grid is launched while the one before it in the stream still runs (programmatic
dependent launch): its programs set their barriers up as SMs become free, and then all partitions
wait for the end of the other grid before they touch memory. Launch after launch this saves 0.8 us each
(1024^3 bf16 takes 5.8 us, H200, 2026-11-21). Cooperative grids, those with split tiles, are resident as
a whole or not at all, so they start when the other one has ended, but sooner after it: by 1 us in a graph.

Dealt tiles. A grid that starts early runs on what SMs it finds. Where that matters, for few tiles with one
consumer, a program takes the tile of its SM instead of that of its number: `claim.py`.

Strips. A consumer's columns are one block or two, each a power of two wide with a wgmma and an
accumulator of its own: 256, 128 + 128, 128 + 64. The larger tiles move fewer bytes for each product
(192 x 256 reads 22% less through L2 than 128 x 256), and more shapes of tiles leave fewer SMs idle in
the last wave. Strips of 32 pay only where memory is the limit, as for few rows, and less never: each
reads the rows of A again from shared memory.

Results are bitwise the same from run to run: partial sums are added in the order of the parts.

Measured on an H200 (bf16, rested card, fits to 17 products, 2026-11-21): 128 x 256 x 64 in 4 stages
reaches 861 TFLOP/s in the loop over K and spends 2.4 us a wave beside it; 192 x 256 x 64 in 3 stages
889 and 3.4 us. The card slows down for power even then: its SM clock is 1.55 to 1.6 GHz on random
data and 1.8 GHz on zeros, with which 8192^3 reaches 924 TFLOP/s, 95% of what the tensor cores can do.
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

from tritonmm.device import cluster
from tritonmm.device.columns import split_columns
from tritonmm.device.gluon_compat import let_next_grid_start, tma_load, tma_store, wait_for_previous_grid
from tritonmm.device.order import tile_at
from tritonmm.device.pipeline import next_use, operand, release, zeros
from tritonmm.families.hopper import ordered_mma as turns
from tritonmm.families.hopper import ragged as edges
from tritonmm.families.hopper.claim import first_seat, next_seat, own_seat, usher
from tritonmm.families.hopper.epilogue import finish, store_masked
from tritonmm.families.hopper.split_k import share
from tritonmm.families.hopper.two_level_sums import fetch_scales, multiply_promoted


@gluon.jit
def origin(tile, schedule, TILING: gl.constexpr):
    """The batch, first row and first column of the tile at an index of the order."""
    items, whole, splits, launched, tiles_m, tiles_n, steps, table, factors = schedule
    ORDER: gl.constexpr = TILING.order
    ALONG: gl.constexpr = TILING.along
    batch = tile * 0
    if TILING.batched:
        batch = tile // launched
        tile -= batch * launched
    m, n = tile_at(tile, tiles_m, tiles_n, table, factors, ORDER, ALONG)
    if ORDER == "split-merge":  # far overflow would wrap around to rows of the output
        m, n = gl.minimum(m, tiles_m), gl.minimum(n, tiles_n)
    return batch, m * TILING.pitch, n * TILING.block_n


@gluon.jit
def work_at(item, schedule, TILING: gl.constexpr):
    """A work item: its tile; the first of its K steps, their end, and from one to the next; its split tile, or -1."""
    items, whole, splits, launched, tiles_m, tiles_n, steps, table, factors = schedule
    tile = item
    slot = -1
    first = 0
    end = steps
    stride = 1
    if TILING.split:
        past = item - whole
        if past >= 0:
            together = gl.num_programs(0) // splits
            slot = past // (together * splits) * together
            past -= slot * splits
            together = gl.minimum(together, (items - whole) // splits - slot)
            first = past // together
            slot += past - first * together
            tile = whole + slot
            stride = splits
    if TILING.order == "split-merge":  # an overflow tile has no steps, and its stores fall outside of the output
        batch, row, col = origin(tile, schedule, TILING)
        inside = (row < tiles_m * TILING.pitch) & (col < tiles_n * TILING.block_n)
        end = gl.where(inside, end, first)
    return tile, first, end, stride, slot


@gluon.jit
def load_block(desc, batch, line, k, bar, buf, K_FIRST: gl.constexpr, pred=True):
    """One block of A or B; `line` is its first row of A or column of B. K_FIRST: K is the outer dimension in memory."""
    if K_FIRST:
        tma_load(desc, [batch, k, line], bar, buf, pred)
    else:
        tma_load(desc, [batch, line, k], bar, buf, pred)


@gluon.jit
def load(a_desc, b_descs, edge_desc, ring, schedule, m, n, scales, seating, TILING: gl.constexpr):
    """The loader: brings the operands of every step of every item into the ring."""
    items = schedule[0]
    stage = 0
    phase = 1
    wait_for_previous_grid()
    if TILING.seats != "":
        own, told = seating
        item = first_seat(own, items, told, 1)
        while item < items:
            stage, phase = load_item(
                item, stage, phase, a_desc, b_descs, edge_desc, ring, schedule, m, n, scales, TILING
            )
            item = next_seat(item, items, told, 1)
    else:
        for item in range(gl.program_id(0), items, gl.num_programs(0)):
            stage, phase = load_item(
                item, stage, phase, a_desc, b_descs, edge_desc, ring, schedule, m, n, scales, TILING
            )
    if TILING.ctas > 1:
        cluster.drain(ring[2], stage, phase, TILING.num_stages)


@gluon.jit
def load_item(item, stage, phase, a_desc, b_descs, edge_desc, ring, schedule, m, n, scales, TILING: gl.constexpr):
    """Brings the operands of every step of an item into the ring, from a position on; returns the one after them."""
    a_bufs, b_bufs, empty, full, scale_bufs = ring
    CONSUMERS_M: gl.constexpr = TILING.consumers_m
    CONSUMERS_N: gl.constexpr = TILING.consumers_n
    A_K_FIRST: gl.constexpr = TILING.a_transposed
    B_K_FIRST: gl.constexpr = not TILING.b_transposed
    STRIPS: gl.constexpr = TILING.strips
    tile, first, end, stride, slot = work_at(item, schedule, TILING)
    batch, row, col = origin(tile, schedule, TILING)
    row = edges.first_of_tile(row, m, TILING)
    for step in range(first, end, stride):
        k = step * TILING.block_k
        mbarrier.wait(empty.index(stage), phase)
        bar = full.index(stage)
        if TILING.edge:
            edges.expect(bar, m - row, TILING)
        else:
            mbarrier.expect(bar, TILING.stage_bytes)
        if TILING.cluster == "n":
            bufs = a_bufs.index(stage * CONSUMERS_M)
            cluster.load_half(bufs, bar, batch, row, k, "a", A_K_FIRST, TILING.block_m)
        else:
            for i in gl.static_range(CONSUMERS_M):
                buf = a_bufs.index(stage * CONSUMERS_M + i)
                at = row + i * TILING.rows
                if TILING.boxes:
                    edges.load(a_desc, edge_desc, batch, at, m - at, k, bar, buf, TILING)
                else:
                    line = edges.first_row(at, m, TILING)
                    load_block(a_desc, batch, line, k, bar, buf, A_K_FIRST, not TILING.edge or at < m)
        if TILING.cluster == "m":
            bufs = b_bufs[0].index(stage * CONSUMERS_N)
            cluster.load_half(bufs, bar, batch, col, k, "b", B_K_FIRST, TILING.block_n)
        else:
            for i in gl.static_range(CONSUMERS_N):
                at = col + i * TILING.cols
                for j in gl.static_range(len(STRIPS)):
                    buf = b_bufs[j].index(stage * CONSUMERS_N + i)
                    load_block(b_descs[j], batch, at, k, bar, buf, B_K_FIRST)
                    at += STRIPS[j]
        if TILING.grouped:
            fetch_scales(stage, step, row, col, m, n, scales, ring, TILING)
        stage, phase = next_use(stage, phase, TILING.num_stages)
    return stage, phase


@gluon.jit
def allocate_b(STRIP: gl.constexpr, TILING: gl.constexpr):
    """The ring's buffers for one strip of B."""
    SHAPE: gl.constexpr = [TILING.num_stages * TILING.consumers_n] + TILING.b_blocks[STRIP]
    SHARED: gl.constexpr = TILING.b_shared[STRIP]
    DTYPE: gl.constexpr = TILING.b_dtype or TILING.dtype
    return gl.allocate_shared_memory(DTYPE, SHAPE, SHARED)


@gluon.jit
def finished(accs, PENDING: gl.constexpr):
    """The accumulators, once all but the last PENDING of this warpgroup's products are done."""
    waited = warpgroup_mma_wait(PENDING, accs)
    if len(accs) == 1:
        return (waited,)
    else:
        return waited


@gluon.jit
def multiply(ring, stage, phase, steps, WHO: gl.constexpr, TILING: gl.constexpr):
    """The sums of the consumer's strips over the next `steps` uses of the ring, and the position after them."""
    a_bufs, b_bufs, empty, full, _ = ring
    STAGES: gl.constexpr = TILING.num_stages
    CONSUMERS_M: gl.constexpr = TILING.consumers_m
    CONSUMERS_N: gl.constexpr = TILING.consumers_n
    STRIPS: gl.constexpr = TILING.strips
    accs = ()
    for j in gl.static_range(len(STRIPS)):
        accs += (zeros(j, TILING),)
    for step in range(steps):
        mbarrier.wait(full.index(stage), phase)
        a = operand(a_bufs.index(stage * CONSUMERS_M + WHO // CONSUMERS_N), TILING.a_transposed)
        sums = ()
        for j in gl.static_range(len(STRIPS)):
            b = operand(b_bufs[j].index(stage * CONSUMERS_N + WHO % CONSUMERS_N), TILING.b_transposed)
            sums += (warpgroup_mma(a, b, accs[j], is_async=True, use_acc=step > 0),)
        accs = finished(sums, len(STRIPS))  # the previous step is done with its stage
        release(empty, stage, step > 0, TILING)
        stage, phase = next_use(stage, phase, STAGES)
    accs = finished(accs, 0)
    release(empty, stage, steps > 0, TILING)
    return accs, stage, phase


@gluon.jit
def write(accs, batch, row, col, output, addends, WHO: gl.constexpr, TILING: gl.constexpr):
    """Finishes the consumer's part of a whole tile and writes it, strip by strip."""
    if TILING.cluster == "n":  # a piece is a part of each CTA's columns; its layout knows only the piece's own width
        col += cluster.rank() * (TILING.cta_cols - TILING.cta_piece_cols)
    for j in gl.static_range(len(accs)):
        write_strip(accs[j], batch, row, col, output, addends, WHO, TILING)
        col += TILING.strips[j]


@gluon.jit
def write_strip(x, batch, row, col, output, addends, WHO: gl.constexpr, TILING: gl.constexpr):
    """Finishes a strip and writes it piece by piece, as `Tiling.store` says."""
    out_desc, out, stride_ob, stride_om, stride_on, m, n, out_bufs = output
    OUT_DTYPE: gl.constexpr = TILING.out_dtype
    ROW_LAYOUT: gl.constexpr = TILING.row_layout
    BUFFERS: gl.constexpr = TILING.out_buffers
    SHAPE: gl.constexpr = [TILING.rows, TILING.piece_cols]
    COUNT: gl.constexpr = x.shape[1] // TILING.piece_cols
    pieces = split_columns(x, COUNT, TILING.ctas_n)
    for i in gl.static_range(COUNT):
        at = col + i * TILING.cta_piece_cols
        piece = finish(pieces[i], batch, row, at, m, n, addends, TILING).to(OUT_DTYPE)
        if TILING.store == "direct":
            store_masked(piece, batch, row, at, output)
        else:
            buf = out_bufs.index(WHO * BUFFERS + i % BUFFERS)
            flat = buf.reshape(SHAPE)
            if TILING.tma_store:
                tma.store_wait(BUFFERS - 1)  # TMA has read what this buffer held
                flat.store(piece)
                fence_async_shared()
                tma_store(out_desc, [batch, row, at], buf)
            else:
                flat.store(piece)
                store_masked(flat.load(ROW_LAYOUT), batch, row, at, output)


@gluon.jit
def consume(output, addends, ring, schedule, scratch, seating, WHO: gl.constexpr, TILING: gl.constexpr):
    """Consumer WHO: multiplies and writes its part of every item's tile."""
    items = schedule[0]
    stage = 0
    phase = 0
    wait_for_previous_grid()
    turns.begin(WHO, TILING)
    if TILING.seats != "":
        own, told = seating
        item = first_seat(own, items, told, 4)
        while item < items:
            stage, phase = consume_item(item, stage, phase, output, addends, ring, schedule, scratch, WHO, TILING)
            item = next_seat(item, items, told, 4)
    else:
        for item in range(gl.program_id(0), items, gl.num_programs(0)):
            stage, phase = consume_item(item, stage, phase, output, addends, ring, schedule, scratch, WHO, TILING)
    turns.end(WHO, TILING)
    if TILING.tma_store:
        tma.store_wait(0)


@gluon.jit
def consume_item(
    item, stage, phase, output, addends, ring, schedule, scratch, WHO: gl.constexpr, TILING: gl.constexpr
):  # fmt: skip
    """Multiplies and writes consumer WHO's part of an item; returns the position in the ring after it."""
    out_desc, out, stride_ob, stride_om, stride_on, m, n, out_bufs = output
    splits = schedule[2]
    tile, first, end, stride, slot = work_at(item, schedule, TILING)
    count = (end - first + stride - 1) // stride
    batch, row, col = origin(tile, schedule, TILING)
    row = edges.first_of_tile(row, m, TILING)
    mine = output
    if TILING.even:  # the rows below are another tile's
        mine = (out_desc, out, stride_ob, stride_om, stride_on, row + TILING.all_rows, n, out_bufs)
    row += WHO // TILING.consumers_n * TILING.rows
    col += WHO % TILING.consumers_n * TILING.cols
    if TILING.passes_over:
        stage, phase, count = edges.pass_over(ring, stage, phase, count, m - row, WHO, TILING)
    row = edges.first_row(row, m, TILING)
    if TILING.promotes:
        accs, stage, phase = multiply_promoted(ring, stage, phase, count, WHO, TILING)
    else:
        accs, stage, phase = multiply(ring, stage, phase, count, WHO, TILING)
    if TILING.split:
        if slot >= 0:
            share(accs, batch, row, col, slot, first, splits, scratch, mine, addends, WHO, TILING)
        else:
            write(accs, batch, row, col, mine, addends, WHO, TILING)
    else:
        write(accs, batch, row, col, mine, addends, WHO, TILING)
    return stage, phase


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
    b_desc_1, a_desc_1, scale_a, stride_sam, stride_sak, scale_b, stride_sbn, stride_sbk,
    TILING: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """out[b, m, n] = alpha * sum over k of A * B + bias[n] + beta * c[b, m, n], rounded once.

    The descriptors are those of `Tiling`'s blocks, of B one for each strip of a consumer, at most two;
    `launched` is the order's number of indices for tiles_m x tiles_n, `steps` the K steps of a tile. Of
    the `items` of all batches the first `whole` are whole tiles and each later tile is `splits` items,
    with a `workspace` for the sums of all parts of all split tiles, and a flag, zero before the first
    launch, for each split tile and consumer, or for each seat and one. scale_a and scale_b, fp32, are read at their
    strides along rows, columns and groups of K, as `TILING.scales` says.
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
    for j in gl.static_range(len(TILING.strips)):
        b_bufs += (allocate_b(j, TILING),)
    out_bufs = gl.allocate_shared_memory(
        TILING.out_dtype, [CONSUMERS * TILING.out_buffers] + TILING.out_block, OUT_SHARED
    )
    scale_bufs = ()
    if TILING.grouped:
        FLAT: gl.constexpr = TILING.flat_shared
        of_a = gl.allocate_shared_memory(gl.float32, [STAGES * TILING.consumers_m, TILING.rows], FLAT)
        of_b = gl.allocate_shared_memory(gl.float32, [STAGES, TILING.col_scales], FLAT)
        scale_bufs = (of_a, of_b)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, TILING.ctas], BARRIERS)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, TILING.ctas], BARRIERS)
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=TILING.releases)
        mbarrier.init(full.index(i), count=TILING.fills)
    seating = ()
    if TILING.seats != "":
        own = own_seat(TILING)
        TOLD: gl.constexpr = TILING.flat_shared
        told_buf = gl.allocate_shared_memory(gl.int32, [32], TOLD)
        told_bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        mbarrier.init(told_bar, count=1)
        seating = (own, (told_buf, told_bar))
    fence_async_shared()
    if TILING.seats == "":
        let_next_grid_start()
    if TILING.ctas > 1:
        cluster.publish_barriers()
    ring = (a_bufs, b_bufs, empty, full, scale_bufs)
    b_descs = (b_desc, b_desc_1)
    schedule = (items, whole, splits, launched, tiles_m, tiles_n, steps, table, factors)
    if TILING.tma_store or TILING.store == "rows":  # TMA's rules hold for the stores of split tiles too
        n = multiple_of(n, TILING.out_vector)
        stride_om = multiple_of(stride_om, TILING.out_vector)
        stride_ob = multiple_of(stride_ob, TILING.out_vector)
    scratch = (workspace, flags)
    output = (out_desc, out, stride_ob, stride_om, stride_on, m, n, out_bufs)
    scales = (scale_a, stride_sam, stride_sak, scale_b, stride_sbn, stride_sbk)
    addends = (alpha, beta, bias, c, stride_cb, stride_cm, stride_cn, scales)
    if TILING.seats != "":
        gl.static_assert(CONSUMERS == 1, "1 consumer")
        gl.warp_specialize(
            [
                (consume, (output, addends, ring, schedule, scratch, seating, 0, TILING)),
                (load, (a_desc, b_descs, a_desc_1, ring, schedule, m, n, scales, seating, TILING)),
                (usher, (flags, own, seating[1])),
            ],
            [1, 1],
            [LOADER, 24],
        )
    elif CONSUMERS == 1:
        gl.warp_specialize(
            [
                (consume, (output, addends, ring, schedule, scratch, seating, 0, TILING)),
                (load, (a_desc, b_descs, a_desc_1, ring, schedule, m, n, scales, seating, TILING)),
            ],
            [1],
            [LOADER],
        )
    elif CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consume, (output, addends, ring, schedule, scratch, seating, 0, TILING)),
                (consume, (output, addends, ring, schedule, scratch, seating, 1, TILING)),
                (load, (a_desc, b_descs, a_desc_1, ring, schedule, m, n, scales, seating, TILING)),
            ],
            [4, 1],
            [REGISTERS, LOADER],
        )
    else:
        gl.static_assert(CONSUMERS == 3, "1, 2 or 3 consumers")
        gl.warp_specialize(
            [
                (consume, (output, addends, ring, schedule, scratch, seating, 0, TILING)),
                (consume, (output, addends, ring, schedule, scratch, seating, 1, TILING)),
                (consume, (output, addends, ring, schedule, scratch, seating, 2, TILING)),
                (load, (a_desc, b_descs, a_desc_1, ring, schedule, m, n, scales, seating, TILING)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, LOADER],
        )
    if TILING.ctas > 1:
        cluster.leave_together()
