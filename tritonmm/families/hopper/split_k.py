"""Split tiles of the Hopper kernel: the programs of a tile reduce and scatter it, as `device/split_k.py` says.

A part has every `splits`-th K step of a tile, so that the programs read neighbouring K at any time; neighbouring
programs have the same part of different tiles, so that they read the same rows at the same time. Measurements:
docs/notebook/hopper.md.

The wait of a reduce-scatter cannot deadlock. All programs are resident: at most one an SM is launched, as a cooperative
grid. Suppose that programs wait for ever, and take the first group of split tiles that has such tiles. A group has at
most as many items as there are programs, in a row, so no program has two of them, and everything that precedes one of
its items in that item's program is a whole tile or belongs to an earlier group, and ends. Hence all parts arrive.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritonmm.device.split_k import add_parts, arrive_and_wait, slot_sums
from tritonmm.families.hopper.epilogue import finish, store_masked
from tritonmm.families.hopper.mirror import store_both


@gluon.jit
def reduce_scatter(
    accs, batch, row, col, split_tile, part, splits, workspace, output, addends,
    WHO: gl.constexpr, TILING: gl.constexpr,
):  # fmt: skip
    """Stores this part's sums of consumer WHO's tile at (row, col), then finishes and writes its share of the rows."""
    ROWS: gl.constexpr = TILING.rows
    COLS: gl.constexpr = TILING.cols
    CHUNK: gl.constexpr = TILING.reduce_rows
    TOGETHER: gl.constexpr = TILING.reduce_parts
    ACC: gl.constexpr = TILING.acc_layouts[0]
    LAYOUT: gl.constexpr = TILING.reduce_layout
    OUT_DTYPE: gl.constexpr = TILING.out_dtype
    STRIDE: gl.constexpr = TILING.consumers * ROWS * COLS
    sums = slot_sums(workspace.sums + WHO * ROWS * COLS, split_tile * splits, STRIDE)
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, ACC))
    cols = gl.arange(0, COLS, gl.SliceLayout(0, ACC))
    mine = slot_sums(sums, part, STRIDE)
    gl.store(mine + rows[:, None] * COLS + cols[None, :], accs[0], mask=(row + rows < output.m)[:, None])
    arrive_and_wait(workspace.flags + split_tile * TILING.consumers + WHO, part == 0, splits)
    rows = gl.arange(0, CHUNK, gl.SliceLayout(1, LAYOUT))
    cols = gl.arange(0, COLS, gl.SliceLayout(0, LAYOUT))
    last = gl.minimum(ROWS, output.m - row)
    for first in range(part * CHUNK, last, splits * CHUNK):
        at = (first + rows)[:, None] * COLS + cols[None, :]
        inside = (first + rows < last)[:, None]
        total = gl.zeros([CHUNK, COLS], TILING.sum_dtype, LAYOUT)
        total = add_parts(total, sums, 0, splits - 1, at, inside, STRIDE, 1, TOGETHER)
        if TILING.symmetric:
            store_both(total, batch, row + first, col, output, addends, TILING)
        else:
            x = finish(total, None, batch, row + first, col, output, addends, TILING).to(OUT_DTYPE)
            store_masked(x, batch, row + first, col, output, "")
