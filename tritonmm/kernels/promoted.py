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

Scales of groups come by cp.async through shared memory, several steps ahead: under the load of the operands a step is
shorter than what a load takes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from tritonmm.kernels.gluon_api import barrier, copy_async
from tritonmm.kernels.ring import next_use, operand, release


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
    sums = warpgroup_mma(a_part, b_part, before, is_async=True, use_acc=False)
    return warpgroup_mma_wait(0, (sums,))


@gluon.jit
def computed(x):
    """x, fp32, computed before what follows: LLVM would put it off until after the next wgmma, and hold two parts."""
    return gl.inline_asm_elementwise("// $0", "=f,0", [x], gl.float32, is_pure=False, pack=1)


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
def fetch_scales(bufs, use, group, row, col, m, n, scales, WHO: gl.constexpr, TILING: gl.constexpr):
    """Starts to copy a group's scales: of A in the consumer's rows, and of B where columns of a part have one.

    use: which one of the consumer's copies it is, which says where to.
    """
    scale_a, stride_sam, stride_sak, scale_b, stride_sbn, stride_sbk = scales
    slot = (WHO * TILING.groups_ahead + use % TILING.groups_ahead) * 2
    i = gl.arange(0, TILING.scale_lanes, TILING.scale_layout)
    rows = gl.minimum(row + i % TILING.rows, m - 1) // TILING.scaled_rows  # what lies beyond is not written
    copy_async(bufs.index(slot), scale_a + rows * stride_sam + group * stride_sak)
    if TILING.scaled_cols > 1:
        cols = gl.minimum(col + i // TILING.part_rows * TILING.part_cols, n - 1) // TILING.scaled_cols
        copy_async(bufs.index(slot + 1), scale_b + cols * stride_sbn + group * stride_sbk)
    async_copy.commit_group()


@gluon.jit
def part_scales(bufs, use, ROW: gl.constexpr, COL: gl.constexpr, WHO: gl.constexpr, TILING: gl.constexpr):
    """What the rows of the part at row ROW and column COL of the parts are multiplied by, once the copies are there."""
    LAYOUT: gl.constexpr = gl.SliceLayout(1, TILING.part_layout)
    slot = (WHO * TILING.groups_ahead + use % TILING.groups_ahead) * 2
    found = bufs.index(slot).slice(ROW * TILING.part_rows, TILING.part_rows).load(LAYOUT)
    if TILING.scaled_cols > 1:
        found *= bufs.index(slot + 1).slice(COL * TILING.part_rows, TILING.part_rows).load(LAYOUT)
    return found


@gluon.jit
def column_scales(group, col, n, scales, TILING: gl.constexpr):
    """A group's scales of B in the columns of a part, where they differ; they are contiguous."""
    cols = col + gl.arange(0, TILING.part_cols, gl.SliceLayout(0, TILING.part_layout))
    return gl.load(scales[3] + group * scales[5] + cols, mask=cols < n, other=0.0)


@gluon.jit
def multiply_promoted(
    ring, stage, phase, first, stride, count, row, col, m, n, scales, WHO: gl.constexpr, TILING: gl.constexpr
):  # fmt: skip
    """The sums of the consumer's strip over the `count` steps from `first` on, every `stride`-th, and the ring position
    after them."""
    a_bufs, b_bufs, empty, full, scale_bufs = ring
    STAGES: gl.constexpr = TILING.num_stages
    CONSUMERS_M: gl.constexpr = TILING.consumers_m
    CONSUMERS_N: gl.constexpr = TILING.consumers_n
    PARTS_M: gl.constexpr = TILING.parts_m
    PARTS_N: gl.constexpr = TILING.parts_n
    AHEAD: gl.constexpr = TILING.groups_ahead - 1
    part = zero_part(TILING)
    totals = ()
    for _ in gl.static_range(PARTS_M * PARTS_N):
        totals += (zero_part(TILING),)
    last = gl.maximum(count - 1, 0)  # an overflow tile has no steps
    if TILING.grouped:
        barrier()  # all have read the scales of the item before
        for i in gl.static_range(AHEAD):
            use = gl.minimum(last, i)
            fetch_scales(scale_bufs, use, first + use * stride, row, col, m, n, scales, WHO, TILING)
    for step in range(count):
        if TILING.grouped:
            async_copy.wait_group(AHEAD - 1)
            barrier()
            factors = ()
            for i in gl.static_range(len(totals)):
                factors += (part_scales(scale_bufs, step, i % PARTS_M, i // PARTS_M, WHO, TILING),)
            # Into the buffers of the step before, which all have read before the barrier.
            use = gl.minimum(step + AHEAD, last)
            fetch_scales(scale_bufs, use, first + use * stride, row, col, m, n, scales, WHO, TILING)
        mbarrier.wait(full.index(stage), phase)
        a = operand(a_bufs.index(stage * CONSUMERS_M + WHO // CONSUMERS_N), TILING.a_transposed)
        b = operand(b_bufs[0].index(stage * CONSUMERS_N + WHO % CONSUMERS_N), TILING.b_transposed)
        sums = ()
        for i in gl.static_range(len(totals)):
            part = product(a, b, part, i % PARTS_M, i // PARTS_M, TILING)
            if not TILING.grouped:
                total = totals[i] + part
            elif TILING.scaled_cols > 1:
                total = totals[i] + part * factors[i][:, None]
            else:
                of_columns = column_scales(
                    first + step * stride, col + i // PARTS_M * TILING.part_cols, n, scales, TILING
                )
                total = totals[i] + part * of_columns[None, :] * factors[i][:, None]
            sums += (computed(total),)
        totals = sums
        stage, phase = next_use(stage, phase, STAGES)
        release(empty, stage, True, TILING)
    if TILING.grouped:
        async_copy.wait_group(0)
    return (joined(totals, TILING),), stage, phase
