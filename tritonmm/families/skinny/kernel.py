"""GEMM with few rows or few columns: as fast as the larger operand can be read.

Supports: bf16, fp16 and fp32, and B of 1 byte with A of bf16 or fp16, with scales for each row of B or for groups of K;
any sizes, strides and alignment; every GPU that Triton compiles for, and the interpreter.

The larger operand, the weights W [rows, k], is streamed once. The other, the activations X [cols, k], is small and
comes from L2. The kernel computes W @ X^T, so that the tall side of the tensor cores holds weights. The strides of the
launch decide whether `rows` are the output's rows or its columns.

1. A program sums `block_r` rows of W, `block_c` rows of X and one of `split_k` parts of K. Parts differ by at most one
   step.
2. `dotted` multiplies on tensor cores. With `block_c` = 1 `streamed` multiplies on CUDA cores: there are as many
   multiply-adds as weights, and tensor cores would do eight times as many.
3. Split-K: each program stores its fp32 sums and counts itself; the one that counts last adds all of them. No program
   waits, so the grid need not be resident as a whole.
4. The epilogue applies scales, alpha, bias and C, rounds once and stores.

Determinism: parts are added in the order of K, whichever program adds them. Results are bitwise the same from run to
run.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from tritonmm.device.constexpr_args import ConstexprArgs
from tritonmm.device.dequantize import as_fp32, dequantized, interleaved, unit
from tritonmm.device.epilogue import plus_c, plus_scaled, scaled_plus_bias
from tritonmm.device.int8 import packed_k, packed_order, signed
from tritonmm.device.numeric import block_offsets, multiple_of, rounded
from tritonmm.device.operand import Operand
from tritonmm.device.order import tile_at
from tritonmm.device.pdl import follow_previous_grid
from tritonmm.device.split_k import last_arriver_fixup, slot_sums


@dataclass(frozen=True)
class SkinnySpec(ConstexprArgs):
    """What the kernel is compiled for: a single constexpr argument."""

    block_r: int  # rows of W in a tile
    block_c: int  # rows of X in a tile
    block_k: int
    split_k: int
    order: str  # name and axis of the tile order, see device/order.py
    along: str
    swapped: bool  # rows are the output's rows, not its columns
    batched: bool
    layouts: tuple[str, str]  # of W and X: "n" if K is contiguous, "t" if lines lie along the other dimension, or "s"
    divisors: tuple[int, int]  # divide the lengths and strides of the contiguous lines of W and X
    even_k: bool  # block_k divides k
    num_stages: int  # of `streamed`
    unroll: int  # parts of a split tile whose loads are in flight together
    scaled: bool  # alpha multiplies
    group: int  # elements of K that share a scale; 0: all of K
    packed: bool  # W is packed int8, as bytes along K
    interleaved: bool  # multiply in an order of K in which loads of 8-bit weights from shared memory are wide
    precision: str  # input_precision of tl.dot
    wide: bool  # offsets within a tile have 64 bits
    interpreted: bool


class RowScales(NamedTuple):
    """fp32 scales of the rows of W, for each group of K; `at` is None where no group has scales of its own."""

    at: Any  # pointer to the scale of the tile's first row
    stride_row: Any
    stride_group: Any


@triton.jit
def dotted(w, x, rows_left, cols_left, k, first, steps, scales, S: tl.constexpr):
    """The sums over `steps` blocks of K, on tensor cores; loads are pipelined through shared memory.

    w, x: operands from the tile's first row and block of K on; k: elements of K from there on. 8-bit weights are
    converted to X's dtype. If S.group, each block's sums are multiplied by its group's scales; `first` is the number of
    the first block.
    """
    rows = block_offsets(S.block_r, S.wide)
    cols = block_offsets(S.block_c, S.wide)
    depth = block_offsets(S.block_k, S.wide)
    w_offsets = rows[:, None] * w.stride_line + depth[None, :] * w.stride_k
    x_offsets = depth[:, None] * x.stride_k + cols[None, :] * x.stride_line
    w_at, x_at = w.at, x.at
    w_mask = (rows < rows_left)[:, None]
    x_mask = (cols < cols_left)[None, :]
    block_k = tl.full((), S.block_k, tl.int64)
    CONVERTED: tl.constexpr = not S.interpreted and w_at.dtype.element_ty.primitive_bitwidth == 8
    UNIT: tl.constexpr = unit(w_at.dtype.element_ty, x_at.dtype.element_ty) if CONVERTED else 1.0
    SHAPE: tl.constexpr = [S.block_r, S.block_c]
    acc = tl.zeros(SHAPE, tl.float32)
    for step in range(steps):
        if S.even_k:
            weights = tl.load(w_at + w_offsets, mask=w_mask, other=0.0)
            activations = tl.load(x_at + x_offsets, mask=x_mask, other=0.0)
        else:
            k_mask = depth < k - step * S.block_k
            held = depth < packed_k(k - step * S.block_k) if S.packed else k_mask
            weights = tl.load(w_at + w_offsets, mask=w_mask & held[None, :], other=0.0)
            activations = tl.load(x_at + x_offsets, mask=k_mask[:, None] & x_mask, other=0.0)
        if S.packed:
            weights, activations = signed(weights), packed_order(activations.T).T
        if S.interpreted:  # numpy has no bf16
            weights, activations = weights.to(tl.float32), activations.to(tl.float32)
        elif CONVERTED:
            weights = dequantized(weights, activations.dtype, S.interleaved)
        if S.interleaved:
            weights, activations = interleaved(weights), interleaved(activations.T).T
        if S.group > 0:
            group = ((first + step) // (S.group // S.block_k)).to(tl.int64)
            at = scales.at + group * scales.stride_group + rows * scales.stride_row
            scale = tl.load(at, mask=rows < rows_left, other=0.0)
            part = tl.dot(weights, activations, input_precision=S.precision)
            acc = plus_scaled(acc, part, None, (scale * UNIT)[:, None], 1)
        else:
            acc = tl.dot(weights, activations, acc, input_precision=S.precision)
        w_at += block_k * w.stride_k
        x_at += block_k * x.stride_k
    return acc if S.group > 0 else acc * UNIT


@triton.jit
def streamed(w, x, rows_left, k, first, steps, scales, S: tl.constexpr):
    """`dotted` for one row of X, on CUDA cores: each thread keeps sums of its own, which are added after the loop.

    If S.group, a multiple of UNIT: a thread sums UNIT neighbours, which it loads together, and multiplies these sums by
    their group's scale.
    """
    UNIT: tl.constexpr = 16 if S.group > 0 else 1
    STAGES: tl.constexpr = S.num_stages
    SUMS: tl.constexpr = [S.block_r, S.block_k // UNIT]
    rows = block_offsets(S.block_r, S.wide)
    depth = block_offsets(S.block_k, S.wide)[None, :]  # two dimensions, so that X is loaded in the layout of W
    w_offsets = rows[:, None] * w.stride_line + depth * w.stride_k
    x_offsets = depth * x.stride_k
    w_at, x_at = w.at, x.at
    w_mask = (rows < rows_left)[:, None]
    block_k = tl.full((), S.block_k, tl.int64)
    units = block_offsets(S.block_k // UNIT, S.wide)[None, :] * UNIT
    acc = tl.zeros(SUMS, tl.float32)
    for step in tl.range(steps, num_stages=STAGES):
        # X is loaded first where W is packed: so the compiler lets a thread read 16 neighbours of W, and X fits them.
        if S.packed and S.even_k:
            activations = packed_order(tl.load(x_at + x_offsets))
            weights = signed(tl.load(w_at + w_offsets, mask=w_mask, other=0.0))
        elif S.packed:
            left = k - step * S.block_k
            activations = packed_order(tl.load(x_at + x_offsets, mask=depth < left, other=0.0))
            weights = signed(tl.load(w_at + w_offsets, mask=w_mask & (depth < packed_k(left)), other=0.0))
        elif S.even_k:
            weights = tl.load(w_at + w_offsets, mask=w_mask, other=0.0)
            activations = tl.load(x_at + x_offsets)
        else:
            k_mask = depth < k - step * S.block_k
            weights = tl.load(w_at + w_offsets, mask=w_mask & k_mask, other=0.0)
            activations = tl.load(x_at + x_offsets, mask=k_mask, other=0.0)
        products = (weights.to(tl.float32) if S.interpreted else as_fp32(weights)) * activations.to(tl.float32)
        if S.group > 0:
            group = ((first + step).to(tl.int64) * S.block_k + units) // S.group
            inside = w_mask & (units < k - step * S.block_k)
            at = scales.at + group * scales.stride_group + rows[:, None] * scales.stride_row
            scale = tl.load(at, mask=inside, other=0.0)
            acc = plus_scaled(acc, tl.sum(products.reshape(S.block_r, S.block_k // UNIT, UNIT), axis=2), None, scale, 1)
        else:
            acc += products
        w_at += block_k * w.stride_k
        x_at += block_k * x.stride_k
    return tl.sum(acc, axis=1)[:, None]


@triton.jit(do_not_specialize=["launched", "programs"])
def skinny_kernel(
    w, x, out, c, bias, alpha, beta, table, factors, workspace, flags, rows, cols, k, launched, programs,
    w_strides, x_strides, out_strides, c_strides, bias_strides, scale_b, scale_strides, S: tl.constexpr,
):  # fmt: skip
    """out[batch] = alpha * W[batch] @ X[batch]^T + bias + beta * C[batch], rounded once; W rows x k, X cols x k.

    Strides are along the batch, then rows or cols, then k or cols; those of bias along rows and cols; those of scale_b
    along rows and groups of K. bias and C are added where they are given. scale_b: fp32 scales of the rows of W.
    workspace: fp32, split_k x block_r x block_c for each tile; flags: one for each tile, its lower 31 bits zero.
    launched: indices of the order for one GEMM of the batch; programs: for all. Grid: (programs * split_k,).
    """
    stride_wb, stride_wr, stride_wk = w_strides
    stride_xb, stride_xc, stride_xk = x_strides
    stride_ob, stride_or, stride_oc = out_strides
    stride_cb, stride_cr, stride_cc = c_strides
    stride_br, stride_bc = bias_strides
    stride_sr, stride_sk = scale_strides
    BLOCK_R: tl.constexpr = S.block_r
    BLOCK_C: tl.constexpr = S.block_c
    BLOCK_K: tl.constexpr = S.block_k
    SPLIT_K: tl.constexpr = S.split_k
    UNROLL: tl.constexpr = S.unroll
    ORDER: tl.constexpr = S.order
    ALONG: tl.constexpr = S.along
    W_DIVISOR: tl.constexpr = S.divisors[0]
    X_DIVISOR: tl.constexpr = S.divisors[1]
    follow_previous_grid()
    if S.layouts[1] == "n":
        stride_xc, k = multiple_of(stride_xc, X_DIVISOR), multiple_of(k, X_DIVISOR)
    elif S.layouts[1] == "t":
        stride_xk, cols = multiple_of(stride_xk, X_DIVISOR), multiple_of(cols, X_DIVISOR)
    if S.layouts[0] == "n":  # after X's divisor of k: 8-bit weights have the larger one
        stride_wr, k = multiple_of(stride_wr, W_DIVISOR), multiple_of(k, W_DIVISOR)
    elif S.layouts[0] == "t":
        stride_wk, rows = multiple_of(stride_wk, W_DIVISOR), multiple_of(rows, W_DIVISOR)
    tiles_r = tl.cdiv(rows, BLOCK_R)
    tiles_c = tl.cdiv(cols, BLOCK_C)
    item = tl.program_id(0)
    part = 0
    if SPLIT_K > 1:  # neighbouring programs read the same part of X: requests at one time leave L2 once
        part = item // programs
        item = item % programs
    batch = tl.full((), 0, tl.int64)
    i = item
    if S.batched:
        batch = (item // launched).to(tl.int64)
        i = item % launched
    if S.swapped:
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
        w_part = Operand(w + batch * stride_wb + row * stride_wr + start * stride_wk, stride_wr, stride_wk)
        x_part = Operand(x + batch * stride_xb + col * stride_xc + start * stride_xk, stride_xc, stride_xk)
        scales = RowScales(scale_b + row * stride_sr if S.group > 0 else None, stride_sr, stride_sk)
        if BLOCK_C == 1:
            acc = streamed(w_part, x_part, rows_left, k_left, first, steps, scales, S)
        else:
            acc = dotted(w_part, x_part, rows_left, cols_left, k_left, first, steps, scales, S)
        writes = True
        if SPLIT_K > 1:
            in_slot = tl.arange(0, BLOCK_R)[:, None] * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
            sums = slot_sums(workspace, item, SPLIT_K * BLOCK_R * BLOCK_C)
            acc, writes = last_arriver_fixup(acc, in_slot, sums, flags + item, part, SPLIT_K, BLOCK_R * BLOCK_C, UNROLL)
        if writes:
            r = block_offsets(BLOCK_R, S.wide)[:, None]
            s = block_offsets(BLOCK_C, S.wide)[None, :]
            inside = (r < rows_left) & (s < cols_left)
            scale, added = None, None
            if scale_b is not None and S.group == 0:
                scale = tl.load(scale_b + (row + r) * stride_sr, mask=r < rows_left, other=0.0)
            if bias is not None:
                bias += row * stride_br + col * stride_bc
                added = tl.load(bias + r * stride_br + s * stride_bc, mask=inside, other=0.0).to(tl.float32)
            acc = scaled_plus_bias(acc, None, scale, alpha if S.scaled else None, added)
            if c is not None:
                c += batch * stride_cb + row * stride_cr + col * stride_cc
                acc = plus_c(acc, beta, tl.load(c + r * stride_cr + s * stride_cc, mask=inside, other=0.0))
            out += batch * stride_ob + row * stride_or + col * stride_oc
            tl.store(
                out + r * stride_or + s * stride_oc, rounded(acc, out.dtype.element_ty, S.interpreted), mask=inside
            )
