"""Finishes and writes the mixed-input kernel's sums.

Programs that share a tile sum parts of its K, and store their fp32 sums in the workspace. There are two fixups:

- reduce-scatter, where each share lies in one tile: its programs wait for each other (`device/split_k.py`), then each
  adds up and writes some of the columns.
- last arriver, where shares are equal: programs count the steps they have stored, and the program that counts a tile's
  last steps adds up the whole tile. No program waits, so the grid need not be resident as a whole.

Parts are added in the order of K by either.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritonmm.device.columns import split_columns
from tritonmm.device.dequantize import unit
from tritonmm.device.gluon_compat import barrier, unhoisted
from tritonmm.device.split_k import meet
from tritonmm.families.mixed_input.scheduler import program_of


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
def row_factors(row, n, scales, WITH_SCALES: gl.constexpr, S: gl.constexpr):
    """Factors of the sums of the consumer's rows of weights: their units, and their scales if WITH_SCALES."""
    LAYOUT: gl.constexpr = gl.SliceLayout(1, S.stored)
    UNIT: gl.constexpr = unit(S.w_dtype, S.dtype)
    factors = gl.full([S.rows], UNIT, gl.float32, LAYOUT)
    if WITH_SCALES:
        rows = row + gl.arange(0, S.rows, LAYOUT)
        factors *= gl.load(scales.at + rows.to(gl.int64) * scales.stride_n, mask=rows < n, other=0.0)
    return factors


@gluon.jit
def finish_piece(x, row, col, output, epilogue, S: gl.constexpr):
    """Finishes sums, [rows, cols], and writes them to the output from its column `row` and its row `col` on.

    Rows of the output before `output.first` are another tile's, and its parts may be added up in another order.
    """
    LAYOUT: gl.constexpr = S.stored
    OUT_DTYPE: gl.constexpr = S.out_dtype
    rows = row + gl.arange(0, S.rows, gl.SliceLayout(1, LAYOUT))
    cols = col + gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT))
    inside = (rows < output.n)[:, None] & (cols < output.m)[None, :]
    factors = epilogue.factors
    if S.shifts:
        inside &= (cols >= output.first)[None, :]
    if S.scales == "row" and not S.ahead:
        factors = row_factors(row, output.n, epilogue.scales, True, S)
    if S.scales != "1x1":
        x = x * factors[:, None]
    if S.scaled:
        x = x * epilogue.alpha
    if S.bias:
        x = x + gl.load(epilogue.bias + rows, mask=rows < output.n, other=0.0).to(gl.float32)[:, None]
    if S.add_c:
        at = rows.to(gl.int64)[:, None] * epilogue.stride_cn + cols.to(gl.int64)[None, :] * epilogue.stride_cm
        x = x + epilogue.beta * gl.load(epilogue.c + at, mask=inside, other=0.0).to(gl.float32)
    at = rows.to(gl.int64)[:, None] * output.stride_n + cols.to(gl.int64)[None, :] * output.stride_m
    gl.store(output.at + at, x.to(OUT_DTYPE), mask=inside)


@gluon.jit
def write_subtile(sums, row, col, output, addends, SUBTILE: gl.constexpr, S: gl.constexpr):
    LAYOUT: gl.constexpr = S.stored
    COLS: gl.constexpr = min(S.piece_cols, S.subtiles[SUBTILE])
    PIECES: gl.constexpr = S.subtiles[SUBTILE] // COLS
    pieces = split_columns(sums, PIECES, 1)
    for i in gl.static_range(PIECES):
        finish_piece(gl.convert_layout(pieces[i], LAYOUT), row, unhoisted(col + i * COLS), output, addends, S)


@gluon.jit
def write(sums, row, col, output, addends, S: gl.constexpr):
    """Finishes and writes the consumer's sums of a whole tile."""
    SUBTILES: gl.constexpr = len(S.subtiles)
    for i in gl.static_range(SUBTILES):
        write_subtile(sums[i], row, col + S.starts[i], output, addends, i, S)


@gluon.jit
def sums_of(part, is_first, workspace, WHO: gl.constexpr, S: gl.constexpr):
    """Where program `part` leaves the sums of a tile that it begins, or that one before it did: a share cuts two."""
    slot = part
    if S.fixup == "last-arriver":
        slot = 2 * part + is_first.to(gl.int32)
    return workspace + (slot * S.consumers + WHO).to(gl.int64) * (S.rows * S.block_c)


@gluon.jit
def leave_subtile(sums, col, mine, output, SUBTILE: gl.constexpr, S: gl.constexpr):
    LAYOUT: gl.constexpr = S.sums[SUBTILE]
    rows = gl.arange(0, S.rows, gl.SliceLayout(1, LAYOUT))
    cols = S.starts[SUBTILE] + gl.arange(0, S.subtiles[SUBTILE], gl.SliceLayout(0, LAYOUT))
    gl.store(mine + cols[None, :] * S.rows + rows[:, None], sums, mask=(col + cols < output.m)[None, :])


@gluon.jit
def leave(sums, is_first, col, workspace, output, WHO: gl.constexpr, S: gl.constexpr):
    """Leaves the consumer's sums in the workspace, column after column."""
    SUBTILES: gl.constexpr = len(S.subtiles)
    mine = sums_of(gl.program_id(0), is_first, workspace, WHO, S)
    for i in gl.static_range(SUBTILES):
        leave_subtile(sums[i], col, mine, output, i, S)


@gluon.jit
def write_columns(
    first, last, at, row, col, workspace, output, addends, COLS: gl.constexpr, WHO: gl.constexpr, S: gl.constexpr
):  # fmt: skip
    """Adds up, finishes and writes COLS columns, from `at` on, of what the programs from `first` to `last` left.

    They are added in the order of K. The loads go past L1, which may hold what another tile left at these addresses.
    """
    LAYOUT: gl.constexpr = S.stored
    SHAPE: gl.constexpr = [S.rows, COLS]
    rows = gl.arange(0, S.rows, gl.SliceLayout(1, LAYOUT))
    cols = at + unhoisted(gl.arange(0, COLS, gl.SliceLayout(0, LAYOUT)))
    offsets = cols[None, :] * S.rows + rows[:, None]
    inside = (col + cols < output[4])[None, :]
    total = gl.zeros(SHAPE, gl.float32, LAYOUT)
    for base in range(first, last + 1, 4):  # four parts' loads are in flight together
        for j in gl.static_range(4):
            theirs = sums_of(base + j, base + j == first if S.fixup == "last-arriver" else True, workspace, WHO, S)
            total += gl.load(theirs + offsets, mask=inside & (base + j <= last), other=0.0, cache_modifier=".cg")
    finish_piece(total, row, col + at, output, addends, S)


@gluon.jit
def gather(sums, tile, first, last, row, col, schedule, scratch, output, addends, WHO: gl.constexpr, S: gl.constexpr):
    """Leaves the consumer's sums of steps of a tile, and if all others are there, adds them up and writes them.

    The barrier puts the stores of all threads before the count of one, which releases them; the counts of the others
    are acquired with it.
    """
    workspace, flags = scratch
    leave(sums, first == 0, col, workspace, output, WHO, S)
    barrier()
    flag = flags + tile * S.consumers + WHO
    before = gl.atomic_add(flag, last - first, sem="acq_rel", scope="gpu")
    others = schedule[3] - (last - first)
    if (before & 0x7FFFFFFF) == others:  # `meet` leaves the top bit in either state
        barrier()
        gl.store(flag, before - others)  # as it was found, for the next launch
        write_parts(tile, row, col, schedule, workspace, output, addends, WHO, S)


@gluon.jit
def write_parts(tile, row, col, schedule, workspace, output, addends, WHO: gl.constexpr, S: gl.constexpr):
    """Adds up, finishes and writes the consumer's sums of a tile. A program's workspace may hold parts of two tiles."""
    first = program_of(tile * schedule.steps, schedule)
    last = program_of(tile * schedule.steps + schedule.steps - 1, schedule)
    COLS: gl.constexpr = S.fixup_cols
    for i in gl.static_range(S.block_c // COLS):
        write_columns(first, last, i * COLS, row, col, workspace, output, addends, COLS, WHO, S)


@gluon.jit
def share(sums, tile, row, col, schedule, scratch, output, addends, WHO: gl.constexpr, S: gl.constexpr):
    """Leaves the consumer's sums of a part of a tile, waits for the others, and finishes its share of the columns.

    The wait cannot deadlock: the grid is cooperative, and no program has more than one part.
    """
    workspace, flags = scratch
    tiles_m, tiles_n, tiles, steps, shared_steps, sharers, table, factors = schedule
    COLS: gl.constexpr = S.scatter_cols
    splits = steps * sharers // shared_steps
    part = gl.program_id(0) - tile * splits
    leave(sums, True, col, workspace, output, WHO, S)
    meet(flags + tile * S.consumers + WHO, part, splits)
    first = tile * splits
    for at in range(part * COLS, gl.minimum(S.block_c, output[4] - col), splits * COLS):
        write_columns(first, first + splits - 1, at, row, col, workspace, output, addends, COLS, WHO, S)
