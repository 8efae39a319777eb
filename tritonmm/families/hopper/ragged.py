"""Ragged tiles of the Hopper kernel: tiles with fewer rows of A than a block, loaded so that few rows beyond the matrix
are asked for.

TMA fills rows outside of a tensor with zeros, and takes longer for them than for reading. `launch.py` chooses the first
of these that is possible; the names are those of `Tiling`.

equal_tiles     The rows are divided equally among all tiles, in boxes of `box_rows` and one of `last_box_rows`: for
                tiles that are all multiplied at once, by consumers of all their rows. The last tile begins earlier, so
                that its last row is the last of the matrix.
skips_empty     A consumer without rows loads none and, if it has registers for that, multiplies nothing.
last_box_rows   With few tiles along M: rows that a box of 8, 16, 32 or 64 holds, at most 7 of them beyond the matrix,
                come in that box, which has a descriptor of its own; behind boxes of 32 rows if A has fewer rows than a
                consumer's block.
shifts          Else, with few tiles: a consumer's block begins earlier, so that its last row is the last of the matrix.
                The rows before its own are another consumer's, which writes the same bits to them. Not where a row must
                not be written twice.
box_rows        Else the rows come in boxes of `box_rows`, none of them wholly beyond the matrix.

The other rows of the buffer are multiplied too, whatever they hold: a row of A only counts for the same row of the
output, which is not written. A box is as wide as a panel that TMA swizzles, 128 bytes of K; boxes are for operands with
K contiguous, in K steps of whole panels. The loader issues each box in every K step, predicated or not, so a tile has
at most four. Measurements: docs/notebook/hopper.md.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from tritonmm.device import ordered_mma
from tritonmm.device.gluon_compat import tma_load
from tritonmm.device.pipeline import next_use, release


@gluon.jit
def first_row(row, m, TILING: gl.constexpr):
    """The first row that a consumer loads, whose block begins at `row`."""
    if TILING.shifts:
        left = m - row
        ragged = (row > 0) & (left > 0) & (left < TILING.rows)
        return gl.where(ragged, m - TILING.rows, row)
    else:
        return row


@gluon.jit
def first_of_tile(row, m, TILING: gl.constexpr):
    """The first row of the tile at `row`: where tiles are equal, none ends beyond the matrix."""
    if TILING.equal_tiles:
        return gl.minimum(row, m - TILING.tile_rows)
    else:
        return row


@gluon.jit
def skip_empty(pipeline, stage, phase, count, left, WHO: gl.constexpr, TILING: gl.constexpr):
    """The pipeline position and `count` where consumer WHO has rows `left`. Without rows, it releases `count` uses as
    they come, and passes on its turns; returns the position after them, and 0."""
    PARTS: gl.constexpr = TILING.parts_m * TILING.parts_n
    skipped = gl.where(left > 0, 0, count)
    for _ in range(skipped):
        mbarrier.wait(pipeline.full.index(stage), phase)
        for _ in gl.static_range(PARTS):
            ordered_mma.wait(WHO, TILING)
            ordered_mma.arrive(WHO, TILING)
        stage, phase = next_use(stage, phase, TILING.num_stages)
        release(pipeline.empty, stage, True, TILING)
    return stage, phase, count - skipped


@gluon.jit
def expect(bar, left, TILING: gl.constexpr):
    """Has `bar` expect the bytes of a stage with `left` rows of A."""
    BOX: gl.constexpr = TILING.box_rows
    ROW_BYTES: gl.constexpr = TILING.stage_bytes // (TILING.block_m + TILING.block_n)
    if TILING.tile_rows:
        mbarrier.expect(bar, (TILING.tile_rows + TILING.block_n) * ROW_BYTES)
    else:
        SAVED: gl.constexpr = BOX - TILING.last_box_rows if TILING.last_box_rows else 0
        mbarrier.expect(bar, TILING.stage_bytes, pred=left >= TILING.block_m)
        for missing in gl.static_range(TILING.block_m // BOX):  # how many bytes a barrier expects is a constant
            rows = TILING.block_m - missing * BOX
            this = (left > rows - BOX) & (left <= rows) & (left < TILING.block_m)
            mbarrier.expect(bar, TILING.stage_bytes - (missing * BOX + SAVED) * ROW_BYTES, pred=this)


@gluon.jit
def load(operands, batch, row, left, k, bar, buf, TILING: gl.constexpr):
    """Loads a consumer's block of A from `row` on: whole, or the boxes that have any of the `left` rows."""
    BOX: gl.constexpr = TILING.box_rows
    LAST: gl.constexpr = TILING.last_box_rows
    PANELS: gl.constexpr = TILING.block_k // TILING.panel
    if LAST or TILING.tile_rows:
        BOXES: gl.constexpr = TILING.tile_rows // BOX
        if not TILING.tile_rows:
            tma_load(operands.a, [batch, row, k], bar, buf, left >= BOX)
        for j in gl.static_range(PANELS):
            panel = buf.slice(j * TILING.panel, TILING.panel, dim=2)
            at_k = k + j * TILING.panel
            for i in gl.static_range(BOXES):
                box = panel.slice(i * BOX, BOX, dim=1)
                tma_load(operands.a, [batch, row + i * BOX, at_k], bar, box, left > 0)
            if LAST:
                last = panel.slice(BOXES * BOX, LAST, dim=1)
                there = (left > 0) & (TILING.tile_rows > 0 or left < TILING.rows)
                tma_load(operands.ragged_a, [batch, row + BOXES * BOX, at_k], bar, last, there)
    elif left > TILING.rows - BOX:
        tma_load(operands.a, [batch, row, k], bar, buf)
    else:
        for i in gl.static_range(TILING.rows // BOX - 1):
            for j in gl.static_range(PANELS):
                box = buf.slice(i * BOX, BOX, dim=1).slice(j * TILING.panel, TILING.panel, dim=2)
                tma_load(operands.ragged_a, [batch, row + i * BOX, k + j * TILING.panel], bar, box, left > i * BOX)
