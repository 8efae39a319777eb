"""Sums of the Hopper kernel that are added outside of the tensor cores, step by step, and scales of groups of K."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from tritonmm.kernels.ring import next_use, operand, release, zeros


@gluon.jit
def row_scales(group, row, col, m, n, scales, TILING: gl.constexpr):
    """What a group's sums are multiplied by in each row of a consumer's part."""
    scale_a, stride_sam, stride_sak, scale_b, stride_sbn, stride_sbk = scales
    rows = row + gl.arange(0, TILING.rows, gl.SliceLayout(1, TILING.acc_layouts[0]))
    at = rows // TILING.scaled_rows * stride_sam + group * stride_sak
    found = gl.load(scale_a + at, mask=rows < m, other=0.0)
    if TILING.scaled_cols > 1:  # all columns of the consumer have one
        found *= gl.load(scale_b + gl.minimum(col, n - 1) // TILING.scaled_cols * stride_sbn + group * stride_sbk)
    return found


@gluon.jit
def column_scales(group, col, n, scales, TILING: gl.constexpr):
    """What they are multiplied by in each column, where columns differ; the scales of a group are contiguous."""
    cols = col + gl.arange(0, TILING.cols, gl.SliceLayout(0, TILING.acc_layouts[0]))
    return gl.load(scales[3] + group * scales[5] + cols, mask=cols < n, other=0.0)


@gluon.jit
def multiply_promoted(ring, stage, phase, begin, end, row, col, m, n, scales, WHO: gl.constexpr, TILING: gl.constexpr):
    """As `multiply`, of steps that are each a sum of the tensor cores', added to the others in fp32.

    wgmma adds products of fp8 with 13 bits behind the leading one and drops the others: over a long K that is what
    limits the result. So the tensor cores add up 128 products at most, as DeepSeek-V3 does (arXiv 2412.19437, 3.3.2).
    One consumer multiplies meanwhile what the other adds.
    """
    a_bufs, b_bufs, empty, full = ring
    STAGES: gl.constexpr = TILING.num_stages
    CONSUMERS_M: gl.constexpr = TILING.consumers_m
    CONSUMERS_N: gl.constexpr = TILING.consumers_n
    total = zeros(0, TILING)
    for step in range(begin, end):
        if TILING.grouped:  # loaded while the operands are
            of_rows = row_scales(step, row, col, m, n, scales, TILING)
        mbarrier.wait(full.index(stage), phase)
        a = operand(a_bufs.index(stage * CONSUMERS_M + WHO // CONSUMERS_N), TILING.a_transposed)
        b = operand(b_bufs[0].index(stage * CONSUMERS_N + WHO % CONSUMERS_N), TILING.b_transposed)
        part = warpgroup_mma(a, b, zeros(0, TILING), is_async=True, use_acc=False)
        part = warpgroup_mma_wait(0, (part,))
        stage, phase = next_use(stage, phase, STAGES)
        release(empty, stage, True, TILING)
        if TILING.grouped:
            part *= of_rows[:, None]
            if TILING.scaled_cols == 1:
                part *= column_scales(step, col, n, scales, TILING)[None, :]
        total += part
    return (total,), stage, phase
