"""What a person sees of a sweep: a bar while it runs, a table at the end."""

from collections.abc import Sequence
from pathlib import Path

from rich import box, progress
from rich.console import Console
from rich.table import Table

from tritonmm.autotune.sources import Source
from tritonmm.autotune.sweep import best_of, with_factor_one
from tritonmm.autotune.trial import STATUSES, Trial


def announce(source: Source) -> None:
    """Say on stderr where times come from."""
    console = Console(stderr=True)
    if source.source == "model":
        console.print(
            f"Times are [bold]predicted by the model[/] for {source.gpu.name}, not measured. Every config is checked in"
            " Triton's interpreter at a reduced size.",
            highlight=False,
        )
    else:
        console.print(f"Measuring on {source.environment.gpu}, {source.regime}, beside torch.", highlight=False)


class Progress(progress.Progress):
    """A bar on stderr: trials done, trials a second, time left, the best rate so far."""

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

    def advance(self, trial: Trial, new: bool) -> None:
        """Count a trial. Only new ones make the rate: those from the store take no time."""
        self._new += new
        task = self.tasks[self._task]
        rate = f"{self._new / task.elapsed:.1f}/s" if self._new and task.elapsed else ""
        if trial.tflops is not None and trial.tflops > self._best:
            self._best = trial.tflops
            self.update(self._task, best=f"best {trial.tflops:.0f} TFLOP/s")
        self.update(self._task, advance=1, rate=rate)


def outcome(trials: Sequence[Trial], source: Source, store: Path, csv: Path | None) -> dict:
    """The sweep in values that JSON has: how many trials of each status, and the best of each problem."""
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
    bad = next((trial for trial in trials if trial.status in ("wrong", "failed")), None)
    first_bad = f"{bad.config} on {bad.problem}: {bad.message}" if bad else None
    counts["counted"] = sum(trial.counted is not None for trial in trials)
    return where | {"trials": len(trials)} | counts | {"first_bad": first_bad, "best": best} | files


def show(outcome: dict) -> None:
    """The outcome as a table on stdout, and where its files are."""
    console = Console()
    if not console.is_terminal:  # a file has no width, and 80 columns would fold every config
        console.width = 140
    timed = "times predicted by the model" if outcome["source"] == "model" else f"times measured, {outcome['regime']}"
    table = Table(title=f"{outcome['gpu']}, {timed}", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("problem", no_wrap=True)
    table.add_column("best config", overflow="fold")
    ratios = {"vs torch": "over_torch", "vs factor 1": "over_factor_1"}
    ratios = {name: key for name, key in ratios.items() if any(best[key] for best in outcome["best"])}
    for name in ("time", "TFLOP/s", *ratios):
        table.add_column(name, justify="right", no_wrap=True)
    for best in outcome["best"]:
        known = (f"{best[key]:.2f}x" if best[key] else "-" for key in ratios.values())
        table.add_row(best["problem"], best["config"], f"{best['time_us']:.1f} us", f"{best['tflops']:.0f}", *known)
    console.print(table)
    statuses = ", ".join(f"{outcome[status]} {status}" for status in STATUSES if outcome[status])
    counted = f"; counters of {outcome['counted']}" if outcome["counted"] else ""
    lines = [f"{outcome['trials']} trials: {statuses}{counted}"]
    lines += [f"{name}: {outcome[name]}" for name in ("store", "csv") if outcome[name]]
    if outcome["first_bad"]:
        lines.append(f"first that is wrong or failed: {outcome['first_bad']}")
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
