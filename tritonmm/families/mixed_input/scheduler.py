"""How the mixed-input kernel's programs divide the K steps of its tiles.

All steps of all tiles form one line, tile after tile, and each program takes an equal share of it.

- With as many programs as the SMs hold, all of them stream to the end, however many tiles there are. Shares cut tiles
  anywhere, and the last arriver adds up a tile's parts.
- With one program for each tile, or several (split-K, added up by reduce-scatter), no share lies in two tiles.
- Persistent programs with two tiles or more each first take whole tiles in rounds. Programs that run together then have
  neighbouring tiles, and L2 holds their operands. Shares are of the one to two rounds' tiles that remain.
- The last arriver needs registers. Persistent programs therefore have only whole tiles if a thread has more than 64
  sums, or a tile several subtiles. If it has one, two programs may instead split the K of each tile of the last round.
  If that has tiles for at most half of the programs, they exchange halves. Otherwise the programs without a tile assist
  the others: each sums the last steps of several of their tiles.
- Where groups divide the rows of activations, only the device knows how many tiles there are: all are whole, and each
  program takes every p-th of p programs, in the sequence of the table of groups (`device/groups.py`).
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritonmm.device.groups import rows_of_tiles, tile_of
from tritonmm.device.order import tile_at


class Schedule(NamedTuple):
    """The tiles, and the steps that programs share."""

    tiles_m: Any
    tiles_n: Any
    tiles: Any  # indices of the order
    steps: Any  # K steps of a tile
    shared_steps: Any  # of all shared tiles, divided by their greatest common divisor with the sharers; where two
    # programs split a tile's K, the steps of the second one
    sharers: Any  # programs that take the shared steps, divided likewise
    table: Any  # of the order, see device/order.py
    factors: Any


class Groups(NamedTuple):
    """Groups of the rows of activations, each with weights of its own."""

    table: Any  # of device/groups.py; None where there are no groups
    stride_scale: Any  # of the scales, from one group to the next


@gluon.jit
def line_of_groups(schedule, groups):
    """`line_of` where groups have tiles."""
    tiles = rows_of_tiles(groups.table) * schedule.tiles_n
    return gl.to_tensor(0), gl.cdiv(tiles - gl.program_id(0), gl.num_programs(0)) * schedule.steps


@gluon.jit
def place_in_groups(tile, schedule, groups, S: gl.constexpr):
    """The group of a tile at an index of the order, its first row of weights and of activations, and the end of the
    group's activations."""
    ORDER: gl.constexpr = S.order
    ALONG: gl.constexpr = S.along
    BLOCK: gl.constexpr = S.block_c
    JOINED: gl.constexpr = S.joined
    group, first_m, end, n = tile_of(
        tile, schedule.tiles_n, groups.table, schedule.factors, BLOCK, BLOCK, ORDER, ALONG, JOINED
    )
    return group, n * S.block_r, first_m, end


@gluon.jit
def rounds_of(schedule, S: gl.constexpr):
    """Rounds in which each program has a whole tile before its share."""
    if S.in_rounds:
        return schedule.tiles // gl.num_programs(0) - (1 if S.fixup == "last-arriver" else 0)
    else:
        return 0


@gluon.jit
def begin_of(program, schedule):
    """The first step of a program's share, of the tiles that are shared."""
    return program * schedule.shared_steps // schedule.sharers


@gluon.jit
def program_of(step, schedule):
    """The program whose share a step is in: the last that begins before the next step does."""
    return ((step + 1) * schedule.sharers - 1) // schedule.shared_steps


@gluon.jit
def tail_of(schedule, S: gl.constexpr):
    """Tiles of the last round."""
    return schedule.tiles - rounds_of(schedule, S) * gl.num_programs(0)


@gluon.jit
def assistants(schedule, S: gl.constexpr):
    """Programs without a tile in the last round. If they are n and assist, the i-th has tiles i, i + n, ... of it."""
    return gl.num_programs(0) - tail_of(schedule, S)


@gluon.jit
def split_steps(second, schedule):
    """The first step, and the end of the steps, of one of the two programs that split the K of a tile."""
    middle = schedule.steps - schedule.shared_steps
    return gl.where(second, middle, 0), gl.where(second, schedule.steps, middle)


@gluon.jit
def steps_of_tail(schedule, S: gl.constexpr):
    """The steps of this program in the last round, where two programs split the K of a tile."""
    program = gl.program_id(0)
    tail = tail_of(schedule, S)
    own = schedule.steps - schedule.shared_steps
    if S.fixup == "exchange":
        steps = gl.where(program % 2 == 0, own, schedule.shared_steps)
        return gl.where(program < 2 * tail, steps, 0)
    else:
        assisted = gl.cdiv(2 * tail - program, assistants(schedule, S))  # tiles, if it has none itself
        return gl.where(program < tail, own, assisted * schedule.shared_steps)


@gluon.jit
def work_in_tail(at, schedule, S: gl.constexpr):
    """The tile of the last round, its first step and the end of its steps, `at` steps after this program's first."""
    program = gl.program_id(0)
    if S.fixup == "exchange":
        tile = program // 2
        second = program % 2 == 1
    else:
        tail = tail_of(schedule, S)
        second = program >= tail
        assisted = program - tail + at // schedule.shared_steps * assistants(schedule, S)
        tile = gl.where(second, assisted, program)
    first, last = split_steps(second, schedule)
    return tile, first, last


@gluon.jit
def line_of(schedule, S: gl.constexpr):
    """Where this program's work begins and ends, in steps: its whole tiles come before its share, if it has one."""
    if S.fixup == "":
        return gl.to_tensor(0), gl.cdiv(schedule.tiles - gl.program_id(0), gl.num_programs(0)) * schedule.steps
    elif S.splits_tail:
        return gl.to_tensor(0), rounds_of(schedule, S) * schedule.steps + steps_of_tail(schedule, S)
    else:
        begin = begin_of(gl.program_id(0), schedule) - rounds_of(schedule, S) * schedule.steps
        return begin, begin_of(gl.program_id(0) + 1, schedule)


@gluon.jit
def work_at(at, end, schedule, S: gl.constexpr):
    """The first work from step `at` on of a program whose work ends at `end`.

    Returns a tile, its first K step, the end of its steps, the distance between them, and where the work goes on.
    The programs of a reduce-scatter interleave their steps: at any time they read neighbouring parts of K.
    """
    if S.fixup == "reduce-scatter":
        splits = schedule.steps * schedule.sharers // schedule.shared_steps
        tile = gl.program_id(0) // splits
        return tile, gl.program_id(0) - tile * splits, schedule.steps, splits, end
    elif S.fixup == "last-arriver":
        tile = at // schedule.steps
        first = at - tile * schedule.steps
        last = gl.minimum(schedule.steps, first + end - at)
        if S.in_rounds:
            rounds = rounds_of(schedule, S)
            left = begin_of(gl.program_id(0), schedule) - at
            tile += rounds * gl.num_programs(0)
            if left > 0:
                tile = (rounds - left // schedule.steps) * gl.num_programs(0) + gl.program_id(0)
                first = 0
                last = schedule.steps
        return tile, first, last, 1, at + last - first
    elif S.splits_tail:
        rounds = rounds_of(schedule, S)
        tile, first, last = work_in_tail(at - rounds * schedule.steps, schedule, S)
        tile += rounds * gl.num_programs(0)
        if at < rounds * schedule.steps:
            tile = at // schedule.steps * gl.num_programs(0) + gl.program_id(0)
            first = 0
            last = schedule.steps
        return tile, first, last, 1, at + last - first
    else:
        tile = at // schedule.steps * gl.num_programs(0) + gl.program_id(0)
        return tile, at - at, schedule.steps, 1, at + schedule.steps


@gluon.jit
def origin(tile, schedule, S: gl.constexpr):
    """The first row of the weights, and of the activations, of a tile at an index of the order."""
    ORDER: gl.constexpr = S.order
    ALONG: gl.constexpr = S.along
    m, n = tile_at(tile, schedule.tiles_m, schedule.tiles_n, schedule.table, schedule.factors, ORDER, ALONG)
    if ORDER == "split-merge":  # far overflow would wrap around to rows of the output
        m, n = gl.minimum(m, schedule.tiles_m), gl.minimum(n, schedule.tiles_n)
    return n * S.block_r, m * S.block_c


@gluon.jit
def moved_inside(first_m, m, S: gl.constexpr):
    """The first of the activations that are multiplied for the tile that would begin at `first_m`."""
    return gl.minimum(first_m, m - S.block_c) if S.shifts else first_m
