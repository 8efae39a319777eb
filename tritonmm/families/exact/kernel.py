"""Products of fp32 on CUDA cores and of fp64 on tensor cores, both of which multiply operands in registers.

One program computes one output tile, or a part of its K. Copies of A and B lie in a ring of `num_stages` steps of K in
shared memory, as they lie in memory, whichever dimension is contiguous, filled by cp.async. A step is multiplied slice
by slice, and the operands of a slice are read from shared memory while the one before it is multiplied: also across
steps, so that only the first slice of all is waited for.

What makes fp32 fast is what it reads. A thread sums 8 x 8 elements or more and reads 16 bytes at a time: four elements
of K where K is contiguous, whose lanes then are dealt adjacent rows and whose lines are swizzled, else four rows. Eight
lanes always read from different banks, and of sixteen the pairs next to each other, or next but one, read the same 16
bytes of each operand, which shared memory then serves in one turn instead of two: lanes are dealt a row, eight columns,
a row. (Triton's own dot deals four adjacent rows to each thread, whatever the layout: with K contiguous eight lanes
read the same banks, and fp32 takes four times as long.)

On CUDA cores what is not multiplied costs as much an instruction. Where copies have 16 bytes, lines beyond the edge are
copies of others, which are not stored, and K that has whole steps needs no mask for each copy. Lines that are not
aligned are copied element by element, which 4 bytes are that cp.async can copy anywhere; there masks take fewer
registers. Tensor cores leave time for masks: without them ptxas issues all copies of a step at once, and products of
fp64 took 8% longer.

Where SPLIT_K programs share a tile of fp32, each leaves its sums in memory and counts itself; the one that counts last
adds all of them. Nobody waits, so no grid needs to be resident as a whole.

Determinism: a program sums in a fixed order, and parts are added in the order of K, whoever adds them, so results are
bitwise the same from run to run, and do not depend on the order of the tiles.
"""

import itertools
from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tritonmm.device.constexpr_args import Static
from tritonmm.device.gluon_compat import copy_async, mma_f64
from tritonmm.device.numeric import multiple_of
from tritonmm.device.order import tile_at
from tritonmm.device.pdl import follow_previous_grid
from tritonmm.device.split_k import last_arriver_fixup, slot_sums

POWERS = tuple(1 << bit for bit in range(10))


@dataclass(frozen=True)
class Slicing(Static):
    """Everything static about one kernel: a single compile-time argument.

    warps: how the warps divide the rows and the columns of the tile; layout: the letters of A and B, see
    `Problem.layout`; vector: elements that are copied at once, which divide the lines of both; divisor: a power of two
    that divides the output's lines; whole: whether block_k divides K, and copies of a whole step need no mask; wide:
    whether offsets within a tile need 64 bits.
    """

    block_m: int
    block_n: int
    block_k: int
    num_stages: int
    warps: tuple[int, int]
    dtype: gl.dtype
    layout: str
    vector: int
    divisor: int = 1
    order: str = "row-major"
    along: str = "m"
    scaled: bool = False
    split_k: int = 1
    whole: bool = False
    wide: bool = False

    @property
    def on_tensor_cores(self):
        return self.dtype == gl.float64

    @property
    def clamped(self):
        """Whether lines beyond the edge are copied from others, instead of masked."""
        return not self.on_tensor_cores and self.vector * self.dtype.primitive_bitwidth == 128

    @property
    def slice_k(self):
        return 16 if self.on_tensor_cores else 4

    @property
    def slices(self):
        return self.block_k // self.slice_k

    @property
    def num_warps(self):
        return self.warps[0] * self.warps[1]

    def across(self, operand):
        """Whether the lines of A (0) or B (1) lie across K: whether it is not K that is contiguous."""
        return self.layout[operand] == "tn"[operand]

    def lines(self, operand):
        """Rows of A or columns of B in a tile."""
        return (self.block_m, self.block_n)[operand]

    def bits(self, operand):
        """Of the rows of A or columns of B, on CUDA cores: what a thread's run, lanes, warps and further runs add.

        Where K is contiguous a run is one line, and adjacent lanes have adjacent lines; else it is four.
        """
        run = 4 if self.across(operand) else 1
        ends = 1, run, run * (4, 8)[operand], run * (4, 8)[operand] * self.warps[operand], self.lines(operand)
        return [[x for x in POWERS if start <= x < end] for start, end in itertools.pairwise(ends)]

    @property
    def threads(self):
        """What the bits of a lane's number, and of a warp's, add to (row, column)."""
        (_, rows, warp_rows, _), (_, cols, warp_cols, _) = self.bits(0), self.bits(1)
        lanes = [[rows[0], 0], *([0, x] for x in cols), [rows[1], 0]]
        return lanes, [*([0, x] for x in warp_cols), *([x, 0] for x in warp_rows)]

    @property
    def sums(self):
        """Layout of the sums, which are multiplied in its order, four columns and all rows of a thread at a time.

        So what is multiplied after each other shares a row or column, which is read from registers once for several.
        """
        if self.on_tensor_cores:
            return gl.NVMMADistributedLayout([2, 0], list(self.warps), [16, 8])
        (row_run, _, _, rows), (col_run, _, _, cols) = self.bits(0), self.bits(1)
        cols = col_run + cols
        held = [*([0, x] for x in cols[:2]), *([x, 0] for x in row_run + rows), *([0, x] for x in cols[2:])]
        return gl.DistributedLinearLayout(held, *self.threads, [], [self.block_m, self.block_n])

    def read(self, operand):
        """Layout of a slice in registers, [lines, slice_k], or [slice_k, lines] for tensor cores' B."""
        if self.on_tensor_cores:
            return gl.DotOperandLayout(operand, self.sums, 1)
        run, _, _, further = self.bits(operand)
        held = [[0, 1], [0, 2], *([x, 0] for x in (*run, *further))]
        lanes, warps = ([[x[operand], 0] for x in bases] for bases in self.threads)
        return gl.DistributedLinearLayout(held, lanes, warps, [], [self.lines(operand), self.slice_k])

    def shared(self, operand):
        """Layout of a step in shared memory, [lines, block_k]. Rows of 8 times 16 bytes are permuted."""
        order = [0, 1] if self.across(operand) else [1, 0]
        if self.on_tensor_cores:
            return gl.SwizzledSharedLayout(4, 1, 4, order)
        if self.across(operand):
            return gl.SwizzledSharedLayout(1, 1, 1, order)
        phases = min(8, self.block_k // 4)
        return gl.SwizzledSharedLayout(4, 8 // phases, phases, order)

    def copied(self, operand):
        """Layout of the addresses of a step, [lines, block_k]."""
        vector = self.vector
        if self.across(operand):
            along = min(32, self.lines(operand) // vector)
            return gl.BlockedLayout([vector, 1], [along, 32 // along], [1, self.num_warps], [0, 1])
        along = min(32, self.block_k // vector)
        return gl.BlockedLayout([1, vector], [32 // along, along], [self.num_warps, 1], [1, 0])

    @property
    def stored(self):
        """Layout in which the output is written: 16 bytes a thread, along rows."""
        vector = 2 if self.on_tensor_cores else 4
        along = min(32, self.block_n // vector)
        return gl.BlockedLayout([1, vector], [32 // along, along], [self.num_warps, 1], [1, 0])


@gluon.jit
def indices(SIZE: gl.constexpr, LAYOUT: gl.constexpr, S: gl.constexpr):
    """0 to SIZE - 1, as wide as offsets are."""
    i = gl.arange(0, SIZE, LAYOUT)
    return i.to(gl.int64) if S.wide else i


@gluon.jit
def offsets(left, stride_line, stride_k, OPERAND: gl.constexpr, S: gl.constexpr):
    """Where the elements of a step are, from its first one on, [lines, block_k], of which `left` lines are inside."""
    LAYOUT: gl.constexpr = S.copied(OPERAND)
    lines = indices(S.lines(OPERAND), gl.SliceLayout(1, LAYOUT), S)
    depth = indices(S.block_k, gl.SliceLayout(0, LAYOUT), S)
    if S.clamped:
        RUN: gl.constexpr = S.vector if S.across(OPERAND) else 1  # which divides `left`, and stays a run
        lines = gl.where(lines < left, lines, lines % RUN)
    return lines[:, None] * stride_line + depth[None, :] * stride_k


@gluon.jit
def copy_step(x, x_offsets, left, k, stride_k, step, ring, OPERAND: gl.constexpr, S: gl.constexpr):
    """Lets a step of the lines from `x` on, of which `left` are inside, be copied to the ring, and zeros beyond `k`."""
    LAYOUT: gl.constexpr = S.copied(OPERAND)
    if S.whole:
        inside = step * S.block_k < k
    else:
        depth = gl.arange(0, S.block_k, gl.SliceLayout(0, LAYOUT))
        inside = (depth < k - step * S.block_k)[None, :]
    if not S.clamped:
        lines = gl.arange(0, S.lines(OPERAND), gl.SliceLayout(1, LAYOUT))
        inside = inside & (lines < left)[:, None]
    origin = x + (step * gl.full((), S.block_k, gl.int64)) * stride_k
    copy_async(ring.index(step % S.num_stages), origin + x_offsets, mask=inside)


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
def read_slice(a_ring, b_ring, step, J: gl.constexpr, S: gl.constexpr):
    A_READ: gl.constexpr = S.read(0)
    B_READ: gl.constexpr = S.read(1)
    a = a_ring.index(step % S.num_stages).slice(J * S.slice_k, S.slice_k, 1)
    b = b_ring.index(step % S.num_stages).slice(J * S.slice_k, S.slice_k, 1)
    if S.on_tensor_cores:
        b = b.permute([1, 0])
    return a.load(A_READ), b.load(B_READ)


@gluon.jit
def multiply(x, y, acc, S: gl.constexpr):
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


@gluon.jit(do_not_specialize=["launched", "programs"])
def sliced_kernel(
    a, b, out, c, bias, alpha: gl.float64, beta: gl.float64, table, factors, workspace, flags,
    m, n, k, launched, programs,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn,
    stride_ob, stride_om, stride_on, stride_cb, stride_cm, stride_cn,
    S: gl.constexpr,
):  # fmt: skip
    """out[batch] = alpha * A[batch] @ B[batch] + bias + beta * C[batch], rounded once.

    A is m x k, B k x n. bias, of n, and C are added where they are given; alpha multiplies if scaled.
    Grid: `programs` times split_k, `launched` programs for each product of the batch; those of a part of K follow each
    other. workspace: split_k times a tile's sums, for each tile; flags: one for each, its lower 31 bits zero.
    """
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
            # What the next part multiplies is not copied. (The minimum of a difference would be wrong: ptxas 12.8 adds
            # where it should subtract, in a VIADDMNMX.)
            k = gl.minimum(k, (first + steps) * S.block_k) - first * S.block_k
            if S.layout[0] == "n" or S.layout[1] == "t":
                k = multiple_of(k, S.vector)
        a_offsets = offsets(m_left, stride_am, stride_ak, 0, S)
        b_offsets = offsets(n_left, stride_bn, stride_bk, 1, S)
        A_SHARED: gl.constexpr = S.shared(0)
        B_SHARED: gl.constexpr = S.shared(1)
        SUMS: gl.constexpr = S.sums
        SHAPE: gl.constexpr = [S.block_m, S.block_n]
        STAGES: gl.constexpr = S.num_stages
        SLICES: gl.constexpr = S.slices
        a_ring = gl.allocate_shared_memory(S.dtype, [S.num_stages, S.block_m, S.block_k], A_SHARED)
        b_ring = gl.allocate_shared_memory(S.dtype, [S.num_stages, S.block_n, S.block_k], B_SHARED)
        for stage in gl.static_range(STAGES):
            copy_step(a, a_offsets, m_left, k, stride_ak, stage, a_ring, 0, S)
            copy_step(b, b_offsets, n_left, k, stride_bk, stage, b_ring, 1, S)
            async_copy.commit_group()
        acc = gl.full(SHAPE, 0, S.dtype, SUMS)
        async_copy.wait_group(S.num_stages - 1)
        x, y = read_slice(a_ring, b_ring, 0, 0, S)
        for step in range(steps):
            for j in gl.static_range(SLICES - 1):
                next_x, next_y = read_slice(a_ring, b_ring, step, j + 1, S)
                acc = multiply(x, y, acc, S)
                x, y = next_x, next_y
            async_copy.wait_group(S.num_stages - 2)
            copy_step(a, a_offsets, m_left, k, stride_ak, step + S.num_stages, a_ring, 0, S)
            copy_step(b, b_offsets, n_left, k, stride_bk, step + S.num_stages, b_ring, 1, S)
            async_copy.commit_group()
            next_x, next_y = read_slice(a_ring, b_ring, step + 1, 0, S)
            acc = multiply(x, y, acc, S)
            x, y = next_x, next_y
        async_copy.wait_group(0)

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
            rows = indices(S.block_m, gl.SliceLayout(1, LAYOUT), S)
            cols = indices(S.block_n, gl.SliceLayout(0, LAYOUT), S)
            inside = (rows < m_left)[:, None] & (cols < n_left)[None, :]
            if S.scaled:
                acc = acc * alpha.to(S.dtype)
            if bias is not None:
                added = gl.load(bias + col + cols, mask=cols < n_left, other=0.0)
                acc = acc + added.to(S.dtype)[None, :]
            if c is not None:
                origin = c + batch * stride_cb + row * stride_cm + col * stride_cn
                added = gl.load(origin + rows[:, None] * stride_cm + cols[None, :] * stride_cn, mask=inside, other=0.0)
                acc = acc + beta.to(S.dtype) * added.to(S.dtype)
            origin = out + batch * stride_ob + row * stride_om + col * stride_on
            at = origin + rows[:, None] * stride_om + cols[None, :] * stride_on
            gl.store(at, acc.to(out.dtype.element_ty), mask=inside)
