"""The epilogue of the Hopper kernel: scales, alpha, bias and C, and stores of what is inside."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritonmm.device.epilogue import plus_c, scaled_plus_bias
from tritonmm.device.residue import residue_in_plane


@gluon.jit
def load_c(x, batch, row, col, output, addends, TILING: gl.constexpr):
    """C of the block of the output that starts at (row, col), in the layout of the block of sums x. None without C."""
    LAYOUT: gl.constexpr = x.type.layout
    added = None
    if TILING.add_c:
        rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, LAYOUT))
        cols = col + gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT))
        at = rows.to(gl.int64)[:, None] * addends.stride_cm + cols.to(gl.int64)[None, :] * addends.stride_cn
        inside = (rows < output.m)[:, None] & (cols < output.n)[None, :]
        added = gl.load(addends.c + batch.to(gl.int64) * addends.stride_cb + at, mask=inside, other=0.0)
    return added


@gluon.jit
def finish(x, added, batch, row, col, output, addends, TILING: gl.constexpr):
    """alpha * x + bias + beta * c for the block of the output that starts at (row, col), in fp32.

    x is first multiplied by the scales of A and B, where a tensor or each row and each column has one. added: C, if it
    has been loaded; else None. Of residues the result is x modulo that of the batch, in int32.
    """
    m, n = output.m, output.n
    LAYOUT: gl.constexpr = x.type.layout
    scales = addends.scales
    rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, LAYOUT))
    cols = col + gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT))
    scale_a, scale_b, bias = None, None, None
    if TILING.scales == "tensor":
        scale_a, scale_b = gl.load(scales.a), gl.load(scales.b)
    elif TILING.scales == "row":
        scale_a = gl.load(scales.a + rows * scales.stride_am, mask=rows < m, other=0.0)[:, None]
        scale_b = gl.load(scales.b + cols * scales.stride_bn, mask=cols < n, other=0.0)[None, :]
    if TILING.bias:
        bias = gl.load(addends.bias + cols, mask=cols < n, other=0.0).to(gl.float32)[None, :]
    MODULI: gl.constexpr = TILING.moduli
    if len(MODULI) > 0:
        x = residue_in_plane(x, batch % len(MODULI), MODULI)
    elif TILING.out_dtype != gl.int32 or TILING.scales != "" or TILING.scaled or TILING.bias or TILING.add_c:
        x = x.to(gl.float32)
    x = scaled_plus_bias(x, scale_a, scale_b, addends.alpha if TILING.scaled else None, bias)
    if added is None:
        added = load_c(x, batch, row, col, output, addends, TILING)
    return x if added is None else plus_c(x, addends.beta, added)


@gluon.jit
def store_masked(x, batch, row, col, output, SIDE: gl.constexpr):
    """Stores x to the block of the output that starts at (row, col), as far as it is inside.

    SIDE: "lower" stores only what is on or below the diagonal of the output, "upper" what is above, "" both.
    """
    LAYOUT: gl.constexpr = x.type.layout
    rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, LAYOUT))
    cols = col + gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT))
    at = (
        batch.to(gl.int64) * output.stride_b
        + rows.to(gl.int64)[:, None] * output.stride_m
        + cols.to(gl.int64)[None, :] * output.stride_n
    )
    inside = (rows < output.m)[:, None] & (cols < output.n)[None, :]
    if SIDE == "lower":
        inside = inside & (rows[:, None] >= cols[None, :])
    elif SIDE == "upper":
        inside = inside & (rows[:, None] < cols[None, :])
    gl.store(output.pointer + at, x, mask=inside)
