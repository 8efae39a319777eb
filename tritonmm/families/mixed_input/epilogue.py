"""The mixed-input kernel's epilogue: finishes and writes sums, of a whole tile or of parts of one.

A tile that several programs share is summed in parts, which are added as `device/split_k.py` says:

- reduce-scatter, where each share lies in one tile: its programs wait for each other, and each adds up and writes some
  pieces of the columns. It keeps its sums of these pieces in registers, and stores its sums of all other columns.
- exchange, where two programs split the K of a tile of the last round: a reduce-scatter of two parts.
- last arriver, where equal shares cut tiles anywhere: a part weighs as much as it has K steps, and the last program to
  arrive adds all parts up. No program waits, so the grid need not be resident as a whole.
- assist, where a program without a tile in the last round sums the last steps of other programs' tiles: it stores these
  sums, and the others add them to their own.

Sums are stored in the order of threads, 16 bytes of a thread at a time. In the layout of wgmma a thread has 4 bytes of
a column at a time, and needs four times as many store instructions.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritonmm.device.columns import split_columns
from tritonmm.device.epilogue import plus_c, scaled_plus_bias
from tritonmm.device.gluon_compat import unhoisted
from tritonmm.device.split_k import add_parts, arrive, arrive_and_wait, arrive_at_all, slot_of, slot_sums
from tritonmm.families.mixed_input.scheduler import assistants, program_of, tail_of


class Scales(NamedTuple):
    """fp32 scales of the rows of the weights, for each group of K."""

    at: Any  # pointer
    stride_n: Any  # along the rows of the weights
    stride_k: Any  # along the groups of K


class Output(NamedTuple):
    """The output [m, n]."""

    at: Any  # pointer
    stride_m: Any
    stride_n: Any
    first: Any  # the first row that belongs to this tile; rows before it are another tile's
    m: Any
    n: Any
    buf: Any  # shared memory of the consumer for a piece, see `MixedInputSpec.rounds_first`


class Epilogue(NamedTuple):
    """What is applied to sums before they are rounded."""

    alpha: Any
    beta: Any
    bias: Any  # pointer, or None
    c: Any  # pointer, or None
    stride_cm: Any
    stride_cn: Any
    factors: Any  # of the consumer's rows of weights, see `row_factors`
    scales: Any  # Scales


@gluon.jit
def row_factors(first_n, n, scales, LAYOUT: gl.constexpr, WITH_SCALES: gl.constexpr, S: gl.constexpr):
    """Factors of the sums of the consumer's rows of weights: their units, and their scales if WITH_SCALES."""
    UNIT: gl.constexpr = S.unit
    factors = gl.full([S.rows], UNIT, gl.float32, LAYOUT)
    if WITH_SCALES:
        rows = first_n + gl.arange(0, S.rows, LAYOUT)
        factors *= gl.load(scales.at + rows.to(gl.int64) * scales.stride_n, mask=rows < n, other=0.0)
    return factors


@gluon.jit
def scale_and_add_bias(x, first_n, output, epilogue, S: gl.constexpr):
    """Sums, [rows, cols], multiplied by the scales of rows and by alpha, plus the bias."""
    LAYOUT: gl.constexpr = gl.SliceLayout(1, x.type.layout)
    scale = None
    if not S.block_scaled:
        if S.scales == "row" and not S.ahead:
            factors = row_factors(first_n, output.n, epilogue.scales, LAYOUT, True, S)
        else:
            factors = gl.convert_layout(epilogue.factors, LAYOUT)
        scale = factors[:, None]
    added = None
    if S.bias:
        rows = first_n + gl.arange(0, S.rows, LAYOUT)
        added = gl.load(epilogue.bias + rows, mask=rows < output.n, other=0.0).to(gl.float32)[:, None]
    return scaled_plus_bias(x, None, scale, epilogue.alpha if S.scaled else None, added)


@gluon.jit
def finish_piece(x, first_n, first_m, output, epilogue, S: gl.constexpr):
    """Finishes sums, [rows, cols], and writes them to the output from its row first_m and its column first_n on: cols
    are rows of the output. What is rounded first is finished already.

    Rows of the output before `output.first` are another tile's, and its parts may be added up in another order.
    """
    LAYOUT: gl.constexpr = S.stored
    OUT_DTYPE: gl.constexpr = S.out_dtype
    rows = first_n + gl.arange(0, S.rows, gl.SliceLayout(1, LAYOUT))
    cols = first_m + gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT))
    inside = (rows < output.n)[:, None] & (cols < output.m)[None, :]
    if S.shifts:
        inside &= (cols >= output.first)[None, :]
    if not S.rounds_first:
        x = scale_and_add_bias(x, first_n, output, epilogue, S)
    if S.add_c:
        at = rows.to(gl.int64)[:, None] * epilogue.stride_cn + cols.to(gl.int64)[None, :] * epilogue.stride_cm
        x = plus_c(x, epilogue.beta, gl.load(epilogue.c + at, mask=inside, other=0.0))
    at = rows.to(gl.int64)[:, None] * output.stride_n + cols.to(gl.int64)[None, :] * output.stride_m
    gl.store(output.at + at, x.to(OUT_DTYPE), mask=inside)


@gluon.jit
def write_columns(sums, first_n, first_m, output, epilogue, S: gl.constexpr):
    """Finishes and writes columns of the consumer's sums, the first of which is row first_m of the activations."""
    LAYOUT: gl.constexpr = S.stored
    OUT_DTYPE: gl.constexpr = S.out_dtype
    COLS: gl.constexpr = min(S.piece_cols, sums.shape[1])
    PIECES: gl.constexpr = sums.shape[1] // COLS
    pieces = split_columns(sums, PIECES, 1)
    for i in gl.static_range(PIECES):
        x = pieces[i]
        if S.rounds_first:
            buf = output.buf.slice(0, COLS, 1)
            buf.store(scale_and_add_bias(x, first_n, output, epilogue, S).to(OUT_DTYPE))
            x = buf.load(LAYOUT)
        else:
            x = gl.convert_layout(x, LAYOUT)
        finish_piece(x, first_n, unhoisted(first_m + i * COLS), output, epilogue, S)


@gluon.jit
def write(sums, first_n, first_m, output, epilogue, S: gl.constexpr):
    """Finishes and writes the consumer's sums of a whole tile."""
    SUBTILES: gl.constexpr = len(S.subtiles)
    for i in gl.static_range(SUBTILES):
        write_columns(sums[i], first_n, first_m + S.starts[i], output, epilogue, S)


@gluon.jit
def in_thread_order(x):
    """Sums, [rows, cols], as a vector of which a thread has four neighbours at a time: 16 bytes. No data moves."""
    ROWS: gl.constexpr = x.shape[0]
    COLS: gl.constexpr = x.shape[1]
    x = x.reshape(ROWS // 64, 4, 2, 8, COLS // 8, 4, 2)  # row: block, warp, half, lane; column: block, lane, half
    return x.permute(0, 4, 1, 3, 5, 2, 6).reshape(ROWS * COLS)


@gluon.jit
def from_thread_order(x, ROWS: gl.constexpr, COLS: gl.constexpr):
    """The inverse of `in_thread_order`, [rows, cols]."""
    x = x.reshape(ROWS // 64, COLS // 8, 4, 8, 4, 2, 2).permute(0, 2, 5, 3, 1, 4, 6)
    return x.reshape(ROWS, COLS)


@gluon.jit
def store_sums(sums, at, needed):
    """Stores sums from the pointer `at` on, in the order of `in_thread_order`, if they are `needed`.

    That is a mask: behind a branch, LLVM computes what the stores share ahead of all partitions, with Triton 3.9.
    """
    vector = in_thread_order(sums)
    LAYOUT: gl.constexpr = vector.type.layout
    gl.store(at + gl.arange(0, vector.shape[0], LAYOUT), vector, mask=needed)


@gluon.jit
def plus_stored(sums, at):
    """Sums plus those that `store_sums` stored from the pointer `at` on."""
    vector = in_thread_order(sums)
    LAYOUT: gl.constexpr = vector.type.layout
    vector += gl.load(at + gl.arange(0, vector.shape[0], LAYOUT), cache_modifier=".cg")
    return from_thread_order(vector, sums.shape[0], sums.shape[1])


@gluon.jit
def reduce_scatter(sums, shared, first_n, first_m, scratch, output, epilogue, WHO: gl.constexpr, S: gl.constexpr):
    """Stores the consumer's sums of a part of a tile, waits for the others, and writes its share of the pieces. shared:
    the tile's number among those that are shared.

    The programs `shared * S.parts` and following share it. Each keeps the sums of its own pieces in registers. The wait
    cannot deadlock: the grid is cooperative, and a program's part of such a tile is its last work.
    """
    workspace, flags = scratch
    PARTS: gl.constexpr = S.parts
    SUBTILES: gl.constexpr = len(S.subtiles)
    AREA: gl.constexpr = S.rows * S.block_c
    program = unhoisted(gl.program_id(0))
    part = program % PARTS
    mine = slot_sums(workspace + WHO * AREA, program, S.consumers * AREA)
    kept = ()
    for i in gl.static_range(SUBTILES):
        kept += (store_others(sums[i], part, first_m, mine, output, i, S),)
    arrive_and_wait(flags + shared * S.consumers + WHO, part == 0, PARTS)
    for i in gl.static_range(SUBTILES):
        add_up(kept[i], program, part, first_n, first_m, workspace, output, epilogue, i, WHO, S)


@gluon.jit
def store_others(sums, part, first_m, mine, output, SUBTILE: gl.constexpr, S: gl.constexpr):
    """Stores the pieces of a subtile that other programs add up, and returns a tuple of the pieces that this one adds
    up."""
    PIECES: gl.constexpr = S.pieces[SUBTILE]
    ROUNDS: gl.constexpr = (PIECES + S.parts - 1) // S.parts
    pieces = split_columns(sums, PIECES, 1)
    kept = ()
    for i in gl.static_range(ROUNDS):
        kept += (store_round(pieces, part, first_m, mine, output, i, SUBTILE, S),)
    return kept


@gluon.jit
def store_round(
    pieces, part, first_m, mine, output, ROUND: gl.constexpr, SUBTILE: gl.constexpr, S: gl.constexpr
):  # fmt: skip
    """Stores a piece for each other program, and returns the piece that this program adds up."""
    FIRST: gl.constexpr = ROUND * S.parts
    COUNT: gl.constexpr = min(S.parts, len(pieces) - FIRST)
    COLS: gl.constexpr = pieces[0].shape[1]
    own = pieces[FIRST]
    for i in gl.static_range(COUNT):
        first = S.starts[SUBTILE] + (FIRST + i) * COLS
        store_sums(pieces[FIRST + i], mine + first * S.rows, (part != i) & (first_m + first < output.m))
        if i > 0:
            own = gl.where(part == i, pieces[FIRST + i], own)
    return own


@gluon.jit
def add_up(
    kept, program, part, first_n, first_m, workspace, output, epilogue,
    SUBTILE: gl.constexpr, WHO: gl.constexpr, S: gl.constexpr,
):  # fmt: skip
    """Adds up, finishes and writes this program's pieces of a subtile."""
    ROUNDS: gl.constexpr = len(kept)
    COLS: gl.constexpr = kept[0].shape[1]
    AREA: gl.constexpr = S.rows * S.block_c
    for i in gl.static_range(ROUNDS):
        piece = i * S.parts + part
        first = S.starts[SUBTILE] + piece * COLS
        if (piece < S.pieces[SUBTILE]) & (first_m + first < output.m):
            sums = workspace + WHO * AREA + first * S.rows
            total = plus_parts(kept[i], sums, program - part, part, S.consumers * AREA, S.parts)
            write_columns(total, first_n, first_m + first, output, epilogue, S)


@gluon.jit
def plus_parts(own, sums, first, part, STRIDE: gl.constexpr, PARTS: gl.constexpr):
    """The sum of PARTS parts of a piece in the order of K: this program's `own` one, and those that the others of the
    programs from `first` on stored at `sums` in their slots."""
    ROWS: gl.constexpr = own.shape[0]
    COLS: gl.constexpr = own.shape[1]
    if PARTS == 2:  # either order has the same bits
        total = plus_stored(own, slot_sums(sums, first + 1 - part, STRIDE))
    else:
        vector = in_thread_order(own)
        LAYOUT: gl.constexpr = vector.type.layout
        TOGETHER: gl.constexpr = min(PARTS, max(1, 8192 // (ROWS * COLS)), 4)  # loads in flight: registers
        at = gl.arange(0, ROWS * COLS, LAYOUT)
        found = gl.zeros_like(vector)
        for base in range(0, PARTS, TOGETHER):
            for i in gl.static_range(TOGETHER):
                other = base + i
                there = (other != part) & (other < PARTS)
                x = gl.load(slot_sums(sums, first + other, STRIDE) + at, mask=there, other=0.0, cache_modifier=".cg")
                found += gl.where(other == part, vector, x)
        total = from_thread_order(found, ROWS, COLS)
    return total


@gluon.jit
def last_arriver(
    sums, tile, first, last, first_n, first_m, schedule, scratch, output, epilogue,
    WHO: gl.constexpr, S: gl.constexpr,
):  # fmt: skip
    """Stores the consumer's sums of steps `first` to `last` of a tile, and writes the tile if the others are stored."""
    workspace, flags = scratch
    AREA: gl.constexpr = S.rows * S.block_c
    PIECES: gl.constexpr = S.pieces[0]
    COLS: gl.constexpr = S.block_c // PIECES
    slot = slot_of(gl.program_id(0), first == 0, S.slots)
    mine = slot_sums(workspace + WHO * AREA, slot, S.consumers * AREA)
    pieces = split_columns(sums[0], PIECES, 1)
    for i in gl.static_range(PIECES):
        store_sums(pieces[i], mine + i * COLS * S.rows, first_m + i * COLS < output.m)
    complete, _ = arrive(flags + tile * S.consumers + WHO, first == 0, last - first, schedule.steps)
    if complete:
        write_parts(pieces[0], tile, first_n, first_m, schedule, workspace, output, epilogue, WHO, S)


@gluon.jit
def write_parts(
    like, tile, first_n, first_m, schedule, workspace, output, epilogue, WHO: gl.constexpr, S: gl.constexpr
):  # fmt: skip
    """Adds up, finishes and writes the consumer's sums of a tile, in pieces of the shape and layout of `like`."""
    first = program_of(tile * schedule.steps, schedule)
    last = program_of(tile * schedule.steps + schedule.steps - 1, schedule)
    COLS: gl.constexpr = like.shape[1]
    PIECES: gl.constexpr = S.pieces[0]
    AREA: gl.constexpr = S.rows * S.block_c
    TOGETHER: gl.constexpr = 2 if S.consumers == 3 else 4  # as many parts as a thread has registers for
    nothing = gl.zeros_like(in_thread_order(like))
    LAYOUT: gl.constexpr = nothing.type.layout
    for i in gl.static_range(PIECES):
        if first_m + i * COLS < output.m:
            sums = workspace + WHO * AREA + i * COLS * S.rows
            at = gl.arange(0, S.rows * COLS, LAYOUT)
            total = add_parts(nothing, sums, first, last, at, True, S.consumers * AREA, S.slots, TOGETHER)
            total = from_thread_order(total, S.rows, COLS)
            write_columns(total, first_n, unhoisted(first_m + i * COLS), output, epilogue, S)


@gluon.jit
def store_assisted(sums, shared, scratch, WHO: gl.constexpr, S: gl.constexpr):
    """Stores the consumer's sums of the last steps of another program's tile. shared: its number among such tiles."""
    workspace, _ = scratch
    AREA: gl.constexpr = S.rows * S.block_c
    store_sums(sums[0], slot_sums(workspace + WHO * AREA, shared, S.consumers * AREA), True)


@gluon.jit
def end_assistance(schedule, scratch, WHO: gl.constexpr, S: gl.constexpr):
    """Counts the consumer's parts of all tiles that its program assists, if any, with one fence for all."""
    _, flags = scratch
    tail = tail_of(schedule, S)
    first = gl.program_id(0) - tail
    if first >= 0:
        arrive_at_all(flags + WHO, first, tail, assistants(schedule, S), S.consumers)


@gluon.jit
def write_assisted(
    sums, is_part, shared, first_n, first_m, scratch, output, epilogue, WHO: gl.constexpr, S: gl.constexpr
):  # fmt: skip
    """Writes a tile of which the consumer has the first steps' sums, or all. If it `is_part`, the sums that another
    program stored are added.

    The wait cannot deadlock: the grid is cooperative, and a program that assists waits for nobody.
    """
    workspace, flags = scratch
    AREA: gl.constexpr = S.rows * S.block_c
    ROWS: gl.constexpr = sums[0].shape[0]
    COLS: gl.constexpr = sums[0].shape[1]
    total = from_thread_order(in_thread_order(sums[0]), ROWS, COLS)  # has the layout of plus_stored's result
    if is_part:
        arrive_and_wait(flags + shared * S.consumers + WHO, True, 2)
        total = plus_stored(total, slot_sums(workspace + WHO * AREA, shared, S.consumers * AREA))
    write_columns(total, first_n, first_m, output, epilogue, S)
