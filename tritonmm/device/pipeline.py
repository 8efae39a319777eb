"""The ring of shared buffers between the Hopper kernel's loader and its consumers.

`full[s]` counts one arrival, the loader's expect, plus the bytes that TMA brings; where groups of K have
scales, also one of each of the loader's threads, whose copies of scales are there then;
`empty[s]` counts one arrival of each consumer. Use u of the ring is stage u % S, and its phase bit
is (u // S) & 1. The loader fills use u after phase u // S - 1 of `empty` (the first S uses wait for
the phase before the first, which a fresh barrier reports as complete); a consumer reads use u
after phase u // S of `full`.

Why a waiter is never lapped (a parity tells only neighbouring phases apart): `full[s]` cannot
complete use u + S before the loader has seen every consumer release use u, hence after each of them
passed its wait for use u; `empty[s]` cannot complete use u + S before the loader itself has filled it.

Why there is no deadlock: loader and consumers derive the same items and K steps from the same
arguments, and from the same seat where tiles are dealt, so the uses are totally ordered. Filling use
u needs only releases of use u - S; releasing use u needs only the fills of u and u + 1, since a
stage is released one step late, while the wgmma of the next one runs, and the last one of an item
right after its loop. So S >= 2 suffices. The epilogue waits for nothing but its own TMA stores.

Of clusters this is written for both CTAs at once; `cluster.py` says how the ring works across them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from tritonmm.device import cluster
from tritonmm.device.constexpr_args import Static


class Ringed(Static):
    """What is static about a kernel whose loader fills a ring for several consumers.

    It says how many `consumers` there are, whether the ring brings scales of groups of K (`grouped`), and which
    `registers` a thread has at launch and keeps as the loader's (`loader_registers`).
    """

    @property
    def fills(self):
        """Arrivals that fill a stage, beside TMA's bytes: the loader's expect, and each thread's copies of scales."""
        return 33 if self.grouped else 1

    @property
    def consumer_registers(self):
        """Registers of a consumer's thread once the loader has given up all but its own, a multiple of 8."""
        return (self.registers * (self.consumers + 1) - self.loader_registers) // self.consumers // 8 * 8

    @property
    def scale_layout(self):
        """Of scales that the loader copies."""
        return gl.BlockedLayout([1], [32], [1], [0])

    @property
    def flat_shared(self):
        """Of scales, and of what an usher tells."""
        return gl.SwizzledSharedLayout(1, 1, 1, [0])


@gluon.jit
def next_use(stage, phase, STAGES: gl.constexpr):
    """The ring position after this one; the phase bit flips where the ring wraps."""
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
    """This consumer is done with the use of the ring before the position `stage`."""
    last = empty.index(gl.where(stage == 0, TILING.num_stages - 1, stage - 1))
    if TILING.ctas > 1:
        cluster.release(last, pred)
    else:
        mbarrier.arrive(last, count=1, pred=pred)


@gluon.jit
def zeros(STRIP: gl.constexpr, TILING: gl.constexpr):
    """The accumulator of one strip."""
    SHAPE: gl.constexpr = [TILING.rows, TILING.strips[STRIP]]
    LAYOUT: gl.constexpr = TILING.acc_layouts[STRIP]
    return gl.zeros(SHAPE, TILING.sum_dtype, LAYOUT)
