"""The mixed-input kernel's loop over K: a consumer converts its weights slice by slice, and multiplies them.

A slice is converted while the one before it is multiplied, also the first one of the next step: but only converted,
since ptxas has no registers for operands that are multiplied from one round of the loop into the next.

Scales of groups of K. The sums of a group are worth its scale, which differs from row to row, and the tensor cores add
only what is worth the same. So each group's sums are added, times their scales, to totals, which take as many registers
again. Where there are none left, weights in bf16 take on powers of two: a scale is a power, by which the weights are
multiplied, exactly and at no cost as they are converted from int8, times a rest, from 1 to 2 for scales below 2. There
is one accumulator then, in units of the group's rests, and what is in it is multiplied by the quotient of two rests
from a group to the next. A sum is rounded once more for each group by either. fp16 has no exponents for that.

With totals it takes 2 to 7% less time where both are possible (an H200, 16 to 160 rows). Without them tiles have up to
256 rows: 192 rows take 10% less time than in tiles of up to 160, 256 5% and 2048 18% (h200-weights-9.csv, -11.csv and
-13.csv in autotune/results, Triton 3.6.0).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from tritonmm.device.dequantize import dequantized, dequantized_times, power_and_rest, unit
from tritonmm.device.gluon_compat import barrier, computed, keep_order
from tritonmm.device.pipeline import next_use, operand, release


@gluon.jit
def converted(w, J: gl.constexpr, S: gl.constexpr):
    """Slice J of a consumer's weights of a step, as wgmma takes it from registers."""
    READ: gl.constexpr = S.reads[0]
    return dequantized(w.slice(J * S.slice_k, S.slice_k, 1).load(READ), S.dtype, False)


@gluon.jit
def strip_factor(buf, STRIP: gl.constexpr, S: gl.constexpr):
    """A consumer's scales of a group, for weights in their units, [rows, 1] in the layout of strip STRIP."""
    UNIT: gl.constexpr = unit(S.w_dtype, S.dtype)
    LAYOUT: gl.constexpr = gl.SliceLayout(1, S.sums[STRIP])
    return (buf.load(LAYOUT) * UNIT)[:, None]


@gluon.jit
def step_factors(stage, step, scale_bufs, WHO: gl.constexpr, S: gl.constexpr):
    """The scales that the rows of a consumer have for the groups of a step, one group's strips after another's.

    Shared memory is asked for them behind wgmma, which is to be issued first: it answers late while it reads operands.
    """
    GROUPS: gl.constexpr = S.groups
    STRIPS: gl.constexpr = len(S.strips)
    keep_order()
    factors = ()
    for i in gl.static_range(GROUPS):
        for j in gl.static_range(STRIPS):
            factor = strip_factor(scale_bufs.index((stage * S.consumers + WHO) * GROUPS + i), j, S)
            factors += (factor if i == 0 else gl.where(2 * step + 1 < S.all_groups, factor, 0.0),)  # has it a second?
    return factors


@gluon.jit
def strip_zeros(STRIP: gl.constexpr, S: gl.constexpr):
    SHAPE: gl.constexpr = [S.rows, S.strips[STRIP]]
    LAYOUT: gl.constexpr = S.sums[STRIP]
    return gl.zeros(SHAPE, gl.float32, LAYOUT)


@gluon.jit
def zeros(S: gl.constexpr):
    """Sums of a consumer, a tensor a strip."""
    STRIPS: gl.constexpr = len(S.strips)
    sums = ()
    for i in gl.static_range(STRIPS):
        sums += (strip_zeros(i, S),)
    return sums


@gluon.jit
def strip_multiplied(a, x, sums, use_acc, STRIP: gl.constexpr, J: gl.constexpr, S: gl.constexpr):
    """`multiplied` for strip STRIP, whose rows of the stage are x."""
    LAYOUT: gl.constexpr = S.reads[STRIP]
    b = operand(x, False).slice(J * S.slice_k, S.slice_k, 1).permute((1, 0))
    return warpgroup_mma(gl.convert_layout(a, LAYOUT, assert_trivial=True), b, sums, is_async=True, use_acc=use_acc)


@gluon.jit
def multiplied(a, stage, sums, x_bufs, use_acc, J: gl.constexpr, S: gl.constexpr):
    """The sums once wgmma, which is issued, has added slice J's products to them, or set them to those."""
    STRIPS: gl.constexpr = len(S.strips)
    found = ()
    for i in gl.static_range(STRIPS):
        found += (strip_multiplied(a, x_bufs[i].index(stage), sums[i], use_acc, i, J, S),)
    return found


@gluon.jit
def waited(sums, OTHERS: gl.constexpr):
    """The sums once all but the last OTHERS wgmma are done, the registers of whose operands are then free."""
    done = warpgroup_mma_wait(OTHERS, sums)
    return (done,) if len(sums) == 1 else done


@gluon.jit
def scaled_sums(totals, sums, factors, GROUP: gl.constexpr):
    """The totals and a group's sums times its scales."""
    STRIPS: gl.constexpr = len(totals)
    found = ()
    for i in gl.static_range(STRIPS):
        found += (computed(totals[i] + sums[i] * factors[GROUP * STRIPS + i]),)
    return found


@gluon.jit
def multiply_added(ring, stage, phase, first, last, stride, WHO: gl.constexpr, S: gl.constexpr):
    """`multiply` where no groups have scales, or their sums are added to totals, each while the next is multiplied."""
    w_bufs, x_bufs, scale_bufs, empty, full = ring
    SLICES: gl.constexpr = S.slices
    GROUPS: gl.constexpr = S.groups
    STRIPS: gl.constexpr = len(S.strips)
    OF_GROUP: gl.constexpr = SLICES // max(GROUPS, 1)
    sums = zeros(S)
    before = zeros(S)
    totals = zeros(S)
    mbarrier.wait(full.index(stage), phase)
    a = converted(operand(w_bufs.index(stage * S.consumers + WHO), False), 0, S)
    for step in range(first, last, stride):
        w = operand(w_bufs.index(stage * S.consumers + WHO), False)
        for j in gl.static_range(SLICES):
            if GROUPS == 2 and j == OF_GROUP:
                sums, before = before, sums
            use_acc = j % OF_GROUP > 0 if GROUPS else (step > first) | (j > 0)
            sums = multiplied(a, stage, sums, x_bufs, use_acc, j, S)
            if j == 0 and GROUPS:
                factors = step_factors(stage, step, scale_bufs, WHO, S)
            if j > 0 and GROUPS == 2:
                both = waited(sums + before, STRIPS)
                sums, before = both[:STRIPS], both[STRIPS:]
                if j == OF_GROUP:
                    totals = scaled_sums(totals, before, factors, 0)
            elif j > 0:
                sums = waited(sums, STRIPS)
            if j < SLICES - 1:
                a = converted(w, j + 1, S)
        stage, phase = next_use(stage, phase, S.num_stages)
        mbarrier.wait(full.index(stage), phase, pred=step + stride < last)
        a = converted(operand(w_bufs.index(stage * S.consumers + WHO), False), 0, S)  # of the last step, for nothing
        sums = waited(sums, 0)
        barrier()  # all warps are done with the step
        release(empty, stage, True, S)
        if GROUPS:
            totals = scaled_sums(totals, sums, factors, GROUPS - 1)
        if GROUPS == 2:
            sums, before = before, sums
    return totals if GROUPS else sums, stage, phase


@gluon.jit
def group_power(buf, S: gl.constexpr):
    """The powers of two in a consumer's scales of a group, [rows, 1] in the layout of its weights."""
    LAYOUT: gl.constexpr = gl.SliceLayout(1, S.reads[0])
    power, rest = power_and_rest(buf.load(LAYOUT))
    return power[:, None]


@gluon.jit
def strip_rest(buf, STRIP: gl.constexpr, S: gl.constexpr):
    """What else is in those scales, [rows, 1] in the layout of strip STRIP."""
    LAYOUT: gl.constexpr = gl.SliceLayout(1, S.sums[STRIP])
    power, rest = power_and_rest(buf.load(LAYOUT))
    return rest[:, None]


@gluon.jit
def step_scales(stage, scale_bufs, WHO: gl.constexpr, S: gl.constexpr):
    """Powers of two that the rows of a consumer have for the groups of a step, and rests, one group's strips after
    another's. Shared memory is asked for them behind wgmma, as in `step_factors`."""
    GROUPS: gl.constexpr = S.groups
    STRIPS: gl.constexpr = len(S.strips)
    keep_order()
    powers = ()
    rests = ()
    for i in gl.static_range(GROUPS):
        buf = scale_bufs.index((stage * S.consumers + WHO) * GROUPS + i)
        powers += (group_power(buf, S),)
        for j in gl.static_range(STRIPS):
            rests += (strip_rest(buf, j, S),)
    return powers, rests


@gluon.jit
def converted_times(w, power, J: gl.constexpr, S: gl.constexpr):
    """`converted` weights times their power."""
    READ: gl.constexpr = S.reads[0]
    return dequantized_times(w.slice(J * S.slice_k, S.slice_k, 1).load(READ), power)


@gluon.jit
def rescaled(sums, before, after):
    """The sums, which are in units of `before`, in units of `after`."""
    STRIPS: gl.constexpr = len(sums)
    found = ()
    for i in gl.static_range(STRIPS):
        found += (sums[i] * (before[i] / after[i]),)
    return found


@gluon.jit
def multiply_rescaled(ring, stage, phase, first, last, stride, WHO: gl.constexpr, S: gl.constexpr):
    """`multiply` where the sums are in units of their group's rests."""
    w_bufs, x_bufs, scale_bufs, empty, full = ring
    SLICES: gl.constexpr = S.slices
    GROUPS: gl.constexpr = S.groups
    STRIPS: gl.constexpr = len(S.strips)
    OF_GROUP: gl.constexpr = SLICES // GROUPS
    UNIT: gl.constexpr = unit(S.w_dtype, S.dtype)
    sums = zeros(S)
    mbarrier.wait(full.index(stage), phase)
    powers, rests = step_scales(stage, scale_bufs, WHO, S)
    a = converted_times(operand(w_bufs.index(stage * S.consumers + WHO), False), powers[0], 0, S)
    for step in range(first, last, stride):
        w = operand(w_bufs.index(stage * S.consumers + WHO), False)
        for j in gl.static_range(SLICES):
            if j > 0 and j % OF_GROUP == 0:
                sums = rescaled(waited(sums, 0), rests[:STRIPS], rests[STRIPS:])
            sums = multiplied(a, stage, sums, x_bufs, True, j, S)
            if j > 0:
                sums = waited(sums, STRIPS)
            if j < SLICES - 1:
                a = converted_times(w, powers[(j + 1) // OF_GROUP], j + 1, S)
        stage, phase = next_use(stage, phase, S.num_stages)
        more = step + stride < last
        mbarrier.wait(full.index(stage), phase, pred=more)
        before = rests[(GROUPS - 1) * STRIPS :]
        powers, rests = step_scales(stage, scale_bufs, WHO, S)
        a = converted_times(operand(w_bufs.index(stage * S.consumers + WHO), False), powers[0], 0, S)
        after = ()
        for i in gl.static_range(STRIPS):
            after += (gl.where(more, rests[i], before[i]),)
        rests = after + rests[STRIPS:]
        sums = waited(sums, 0)
        barrier()  # all warps are done with the step
        release(empty, stage, True, S)
        sums = rescaled(sums, before, after)
    found = ()
    for i in gl.static_range(STRIPS):
        found += (sums[i] * (rests[i] * UNIT),)
    return found, stage, phase


@gluon.jit
def multiply(ring, stage, phase, first, last, stride, WHO: gl.constexpr, S: gl.constexpr):
    """The consumer's sums over every `stride` steps from `first` to `last`, and the ring position after them."""
    if S.rescales:
        return multiply_rescaled(ring, stage, phase, first, last, stride, WHO, S)
    else:
        return multiply_added(ring, stage, phase, first, last, stride, WHO, S)
