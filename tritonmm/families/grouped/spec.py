"""The constexpr argument of the grouped kernel: a frozen value that host and device code read alike."""

from dataclasses import dataclass

from triton.experimental.gluon import language as gl

from tritonmm.device.pipeline import Pipelined
from tritonmm.families.grouped.rules import BOX, CONSUMERS, PIECE, WIDE_BOX, boxes, subtiles, widths


@dataclass(frozen=True)
class GroupedSpec(Pipelined):
    """All constants of one compiled kernel. Sizes are in elements."""

    block_m: int  # rows of the output in a tile: the N of wgmma
    block_n: int  # columns of the output in a tile: the M of wgmma
    block_k: int
    num_stages: int
    ragged: str  # what groups divide, "m" or "k"
    dtype: gl.dtype  # of A
    b_dtype: gl.dtype
    out_dtype: gl.dtype
    sum_dtype: gl.dtype
    b_transposed: bool  # K is the contiguous dimension of B in memory
    two_level: bool  # the sums of each step of K are added outside of the tensor cores
    bias: bool
    scales: str  # "row" or ""
    order: str  # of the tiles of a group; its factors are arguments
    along: str
    joined: bool  # as in `orders.Grouped`
    out_buffers: int  # shared buffers of one piece that a consumer cycles through

    box = BOX
    wide_box = WIDE_BOX
    piece = PIECE
    ctas = 1
    block_scaled = False

    @property
    def consumers(self):
        """Warpgroups that multiply."""
        return CONSUMERS[self.block_n]

    @property
    def registers(self):
        """Those of a thread at launch: all that an SM has."""
        return 168 if self.consumers == 2 else 128

    @property
    def loader_registers(self):
        """Those of a thread of the producer and of the scheduler."""
        return 40 if self.consumers == 2 else 32

    @property
    def slots(self):
        """Tiles that are queued, at most. A tile of a group of K is short: then the next but one is fetched too."""
        return 2 if self.ragged == "k" else 1

    @property
    def cols(self):
        """Columns of the output that one consumer owns."""
        return self.block_n // self.consumers

    @property
    def widths(self):
        """The numbers of rows for which there is code, see `rules.widths`."""
        return widths(self.block_m)

    @property
    def subtiles(self):
        """For each number of boxes of rows, the rows of a tile's accumulators: one, or two."""
        return tuple(subtiles(count * self.box, self.consumers) for count in range(self.block_m // self.box + 1))

    @property
    def boxes(self):
        """For each number of small boxes, the first row and number of rows of the TMA boxes that hold their rows."""
        return tuple(boxes(count) for count in range(self.block_m // self.box + 1))

    @property
    def a_rows(self):
        """A's buffer of a stage. The rows of a group come in boxes, so that few rows beyond the group are loaded."""
        return [1, self.block_m, self.block_k] if self.ragged == "m" else [1, 1, self.block_k, self.block_m]

    @property
    def a_block(self):
        """The block of A's descriptor."""
        return [1, self.wide_box, self.block_k] if self.ragged == "m" else self.a_rows

    @property
    def small_block(self):
        """The block of the descriptor of A's small boxes."""
        return [1, self.box, self.block_k]

    @property
    def b_block(self):
        """A consumer's block of B in a stage, as it lies in memory."""
        if self.ragged == "k":
            return [1, 1, self.block_k, self.cols]
        return [1, self.cols, self.block_k] if self.b_transposed else [1, self.block_k, self.cols]

    @property
    def out_block(self):
        """A piece of the output, which a consumer writes at once."""
        return [1, 1, self.piece, self.cols] if self.ragged == "m" else [1, self.piece, self.cols]

    @property
    def a_shared(self):
        return gl.NVMMASharedLayout.get_default_for(self.a_rows, self.dtype)

    @property
    def b_shared(self):
        return gl.NVMMASharedLayout.get_default_for(self.b_block, self.b_dtype)

    @property
    def out_shared(self):
        return gl.NVMMASharedLayout.get_default_for(self.out_block, self.out_dtype)

    @property
    def small_bytes(self):
        """Bytes of a small box."""
        return self.box * self.block_k * self.dtype.primitive_bitwidth // 8

    @property
    def fixed_bytes(self):
        """Bytes that a stage receives besides the boxes of A's rows."""
        lines = self.block_n + (self.block_m if self.ragged == "k" else 0)
        return lines * self.block_k * self.dtype.primitive_bitwidth // 8

    def acc_layout(self, rows):
        """The layout of the sums of `rows` rows, transposed."""
        deep = 256 // self.dtype.primitive_bitwidth  # a wgmma multiplies 32 bytes of K
        widest = 128 if self.dtype == gl.int8 else 256  # Triton has no wgmma of int8 with more columns
        return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, min(rows, widest), deep])
