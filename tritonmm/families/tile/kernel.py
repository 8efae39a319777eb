"""The portable kernel: C = A @ B for any dtype, sizes, strides and batch, on every GPU Triton compiles for.

One program computes one output tile, or walks several when PERSISTENT. Every load and store is
masked, so nothing has to divide and nothing has to be contiguous or aligned.

Offsets: a tile's origin is a 64-bit product, so operands of more than 2**31 elements are safe;
inside a tile 32 bits are enough unless strides are so large that a tile of an operand spans 2**31
elements, which the plan announces with WIDE.

Determinism: one program sums a tile's whole K in a fixed order, so results are bitwise the same
from run to run, and do not depend on the order of the tiles.
"""

import triton
import triton.language as tl

from tritonmm.device.numeric import block_offsets, multiple_of, rounded
from tritonmm.device.order import tile_at
from tritonmm.device.pdl import follow_previous_grid


@triton.jit
def group_scales(
    scale_a, scale_b, rows, cols, group, row_mask, col_mask, stride_sam, stride_sak, stride_sbn, stride_sbk,
    SCALES: tl.constexpr,
):  # fmt: skip
    """What the sums of a group of K are multiplied by: scales of A's rows, if it has any, times those of B's columns.

    SCALES says how many rows and columns share one, as `Problem.scales` does.
    """
    SHARED_ROWS: tl.constexpr = 128 if SCALES == "128x128*1x128" else 1
    SHARED_COLS: tl.constexpr = 128 if SCALES == "1x128*128x128" else 1
    of_cols = tl.load(scale_b + cols // SHARED_COLS * stride_sbn + group * stride_sbk, mask=col_mask, other=0.0)[
        None, :
    ]
    if scale_a is not None:
        of_rows = tl.load(scale_a + rows // SHARED_ROWS * stride_sam + group * stride_sak, mask=row_mask, other=0.0)
        of_cols = of_rows[:, None] * of_cols
    return of_cols


@triton.jit
def accumulate(
    a, b, m_left, n_left, k, stride_am, stride_ak, stride_bk, stride_bn,
    scale_a, scale_b, row, col, stride_sam, stride_sak, stride_sbn, stride_sbk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SUM: tl.constexpr,
    PROMOTES: tl.constexpr, SCALES: tl.constexpr, GROUP: tl.constexpr,
    PRECISION: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """The sums, in SUM, of the tile whose first row of A is at `a` and first column of B at `b`.

    If PROMOTES, each step's sums are added to the others outside of the tensor cores, which keep few bits of sums of
    fp8; if there are scales for each GROUP of K (0: there are none), multiplied by them. B of another dtype than A is
    converted to it.
    """
    rows = block_offsets(BLOCK_M, WIDE)
    cols = block_offsets(BLOCK_N, WIDE)
    depth = block_offsets(BLOCK_K, WIDE)
    # Offsets within a tile stay the same along K and only the two origins move: offsets are half as
    # wide as pointers, and there are as many of them as elements where rows are not aligned.
    a_offsets = rows[:, None] * stride_am + depth[None, :] * stride_ak
    b_offsets = depth[:, None] * stride_bk + cols[None, :] * stride_bn
    a_mask = (rows < m_left)[:, None]
    b_mask = (cols < n_left)[None, :]
    block_k = tl.full((), BLOCK_K, tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), SUM)
    # At least one step, masked off entirely when K is 0: a loop that may run zero times makes ptxas
    # wait after every wgmma (Triton 3.6).
    for step in range(tl.maximum(tl.cdiv(k, BLOCK_K), 1)):
        k_mask = depth < k - step * BLOCK_K
        x = tl.load(a + a_offsets, mask=a_mask & k_mask[None, :], other=0.0)
        y = tl.load(b + b_offsets, mask=k_mask[:, None] & b_mask, other=0.0)
        if INTERPRETED and SUM == tl.float32:  # numpy has neither bf16 nor fp8
            x, y = x.to(tl.float32), y.to(tl.float32)
        elif x.dtype.primitive_bitwidth > y.dtype.primitive_bitwidth:
            y = y.to(x.dtype)
        if PROMOTES:
            part = tl.dot(x, y, input_precision=PRECISION, out_dtype=SUM)
            if GROUP > 0:
                part *= group_scales(
                    scale_a, scale_b, row + rows, col + cols, step * BLOCK_K // GROUP, rows < m_left, cols < n_left,
                    stride_sam, stride_sak, stride_sbn, stride_sbk, SCALES,
                )  # fmt: skip
            acc += part
        else:
            acc = tl.dot(x, y, acc, input_precision=PRECISION, out_dtype=SUM)
        a += block_k * stride_ak
        b += block_k * stride_bk
    return acc


@triton.jit(do_not_specialize=["launched", "programs"])
def tile_kernel(
    a, b, out, c, bias, alpha: tl.float64, beta: tl.float64, table, factors, m, n, k, launched, programs,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn,
    stride_ob, stride_om, stride_on, stride_cb, stride_cm, stride_cn,
    scale_a, stride_sam, stride_sak, scale_b, stride_sbn, stride_sbk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ORDER: tl.constexpr, ALONG: tl.constexpr,
    LAYOUT_A: tl.constexpr, LAYOUT_B: tl.constexpr, DIVISOR: tl.constexpr, DIVISOR_B: tl.constexpr,
    PERSISTENT: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr, SUM: tl.constexpr,
    PROMOTES: tl.constexpr, SCALES: tl.constexpr, GROUP: tl.constexpr,
    WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """out[batch] = alpha * A[batch] @ B[batch] + bias + beta * C[batch], rounded once.

    A is m x k, B k x n. bias, of n, and C are added where they are given; alpha multiplies if SCALED. What is added to
    sums, of dtype SUM, and multiplies them, does so in fp32, or in fp64 where they are. scale_a and scale_b, fp32, are
    the scales of the operands, read at their strides along rows, columns and groups of K, as `Problem.scales` says.
    Grid: (`programs`,), or fewer when PERSISTENT. `launched` is the number of programs that the
    order launches for one product of the batch, `programs` that of the whole batch. DIVISOR divides
    the length of every contiguous row and the stride from one to the next, of all three operands, DIVISOR_B those of B:
    Triton itself only looks for 16, and loads one element at a time where it does not know.
    """
    follow_previous_grid()
    if LAYOUT_A == "n":
        stride_am, k = multiple_of(stride_am, DIVISOR), multiple_of(k, DIVISOR)
    elif LAYOUT_A == "t":
        stride_ak, m = multiple_of(stride_ak, DIVISOR), multiple_of(m, DIVISOR)
    if LAYOUT_B == "n":
        stride_bk, n = multiple_of(stride_bk, DIVISOR_B), multiple_of(n, DIVISOR_B)
    elif LAYOUT_B == "t":
        stride_bn, k = multiple_of(stride_bn, DIVISOR_B), multiple_of(k, DIVISOR_B)
    stride_om, n = multiple_of(stride_om, DIVISOR), multiple_of(n, DIVISOR)
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    stride = programs
    if PERSISTENT:
        stride = tl.num_programs(0)
    for i in range(tl.program_id(0), programs, stride):
        batch = (i // launched).to(tl.int64)
        tile_m, tile_n = tile_at(i % launched, tiles_m, tiles_n, table, factors, ORDER, ALONG)
        if tile_m < tiles_m and tile_n < tiles_n:  # else overflow: split-merge launches more than there is
            row = tile_m.to(tl.int64) * BLOCK_M
            col = tile_n.to(tl.int64) * BLOCK_N
            m_left = (m - row).to(tl.int32)
            n_left = (n - col).to(tl.int32)
            acc = accumulate(
                a + batch * stride_ab + row * stride_am, b + batch * stride_bb + col * stride_bn,
                m_left, n_left, k, stride_am, stride_ak, stride_bk, stride_bn,
                scale_a, scale_b, row, col, stride_sam, stride_sak, stride_sbn, stride_sbk,
                BLOCK_M, BLOCK_N, BLOCK_K, SUM, PROMOTES, SCALES, GROUP, PRECISION, WIDE, INTERPRETED,
            )  # fmt: skip
            rows = block_offsets(BLOCK_M, WIDE)
            cols = block_offsets(BLOCK_N, WIDE)
            inside = (rows < m_left)[:, None] & (cols < n_left)[None, :]
            if SUM == tl.int32 and out.dtype.element_ty != tl.int32:
                acc = acc.to(tl.float32)
            if SCALES == "tensor" or SCALES == "row":
                acc *= group_scales(
                    scale_a, scale_b, row + rows, col + cols, 0, rows < m_left, cols < n_left,
                    stride_sam, stride_sak, stride_sbn, stride_sbk, SCALES,
                )  # fmt: skip
            if SCALED:
                acc *= tl.full((), alpha, acc.dtype)
            if bias is not None:
                acc += tl.load(bias + col + cols, mask=cols < n_left, other=0.0).to(acc.dtype)[None, :]
            if c is not None:
                origin = c + batch * stride_cb + row * stride_cm + col * stride_cn
                added = tl.load(origin + rows[:, None] * stride_cm + cols[None, :] * stride_cn, mask=inside, other=0.0)
                acc += tl.full((), beta, acc.dtype) * added.to(acc.dtype)
            origin = out + batch * stride_ob + row * stride_om + col * stride_on
            tl.store(
                origin + rows[:, None] * stride_om + cols[None, :] * stride_on,
                rounded(acc, out.dtype.element_ty, INTERPRETED),
                mask=inside,
            )
