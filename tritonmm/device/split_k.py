"""How the programs that share a tile wait for each other."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritonmm.device.gluon_compat import barrier, load_acquire


@gluon.jit
def meet(flag, part, splits):
    """Waits until all `splits` programs have come here; what they wrote before can be read after.

    The parts together add 2**31 to the flag: its top bit flips when the last one arrives, and the
    other bits are zero again for the next launch, whatever its splits.
    """
    barrier()  # the other threads' writes come before this thread's release
    added = gl.where(part == 0, 2147483647 - (splits - 2), 1)
    before = gl.atomic_add(flag, added, sem="acq_rel", scope="gpu")
    # Who comes last, and keeps the others waiting, need not read it again. The sum is meant to wrap around.
    now = gl.add(before, added, sanitize_overflow=False)
    while (now ^ before) >= 0:
        now = load_acquire(flag)
    barrier()
