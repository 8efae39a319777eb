"""Turns: the order in which the consumers of a program ask the tensor cores for products.

Consumers that scale sums (`two_level_sums.py`) alternate between wgmma and work of their own. Nothing keeps them apart:
those that ask at the same time are done at the same time, and while all of them scale nobody asks. So they take turns:
consumer i's n-th wgmma is issued once consumer i - 1's n-th has been, consumer 0's once the last one's before has.

A turn is one of the hardware's barriers, a consumer its own: the one before arrives at it, without waiting, and its own
threads wait for both. All consumers take as many turns, one that passes over a tile's edge too, so each arrival meets
the wait that it is for; the last consumer's pass to consumer 0 after their last turns is what `end` waits for, as its
first one is what `begin` passes. A consumer waits only for one whose operands come no later than its own, so turns add
no circle to the waits of `pipeline.py`; nor to those of split tiles, whose parts all consumers multiply in one order.

What turns gain (H200, burst, autotune/results/h200-turns.csv), tiles of 128 x 256 with scales of 128-blocks: 8192^3
takes 811 us instead of 910 with Triton 3.6.0, 4096^3 106 instead of 115, 4096x7168x2048 99 instead of 106. With 3.9.0,
whose ptxas lets multiply-adds yield to the other consumer, .3 to .6%, and 1 to 3% in tiles of 256 x 128. Products of 16
to 28 us lose up to 1.2%. Sums without scales lose up to 1.3%, and take no turns; nor does the mixed-input kernel: its
tiles of 64 x 256 gained 4%, others lost up to 6%.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def barrier_of(WHO):
    """The barrier of a consumer's turns. Triton gives the partitions of a kernel the first of all 16."""
    return 12 + WHO


@gluon.constexpr_function
def _waiting(WHO):
    return f"bar.sync {barrier_of(WHO)}, 256; // $0"


@gluon.constexpr_function
def _passing(WHO, CONSUMERS):
    return f"bar.arrive {barrier_of((WHO + 1) % CONSUMERS)}, 256; // $0"


@gluon.jit
def take(WHO: gl.constexpr, TILING: gl.constexpr):
    """Waits for consumer WHO's turn."""
    if TILING.turns:
        PTX: gl.constexpr = _waiting(WHO)
        gl.inline_asm_elementwise(PTX, "=r,~{memory}", [], gl.int32, is_pure=False, pack=1)


@gluon.jit
def give(WHO: gl.constexpr, TILING: gl.constexpr):
    """Passes the turn to the next consumer."""
    if TILING.turns:
        PTX: gl.constexpr = _passing(WHO, TILING.consumers)
        gl.inline_asm_elementwise(PTX, "=r,~{memory}", [], gl.int32, is_pure=False, pack=1)


@gluon.jit
def begin(WHO: gl.constexpr, TILING: gl.constexpr):
    """Before a consumer's first turn: consumer 0 is first."""
    if WHO == TILING.consumers - 1:
        give(WHO, TILING)


@gluon.jit
def end(WHO: gl.constexpr, TILING: gl.constexpr):
    """After a consumer's last turn: no barrier is left with arrivals."""
    if WHO == 0:
        take(WHO, TILING)
