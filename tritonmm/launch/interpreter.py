"""Triton's interpreter, which runs kernels on the CPU of machines without a GPU."""

import contextlib

import triton

from tritonmm import forks
from tritonmm.device.pdl import follow_previous_grid
from tritonmm.problem import Problem

INTERPRETED = not isinstance(follow_previous_grid, triton.JITFunction)
"""True if kernels run in Triton's interpreter: TRITON_INTERPRET was set before the first import."""

_LOCK = forks.awaited_rlock()


def exclusive() -> contextlib.AbstractContextManager:
    """Hold this while launching a kernel. Under the interpreter, one thread launches at a time.

    The interpreter keeps the program index and patched functions in globals, so kernels that run at the same time would
    compute wrong values. Compiled kernels need no lock. A fork waits for launches of other threads, because in the
    child nobody would finish them.
    """
    return _LOCK if INTERPRETED else contextlib.nullcontext()


def dot_precision(problem: Problem) -> str:
    """`input_precision` of tl.dot for this problem. The interpreter supports "ieee" only."""
    return "ieee" if INTERPRETED or problem.precision == "fast" else problem.precision
