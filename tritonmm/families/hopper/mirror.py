"""Symmetric products: each element below the diagonal is written to its place and to the opposite one.

Tiles meet the lower triangle (`orders.Triangular`); what lies above the diagonal in a tile is not written. So one
program writes both elements of a pair, from the same sums, and no other program writes either: the product's bits are
symmetric, and C may be the output. Bias and C are those of the place that is written; where there are none, or C is
symmetric too, so is the output, and a finished element is written twice.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from tritonmm.device.columns import split_columns
from tritonmm.device.gluon_compat import tma_store
from tritonmm.families.hopper.epilogue import finish, load_c, store_masked


@gluon.jit
def store_both(x, batch, row, col, output, addends, TILING: gl.constexpr):
    """Finishes the block of sums x at (row, col) and stores it from registers, and the same transposed."""
    DTYPE: gl.constexpr = TILING.out_dtype
    below = finish(x, None, batch, row, col, output, addends, TILING).to(DTYPE)
    store_masked(below, batch, row, col, output, "lower")
    if TILING.mirrors_output:
        above = below.permute(1, 0)
    else:
        mirrored = x.permute(1, 0)
        above = finish(mirrored, None, batch, col, row, output, addends, TILING).to(DTYPE)
    store_masked(above, batch, col, row, output, "upper")


@gluon.jit
def write_block(x, batch, row, col, is_whole, desc, buf, output, SIDE: gl.constexpr, TILING: gl.constexpr):
    """Writes a finished block at (row, col) through its buffer: by TMA if it `is_whole` on its side of the diagonal."""
    LAYOUT: gl.constexpr = TILING.piece_layout(x.shape[1])
    flat = buf.reshape(x.shape)
    if TILING.tma_store:
        if is_whole:
            tma.store_wait(1)  # TMA has read what this buffer held; the other one may still be read
            flat.store(x)
            fence_async_shared()
            tma_store(desc, [batch, row, col], buf)
        else:
            tma.store_wait(0)
            flat.store(x)
            store_masked(flat.load(LAYOUT), batch, row, col, output, SIDE)
    else:
        flat.store(x)
        store_masked(flat.load(LAYOUT), batch, row, col, output, SIDE)


@gluon.jit
def write_mirrored(x, first, batch, row, col, output, addends, WHO: gl.constexpr, TILING: gl.constexpr):
    """Finishes an N-subtile and writes it piece by piece, each piece and the same transposed, from a buffer each.

    first: C of the first piece, or None.
    """
    DTYPE: gl.constexpr = TILING.out_dtype
    ROWS: gl.constexpr = TILING.rows
    COLS: gl.constexpr = TILING.piece_cols
    COUNT: gl.constexpr = x.shape[1] // COLS
    pieces = split_columns(x, COUNT, 1)
    added = first
    for i in gl.static_range(COUNT):
        at = col + i * COLS
        after = None
        if TILING.loads_c_ahead and i < COUNT - 1:
            after = load_c(pieces[i + 1], batch, row, at + COLS, output, addends, TILING)
        if row + ROWS > at:  # else all of it is above the diagonal
            is_whole = row >= at + COLS
            below = finish(pieces[i], added, batch, row, at, output, addends, TILING).to(DTYPE)
            direct = output.buffers.index(WHO)
            write_block(below, batch, row, at, is_whole, output.desc, direct, output, "lower", TILING)
            if TILING.mirrors_output:
                above = below.permute(1, 0)
            else:
                opposite = pieces[i].permute(1, 0)
                above = finish(opposite, None, batch, at, row, output, addends, TILING).to(DTYPE)
            mirrored = output.mirrored_buffers.index(WHO)
            write_block(above, batch, at, row, is_whole, output.mirrored_desc, mirrored, output, "upper", TILING)
        added = after
