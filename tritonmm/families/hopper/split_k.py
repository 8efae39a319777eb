"""Split tiles of the Hopper kernel: several programs multiply a part of the K steps each, and share the result.

Of a tile in s parts, part i has every s-th step of K from the i-th on: at any time the programs read K
next to each other, pages of device memory that are open already. And programs next to each other have
the same part of different tiles: what neighbouring SMs ask for at the same time is read from L2 once.
256x256x65536 takes 23.0 us so, launched as a dependent of the grid before it, and 30.3 with the parts of
a tile next to each other and launched in turn; 512x512x16384 17.7 and 20.6; 128x1024x16384 14.5 and 15.6
(H200, burst, best configs of each, autotune/results/h200-neighbours.csv). The launch is 0.4 to 1.6 us
of that (h200-dependents.csv).

The programs of a split tile all write their partial sums to a workspace, wait until all have, and
then each adds up and writes its share of the tile's rows. It serves few tiles with a deep K, and the
last, partial wave of many: 544 tiles on 132 SMs are four waves and 16 tiles, and those 16 take an
eighth of their time when eight programs share each.

This wait cannot deadlock: all programs are resident (at most one an SM is launched, as a cooperative
grid), and of the groups of tiles for which programs would wait for ever, consider the first. It has at
most as many items as there are programs, one after the other, so whatever precedes one of its items in
that item's program belongs to an earlier group, or is a whole tile, and ends; hence all parts arrive.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritonmm.device.split_k import add_parts, arrive_and_wait, slot_sums
from tritonmm.families.hopper.epilogue import finish, store_masked


@gluon.jit
def share(
    accs, batch, row, col, slot, part, splits, scratch, output, addends, WHO: gl.constexpr, TILING: gl.constexpr
):  # fmt: skip
    """A split tile: leaves this part's sums in the workspace, then finishes and writes its share of the rows."""
    workspace, flags = scratch
    m = output[5]
    n = output[6]
    ROWS: gl.constexpr = TILING.rows
    COLS: gl.constexpr = TILING.cols
    CHUNK: gl.constexpr = TILING.share_rows
    TOGETHER: gl.constexpr = TILING.share_parts
    ACC: gl.constexpr = TILING.acc_layouts[0]
    LAYOUT: gl.constexpr = TILING.share_layout
    OUT_DTYPE: gl.constexpr = TILING.out_dtype
    STRIDE: gl.constexpr = TILING.consumers * ROWS * COLS
    sums = slot_sums(workspace + WHO * ROWS * COLS, slot * splits, STRIDE)
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, ACC))
    cols = gl.arange(0, COLS, gl.SliceLayout(0, ACC))
    mine = slot_sums(sums, part, STRIDE)
    gl.store(mine + rows[:, None] * COLS + cols[None, :], accs[0], mask=(row + rows < m)[:, None])
    arrive_and_wait(flags + slot * TILING.consumers + WHO, part == 0, splits)
    rows = gl.arange(0, CHUNK, gl.SliceLayout(1, LAYOUT))
    cols = gl.arange(0, COLS, gl.SliceLayout(0, LAYOUT))
    last = gl.minimum(ROWS, m - row)
    for first in range(part * CHUNK, last, splits * CHUNK):
        at = (first + rows)[:, None] * COLS + cols[None, :]
        inside = (first + rows < last)[:, None]
        total = gl.zeros([CHUNK, COLS], TILING.sum_dtype, LAYOUT)
        total = add_parts(total, sums, 0, splits, at, inside, STRIDE, 1, TOGETHER)
        x = finish(total, batch, row + first, col, m, n, addends, TILING).to(OUT_DTYPE)
        store_masked(x, batch, row + first, col, output)
