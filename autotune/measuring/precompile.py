"""Compiles for a GPU without using one, into Triton's cache on disk, where the launching process finds the kernels.

Triton asks the driver only for the compilation target. The name of a kernel in the cache is a digest of its source,
constants, options and argument properties: types, which integers are 1 or multiples of 16, and which addresses are
multiples of 16. Meta tensors have address 0, which stands for any address that torch allocates.
"""

import os
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from tritonmm.autotune.measuring import space
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.orders import RowMajor
from tritonmm.plan import bind
from tritonmm.problem import Problem


class Elsewhere:
    """A driver for a GPU of another machine. Kernels can be compiled for it, not launched."""

    def __init__(self, gpu: Gpu):
        self.device = gpu.name  # Triton remembers a device's target
        self.target = (
            GPUTarget("cuda", gpu.capability, 32) if gpu.is_nvidia else GPUTarget("hip", gpu.arch.split(":")[0], 64)
        )

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return self.device

    def get_current_stream(self, device):
        return 0


def precompile(problem: Problem, config: Config, gpu: Gpu) -> None:
    """Compiles all kernels that `config` launches on `gpu` for densely stored operands of `problem`.

    Afterwards this process has the driver of `gpu` and can launch nothing. Errors of the compiler are raised.
    """
    driver.set_active(Elsewhere(gpu))
    meta = torch.device("meta")
    plan = bind(problem, config, gpu, meta)
    for kernel, arguments, options in plan.kernels(*space.operands(problem, meta), **space.keywords(problem, meta)):
        kernel.warmup(*arguments, grid=(1,), **options)


def precompile_all(pairs: Iterable[tuple[Problem, Config]], gpu: Gpu) -> None:
    """Precompiles all pairs, with one process for each core. A pair that fails raises its error at the launch.

    Pairs that probably use the same kernels go to the same process, so that each kernel is compiled once. Warns if the
    compiler ended a process; the remaining kernels are compiled at their launch.
    """
    alike: dict[tuple, list[tuple[Problem, Config]]] = {}
    for problem, config in pairs:
        whole = tuple(size % 16 == 0 for size in (problem.m, problem.n, problem.k))
        groups = problem.ragged, problem.groups
        key = problem.layout, problem.kind, groups, whole, replace(config, order=RowMajor(), split_k=1, split_tail=1)
        alike.setdefault(key, []).append((problem, config))
    try:
        with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
            groups = sorted(alike.values(), key=len, reverse=True)
            for done in [pool.submit(_precompile_each, same, gpu) for same in groups]:
                done.result()
    except BrokenProcessPool:
        warnings.warn("a process that compiled ahead ended; what it lacks is compiled at its launch", stacklevel=2)


def _precompile_each(pairs: Sequence[tuple[Problem, Config]], gpu: Gpu) -> None:
    for problem, config in pairs:
        with suppress(Exception):
            precompile(problem, config, gpu)
