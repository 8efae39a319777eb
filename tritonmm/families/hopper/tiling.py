"""The constexpr argument of the Hopper kernel: a frozen value that host and device code read alike.

The host makes descriptors and launch options from it, the device reads its properties while it is traced. A program is
one CTA, or a cluster of two that share one operand. Sizes are those of the program; layouts divide them between CTAs.

Two limits of ptxas bound the tile. A wgmma takes its registers from a thread's share at launch, 168 with two consumers
and 128 with one or three, so its accumulator has at most 128 or 64 of them. A consumer may have two accumulators, one
for each N-subtile, up to the registers that it owns once the producer has given up its own.
"""

from dataclasses import dataclass

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from tritonmm.device.pipeline import Pipelined


@dataclass(frozen=True)
class Tiling(Pipelined):
    """All constants of one compiled kernel. Sizes are in elements."""

    block_m: int  # of a program's tile
    block_n: int
    block_k: int  # of a K step
    num_stages: int
    dtype: gl.dtype  # of A
    out_dtype: gl.dtype
    consumers_m: int = 2  # consumer warpgroups along the rows of the tile
    consumers_n: int = 1
    n_subtiles: tuple[int, ...] = (256,)  # widths of a consumer's N-subtiles, see `rules.n_subtiles`
    a_transposed: bool = False  # M is the contiguous dimension of A in memory
    b_transposed: bool = False  # K is the contiguous dimension of B in memory
    piece_cols: int = 64  # columns that a consumer writes at a time, in both CTAs together
    out_buffers: int = 2  # shared buffers of one piece that a consumer cycles through
    # How pieces are written. "tma": through shared memory and by TMA. "rows": through shared memory, then 16 bytes a
    # thread along rows. Both need an address and row length of multiples of 16 bytes. "staged": as "rows", an element a
    # thread, for any output. "direct": from registers.
    store: str = "tma"
    scaled: bool = False  # the epilogue multiplies by alpha
    bias: bool = False  # it adds bias[n]
    add_c: bool = False  # it adds beta * c
    batched: bool = False  # there is more than one batch
    reduce_rows: int = 0  # rows of a split tile that a program adds up at a time; 0: there are no split tiles
    cluster: str = ""  # the axis along which two CTAs divide the tile: "m", they share B, or "n", they share A; or ""
    order: str = "row-major"  # name of the tile order; its factors are arguments
    along: str = "m"  # its axis
    b_dtype: gl.dtype | None = None  # of B; None: A's
    sum_dtype: gl.dtype = gl.float32
    two_level: bool = False  # each K step's sums are added outside of the tensor cores, see `two_level_sums.py`
    chunk_steps: int = 0  # K steps of a chunk, whose sums are added outside of the tensor cores; 0: there are no chunks
    scales: str = ""  # see `Problem.scales`
    # How ragged tiles in M are loaded, see `ragged.py`.
    box_rows: int = 0  # rows of a box of A; if a consumer's, it loads whole blocks; 0: there are no ragged tiles
    last_box_rows: int = 0  # rows of the last box, if it has fewer than box_rows; or 0
    tile_rows: int = 0  # rows of all boxes together, where a tile has fewer rows than a consumer's block; or 0
    shifts: bool = False  # a consumer whose last rows are beyond the matrix begins earlier
    equal_tiles: bool = False  # every tile has tile_rows rows
    symmetric: bool = False  # tiles meet the lower triangle, and each element is written to the opposite place too
    mirrors_output: bool = False  # all of the output is symmetric, not only the product
    moduli: tuple[int, ...] = ()  # sums of batch i are reduced modulo the (i % N)-th of N; (): they are not
    affinity: str = ""  # how tiles are assigned to SMs, "pairs" or "singles", see `claim.py`; or "": they are not

    @property
    def pitch(self):
        """Rows from the first of a tile to that of the tile below it."""
        return self.tile_rows if self.equal_tiles else self.block_m

    @property
    def tma_store(self):
        return self.store == "tma"

    @property
    def loads_c_ahead(self):
        """Whether C of a piece is loaded while the one before is finished and stored: where there are registers."""
        few_sums = self.cols <= 128 or self.mirrors_output or not self.split
        has_registers = self.rows == 64 and self.consumers < 3 and few_sums and not (self.cluster or self.chunk_steps)
        reads_once = self.mirrors_output or not self.symmetric
        return self.add_c and self.tma_store and has_registers and reads_once

    @property
    def loads_c_early(self):
        """Whether C of a tile's first piece is loaded before the tile is multiplied."""
        return self.loads_c_ahead and (self.cols <= 128 or not self.split) and not self.two_level

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

    def cta_halves(self, rank, m=None, n=None):
        """How CTAs hold a block with the tile's rows in dimension m and its columns in n: half of it, or all."""
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
        """A consumer's blocks of B in one stage, one for each N-subtile."""
        k = self.block_k
        return tuple([1, k, width] if not self.b_transposed else [1, width, k] for width in self.n_subtiles)

    @property
    def a_box(self):
        """The box of one TMA load of A: a consumer's block, or the part of a shared operand that lies in one piece."""
        if self.cluster == "n":
            return [1, 64, 64]
        return [1, self.box_rows, self.panel] if self.tile_rows else self.a_block

    @property
    def b_boxes(self):
        return ([1, 64, 64],) if self.cluster == "m" else self.b_blocks

    @property
    def out_block(self):
        return [1, self.rows, self.piece_cols]

    @property
    def a_shared(self):
        cta_halves = self.cta_halves(3, m=2 if self.a_transposed else 1)
        return gl.NVMMASharedLayout.get_default_for(self.a_block, self.dtype, cga_layout=cta_halves)

    @property
    def b_shared(self):
        cta_halves = self.cta_halves(3, n=1 if self.b_transposed else 2)
        layout = gl.NVMMASharedLayout.get_default_for
        return tuple(layout(block, self.b_dtype or self.dtype, cga_layout=cta_halves) for block in self.b_blocks)

    @property
    def out_shared(self):
        cta_halves = self.cta_halves(3, m=1, n=2)
        return gl.NVMMASharedLayout.get_default_for(self.out_block, self.out_dtype, cga_layout=cta_halves)

    def out_buffer(self, subtile, piece):
        """The index of the buffer that a piece of an N-subtile is written through. Pieces cycle through all buffers,
        and a tile's N-subtiles continue each other's cycle: TMA may still read the buffer of the piece before."""
        return (sum(self.n_subtiles[:subtile]) // self.piece_cols + piece) % self.out_buffers

    @property
    def mirrored_block(self):
        """A piece transposed."""
        return [1, self.piece_cols, self.rows]

    @property
    def mirrored_shared(self):
        return gl.NVMMASharedLayout.get_default_for(self.mirrored_block, self.out_dtype)

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
        """Whether ragged tiles are loaded in boxes with a descriptor of their own."""
        return self.last_box_rows > 0 or 0 < self.box_rows < self.rows

    @property
    def skips_empty(self):
        """Whether a consumer without rows multiplies nothing. Those of more than 64 rows would spill registers."""
        return self.box_rows > 0 and self.consumers_m > 1 and self.rows == 64

    @property
    def ordered_mma(self):
        """Whether consumers issue wgmma one after the other, see `device/ordered_mma.py`."""
        return self.block_scaled and self.consumers > 1

    @property
    def ragged_block(self):
        return [1, self.last_box_rows or self.box_rows, self.panel]

    @property
    def ragged_shared(self):
        return gl.NVMMASharedLayout.get_default_for(self.ragged_block, self.dtype)

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
        return self.reduce_rows > 0

    @property
    def reduce_parts(self):
        """Parts whose sums are loaded together: 16 loads of 16 bytes a thread, for any number of rows."""
        return 8192 // (self.reduce_rows * self.cols)

    @property
    def registers(self):
        """Registers a thread at launch, a multiple of 8: 65,536 at most, for the consumers' warps and four more."""
        return {1: 128, 2: 168, 3: 128}[self.consumers]

    @property
    def loader_registers(self):
        """Registers of a producer's thread: more where it has addresses of scales."""
        return 40 if self.block_scaled else 24

    @property
    def acc_layouts(self):
        cta_halves = self.cta_halves(2, m=0, n=1)
        deep = 256 // self.dtype.primitive_bitwidth  # a wgmma multiplies 32 bytes of K
        widest = 128 if self.dtype == gl.int8 else 256  # Triton has no wgmma of int8 with more columns
        widths = (min(width // self.ctas_n, widest) for width in self.n_subtiles)
        return tuple(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, deep], cta_halves) for width in widths)

    @property
    def part_cols(self):
        """Columns of the parts of two-level sums, at most 64 sums of a thread each."""
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
    def block_scaled(self):
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
        """Columns of a tile that share a copied scale: those of a part, at most 128, or one."""
        return self.part_cols if self.scaled_cols > 1 else 1

    @property
    def col_scales(self):
        """Columns whose scales are copied: at least as many as the producer has lanes."""
        return max(32, self.block_n // self.scale_pitch)

    @property
    def row_layout(self):
        """A warp holds neighbours of a row, so that unaligned rows are written in whole sectors too."""
        vector = self.out_vector if self.store == "rows" else 1
        lanes = min(32, self.cta_piece_cols // vector)
        return gl.BlockedLayout([1, vector], [32 // lanes, lanes], [4, 1], [1, 0], self.cta_halves(2, m=0, n=1))

    def piece_layout(self, cols):
        """The same for a piece of so many columns of a symmetric product, an element a thread."""
        lanes = min(32, cols)
        return gl.BlockedLayout([1, 1], [32 // lanes, lanes], [4, 1], [1, 0])

    @property
    def reduce_layout(self):
        """Layout of partial sums as they are added up: 16-byte loads, rows as long as a consumer's."""
        lanes = min(32, self.cols // 4)
        warps = self.cols // 4 // lanes
        return gl.BlockedLayout([1, 4], [32 // lanes, lanes], [4 // warps, warps], [1, 0])
