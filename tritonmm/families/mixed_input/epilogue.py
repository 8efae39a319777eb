"""The mixed-input kernel's epilogue: finishes and writes sums, of a whole tile or of parts of one.

A tile that several programs share is summed in parts, which are added as `device/split_k.py` says. Where each share
lies in one tile, its programs reduce and scatter: each adds up and writes some of the columns. Where equal shares cut
tiles anywhere, a part weighs as much as it has K steps, and the last program to arrive adds all parts up.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritonmm.device.columns import split_columns
from tritonmm.device.dequantize import unit
from tritonmm.device.gluon_compat import unhoisted
from tritonmm.device.split_k import add_parts, arrive, arrive_and_wait, slot_of, slot_sums
from tritonmm.families.mixed_input.scheduler import program_of


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
    """Finishes sums, [rows, cols], and writes them to the output from its column `row` and its row `col` on.

    Its rows before `first` are another tile's, whose sums may be added up in other parts.
    """
    out, stride_om, stride_on, first, m, n = output
    alpha, beta, bias, c, stride_cm, stride_cn, factors, scales = addends
    LAYOUT: gl.constexpr = S.stored
    OUT_DTYPE: gl.constexpr = S.out_dtype
    rows = row + gl.arange(0, S.rows, gl.SliceLayout(1, LAYOUT))
    cols = col + gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT))
    inside = (rows < n)[:, None] & (cols < m)[None, :]
    if S.shifts:
        inside &= (cols >= first)[None, :]
    if S.scales == "row" and not S.ahead:
        factors = row_factors(row, n, scales, True, S)
    if S.scales != "group":
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
def write_strip(sums, row, col, output, addends, STRIP: gl.constexpr, S: gl.constexpr):
    LAYOUT: gl.constexpr = S.stored
    COLS: gl.constexpr = min(S.piece_cols, S.strips[STRIP])
    PIECES: gl.constexpr = S.strips[STRIP] // COLS
    pieces = split_columns(sums, PIECES, 1)
    for i in gl.static_range(PIECES):
        finish_piece(gl.convert_layout(pieces[i], LAYOUT), row, unhoisted(col + i * COLS), output, addends, S)


@gluon.jit
def write(sums, row, col, output, addends, S: gl.constexpr):
    """Finishes and writes the consumer's sums of a whole tile."""
    STRIPS: gl.constexpr = len(S.strips)
    for i in gl.static_range(STRIPS):
        write_strip(sums[i], row, col + S.starts[i], output, addends, i, S)


@gluon.jit
def store_part_strip(sums, col, mine, output, STRIP: gl.constexpr, S: gl.constexpr):
    out, stride_om, stride_on, origin, m, n = output
    LAYOUT: gl.constexpr = S.sums[STRIP]
    rows = gl.arange(0, S.rows, gl.SliceLayout(1, LAYOUT))
    cols = S.starts[STRIP] + gl.arange(0, S.strips[STRIP], gl.SliceLayout(0, LAYOUT))
    gl.store(mine + cols[None, :] * S.rows + rows[:, None], sums, mask=(col + cols < m)[None, :])


@gluon.jit
def store_part(sums, begins, col, workspace, output, WHO: gl.constexpr, S: gl.constexpr):
    """Stores the consumer's sums in the workspace, column after column; `begins`: they have the tile's first step."""
    STRIPS: gl.constexpr = len(S.strips)
    AREA: gl.constexpr = S.rows * S.block_c
    slot = slot_of(gl.program_id(0), begins, S.slots)
    mine = slot_sums(workspace + WHO * AREA, slot, S.consumers * AREA)
    for i in gl.static_range(STRIPS):
        store_part_strip(sums[i], col, mine, output, i, S)


@gluon.jit
def write_columns(
    first, last, at, row, col, workspace, output, addends, COLS: gl.constexpr, WHO: gl.constexpr, S: gl.constexpr
):  # fmt: skip
    """Adds up, finishes and writes COLS columns, from `at` on, of the parts of the programs from `first` to `last`."""
    out, stride_om, stride_on, origin, m, n = output
    LAYOUT: gl.constexpr = S.stored
    SHAPE: gl.constexpr = [S.rows, COLS]
    rows = gl.arange(0, S.rows, gl.SliceLayout(1, LAYOUT))
    cols = at + unhoisted(gl.arange(0, COLS, gl.SliceLayout(0, LAYOUT)))
    offsets = cols[None, :] * S.rows + rows[:, None]
    inside = (col + cols < m)[None, :]
    total = gl.zeros(SHAPE, gl.float32, LAYOUT)
    AREA: gl.constexpr = S.rows * S.block_c
    sums = workspace + WHO * AREA
    total = add_parts(total, sums, first, last + 1, offsets, inside, S.consumers * AREA, S.slots, 4)
    finish_piece(total, row, col + at, output, addends, S)


@gluon.jit
def last_arriver(
    sums, tile, first, last, row, col, schedule, scratch, output, addends, WHO: gl.constexpr, S: gl.constexpr
):  # fmt: skip
    """Stores the consumer's sums of steps `first` to `last` of a tile, and writes the tile if the others are stored."""
    workspace, flags = scratch
    store_part(sums, first == 0, col, workspace, output, WHO, S)
    tiles_m, tiles_n, tiles, steps, shared_steps, sharers, table, factors = schedule
    complete, _ = arrive(flags + tile * S.consumers + WHO, first == 0, last - first, steps)
    if complete:
        write_parts(tile, row, col, schedule, workspace, output, addends, WHO, S)


@gluon.jit
def write_parts(tile, row, col, schedule, workspace, output, addends, WHO: gl.constexpr, S: gl.constexpr):
    """Adds up, finishes and writes the consumer's sums of a tile."""
    tiles_m, tiles_n, tiles, steps, shared_steps, sharers, table, factors = schedule
    first = program_of(tile * steps, schedule)
    last = program_of(tile * steps + steps - 1, schedule)
    COLS: gl.constexpr = S.gathered_cols
    for i in gl.static_range(S.block_c // COLS):
        write_columns(first, last, i * COLS, row, col, workspace, output, addends, COLS, WHO, S)


@gluon.jit
def reduce_scatter(sums, tile, row, col, schedule, scratch, output, addends, WHO: gl.constexpr, S: gl.constexpr):
    """Stores the consumer's sums of a part of a tile, waits for the others, and writes its share of the columns.

    The wait cannot deadlock: the grid is cooperative, and no program has more than one part.
    """
    workspace, flags = scratch
    tiles_m, tiles_n, tiles, steps, shared_steps, sharers, table, factors = schedule
    out, stride_om, stride_on, origin, m, n = output
    COLS: gl.constexpr = S.share_cols
    splits = steps * sharers // shared_steps
    part = gl.program_id(0) - tile * splits
    store_part(sums, part == 0, col, workspace, output, WHO, S)
    arrive_and_wait(flags + tile * S.consumers + WHO, part == 0, splits)
    first = tile * splits
    for at in range(part * COLS, gl.minimum(S.block_c, m - col), splits * COLS):
        write_columns(first, first + splits - 1, at, row, col, workspace, output, addends, COLS, WHO, S)
