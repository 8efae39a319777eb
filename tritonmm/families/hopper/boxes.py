"""How the Hopper kernel loads the rows of ragged tiles, see `ragged.py`: decided once, for estimate and launch."""

from dataclasses import dataclass
from typing import Self

from tritonmm.config import Config
from tritonmm.families.hopper.rules import consumer_grid
from tritonmm.problem import Problem

FEW_TILES = 4
"""Tiles along M up to which the last one may shift or have a last box. With more, writing rows twice makes large GEMMs
up to 2% slower (autotune/results/h200-overlaps.csv), and the largest tiles spill with a last box (Triton 3.9)."""

BOX_ROWS = 32
"""Rows of the boxes of a tile with fewer rows than a consumer's block. Four boxes for 128 rows are as many as the
producer issues in the time of a K step (autotune/results/h200-edges-2.csv)."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """The boxes of one launch.

    rows: `Tiling.box_rows`, 0 where tiles are loaded in whole blocks; last: `Tiling.last_box_rows`; shifts: whether a
    ragged block begins earlier; equal: the rows of each tile where all have equally many, or 0.
    """

    rows: int
    last: int
    shifts: bool
    equal: int

    @classmethod
    def of(cls, config: Config, problem: Problem, mixed: bool, may_be_equal: bool) -> Self:
        """The boxes of a legal config.

        mixed: only some tiles are split; may_be_equal: all tiles are multiplied at once, none by a program without one.
        """
        rows = config.block_m // consumer_grid(config)[0]
        if may_be_equal and (equal := _equal_rows(problem, config, rows)):
            return cls(BOX_ROWS, equal % BOX_ROWS, False, equal)
        return cls(*_boxes(problem, config, rows, mixed), 0)

    def tile_rows(self, m: int, rows: int) -> int:
        """Rows in all boxes of a tile with fewer than a consumer's `rows`; or 0."""
        return m // self.rows * self.rows + self.last if self.last and self.rows < rows else 0

    def rows_beyond(self, m: int, rows: int) -> int:
        """Rows beyond the matrix that are loaded for a single tile of m rows, of a consumer that has `rows`."""
        box = self.rows or rows
        return self.last - m % box if self.last else -m % box


def last_box_rows(m: int, box_rows: int) -> int:
    """Rows of the box for the rows of m that fill no box of `box_rows`, at most 7 more than these. 0 where there are
    none, or where it would be no smaller."""
    last = max(8, 1 << (m % box_rows - 1).bit_length())
    return last if m % box_rows and last < box_rows and last - m % box_rows < 8 else 0


def _equal_rows(problem: Problem, config: Config, rows: int) -> int:
    """Rows of each tile where all have equally many, see `Tiling.equal_tiles`, if fewer than a consumer's; or 0."""
    tiles = -(-problem.m // config.block_m)
    if tiles < 2 or rows < config.block_m or config.cluster or _once(problem) or not _loads_boxes(problem, config):
        return 0
    equal = -(-problem.m // (8 * tiles)) * 8
    if equal % BOX_ROWS and not last_box_rows(equal, BOX_ROWS):
        equal += -equal % BOX_ROWS
    return equal if equal < rows else 0


def _loads_boxes(problem: Problem, config: Config) -> bool:
    """Whether last rows come in boxes: with more panels and consumers the producer would spill its 24 registers."""
    panels = config.block_k * problem.element_bytes // 128
    return problem.layout[0] == "n" and (panels == 1 or (panels == 2 and consumer_grid(config)[0] == 1))


def _once(problem: Problem) -> bool:
    """Whether each row must be written once, from the first row of its tile on: C may be the output, and neither scales
    of 128 rows nor a diagonal shift with a tile."""
    return problem.epilogue.c or problem.rows_per_scale > 1 or bool(problem.symmetric)


def _boxes(problem: Problem, config: Config, rows: int, mixed: bool) -> tuple[int, int, bool]:
    """`Tiling.box_rows`, `last_box_rows`, `shifts` for consumers of `rows` rows; `mixed`: only some tiles are split."""
    p = problem
    if p.m % config.block_m == 0 or config.cluster:
        return 0, 0, False
    panels = config.block_k * p.element_bytes // 128 if p.layout[0] == "n" else 0
    box_rows = BOX_ROWS if p.m < rows else rows
    few = p.m <= FEW_TILES * config.block_m
    if few and _loads_boxes(p, config) and (last := last_box_rows(p.m, box_rows)):
        return box_rows, last, False
    once = mixed or _once(p)  # sums of split tiles are added in another order
    # TMA must begin at a multiple of 16 bytes along a line: anything else is an illegal instruction.
    unaligned = p.layout[0] == "t" and p.m * p.element_bytes % 16 > 0
    shifts = few and rows < p.m and not once and not unaligned
    if shifts or p.m % rows == 0:
        return rows, 0, shifts
    # At most four boxes a tile, see BOX_ROWS.
    box_rows = next((box for box in (16, 32, 64) if panels in (1, 2) and config.block_m // box <= 4), rows)
    return (box_rows if -p.m % config.block_m >= box_rows else 0), 0, False
