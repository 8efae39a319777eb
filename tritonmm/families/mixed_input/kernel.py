"""Weight-only products on Hopper (sm_90): weights of a byte stream through TMA, and wgmma multiplies them.

What is computed is W @ X^T: the weights W [n, k], of int8 or fp8, are the tall side of the tensor cores, and the
activations X [m, k] the other. The warps of a program are specialised:

    loader       one warp; fills a ring of `num_stages` steps of K of both operands by TMA, and with the scales of
                 their groups, if they have any, by cp.async
    consumers    2 or 3 warpgroups; each reads its own rows of the weights from shared memory straight into the
                 registers that wgmma takes its first operand from, converts them there, and multiplies them by X

so that loads, conversion and products overlap, as `mainloop.py` has it, with scales of groups of K too.
`pipeline.py` says why the ring neither overwrites what is read nor waits for ever.

TMA fills what lies outside of a tensor with zeros, and takes longer for it than for reading, so tiles are to have few
more activations than there are. Tensors have powers of two: a tile has one or two strips of X, 64 and 8 for 72 rows,
with descriptors, buffers and sums of their own. Both are multiplied by the same slice in registers, and the second one
costs what its rows do: of the time in which wgmma takes its first operand from there it shows nothing.

Programs have whole tiles, shares of them, or both: `scheduler.py`. A tile that lies in several shares is summed in
parts; `epilogue.py` says how they meet.

Determinism: the parts are added in the order of K, whoever adds them, so results are bitwise the same from run to run.

Measured on an H200 (burst, Triton 3.6.0, 2026-11-23, h200-weights-13.csv in autotune/results; int8 weights of 28672 x
4096, 8192 x 28672 and 4096 x 4096, geometric means of what is chosen): with 16, 33, 64 and 128 rows of activations and
scales of rows, it is 1.76, 1.71, 1.57 and 1.20 times as fast as torch's product of bf16 weights, with scales of groups
1.72, 1.66, 1.43 and 1.09. 64 rows by 28672 x 4096 take 36 us in 112 whole tiles, 45 in 132 equal shares of them, whose
parts meet at the end (h200-weights-6.csv); at the 4.3 TB/s of a copy the weights alone take 27. 2048 rows are .97 times
as fast as with torch, with groups .88: a step of 256 columns then takes what its wgmma takes, as cuBLAS's do, and a
tile 1.1 us longer than cuBLAS's to be written (2048 x 8448 by 1024 to 16384, h200-weights-k.csv).
"""

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
)

from tritonmm.device.gluon_compat import copy_async, let_next_grid_start, tma_load, unhoisted, wait_for_previous_grid
from tritonmm.device.numeric import multiple_of
from tritonmm.device.pipeline import Pipelined, next_use
from tritonmm.families.mixed_input.epilogue import last_arriver, reduce_scatter, row_factors, write
from tritonmm.families.mixed_input.mainloop import multiply
from tritonmm.families.mixed_input.scheduler import first_row, line_of, origin, rounds_of, work_at


@dataclass(frozen=True)
class Streaming(Pipelined):
    """Everything static about one kernel: a single compile-time argument.

    block_r, strips: rows of the weights and of the activations in a tile, these in one or two powers of two, which have
    buffers and sums of their own; slice_k: elements of K that are converted while others are multiplied, all of a step
    but the first; piece_cols: columns of a consumer's sums that are finished
    and written at a time; meeting: where programs share a tile, "share", each adds up some of it, share_cols columns at
    a time, or "gather", the last adds it up, gathered_cols at a time; else ""; in_rounds: whether programs have whole
    tiles before their shares; resident: programs that an SM is to hold; scales: "row", one for each row of weights,
    "group", one for each of the `groups` of a step, 1 or 2, or ""; all_groups: those of K, where a step has 2;
    rescales: whether one accumulator is scaled from group to group; divisor: a
    power of two that divides the output's lines; shifts: whether the last tile of activations begins earlier, so that
    all of its rows are there.
    """

    block_r: int
    strips: tuple
    block_k: int
    slice_k: int
    piece_cols: int
    meeting: str
    in_rounds: bool
    gathered_cols: int
    share_cols: int
    num_stages: int
    consumers: int
    resident: int
    dtype: gl.dtype
    w_dtype: gl.dtype
    out_dtype: gl.dtype
    scales: str = ""
    groups: int = 0
    all_groups: int = 0
    rescales: bool = False
    scaled: bool = False
    bias: bool = False
    add_c: bool = False
    divisor: int = 1
    order: str = "row-major"
    along: str = "m"
    shifts: bool = False

    ctas = 1  # of a program

    @property
    def rows(self):
        """Rows of weights of a consumer."""
        return self.block_r // self.consumers

    @property
    def slices(self):
        return self.block_k // self.slice_k

    @property
    def slots(self):
        """Slots of a program's partial sums: an equal share of all tiles may end one tile and begin another."""
        return 2 if self.meeting == "gather" else 1

    @property
    def block_c(self):
        return sum(self.strips)

    @property
    def starts(self):
        """The first of each strip's columns."""
        return tuple(sum(self.strips[:i]) for i in range(len(self.strips)))

    @property
    def sums(self):
        """Layouts of a consumer's sums, [rows, strip], a strip each."""
        return tuple(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, strip, 16]) for strip in self.strips)

    @property
    def reads(self):
        """Layouts in which a consumer's slice of weights, [rows, slice_k], is multiplied by each strip: all alike."""
        return tuple(gl.DotOperandLayout(0, sums, 2) for sums in self.sums)

    @property
    def w_block(self):
        return [1, self.rows, self.block_k]

    @property
    def x_blocks(self):
        return tuple([1, strip, self.block_k] for strip in self.strips)

    @property
    def w_shared(self):
        return gl.NVMMASharedLayout.get_default_for(self.w_block, self.w_dtype)

    @property
    def x_shared(self):
        return tuple(gl.NVMMASharedLayout.get_default_for(block, self.dtype) for block in self.x_blocks)

    @property
    def stage_bytes(self):
        return (self.block_r + 2 * self.block_c) * self.block_k

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
    def loader_registers(self):
        """Registers of a loader's thread: it has addresses of scales, or few."""
        return 48 if self.grouped else 24

    @property
    def grouped(self):
        """Whether each step of K has scales of its own."""
        return self.groups > 0


@gluon.jit
def fetch_scales(stage, step, row, n, scales, ring, S: gl.constexpr):
    """The loader starts to copy the scales of a step's groups into a stage of the ring.

    `full` counts each of its threads once the thread's copies are there.
    """
    w_bufs, x_bufs, scale_bufs, empty, full = ring
    scale_b, stride_sn, stride_sk = scales
    GROUPS: gl.constexpr = S.groups
    CONSUMERS: gl.constexpr = S.consumers
    LAYOUT: gl.constexpr = S.scale_layout
    for who in gl.static_range(CONSUMERS):
        rows = gl.minimum(row + who * S.rows + gl.arange(0, S.rows, LAYOUT), n - 1)  # what lies beyond is not written
        for i in gl.static_range(GROUPS):
            group = step if GROUPS == 1 else gl.minimum(step * GROUPS + i, S.all_groups - 1)
            at = scale_b + group.to(gl.int64) * stride_sk + rows.to(gl.int64) * stride_sn
            copy_async(scale_bufs.index((stage * CONSUMERS + who) * GROUPS + i), at)
    async_copy.mbarrier_arrive(full.index(stage), increment_count=False)


@gluon.jit
def load(a_descs, b_desc, m, n, ring, schedule, scales, S: gl.constexpr):
    """The loader: brings both operands of every step of the share into the ring."""
    w_bufs, x_bufs, scale_bufs, empty, full = ring
    CONSUMERS: gl.constexpr = S.consumers
    STRIPS: gl.constexpr = len(S.strips)
    at, end = line_of(schedule, S)
    stage = 0
    phase = 1
    wait_for_previous_grid()
    while at < end:
        tile, first, last, stride, at = work_at(at, end, schedule, S)
        row, col = origin(tile, schedule, S)
        col = first_row(col, m, S)
        for step in range(first, unhoisted(last), stride):
            k = step * S.block_k
            mbarrier.wait(empty.index(stage), phase)
            bar = full.index(stage)
            mbarrier.expect(bar, S.stage_bytes)
            for i in gl.static_range(CONSUMERS):
                tma_load(b_desc, [0, row + i * S.rows, k], bar, w_bufs.index(stage * CONSUMERS + i))
            for i in gl.static_range(STRIPS):
                tma_load(a_descs[i], [0, col + S.starts[i], k], bar, x_bufs[i].index(stage))
            if S.groups:
                fetch_scales(stage, step, row, n, scales, ring, S)
            stage, phase = next_use(stage, phase, S.num_stages)


@gluon.jit
def consume_tile(
    at, end, stage, phase, output, terms, ring, schedule, scratch, scales, WHO: gl.constexpr, S: gl.constexpr
):  # fmt: skip
    """Consumer WHO's part of the tile at `at`: where the share goes on, and the ring position."""
    out, stride_om, stride_on, m, n = output
    alpha, beta, bias, c, stride_cm, stride_cn = terms
    tile, first, last, stride, at = work_at(at, end, schedule, S)
    row, col = origin(tile, schedule, S)
    row += WHO * S.rows
    output = (out, stride_om, stride_on, col, m, n)
    col = first_row(col, m, S)
    factors = row_factors(row, n, scales, S.ahead, S)
    addends = (alpha, beta, bias, c, stride_cm, stride_cn, factors, scales)
    sums, stage, phase = multiply(ring, stage, phase, first, last, stride, WHO, S)
    if S.meeting == "share":
        reduce_scatter(sums, tile, row, col, schedule, scratch, output, addends, WHO, S)
    elif S.meeting == "gather":
        if last - first == schedule[3]:
            write(sums, row, col, output, addends, S)
        else:
            shared = tile - rounds_of(schedule, S) * gl.num_programs(0)
            last_arriver(sums, shared, first, last, row, col, schedule, scratch, output, addends, WHO, S)
    else:
        write(sums, row, col, output, addends, S)
    return at, stage, phase


@gluon.jit
def consume(output, terms, ring, schedule, scratch, scales, WHO: gl.constexpr, S: gl.constexpr):
    """Consumer WHO: multiplies its rows of every tile in the share, and writes them, or leaves them as a part."""
    at, end = line_of(schedule, S)
    stage = 0
    phase = 0
    wait_for_previous_grid()
    if S.meeting == "share":  # which lies in one tile
        consume_tile(at, end, stage, phase, output, terms, ring, schedule, scratch, scales, WHO, S)
    else:
        while at < end:
            at, stage, phase = consume_tile(
                at, end, stage, phase, output, terms, ring, schedule, scratch, scales, WHO, S
            )  # fmt: skip


@gluon.jit
def allocate_x(STRIP: gl.constexpr, S: gl.constexpr):
    """The ring's buffers for strip STRIP of X."""
    SHAPE: gl.constexpr = [S.num_stages] + S.x_blocks[STRIP]
    SHARED: gl.constexpr = S.x_shared[STRIP]
    return gl.allocate_shared_memory(S.dtype, SHAPE, SHARED)


RUNTIME_INTEGERS = [
    "stride_om", "stride_cm", "stride_cn", "m", "n", "tiles_m", "tiles_n", "tiles", "steps",
    "shared_steps", "sharers", "stride_sn", "stride_sk",
]  # fmt: skip


@gluon.jit(do_not_specialize=RUNTIME_INTEGERS)
def weights_kernel(
    a_desc, a_desc_1, b_desc, out, stride_om, stride_on, alpha, beta, bias, c, stride_cm, stride_cn,
    m, n, tiles_m, tiles_n, tiles, steps, shared_steps, sharers, table, factors, workspace, flags,
    scale_b, stride_sn, stride_sk, S: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """out[m, n] = alpha * sum over k of X[m, k] * W[n, k] * scale + bias[n] + beta * c[m, n], rounded once.

    a_desc, a_desc_1, b_desc: descriptors of X, in blocks of each strip, and of W, in blocks of a consumer's rows.
    `steps` are the K steps of one of the `tiles` of the order. Whole ones go to the programs in turn; of those that are
    shared `sharers` programs take `shared_steps`, in lowest terms. Grid: as many programs as take all tiles, none
    without a step. scale_b, fp32, is read at its strides along the rows of W and groups of K. workspace: two tiles for
    each program that gathers parts, one for each that adds up a share; flags: one, its lower 31 bits zero, for each
    index and consumer.
    """
    STAGES: gl.constexpr = S.num_stages
    CONSUMERS: gl.constexpr = S.consumers
    REGISTERS: gl.constexpr = S.consumer_registers
    LOADER: gl.constexpr = S.loader_registers
    W_SHARED: gl.constexpr = S.w_shared
    STRIPS: gl.constexpr = len(S.strips)
    BARRIERS: gl.constexpr = mbarrier.MBarrierLayout()
    w_bufs = gl.allocate_shared_memory(S.w_dtype, [STAGES * CONSUMERS] + S.w_block, W_SHARED)
    x_bufs = ()
    for i in gl.static_range(STRIPS):
        x_bufs += (allocate_x(i, S),)
    scale_bufs = ()
    if S.groups:
        FLAT: gl.constexpr = S.flat_shared
        scale_bufs = gl.allocate_shared_memory(gl.float32, [STAGES * CONSUMERS * S.groups, S.rows], FLAT)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIERS)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIERS)
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=CONSUMERS)
        mbarrier.init(full.index(i), count=S.fills)
    fence_async_shared()
    let_next_grid_start()
    n = multiple_of(n, S.divisor)
    stride_om = multiple_of(stride_om, S.divisor)
    a_descs = (a_desc, a_desc_1)
    ring = (w_bufs, x_bufs, scale_bufs, empty, full)
    schedule = (tiles_m, tiles_n, tiles, steps, shared_steps, sharers, table, factors)
    scratch = (workspace, flags)
    scales = (scale_b, stride_sn, stride_sk)
    output = (out, stride_om, stride_on, m, n)
    terms = (alpha, beta, bias, c, stride_cm, stride_cn)
    if CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consume, (output, terms, ring, schedule, scratch, scales, 0, S)),
                (consume, (output, terms, ring, schedule, scratch, scales, 1, S)),
                (load, (a_descs, b_desc, m, n, ring, schedule, scales, S)),
            ],
            [4, 1],
            [REGISTERS, LOADER],
        )
    else:
        gl.static_assert(CONSUMERS == 3, "2 or 3 consumers")
        gl.warp_specialize(
            [
                (consume, (output, terms, ring, schedule, scratch, scales, 0, S)),
                (consume, (output, terms, ring, schedule, scratch, scales, 1, S)),
                (consume, (output, terms, ring, schedule, scratch, scales, 2, S)),
                (load, (a_descs, b_desc, m, n, ring, schedule, scales, S)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, LOADER],
        )
