"""The skinny kernel: products with few rows or few columns, which cost what it costs to read the larger operand.

That operand, the weights W [rows, k], is streamed once, be it of the other's dtype or of 1 byte with
scales; the other, the activations X [cols, k], is small and comes from L2. What is computed is W @ X^T,
so that the tall side of the tensor cores holds weights; whether rows are the output's columns or its
rows is a matter of the strides that are passed.
One program sums BLOCK_R rows of W, BLOCK_C of X and a part of K. BLOCK_C = 1 multiplies on the CUDA
cores: there are as many multiply-adds as weights, and a tensor core would do eight times as many.

Where SPLIT_K programs share a tile, each leaves its fp32 sums in memory and counts itself; the one
that counts last adds all of them. Nobody waits, so no grid needs to be resident as a whole.

Determinism: the parts are added in the order of K, whoever adds them, so results are bitwise the
same from run to run.
"""

import triton
import triton.language as tl

from tritonmm.device.dequantize import as_fp32, dequantized, interleaved, unit
from tritonmm.device.numeric import block_offsets, multiple_of, rounded
from tritonmm.device.order import tile_at
from tritonmm.device.pdl import follow_previous_grid
from tritonmm.device.split_k import last_arriver_fixup, slot_sums


@triton.jit
def dotted(
    w, x, rows_left, cols_left, k, steps, stride_wr, stride_wk, stride_xc, stride_xk,
    scale, stride_sr, stride_sk, first,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, GROUP: tl.constexpr,
    INTERLEAVED: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """The sums over `steps` blocks of K, on tensor cores; the loads run ahead through shared memory.

    Weights of a byte are converted to the dtype of X on their way, and multiplied in another order of K if INTERLEAVED,
    which makes their loads from shared memory wide. If GROUP, each block's sums are multiplied by the
    scales, at `scale`, that its GROUP elements of K have for each row of weights; the steps count from `first`.
    """
    rows = block_offsets(BLOCK_R, WIDE)
    cols = block_offsets(BLOCK_C, WIDE)
    depth = block_offsets(BLOCK_K, WIDE)
    w_offsets = rows[:, None] * stride_wr + depth[None, :] * stride_wk
    x_offsets = depth[:, None] * stride_xk + cols[None, :] * stride_xc
    w_mask = (rows < rows_left)[:, None]
    x_mask = (cols < cols_left)[None, :]
    block_k = tl.full((), BLOCK_K, tl.int64)
    CONVERTED: tl.constexpr = not INTERPRETED and w.dtype.element_ty.primitive_bitwidth == 8
    UNIT: tl.constexpr = unit(w.dtype.element_ty, x.dtype.element_ty) if CONVERTED else 1.0
    acc = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for step in range(steps):
        if EVEN_K:
            weights = tl.load(w + w_offsets, mask=w_mask, other=0.0)
            activations = tl.load(x + x_offsets, mask=x_mask, other=0.0)
        else:
            k_mask = depth < k - step * BLOCK_K
            weights = tl.load(w + w_offsets, mask=w_mask & k_mask[None, :], other=0.0)
            activations = tl.load(x + x_offsets, mask=k_mask[:, None] & x_mask, other=0.0)
        if INTERPRETED:  # numpy has no bf16
            weights, activations = weights.to(tl.float32), activations.to(tl.float32)
        elif CONVERTED:
            weights = dequantized(weights, activations.dtype, INTERLEAVED)
        if INTERLEAVED:
            weights, activations = interleaved(weights), interleaved(activations.T).T
        if GROUP > 0:
            group = ((first + step) // (GROUP // BLOCK_K)).to(tl.int64)
            scales = tl.load(scale + group * stride_sk + rows * stride_sr, mask=rows < rows_left, other=0.0)
            acc += tl.dot(weights, activations, input_precision=PRECISION) * (scales * UNIT)[:, None]
        else:
            acc = tl.dot(weights, activations, acc, input_precision=PRECISION)
        w += block_k * stride_wk
        x += block_k * stride_xk
    return acc if GROUP > 0 else acc * UNIT


@triton.jit
def streamed(
    w, x, rows_left, k, steps, stride_wr, stride_wk, stride_xk, scale, stride_sr, stride_sk, first,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr,
    WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """The same for one row of X, on CUDA cores: each thread keeps sums of its own, added up once behind the loop.

    If GROUP, a multiple of UNIT: a thread adds up the products of UNIT neighbours, which it has loaded together, and
    multiplies those sums by their group's scale.
    """
    UNIT: tl.constexpr = 16 if GROUP > 0 else 1
    rows = block_offsets(BLOCK_R, WIDE)
    depth = block_offsets(BLOCK_K, WIDE)[None, :]  # two dimensions, so that X is loaded in the layout of W
    w_offsets = rows[:, None] * stride_wr + depth * stride_wk
    x_offsets = depth * stride_xk
    w_mask = (rows < rows_left)[:, None]
    block_k = tl.full((), BLOCK_K, tl.int64)
    units = block_offsets(BLOCK_K // UNIT, WIDE)[None, :] * UNIT
    acc = tl.zeros((BLOCK_R, BLOCK_K // UNIT), tl.float32)
    for step in tl.range(steps, num_stages=STAGES):
        if EVEN_K:
            weights = tl.load(w + w_offsets, mask=w_mask, other=0.0)
            activations = tl.load(x + x_offsets)
        else:
            k_mask = depth < k - step * BLOCK_K
            weights = tl.load(w + w_offsets, mask=w_mask & k_mask, other=0.0)
            activations = tl.load(x + x_offsets, mask=k_mask, other=0.0)
        products = (weights.to(tl.float32) if INTERPRETED else as_fp32(weights)) * activations.to(tl.float32)
        if GROUP > 0:
            group = ((first + step).to(tl.int64) * BLOCK_K + units) // GROUP
            inside = w_mask & (units < k - step * BLOCK_K)
            scales = tl.load(scale + group * stride_sk + rows[:, None] * stride_sr, mask=inside, other=0.0)
            acc += tl.sum(products.reshape(BLOCK_R, BLOCK_K // UNIT, UNIT), axis=2) * scales
        else:
            acc += products
        w += block_k * stride_wk
        x += block_k * stride_xk
    return tl.sum(acc, axis=1)[:, None]


@triton.jit(do_not_specialize=["launched", "programs"])
def skinny_kernel(
    w, x, out, c, bias, alpha, beta, table, factors, workspace, flags, rows, cols, k, launched, programs,
    stride_wb, stride_wr, stride_wk, stride_xb, stride_xc, stride_xk,
    stride_ob, stride_or, stride_oc, stride_cb, stride_cr, stride_cc, stride_br, stride_bc,
    scale_b, stride_sr, stride_sk,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
    ORDER: tl.constexpr, ALONG: tl.constexpr, SWAPPED: tl.constexpr, BATCHED: tl.constexpr,
    LAYOUT_W: tl.constexpr, LAYOUT_X: tl.constexpr, DIVISOR_W: tl.constexpr, DIVISOR_X: tl.constexpr,
    EVEN_K: tl.constexpr, STAGES: tl.constexpr, UNROLL: tl.constexpr, SCALED: tl.constexpr, GROUP: tl.constexpr,
    INTERLEAVED: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """out[batch] = alpha * W[batch] @ X[batch]^T + bias + beta * C[batch], rounded once; W rows x k, X cols x k.

    bias and C, where they are given, are read at their strides along rows and cols. Grid: (`programs` * SPLIT_K,);
    `launched` is the number of indices of the order for one product of the batch, `programs` that of all.
    SWAPPED: rows are the output's rows, not its columns. LAYOUT_W, LAYOUT_X: "n" where K is the contiguous
    dimension, "t" where the other is. DIVISOR_W and DIVISOR_X divide the length of every contiguous row of W and of X
    and the stride from one to the next. scale_b: fp32 scales of the rows of W, or of each GROUP elements of K in
    them, at their strides along rows and groups. EVEN_K: BLOCK_K divides k. UNROLL: parts that are loaded together.
    workspace: SPLIT_K x BLOCK_R x BLOCK_C for each tile; flags: one for each, its lower 31 bits zero.
    """
    follow_previous_grid()
    if LAYOUT_X == "n":
        stride_xc, k = multiple_of(stride_xc, DIVISOR_X), multiple_of(k, DIVISOR_X)
    elif LAYOUT_X == "t":
        stride_xk, cols = multiple_of(stride_xk, DIVISOR_X), multiple_of(cols, DIVISOR_X)
    if LAYOUT_W == "n":  # the last that is said of k, as there are more weights than others to 16 bytes
        stride_wr, k = multiple_of(stride_wr, DIVISOR_W), multiple_of(k, DIVISOR_W)
    elif LAYOUT_W == "t":
        stride_wk, rows = multiple_of(stride_wk, DIVISOR_W), multiple_of(rows, DIVISOR_W)
    tiles_r = tl.cdiv(rows, BLOCK_R)
    tiles_c = tl.cdiv(cols, BLOCK_C)
    item = tl.program_id(0)
    part = 0
    if SPLIT_K > 1:  # neighbours read the same part of X: what they ask for together leaves L2 once
        part = item // programs
        item = item % programs
    batch = tl.full((), 0, tl.int64)
    i = item
    if BATCHED:
        batch = (item // launched).to(tl.int64)
        i = item % launched
    if SWAPPED:
        tile_r, tile_c = tile_at(i, tiles_r, tiles_c, table, factors, ORDER, ALONG)
    else:
        tile_c, tile_r = tile_at(i, tiles_c, tiles_r, table, factors, ORDER, ALONG)
    if tile_r < tiles_r and tile_c < tiles_c:  # else overflow: split-merge launches more than there is
        row = tile_r.to(tl.int64) * BLOCK_R
        col = tile_c.to(tl.int64) * BLOCK_C
        rows_left = (rows - row).to(tl.int32)
        cols_left = (cols - col).to(tl.int32)
        # The first parts have a step more where SPLIT_K does not divide them. At least one step, masked off entirely
        # when K is 0: a loop that may run zero times makes ptxas wait after every wgmma (Triton 3.6).
        steps = tl.cdiv(k, BLOCK_K)
        more = steps % SPLIT_K
        first = part * (steps // SPLIT_K) + tl.minimum(part, more)
        start = first.to(tl.int64) * BLOCK_K
        steps = tl.maximum(steps // SPLIT_K + (part < more).to(tl.int32), 1)
        k_left = (k - start).to(tl.int32)
        w += batch * stride_wb + row * stride_wr + start * stride_wk
        x += batch * stride_xb + col * stride_xc + start * stride_xk
        if BLOCK_C == 1:
            acc = streamed(
                w, x, rows_left, k_left, steps, stride_wr, stride_wk, stride_xk,
                scale_b + row * stride_sr if GROUP > 0 else None, stride_sr, stride_sk, first,
                BLOCK_R, BLOCK_K, EVEN_K, GROUP, STAGES, WIDE, INTERPRETED,
            )  # fmt: skip
        else:
            acc = dotted(
                w, x, rows_left, cols_left, k_left, steps, stride_wr, stride_wk, stride_xc, stride_xk,
                scale_b + row * stride_sr if GROUP > 0 else None, stride_sr, stride_sk, first,
                BLOCK_R, BLOCK_C, BLOCK_K, EVEN_K, GROUP, INTERLEAVED, PRECISION, WIDE, INTERPRETED,
            )  # fmt: skip
        writes = True
        if SPLIT_K > 1:
            in_slot = tl.arange(0, BLOCK_R)[:, None] * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
            sums = slot_sums(workspace, item, SPLIT_K * BLOCK_R * BLOCK_C)
            acc, writes = last_arriver_fixup(acc, in_slot, sums, flags + item, part, SPLIT_K, BLOCK_R * BLOCK_C, UNROLL)
        if writes:
            r = block_offsets(BLOCK_R, WIDE)[:, None]
            s = block_offsets(BLOCK_C, WIDE)[None, :]
            inside = (r < rows_left) & (s < cols_left)
            if scale_b is not None and GROUP == 0:
                acc *= tl.load(scale_b + (row + r) * stride_sr, mask=r < rows_left, other=0.0)
            if SCALED:
                acc *= alpha
            if bias is not None:
                bias += row * stride_br + col * stride_bc
                acc += tl.load(bias + r * stride_br + s * stride_bc, mask=inside, other=0.0).to(tl.float32)
            if c is not None:
                c += batch * stride_cb + row * stride_cr + col * stride_cc
                acc += beta * tl.load(c + r * stride_cr + s * stride_cc, mask=inside, other=0.0).to(tl.float32)
            out += batch * stride_ob + row * stride_or + col * stride_oc
            tl.store(out + r * stride_or + s * stride_oc, rounded(acc, out.dtype.element_ty, INTERPRETED), mask=inside)
