"""The pipeline of shared buffers between a producer warp and its consumer warpgroups.

    full[s]     counts one arrival, the producer's expect, and the bytes that TMA brings. Where groups of K have scales,
                also one arrival of each producer thread, once its copies of scales are there.
    empty[s]    counts one arrival of each consumer.

Use u of the pipeline is stage u % S, and its phase bit is (u // S) & 1. The producer fills use u after phase u // S - 1
of `empty`; the first S uses wait for the phase before the first, which a fresh barrier reports as complete. A consumer
reads use u after phase u // S of `full`.

No waiter is lapped (a parity tells only neighbouring phases apart). `full[s]` cannot complete use u + S before the
producer has seen every consumer release use u, hence after each of them passed its wait for use u. `empty[s]` cannot
complete use u + S before the producer itself has filled it.

No deadlock. Producer and consumers derive the same items and K steps from the same arguments, and from the same
assigned and claimed tiles where tiles are assigned to SMs, so the uses are totally ordered. Filling use u needs only
releases of use u - S. Releasing use u needs only the fills of u and u + 1: a stage is released one step late, while the
wgmma of the next one runs, and the last one of an item right after its loop, or two stages of a step after both are
multiplied. So S >= 2 suffices. The epilogue waits for nothing but its own TMA stores.

`cluster.py` says how the pipeline works across the two CTAs of a cluster.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma_wait

from tritonmm.device import cluster
from tritonmm.device.constexpr_args import ConstexprArgs


class Pipelined(ConstexprArgs):
    """Base of the constants of a kernel with a producer warp and consumer warpgroups.

    A subclass has `num_stages`; `ctas` of a program; the number of `consumers`; `block_scaled`, whether the pipeline
    brings scales of groups of K; `registers`, those of a thread at launch; `loader_registers`, those of a producer's
    thread.
    """

    @property
    def fills(self):
        """Arrivals that fill a stage, besides TMA's bytes: the producer's expect, and its threads' copies of scales."""
        return 33 if self.block_scaled else 1

    @property
    def consumer_registers(self):
        """Registers of a consumer's thread once the producer has given up all but its own, a multiple of 8."""
        return (self.registers * (self.consumers + 1) - self.loader_registers) // self.consumers // 8 * 8

    @property
    def scale_layout(self):
        """Layout of the scales that the producer warp copies."""
        return gl.BlockedLayout([1], [32], [1], [0])

    @property
    def flat_shared(self):
        """Shared layout of vectors: scales, and a claimed tile."""
        return gl.SwizzledSharedLayout(1, 1, 1, [0])


@gluon.jit
def next_use(stage, phase, STAGES: gl.constexpr):
    """The pipeline position after this one; the phase bit flips where the stages wrap around."""
    stage += 1
    wraps = stage == STAGES
    return gl.where(wraps, 0, stage), gl.where(wraps, phase ^ 1, phase)


@gluon.jit
def operand(buf, TRANSPOSED: gl.constexpr):
    """A stage's buffer as the two-dimensional operand of wgmma."""
    ROWS: gl.constexpr = buf.shape[1]
    COLS: gl.constexpr = buf.shape[2]
    flat = buf.reshape([ROWS, COLS])
    return flat.permute((1, 0)) if TRANSPOSED else flat


@gluon.jit
def release(empty, stage, pred, TILING: gl.constexpr):
    """This consumer is done with the use before the position `stage`."""
    last = empty.index(gl.where(stage == 0, TILING.num_stages - 1, stage - 1))
    if TILING.ctas > 1:
        cluster.release(last, pred)
    else:
        mbarrier.arrive(last, count=1, pred=pred)


@gluon.jit
def waited(accs, PENDING: gl.constexpr):
    """The accumulators, once all but the last PENDING wgmma of this warpgroup are done, which frees their operands'
    registers."""
    done = warpgroup_mma_wait(PENDING, accs)
    if len(accs) == 1:
        return (done,)
    else:
        return done
