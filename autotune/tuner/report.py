"""Terminal output of a sweep and of the tuner: a progress bar, and a table at the end."""

import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich import box, progress
from rich.console import Console
from rich.table import Table

from tritonmm.autotune.measuring.sources import Source
from tritonmm.autotune.measuring.trial import STATUSES, Trial
from tritonmm.autotune.tuner.search import Search, relative
from tritonmm.autotune.tuner.sweep import best_of, with_factor_one
from tritonmm.problem import Problem

CONFIG_WIDTH = 24
"""The fewest columns of a table's configs, in a narrow terminal."""


def announce(source: Source) -> None:
    """Prints on stderr where the times come from."""
    console = Console(stderr=True)
    if source.source == "model":
        console.print(
            f"Times are [bold]predicted by the model[/] for {source.gpu.name}{_unverified(source)}, not measured. Each"
            " config is checked in Triton's interpreter on a smaller problem, if its kernel runs there.",
            highlight=False,
        )
    else:
        console.print(f"Measuring on {source.environment.gpu}, {source.regime}, compared with torch.", highlight=False)


def _unverified(source: Source) -> str:
    return "" if source.gpu.verified else " (unverified: never compared with counters of this GPU)"


class Progress(progress.Progress):
    """A progress bar on stderr: trials done, trials per second, time left, best TFLOP/s so far."""

    def __init__(self, total: int):
        super().__init__(
            progress.TextColumn("{task.fields[counted]}"),
            progress.BarColumn(bar_width=None),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[rate]}"),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[best]}"),
            console=Console(stderr=True),
        )
        self._task = self.add_task("", total=total, counted="sweep", rate="", best="")
        self._new = 0
        self._best = 0.0

    def count(self, trial: Trial, new: bool) -> None:
        """Counts a trial. The rate counts new trials only, because trials from the store take no time."""
        self._new += new
        task = self.tasks[self._task]
        rate = f"{self._new / task.elapsed:.1f}/s" if self._new and task.elapsed else ""
        if trial.tflops is not None and trial.tflops > self._best:
            self._best = trial.tflops
            self.update(self._task, best=f"best {trial.tflops:.0f} TFLOP/s")
        self.update(self._task, advance=1, rate=rate)


def outcome(trials: Sequence[Trial], source: Source, store: Path, csv: Path | None) -> dict:
    """The sweep in JSON values: trials by status, and the best trial of each problem."""
    best = []
    for problem, trial in best_of(trials).items():
        row_major = with_factor_one(trial, trials)
        best.append(
            {
                "problem": str(problem),
                "m": problem.m,
                "n": problem.n,
                "k": problem.k,
                "config": str(trial.config),
                "time_us": trial.time_us,
                "tflops": trial.tflops,
                "over_torch": trial.torch_us / trial.time_us if trial.torch_us else None,
                "over_factor_1": row_major.time_us / trial.time_us if row_major else None,
            }
        )
    counts = {status: sum(trial.status == status for trial in trials) for status in STATUSES}
    files = {"store": str(store), "csv": str(csv) if csv else None}
    where = {"source": source.source, "gpu": source.environment.gpu, "regime": source.regime}
    if source.source == "model":
        where["verified"] = source.gpu.verified
    bad = next((trial for trial in trials if trial.status in ("wrong", "failed")), None)
    if not best:
        bad = bad or next(iter(trials), None)
    first_bad = f"{bad.status}: {bad.config} on {bad.problem}: {bad.message}" if bad else None
    counts["unchecked"] = sum(trial.status == "ok" and trial.error_ratio is None for trial in trials)
    counts["counted"] = sum(trial.counted is not None for trial in trials)
    return where | {"trials": len(trials)} | counts | {"first_bad": first_bad, "best": best} | files


def show(outcome: dict) -> None:
    """Prints the outcome as a table on stdout, and the paths of its files."""
    timed = f"times measured, {outcome['regime']}"
    if outcome["source"] == "model":
        timed = "times predicted by the model" + ("" if outcome["verified"] else ", unverified on this GPU")
    table = Table(title=f"{outcome['gpu']}, {timed}", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("problem", overflow="fold")
    table.add_column("best config", overflow="fold", min_width=CONFIG_WIDTH)
    ratios = {"vs torch": "over_torch", "vs factor 1": "over_factor_1"}
    ratios = {name: key for name, key in ratios.items() if any(best[key] for best in outcome["best"])}
    for name in ("time", "TFLOP/s", *ratios):
        table.add_column(name, justify="right", no_wrap=True)
    for best in outcome["best"]:
        known = (f"{best[key]:.2f}x" if best[key] else "-" for key in ratios.values())
        table.add_row(best["problem"], best["config"], f"{best['time_us']:.1f} us", f"{best['tflops']:.0f}", *known)
    statuses = ", ".join(f"{outcome[status]} {status}" for status in STATUSES if outcome[status])
    unchecked = f"; {outcome['unchecked']} not checked" if outcome["unchecked"] else ""
    counted = f"; counters of {outcome['counted']}" if outcome["counted"] else ""
    lines = [f"{outcome['trials']} trials: {statuses}{unchecked}{counted}"]
    lines += [f"{name}: {outcome[name]}" for name in ("store", "csv") if outcome[name]]
    if outcome["first_bad"]:
        lines.append(f"the first {outcome['first_bad']}")
    _print(table, lines)


class Tuning:
    """The tuner's progress on stderr: a bar on a terminal, else a line every `every` seconds."""

    def __init__(self, total: int, every: float = 10.0):
        self._total, self._every = total, every
        self._done = self._new = 0
        self._best: dict[Problem, Trial] = {}
        self._begun = self._said = time.monotonic()
        self._bar = progress.Progress(
            progress.TextColumn("tune"),
            progress.BarColumn(bar_width=None),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[said]}"),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("", total=total, said="")

    def __enter__(self) -> "Tuning":
        if self._bar.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        if self._bar.console.is_terminal:
            self._bar.stop()

    def count(self, trial: Trial, new: bool) -> None:
        """Counts a trial. The rate counts new trials only."""
        self._done += 1
        self._new += new
        if trial.time_us is not None:
            best = self._best.setdefault(trial.problem, trial)
            if relative(trial) < relative(best):
                self._best[trial.problem] = trial
        now = time.monotonic()
        if self._bar.console.is_terminal:
            self._bar.update(self._task, completed=self._done, said=self._text(trial.problem, now))
        elif now - self._said >= self._every:
            self._said = now
            click.echo(f"{self._done} of {self._total} trials, {self._text(trial.problem, now)}", err=True)

    def _text(self, problem: Problem, now: float) -> str:
        said = []
        if self._new and now > self._begun:
            rate = self._new / (now - self._begun)
            said += [f"{rate:.1f}/s", f"{(self._total - self._done) / rate / 60:.0f} min left"]
        if best := self._best.get(problem):
            reached = f"{best.torch_us / best.time_us:.2f}x torch" if best.torch_us else f"{best.time_us:.1f} us"
            said.append(f"best {reached} at {problem}")
        return ", ".join(said)


def tuned(searches: Sequence[Search], trials: Sequence[Trial]) -> dict:
    """The tuner's outcome in JSON values: trials by status, and the winner of each problem."""
    winners = []
    for search in searches:
        best = search.best
        found = {"problem": str(search.problem), "over": search.over, "config": None}
        if best is not None:
            found |= {"config": str(best.config), "time_us": best.time_us, "torch_us": best.torch_us}
            found["over_torch"] = best.torch_us / best.time_us if best.torch_us else None
        winners.append(found)
    counts = {status: sum(trial.status == status for trial in trials) for status in STATUSES}
    return {"trials": len(trials)} | counts | {"problems": winners}


def show_tuned(outcome: dict) -> None:
    """Prints the outcome of `tuned`, with the paths of its files, as a table on stdout."""
    table = Table(title=f"{outcome['gpu']}, {outcome['search']} search", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("problem", overflow="fold")
    table.add_column("best config", overflow="fold", min_width=CONFIG_WIDTH)
    for name in ("time", "vs torch"):
        table.add_column(name, justify="right", no_wrap=True)
    for found in outcome["problems"]:
        if found["config"]:
            ratio = f"{found['over_torch']:.2f}x" if found["over_torch"] else "-"
            table.add_row(found["problem"], found["config"], f"{found['time_us']:.1f} us", ratio)
        else:
            table.add_row(found["problem"], "no config was right" if found["over"] else "not finished", "-", "-")
    statuses = ", ".join(f"{outcome[status]} {status}" for status in STATUSES if outcome[status])
    lines = [f"{outcome['trials']} trials: {statuses or 'none'}"]
    lines.append(f"{outcome['measured']} measured now, {outcome['measured_a_minute']:.0f} a minute")
    lines += [f"{name}: {outcome[name]}" for name in ("store", "csv", "parquet", "table") if outcome[name]]
    _print(table, lines)


def _print(table: Table, lines: Sequence[str]) -> None:
    """Prints on stdout the table, unless it is empty, and the lines."""
    console = Console()
    if not console.is_terminal:  # rich's default of 80 columns would fold every config
        console.width = 140
    if table.row_count:
        console.print(table)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
