"""How consumers of the Hopper kernel write their part of a tile: piece by piece, by TMA or without."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from tritonmm.device import cluster
from tritonmm.device.columns import split_columns
from tritonmm.device.gluon_compat import tma_store
from tritonmm.families.hopper.epilogue import finish, load_c, store_masked
from tritonmm.families.hopper.mainloop import zeros
from tritonmm.families.hopper.mirror import write_mirrored


@gluon.jit
def first_c(batch, row, col, output, addends, TILING: gl.constexpr):
    """C of the first piece of the consumer's part of a tile, which is loaded before the tile is multiplied; or None."""
    first = None
    if TILING.loads_c_early:
        sums = zeros(0, TILING)
        first = load_c(
            split_columns(sums, sums.shape[1] // TILING.piece_cols, 1)[0], batch, row, col, output, addends, TILING
        )
    return first


@gluon.jit
def write(accs, first, batch, row, col, output, addends, WHO: gl.constexpr, TILING: gl.constexpr):
    """Finishes consumer WHO's part of a whole tile and writes it, one N-subtile after the other."""
    if TILING.cluster == "n":  # a piece is a part of each CTA's columns; its layout knows only the piece's own width
        col += cluster.rank() * (TILING.cta_cols - TILING.cta_piece_cols)
    for j in gl.static_range(len(accs)):
        if TILING.symmetric:
            write_mirrored(accs[j], first if j == 0 else None, batch, row, col, output, addends, WHO, TILING)
        else:
            write_subtile(accs[j], first if j == 0 else None, batch, row, col, output, addends, j, WHO, TILING)
        col += TILING.n_subtiles[j]


@gluon.jit
def write_subtile(
    x, first, batch, row, col, output, addends, SUBTILE: gl.constexpr, WHO: gl.constexpr, TILING: gl.constexpr
):  # fmt: skip
    """Finishes an N-subtile and writes it piece by piece, as `Tiling.store` says. first: C of the first, or None."""
    OUT_DTYPE: gl.constexpr = TILING.out_dtype
    ROW_LAYOUT: gl.constexpr = TILING.row_layout
    BUFFERS: gl.constexpr = TILING.out_buffers
    SHAPE: gl.constexpr = [TILING.rows, TILING.piece_cols]
    COUNT: gl.constexpr = x.shape[1] // TILING.piece_cols
    PIECE: gl.constexpr = TILING.cta_piece_cols
    pieces = split_columns(x, COUNT, TILING.ctas_n)
    added = first
    for i in gl.static_range(COUNT):
        at = col + i * PIECE
        after = None
        if TILING.loads_c_ahead and i < COUNT - 1:
            after = load_c(pieces[i + 1], batch, row, at + PIECE, output, addends, TILING)
        piece = finish(pieces[i], added, batch, row, at, output, addends, TILING).to(OUT_DTYPE)
        added = after
        if TILING.store == "direct":
            store_masked(piece, batch, row, at, output, "")
        else:
            buf = output.buffers.index(WHO * BUFFERS + TILING.out_buffer(SUBTILE, i))
            flat = buf.reshape(SHAPE)
            if TILING.tma_store:
                tma.store_wait(BUFFERS - 1)  # TMA has read what this buffer held
                flat.store(piece)
                fence_async_shared()
                tma_store(output.desc, [batch, row, at], buf)
            else:
                flat.store(piece)
                store_masked(flat.load(ROW_LAYOUT), batch, row, at, output, "")
