"""What `tritonmm tune --quick` does besides tuning: it fits constants before, and says what was gained after."""

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import click

MINUTES = 10.0
"""The budget if none is given."""

SWEEP_SHARE = 0.5
"""The most of the budget that the short sweep may take."""


class Quick:
    """The steps of one run.

    engine, store: of the tuner. problems: what is tuned. run: runs searches until a deadline, in `time.monotonic`
    seconds, and returns their trials.

    Raises OSError if the constants could not be written.
    """

    def __init__(self, engine, store, problems: Sequence, run: Callable):
        from tritonmm.model import constants, constants_file
        from tritonmm.tuned import files

        self.engine, self.store, self.problems, self.run = engine, store, problems, run
        self.begun = time.monotonic()
        self.start = constants.shipped(engine.gpu)
        self.path = constants_file.path(engine.gpu)
        files.check_writable(self.path)
        self.seconds: dict[str, float] = {}

    def fit(self, budget: float):
        """Measures the short sweep, fits the constants to it and writes them. Returns the GPU with the constants that
        are best. budget: minutes of the whole command."""
        from tritonmm.autotune.fitting import quick

        searches = sweep(self.problems, replace(self.engine.gpu, constants=self.start))
        trials = self.run(searches, self.begun + budget * 60 * SWEEP_SHARE)
        trials, self.uncounted = self._counted(trials)
        self.seconds["sweep"] = time.monotonic() - self.begun
        self.trials = len(trials)
        fitting = time.monotonic()
        self.fitted = quick.fitted(trials, self.engine.gpu)
        self.seconds["fit"] = time.monotonic() - fitting
        self.written = self._write()
        click.echo("\n".join(self._fit_lines()), err=True)
        return replace(self.engine.gpu, constants=self.fitted.record)

    def tuning_budget(self, budget: float) -> float:
        """Minutes that are left for the tables."""
        left = budget - (time.monotonic() - self.begun) / 60
        return max(0.1, left - comparing_seconds(len(self.problems)) / 60 / len(self.engine.lanes))

    def gains(self, searches) -> dict:
        """Measures what was gained, and returns the outcome in JSON values."""
        from tritonmm.autotune.fitting import gains

        comparing = time.monotonic()
        asked = gains.compared(searches, self.engine.gpu, self.start, self.fitted.record)
        trials = self.run([each.search for each in asked], float("inf"))
        self.seconds["compare"] = time.monotonic() - comparing
        fitted = self.fitted
        return {
            "trials": self.trials,
            "fitted": fitted.fitted,
            "held_out": fitted.held_out,
            "before": asdict(fitted.before) if fitted.before else None,
            "after": asdict(fitted.after) if fitted.after else None,
            "scales": fitted.scales,
            "l2": self._l2(),
            "constants": str(self.written) if self.written else None,
            "gains": gains.means(asked, trials),
            "seconds": self.seconds | {"all": time.monotonic() - self.begun},
        }

    def _counted(self, trials: list) -> tuple[list, str]:
        """The trials, those of large GEMMs joined with counters, and why they are not, or ""."""
        from tritonmm.autotune.fitting import short_sweep
        from tritonmm.autotune.measuring import counters

        large = set(short_sweep.large())
        asked = [trial for trial in trials if trial.problem in large]
        others = [trial for trial in trials if trial.problem not in large]
        if self.engine.source != "gpu":
            return trials, "times are not measured"
        try:
            return counters.join(asked, self.store, self.engine.environment, warn=lambda line: None) + others, ""
        except counters.CountersError as error:
            return trials, str(error)

    def _write(self):
        """Writes the constants, and returns their file; without new ones removes it and returns None."""
        from tritonmm.model import constants_file
        from tritonmm.tuned import files

        if self.engine.source != "gpu":
            return None
        if not self.fitted.is_new:
            self.path.unlink(missing_ok=True)
            return None
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        said = ", ".join(f"{name} x {factor:.3g}" for name, factor in self.fitted.scales.items())
        how = f"tritonmm tune --quick, {today}, {self.trials} trials; L2 {self._l2()}; scales: {said or 'none'}"
        record = replace(
            self.fitted.record, gpu=self.engine.environment.gpu, made={**self.fitted.record.made, "quick": how}
        )
        with files.written(self.path) as file:
            file.write(constants_file.text(record, self.engine.gpu, self.start, today))
        return self.path

    def _l2(self) -> str:
        return f"kept, not counted: {self.uncounted}" if self.uncounted else self.fitted.l2

    def _fit_lines(self) -> list[str]:
        fitted = self.fitted
        if fitted.before is None or fitted.after is None:
            return [f"constants: kept; {fitted.fitted} + {fitted.held_out} GEMMs were measured, too few for a fit"]
        lines = [f"L2 constants: {self._l2()}"]
        before = f"{fitted.before.reached:.1%} of the best config, estimates are off by {fitted.before.error:.1%}"
        judged = f"{fitted.held_out} GEMMs that were not fitted: choices reach {before}"
        if not fitted.is_new:
            return [*lines, f"constants: those that ship are kept, because fitted ones are no better; {judged}"]
        after = f"{fitted.after.reached:.1%} and {fitted.after.error:.1%}"
        scaled = ", ".join(f"{name} x {factor:.2f}" for name, factor in fitted.scales.items()) or "those of L2 alone"
        return [*lines, f"constants: {scaled}", f"{judged}; with the fitted constants {after}"]


def show(outcome: dict) -> None:
    """Prints what was gained and how long it took. outcome: of `Quick.gains`."""
    found, seconds = outcome["gains"], outcome["seconds"]
    if found["gemms"]:
        ways = "before", "fitted", "table"
        said = ", ".join(f"{name} {found[key]:.3f}" for name, key in zip(WAYS, ways, strict=True))
        click.echo(f"torch's time over ours, geometric mean of {found['gemms']} GEMMs: {said}")
    else:
        click.echo("no GEMM was finished, so nothing is known of what was gained")
    click.echo(f"constants: {outcome['constants'] or 'those that ship'}")
    fitting = (seconds["sweep"] + seconds["fit"]) / 60
    click.echo(f"{seconds['all'] / 60:.1f} min, of which {fitting:.1f} for the constants")


WAYS = "with the constants that ship", "with the fitted ones", "with the table"


def sweep(problems: Sequence, gpu) -> list:
    """The searches of the short sweep. gpu: with the constants that ship, so that a second run asks for the same."""
    from tritonmm.autotune.fitting import short_sweep
    from tritonmm.autotune.fitting.gains import RUNG
    from tritonmm.autotune.tuner.search import Search

    found = short_sweep.configs(gpu, set(problems))
    return [Search(problem, configs, (RUNG,)) for problem, configs in found.items()]


def comparing_seconds(problems: int) -> float:
    """Seconds of one GPU that the comparison at the end takes: two configs of each GEMM, besides the table's."""
    from tritonmm.autotune.fitting.gains import RUNG

    return 2 * problems * RUNG.seconds


def expected(problems: Sequence, gpu, lanes: int) -> dict:
    """For a dry run: the trials of the sweep, and minutes of all that is not tuning."""
    from tritonmm.autotune.fitting.gains import RUNG

    trials = sum(sum(each.counts()) for each in sweep(problems, gpu))
    return {"trials": trials, "minutes": (trials * RUNG.seconds + comparing_seconds(len(problems))) / 60 / lanes}
