"""From the trials of the short sweep to the constants of this machine's GPU.

1. The constants of L2 that stand for its capacity and for merging are corrected by the counters of large GEMMs in
   several tile orders, if there are any, and kept if they predict other GEMMs better.
2. The scales of the time model are fitted to the times of three GEMMs of four.
3. The other GEMMs judge: the corrected L2 is taken if the loss there is less with it, and the fitted scales if it is
   less by a tenth.

Few trials cannot tell many constants apart. So all begin at the record that ships for the GPU most like this one, and a
prior keeps them near it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tritonmm.autotune.fitting import l2_fit, short_sweep
from tritonmm.autotune.fitting.scales import scales
from tritonmm.autotune.fitting.time_fit import Fit, Points, estimates
from tritonmm.autotune.measuring.trial import Trial
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model import constants
from tritonmm.model.l2 import Constants
from tritonmm.model.record import Record
from tritonmm.problem import Problem

PRIOR = 0.003
"""Weight of the prior of both fits. On the H200's random sweeps, with 40 GEMMs of 10 configs: constants that were wrong
by up to 1.7 times nearly choose as well as the right ones again, and those that were right choose no worse. From 0.001
to 0.01 it makes little difference."""

MARGIN = 0.9
"""The most that the loss on GEMMs that were not fitted may be, of that without the scales, for these to be taken. From
constants that are right it is 0.97 on random sweeps of an H200, and choices lose 0.4%; from wrong ones 0.3 to 0.5."""

ROUNDS = 6
"""Of the fit of the scales."""

LOCKSTEP, MERGING = ("capacity", "drift"), ("merged", "partner")
"""The constants of L2 that are corrected: those that differ most between an H200 and an H100."""

FEWEST = 8
"""GEMMs to fit, and a quarter as many to judge, without which nothing is fitted."""

FEWEST_COUNTED = 8
"""Counted GEMMs and orders to fit, and half as many to judge, without which L2 is not corrected."""


@dataclass(frozen=True, slots=True)
class Read:
    """Bytes that a GEMM read, as counters saw them."""

    problem: Problem
    config: Config
    dram_read_bytes: float
    l2_read_bytes: float


@dataclass(frozen=True, slots=True)
class Judged:
    """Of the GEMMs that the fit has not seen: what share of the best measured config's speed the shortest estimate
    reaches, in geometric mean, and the median error of the estimates."""

    reached: float
    error: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """The outcome of a fit.

    start: the record that ships. record: the one that is taken, maybe `start`.
    fitted, held_out: numbers of GEMMs. before, after: `start` and `record` on those held out; None without any.
    scales: factors of the fitted constants, if `record` has them. l2: what was found of L2.
    """

    start: Record
    record: Record
    fitted: int
    held_out: int
    before: Judged | None
    after: Judged | None
    scales: dict[str, float]
    l2: str

    @property
    def is_new(self) -> bool:
        return self.record is not self.start


def fitted(trials: Sequence[Trial], gpu: Gpu) -> Fitted:
    """The constants for the GPU on which the trials ran. Deterministic. trials: of the configs of `short_sweep`."""
    start = constants.shipped(gpu)
    corrected, said = corrected_l2(trials, gpu, start.l2)
    with_l2 = replace(start, l2=corrected) if corrected != start.l2 else start
    times = _times(trials)
    seen = {problem: found for problem, found in times.items() if not short_sweep.is_held_out(problem)}
    held = {problem: found for problem, found in times.items() if short_sweep.is_held_out(problem)}
    if len(seen) < FEWEST or len(held) < FEWEST / 4:
        return Fitted(start, start, len(seen), len(held), None, None, {}, said)
    points, others = _points(seen), _points(held)
    fit = Fit(points, scales(sorted({config.kernel for config in points.configs})), gpu, prior=PRIOR)
    scaled = fit.run(with_l2, ROUNDS)
    check = Fit(others, (), gpu)
    record = min((start, with_l2), key=check.loss_of)  # the first of equals
    if check.loss_of(scaled) < MARGIN * check.loss_of(record):
        record = scaled
    factors = {c.name: math.exp(x) for c, x in zip(fit.constants, fit.moved, strict=True)}
    judged = [judge(others, each, gpu) for each in (start, record)]
    return Fitted(start, record, len(seen), len(held), *judged, factors if record is scaled else {}, said)


def judge(points: Points, record: Record, gpu: Gpu) -> Judged:
    """How good a record is on some points."""
    logs = estimates(points, record, gpu)
    reached = math.exp(float(np.mean(np.log(points.reached(logs)))))
    return Judged(reached, float(np.median(np.abs(np.exp(logs) / points.us - 1))))


def corrected_l2(trials: Sequence[Trial], gpu: Gpu, start: Constants) -> tuple[Constants, str]:
    """The constants of the L2 model, and in words what was done with the counters of the trials."""
    if gpu.dies > 1:
        return start, "kept: the model of several dies has no such constants"
    counted = [
        Read(t.problem, t.config, t.counted.dram_read_bytes, t.counted.l2_read_bytes)
        for t in trials
        if t.counted and t.counted.dram_read_bytes and t.counted.l2_read_bytes
    ]
    seen = [read for read in counted if not short_sweep.is_held_out(read.problem)]
    held = [read for read in counted if short_sweep.is_held_out(read.problem)]
    if len(seen) < FEWEST_COUNTED or len(held) < FEWEST_COUNTED / 2:
        return start, f"kept: only {len(counted)} launches were counted"
    found = l2_fit.fit(seen, gpu, start, lockstep=LOCKSTEP, merging=MERGING, prior=PRIOR)
    before, after = (l2_fit.losses(held, gpu, each) for each in (start, found))
    errors = [", ".join(f"{math.sqrt(loss):.1%}" for loss in both) for both in (before, after)]
    said = f"of {len(held)} counted launches that were not fitted, DRAM and L2 reads are off by {errors[0]}"
    if sum(after) >= sum(before):
        return start, f"kept: {said} with the constants that ship and {errors[1]} with fitted ones"
    return found, f"corrected by {len(seen)} counted launches: {said} before and {errors[1]} after"


def _times(trials: Sequence[Trial]) -> dict[Problem, dict[Config, float]]:
    found: dict[Problem, dict[Config, float]] = {}
    for trial in trials:
        if trial.time_us is not None:
            found.setdefault(trial.problem, {})[trial.config] = trial.time_us
    return {problem: times for problem, times in found.items() if len(times) > 1}


def _points(times: dict[Problem, dict[Config, float]]) -> Points:
    in_orders = short_sweep.large()
    return Points.of((problem, found, problem in in_orders) for problem, found in times.items())
