"""The portable GEMM kernel.

Supports: bf16, fp16, fp32, fp64, int8 and fp8, and B of 8 or 4 bits with A of 16; any sizes, strides and alignment;
every GPU that Triton compiles for, and the interpreter.

1. A program computes one output tile, or visits several if `persistent`.
2. `accumulate` sums the tile over all of K with tl.dot. Triton's compiler pipelines the loads.
3. The epilogue applies scales, alpha, bias and C to the sums, rounds once and stores. For a symmetric product it is
   applied twice: to the elements below the diagonal, and to the same for the opposite places.

Constraints: blocks are powers of two of at least 16. Every load and store is masked: nothing has to divide, to be
contiguous or to be aligned. A tile's origin is a 64-bit offset; offsets within a tile have 32 bits unless `wide`.

Determinism: one program sums all of a tile's K in a fixed order. Results are bitwise the same from run to run and do
not depend on the order of the tiles.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from tritonmm.device.constexpr_args import ConstexprArgs
from tritonmm.device.epilogue import plus_c, plus_scaled, scaled_plus_bias
from tritonmm.device.groups import part_of, rows_of_tiles, tile_of
from tritonmm.device.int4 import plain_unpacked, scale_of, zero_point_of
from tritonmm.device.int8 import packed_k, packed_order, signed
from tritonmm.device.numeric import block_offsets, multiple_of, rounded
from tritonmm.device.operand import Addends, Operand, Output
from tritonmm.device.order import tile_at
from tritonmm.device.pdl import follow_previous_grid
from tritonmm.device.residue import residue_in_plane


@dataclass(frozen=True)
class TileSpec(ConstexprArgs):
    """What the kernel is compiled for: a single constexpr argument."""

    block_m: int
    block_n: int
    block_k: int
    order: str  # name and axis of the tile order, see device/order.py
    along: str
    layout: str  # letters of A and B, see Problem.layout
    divisor: int  # divides the lengths and strides of the contiguous lines of all three operands
    b_divisor: int  # the same of B alone
    packed: str  # how B is packed along K: "int4", two in a byte, "int8p", as bytes, or ""
    persistent: bool
    scaled: bool  # alpha multiplies
    precision: str  # input_precision of tl.dot
    sum_dtype: tl.dtype
    promotes: bool  # each step's sums are added to the others outside of the tensor cores
    ragged: str  # what groups divide, see Problem.ragged
    joined: bool  # the order visits the tiles of all groups as one grid
    symmetric: bool  # tiles meet the lower triangle, and each element is written to the opposite place too
    scales: str  # see Problem.scales
    group: int  # elements of K that share a scale; 0: all of K
    moduli: tuple[int, ...]  # sums of batch i are reduced modulo the one of index i % their number; (): they are not
    wide: bool  # offsets within a tile have 64 bits
    interpreted: bool

    @property
    def shared_cols(self):
        """Columns of B that share a scale."""
        return 128 if self.scales == "1x128*128x128" else 1

    @property
    def has_zero_points(self):
        """True if scales of groups have zero points in their last bits."""
        return self.scales == "group-zero"


class Scales(NamedTuple):
    """fp32 scales of A's rows, which may be missing, and of B's columns, for each group of K. stride_bg: of B's from
    one group of a grouped product to the next."""

    a: Any
    stride_am: Any
    stride_ak: Any
    b: Any
    stride_bn: Any
    stride_bk: Any
    stride_bg: Any


@triton.jit
def row_scales(scales, rows, group, mask, S: tl.constexpr):
    """Scales of A's rows for a group of K, [rows, 1]."""
    SHARED: tl.constexpr = 128 if S.scales == "128x128*1x128" else 1
    at = scales.a + rows // SHARED * scales.stride_am + group * scales.stride_ak
    return tl.load(at, mask=mask, other=0.0)[:, None]


@triton.jit
def col_scales(scales, cols, group, mask, S: tl.constexpr):
    """Scales of B's columns for a group of K, [1, cols]."""
    at = scales.b + cols // S.shared_cols * scales.stride_bn + group * scales.stride_bk
    return tl.load(at, mask=mask, other=0.0)[None, :]


@triton.jit
def accumulate(a, b, m_left, n_left, k, scales, row, col, S: tl.constexpr):
    """The sums of the tile at (row, col), in fp32 if groups of K have scales, else in S.sum_dtype. a, b: the operands
    from the tile's first row and column on.

    Tensor cores keep few bits of sums of fp8. If S.promotes, each step's sums are added outside of them, times the
    scales of their group of K if there are any. B is converted to A's dtype.
    """
    SHAPE: tl.constexpr = [S.block_m, S.block_n]
    rows = block_offsets(S.block_m, S.wide)
    cols = block_offsets(S.block_n, S.wide)
    depth = block_offsets(S.block_k, S.wide)
    # Offsets within a tile stay the same along K and only the two pointers move: offsets are half as wide as pointers,
    # and there is one for each element where lines are not aligned.
    a_offsets = rows[:, None] * a.stride_line + depth[None, :] * a.stride_k
    B_ROWS: tl.constexpr = S.block_k // 2 if S.packed == "int4" else S.block_k
    b_depth = block_offsets(B_ROWS, S.wide)
    b_rows = tl.cdiv(k, 32) * 16 if S.packed == "int4" else packed_k(k) if S.packed == "int8p" else k
    b_offsets = b_depth[:, None] * b.stride_k + cols[None, :] * b.stride_line
    a_at, b_at = a.at, b.at
    a_mask = (rows < m_left)[:, None]
    b_mask = (cols < n_left)[None, :]
    block_k = tl.full((), S.block_k, tl.int64)
    b_block_k = tl.full((), B_ROWS, tl.int64)
    acc = tl.zeros(SHAPE, tl.float32 if S.group > 0 else S.sum_dtype)
    # At least one step, masked off entirely when K is 0: a loop that may run zero times makes ptxas
    # wait after every wgmma (Triton 3.6).
    for step in range(tl.maximum(tl.cdiv(k, S.block_k), 1)):
        k_mask = depth < k - step * S.block_k
        x = tl.load(a_at + a_offsets, mask=a_mask & k_mask[None, :], other=0.0)
        inside = (b_depth < b_rows - step * B_ROWS)[:, None] & b_mask if S.packed != "" else k_mask[:, None] & b_mask
        y = tl.load(b_at + b_offsets, mask=inside, other=0.0)
        if S.packed == "int8p":
            x, y = packed_order(x), signed(y)
        elif S.packed == "int4":
            y = plain_unpacked(y, tl.float32 if S.interpreted else x.dtype)
            if S.has_zero_points:
                coded = col_scales(scales, col + cols, step * S.block_k // S.group, cols < n_left, S)
                y -= (zero_point_of(coded) - 8.0).to(y.dtype)
        if S.interpreted and S.sum_dtype == tl.float32:  # numpy has neither bf16 nor fp8
            x, y = x.to(tl.float32), y.to(tl.float32)
        elif x.dtype.primitive_bitwidth > y.dtype.primitive_bitwidth:
            if y.dtype == tl.float8e5 and x.dtype == tl.bfloat16:  # Triton's own cast makes numbers of inf and NaN
                y = y.to(tl.float32)
            y = y.to(x.dtype)
        if S.promotes:
            part = tl.dot(x, y, input_precision=S.precision, out_dtype=S.sum_dtype)
            if S.group > 0:
                group = step * S.block_k // S.group
                of_rows = row_scales(scales, row + rows, group, rows < m_left, S) if scales.a is not None else None
                of_cols = col_scales(scales, col + cols, group, cols < n_left, S)
                if S.has_zero_points:
                    of_cols = scale_of(of_cols)
                acc = plus_scaled(acc, part.to(tl.float32), of_rows, of_cols, S.shared_cols)
            else:
                acc += part
        else:
            acc = tl.dot(x, y, acc, input_precision=S.precision, out_dtype=S.sum_dtype)
        a_at += block_k * a.stride_k
        b_at += b_block_k * b.stride_k
    return acc


@triton.jit
def store(acc, batch, row, col, m_left, n_left, output, addends, scales, SIDE: tl.constexpr, S: tl.constexpr):
    """Applies the epilogue to the sums of the block at (row, col) and stores it, as far as it is inside.

    SIDE: "lower" stores only what is on or below the diagonal of the output, "upper" what is above.
    """
    rows = block_offsets(acc.shape[0], S.wide)
    cols = block_offsets(acc.shape[1], S.wide)
    inside = (rows < m_left)[:, None] & (cols < n_left)[None, :]
    if SIDE == "lower":
        inside = inside & ((row + rows)[:, None] >= (col + cols)[None, :])
    elif SIDE == "upper":
        inside = inside & ((row + rows)[:, None] < (col + cols)[None, :])
    out = output.pointer
    MODULI: tl.constexpr = S.moduli
    if len(MODULI) > 0:
        acc = residue_in_plane(acc, batch % len(MODULI), MODULI)
    elif S.sum_dtype == tl.int32 and out.dtype.element_ty != tl.int32:
        acc = acc.to(tl.float32)
    of_rows, of_cols = None, None
    if S.scales == "tensor":
        of_rows, of_cols = tl.load(scales.a), tl.load(scales.b)
    elif S.scales == "row":
        if scales.a is not None:
            of_rows = row_scales(scales, row + rows, 0, rows < m_left, S)
        of_cols = col_scales(scales, col + cols, 0, cols < n_left, S)
    added = None
    if addends.bias is not None:
        added = tl.load(addends.bias + col + cols, mask=cols < n_left, other=0.0).to(acc.dtype)[None, :]
    factor = tl.full((), addends.alpha, acc.dtype) if S.scaled else None
    acc = scaled_plus_bias(acc, of_rows, of_cols, factor, added)
    if addends.c is not None:
        stride_m, stride_n = addends.stride_cm, addends.stride_cn
        origin = addends.c + batch * addends.stride_cb + row * stride_m + col * stride_n
        added = tl.load(origin + rows[:, None] * stride_m + cols[None, :] * stride_n, mask=inside, other=0.0)
        acc = plus_c(acc, tl.full((), addends.beta, acc.dtype), added)
    origin = out + batch * output.stride_b + row * output.stride_m + col * output.stride_n
    tl.store(
        origin + rows[:, None] * output.stride_m + cols[None, :] * output.stride_n,
        rounded(acc, out.dtype.element_ty, S.interpreted),
        mask=inside,
    )


@triton.jit
def multiply_group(i, a, b, output, bias, scales, groups, factors, m, n, k, stride_bb, S: tl.constexpr):
    """The tile of index i of a grouped product. a, b: the operands from their first element on."""
    ORDER: tl.constexpr = S.order
    ALONG: tl.constexpr = S.along
    tiles_n = tl.cdiv(n, S.block_n)
    if S.ragged == "m":
        group, row, m_end, tile_n = tile_of(i, tiles_n, groups, factors, S.block_m, S.block_m, ORDER, ALONG, S.joined)
        first_k, k_end = 0, k
    else:
        group, first_k, k_end, tile_m, tile_n = part_of(
            i, tl.cdiv(m, S.block_m), tiles_n, groups, factors, ORDER, ALONG
        )
        row, m_end = tile_m * S.block_m, m
    group, row, first_k = group.to(tl.int64), tl.cast(row, tl.int64), tl.cast(first_k, tl.int64)
    col = tile_n.to(tl.int64) * S.block_n
    m_left, n_left = (m_end - row).to(tl.int32), (n - col).to(tl.int32)
    of_b = group * stride_bb if S.ragged == "m" else first_k * b.stride_k
    of_out = tl.cast(0, tl.int64) if S.ragged == "m" else group
    a_tile = Operand(a.at + row * a.stride_line + first_k * a.stride_k, a.stride_line, a.stride_k)
    b_tile = Operand(b.at + of_b + col * b.stride_line, b.stride_line, b.stride_k)
    scale_a, scale_b = scales.a, scales.b
    if scale_b is not None:
        scale_b += group * scales.stride_bg
    if scale_a is not None and S.ragged == "k":
        scale_a += group * scales.stride_ak
    own = Scales(scale_a, scales.stride_am, scales.stride_ak, scale_b, scales.stride_bn, scales.stride_bk, 0)
    if bias is not None:
        bias += group * n
    acc = accumulate(a_tile, b_tile, m_left, n_left, (k_end - first_k).to(tl.int32), own, row, col, S)
    addends = Addends(None, 0, 0, 0, bias, 1.0, 1.0)
    store(acc, of_out, row, col, m_left, n_left, output, addends, own, "", S)


@triton.jit(do_not_specialize=["launched", "programs"])
def tile_kernel(
    a, b, out, c, bias, alpha: tl.float64, beta: tl.float64, table, factors, groups, skip, m, n, k, launched, programs,
    a_strides, b_strides, out_strides, c_strides, scale_a, scale_a_strides, scale_b, scale_b_strides, S: tl.constexpr,
):  # fmt: skip
    """out[batch] = alpha * A[batch] @ B[batch] + bias + beta * C[batch], rounded once.

    A is m x k, B k x n. Strides are along the batch, rows and columns, in elements. bias, of n, and C are added where
    they are given. The epilogue computes in fp32, or in fp64 if the sums are fp64.
    scale_a, scale_b: fp32 scales, as `Problem.scales` says; their strides are along rows or columns, then groups of K,
        of scale_b then along the groups of a grouped product.
    launched: indices of the order for one GEMM of the batch; programs: for all of them.
    groups: the table of `device/groups.py` for a grouped product, where bias has a row for each group.
    skip: None, or one int32: nothing is computed if it is not 0.
    Grid: (programs,), or fewer if S.persistent.
    """
    stride_ab, stride_am, stride_ak = a_strides
    stride_bb, stride_bk, stride_bn = b_strides
    stride_ob, stride_om, stride_on = out_strides
    stride_cb, stride_cm, stride_cn = c_strides
    stride_sbn, stride_sbk, stride_sbg = scale_b_strides
    scales = Scales(scale_a, scale_a_strides[0], scale_a_strides[1], scale_b, stride_sbn, stride_sbk, stride_sbg)
    ORDER: tl.constexpr = S.order
    ALONG: tl.constexpr = S.along
    follow_previous_grid()
    # Triton itself only looks for 16, and loads one element at a time where it does not know.
    if S.layout[0] == "n":
        stride_am, k = multiple_of(stride_am, S.divisor), multiple_of(k, S.divisor)
    elif S.layout[0] == "t":
        stride_ak, m = multiple_of(stride_ak, S.divisor), multiple_of(m, S.divisor)
    if S.layout[1] == "n":
        stride_bk, n = multiple_of(stride_bk, S.b_divisor), multiple_of(n, S.b_divisor)
    elif S.layout[1] == "t":
        stride_bn, k = multiple_of(stride_bn, S.b_divisor), multiple_of(k, S.b_divisor)
    stride_om, n = multiple_of(stride_om, S.divisor), multiple_of(n, S.divisor)
    tiles_m = tl.cdiv(m, S.block_m)
    tiles_n = tl.cdiv(n, S.block_n)
    stride = programs
    if S.persistent:
        stride = tl.num_programs(0)
    if S.ragged == "m":
        programs = rows_of_tiles(groups) * tiles_n
    if skip is not None:
        programs = tl.where(tl.load(skip) != 0, 0, programs)
    for i in range(tl.program_id(0), programs, stride):
        if S.ragged != "":
            of_a, of_b = Operand(a, stride_am, stride_ak), Operand(b, stride_bn, stride_bk)
            output = Output(out, stride_ob, stride_om, stride_on)
            multiply_group(i, of_a, of_b, output, bias, scales, groups, factors, m, n, k, stride_bb, S)
        else:
            batch = (i // launched).to(tl.int64)
            tile_m, tile_n = tile_at(i % launched, tiles_m, tiles_n, table, factors, ORDER, ALONG)
            if tile_m < tiles_m and tile_n < tiles_n:  # else overflow: split-merge launches more than there is
                row = tile_m.to(tl.int64) * S.block_m
                col = tile_n.to(tl.int64) * S.block_n
                m_left = (m - row).to(tl.int32)
                n_left = (n - col).to(tl.int32)
                a_tile = Operand(a + batch * stride_ab + row * stride_am, stride_am, stride_ak)
                b_tile = Operand(b + batch * stride_bb + col * stride_bn, stride_bn, stride_bk)
                acc = accumulate(a_tile, b_tile, m_left, n_left, k, scales, row, col, S)
                addends = Addends(c, stride_cb, stride_cm, stride_cn, bias, alpha, beta)
                output = Output(out, stride_ob, stride_om, stride_on)
                if S.symmetric:
                    store(acc, batch, row, col, m_left, n_left, output, addends, scales, "lower", S)
                    if n_left > 0:  # always; in a block of its own, addresses are not computed too early
                        store(tl.trans(acc), batch, col, row, n_left, m_left, output, addends, scales, "upper", S)
                else:
                    store(acc, batch, row, col, m_left, n_left, output, addends, scales, "", S)
