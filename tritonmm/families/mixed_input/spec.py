"""What the mixed-input kernel is compiled for: its tile, pipeline and fixup, and the layouts that follow from them."""

from dataclasses import dataclass

from triton.experimental.gluon import language as gl

from tritonmm.device.pipeline import Pipelined
from tritonmm.families.common_rules import SM_REGISTERS


@dataclass(frozen=True)
class MixedInputSpec(Pipelined):
    """A single constexpr argument."""

    block_r: int  # rows of weights in a tile
    subtiles: tuple  # rows of activations in each of the one to three wgmma tiles of a tile, powers of two
    block_k: int  # elements of K in a stage
    stages_of_step: int  # stages that a step fills: 2 where a scale group is two, else 1
    slice_k: int  # elements of K that are converted while others are multiplied
    piece_cols: int  # columns of a consumer's sums that are finished and written at a time
    rounds_first: bool  # sums are rounded before they change to the layout in which they are written
    fixup: str  # of tiles that programs share: see `rules.fixup`
    in_rounds: bool  # programs have whole tiles before their shares
    parts: int  # programs that share a tile and wait for each other; 0 where none wait
    pieces: tuple  # of shared tiles: pieces of each subtile's columns; () where none is shared, or assisted
    num_stages: int
    consumers: int  # warpgroups that multiply
    resident: int  # programs that an SM holds
    dtype: gl.dtype
    w_dtype: gl.dtype  # int16 where weights are packed
    packed: str  # "int4", "int8p", or "" where weights are not packed
    out_dtype: gl.dtype
    scales: str  # "row": one for each row of weights; "group", "group-zero": for each of its groups of K; or ""
    scale_groups: int  # groups of K in a step that have scales, 1 or 2; 0 where none have
    all_groups: int  # groups of K, where a step has 2
    ordered_mma: bool  # consumers multiply in turn, see `device/ordered_mma.py`
    reads_ahead: bool  # all packed weights of a step are read into registers before any of them is converted
    at_once: bool  # all weights of a step, or of a scale group, are converted before their wgmma
    rescales: bool  # one accumulator is rescaled from group to group, instead of sums added to totals
    scaled: bool  # alpha multiplies
    bias: bool
    add_c: bool
    divisor: int  # a power of two that divides the output's contiguous lines
    order: str  # name and axis of the tile order, see device/order.py
    along: str
    shifts: bool  # the last tile of activations begins earlier, so that all of its rows are inside
    ragged: bool  # groups of activations have weights of their own
    joined: bool  # the order visits the tiles of all groups as one grid

    ctas = 1  # of a program

    @property
    def unit(self):
        """A weight divided by its converted number: sums are multiplied by it. See `device/dequantize.py`."""
        return 64.0 if self.dtype == gl.bfloat16 and self.w_dtype in (gl.int8, gl.int16) else 1.0

    @property
    def per_word(self):
        """Packed weights in an int16; 0 where they are not packed."""
        return {"int8p": 2, "int4": 4}.get(self.packed, 0)

    @property
    def has_zero_points(self):
        """True if scales of groups have zero points in their last bits."""
        return self.scales == "group-zero"

    @property
    def rows(self):
        """Rows of weights of a consumer."""
        return self.block_r // self.consumers

    @property
    def slices(self):
        """Slices of a stage."""
        return self.block_k // self.slice_k

    @property
    def slots(self):
        """Slots of a program's partial sums: an equal share of all tiles may end one tile and begin another."""
        return 2 if self.fixup == "last-arriver" else 1

    @property
    def splits_tail(self):
        """True if two programs split the K of each tile of the last round."""
        return self.fixup in ("exchange", "assist")

    @property
    def block_c(self):
        return sum(self.subtiles)

    @property
    def starts(self):
        """The first of each subtile's columns."""
        return tuple(sum(self.subtiles[:i]) for i in range(len(self.subtiles)))

    @property
    def sums(self):
        """Layout of a consumer's sums of each subtile, [rows, subtile]."""
        return tuple(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, subtile, 16]) for subtile in self.subtiles)

    @property
    def reads(self):
        """Layout of a consumer's slice of weights, [rows, slice_k], for each subtile. All place the same data alike."""
        return tuple(gl.DotOperandLayout(0, sums, 2) for sums in self.sums)

    @property
    def words(self):
        """Layout of a consumer's slice of packed weights, int16 [rows, words]: each thread has those of `reads`.

        16 words have the layout of 16 elements of K of 16 bits. 8 have that of half of them.
        """
        if self.slice_k >= 16 * self.per_word:
            return self.reads[0]
        registers = [[0, 1], [8, 0], *([[64, 0]] if self.rows == 128 else [])]
        lanes = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]
        return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [self.rows, 8])

    @property
    def w_block(self):
        return [1, self.rows, self.block_k // max(self.per_word, 1)]

    @property
    def x_blocks(self):
        return tuple([1, subtile, self.block_k] for subtile in self.subtiles)

    @property
    def w_shared(self):
        return gl.NVMMASharedLayout.get_default_for(self.w_block, self.w_dtype)

    @property
    def x_shared(self):
        return tuple(gl.NVMMASharedLayout.get_default_for(block, self.dtype) for block in self.x_blocks)

    @property
    def stage_bytes(self):
        return (self.block_r // (2 if self.per_word == 4 else 1) + 2 * self.block_c) * self.block_k

    @property
    def ahead(self):
        """True if scales of rows are loaded before the loop over K, which hides their latency and takes registers."""
        return self.scales == "row" and self.consumers < 3

    @property
    def stored(self):
        """Layout of a piece of sums as it is written, [rows, cols]: the output is contiguous along rows of weights."""
        width = 8 if self.rounds_first and self.divisor % 8 == 0 else 4
        lanes = min(32, self.rows // width)
        return gl.BlockedLayout([width, 1], [lanes, 32 // lanes], [1, 4], [0, 1])

    @property
    def piece_shared(self):
        """Layout of a piece in shared memory, [rows, cols], contiguous along its rows."""
        return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2, transposed=True)

    @property
    def registers(self):
        """Registers of a thread at launch: an equal share of the SM's, as a multiple of 8."""
        return SM_REGISTERS // (32 * self.resident * (4 * self.consumers + 4)) // 8 * 8

    @property
    def loader_registers(self):
        """Registers of a producer's thread: 24, the least that setmaxnreg takes, 48 for the addresses of scales, and 56
        to find the tiles of groups."""
        return 56 if self.ragged else 48 if self.block_scaled else 24

    @property
    def block_scaled(self):
        """True if groups of K have scales, which the pipeline then holds."""
        return self.scale_groups > 0
