"""Counts of large elements of scaled lines, and whether they prove that a product is accurate: `rule.py`.

`counted` adds to the counts of a line, which `residues_kernel` calls for each of its blocks. They are fields of one
int64, so that one atomic addition has them all: sums of integers do not depend on the order. `decide_kernel` is one
program.
"""

from dataclasses import dataclass

import triton
import triton.language as tl

from tritonmm.device.constexpr_args import ConstexprArgs
from tritonmm.device.pdl import follow_previous_grid
from tritonmm.ozaki.norms_kernel import NONFINITE

COUNT_BITS = tl.constexpr(17)
"""Bits of a count: K is below 2**17. Three counts, the first in the lowest bits, and that of blocks that change, up to
2**12 of 32 elements, which reaches the sign."""

COUNT_MASK = tl.constexpr((1 << 17) - 1)


@triton.jit
def counted(x, scaled, integer, threshold: tl.constexpr):
    """What a block of lines by K adds to their counts.

    x, scaled: elements before and after scaling, in fp64. integer: scaled and rounded.
    """
    size = tl.abs(scaled)
    first = tl.full((), threshold, tl.float64)
    changes = (integer.to(tl.float64) != scaled) | ((scaled == 0) & (x != 0))
    found = tl.sum((size >= first).to(tl.int32), axis=1).to(tl.int64)
    found |= tl.sum((size >= 2 * first).to(tl.int32), axis=1).to(tl.int64) << COUNT_BITS
    found |= tl.sum((size >= 4 * first).to(tl.int32), axis=1).to(tl.int64) << 2 * COUNT_BITS
    return found | (tl.max(changes.to(tl.int32), axis=1).to(tl.int64) << 3 * COUNT_BITS)


@dataclass(frozen=True)
class DecideSpec(ConstexprArgs):
    """What `decide_kernel` is compiled for."""

    searched: int  # lines at a time
    first: bool  # nothing was decided before


@triton.jit
def least_counts(counts, scales, lines, k, S: tl.constexpr):
    """The least counts of all lines, whether elements of some line change, and whether all are finite."""
    SHAPE: tl.constexpr = [S.searched]
    first, second, third = tl.full(SHAPE, k, tl.int32), tl.full(SHAPE, k, tl.int32), tl.full(SHAPE, k, tl.int32)
    changes, finite = tl.zeros(SHAPE, tl.int32), tl.full(SHAPE, 1, tl.int32)
    for start in range(0, lines, S.searched):
        at = start + tl.arange(0, S.searched)
        packed = tl.load(counts + at, mask=at < lines, other=0)
        scale = tl.load(scales + at, mask=at < lines, other=0)
        is_zero = (packed & COUNT_MASK) == 0  # also beyond the lines
        first = tl.minimum(first, tl.where(is_zero, k, (packed & COUNT_MASK).to(tl.int32)))
        second = tl.minimum(second, tl.where(is_zero, k, (packed >> COUNT_BITS & COUNT_MASK).to(tl.int32)))
        third = tl.minimum(third, tl.where(is_zero, k, (packed >> 2 * COUNT_BITS & COUNT_MASK).to(tl.int32)))
        changes |= (packed >> 3 * COUNT_BITS != 0).to(tl.int32)
        finite &= (scale != NONFINITE).to(tl.int32)
    least = tl.min(first, axis=0), tl.min(second, axis=0), tl.min(third, axis=0)
    return least, tl.max(changes, axis=0), tl.min(finite, axis=0)


@triton.jit
def decide_kernel(
    row_counts, row_scales, col_counts, col_scales, proved, refused, rows, cols, k, one: tl.int64, both: tl.int64,
    S: tl.constexpr,
):  # fmt: skip
    """Sets proved[0] to whether the rule holds for all of these rows and columns, and held before if not S.first.

    refused: None, or set to the opposite. one, both: as in `rule.Rule`.
    """
    follow_previous_grid()
    of_rows, rows_change, rows_finite = least_counts(row_counts, row_scales, rows, k, S)
    of_cols, cols_change, cols_finite = least_counts(col_counts, col_scales, cols, k, S)
    total = tl.zeros((), tl.int64)
    for m in tl.static_range(3):
        for n in tl.static_range(3):
            both_have = tl.maximum(of_rows[m] + of_cols[n] - k, 0).to(tl.int64)
            total += both_have << (m // 2 + n // 2)  # weights 1, 1, 2
    limit = tl.where(rows_change + cols_change == 2, both, tl.where(rows_change + cols_change == 1, one, 0))
    holds = (total >= limit) & (rows_finite + cols_finite == 2)
    holds = holds.to(proved.dtype.element_ty)
    if not S.first:
        holds &= tl.load(proved)
    tl.store(proved, holds)
    if refused is not None:
        tl.store(refused, 1 - holds)
