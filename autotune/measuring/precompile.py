"""Compiles for a GPU without one, into Triton's cache on disk, where the process that launches finds it.

Triton asks a driver only which target to compile for. The name of a kernel in the cache is a digest of its source,
its constants, its options, and of what is seen of its arguments: types, which integers are 1 or multiples of 16, and
which addresses are multiples of 16. Tensors without memory have the address 0, so they stand for any that torch
allocates.
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
    """A driver for a GPU of another machine: it can be compiled for, not launched on."""

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
    """Compiles all kernels that a launch of `config` on densely stored operands of `problem` runs on `gpu`.

    From then on this process has the driver of `gpu`, and launches nothing. What the compiler raises is raised.
    """
    driver.set_active(Elsewhere(gpu))
    meta = torch.device("meta")
    plan, scales = bind(problem, config, gpu, meta), space.scales(problem, meta)
    for kernel, arguments, options in plan.kernels(*space.operands(problem, meta), scales=scales):
        kernel.warmup(*arguments, grid=(1,), **options)


def precompile_all(pairs: Iterable[tuple[Problem, Config]], gpu: Gpu) -> None:
    """Precompiles them in a process for each core. What fails is left for the launch to raise.

    Pairs that are likely to launch the same kernels go to one process, which then compiles each once. Warns where the
    compiler ended a process: what was not compiled by then is compiled where it is launched.
    """
    alike: dict[tuple, list[tuple[Problem, Config]]] = {}
    for problem, config in pairs:
        whole = tuple(size % 16 == 0 for size in (problem.m, problem.n, problem.k))
        key = problem.layout, problem.kind, whole, replace(config, order=RowMajor(), split_k=1, split_tail=1)
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
