"""From the sums of the Hopper kernel to its output: the epilogue, and stores without TMA."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def finish(x, batch, row, col, m, n, addends, TILING: gl.constexpr):
    """alpha * x + bias + beta * c for the block of the output that starts at (row, col), in fp32.

    x is first multiplied by the scales of A and B, where a tensor or each row and each column has one.
    """
    alpha, beta, bias, c, stride_cb, stride_cm, stride_cn, scales = addends
    LAYOUT: gl.constexpr = x.type.layout
    if TILING.scales == "tensor":
        x = x.to(gl.float32) * (gl.load(scales[0]) * gl.load(scales[3]))
    elif TILING.scales == "row":
        rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, LAYOUT))
        cols = col + gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT))
        x = x.to(gl.float32) * gl.load(scales[0] + rows * scales[1], mask=rows < m, other=0.0)[:, None]
        x = x * gl.load(scales[3] + cols * scales[4], mask=cols < n, other=0.0)[None, :]
    elif TILING.scaled or TILING.bias or TILING.add_c:
        x = x.to(gl.float32)
    if TILING.scaled:
        x = x * alpha
    if TILING.bias or TILING.add_c:
        cols = col + gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT))
        if TILING.bias:
            x = x + gl.load(bias + cols, mask=cols < n, other=0.0).to(gl.float32)[None, :]
        if TILING.add_c:
            rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, LAYOUT))
            at = rows.to(gl.int64)[:, None] * stride_cm + cols.to(gl.int64)[None, :] * stride_cn
            inside = (rows < m)[:, None] & (cols < n)[None, :]
            added = gl.load(c + batch.to(gl.int64) * stride_cb + at, mask=inside, other=0.0)
            x = x + beta * added.to(gl.float32)
    return x


@gluon.jit
def store_masked(x, batch, row, col, output):
    """x to the block of the output that starts at (row, col), where it is inside."""
    out_desc, out, stride_ob, stride_om, stride_on, m, n, out_bufs = output
    LAYOUT: gl.constexpr = x.type.layout
    rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, LAYOUT))
    cols = col + gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT))
    at = (
        batch.to(gl.int64) * stride_ob + rows.to(gl.int64)[:, None] * stride_om + cols.to(gl.int64)[None, :] * stride_on
    )
    gl.store(out + at, x, mask=(rows < m)[:, None] & (cols < n)[None, :])
