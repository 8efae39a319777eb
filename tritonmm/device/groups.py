"""Where the groups of a grouped GEMM are: a table that one launch makes of their offsets, and the next ones read.

Only the device knows the sizes of groups. offs[g] is where group g ends: it begins where the one before it ended. The
offsets may be anything: they are clamped to the total, and none counts for less than one before it. So groups never
overlap, and none reaches beyond the operands.

The table has an entry for each row of tiles of all groups, or for each group where K is divided among them, in the
sequence in which an order of `orders.Grouped` visits groups:

    table[0]              the number of entries
    table[1]              0: kernels whose programs take one tile after the other count them here
    table[4 + 4e ...]     of entry e: its group; the group's first entry; where the group starts, and where it ends

`group_table_kernel` makes it. `tile_of` is the device side of `orders.Grouped` for groups of rows, and `part_of` for
groups of K. Both are scalars and loads, so that Gluon can compile them too.
"""

import triton
import triton.language as tl

from tritonmm.device.order import tile_at
from tritonmm.device.pdl import follow_previous_grid

ENTRY = tl.constexpr(4)
"""Integers of an entry, and before the first one."""

TAKEN = tl.constexpr(1)
"""Where the table counts the tiles that programs have taken."""

FIELDS = tl.constexpr(5)
"""Integers of each group in the scratch memory of a program, which follows the table."""


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def blocks_of(size, BLOCK: tl.constexpr):
    """How many blocks hold `size` elements, also just below 2**31."""
    return size // BLOCK + (size % BLOCK > 0).to(tl.int32)


@triton.jit
def bounds_of(offs, groups, total, SLOTS: tl.constexpr):
    """Where each group starts and ends. Slots from `groups` on are empty groups."""
    g = tl.arange(0, SLOTS)
    ends = tl.load(offs + g, mask=g < groups, other=0)
    ends = tl.associative_scan(tl.minimum(tl.maximum(ends, 0), total), 0, larger)
    starts = tl.load(offs + g - 1, mask=(g > 0) & (g <= groups), other=0)
    starts = tl.associative_scan(tl.minimum(tl.maximum(starts, 0), total), 0, larger)
    return starts, ends


@triton.jit(do_not_specialize=["groups", "total", "entries"])
def group_table_kernel(
    offs, table, groups, total, entries,
    BLOCK_M: tl.constexpr, LARGEST_FIRST: tl.constexpr, SLOTS: tl.constexpr, COMPARED: tl.constexpr,
    ENTRIES: tl.constexpr,
):  # fmt: skip
    """Writes the table.

    offs: int32 [groups]. table: int32, with room for `entries` entries and the scratch memory of each program, FIELDS *
    SLOTS. total: rows or elements of K that are divided.
    BLOCK_M: rows of a tile; 0: there is one entry for each group. SLOTS: a power of two, at least `groups`. COMPARED:
    sizes that each group compares its own with at a time. ENTRIES: those that a program writes.
    Grid: enough programs for all entries. Each looks at all groups.
    """
    follow_previous_grid()
    g = tl.arange(0, SLOTS)
    scratch = table + ENTRY + ENTRY * entries + tl.program_id(0) * (FIELDS * SLOTS)
    starts, ends = bounds_of(offs, groups, total, SLOTS)
    group = g
    if LARGEST_FIRST:
        sizes = ends - starts
        tl.store(scratch + g, sizes)
        tl.debug_barrier()
        rank = tl.zeros([SLOTS], tl.int32)
        for first in range(0, groups, COMPARED):
            other = first + tl.arange(0, COMPARED)
            size = tl.load(scratch + other, mask=other < SLOTS, other=0)
            before = (size[None, :] > sizes[:, None]) | (
                (size[None, :] == sizes[:, None]) & (other[None, :] < g[:, None])
            )
            rank += tl.sum((before & (other < groups)[None, :]).to(tl.int32), 1)
        rank = tl.where(g < groups, rank, g)
        tl.debug_barrier()
        tl.store(scratch + rank, g)
        tl.store(scratch + SLOTS + rank, starts)
        tl.store(scratch + 2 * SLOTS + rank, ends)
        tl.debug_barrier()
        group, starts, ends = tl.load(scratch + g), tl.load(scratch + SLOTS + g), tl.load(scratch + 2 * SLOTS + g)
        tl.debug_barrier()
    rows = blocks_of(ends - starts, BLOCK_M) if BLOCK_M > 0 else (g < groups).to(tl.int32)
    after = tl.cumsum(rows, 0)
    tl.store(scratch + g, group)
    tl.store(scratch + SLOTS + g, starts)
    tl.store(scratch + 2 * SLOTS + g, ends)
    tl.store(scratch + 3 * SLOTS + g, after - rows)
    tl.store(scratch + 4 * SLOTS + g, after)
    tl.debug_barrier()
    count = tl.sum(rows)
    if tl.program_id(0) == 0:
        tl.store(table, count)
        tl.store(table + TAKEN, 0)
    entry = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    # The first place whose `after` is beyond the entry, by bisection.
    place = tl.zeros([ENTRIES], tl.int32)
    width = SLOTS
    while width > 1:
        width = width // 2
        passed = tl.load(scratch + 4 * SLOTS + place + width - 1) <= entry
        place = tl.where(passed, place + width, place)
    inside = entry < tl.minimum(count, entries)
    at = table + ENTRY + ENTRY * entry
    tl.store(at, tl.load(scratch + place), mask=inside)
    tl.store(at + 1, tl.load(scratch + 3 * SLOTS + place), mask=inside)
    tl.store(at + 2, tl.load(scratch + SLOTS + place), mask=inside)
    tl.store(at + 3, tl.load(scratch + 2 * SLOTS + place), mask=inside)


@triton.jit
def rows_of_tiles(table):
    """The number of rows of tiles of all groups together."""
    return tl.load(table)


@triton.jit
def entry_at(table, entry):
    """An entry: its group, the group's first entry, and where the group starts and ends."""
    at = table + ENTRY + ENTRY * entry
    return tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)


@triton.jit
def tile_of(
    i, tiles_n, table, factors,
    BLOCK_M: tl.constexpr, UNIT: tl.constexpr, ORDER: tl.constexpr, ALONG: tl.constexpr, JOINED: tl.constexpr,
):  # fmt: skip
    """The tile of index i where rows are divided among groups: its group, its first row, the end of its rows, and its
    column of tiles.

    A group's rows are divided equally among its tiles, in units of UNIT rows, which divides BLOCK_M; where that is
    UNIT, all but the last have BLOCK_M.
    """
    if JOINED:
        m, n = tile_at(i, rows_of_tiles(table), tiles_n, None, factors, ORDER, ALONG)
        group, first, start, end = entry_at(table, m)
        rows = blocks_of(end - start, BLOCK_M)
        m -= first
    else:
        # A group has tiles_n indices for each of its entries.
        group, first, start, end = entry_at(table, i // tiles_n)
        rows = blocks_of(end - start, BLOCK_M)
        m, n = tile_at(i - first * tiles_n, rows, tiles_n, None, factors, ORDER, ALONG)
    row = start + m * BLOCK_M
    if UNIT < BLOCK_M:
        units = blocks_of(end - start, UNIT)
        fewest, more = units // rows, units % rows  # the first `more` tiles have a unit more
        row = start + (m * fewest + tl.minimum(m, more)) * UNIT
        end = tl.minimum(end, row + (fewest + (m < more).to(tl.int32)) * UNIT)
    return group, row, end, n


@triton.jit
def part_of(i, tiles_m, tiles_n, table, factors, ORDER: tl.constexpr, ALONG: tl.constexpr):
    """The tile of index i where K is divided among groups: its group, where the group's K starts and ends, and its row
    and column of tiles."""
    tiles = tiles_m * tiles_n
    group, _, start, end = entry_at(table, i // tiles)
    m, n = tile_at(i % tiles, tiles_m, tiles_n, None, factors, ORDER, ALONG)
    return group, start, end, m, n
