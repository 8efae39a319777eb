"""Two-level accumulation: the tensor cores add up one K step, and each step's sums are added in fp32 outside of them.

wgmma adds products of fp8 with 13 bits after the leading one and drops the others, which limits the precision of a long
K. So the tensor cores add up the 128 products of a step at most, as in DeepSeek-V3 (arXiv 2412.19437, 3.3.2). Those
sums are added in the order of K: by one FADD each, or by one FFMA where groups of K have scales.

Parts. A thread has no registers for a second accumulator of all its sums. So a consumer of more than 64 sums a thread
takes them in two parts of 64 rows and 128 columns, one after the other: halves of its columns, or of its rows. It waits
for a part before it adds it; meanwhile the tensor cores multiply another consumer's (`device/ordered_mma.py`).

Scales of groups arrive with the operands: the producer copies them by cp.async into buffers of the stage. Consumers
read them after they have issued wgmma, while it runs.

Measurements: docs/notebook/hopper.md.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from tritonmm.device import ordered_mma
from tritonmm.device.epilogue import plus_scaled
from tritonmm.device.gluon_compat import computed, copy_async, keep_order
from tritonmm.device.pipeline import next_use, operand, release
from tritonmm.families.hopper import ragged


@gluon.jit
def zero_part(TILING: gl.constexpr):
    """The accumulator of a part."""
    SHAPE: gl.constexpr = [TILING.part_rows, TILING.part_cols]
    LAYOUT: gl.constexpr = TILING.part_layout
    return gl.zeros(SHAPE, gl.float32, LAYOUT)


@gluon.jit
def product(a, b, before, ROW: gl.constexpr, COL: gl.constexpr, TILING: gl.constexpr):
    """A step's sums of the part at row ROW and column COL of the parts.

    `before`, other sums of that shape, is not added: it names the registers to take. Without it ptxas gives each part
    registers of its own, and spills.
    """
    a_part = a.slice(ROW * TILING.part_rows, TILING.part_rows, dim=0)
    b_part = b.slice(COL * TILING.part_cols, TILING.part_cols, dim=1)
    return warpgroup_mma(a_part, b_part, before, is_async=True, use_acc=False)


@gluon.jit
def joined(parts, TILING: gl.constexpr):
    """The parts, one or two, as the consumer's one accumulator; no data moves."""
    if len(parts) == 1:
        return parts[0]
    else:
        LAYOUT: gl.constexpr = TILING.acc_layouts[0]
        both = gl.join(parts[0], parts[1])
        both = both.permute(2, 0, 1) if TILING.parts_m == 2 else both.permute(0, 2, 1)
        return gl.convert_layout(both.reshape(TILING.rows, TILING.cols), LAYOUT, assert_trivial=True)


@gluon.jit
def load_scales(stage, group, row, col, m, n, scales, pipeline, TILING: gl.constexpr):
    """The producer starts to copy a group's scales, of A's rows and of B's columns, into a stage of the pipeline.

    `full` counts each of its threads once the thread's copies are there.
    """
    CONSUMERS_M: gl.constexpr = TILING.consumers_m
    ROWS: gl.constexpr = TILING.rows
    i = gl.arange(0, ROWS, TILING.scale_layout)
    for who in gl.static_range(CONSUMERS_M):
        rows = ragged.first_row(row + who * ROWS, m, TILING) + i
        rows = gl.minimum(rows, m - 1) // TILING.scaled_rows  # what lies beyond is not written
        at = scales.a + group * scales.stride_ak + rows * scales.stride_am
        copy_async(pipeline.scales[0].index(stage * CONSUMERS_M + who), at)
    j = gl.arange(0, TILING.col_scales, TILING.scale_layout)
    cols = gl.minimum(col + j * TILING.scale_pitch, n - 1) // TILING.scaled_cols
    copy_async(pipeline.scales[1].index(stage), scales.b + group * scales.stride_bk + cols * scales.stride_bn)
    async_copy.mbarrier_arrive(pipeline.full.index(stage), increment_count=False)


@gluon.jit
def part_scales(bufs, stage, ROW: gl.constexpr, COL: gl.constexpr, WHO: gl.constexpr, TILING: gl.constexpr):
    """A stage's scales of a part's rows, [part_rows, 1], and of its columns, [1, part_cols], or of all of them, [1, 1].

    They are asked for behind wgmma, which is to be issued first: shared memory answers late while it reads operands.
    """
    LAYOUT: gl.constexpr = TILING.part_layout
    ROWS: gl.constexpr = TILING.part_rows
    COLS: gl.constexpr = TILING.part_cols // TILING.scale_pitch
    PART: gl.constexpr = WHO % TILING.consumers_n * TILING.parts_n + COL
    keep_order()
    of_rows = bufs[0].index(stage * TILING.consumers_m + WHO // TILING.consumers_n).slice(ROW * ROWS, ROWS)
    of_cols = bufs[1].index(stage).slice(PART * COLS, COLS)
    rows, cols = of_rows.load(gl.SliceLayout(1, LAYOUT)), of_cols.load(gl.SliceLayout(0, LAYOUT))
    return rows[:, None], cols[None, :]


@gluon.jit
def multiply_two_level(pipeline, stage, phase, count, WHO: gl.constexpr, TILING: gl.constexpr):
    """The sums of consumer WHO over the next `count` uses of the pipeline, and the position after them."""
    STAGES: gl.constexpr = TILING.num_stages
    CONSUMERS_M: gl.constexpr = TILING.consumers_m
    CONSUMERS_N: gl.constexpr = TILING.consumers_n
    PARTS_M: gl.constexpr = TILING.parts_m
    PARTS_N: gl.constexpr = TILING.parts_n
    part = zero_part(TILING)
    totals = ()
    for _ in gl.static_range(PARTS_M * PARTS_N):
        totals += (zero_part(TILING),)
    for _ in range(count):
        mbarrier.wait(pipeline.full.index(stage), phase)
        a = operand(pipeline.a.index(stage * CONSUMERS_M + WHO // CONSUMERS_N), TILING.a_transposed)
        b = operand(pipeline.b[0].index(stage * CONSUMERS_N + WHO % CONSUMERS_N), TILING.b_transposed)
        sums = ()
        for i in gl.static_range(len(totals)):
            ordered_mma.wait(WHO, TILING)
            part = product(a, b, part, i % PARTS_M, i // PARTS_M, TILING)
            ordered_mma.arrive(WHO, TILING)
            if TILING.block_scaled:
                rows, cols = part_scales(pipeline.scales, stage, i % PARTS_M, i // PARTS_M, WHO, TILING)
            part = warpgroup_mma_wait(0, (part,))
            if TILING.block_scaled:
                sums += (computed(plus_scaled(totals[i], part, rows, cols, TILING.scaled_cols)),)
            else:
                sums += (computed(totals[i] + part),)
        totals = sums
        stage, phase = next_use(stage, phase, STAGES)
        release(pipeline.empty, stage, True, TILING)
    return (joined(totals, TILING),), stage, phase
