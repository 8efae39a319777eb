"""The mixed-input kernel's loop over K: a consumer converts its weights slice by slice and multiplies them.

1. There are two ways to convert:
   - Slice by slice (`multiply_added`): a slice is converted while wgmma multiplies the slice before it, also across
     steps. A slice is not multiplied across steps: ptxas has no registers for wgmma operands that live from one round
     of the loop into the next.
     Shared memory answers late while wgmma reads its operands. So with few rows and int4 a consumer reads all packed
     weights of a step before it converts any: `rules.reads_ahead`.
   - At once (`multiply_at_once`): all slices of a step, or of a scale group, are converted before their wgmma, while
     other consumers multiply. `rules.at_once` chooses: with many rows, and where sums are rescaled.
2. Scales of groups of K differ from row to row, so wgmma cannot apply them. There are two ways:
   - `multiply_added`: each group's sums are added, times their scales, to totals, which take as many registers again.
   - In `multiply_at_once`, for bf16 activations and from 64 sums of a thread on, where there are no registers for
     totals or they take longer: a scale is a power of two times a significand, from 1 to 2 for scales below 2. Weights
     are multiplied by the power as they are converted, exactly and at no cost from int8. The accumulator holds sums
     divided by the current group's significands, and is multiplied by the quotient of two significands from group to
     group. fp16 lacks the exponents for that.

Both round a sum once more for each group. `rules.rescales` chooses; docs/notebook/mixed_input.md has the times.

Scaling, and converting at once, leave the tensor cores idle meanwhile. Where these limit, with many rows, the
consumers' wgmma is ordered, step by step or group by group, so that one multiplies while the other scales and converts:
`device/ordered_mma.py`.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma

from tritonmm.device import int4, int8, ordered_mma
from tritonmm.device.dequantize import dequantized, dequantized_times, power_and_significand
from tritonmm.device.epilogue import plus_scaled
from tritonmm.device.gluon_compat import barrier, computed, keep_order
from tritonmm.device.pipeline import next_use, operand, release, waited


class Pipeline(NamedTuple):
    """The pipeline's shared memory."""

    w: Any  # weights of each stage and consumer
    x: Any  # activations of each stage, a buffer for each subtile
    scales: Any  # of each stage, consumer and group of a step; () where groups have none
    empty: Any  # mbarriers of each stage: consumers are done with it
    full: Any  # mbarriers of each stage: the producer has filled it


@gluon.jit
def words(w, J: gl.constexpr, S: gl.constexpr):
    """Slice J of a consumer's packed weights of a step, int16 [rows, slice_k / per_word]."""
    LAYOUT: gl.constexpr = S.words
    WORDS: gl.constexpr = S.slice_k // S.per_word
    return w.slice(J * WORDS, WORDS, 1).load(LAYOUT)


@gluon.jit
def words_ahead(w, S: gl.constexpr):
    """All slices of a consumer's packed weights of a step, if they are read before any is converted; else ()."""
    SLICES: gl.constexpr = S.slices
    found = ()
    if S.reads_ahead:
        for j in gl.static_range(SLICES):
            found += (words(w, j, S),)
    return found


@gluon.jit
def converted(w, ahead, zero_points, J: gl.constexpr, S: gl.constexpr):
    """Slice J of a consumer's weights of a step, as wgmma takes it from registers. ahead: `words_ahead` of the step."""
    READ: gl.constexpr = S.reads[0]
    if S.per_word:
        packed = ahead[J] if S.reads_ahead else words(w, J, S)
    if S.has_zero_points:
        zero = zero_points[J // (S.slices // S.scale_groups)]
        return gl.convert_layout(int4.unpacked_from(packed, zero, S.dtype), READ, assert_trivial=True)
    elif S.per_word == 4:
        return gl.convert_layout(int4.unpacked(packed, S.dtype), READ, assert_trivial=True)
    elif S.per_word == 2:
        return gl.convert_layout(int8.unpacked(packed, S.dtype), READ, assert_trivial=True)
    else:
        return dequantized(w.slice(J * S.slice_k, S.slice_k, 1).load(READ), S.dtype, False)


@gluon.jit
def scales_in(buf, LAYOUT: gl.constexpr, S: gl.constexpr):
    """A consumer's scales of a group, [rows]."""
    scale = buf.load(LAYOUT)
    return int4.scale_of(scale) if S.has_zero_points else scale


@gluon.jit
def group_zero_point(buf, S: gl.constexpr):
    """The zero points in a consumer's scales of a group, fp32 [rows, 1] in the layout of its words."""
    LAYOUT: gl.constexpr = gl.SliceLayout(1, S.words)
    return int4.zero_point_of(buf.load(LAYOUT))[:, None]


@gluon.jit
def step_zero_points(stage, scale_bufs, WHO: gl.constexpr, S: gl.constexpr):
    """The zero points that the rows of a consumer have for the groups of a step, () without any."""
    GROUPS: gl.constexpr = S.scale_groups
    found = ()
    if S.has_zero_points:
        for i in gl.static_range(GROUPS):
            found += (group_zero_point(scale_bufs.index((stage * S.consumers + WHO) * GROUPS + i), S),)
    return found


@gluon.jit
def column_of(x, SUBTILE: gl.constexpr, S: gl.constexpr):
    LAYOUT: gl.constexpr = gl.SliceLayout(1, S.sums[SUBTILE])
    return gl.convert_layout(x, LAYOUT, assert_trivial=True)[:, None]


@gluon.jit
def columns_of(x, S: gl.constexpr):
    """A number of each row, [rows] in the layout of subtile 0, as [rows, 1] in that of each. No data moves."""
    SUBTILES: gl.constexpr = len(S.subtiles)
    columns = ()
    for i in gl.static_range(SUBTILES):
        columns += (column_of(x, i, S),)
    return columns


@gluon.jit
def step_factors(stage, step, scale_bufs, WHO: gl.constexpr, S: gl.constexpr):
    """The scales that the rows of a consumer have for the groups of a step, one group's subtiles after another's.

    They are read after wgmma is issued: shared memory answers late while wgmma reads its operands.
    """
    GROUPS: gl.constexpr = S.scale_groups
    UNIT: gl.constexpr = S.unit
    LAYOUT: gl.constexpr = gl.SliceLayout(1, S.sums[0])
    keep_order()
    factors = ()
    for i in gl.static_range(GROUPS):
        factor = scales_in(scale_bufs.index((stage * S.consumers + WHO) * GROUPS + i), LAYOUT, S) * UNIT
        factors += columns_of(factor if i == 0 else gl.where(2 * step + 1 < S.all_groups, factor, 0.0), S)
    return factors


@gluon.jit
def subtile_zeros(SUBTILE: gl.constexpr, S: gl.constexpr):
    SHAPE: gl.constexpr = [S.rows, S.subtiles[SUBTILE]]
    LAYOUT: gl.constexpr = S.sums[SUBTILE]
    return gl.zeros(SHAPE, gl.float32, LAYOUT)


@gluon.jit
def zeros(S: gl.constexpr):
    """A consumer's sums: a tensor for each subtile."""
    SUBTILES: gl.constexpr = len(S.subtiles)
    sums = ()
    for i in gl.static_range(SUBTILES):
        sums += (subtile_zeros(i, S),)
    return sums


@gluon.jit
def subtile_multiplied(a, x, sums, use_acc, SUBTILE: gl.constexpr, J: gl.constexpr, S: gl.constexpr):
    """`multiplied` for subtile SUBTILE, whose rows of the stage are x."""
    LAYOUT: gl.constexpr = S.reads[SUBTILE]
    b = operand(x, False).slice(J * S.slice_k, S.slice_k, 1).permute((1, 0))
    return warpgroup_mma(gl.convert_layout(a, LAYOUT, assert_trivial=True), b, sums, is_async=True, use_acc=use_acc)


@gluon.jit
def multiplied(a, stage, sums, x_bufs, use_acc, J: gl.constexpr, S: gl.constexpr):
    """Issues wgmma of slice J. Returns the sums, which are valid once it is waited for."""
    SUBTILES: gl.constexpr = len(S.subtiles)
    found = ()
    for i in gl.static_range(SUBTILES):
        found += (subtile_multiplied(a, x_bufs[i].index(stage), sums[i], use_acc, i, J, S),)
    return found


@gluon.jit
def scaled_sums(totals, sums, factors, GROUP: gl.constexpr):
    """The totals and a group's sums times its scales."""
    SUBTILES: gl.constexpr = len(totals)
    found = ()
    for i in gl.static_range(SUBTILES):
        found += (computed(plus_scaled(totals[i], sums[i], None, factors[GROUP * SUBTILES + i], 1)),)
    return found


@gluon.jit
def begun(stage, pipeline, WHO: gl.constexpr, S: gl.constexpr):
    """What a consumer reads of a step before it multiplies: zero points, `words_ahead` and slice 0, converted."""
    zero_points = step_zero_points(stage, pipeline.scales, WHO, S)
    w = operand(pipeline.w.index(stage * S.consumers + WHO), False)
    ahead = words_ahead(w, S)
    return zero_points, ahead, converted(w, ahead, zero_points, 0, S)


@gluon.jit
def multiply_added(pipeline, stage, phase, first, last, stride, WHO: gl.constexpr, S: gl.constexpr):
    """`multiply` without scales of groups, or with totals: a group's sums are added while the next is multiplied."""
    SLICES: gl.constexpr = S.slices
    GROUPS: gl.constexpr = S.scale_groups
    SUBTILES: gl.constexpr = len(S.subtiles)
    OF_GROUP: gl.constexpr = SLICES // max(GROUPS, 1)
    sums = zeros(S)
    before = zeros(S)
    totals = zeros(S)
    mbarrier.wait(pipeline.full.index(stage), phase)
    zero_points, ahead, a = begun(stage, pipeline, WHO, S)
    for step in range(first, last, stride):
        w = operand(pipeline.w.index(stage * S.consumers + WHO), False)
        ordered_mma.wait(WHO, S)
        for j in gl.static_range(SLICES):
            if GROUPS == 2 and j == OF_GROUP:
                sums, before = before, sums
            use_acc = j % OF_GROUP > 0 if GROUPS else (step > first) | (j > 0)
            sums = multiplied(a, stage, sums, pipeline.x, use_acc, j, S)
            if j == SLICES - 1:
                ordered_mma.arrive(WHO, S)
            if j == 0 and GROUPS:
                factors = step_factors(stage, step, pipeline.scales, WHO, S)
            if j > 0 and GROUPS == 2:
                both = waited(sums + before, SUBTILES)
                sums, before = both[:SUBTILES], both[SUBTILES:]
                if j == OF_GROUP:
                    totals = scaled_sums(totals, before, factors, 0)
            elif j > 0:
                sums = waited(sums, SUBTILES)
            if j < SLICES - 1:
                a = converted(w, ahead, zero_points, j + 1, S)
        stage, phase = next_use(stage, phase, S.num_stages)
        mbarrier.wait(pipeline.full.index(stage), phase, pred=step + stride < last)
        zero_points, ahead, a = begun(stage, pipeline, WHO, S)  # unused after the last step
        sums = waited(sums, 0)
        barrier()  # all warps are done with the step
        release(pipeline.empty, stage, True, S)
        if GROUPS:
            totals = scaled_sums(totals, sums, factors, GROUPS - 1)
        if GROUPS == 2:
            sums, before = before, sums
    return totals if GROUPS else sums, stage, phase


@gluon.jit
def group_power(buf, S: gl.constexpr):
    """The powers of two in a consumer's scales of a group, [rows, 1] in the layout of its weights."""
    LAYOUT: gl.constexpr = gl.SliceLayout(1, S.words if S.per_word else S.reads[0])
    power, _ = power_and_significand(scales_in(buf, LAYOUT, S))
    return power[:, None]


@gluon.jit
def group_significands(buf, S: gl.constexpr):
    """The significands of these scales, [rows]."""
    LAYOUT: gl.constexpr = gl.SliceLayout(1, S.sums[0])
    _, significand = power_and_significand(scales_in(buf, LAYOUT, S))
    return significand


@gluon.jit
def converted_times(w, power, zero_points, GROUP: gl.constexpr, J: gl.constexpr, S: gl.constexpr):
    """`converted` weights times the power of their group."""
    READ: gl.constexpr = S.reads[0]
    if S.per_word == 4:
        zero = zero_points[GROUP] if S.has_zero_points else int4.ZERO
        return gl.convert_layout(int4.unpacked_times(words(w, J, S), power, zero), READ, assert_trivial=True)
    elif S.per_word == 2:
        return gl.convert_layout(int8.unpacked_times(words(w, J, S), power), READ, assert_trivial=True)
    else:
        return dequantized_times(w.slice(J * S.slice_k, S.slice_k, 1).load(READ), power)


@gluon.jit
def rescaled(sums, factors, S: gl.constexpr):
    """The sums times a number of each row."""
    SUBTILES: gl.constexpr = len(S.subtiles)
    columns = columns_of(factors, S)
    found = ()
    for i in gl.static_range(SUBTILES):
        found += (sums[i] * columns[i],)
    return found


@gluon.jit
def multiply_at_once(pipeline, stage, phase, first, last, stride, WHO: gl.constexpr, S: gl.constexpr):
    """`multiply` where all weights of a step, or of a scale group, are converted before their wgmma, while other
    consumers multiply: in turn, from 128 rows on. With scale groups, the accumulator holds sums divided
    by the current group's significands.
    """
    GROUPS: gl.constexpr = max(S.scale_groups, 1)
    SUBTILES: gl.constexpr = len(S.subtiles)
    PARTS: gl.constexpr = S.stages_of_step
    SLICES: gl.constexpr = S.slices // GROUPS  # of a group in a stage
    UNIT: gl.constexpr = S.unit
    COUNT: gl.constexpr = PARTS * SLICES
    LAYOUT: gl.constexpr = gl.SliceLayout(1, S.sums[0])
    sums = zeros(S)
    significands = gl.full([S.rows], 1.0, gl.float32, LAYOUT)
    for step in range(first, last, stride):
        stages = ()
        w = ()
        for _part in gl.static_range(PARTS):
            mbarrier.wait(pipeline.full.index(stage), phase)
            stages += (stage,)
            w += (operand(pipeline.w.index(stage * S.consumers + WHO), False),)
            stage, phase = next_use(stage, phase, S.num_stages)
        zero_points = step_zero_points(stages[0], pipeline.scales, WHO, S)
        for group in gl.static_range(GROUPS):
            a = ()
            if S.rescales:
                buf = pipeline.scales.index((stages[0] * S.consumers + WHO) * GROUPS + group)
                power = group_power(buf, S)
                for i in gl.static_range(COUNT):
                    a += (converted_times(w[i // SLICES], power, zero_points, group, group * SLICES + i % SLICES, S),)
                before = significands
                significands = group_significands(buf, S)
                sums = rescaled(sums, before / significands, S)
            else:
                for i in gl.static_range(COUNT):
                    a += (converted(w[i // SLICES], (), zero_points, i % SLICES, S),)
            ordered_mma.wait(WHO, S)
            for i in gl.static_range(COUNT):
                use_acc = True if S.rescales else (step > first) | (i > 0)  # the bits of `multiply_added`
                sums = multiplied(a[i], stages[i // SLICES], sums, pipeline.x, use_acc, group * SLICES + i % SLICES, S)
            if COUNT > 1:
                sums = waited(sums, SUBTILES)
            ordered_mma.arrive(WHO, S)
            sums = waited(sums, 0)
        barrier()  # all warps are done with the step
        for part in gl.static_range(PARTS):
            mbarrier.arrive(pipeline.empty.index(stages[part]), count=1)
    if S.rescales:
        sums = rescaled(sums, significands * UNIT, S)
    return sums, stage, phase


@gluon.jit
def multiply(pipeline, stage, phase, first, last, stride, WHO: gl.constexpr, S: gl.constexpr):
    """The consumer's sums over every `stride` steps from `first` to `last`, and the pipeline position after them."""
    if S.at_once:
        return multiply_at_once(pipeline, stage, phase, first, last, stride, WHO, S)
    else:
        return multiply_added(pipeline, stage, phase, first, last, stride, WHO, S)
