"""A transpose through shared memory: rows of a tile are written, columns are read.

Source: Lei Mao, "CUDA Shared Memory Swizzling", which has one kernel for each of plain, padded and swizzled tiles. Here
    the shared layout is a parameter. `launch.py` chooses the layouts and counts their conflicts.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritonmm.device.numeric import multiple_of


@gluon.jit
def tile_offsets(stride_row, stride_col, LAYOUT: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr,
                 WIDE: gl.constexpr):  # fmt: skip
    """Rows and columns of a tile in LAYOUT, and the offset of each element."""
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    cols = gl.arange(0, COLS, gl.SliceLayout(0, LAYOUT))
    if WIDE:
        rows, cols = rows.to(gl.int64), cols.to(gl.int64)
    return rows, cols, rows[:, None] * stride_row + cols[None, :] * stride_col


@gluon.jit(do_not_specialize=["m", "n", "stride_xm", "stride_on"])
def transpose_kernel(
    x, out, m, n, stride_xm, stride_xn, stride_on, stride_om,
    ROWS: gl.constexpr, COLS: gl.constexpr, LOAD_VECTOR: gl.constexpr, STORE_VECTOR: gl.constexpr,
    LOAD: gl.constexpr, STORE: gl.constexpr, SHARED: gl.constexpr, WIDE: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """out[n, m] = x[m, n]; each program transposes a ROWS x COLS tile of x.

    LOAD and STORE assign the elements of a tile to threads: along its rows for loading, along its columns for storing.
        LOAD_VECTOR divides n and the row stride of x; STORE_VECTOR divides m and the row stride of out.
    """
    tiles_n = gl.cdiv(n, COLS)
    tile = gl.program_id(0)
    row = tile // tiles_n * ROWS
    col = tile % tiles_n * COLS
    m_left, n_left = multiple_of(m - row, STORE_VECTOR), multiple_of(n - col, LOAD_VECTOR)
    stride_xm, stride_on = multiple_of(stride_xm, LOAD_VECTOR), multiple_of(stride_on, STORE_VECTOR)
    x += row.to(gl.int64) * stride_xm + col.to(gl.int64) * stride_xn
    out += col.to(gl.int64) * stride_on + row.to(gl.int64) * stride_om

    rows, cols, offsets = tile_offsets(stride_xm, stride_xn, LOAD, ROWS, COLS, WIDE)
    values = gl.load(x + offsets, mask=(rows < m_left)[:, None] & (cols < n_left)[None, :])
    shared = gl.allocate_shared_memory(x.dtype.element_ty, [ROWS, COLS], SHARED)
    shared.store(values)
    values = shared.load(STORE)
    rows, cols, offsets = tile_offsets(stride_om, stride_on, STORE, ROWS, COLS, WIDE)
    gl.store(out + offsets, values, mask=(rows < m_left)[:, None] & (cols < n_left)[None, :])
