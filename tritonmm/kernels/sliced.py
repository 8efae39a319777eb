"""Products of fp32 on CUDA cores and of fp64 on tensor cores, both of which multiply operands in registers.

One program computes one output tile. Copies of A and B lie in a ring of `num_stages` steps of K in shared memory, as
they lie in memory, whichever dimension is contiguous, filled by cp.async. A step is multiplied slice by slice, and the
operands of a slice are read from shared memory while the one before it is multiplied: also across steps, so that only
the first slice of all is waited for.

What makes fp32 fast is what it reads. A thread sums 8 x 8 elements or more and reads 16 bytes at a time: four elements
of K where K is contiguous, whose lanes then are dealt adjacent rows and whose lines are swizzled, else four rows. Eight
lanes always read from different banks. (Triton's own dot deals four adjacent rows to each thread, whatever the layout:
with K contiguous eight lanes read the same banks, and fp32 takes four times as long.)

Lines that are not aligned are copied element by element: an element of 4 bytes is what cp.async can copy anywhere.

Determinism: one program sums a tile's whole K in a fixed order, so results are bitwise the same from run to run, and
do not depend on the order of the tiles.
"""

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from tritonmm.kernels.follow import follow_previous_grid
from tritonmm.kernels.gluon_api import copy_async
from tritonmm.kernels.order import tile_at
from tritonmm.kernels.tile import multiple_of


@dataclass(frozen=True)
class Slicing:
    """Everything static about one kernel: a single compile-time argument.

    warps: how the warps divide the rows and the columns of the tile; layout: the letters of A and B, see
    `Problem.layout`; vector: elements that are copied at once, which divide the lines of both; divisor: a power of two
    that divides the output's lines.
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

    @property
    def on_tensor_cores(self):
        return self.dtype == gl.float64

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

    @property
    def sums(self):
        """Layout of the sums. Where K is contiguous adjacent lanes have adjacent rows, else each has four."""
        if self.on_tensor_cores:
            return gl.NVMMADistributedLayout([2, 0], list(self.warps), [16, 8])
        runs = [4 if self.across(operand) else 1 for operand in (0, 1)]
        return gl.BlockedLayout(runs, [4, 8], list(self.warps), [1, 0])

    def read(self, operand):
        """Layout of a slice in registers, [lines, slice_k], or [slice_k, lines] for tensor cores' B."""
        if self.on_tensor_cores:
            return gl.DotOperandLayout(operand, self.sums, 1)
        runs = self.sums.size_per_thread
        threads = gl.BlockedLayout([*runs, 4], [4, 8, 1], [*self.warps, 1], [2, 1, 0])
        return gl.SliceLayout(1 - operand, threads)

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
def offsets(stride_line, stride_k, OPERAND: gl.constexpr, S: gl.constexpr):
    """Where the elements of a step are, from its first one on, [lines, block_k]."""
    LAYOUT: gl.constexpr = S.copied(OPERAND)
    lines = gl.arange(0, S.lines(OPERAND), gl.SliceLayout(1, LAYOUT))
    depth = gl.arange(0, S.block_k, gl.SliceLayout(0, LAYOUT))
    return lines[:, None] * stride_line + depth[None, :] * stride_k


@gluon.jit
def copy_step(x, x_offsets, left, k, stride_k, step, ring, OPERAND: gl.constexpr, S: gl.constexpr):
    """Lets a step of the lines from `x` on, of which `left` are inside, be copied to the ring, and zeros for others."""
    LAYOUT: gl.constexpr = S.copied(OPERAND)
    lines = gl.arange(0, S.lines(OPERAND), gl.SliceLayout(1, LAYOUT))
    depth = gl.arange(0, S.block_k, gl.SliceLayout(0, LAYOUT))
    inside = (lines < left)[:, None] & (depth < k - step * S.block_k)[None, :]
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
        acc = mma_v2(x, y, acc)
    else:
        ROWS: gl.constexpr = gl.SliceLayout(1, S.sums)
        COLS: gl.constexpr = gl.SliceLayout(0, S.sums)
        xs = columns(x, ROWS)
        ys = columns(y, COLS)
        for i in gl.static_range(4):
            acc = gl.fma(xs[i][:, None], ys[i][None, :], acc)
    return acc


@gluon.jit(do_not_specialize=["launched"])
def sliced_kernel(
    a, b, out, c, bias, alpha: gl.float64, beta: gl.float64, table, factors, m, n, k, launched,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn,
    stride_ob, stride_om, stride_on, stride_cb, stride_cm, stride_cn,
    S: gl.constexpr,
):  # fmt: skip
    """out[batch] = alpha * A[batch] @ B[batch] + bias + beta * C[batch], rounded once.

    A is m x k, B k x n. bias, of n, and C are added where they are given; alpha multiplies if scaled.
    Grid: `launched` programs for each product of the batch.
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
        a_offsets = offsets(stride_am, stride_ak, 0, S)
        b_offsets = offsets(stride_bn, stride_bk, 1, S)
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
        for step in range(gl.cdiv(k, S.block_k)):
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
        rows = gl.arange(0, S.block_m, gl.SliceLayout(1, LAYOUT))
        cols = gl.arange(0, S.block_n, gl.SliceLayout(0, LAYOUT))
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
