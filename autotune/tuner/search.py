"""Which trials find the best config of a problem: many with little effort, then fewer with more.

A search is a list of rungs. On each the configs that are left are measured in one regime, and the fastest go on to the
next. What `space.candidates` ranks first is measured first, so a search that tries few relies on the model.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from tritonmm.autotune.measuring.measure import REGIMES
from tritonmm.autotune.measuring.trial import Trial
from tritonmm.config import Config
from tritonmm.problem import Problem

TRIAL_SECONDS = 0.15
"""What a trial takes beside its rounds: loading the kernel, checking its result, capturing a graph."""


@dataclass(frozen=True, slots=True)
class Rung:
    """regime: a name of `measure.REGIMES`; most: configs that are measured in it, None for all."""

    regime: str
    most: int | None

    @property
    def seconds(self) -> float:
        """What a trial takes, roughly."""
        regime = REGIMES[self.regime]
        rounds = (regime.fewest + regime.most) / 2
        return TRIAL_SECONDS + regime.warm + rounds * 2 * (regime.rest + regime.replay)


SEARCHES = {
    "exhaustive": (Rung("short", None), Rung("burst", 4)),
    "model": (Rung("burst", 8),),
    "halving": (Rung("quick", 96), Rung("short", 16), Rung("burst", 4)),
}
"""exhaustive: all candidates; model: those with the shortest estimates; halving: successive halving (Jamieson and
Talwalkar, 2016) of those. The last rung is `burst`, beside torch round by round, and decides."""


@dataclass
class Hunt:
    """The search for one problem's best config.

    ranked: what to choose from, the most promising first. best: the trial that won, once it is over; None where no
    config was right.
    """

    problem: Problem
    ranked: Sequence[Config]
    rungs: Sequence[Rung]
    best: Trial | None = field(default=None, init=False)
    over: bool = field(default=False, init=False)

    def counts(self) -> list[int]:
        """Trials of each rung, at most."""
        return counts(self.rungs, len(self.ranked))

    def trials(self) -> Generator[tuple[str, Sequence[Config]], Sequence[Trial], None]:
        """Yields a regime and the configs to measure in it, and is sent their trials, in any order.

        Deterministic: equal trials lead to equal questions.
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
    """The time as a share of torch's in the same rounds, which cancels what disturbs both; without torch, in us."""
    return trial.time_us / trial.torch_us if trial.torch_us else trial.time_us


def counts(rungs: Sequence[Rung], configs: int) -> list[int]:
    """Trials of each rung that begins with so many configs, at most."""
    found = []
    for rung in rungs:
        configs = configs if rung.most is None else min(configs, rung.most)
        found.append(configs)
    return found


def seconds(rungs: Sequence[Rung], configs: Sequence[int]) -> float:
    """What problems with so many configs each take on one GPU, roughly."""
    return sum(rung.seconds * count for each in configs for rung, count in zip(rungs, counts(rungs, each), strict=True))


def within(rungs: Sequence[Rung], configs: Sequence[int], budget: float) -> tuple[Rung, ...]:
    """The rungs, of fewer configs where that lets all problems fit into `budget` seconds of one GPU.

    configs: how many each problem has. A rung gives up configs as long as it has more than twice as many as the next,
    the first one first, and the last only when no other can.
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
