"""GEMM by TMA in plain Triton, for sm_90 and sm_100: fp16 and bf16 in, sums in fp32.

One program an SM walks the tiles. The compiler makes the pipeline out of two nested loops, the walk
and the steps along K, which it flattens into one: the loads of the next tile are in flight while
this one is written. On sm_100 it gives loads, tensor cores and epilogue warps of their own as well,
and the accumulator two places in tensor memory.

A and B are loaded as they lie in memory, whichever dimension is contiguous, and the tensor cores
read the transposed view of a block where needed. Ragged edges come out of TMA: elements outside of
the tensor read as zero and are not written. Results are bitwise the same from run to run, and do
not depend on the order of the tiles.

On an H200 (bf16, NT, 128 x 256 x 64, 4 stages, swizzle-merge:16, 2026-11-21) torch.mm takes 1.002 times its time at
4096^3 on a rested card and 0.999 at the power limit, at 8192^3 1.009 and 1.018.

Compiled for sm_100 with Triton 3.6 and 3.9 and looked at, but never run there: no such GPU was at hand.
"""

import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq

from tritonmm.device.numeric import rounded
from tritonmm.device.order import tile_at
from tritonmm.device.pdl import follow_previous_grid


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
    stride_ob, stride_om, stride_on, stride_cb, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PIECES: tl.constexpr,
    ORDER: tl.constexpr, ALONG: tl.constexpr,
    A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr, SCALED: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """out[batch] = alpha * A[batch] @ B[batch] + bias + beta * C[batch], rounded once. Grid: at most `programs`.

    A is m x k, B k x n; bias, of n, and C are added where they are given, and alpha multiplies if SCALED.
    The descriptors are of [batch, rows, columns] as stored. `steps`, at least 1, are those along K; `launched` is the
    number of programs that the order launches for one product of the batch, `programs` that of the whole batch. A tile
    is written in PIECES along its columns, which share a buffer: by TMA, or by masked stores where there is no
    `out_desc`.
    """
    follow_previous_grid()
    OVERFLOWS: tl.constexpr = ORDER == "split-merge"
    # Steps that differ from tile to tile leave the loops nested, and Triton 3.6 cannot specialise nested ones.
    SPECIALIZE: tl.constexpr = cuda_capability_geq(10) and not OVERFLOWS
    COLS: tl.constexpr = BLOCK_N // PIECES
    # A loop that may run zero times is compiled twice when flattened, and makes ptxas wait after every
    # wgmma when not (Triton 3.6).
    tl.assume(steps > 0)
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    for i in tl.range(tl.program_id(0), programs, tl.num_programs(0), flatten=True, warp_specialize=SPECIALIZE):
        batch = i // launched
        tile_m, tile_n = tile_at(i % launched, tiles_m, tiles_n, table, factors, ORDER, ALONG)
        tile_steps = steps
        if OVERFLOWS:  # one step on zeros, and nothing is written; clamped, so that no product below overflows
            tile_steps = tl.where((tile_m < tiles_m) & (tile_n < tiles_n), steps, 1)
            tile_m = tl.minimum(tile_m, tiles_m)
            tile_n = tl.minimum(tile_n, tiles_n)
        row = tile_m * BLOCK_M
        col = tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tile_steps):
            x = load_block(a_desc, batch, row, step * BLOCK_K, BLOCK_M, BLOCK_K, A_TRANSPOSED)
            y = load_block(b_desc, batch, col, step * BLOCK_K, BLOCK_N, BLOCK_K, not B_TRANSPOSED).T
            if INTERPRETED:  # numpy has no bf16
                x, y = x.to(tl.float32), y.to(tl.float32)
            acc = tl.dot(x, y, acc)
        pieces = split_columns(acc, PIECES)
        for j in tl.static_range(PIECES):
            piece = pieces[j]
            at = col + j * COLS
            cols = tl.arange(0, COLS)
            inside = (tl.arange(0, BLOCK_M) < m - row)[:, None] & (cols < n - at)[None, :]
            if SCALED:
                piece *= alpha
            if bias is not None:
                piece += tl.load(bias + at + cols, mask=cols < n - at, other=0.0).to(tl.float32)[None, :]
            if c is not None:
                addresses = block_at(c, batch, row, at, stride_cb, stride_cm, stride_cn, BLOCK_M, COLS)
                piece += beta * tl.load(addresses, mask=inside, other=0.0).to(tl.float32)
            piece = rounded(piece, out.dtype.element_ty, INTERPRETED)
            if out_desc is not None:
                out_desc.store([batch, row, at], piece.reshape(1, BLOCK_M, COLS))
            else:
                addresses = block_at(out, batch, row, at, stride_ob, stride_om, stride_on, BLOCK_M, COLS)
                tl.store(addresses, piece, mask=inside)
