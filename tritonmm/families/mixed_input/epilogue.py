"""The mixed-input kernel's epilogue: finishes and writes sums, of a whole tile or of parts of one.

A tile that several programs share is summed in parts, which are added as `device/split_k.py` says:

- reduce-scatter, where each share lies in one tile: its programs wait for each other, then each adds up and writes some
  of the columns.
- last arriver, where equal shares cut tiles anywhere: a part weighs as much as it has K steps, and the last program to
  arrive adds all parts up. No program waits, so the grid need not be resident as a whole.
- exchange, where two programs split the K of a tile of the last round: each stores the half of the columns that the
  other one adds up and writes. Half as many sums as with a reduce-scatter go through memory.
- assist, where a program without a tile in the last round sums the last steps of other programs' tiles: it stores these
  sums, and the others add them to their own.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritonmm.device.columns import halve_columns, split_columns
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
def store_part_subtile(sums, first_m, mine, output, SUBTILE: gl.constexpr, S: gl.constexpr):
    LAYOUT: gl.constexpr = S.sums[SUBTILE]
    rows = gl.arange(0, S.rows, gl.SliceLayout(1, LAYOUT))
    cols = S.starts[SUBTILE] + gl.arange(0, S.subtiles[SUBTILE], gl.SliceLayout(0, LAYOUT))
    gl.store(mine + cols[None, :] * S.rows + rows[:, None], sums, mask=(first_m + cols < output.m)[None, :])


@gluon.jit
def store_part(sums, begins, first_m, workspace, output, WHO: gl.constexpr, S: gl.constexpr):
    """Stores the consumer's sums in the workspace, column after column; `begins`: they have the tile's first step."""
    SUBTILES: gl.constexpr = len(S.subtiles)
    AREA: gl.constexpr = S.rows * S.block_c
    slot = slot_of(gl.program_id(0), begins, S.slots)
    mine = slot_sums(workspace + WHO * AREA, slot, S.consumers * AREA)
    for i in gl.static_range(SUBTILES):
        store_part_subtile(sums[i], first_m, mine, output, i, S)


@gluon.jit
def add_and_write(
    first, last, at, first_n, first_m, workspace, output, epilogue,
    COLS: gl.constexpr, WHO: gl.constexpr, S: gl.constexpr,
):  # fmt: skip
    """Adds up, finishes and writes COLS columns, from `at` on, of the parts of the programs from `first` to `last`."""
    LAYOUT: gl.constexpr = S.stored
    SHAPE: gl.constexpr = [S.rows, COLS]
    rows = gl.arange(0, S.rows, gl.SliceLayout(1, LAYOUT))
    cols = at + unhoisted(gl.arange(0, COLS, gl.SliceLayout(0, LAYOUT)))
    offsets = cols[None, :] * S.rows + rows[:, None]
    inside = (first_m + cols < output.m)[None, :]
    total = gl.zeros(SHAPE, gl.float32, LAYOUT)
    AREA: gl.constexpr = S.rows * S.block_c
    sums = workspace + WHO * AREA
    TOGETHER: gl.constexpr = 2 if S.consumers == 3 else 4  # as many as a thread has registers for
    total = add_parts(total, sums, first, last, offsets, inside, S.consumers * AREA, S.slots, TOGETHER)
    finish_piece(total, first_n, first_m + at, output, epilogue, S)


@gluon.jit
def last_arriver(
    sums, tile, first, last, first_n, first_m, schedule, scratch, output, epilogue,
    WHO: gl.constexpr, S: gl.constexpr,
):  # fmt: skip
    """Stores the consumer's sums of steps `first` to `last` of a tile, and writes the tile if the others are stored."""
    workspace, flags = scratch
    store_part(sums, first == 0, first_m, workspace, output, WHO, S)
    complete, _ = arrive(flags + tile * S.consumers + WHO, first == 0, last - first, schedule.steps)
    if complete:
        write_parts(tile, first_n, first_m, schedule, workspace, output, epilogue, WHO, S)


@gluon.jit
def write_parts(tile, first_n, first_m, schedule, workspace, output, epilogue, WHO: gl.constexpr, S: gl.constexpr):
    """Adds up, finishes and writes the consumer's sums of a tile."""
    first = program_of(tile * schedule.steps, schedule)
    last = program_of(tile * schedule.steps + schedule.steps - 1, schedule)
    COLS: gl.constexpr = S.fixup_cols
    for i in gl.static_range(S.block_c // COLS):
        add_and_write(first, last, i * COLS, first_n, first_m, workspace, output, epilogue, COLS, WHO, S)


@gluon.jit
def reduce_scatter(
    sums, tile, first_n, first_m, schedule, scratch, output, epilogue, WHO: gl.constexpr, S: gl.constexpr
):  # fmt: skip
    """Stores the consumer's sums of a part of a tile, waits for the others, and writes its share of the columns.

    The wait cannot deadlock: the grid is cooperative, and no program has more than one part.
    """
    workspace, flags = scratch
    COLS: gl.constexpr = S.scatter_cols
    splits = schedule.steps * schedule.sharers // schedule.shared_steps
    part = gl.program_id(0) - tile * splits
    store_part(sums, part == 0, first_m, workspace, output, WHO, S)
    arrive_and_wait(flags + tile * S.consumers + WHO, part == 0, splits)
    first = tile * splits
    if S.block_c % COLS:  # the last columns are fewer
        end = gl.minimum(output.m, first_m + S.block_c)
        output = Output(output.at, output.stride_m, output.stride_n, output.first, end, output.n, output.buf)
    for at in range(part * COLS, gl.minimum(S.block_c, output.m - first_m), splits * COLS):
        add_and_write(first, first + splits - 1, at, first_n, first_m, workspace, output, epilogue, COLS, WHO, S)


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
def store_sums(sums, at):
    """Stores sums from the pointer `at` on, in the order of `in_thread_order`."""
    vector = in_thread_order(sums)
    LAYOUT: gl.constexpr = vector.type.layout
    gl.store(at + gl.arange(0, vector.shape[0], LAYOUT), vector)


@gluon.jit
def plus_stored(sums, at):
    """Sums plus those that `store_sums` stored from the pointer `at` on."""
    vector = in_thread_order(sums)
    LAYOUT: gl.constexpr = vector.type.layout
    vector += gl.load(at + gl.arange(0, vector.shape[0], LAYOUT), cache_modifier=".cg")
    return from_thread_order(vector, sums.shape[0], sums.shape[1])


@gluon.jit
def exchange(sums, shared, first_n, first_m, scratch, output, epilogue, WHO: gl.constexpr, S: gl.constexpr):
    """Adds up one half of the columns of a tile whose K two programs split, and writes it. shared: its number among
    such tiles.

    A sum of two parts has the same bits in either order. The wait cannot deadlock: the grid is cooperative, and a
    program's part of such a tile is its last work.
    """
    workspace, flags = scratch
    AREA: gl.constexpr = S.rows * S.block_c // 2
    program = unhoisted(gl.program_id(0))
    part = program % 2
    left, right = halve_columns(sums[0], 1)
    mine = slot_sums(workspace + WHO * AREA, program, S.consumers * AREA)
    if part == 0:
        store_sums(right, mine)
    else:
        store_sums(left, mine)
    arrive_and_wait(flags + shared * S.consumers + WHO, part == 0, 2)
    others = slot_sums(workspace + WHO * AREA, program ^ 1, S.consumers * AREA)
    total = plus_stored(gl.where(part == 0, left, right), others)
    write_columns(total, first_n, first_m + part * (S.block_c // 2), output, epilogue, S)


@gluon.jit
def store_assisted(sums, shared, scratch, WHO: gl.constexpr, S: gl.constexpr):
    """Stores the consumer's sums of the last steps of another program's tile. shared: its number among such tiles."""
    workspace, _ = scratch
    AREA: gl.constexpr = S.rows * S.block_c
    store_sums(sums[0], slot_sums(workspace + WHO * AREA, shared, S.consumers * AREA))


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
