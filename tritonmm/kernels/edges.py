"""Tiles whose rows are not all there, loaded so that none, or few, beyond the matrix are asked for.

TMA fills what lies outside of a tensor with zeros, and takes longer for it than for reading. Programs with one row left
were slower than whole ones and held up all others: 257x4096x4096 took 30.1 us, 384x4096x4096 22.6 us (bf16, 128 x 128
tiles, autotune/results/h200-edges.csv).

So a consumer with no rows left asks for none, and one with some begins earlier, so that its last row is the last of
the matrix: the rows before its own are those of another consumer, which writes the same bits to them. That is for few
tiles along M; it is no option where two must not write the same row, or where no other has rows before. There the rows
come in boxes of `Tiling.edge`, and no box is wholly outside. What the buffer's other rows hold is multiplied too,
whatever it is: a row of A counts for the same row of the output alone, which is not written. Blocks that begin earlier
take 16.7 us for 200x4096x4096, boxes 19.2; with tiles of 192 x 64, 257x4096x4096 takes 21.4 and 31.8 us
(autotune/results/h200-overlaps.csv). Blocks that begin earlier by less than a box, and come in boxes, took 23.6
(h200-bench-shapes-triton-3.6.0.csv).

A box is as wide as a panel that TMA swizzles, 128 bytes of K; it is done where K is contiguous in A and a step of it
fills such panels, and else a box is the whole block. Eight boxes for 128 rows would be more than the loader issues in
the time of a step: 139x4096x4096 took 24.6 us with them, with four 17.5 us, and 256x4096x4096, whose rows are all
there, 17.8 us (128 x 64 tiles, autotune/results/h200-edges-2.csv).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from tritonmm.kernels.gluon_api import tma_load


@gluon.jit
def first_row(row, m, TILING: gl.constexpr):
    """The first row of a consumer's block that would begin at `row` if all of its rows were there."""
    if TILING.shifts:
        left = m - row
        ragged = (row > 0) & (left > 0) & (left < TILING.rows)
        return gl.where(ragged, m - TILING.rows, row)
    else:
        return row


@gluon.jit
def expect(bar, left, TILING: gl.constexpr):
    """Announces to `bar` the bytes of a stage of which `left` rows of A are there."""
    EDGE: gl.constexpr = TILING.edge
    BOX_BYTES: gl.constexpr = TILING.stage_bytes // (TILING.block_m + TILING.block_n) * EDGE
    for missing in gl.static_range(TILING.block_m // EDGE):  # how many bytes a barrier expects is a constant
        rows = TILING.block_m - missing * EDGE
        this = (left > rows - EDGE) & ((left <= rows) | (missing == 0))
        mbarrier.expect(bar, TILING.stage_bytes - missing * BOX_BYTES, pred=this)


@gluon.jit
def load(desc, edge_desc, batch, row, left, k, bar, buf, TILING: gl.constexpr):
    """A consumer's block of A from `row` on: whole, or those boxes that have any of the `left` rows that are there."""
    EDGE: gl.constexpr = TILING.edge
    POLICY: gl.constexpr = TILING.a_policy
    if left > TILING.rows - EDGE:
        tma_load(desc, [batch, row, k], bar, buf, POLICY)
    else:
        PANELS: gl.constexpr = TILING.block_k // TILING.panel
        for i in gl.static_range(TILING.rows // EDGE - 1):
            for j in gl.static_range(PANELS):
                box = buf.slice(i * EDGE, EDGE, dim=1).slice(j * TILING.panel, TILING.panel, dim=2)
                tma_load(edge_desc, [batch, row + i * EDGE, k + j * TILING.panel], bar, box, POLICY, left > i * EDGE)
