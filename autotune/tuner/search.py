"""Which trials find the best config of a problem: many with little effort, then fewer with more effort.

A search is a list of rungs. In each rung the remaining configs are measured in one regime, and the fastest go on to the
next rung. Configs are measured in the order of `space.candidates`, so a search with few trials relies on the model and
on the shipped tables.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from tritonmm.autotune.measuring.measure import REGIMES
from tritonmm.autotune.measuring.trial import Trial
from tritonmm.config import Config
from tritonmm.problem import Problem

TRIAL_SECONDS = 0.15
"""Time of a trial without its rounds: loading the kernel, checking its result, capturing a graph."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of a search.

    regime: a name in `measure.REGIMES`.
    most: the most configs that are measured in it; None for all.
    """

    regime: str
    most: int | None

    @property
    def seconds(self) -> float:
        """Approximate duration of a trial."""
        regime = REGIMES[self.regime]
        rounds = (regime.fewest + regime.most) / 2
        return TRIAL_SECONDS + regime.warm + rounds * 2 * (regime.rest + regime.replay)


SEARCHES = {
    "exhaustive": (Rung("short", None), Rung("burst", 4)),
    "model": (Rung("burst", 8),),
    "halving": (Rung("quick", 96), Rung("short", 16), Rung("burst", 4)),
}
"""exhaustive: all candidates. model: the first candidates. halving: successive halving (Jamieson and Talwalkar, 2016),
beginning with the first candidates. The last rung, "burst", is timed in pairs with torch and decides.
"""


@dataclass
class Search:
    """The search for one problem's best config.

    ranked: configs to choose from, the most promising first.
    best: the winning trial, once the search is `over`; None if no config was right.
    """

    problem: Problem
    ranked: Sequence[Config]
    rungs: Sequence[Rung]
    best: Trial | None = field(default=None, init=False)
    over: bool = field(default=False, init=False)

    def counts(self) -> list[int]:
        """The most trials of each rung."""
        return counts(self.rungs, len(self.ranked))

    def trials(self) -> Generator[tuple[str, Sequence[Config]], Sequence[Trial], None]:
        """Yields a regime and the configs to measure in it, and receives their trials, in any order.

        Deterministic: equal trials lead to equal requests.
        """
        left = list(self.ranked)
        for rung in self.rungs:
            trials = yield rung.regime, left[: rung.most]
            place = {config: i for i, config in enumerate(left)}
            timed = sorted(
                (trial for trial in trials if trial.time_us is not None),
                key=lambda trial: (relative(trial), place[trial.config]),
            )
            left = [trial.config for trial in timed]
        self.best = timed[0] if timed else None
        self.over = True


def relative(trial: Trial) -> float:
    """The time relative to torch's in the same rounds, which cancels disturbances of both; in microseconds without
    torch."""
    return trial.time_us / trial.torch_us if trial.torch_us else trial.time_us


def counts(rungs: Sequence[Rung], configs: int) -> list[int]:
    """The most trials of each rung, for a search that begins with `configs` configs."""
    found = []
    for rung in rungs:
        configs = configs if rung.most is None else min(configs, rung.most)
        found.append(configs)
    return found


def seconds(rungs: Sequence[Rung], configs: Sequence[int]) -> float:
    """Approximate seconds on one GPU for problems with that many configs each."""
    return sum(rung.seconds * count for each in configs for rung, count in zip(rungs, counts(rungs, each), strict=True))


def within(rungs: Sequence[Rung], configs: Sequence[int], budget: float) -> tuple[Rung, ...]:
    """The rungs, reduced so that all problems fit into `budget` seconds of one GPU if possible.

    configs: the number of configs of each problem.

    A rung is reduced as long as it has more than twice as many configs as the next; the first rung comes first. The
    last rung is reduced only if no other can be.
    """
    most = [rung.most or max(configs, default=1) for rung in rungs]
    fitted = tuple(rungs)
    while seconds(fitted, configs) > budget:
        least = [*(2 * following for following in most[1:]), 1]
        shrinks = next((i for i, count in enumerate(most) if count > least[i]), None)
        if shrinks is None:
            break
        most[shrinks] = max(least[shrinks], int(most[shrinks] * 0.9))
        fitted = tuple(replace(rung, most=count) for rung, count in zip(rungs, most, strict=True))
    return fitted
