"""GEMM of exact fp32 on CUDA cores and of fp64 on tensor cores, with both operands in registers.

Supports: fp32 with precision ieee, and fp64 with Triton 3.6 and 3.9; any sizes, strides and alignment; sm_90.

1. A program computes one output tile, or with split-K one of its parts of K.
2. cp.async copies A and B to a pipeline of `num_stages` steps of K in shared memory, as they lie in memory, whichever
   dimension is contiguous. Lines that are not aligned are copied element by element: cp.async copies 4 bytes from
   anywhere.
3. A step is multiplied slice by slice. While one slice is multiplied, the operands of the next are read from shared
   memory, also across steps: only the first slice of a tile is waited for.
4. On CUDA cores a thread sums 8 x 8 elements or more and reads 16 bytes at a time: four elements of K where K is
   contiguous, else four lines. `spec.py` says which lanes read which lines, so that banks do not conflict.
5. Split-K (fp32): each program stores its sums and counts itself; the one that counts last adds all of them. No program
   waits, so the grid need not be resident as a whole.
6. The epilogue applies alpha, bias and C, rounds once and stores. For a symmetric product it is applied twice: to the
   elements below the diagonal, and to the same for the opposite places.

Constraints: see `rules.py`; most bound the registers of a thread.

Determinism: a program sums in a fixed order, and parts are added in the order of K, whichever program adds them.
Results are bitwise the same from run to run and do not depend on the order of the tiles.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tritonmm.device.epilogue import plus_c, scaled_plus_bias
from tritonmm.device.gluon_compat import copy_async, mma_f64
from tritonmm.device.numeric import multiple_of
from tritonmm.device.operand import Addends, Output
from tritonmm.device.order import tile_at
from tritonmm.device.pdl import follow_previous_grid
from tritonmm.device.split_k import last_arriver_fixup, slot_sums


class Source(NamedTuple):
    """An operand of a tile in memory, and its stages in shared memory."""

    at: Any  # pointer to the tile's first line and element of K
    offsets: Any  # of the elements of a step, [lines, block_k]
    lines_left: Any  # lines inside of the operand
    stride_k: Any
    stages: Any  # shared memory, [num_stages, lines, block_k]


@gluon.jit
def indices(SIZE: gl.constexpr, LAYOUT: gl.constexpr, S: gl.constexpr):
    """0 to SIZE - 1, as wide as offsets are."""
    i = gl.arange(0, SIZE, LAYOUT)
    return i.to(gl.int64) if S.wide else i


@gluon.jit
def offsets(lines_left, stride_line, stride_k, OPERAND: gl.constexpr, S: gl.constexpr):
    """Offsets of the elements of a step from its first, [lines, block_k]; `lines_left` lines are inside."""
    LAYOUT: gl.constexpr = S.copied(OPERAND)
    lines = indices(S.lines(OPERAND), gl.SliceLayout(1, LAYOUT), S)
    depth = indices(S.block_k, gl.SliceLayout(0, LAYOUT), S)
    if S.clamped:
        RUN: gl.constexpr = S.vector if S.across(OPERAND) else 1  # divides lines_left: what is copied stays a run
        lines = gl.where(lines < lines_left, lines, lines % RUN)
    return lines[:, None] * stride_line + depth[None, :] * stride_k


@gluon.jit
def allocate(OPERAND: gl.constexpr, S: gl.constexpr):
    """Shared memory of an operand's stages, [num_stages, lines, block_k]."""
    SHAPE: gl.constexpr = [S.num_stages, S.lines(OPERAND), S.block_k]
    SHARED: gl.constexpr = S.shared(OPERAND)
    return gl.allocate_shared_memory(S.dtype, SHAPE, SHARED)


@gluon.jit
def copy_step(x, k, step, OPERAND: gl.constexpr, S: gl.constexpr):
    """Starts to copy a step of operand x to its stage, with zeros beyond `k`."""
    LAYOUT: gl.constexpr = S.copied(OPERAND)
    if S.whole_steps:
        inside = step * S.block_k < k
    else:
        depth = gl.arange(0, S.block_k, gl.SliceLayout(0, LAYOUT))
        inside = (depth < k - step * S.block_k)[None, :]
    if not S.clamped:
        lines = gl.arange(0, S.lines(OPERAND), gl.SliceLayout(1, LAYOUT))
        inside = inside & (lines < x.lines_left)[:, None]
    at = x.at + (step * gl.full((), S.block_k, gl.int64)) * x.stride_k
    copy_async(x.stages.index(step % S.num_stages), at + x.offsets, mask=inside)


@gluon.jit
def columns(x, LAYOUT: gl.constexpr):
    """The four columns of x, [lines, 4], which a thread holds together; no data moves."""
    left, right = x.reshape(x.shape[0], 2, 2).permute(0, 2, 1).split()
    first, second = left.split()
    third, fourth = right.split()
    return (
        gl.convert_layout(first, LAYOUT, assert_trivial=True),
        gl.convert_layout(second, LAYOUT, assert_trivial=True),
        gl.convert_layout(third, LAYOUT, assert_trivial=True),
        gl.convert_layout(fourth, LAYOUT, assert_trivial=True),
    )


@gluon.jit
def read_slice(a, b, step, J: gl.constexpr, S: gl.constexpr):
    """Slice J of a step of both operands, from shared memory to registers."""
    A_READ: gl.constexpr = S.read(0)
    B_READ: gl.constexpr = S.read(1)
    x = a.stages.index(step % S.num_stages).slice(J * S.slice_k, S.slice_k, 1)
    y = b.stages.index(step % S.num_stages).slice(J * S.slice_k, S.slice_k, 1)
    if S.on_tensor_cores:
        y = y.permute([1, 0])
    return x.load(A_READ), y.load(B_READ)


@gluon.jit
def multiply(x, y, acc, S: gl.constexpr):
    """acc plus the product of a slice of each operand."""
    if S.on_tensor_cores:
        acc = mma_f64(x, y, acc)
    else:
        ROWS: gl.constexpr = gl.SliceLayout(1, S.sums)
        COLS: gl.constexpr = gl.SliceLayout(0, S.sums)
        xs = columns(x, ROWS)
        ys = columns(y, COLS)
        for i in gl.static_range(4):
            acc = gl.fma(xs[i][:, None], ys[i][None, :], acc)
    return acc


@gluon.jit
def accumulate(a, b, k, steps, S: gl.constexpr):
    """The sums over `steps` steps of K, of which `k` elements are inside."""
    STAGES: gl.constexpr = S.num_stages
    SLICES: gl.constexpr = S.slices
    SHAPE: gl.constexpr = [S.block_m, S.block_n]
    SUMS: gl.constexpr = S.sums
    for stage in gl.static_range(STAGES):
        copy_step(a, k, stage, 0, S)
        copy_step(b, k, stage, 1, S)
        async_copy.commit_group()
    acc = gl.full(SHAPE, 0, S.dtype, SUMS)
    async_copy.wait_group(STAGES - 1)
    x, y = read_slice(a, b, 0, 0, S)
    for step in range(steps):
        for j in gl.static_range(SLICES - 1):
            next_x, next_y = read_slice(a, b, step, j + 1, S)
            acc = multiply(x, y, acc, S)
            x, y = next_x, next_y
        async_copy.wait_group(STAGES - 2)
        copy_step(a, k, step + STAGES, 0, S)
        copy_step(b, k, step + STAGES, 1, S)
        async_copy.commit_group()
        next_x, next_y = read_slice(a, b, step + 1, 0, S)
        acc = multiply(x, y, acc, S)
        x, y = next_x, next_y
    async_copy.wait_group(0)
    return acc


@gluon.jit
def store(acc, batch, row, col, m_left, n_left, output, addends, SIDE: gl.constexpr, S: gl.constexpr):
    """Applies the epilogue to the sums of the block at (row, col) and stores it, as far as it is inside.

    SIDE: "lower" stores only what is on or below the diagonal of the output, "upper" what is above.
    """
    LAYOUT: gl.constexpr = acc.type.layout
    rows = indices(acc.shape[0], gl.SliceLayout(1, LAYOUT), S)
    cols = indices(acc.shape[1], gl.SliceLayout(0, LAYOUT), S)
    inside = (rows < m_left)[:, None] & (cols < n_left)[None, :]
    if SIDE == "lower":
        inside = inside & ((row + rows)[:, None] >= (col + cols)[None, :])
    elif SIDE == "upper":
        inside = inside & ((row + rows)[:, None] < (col + cols)[None, :])
    added = None
    if addends.bias is not None:
        added = gl.load(addends.bias + col + cols, mask=cols < n_left, other=0.0).to(S.dtype)[None, :]
    acc = scaled_plus_bias(acc, None, None, addends.alpha.to(S.dtype) if S.scaled else None, added)
    if addends.c is not None:
        stride_m, stride_n = addends.stride_cm, addends.stride_cn
        origin = addends.c + batch * addends.stride_cb + row * stride_m + col * stride_n
        added = gl.load(origin + rows[:, None] * stride_m + cols[None, :] * stride_n, mask=inside, other=0.0)
        acc = plus_c(acc, addends.beta.to(S.dtype), added)
    origin = output.pointer + batch * output.stride_b + row * output.stride_m + col * output.stride_n
    at = origin + rows[:, None] * output.stride_m + cols[None, :] * output.stride_n
    gl.store(at, acc.to(output.pointer.dtype.element_ty), mask=inside)


@gluon.jit(do_not_specialize=["launched", "programs"])
def exact_kernel(
    a, b, out, c, bias, alpha: gl.float64, beta: gl.float64, table, factors, workspace, flags, skip,
    m, n, k, launched, programs, a_strides, b_strides, out_strides, c_strides, S: gl.constexpr,
):  # fmt: skip
    """out[batch] = alpha * A[batch] @ B[batch] + bias + beta * C[batch], rounded once.

    A is m x k, B k x n. Strides are along the batch, rows and columns, in elements. bias, of n, and C are added where
    they are given. workspace: block_m x block_n sums for each of split_k parts of each tile; flags: one for each tile,
    its lower 31 bits zero. skip: None, or one int32: nothing is computed if it is not 0. launched: indices of the order
    for one GEMM of the batch; programs: for all.
    Grid: (programs * split_k,); the programs of one part of K follow each other.
    """
    stride_ab, stride_am, stride_ak = a_strides
    stride_bb, stride_bk, stride_bn = b_strides
    stride_ob, stride_om, stride_on = out_strides
    stride_cb, stride_cm, stride_cn = c_strides
    follow_previous_grid()
    stride_ab, stride_bb = multiple_of(stride_ab, S.vector), multiple_of(stride_bb, S.vector)
    if S.layout[0] == "n":
        stride_am, k = multiple_of(stride_am, S.vector), multiple_of(k, S.vector)
    elif S.layout[0] == "t":
        stride_ak, m = multiple_of(stride_ak, S.vector), multiple_of(m, S.vector)
    if S.layout[1] == "n":
        stride_bk, n = multiple_of(stride_bk, S.vector), multiple_of(n, S.vector)
    elif S.layout[1] == "t":
        stride_bn, k = multiple_of(stride_bn, S.vector), multiple_of(k, S.vector)
    stride_ob = multiple_of(stride_ob, S.divisor)
    stride_om, n = multiple_of(stride_om, S.divisor), multiple_of(n, S.divisor)
    tiles_m = gl.cdiv(m, S.block_m)
    tiles_n = gl.cdiv(n, S.block_n)
    i = gl.program_id(0)
    part = 0
    if S.split_k > 1:
        part = i // programs
        i = i % programs
    batch = (i // launched).to(gl.int64)
    ORDER: gl.constexpr = S.order
    ALONG: gl.constexpr = S.along
    tile_m, tile_n = tile_at(i % launched, tiles_m, tiles_n, table, factors, ORDER, ALONG)
    if skip is not None:
        tiles_m = gl.where(gl.load(skip) != 0, 0, tiles_m)
    if (tile_m < tiles_m) & (tile_n < tiles_n):  # else overflow: split-merge launches more than there is
        row = tile_m.to(gl.int64) * S.block_m
        col = tile_n.to(gl.int64) * S.block_n
        m_left = (m - row).to(gl.int32)
        n_left = (n - col).to(gl.int32)
        a += batch * stride_ab + row * stride_am
        b += batch * stride_bb + col * stride_bn
        steps = gl.cdiv(k, S.block_k)
        if S.split_k > 1:
            more = steps % S.split_k  # the first parts have a step more where split_k does not divide them
            first = part * (steps // S.split_k) + gl.minimum(part, more)
            steps = steps // S.split_k + (part < more).to(gl.int32)
            start = first.to(gl.int64) * S.block_k
            a += start * stride_ak
            b += start * stride_bk
            # This part copies nothing of the next. ptxas 12.8 miscompiles the minimum of a difference: subtract after.
            k = gl.minimum(k, (first + steps) * S.block_k) - first * S.block_k
            if S.layout[0] == "n" or S.layout[1] == "t":
                k = multiple_of(k, S.vector)
        a_offsets = offsets(m_left, stride_am, stride_ak, 0, S)
        b_offsets = offsets(n_left, stride_bn, stride_bk, 1, S)
        a_source = Source(a, a_offsets, m_left, stride_ak, allocate(0, S))
        b_source = Source(b, b_offsets, n_left, stride_bk, allocate(1, S))
        acc = accumulate(a_source, b_source, k, steps, S)

        LAYOUT: gl.constexpr = S.stored
        acc = gl.convert_layout(acc, LAYOUT)
        writes = True
        if S.split_k > 1:
            AREA: gl.constexpr = S.block_m * S.block_n
            in_row = gl.arange(0, S.block_n, gl.SliceLayout(0, LAYOUT))[None, :]
            in_slot = gl.arange(0, S.block_m, gl.SliceLayout(1, LAYOUT))[:, None] * S.block_n + in_row
            sums = slot_sums(workspace, i, S.split_k * AREA)
            acc, writes = last_arriver_fixup(acc, in_slot, sums, flags + i, part, S.split_k, AREA, None)
        if writes:
            output = Output(out, stride_ob, stride_om, stride_on)
            addends = Addends(c, stride_cb, stride_cm, stride_cn, bias, alpha, beta)
            if S.symmetric:
                store(acc, batch, row, col, m_left, n_left, output, addends, "lower", S)
                MIRRORED: gl.constexpr = S.mirrored
                mirrored = gl.convert_layout(acc.permute(1, 0), MIRRORED)
                store(mirrored, batch, col, row, n_left, m_left, output, addends, "upper", S)
            else:
                store(acc, batch, row, col, m_left, n_left, output, addends, "", S)
