"""How the mixed-input kernel's programs divide the K steps of its tiles, whatever they then do with them.

All steps of all tiles lie in one line, tile after tile, and each program takes an equal share of it. With as many
programs as the SMs hold all stream to the end, however many tiles there are; with one for each tile, or several, no
share lies in two tiles. Where persistent programs have two tiles or more each, they are dealt whole ones in rounds
first, so that those which run together have tiles next to each other, whose operands L2 holds; shares are of the one to
two rounds that remain. Beside 256 rows of activations, or two strips of them, there are no registers to gather parts:
all tiles are whole, those of the last round too.

A `schedule` is the tiles along m and n, those of the order, the K steps of each, the steps that are shared and the
programs that share them, in lowest terms, and the order's table and factors.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritonmm.device.order import tile_at


@gluon.jit
def rounds_of(schedule, S: gl.constexpr):
    """Rounds in which each program has a whole tile before its share."""
    tiles_m, tiles_n, tiles, steps, shared_steps, sharers, table, factors = schedule
    if S.in_rounds:
        return tiles // gl.num_programs(0) - 1
    else:
        return 0


@gluon.jit
def begin_of(program, schedule):
    """The first step of a program's share, of the tiles that are shared."""
    tiles_m, tiles_n, tiles, steps, shared_steps, sharers, table, factors = schedule
    return program * shared_steps // sharers


@gluon.jit
def program_of(step, schedule):
    """The program whose share a step is in: the last that begins before the next step does."""
    tiles_m, tiles_n, tiles, steps, shared_steps, sharers, table, factors = schedule
    return ((step + 1) * sharers - 1) // shared_steps


@gluon.jit
def line_of(schedule, S: gl.constexpr):
    """Where this program's work begins and ends: as many steps before its share as its whole tiles have, and with it.
    Where all tiles are whole, there are no shares."""
    tiles_m, tiles_n, tiles, steps, shared_steps, sharers, table, factors = schedule
    if S.meeting == "":
        return gl.to_tensor(0), gl.cdiv(tiles - gl.program_id(0), gl.num_programs(0)) * steps
    else:
        begin = begin_of(gl.program_id(0), schedule) - rounds_of(schedule, S) * steps
        return begin, begin_of(gl.program_id(0) + 1, schedule)


@gluon.jit
def work_at(at, end, schedule, S: gl.constexpr):
    """The first work from step `at` on of a program whose work ends at `end`: a tile, the first of its K steps, their
    end, from one to the next, and where the work goes on.

    Programs that share a tile alone have every so manieth step: at any time they read K next to each other.
    """
    tiles_m, tiles_n, tiles, steps, shared_steps, sharers, table, factors = schedule
    if S.meeting == "share":
        splits = steps * sharers // shared_steps
        tile = gl.program_id(0) // splits
        return tile, gl.program_id(0) - tile * splits, steps, splits, end
    elif S.meeting == "gather":
        tile = at // steps
        first = at - tile * steps
        last = gl.minimum(steps, first + end - at)
        if S.in_rounds:
            rounds = rounds_of(schedule, S)
            left = begin_of(gl.program_id(0), schedule) - at
            tile += rounds * gl.num_programs(0)
            if left > 0:
                tile = (rounds - left // steps) * gl.num_programs(0) + gl.program_id(0)
                first = 0
                last = steps
        return tile, first, last, 1, at + last - first
    else:
        return at // steps * gl.num_programs(0) + gl.program_id(0), at - at, steps, 1, at + steps


@gluon.jit
def origin(tile, schedule, S: gl.constexpr):
    """The first row of the weights, and of the activations, of a tile at an index of the order."""
    tiles_m, tiles_n, tiles, steps, shared_steps, sharers, table, factors = schedule
    ORDER: gl.constexpr = S.order
    ALONG: gl.constexpr = S.along
    m, n = tile_at(tile, tiles_m, tiles_n, table, factors, ORDER, ALONG)
    if ORDER == "split-merge":  # far overflow would wrap around to rows of the output
        m, n = gl.minimum(m, tiles_m), gl.minimum(n, tiles_n)
    return n * S.block_r, m * S.block_c


@gluon.jit
def first_row(col, m, S: gl.constexpr):
    """The first of the activations that are multiplied for the tile that would begin at `col`."""
    return gl.minimum(col, m - S.block_c) if S.shifts else col
