"""Ordered MMA: the consumers of a program issue their wgmma in turn.

Consumers that scale sums (`two_level_sums.py` of the Hopper kernel, `mainloop.py` of the mixed-input one) alternate
between wgmma and work on registers. Left alone, they ask for the tensor cores at the same time, and leave them idle at
the same time. Ordered, consumer i issues the wgmma of its n-th turn after consumer i - 1 has issued those of its n-th,
and consumer 0 after the last consumer has issued those of its previous one.

Each consumer has a named barrier of the hardware, for its own threads, which wait (`wait`), and those of the consumer
before it, which arrive (`arrive`). All consumers take equally many turns, also those that skip a ragged tile, so each
arrival meets the wait that it is for. `begin` gives consumer 0 its first turn, and `end` takes the one that is left
over, so that no barrier keeps an arrival. No deadlock: a consumer waits only for one whose operands come no later than
its own, so ordering adds no cycle to the waits of `device/pipeline.py`, nor to those of split tiles, whose parts all
consumers multiply in one order.

A kernel's constants have the number of `consumers`, and `ordered_mma`, whether there are turns.

Measurements: docs/notebook/hopper.md.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def barrier_of(WHO):
    """The named barrier of a consumer's turns, of 16. Triton gives the first ones to the partitions of a kernel."""
    return 12 + WHO


@gluon.constexpr_function
def _wait_ptx(WHO):
    return f"bar.sync {barrier_of(WHO)}, 256; // $0"


@gluon.constexpr_function
def _arrive_ptx(WHO, CONSUMERS):
    return f"bar.arrive {barrier_of((WHO + 1) % CONSUMERS)}, 256; // $0"


@gluon.jit
def wait(WHO: gl.constexpr, TILING: gl.constexpr):
    """Waits for consumer WHO's turn."""
    if TILING.ordered_mma:
        PTX: gl.constexpr = _wait_ptx(WHO)
        gl.inline_asm_elementwise(PTX, "=r,~{memory}", [], gl.int32, is_pure=False, pack=1)


@gluon.jit
def arrive(WHO: gl.constexpr, TILING: gl.constexpr):
    """Ends consumer WHO's turn: the next consumer's begins."""
    if TILING.ordered_mma:
        PTX: gl.constexpr = _arrive_ptx(WHO, TILING.consumers)
        gl.inline_asm_elementwise(PTX, "=r,~{memory}", [], gl.int32, is_pure=False, pack=1)


@gluon.jit
def begin(WHO: gl.constexpr, TILING: gl.constexpr):
    """Before a consumer's first turn: consumer 0 is first."""
    if WHO == TILING.consumers - 1:
        arrive(WHO, TILING)


@gluon.jit
def end(WHO: gl.constexpr, TILING: gl.constexpr):
    """After a consumer's last turn: no barrier is left with arrivals."""
    if WHO == 0:
        wait(WHO, TILING)
