"""The static side of the Hopper kernel: one frozen value that host and device code read alike.

It is the kernel's only compile-time argument besides its descriptors' layouts; the device reads its
properties while it is traced, the host makes descriptors and launch options from the same ones.
A program is one CTA, or a cluster of two that share one operand; sizes are those of the program, so
that the kernel reads the same in both cases, and the layouts deal them to the CTAs.
Two compiler limits bound the choice. A wgmma takes its registers from a thread's share at launch, 168
with two consumers and 128 with three, so that its accumulator has at most 128 or 64 of them; but a
consumer may have several (`strips`), up to what it owns once the loader has given up its share.
"""

from dataclasses import dataclass

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from tritonmm.device.pipeline import Ringed


@dataclass(frozen=True)
class Tiling(Ringed):
    """Everything static about one kernel: a single compile-time argument.

    consumers_m, consumers_n: consumer warpgroups along the rows and the columns of the tile.
    strips: widths of what a consumer's columns are cut into, see `hopper.consumer_strips`.
    a_transposed, b_transposed: whether the operand's first dimension is the contiguous one in memory.
    b_dtype, sum_dtype: of B where it is not A's, and of the sums.
    promotes: whether the sums of each step of K are added to others outside of the tensor cores.
    scales: how operands are scaled, see `Problem.scales`.
    edge: rows of the boxes in which A's last rows are loaded, see `ragged`; 0: there are no ragged tiles.
    rest: rows of the box for what fills no box of `edge` rows; 0: those are loaded as any other, or by `shifts`.
    all_rows: where a tile has fewer rows than a consumer's block: those of all its boxes together, the last of `rest`;
        or 0.
    even: whether every tile has `all_rows` rows.
    seats: how tiles are dealt to SMs, "pairs" or "singles", see `claim`; "": programs take those of their numbers.
    shifts: whether a consumer whose last rows are not there begins with rows of others.
    piece_cols: columns of the pieces in which a consumer writes its part of the tile, in both CTAs together.
    out_buffers: shared buffers of one piece that a consumer cycles through.
    store: how finished pieces are written: "tma", through shared memory and by TMA, for an output whose address and row
        length are multiples of 16 bytes; "rows", for such an output too, through shared memory and then along rows, 16
        bytes a thread; "staged", the same for any output, an element a thread; "direct", from registers.
    scaled, bias, add_c: whether the epilogue multiplies by alpha, adds bias[n], adds beta * c.
    batched: whether there is more than one product.
    share_rows: rows of a split tile that a program adds up at a time, see `split_k`; 0: there are no split tiles.
    cluster: "" (a program is one CTA), or the axis along which two CTAs divide the tile: "m" (they share B) or "n" (A).
    order, along: name and axis of the order of tiles, see `tritonmm.orders`; its factors are run-time values.
    """

    block_m: int
    block_n: int
    block_k: int
    num_stages: int
    dtype: gl.dtype
    out_dtype: gl.dtype
    consumers_m: int = 2
    consumers_n: int = 1
    strips: tuple[int, ...] = (256,)
    a_transposed: bool = False
    b_transposed: bool = False
    piece_cols: int = 64
    out_buffers: int = 2
    store: str = "tma"
    scaled: bool = False
    bias: bool = False
    add_c: bool = False
    batched: bool = False
    share_rows: int = 0
    cluster: str = ""
    order: str = "row-major"
    along: str = "m"
    b_dtype: gl.dtype | None = None
    sum_dtype: gl.dtype = gl.float32
    promotes: bool = False
    scales: str = ""
    edge: int = 0
    rest: int = 0
    all_rows: int = 0
    shifts: bool = False
    even: bool = False
    seats: str = ""

    @property
    def pitch(self):
        """Rows from the first of a tile to that of the tile below it."""
        return self.all_rows if self.even else self.block_m

    @property
    def tma_store(self):
        return self.store == "tma"

    @property
    def consumers(self):
        return self.consumers_m * self.consumers_n

    @property
    def ctas(self):
        """CTAs of one program."""
        return 2 if self.cluster else 1

    @property
    def ctas_m(self):
        return 2 if self.cluster == "m" else 1

    @property
    def ctas_n(self):
        return 2 if self.cluster == "n" else 1

    def dealt(self, rank, m=None, n=None):
        """How CTAs hold a block with the tile's rows in dimension m and its columns in n: halves, or all of it each."""
        cut = m if self.cluster == "m" else n
        return [[int(i == cut) for i in range(rank)]] if self.cluster else []

    @property
    def rows(self):
        """Rows of the tile that one consumer owns, in both CTAs of a cluster together."""
        return self.block_m // self.consumers_m

    @property
    def cols(self):
        return self.block_n // self.consumers_n

    @property
    def cta_cols(self):
        """Columns that one consumer owns in one CTA."""
        return self.cols // self.ctas_n

    @property
    def cta_piece_cols(self):
        return self.piece_cols // self.ctas_n

    @property
    def a_block(self):
        """A consumer's block of A in one stage, as it lies in memory: [batch, rows, columns]."""
        return [1, self.rows, self.block_k] if not self.a_transposed else [1, self.block_k, self.rows]

    @property
    def b_blocks(self):
        """A consumer's blocks of B in one stage, one for each strip."""
        k = self.block_k
        return tuple([1, k, strip] if not self.b_transposed else [1, strip, k] for strip in self.strips)

    @property
    def a_box(self):
        """What one TMA load brings of A: a consumer's block, or the part of a shared operand that lies in one piece."""
        if self.cluster == "n":
            return [1, 64, 64]
        return [1, self.edge, self.panel] if self.all_rows else self.a_block

    @property
    def b_boxes(self):
        return ([1, 64, 64],) if self.cluster == "m" else self.b_blocks

    @property
    def out_block(self):
        return [1, self.rows, self.piece_cols]

    @property
    def a_shared(self):
        dealt = self.dealt(3, m=2 if self.a_transposed else 1)
        return gl.NVMMASharedLayout.get_default_for(self.a_block, self.dtype, cga_layout=dealt)

    @property
    def b_shared(self):
        dealt = self.dealt(3, n=1 if self.b_transposed else 2)
        layout = gl.NVMMASharedLayout.get_default_for
        return tuple(layout(block, self.b_dtype or self.dtype, cga_layout=dealt) for block in self.b_blocks)

    @property
    def out_shared(self):
        return gl.NVMMASharedLayout.get_default_for(self.out_block, self.out_dtype, cga_layout=self.dealt(3, m=1, n=2))

    @property
    def barrier_layout(self):
        return mbarrier.MBarrierLayout([[1]]) if self.cluster else mbarrier.MBarrierLayout()

    @property
    def releases(self):
        """Arrivals that empty a stage: one a consumer; in a cluster one of each of its four warps in each CTA."""
        return self.consumers * 4 * self.ctas if self.cluster else self.consumers

    @property
    def panel(self):
        """Elements of K in the 128 bytes that TMA swizzles."""
        return 1024 // self.dtype.primitive_bitwidth

    @property
    def boxes(self):
        """Whether ragged tiles are loaded in boxes that have a descriptor of their own."""
        return self.rest > 0 or 0 < self.edge < self.rows

    @property
    def passes_over(self):
        """Whether a consumer with no rows multiplies nothing. Those of more than 64 rows would spill."""
        return self.edge > 0 and self.consumers_m > 1 and self.rows == 64

    @property
    def turns(self):
        """Whether consumers take turns at the tensor cores, see `ordered_mma`."""
        return self.grouped and self.consumers > 1

    @property
    def edge_block(self):
        return [1, self.rest or self.edge, self.panel]

    @property
    def edge_shared(self):
        return gl.NVMMASharedLayout.get_default_for(self.edge_block, self.dtype)

    @property
    def stage_bytes(self):
        """Bytes that one CTA receives in one stage."""
        lines = self.block_m // self.ctas_m + self.block_n // self.ctas_n
        return lines * self.block_k * self.dtype.primitive_bitwidth // 8

    @property
    def out_vector(self):
        """Output elements in 16 bytes."""
        return 128 // self.out_dtype.primitive_bitwidth

    @property
    def split(self):
        """Whether there are split tiles."""
        return self.share_rows > 0

    @property
    def share_parts(self):
        """Parts whose sums are loaded together: 16 loads of 16 bytes a thread, whatever the rows."""
        return 8192 // (self.share_rows * self.cols)

    @property
    def registers(self):
        """Registers a thread at launch: 65,536 shared by the consumers and the loader's four warps, a multiple of 8."""
        return {1: 128, 2: 168, 3: 128}[self.consumers]

    @property
    def loader_registers(self):
        """Registers of a loader's thread: it has addresses of scales, or few."""
        return 40 if self.grouped else 24

    @property
    def acc_layouts(self):
        dealt = self.dealt(2, m=0, n=1)
        deep = 256 // self.dtype.primitive_bitwidth  # a wgmma multiplies 32 bytes of K
        widest = 128 if self.dtype == gl.int8 else 256  # Triton has no wgmma of int8 with more columns
        widths = (min(strip // self.ctas_n, widest) for strip in self.strips)
        return tuple(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, deep], dealt) for width in widths)

    @property
    def part_cols(self):
        """Columns of the parts in which promoted sums are taken, at most 64 of a thread each: `two_level_sums.py`."""
        return min(self.cols, 128)

    @property
    def part_rows(self):
        return min(self.rows, 8192 // self.part_cols)

    @property
    def parts_m(self):
        """Parts along a consumer's rows."""
        return self.rows // self.part_rows

    @property
    def parts_n(self):
        return self.cols // self.part_cols

    @property
    def part_layout(self):
        deep = 256 // self.dtype.primitive_bitwidth
        return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, self.part_cols, deep])

    @property
    def grouped(self):
        """Whether each step of K has scales of its own."""
        return "x" in self.scales

    @property
    def scaled_rows(self):
        """Rows of A that share a scale of a group of K."""
        return 128 if self.scales == "128x128*1x128" else 1

    @property
    def scaled_cols(self):
        return 128 if self.scales == "1x128*128x128" else 1

    @property
    def scale_pitch(self):
        """Columns of a tile from one that brings its scale to the next: parts of 128 or fewer have one, or each has."""
        return self.part_cols if self.scaled_cols > 1 else 1

    @property
    def col_scales(self):
        """Columns whose scales are copied: a multiple of the loader's lanes."""
        return max(32, self.block_n // self.scale_pitch)

    @property
    def row_layout(self):
        """A warp holds neighbours of a row, so that unaligned rows are still written in whole sectors."""
        vector = self.out_vector if self.store == "rows" else 1
        lanes = min(32, self.cta_piece_cols // vector)
        return gl.BlockedLayout([1, vector], [32 // lanes, lanes], [4, 1], [1, 0], self.dealt(2, m=0, n=1))

    @property
    def share_layout(self):
        """Four neighbours of a row a thread, and rows as long as a consumer's: 16-byte loads of partial sums."""
        lanes = min(32, self.cols // 4)
        warps = self.cols // 4 // lanes
        return gl.BlockedLayout([1, 4], [32 // lanes, lanes], [4 // warps, warps], [1, 0])
