"""Sums of the Hopper kernel that are added outside of the tensor cores, step by step, and scales of groups of K.

wgmma adds products of fp8 with 13 bits behind the leading one and drops the others: over a long K that is what
limits the result. So the tensor cores add up the 128 products of a step at most, as DeepSeek-V3 does
(arXiv 2412.19437, 3.3.2), and those sums are added in fp32, in the order of K: by one FADD each, or one FFMA where
groups of K have scales.

Parts. A thread has no registers for a second accumulator as large as its sums are. So a consumer of more than 64 sums
a thread takes them in two parts of 64 rows and 128 columns, one after the other, halves of its columns or of its
rows. A tile of 128 x 256 or 256 x 128 is then two consumers of two parts each, and reads a quarter less through L2
for each product than one of 128 x 128. A consumer waits for a part before it adds it: meanwhile the tensor cores
multiply another consumer's.

Scales of groups come with the operands: the loader copies them by cp.async into the stage's own buffers. When the
consumers copied them, with a wait and barriers of their own in each step, 8192^3 took 926 us even where they did so
while wgmma ran, and with the loader 818 (Triton 3.9.0, two runs). Consumers' loads of them stand behind the issue of
wgmma, in whose shadow they are late for nothing.

What an FFMA costs (H200, 8192^3, us, autotune/results/h200-promotion.csv). wgmma keeps its sums in registers, and the
promotion of one consumer's shares their ports, and the issue slots, with the others' wgmma. With scales that are not
loaded at all, FFMAs take 919; 873 if each reuses the factor of the one before, and 803 if every other one yields its
slot as well. ptxas has let FADDs do so since long, but FFMAs only since 12.9, that of Triton 3.9. FADDs take 14% less
time than the first of these, and 8% less if they do not yield. That was before consumers of scaled sums took turns:
`ordered_mma.py`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from tritonmm.device.gluon_compat import computed, copy_async, keep_order
from tritonmm.device.pipeline import next_use, operand, release
from tritonmm.families.hopper import ordered_mma as turns
from tritonmm.families.hopper import ragged as edges


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
    """The parts, one or two, as the accumulator of the consumer's one strip; no data moves."""
    if len(parts) == 1:
        return parts[0]
    else:
        LAYOUT: gl.constexpr = TILING.acc_layouts[0]
        both = gl.join(parts[0], parts[1])
        both = both.permute(2, 0, 1) if TILING.parts_m == 2 else both.permute(0, 2, 1)
        return gl.convert_layout(both.reshape(TILING.rows, TILING.cols), LAYOUT, assert_trivial=True)


@gluon.jit
def fetch_scales(stage, group, row, col, m, n, scales, ring, TILING: gl.constexpr):
    """The loader starts to copy a group's scales, of A's rows and of B, into a stage of the ring.

    `full` counts each of its threads once the thread's copies are there.
    """
    full, scale_bufs = ring[3], ring[4]
    CONSUMERS_M: gl.constexpr = TILING.consumers_m
    ROWS: gl.constexpr = TILING.rows
    scale_a, stride_sam, stride_sak, scale_b, stride_sbn, stride_sbk = scales
    i = gl.arange(0, ROWS, TILING.scale_layout)
    for who in gl.static_range(CONSUMERS_M):
        rows = edges.first_row(row + who * ROWS, m, TILING) + i
        rows = gl.minimum(rows, m - 1) // TILING.scaled_rows  # what lies beyond is not written
        copy_async(scale_bufs[0].index(stage * CONSUMERS_M + who), scale_a + group * stride_sak + rows * stride_sam)
    j = gl.arange(0, TILING.col_scales, TILING.scale_layout)
    cols = gl.minimum(col + j * TILING.scale_pitch, n - 1) // TILING.scaled_cols
    copy_async(scale_bufs[1].index(stage), scale_b + group * stride_sbk + cols * stride_sbn)
    async_copy.mbarrier_arrive(full.index(stage), increment_count=False)


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
def multiply_promoted(ring, stage, phase, count, WHO: gl.constexpr, TILING: gl.constexpr):
    """The sums of the consumer's strip over the next `count` uses of the ring, and the position after them."""
    a_bufs, b_bufs, empty, full, scale_bufs = ring
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
        mbarrier.wait(full.index(stage), phase)
        a = operand(a_bufs.index(stage * CONSUMERS_M + WHO // CONSUMERS_N), TILING.a_transposed)
        b = operand(b_bufs[0].index(stage * CONSUMERS_N + WHO % CONSUMERS_N), TILING.b_transposed)
        sums = ()
        for i in gl.static_range(len(totals)):
            turns.take(WHO, TILING)
            part = product(a, b, part, i % PARTS_M, i // PARTS_M, TILING)
            turns.give(WHO, TILING)
            if TILING.grouped:
                rows, cols = part_scales(scale_bufs, stage, i % PARTS_M, i // PARTS_M, WHO, TILING)
            part = warpgroup_mma_wait(0, (part,))
            if not TILING.grouped:
                total = totals[i] + part
            elif TILING.scaled_cols > 1:
                total = totals[i] + part * (rows * cols)
            else:
                total = totals[i] + part * cols * rows
            sums += (computed(total),)
        totals = sums
        stage, phase = next_use(stage, phase, STAGES)
        release(empty, stage, True, TILING)
    return (joined(totals, TILING),), stage, phase
