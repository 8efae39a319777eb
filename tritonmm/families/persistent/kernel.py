"""Persistent GEMM in plain Triton that loads and stores by TMA.

Supports: A and B of bf16 or fp16, any output dtype, fp32 sums; sm_90 and sm_100, and the interpreter. It compiles for
sm_100 with Triton 3.6 and 3.9 and has not run there. Measured times: docs/notebook/persistent.md.

1. One program runs on each SM and visits its tiles one after the other, in the tile order.
2. Triton's compiler flattens the loop over tiles and the loop over K into one and pipelines it: it loads the next
   tile's operands while this tile is written. On sm_100 it also specializes warps for loads, MMA and the epilogue, and
   keeps two accumulators in tensor memory.
3. The epilogue writes a tile in pieces along its columns, by TMA, or by masked stores if TMA cannot address the output.

Constraints: one dimension of A and of B is contiguous; their addresses and other strides are multiples of 16 bytes. A
and B are loaded as they lie in memory; the tensor cores read a transposed view where needed. TMA reads elements outside
of a tensor as zero and does not write them.

Determinism: results are bitwise the same from run to run and do not depend on the order of the tiles.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq

from tritonmm.device.constexpr_args import ConstexprArgs
from tritonmm.device.epilogue import plus_c, scaled_plus_bias
from tritonmm.device.numeric import rounded
from tritonmm.device.order import tile_at
from tritonmm.device.pdl import follow_previous_grid


@dataclass(frozen=True)
class PersistentSpec(ConstexprArgs):
    """What the kernel is compiled for: a single constexpr argument."""

    block_m: int
    block_n: int
    block_k: int
    pieces: int  # in which a tile is written, along its columns
    order: str  # name and axis of the tile order, see device/order.py
    along: str
    a_transposed: bool
    b_transposed: bool
    scaled: bool  # alpha multiplies
    interpreted: bool


@triton.jit
def load_block(desc, batch, line, k, LINES: tl.constexpr, BLOCK_K: tl.constexpr, K_FIRST: tl.constexpr):
    """A block as [lines, k]: a line is a row of A or a column of B. K_FIRST: K is the outer dimension in memory."""
    if K_FIRST:
        block = desc.load([batch, k, line]).reshape(BLOCK_K, LINES).T
    else:
        block = desc.load([batch, line, k]).reshape(LINES, BLOCK_K)
    return block


@triton.jit
def split_columns(x, PIECES: tl.constexpr):
    """x cut along its columns into PIECES (a power of two), from left to right."""
    pieces = (x,)
    for _ in tl.static_range(PIECES.bit_length() - 1):
        halves = ()
        for i in tl.static_range(len(pieces)):
            whole = pieces[i]
            halves += whole.reshape(whole.shape[0], 2, whole.shape[1] // 2).permute(0, 2, 1).split()
        pieces = halves
    return pieces


@triton.jit
def block_at(origin, batch, row, col, stride_b, stride_m, stride_n, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Pointers to the elements of the block of a matrix that starts at (row, col)."""
    origin += batch.to(tl.int64) * stride_b + row.to(tl.int64) * stride_m + col.to(tl.int64) * stride_n
    rows = tl.arange(0, ROWS).to(tl.int64)
    cols = tl.arange(0, COLS).to(tl.int64)
    return origin + rows[:, None] * stride_m + cols[None, :] * stride_n


@triton.jit(do_not_specialize=["m", "n", "steps", "launched", "programs"])
def persistent_kernel(
    a_desc, b_desc, out_desc, out, c, bias, alpha, beta, table, factors, m, n, steps, launched, programs,
    out_strides, c_strides, S: tl.constexpr,
):  # fmt: skip
    """out[batch] = alpha * A[batch] @ B[batch] + bias + beta * C[batch], rounded once. Grid: at most `programs`.

    A is m x k, B k x n; bias, of n, and C are added where they are given. The descriptors are of [batch, rows, columns]
    as stored; out_desc is None where TMA cannot address the output. Strides are along the batch, rows and columns.
    steps: steps along K, at least 1; launched: indices of the order for one GEMM of the batch; programs: for all.
    """
    stride_ob, stride_om, stride_on = out_strides
    stride_cb, stride_cm, stride_cn = c_strides
    ORDER: tl.constexpr = S.order
    ALONG: tl.constexpr = S.along
    OVERFLOWS: tl.constexpr = ORDER == "split-merge"
    # Steps that differ from tile to tile leave the loops nested, and Triton 3.6 cannot specialize nested ones.
    SPECIALIZE: tl.constexpr = cuda_capability_geq(10) and not OVERFLOWS
    PIECES: tl.constexpr = S.pieces
    COLS: tl.constexpr = S.block_n // PIECES
    SHAPE: tl.constexpr = [S.block_m, S.block_n]
    follow_previous_grid()
    # A loop that may run zero times is compiled twice when flattened, and makes ptxas wait after every
    # wgmma when not (Triton 3.6).
    tl.assume(steps > 0)
    tiles_m = tl.cdiv(m, S.block_m)
    tiles_n = tl.cdiv(n, S.block_n)
    for i in tl.range(tl.program_id(0), programs, tl.num_programs(0), flatten=True, warp_specialize=SPECIALIZE):
        batch = i // launched
        tile_m, tile_n = tile_at(i % launched, tiles_m, tiles_n, table, factors, ORDER, ALONG)
        tile_steps = steps
        if OVERFLOWS:  # one step on zeros, and nothing is written; clamped, so that no offset below overflows
            tile_steps = tl.where((tile_m < tiles_m) & (tile_n < tiles_n), steps, 1)
            tile_m = tl.minimum(tile_m, tiles_m)
            tile_n = tl.minimum(tile_n, tiles_n)
        row = tile_m * S.block_m
        col = tile_n * S.block_n
        acc = tl.zeros(SHAPE, tl.float32)
        for step in range(tile_steps):
            x = load_block(a_desc, batch, row, step * S.block_k, S.block_m, S.block_k, S.a_transposed)
            y = load_block(b_desc, batch, col, step * S.block_k, S.block_n, S.block_k, not S.b_transposed).T
            if S.interpreted:  # numpy has no bf16
                x, y = x.to(tl.float32), y.to(tl.float32)
            acc = tl.dot(x, y, acc)
        pieces = split_columns(acc, PIECES)
        for j in tl.static_range(PIECES):
            piece = pieces[j]
            at = col + j * COLS
            cols = tl.arange(0, COLS)
            inside = (tl.arange(0, S.block_m) < m - row)[:, None] & (cols < n - at)[None, :]
            added = None
            if bias is not None:
                added = tl.load(bias + at + cols, mask=cols < n - at, other=0.0).to(tl.float32)[None, :]
            piece = scaled_plus_bias(piece, None, None, alpha if S.scaled else None, added)
            if c is not None:
                addresses = block_at(c, batch, row, at, stride_cb, stride_cm, stride_cn, S.block_m, COLS)
                piece = plus_c(piece, beta, tl.load(addresses, mask=inside, other=0.0))
            piece = rounded(piece, out.dtype.element_ty, S.interpreted)
            if out_desc is not None:
                out_desc.store([batch, row, at], piece.reshape(1, S.block_m, COLS))
            else:
                addresses = block_at(out, batch, row, at, stride_ob, stride_om, stride_on, S.block_m, COLS)
                tl.store(addresses, piece, mask=inside)
