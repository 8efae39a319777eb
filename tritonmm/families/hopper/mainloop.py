"""The loop over K of a consumer warpgroup of the Hopper kernel: wgmma adds up all of its sums, or those of a chunk."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma

from tritonmm.device.pipeline import next_use, operand, release, waited


@gluon.jit
def zeros(SUBTILE: gl.constexpr, TILING: gl.constexpr):
    """The accumulator of an N-subtile."""
    SHAPE: gl.constexpr = [TILING.rows, TILING.n_subtiles[SUBTILE]]
    LAYOUT: gl.constexpr = TILING.acc_layouts[SUBTILE]
    return gl.zeros(SHAPE, TILING.sum_dtype, LAYOUT)


@gluon.jit
def multiply(pipeline, stage, phase, steps, WHO: gl.constexpr, TILING: gl.constexpr):
    """The accumulators of consumer WHO over the next `steps` uses of the pipeline, and the position after them."""
    STAGES: gl.constexpr = TILING.num_stages
    CONSUMERS_M: gl.constexpr = TILING.consumers_m
    CONSUMERS_N: gl.constexpr = TILING.consumers_n
    N_SUBTILES: gl.constexpr = TILING.n_subtiles
    accs = ()
    for j in gl.static_range(len(N_SUBTILES)):
        accs += (zeros(j, TILING),)
    for step in range(steps):
        mbarrier.wait(pipeline.full.index(stage), phase)
        a = operand(pipeline.a.index(stage * CONSUMERS_M + WHO // CONSUMERS_N), TILING.a_transposed)
        sums = ()
        for j in gl.static_range(len(N_SUBTILES)):
            b = operand(pipeline.b[j].index(stage * CONSUMERS_N + WHO % CONSUMERS_N), TILING.b_transposed)
            sums += (warpgroup_mma(a, b, accs[j], is_async=True, use_acc=step > 0),)
        accs = waited(sums, len(N_SUBTILES))  # the previous step is done with its stage
        release(pipeline.empty, stage, step > 0, TILING)
        stage, phase = next_use(stage, phase, STAGES)
    accs = waited(accs, 0)
    release(pipeline.empty, stage, steps > 0, TILING)
    return accs, stage, phase


@gluon.jit
def multiply_chunks(pipeline, stage, phase, steps, WHO: gl.constexpr, TILING: gl.constexpr):
    """`multiply`, with the sums of each chunk of K steps added in fp32, in the order of K."""
    CHUNK: gl.constexpr = TILING.chunk_steps
    SUBTILES: gl.constexpr = len(TILING.n_subtiles)
    totals = ()
    for j in gl.static_range(SUBTILES):
        totals += (zeros(j, TILING),)
    for first in range(0, steps, CHUNK):
        count = gl.minimum(CHUNK, steps - first)
        accs, stage, phase = multiply(pipeline, stage, phase, count, WHO, TILING)
        sums = ()
        for j in gl.static_range(SUBTILES):
            sums += (totals[j] + accs[j],)
        totals = sums
    return totals, stage, phase
