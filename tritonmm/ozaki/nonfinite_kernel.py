"""Elements of a product in rows of A and columns of B with an infinity or NaN.

Such an element has a term that is an infinity or NaN, so it is one itself. Finite terms do not matter: factors are
replaced by their signs, and the sum is that of IEEE for any order of summation.

1. Each program looks whether A or B has a line that is not finite. Where neither has, it ends.
2. Otherwise it computes blocks of the output with such lines, and stores the elements of those lines alone.

Supports any sizes and strides; every GPU and the interpreter.
"""

from dataclasses import dataclass

import triton
import triton.language as tl

from tritonmm.device.constexpr_args import ConstexprArgs
from tritonmm.device.operand import Addends, Output
from tritonmm.device.pdl import follow_previous_grid
from tritonmm.ozaki.norms_kernel import NONFINITE
from tritonmm.ozaki.reconstruct_kernel import finish


@dataclass(frozen=True)
class NonfiniteSpec(ConstexprArgs):
    """What `nonfinite_kernel` is compiled for."""

    block_m: int
    block_n: int
    block_k: int
    scaled: bool  # alpha multiplies


@triton.jit
def signs(x):
    """1, 0 and -1 for finite elements, others as they are, in fp32."""
    finite = tl.abs(x) < float("inf")
    sign = tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0)).to(tl.float32)
    return tl.where(finite, sign, tl.where(finite, 0.0, x).to(tl.float32))


@triton.jit(do_not_specialize=["m", "n", "k", "batches"])
def nonfinite_kernel(
    row_scales, col_scales, row_special, col_special, a, b, out, c, bias, alpha: tl.float64, beta: tl.float64,
    m, n, k, batches,
    a_strides, b_strides, out_strides, c_strides, S: tl.constexpr,
):  # fmt: skip
    """The elements that `reconstruct_kernel` does not write, with the same arguments. a: m x k; b: k x n.

    row_special, col_special: not 0 if a row or a column is not finite; they may be of more rows and columns.
    Strides are along the batch, rows and columns. Grid: any number of programs.
    """
    follow_previous_grid()
    stride_ab, stride_am, stride_ak = a_strides
    stride_bb, stride_bk, stride_bn = b_strides
    stride_ob, stride_om, stride_on = out_strides
    stride_cb, stride_cm, stride_cn = c_strides
    SHAPE: tl.constexpr = [S.block_m, S.block_n]
    blocks_m, blocks_n = tl.cdiv(m, S.block_m), tl.cdiv(n, S.block_n)
    blocks = 0
    if (tl.load(row_special) | tl.load(col_special)) != 0:
        blocks = batches * blocks_m * blocks_n
    for i in range(tl.program_id(0), blocks, tl.num_programs(0)):
        col = i % blocks_n * S.block_n
        row = i // blocks_n % blocks_m * S.block_m
        batch = (i // blocks_n // blocks_m).to(tl.int64)
        rows, cols = (row + tl.arange(0, S.block_m)).to(tl.int64), (col + tl.arange(0, S.block_n)).to(tl.int64)
        of_rows, of_cols = rows < m, cols < n
        row_scale = tl.load(row_scales + batch * m + rows, mask=of_rows, other=0)
        col_scale = tl.load(col_scales + batch * n + cols, mask=of_cols, other=0)
        asked = (row_scale == NONFINITE)[:, None] | (col_scale == NONFINITE)[None, :]
        if (tl.max(row_scale, axis=0) == NONFINITE) | (tl.max(col_scale, axis=0) == NONFINITE):
            acc = tl.zeros(SHAPE, tl.float32)
            for first in range(0, k, S.block_k):
                depth = (first + tl.arange(0, S.block_k)).to(tl.int64)
                a_at = a + batch * stride_ab + rows[:, None] * stride_am + depth[None, :] * stride_ak
                b_at = b + batch * stride_bb + depth[:, None] * stride_bk + cols[None, :] * stride_bn
                x = tl.load(a_at, mask=of_rows[:, None] & (depth < k)[None, :], other=0.0)
                y = tl.load(b_at, mask=(depth < k)[:, None] & of_cols[None, :], other=0.0)
                acc = tl.dot(signs(x), signs(y), acc, input_precision="ieee")
            inside = asked & of_rows[:, None] & of_cols[None, :]
            addends = Addends(c, stride_cb, stride_cm, stride_cn, bias, alpha, beta)
            output = Output(out, stride_ob, stride_om, stride_on)
            finish(acc.to(tl.float64), batch, row, col, inside, of_cols, output, addends, S.scaled)
