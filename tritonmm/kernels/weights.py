"""Weight-only products of few rows on Hopper (sm_90): weights of a byte stream through TMA, and wgmma multiplies them.

What is computed is W @ X^T: the weights W [n, k], of int8 or fp8, are the tall side of the tensor cores, and the
activations X [m, k] the other. The warps of a program are specialised:

    loader       one warp; fills a ring of `num_stages` steps of K of both operands by TMA
    consumers    2 or 3 warpgroups; each reads its own rows of the weights from shared memory straight into the
                 registers that wgmma takes its first operand from, converts them there, and multiplies them by X

so that loads, conversion and products overlap: a slice of K is converted while the one before it is multiplied.
`ring.py` says why the ring neither overwrites what is read nor waits for ever.

Shares. All steps of all tiles lie in one line, tile after tile, and each program takes an equal share of it. With as
many programs as the SMs hold all stream to the end, however many tiles there are; with one for each tile, shares are
whole tiles. A tile that lies in several shares is summed in parts: each leaves its fp32 sums in memory and counts
itself, and the one that counts last adds them up and writes the tile. Nobody waits, so the grid need not be resident as
a whole.

Determinism: the parts are added in the order of K, whoever adds them, so results are bitwise the same from run to run.

Measured on an H200 (burst, Triton 3.6.0, 2026-11-23, autotune/results/h200-weights-6.csv; int8 weights of 28672 x 4096,
8192 x 28672 and 4096 x 4096, geometric means of what is chosen): with 16, 33 and 64 rows of activations and scales of
rows, it is 1.72, 1.59 and 1.51 times as fast as torch's product of bf16 weights, with scales of groups 1.58, 1.43 and
1.31. 64 rows by 4096 x 4096 are as fast as bf16 weights, 11 to 12.5 us. 64 rows by 28672 x 4096 take 36 us in 112 whole
tiles, 45 in 132 equal shares of them, whose parts meet at the end; at the 4.3 TB/s of a copy the weights alone take 27.
"""

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tritonmm.kernels import edges
from tritonmm.kernels.dequantize import dequantized, unit
from tritonmm.kernels.epilogue import split_columns
from tritonmm.kernels.gluon_api import barrier, let_next_grid_start, tma_load, wait_for_previous_grid
from tritonmm.kernels.order import tile_at
from tritonmm.kernels.promoted import computed
from tritonmm.kernels.ring import next_use, operand, release
from tritonmm.kernels.static import Static
from tritonmm.kernels.tile import multiple_of


@dataclass(frozen=True)
class Streaming(Static):
    """Everything static about one kernel: a single compile-time argument.

    block_r, block_c: rows of the weights and of the activations in a tile; slice_k: elements of K that are converted
    while others are multiplied, all of a step but the first; piece_cols, gathered_cols: columns of a consumer's sums
    that are finished and written at a time, and that are added up at a time where parts of a tile meet; resident:
    programs that an SM is to hold; scales: "row", one for each row of weights, "1x1", one for each block_k of its
    elements, or ""; divisor: a power of two that divides the output's lines; edge, rest, all_rows: of fewer
    activations than block_c, rows of the boxes in which they come, of the last one, and of all of them, as `edges.py`
    loads them; or 0.
    """

    block_r: int
    block_c: int
    block_k: int
    slice_k: int
    piece_cols: int
    gathered_cols: int
    num_stages: int
    consumers: int
    resident: int
    dtype: gl.dtype
    w_dtype: gl.dtype
    out_dtype: gl.dtype
    scales: str = ""
    scaled: bool = False
    bias: bool = False
    add_c: bool = False
    divisor: int = 1
    order: str = "row-major"
    along: str = "m"
    edge: int = 0
    rest: int = 0
    all_rows: int = 0

    ctas = 1  # of a program
    a_policy = None
    panel = 64  # elements of X in the 128 bytes that TMA swizzles

    @property
    def rows(self):
        """Rows of weights of a consumer."""
        return self.block_r // self.consumers

    @property
    def slices(self):
        return self.block_k // self.slice_k

    @property
    def sums(self):
        """Layout of a consumer's sums, [rows, block_c]."""
        return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, self.block_c, 16])

    @property
    def read(self):
        """Layout in which a consumer reads and converts a slice of its weights, [rows, slice_k]."""
        return gl.DotOperandLayout(0, self.sums, 2)

    @property
    def w_block(self):
        return [1, self.rows, self.block_k]

    @property
    def x_block(self):
        return [1, self.block_c, self.block_k]

    @property
    def x_box(self):
        return [1, self.edge, self.panel] if self.all_rows else self.x_block

    @property
    def edge_block(self):
        return [1, self.rest, self.panel]

    @property
    def edge_shared(self):
        return gl.NVMMASharedLayout.get_default_for(self.edge_block, self.dtype)

    @property
    def w_shared(self):
        return gl.NVMMASharedLayout.get_default_for(self.w_block, self.w_dtype)

    @property
    def x_shared(self):
        return gl.NVMMASharedLayout.get_default_for(self.x_block, self.dtype)

    @property
    def stage_bytes(self):
        return (self.block_r + 2 * (self.all_rows or self.block_c)) * self.block_k

    @property
    def ahead(self):
        """Whether scales of rows are asked for before the loop over K, which hides their way, for registers in it."""
        return self.scales == "row" and self.consumers == 2

    @property
    def stored(self):
        """Layout of such columns, [rows, cols]: the output's lines lie along rows."""
        lanes = min(32, self.rows // 4)
        return gl.BlockedLayout([4, 1], [lanes, 32 // lanes], [1, 4], [0, 1])

    @property
    def registers(self):
        """Registers a thread at launch: 65,536 shared by the consumers' and the loader's warps, a multiple of 8."""
        return 65_536 // (32 * self.resident * (4 * self.consumers + 4)) // 8 * 8

    @property
    def consumer_registers(self):
        """Registers of a consumer's thread once the loader has given up all but 24 of its own."""
        return (self.registers * (self.consumers + 1) - 24) // self.consumers // 8 * 8


@gluon.jit
def begin_of(program, schedule):
    """The first step of a program's share; the first programs have a step more where there are too few for all."""
    launched, tiles_m, tiles_n, steps, table, factors = schedule
    total = launched * steps
    each = total // gl.num_programs(0)
    return program * each + gl.minimum(program, total - each * gl.num_programs(0))


@gluon.jit
def program_of(step, schedule):
    """The program whose share a step is in."""
    launched, tiles_m, tiles_n, steps, table, factors = schedule
    total = launched * steps
    each = total // gl.num_programs(0)
    more = total - each * gl.num_programs(0)
    return gl.where(step < more * (each + 1), step // (each + 1), more + (step - more * (each + 1)) // each)


@gluon.jit
def work_at(tile, begin, end, schedule):
    """The range of the steps of a tile that lies in the share from begin to end."""
    first = tile * schedule[3]
    return gl.maximum(begin - first, 0), gl.minimum(end - first, schedule[3])


@gluon.jit
def origin(tile, schedule, S: gl.constexpr):
    """The first row of the weights, and of the activations, of a tile at an index of the order."""
    launched, tiles_m, tiles_n, steps, table, factors = schedule
    ORDER: gl.constexpr = S.order
    ALONG: gl.constexpr = S.along
    m, n = tile_at(tile, tiles_m, tiles_n, table, factors, ORDER, ALONG)
    if ORDER == "split-merge":  # far overflow would wrap around to rows of the output
        m, n = gl.minimum(m, tiles_m), gl.minimum(n, tiles_n)
    return n * S.block_r, m * S.block_c


@gluon.jit
def load(a_desc, b_desc, edge_desc, ring, schedule, S: gl.constexpr):
    """The loader: brings both operands of every step of the share into the ring."""
    w_bufs, x_bufs, empty, full = ring
    CONSUMERS: gl.constexpr = S.consumers
    begin = begin_of(gl.program_id(0), schedule)
    end = begin_of(gl.program_id(0) + 1, schedule)
    steps = schedule[3]
    stage = 0
    phase = 1
    wait_for_previous_grid()
    for tile in range(begin // steps, gl.cdiv(end, steps)):
        first, last = work_at(tile, begin, end, schedule)
        row, col = origin(tile, schedule, S)
        for step in range(first, last):
            k = step * S.block_k
            mbarrier.wait(empty.index(stage), phase)
            bar = full.index(stage)
            mbarrier.expect(bar, S.stage_bytes)
            for i in gl.static_range(CONSUMERS):
                tma_load(b_desc, [0, row + i * S.rows, k], bar, w_bufs.index(stage * CONSUMERS + i), None)
            if S.all_rows:  # whose boxes all have rows, as 1 says
                edges.load(a_desc, edge_desc, 0, col, 1, k, bar, x_bufs.index(stage), S)
            else:
                tma_load(a_desc, [0, col, k], bar, x_bufs.index(stage), None)
            stage, phase = next_use(stage, phase, S.num_stages)


@gluon.jit
def converted(w, J: gl.constexpr, S: gl.constexpr):
    """Slice J of a consumer's weights of a step, as wgmma takes it from registers."""
    READ: gl.constexpr = S.read
    return dequantized(w.slice(J * S.slice_k, S.slice_k, 1).load(READ), S.dtype, False)


@gluon.jit
def factors_at(step, row, n, scales, S: gl.constexpr):
    """The scales that the rows of a consumer have for a step, for weights in their units."""
    UNIT: gl.constexpr = unit(S.w_dtype, S.dtype)
    scale_b, stride_sn, stride_sk = scales
    SUMS: gl.constexpr = S.sums
    rows = gl.minimum(row + gl.arange(0, S.rows, gl.SliceLayout(1, SUMS)), n - 1)  # what lies beyond is not written
    return gl.load(scale_b + rows.to(gl.int64) * stride_sn + step.to(gl.int64) * stride_sk) * UNIT


@gluon.jit
def multiply(ring, stage, phase, first, last, row, n, scales, WHO: gl.constexpr, S: gl.constexpr):
    """The consumer's sums over the steps from `first` to `last`, and the ring position after them.

    A slice is converted while the one before it is multiplied, also the first one of the next step: but only converted,
    since ptxas has no registers for operands that are multiplied from one round of the loop into the next.
    """
    w_bufs, x_bufs, empty, full = ring
    SUMS: gl.constexpr = S.sums
    TILE: gl.constexpr = [S.rows, S.block_c]
    SLICES: gl.constexpr = S.slices
    GROUPED: gl.constexpr = S.scales == "1x1"
    acc = gl.zeros(TILE, gl.float32, SUMS)
    total = gl.zeros(TILE, gl.float32, SUMS)
    if GROUPED:
        factors = factors_at(first, row, n, scales, S)
    mbarrier.wait(full.index(stage), phase)
    a = converted(operand(w_bufs.index(stage * S.consumers + WHO), False), 0, S)
    for step in range(first, last):
        w = operand(w_bufs.index(stage * S.consumers + WHO), False)
        x = operand(x_bufs.index(stage), False)
        if GROUPED:
            ahead = factors_at(gl.minimum(step + 1, last - 1), row, n, scales, S)
        for j in gl.static_range(SLICES):
            b = x.slice(j * S.slice_k, S.slice_k, 1).permute((1, 0))
            acc = warpgroup_mma(a, b, acc, is_async=True, use_acc=j > 0 if GROUPED else (step > first) | (j > 0))
            if j > 0:
                acc = warpgroup_mma_wait(1, (acc,))  # the registers of the slice before are free
            if j < SLICES - 1:
                a = converted(w, j + 1, S)
        stage, phase = next_use(stage, phase, S.num_stages)
        mbarrier.wait(full.index(stage), phase, pred=step + 1 < last)
        a = converted(operand(w_bufs.index(stage * S.consumers + WHO), False), 0, S)  # of the last step, for nothing
        acc = warpgroup_mma_wait(0, (acc,))
        barrier()  # all warps are done with the step
        release(empty, stage, True, S)
        if GROUPED:
            total = computed(total + acc * factors[:, None])
            factors = ahead
    return total if GROUPED else acc, stage, phase


@gluon.jit
def row_factors(row, n, scales, WITH_SCALES: gl.constexpr, S: gl.constexpr):
    """What the sums of the consumer's rows of weights are multiplied by, with or without their scales."""
    scale_b, stride_sn, stride_sk = scales
    LAYOUT: gl.constexpr = gl.SliceLayout(1, S.stored)
    UNIT: gl.constexpr = unit(S.w_dtype, S.dtype)
    factors = gl.full([S.rows], UNIT, gl.float32, LAYOUT)
    if WITH_SCALES:
        rows = row + gl.arange(0, S.rows, LAYOUT)
        factors *= gl.load(scale_b + rows.to(gl.int64) * stride_sn, mask=rows < n, other=0.0)
    return factors


@gluon.jit
def finish_piece(x, row, col, output, addends, S: gl.constexpr):
    """Finishes sums, [rows, cols], and writes them to the output from its column `row` and its row `col` on."""
    out, stride_om, stride_on, m, n = output
    alpha, beta, bias, c, stride_cm, stride_cn, factors, scales = addends
    LAYOUT: gl.constexpr = S.stored
    OUT_DTYPE: gl.constexpr = S.out_dtype
    rows = row + gl.arange(0, S.rows, gl.SliceLayout(1, LAYOUT))
    cols = col + gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT))
    inside = (rows < n)[:, None] & (cols < m)[None, :]
    if S.scales == "row" and not S.ahead:
        factors = row_factors(row, n, scales, True, S)
    if S.scales != "1x1":
        x = x * factors[:, None]
    if S.scaled:
        x = x * alpha
    if S.bias:
        x = x + gl.load(bias + rows, mask=rows < n, other=0.0).to(gl.float32)[:, None]
    if S.add_c:
        at = rows.to(gl.int64)[:, None] * stride_cn + cols.to(gl.int64)[None, :] * stride_cm
        x = x + beta * gl.load(c + at, mask=inside, other=0.0).to(gl.float32)
    at = rows.to(gl.int64)[:, None] * stride_on + cols.to(gl.int64)[None, :] * stride_om
    gl.store(out + at, x.to(OUT_DTYPE), mask=inside)


@gluon.jit
def write(acc, row, col, output, addends, S: gl.constexpr):
    """Finishes and writes the consumer's sums of a whole tile."""
    LAYOUT: gl.constexpr = S.stored
    PIECES: gl.constexpr = S.block_c // S.piece_cols
    pieces = split_columns(acc, PIECES, 1)
    for i in gl.static_range(PIECES):
        finish_piece(gl.convert_layout(pieces[i], LAYOUT), row, col + i * S.piece_cols, output, addends, S)


@gluon.jit
def sums_of(part, first, workspace, WHO: gl.constexpr, S: gl.constexpr):
    """Where program `part` leaves the sums of a tile that program `first` begins: a share cuts two tiles at most."""
    slot = (2 * part + (part == first).to(gl.int32)) * S.consumers + WHO
    return workspace + slot.to(gl.int64) * (S.rows * S.block_c)


@gluon.jit
def gather(acc, tile, row, col, schedule, scratch, output, addends, WHO: gl.constexpr, S: gl.constexpr):
    """Leaves the consumer's sums of a part of a tile, and if all others have done so, adds them up and writes them.

    The barrier puts the stores of all threads before the count of one, which releases them; the counts of the others
    are acquired with it.
    """
    workspace, flags = scratch
    SUMS: gl.constexpr = S.sums
    steps = schedule[3]
    first = program_of(tile * steps, schedule)
    last = program_of(tile * steps + steps - 1, schedule)
    rows = gl.arange(0, S.rows, gl.SliceLayout(1, SUMS))
    cols = gl.arange(0, S.block_c, gl.SliceLayout(0, SUMS))
    mine = sums_of(gl.program_id(0), first, workspace, WHO, S)
    gl.store(mine + cols[None, :] * S.rows + rows[:, None], acc, mask=(col + cols < output[3])[None, :])
    barrier()
    flag = flags + tile * S.consumers + WHO
    before = gl.atomic_add(flag, 1, sem="acq_rel", scope="gpu")
    if (before & 0x7FFFFFFF) == last - first:  # the Hopper kernel leaves the top bit in either state
        barrier()
        gl.store(flag, before - (last - first))  # as it was found, for the next launch
        write_parts(first, last, row, col, workspace, output, addends, WHO, S)


@gluon.jit
def write_parts(first, last, row, col, workspace, output, addends, WHO: gl.constexpr, S: gl.constexpr):
    """Adds up, finishes and writes the consumer's sums of a tile that the programs from `first` to `last` share.

    The loads go past L1, which may hold what another tile left at these addresses.
    """
    LAYOUT: gl.constexpr = S.stored
    COLS: gl.constexpr = S.gathered_cols
    SHAPE: gl.constexpr = [S.rows, COLS]
    rows = gl.arange(0, S.rows, gl.SliceLayout(1, LAYOUT))
    for i in gl.static_range(S.block_c // COLS):
        cols = i * COLS + gl.arange(0, COLS, gl.SliceLayout(0, LAYOUT))
        at = cols[None, :] * S.rows + rows[:, None]
        inside = (col + cols < output[3])[None, :]
        total = gl.zeros(SHAPE, gl.float32, LAYOUT)
        for base in range(first, last + 1, 4):  # four parts' loads are in flight together
            for j in gl.static_range(4):
                theirs = sums_of(base + j, first, workspace, WHO, S)
                total += gl.load(theirs + at, mask=inside & (base + j <= last), other=0.0, cache_modifier=".cg")
        finish_piece(total, row, col + i * COLS, output, addends, S)


@gluon.jit
def consume(output, terms, ring, schedule, scratch, scales, WHO: gl.constexpr, S: gl.constexpr):
    """Consumer WHO: multiplies its rows of every tile in the share, and writes them, or leaves them as a part."""
    n = output[4]
    alpha, beta, bias, c, stride_cm, stride_cn = terms
    begin = begin_of(gl.program_id(0), schedule)
    end = begin_of(gl.program_id(0) + 1, schedule)
    steps = schedule[3]
    stage = 0
    phase = 0
    wait_for_previous_grid()
    for tile in range(begin // steps, gl.cdiv(end, steps)):
        first, last = work_at(tile, begin, end, schedule)
        row, col = origin(tile, schedule, S)
        row += WHO * S.rows
        factors = row_factors(row, n, scales, S.ahead, S)
        addends = (alpha, beta, bias, c, stride_cm, stride_cn, factors, scales)
        acc, stage, phase = multiply(ring, stage, phase, first, last, row, n, scales, WHO, S)
        if last - first == steps:
            write(acc, row, col, output, addends, S)
        else:
            gather(acc, tile, row, col, schedule, scratch, output, addends, WHO, S)


RUNTIME_INTEGERS = [
    "stride_om", "stride_cm", "stride_cn", "m", "n", "launched", "tiles_m", "tiles_n", "steps",
    "stride_sn", "stride_sk",
]  # fmt: skip


@gluon.jit(do_not_specialize=RUNTIME_INTEGERS)
def weights_kernel(
    a_desc, b_desc, out, stride_om, stride_on, alpha, beta, bias, c, stride_cm, stride_cn,
    m, n, launched, tiles_m, tiles_n, steps, table, factors, workspace, flags, edge_desc, scale_b, stride_sn, stride_sk,
    S: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """out[m, n] = alpha * sum over k of X[m, k] * W[n, k] * scale + bias[n] + beta * c[m, n], rounded once.

    a_desc, b_desc: descriptors of X, in blocks of block_c rows or boxes, and of W, in blocks of a consumer's rows;
    edge_desc: of X in its last box, where `S` has one. `launched` is
    the order's number of indices for tiles_m x tiles_n, `steps` the K steps of a tile. Grid: at most as many programs
    as there are steps of all tiles. scale_b, fp32, is read at its strides along the rows of W and groups of K.
    workspace: two tiles for each program; flags: one, its lower 31 bits zero, for each index and consumer.
    """
    STAGES: gl.constexpr = S.num_stages
    CONSUMERS: gl.constexpr = S.consumers
    REGISTERS: gl.constexpr = S.consumer_registers
    W_SHARED: gl.constexpr = S.w_shared
    X_SHARED: gl.constexpr = S.x_shared
    BARRIERS: gl.constexpr = mbarrier.MBarrierLayout()
    w_bufs = gl.allocate_shared_memory(S.w_dtype, [STAGES * CONSUMERS] + S.w_block, W_SHARED)
    x_bufs = gl.allocate_shared_memory(S.dtype, [STAGES] + S.x_block, X_SHARED)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIERS)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIERS)
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=CONSUMERS)
        mbarrier.init(full.index(i), count=1)
    fence_async_shared()
    let_next_grid_start()
    n = multiple_of(n, S.divisor)
    stride_om = multiple_of(stride_om, S.divisor)
    ring = (w_bufs, x_bufs, empty, full)
    schedule = (launched, tiles_m, tiles_n, steps, table, factors)
    scratch = (workspace, flags)
    scales = (scale_b, stride_sn, stride_sk)
    output = (out, stride_om, stride_on, m, n)
    terms = (alpha, beta, bias, c, stride_cm, stride_cn)
    if CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consume, (output, terms, ring, schedule, scratch, scales, 0, S)),
                (consume, (output, terms, ring, schedule, scratch, scales, 1, S)),
                (load, (a_desc, b_desc, edge_desc, ring, schedule, S)),
            ],
            [4, 1],
            [REGISTERS, 24],
        )
    else:
        gl.static_assert(CONSUMERS == 3, "2 or 3 consumers")
        gl.warp_specialize(
            [
                (consume, (output, terms, ring, schedule, scratch, scales, 0, S)),
                (consume, (output, terms, ring, schedule, scratch, scales, 1, S)),
                (consume, (output, terms, ring, schedule, scratch, scales, 2, S)),
                (load, (a_desc, b_desc, edge_desc, ring, schedule, S)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, 24],
        )
