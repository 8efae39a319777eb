"""Triton's interpreter, which runs kernels on the CPU where there is no GPU."""

import contextlib

import triton

from tritonmm import forks
from tritonmm.device.pdl import follow_previous_grid
from tritonmm.problem import Problem

INTERPRETED = not isinstance(follow_previous_grid, triton.JITFunction)
"""Whether kernels run in Triton's interpreter: TRITON_INTERPRET was set before the first import."""

_LOCK = forks.awaited_rlock()


def exclusive() -> contextlib.AbstractContextManager:
    """Held while a kernel is launched: where kernels are interpreted, one thread launches at a time.

    The interpreter keeps the program's number and the functions that it replaces in globals: kernels that run at the
    same time compute wrong values. Compiled kernels are launched at the same time by as many threads as like. A fork
    waits for the launches of other threads: in the child nobody would end them.
    """
    return _LOCK if INTERPRETED else contextlib.nullcontext()


def dot_precision(problem: Problem) -> str:
    """How tl.dot multiplies; the interpreter only knows one way."""
    return "ieee" if INTERPRETED or problem.precision == "fast" else problem.precision
