"""What the exact kernel is compiled for: its tile, and the layouts that follow from it."""

import itertools
from dataclasses import dataclass

from triton.experimental.gluon import language as gl

from tritonmm.device.constexpr_args import ConstexprArgs

POWERS = tuple(1 << bit for bit in range(10))


@dataclass(frozen=True)
class ExactSpec(ConstexprArgs):
    """A single constexpr argument. `operand` is 0 for A and 1 for B; its lines are rows of A or columns of B."""

    block_m: int
    block_n: int
    block_k: int
    num_stages: int
    warp_grid: tuple[int, int]  # warps along the rows and along the columns of the tile
    dtype: gl.dtype
    layout: str  # letters of A and B, see Problem.layout
    vector: int  # elements of a copy, which divides the contiguous lines of A and B
    divisor: int  # a power of two that divides the output's contiguous lines
    order: str  # name and axis of the tile order, see device/order.py
    along: str
    scaled: bool  # alpha multiplies
    split_k: int
    whole_steps: bool  # block_k divides K: one mask serves all copies of a step
    symmetric: bool  # tiles meet the lower triangle, and each element is written to the opposite place too
    wide: bool = False  # offsets within a tile have 64 bits

    @property
    def on_tensor_cores(self):
        return self.dtype == gl.float64

    @property
    def clamped(self):
        """True if lines beyond the edge are copies of others, which are not stored, instead of masked.

        On CUDA cores masks cost time. On tensor cores they do not, and without them ptxas issues all copies of a step
        at once, which takes longer (docs/notebook/exact.md).
        """
        return not self.on_tensor_cores and self.vector * self.dtype.primitive_bitwidth == 128

    @property
    def slice_k(self):
        """Elements of K in registers at a time."""
        return 16 if self.on_tensor_cores else 4

    @property
    def slices(self):
        return self.block_k // self.slice_k

    @property
    def num_warps(self):
        return self.warp_grid[0] * self.warp_grid[1]

    def across(self, operand):
        """True if the contiguous dimension of the operand is not K."""
        return self.layout[operand] == "tn"[operand]

    def lines(self, operand):
        """Lines in a tile."""
        return (self.block_m, self.block_n)[operand]

    def bits(self, operand):
        """Line numbers that the bits of (a thread's run, lane, warp, a thread's further runs) add, on CUDA cores.

        Where K is contiguous a run is one line, and adjacent lanes have adjacent lines; else it is four.
        """
        run = 4 if self.across(operand) else 1
        ends = 1, run, run * (4, 8)[operand], run * (4, 8)[operand] * self.warp_grid[operand], self.lines(operand)
        return [[x for x in POWERS if start <= x < end] for start, end in itertools.pairwise(ends)]

    @property
    def threads(self):
        """What the bits of a lane's number, and of a warp's, add to (row, column).

        Lanes go along a row, then eight columns, then a row: eight lanes read from different banks, and of sixteen the
        neighbours, or the next but one, read the same 16 bytes, which shared memory serves at once.
        """
        (_, rows, warp_rows, _), (_, cols, warp_cols, _) = self.bits(0), self.bits(1)
        lanes = [[rows[0], 0], *([0, x] for x in cols), [rows[1], 0]]
        return lanes, [*([0, x] for x in warp_cols), *([x, 0] for x in warp_rows)]

    @property
    def sums(self):
        """Layout of the sums. Its order is the order of the FMAs: four columns, then all rows of a thread.

        Consecutive FMAs share a row or column, which is read from the register file once for several.
        """
        if self.on_tensor_cores:
            return gl.NVMMADistributedLayout([2, 0], list(self.warp_grid), [16, 8])
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
        """Layout of a step in shared memory, [lines, block_k], as in memory. Eight rows of 16 bytes are swizzled."""
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
        return self._along_rows(self.block_n)

    @property
    def mirrored(self):
        """The same of a tile transposed."""
        return self._along_rows(self.block_m)

    def _along_rows(self, cols):
        vector = 2 if self.on_tensor_cores else 4
        along = min(32, cols // vector)
        return gl.BlockedLayout([1, vector], [32 // along, along], [self.num_warps, 1], [1, 0])
