"""Tiles whose rows are not all there, loaded so that none, or few, beyond the matrix are asked for.

TMA fills what lies outside of a tensor with zeros, and takes longer for it than for reading. Programs with one row left
were slower than whole ones and held up all others: 257x4096x4096 took 30.1 us, 384x4096x4096 22.6 us (bf16, 128 x 128
tiles, autotune/results/h200-edges.csv). Hence, the first that is possible:

even      Tiles that are all multiplied at once, by consumers of all their rows, have equal shares of them, in boxes
          like those of a rest: the largest tile decides how long it takes. The last begins earlier, see shifts.
absent    A consumer with no rows left asks for none and, if it has registers for that, multiplies nothing.
rest      With few tiles along M: rows that a box of 8, 16, 32 or 64 holds, of which at most 7 are not there, come in
          that box, which has a descriptor of its own; behind boxes of 32 if A has fewer rows than a consumer's block.
shifts    Else, with few tiles, a consumer begins earlier, so that its last row is the last of the matrix: the rows
          before its own are those of another consumer, which writes the same bits to them. It is no option where two
          must not write the same row.
boxes     Else the rows come in boxes of `Tiling.edge`, and no box is wholly outside.

What the buffer's other rows hold is multiplied too, whatever it is: a row of A counts for the same row of the output
alone, which is not written. A box is as wide as a panel that TMA swizzles, 128 bytes of K; rests and boxes are for
operands whose K is contiguous, with steps that fill such panels.

How many boxes matters. Eight for 128 rows would be more than the loader issues in the time of a step: 139x4096x4096
took 24.6 us with them, with four 17.5 us (128 x 64 tiles, autotune/results/h200-edges-2.csv). Instructions that are
predicated off count, too: 100x7168x8192 took 38.5 us in tiles of 128 x 64 where each box was asked for if it had rows,
and takes 37.2 where `Tiling.all_rows` says which have. Shifts took 16.7 us for 200x4096x4096 and boxes 19.2
(h200-overlaps.csv); a rest takes 15.0 us for 129x4096x4096 and a shift 16.5 (h200-rest.csv). Equal shares take 14.9 us
for it where a rest took 15.2 in the same runs, 15.3 for 150 rows instead of 16.5 and 16.0 for 200 instead of 17.1;
but for 257 rows they were up to 9% slower in tiles of several consumers along M, which multiply whole blocks anyway
(h200-even.csv). Consumers with no rows that multiply nothing save up to 2%, and cost nothing: 2049x4096x4096 took 95.1
us in tiles of 128 x 256 and takes 93.1 (h200-absent.csv).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from tritonmm.device.gluon_compat import tma_load
from tritonmm.device.pipeline import next_use, release
from tritonmm.families.hopper import ordered_mma as turns


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
def first_of_tile(row, m, TILING: gl.constexpr):
    """The first row of the tile that would begin at `row` if the last tile could end beyond the matrix."""
    if TILING.even:
        return gl.minimum(row, m - TILING.all_rows)
    else:
        return row


@gluon.jit
def pass_over(ring, stage, phase, count, left, WHO: gl.constexpr, TILING: gl.constexpr):
    """The ring's position and `count`, where consumer WHO has rows left. Else it releases its uses as they come, and
    gives up its turns: the position after them, and none left."""
    empty, full = ring[2], ring[3]
    PARTS: gl.constexpr = TILING.parts_m * TILING.parts_n
    passed = gl.where(left > 0, 0, count)
    for _ in range(passed):
        mbarrier.wait(full.index(stage), phase)
        for _ in gl.static_range(PARTS):
            turns.take(WHO, TILING)
            turns.give(WHO, TILING)
        stage, phase = next_use(stage, phase, TILING.num_stages)
        release(empty, stage, True, TILING)
    return stage, phase, count - passed


@gluon.jit
def expect(bar, left, TILING: gl.constexpr):
    """Announces to `bar` the bytes of a stage of which `left` rows of A are there."""
    EDGE: gl.constexpr = TILING.edge
    ROW_BYTES: gl.constexpr = TILING.stage_bytes // (TILING.block_m + TILING.block_n)
    if TILING.all_rows:
        mbarrier.expect(bar, (TILING.all_rows + TILING.block_n) * ROW_BYTES)
    else:
        SAVED: gl.constexpr = EDGE - TILING.rest if TILING.rest else 0
        mbarrier.expect(bar, TILING.stage_bytes, pred=left >= TILING.block_m)
        for missing in gl.static_range(TILING.block_m // EDGE):  # how many bytes a barrier expects is a constant
            rows = TILING.block_m - missing * EDGE
            this = (left > rows - EDGE) & (left <= rows) & (left < TILING.block_m)
            mbarrier.expect(bar, TILING.stage_bytes - (missing * EDGE + SAVED) * ROW_BYTES, pred=this)


@gluon.jit
def load(desc, edge_desc, batch, row, left, k, bar, buf, TILING: gl.constexpr):
    """A consumer's block of A from `row` on: whole, or those boxes that have any of the `left` rows that are there."""
    EDGE: gl.constexpr = TILING.edge
    REST: gl.constexpr = TILING.rest
    PANELS: gl.constexpr = TILING.block_k // TILING.panel
    if REST or TILING.all_rows:
        BOXES: gl.constexpr = TILING.all_rows // EDGE
        if not TILING.all_rows:
            tma_load(desc, [batch, row, k], bar, buf, left >= EDGE)
        for j in gl.static_range(PANELS):
            panel = buf.slice(j * TILING.panel, TILING.panel, dim=2)
            at_k = k + j * TILING.panel
            for i in gl.static_range(BOXES):
                box = panel.slice(i * EDGE, EDGE, dim=1)
                tma_load(desc, [batch, row + i * EDGE, at_k], bar, box, left > 0)
            if REST:
                last = panel.slice(BOXES * EDGE, REST, dim=1)
                there = (left > 0) & (TILING.all_rows > 0 or left < TILING.rows)
                tma_load(edge_desc, [batch, row + BOXES * EDGE, at_k], bar, last, there)
    elif left > TILING.rows - EDGE:
        tma_load(desc, [batch, row, k], bar, buf)
    else:
        for i in gl.static_range(TILING.rows // EDGE - 1):
            for j in gl.static_range(PANELS):
                box = buf.slice(i * EDGE, EDGE, dim=1).slice(j * TILING.panel, TILING.panel, dim=2)
                tma_load(edge_desc, [batch, row + i * EDGE, k + j * TILING.panel], bar, box, left > i * EDGE)
