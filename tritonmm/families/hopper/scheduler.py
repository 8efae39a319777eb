"""The tile scheduler of the Hopper kernel: which tile and which of its K steps a work item is."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritonmm.device.order import tile_at


@gluon.jit
def work_items(scheduler):
    """How many work items the launch computes: none if its flag `skip` is not 0. To be called once the previous grid,
    which may have written the flag, has ended; then all partitions read the same."""
    items = scheduler.items
    if scheduler.skip is not None:
        items = gl.where(gl.load(scheduler.skip) != 0, 0, items)
    return items


@gluon.jit
def origin(tile, scheduler, TILING: gl.constexpr):
    """The batch, first row and first column of the tile at an index of the order."""
    ORDER: gl.constexpr = TILING.order
    ALONG: gl.constexpr = TILING.along
    batch = tile * 0
    if TILING.batched:
        batch = tile // scheduler.launched
        tile -= batch * scheduler.launched
    m, n = tile_at(tile, scheduler.tiles_m, scheduler.tiles_n, scheduler.table, scheduler.factors, ORDER, ALONG)
    if ORDER == "split-merge":  # the row of a far overflow tile would wrap around to one of the output
        m, n = gl.minimum(m, scheduler.tiles_m), gl.minimum(n, scheduler.tiles_n)
    return batch, m * TILING.pitch, n * TILING.block_n


@gluon.jit
def work_at(item, scheduler, TILING: gl.constexpr):
    """A work item: its tile; its first K step, their end and their stride; its number among the split tiles, or -1.

    The items that follow the whole tiles are groups of as many split tiles as the programs can multiply at once: the
    first parts of all tiles of a group, then their second parts, and so on. A part has every `splits`-th K step, or a
    chunk of K.
    """
    tile = item
    split_tile = -1
    first = 0
    end = scheduler.steps
    stride = 1
    if TILING.split:
        past = item - scheduler.whole
        if past >= 0:
            splits = scheduler.splits
            together = gl.num_programs(0) // splits
            split_tile = past // (together * splits) * together
            past -= split_tile * splits
            together = gl.minimum(together, (scheduler.items - scheduler.whole) // splits - split_tile)
            first = past // together
            split_tile += past - first * together
            tile = scheduler.whole + split_tile
            if TILING.chunk_steps:
                first *= TILING.chunk_steps
                end = gl.minimum(end, first + TILING.chunk_steps)
            else:
                stride = splits
    if TILING.order == "split-merge":  # an overflow tile has no K steps, and all of its stores are masked
        batch, row, col = origin(tile, scheduler, TILING)
        inside = (row < scheduler.tiles_m * TILING.pitch) & (col < scheduler.tiles_n * TILING.block_n)
        end = gl.where(inside, end, first)
    return tile, first, end, stride, split_tile
