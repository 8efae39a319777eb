"""The fit of the L2 model's constants to counted bytes.

The constants of DRAM reads are found first, by the squared logarithm of predicted over counted bytes, then those of
merging, by that of the L2 reads: a descent along one constant after the other on a fixed grid of factors, so the result
is the same on every machine.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model import l2
from tritonmm.model.l2 import Constants
from tritonmm.problem import Problem

STEPS = (1.3, 1.1, 1.03, 1.01)
"""Factors by which a constant is tried larger and smaller, one after the other."""

LOCKSTEP = ("capacity", "spread", "stagger", "drift")
"""The constants of DRAM reads."""

MERGING = ("partner", "merged", "apart", "scattered")
"""The constants of L2 reads."""


class Counted(Protocol):
    """A GEMM with the bytes that were read, from a cold L2."""

    @property
    def problem(self) -> Problem: ...

    @property
    def config(self) -> Config: ...

    @property
    def dram_read_bytes(self) -> float | None: ...

    @property
    def l2_read_bytes(self) -> float | None: ...


def fit(
    found: Sequence[Counted],
    gpu: Gpu,
    start: Constants,
    *,
    lockstep: Sequence[str] = LOCKSTEP,
    merging: Sequence[str] = MERGING,
    steps: Sequence[float] = STEPS,
    prior: float = 0.0,
) -> Constants:
    """The constants with the smallest loss on `found`, by descent from `start` in `steps`.

    lockstep, merging: the constants that may change. prior: weight in the loss of the sum of the squared logarithms by
    which constants change, for few points.
    """

    def away(constants: Constants, names: Sequence[str]) -> float:
        return prior * sum(math.log(getattr(constants, name) / getattr(start, name)) ** 2 for name in names)

    best = _descend(start, lockstep, lambda c: losses(found, gpu, c)[0] + away(c, lockstep), steps)
    return _descend(best, merging, lambda c: losses(found, gpu, c)[1] + away(c, merging), steps)


def losses(found: Sequence[Counted], gpu: Gpu, constants: Constants) -> tuple[float, float]:
    """Means of the squared logarithms of predicted over counted bytes, of DRAM reads and of L2 reads."""
    traffic = [l2.estimate(point.problem, point.config, gpu, constants) for point in found]
    dram = [t.dram_read_bytes / p.dram_read_bytes for t, p in zip(traffic, found, strict=True)]
    reads = [t.l2_read_bytes / p.l2_read_bytes for t, p in zip(traffic, found, strict=True)]
    return float(np.square(np.log(dram)).mean()), float(np.square(np.log(reads)).mean())


def _descend(
    start: Constants, names: Sequence[str], loss: Callable[[Constants], float], steps: Sequence[float]
) -> Constants:
    best, least = start, loss(start)
    for step in steps:
        moved = True
        while moved:
            moved = False
            for name in names:
                for factor in (step, 1 / step):
                    tried = replace(best, **{name: float(f"{getattr(best, name) * factor:.3g}")})
                    if (found := loss(tried)) < least * (1 - 1e-4):
                        best, least, moved = tried, found, True
    return best
