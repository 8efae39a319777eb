"""`tritonmm tune`."""

import json
import os
import shlex
import sys
import time
from pathlib import Path

import click

from tritonmm.cli import groups as grouped
from tritonmm.cli import needs, values
from tritonmm.cli import quick as quick_tuning
from tritonmm.cli.values import Parsed

_SEARCHES = ("exhaustive", "model", "halving")


_END = """\b
Examples:
  tritonmm tune --quick
  tritonmm tune --suite mine.json --budget 30
  tritonmm tune --m 100,2049 --n 4096 --k 4096
"""


@click.command(epilog=_END)
@click.option("--suite", default="public", help="A suite by name, or a JSON file like it.")
@click.option("--m", "ms", type=Parsed("sizes", values.sizes), help="Rows of A, a list, instead of a suite.")
@click.option("--n", type=Parsed("size", values.size), help="Columns of B, with --m.")
@click.option("--k", type=Parsed("size", values.size), help="Columns of A, rows of B, with --m.")
@click.option("--dtype", type=Parsed("dtype", values.dtype), default="bf16", help=f"With --m: {values.DTYPES_HELP}")
@click.option("--layout", type=click.Choice(["nn", "nt", "tn", "tt"]), default="nn", help="With --m.")
@grouped.options
@click.option("--quick", is_flag=True, help="First fit the models to this GPU; 10 minutes in all without --budget.")
@click.option("--search", type=click.Choice(_SEARCHES), default="halving", help="Which configs are measured.")
@click.option("--budget", type=Parsed("minutes", values.minutes), help="Minutes; a halving search is reduced to fit.")
@click.option(
    "--gpus", type=Parsed("count", values.size), help="Number of GPUs of this machine to use.  [default: all]"
)
@click.option(
    "--scheduler",
    type=Parsed("address", values.address),
    help="Measure on the workers of this Dask scheduler, as in tls://10.0.0.1:8786. With tcp:// whoever can reach it"
    " can run code as you, on the workers and here.",
)
@click.option("--store", "store_path", type=click.Path(path_type=Path), help="SQLite file; tuning again continues it.")
@click.option("--csv", "csv_path", type=Parsed("file", values.output), help="Export the trials.")
@click.option("--parquet", "parquet_path", type=Parsed("file", values.output), help="Export the trials.")
@click.option("--dry-run", is_flag=True, help="Only say what would be tried.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def tune(
    suite, ms, n, k, dtype, layout, groups, ragged, quick, search, budget, gpus, scheduler, store_path,
    csv_path, parquet_path, dry_run, as_json,
):  # fmt: skip
    """Find the fastest config of each problem, on all GPUs.

    The winners go into the table that `tritonmm.select` reads from then on. With --quick the models' constants are
    fitted to this GPU before.

    Every config is checked before it is timed, in a process that may hang or crash. Every trial is stored at once, so
    the same command continues after an interruption. See docs/tuning.md. Exits with 1 if no config of a problem is
    right.
    """
    problems = _problems(suite, ms, n, k, dtype, layout, groups, ragged)
    if parquet_path:
        needs.module("pyarrow", "tritonmm[parquet]", "--parquet")
    if quick:
        needs.refuse("scheduler", why="--quick fits and counts on this machine")
        budget = budget or quick_tuning.MINUTES
    if dry_run:
        return _dry_run(problems, quick, search, budget, gpus, as_json)
    for name in ("distributed", "cryptography"):
        needs.module(name, "tritonmm[tune]", "tuning")
    from tritonmm.autotune.measuring.group_sizes import TYPICAL
    from tritonmm.autotune.measuring.trial import COLUMNS
    from tritonmm.autotune.tuner import report
    from tritonmm.autotune.tuner.engine import Engine, EngineError
    from tritonmm.autotune.tuner.leases import Leases
    from tritonmm.autotune.tuner.store import Store, StoreError, write_csv, write_parquet

    store_path = store_path or needs.default_store()
    needs.distinct_files(store=store_path, csv=csv_path, parquet=parquet_path)
    known = {}  # trials by what is measured, and how
    measured = 0
    workers, setup = _workers(gpus, scheduler)
    try:
        # The store is opened first, so that an unwritable file is reported before anything starts.
        with Store(store_path) as store, Leases(store) as leases, workers as client:
            engine = Engine(client, store, leases, setup)

            def run(asked: list, deadline: float) -> list:
                nonlocal measured
                found = []
                with report.Tuning(sum(sum(each.counts()) for each in asked)) as progress:
                    for trial, new in engine.run(asked, deadline):
                        known[trial.problem, trial.config, trial.regime] = trial
                        found.append(trial)
                        measured += new
                        progress.count(trial, new)
                return found

            begun = time.monotonic()
            click.echo(f"tuning on {len(engine.lanes)} x {engine.environment.gpu}, into {store_path}", err=True)
            if any(problem.ragged for problem in problems):
                click.echo(f"groups have {TYPICAL} sizes", err=True)
            gpu, left = engine.gpu, budget
            if quick:
                fitting = quick_tuning.Quick(engine, store, problems, run)
                gpu = fitting.fit(budget)
                left = fitting.tuning_budget(budget)
            searches = _searches(problems, gpu, search, left, len(engine.lanes))
            run(searches, time.monotonic() + left * 60 if left else float("inf"))
            gained = fitting.gains(searches) if quick else None
            minutes = (time.monotonic() - begun) / 60
        trials = list(known.values())
        table = _publish(searches, engine)
        if csv_path:
            write_csv(csv_path, trials, engine.environment, (*COLUMNS, "regime"))
        if parquet_path:
            write_parquet(parquet_path, trials, engine.environment)
    except (StoreError, EngineError, OSError) as error:
        kept = f"; {len(known)} trials are in {store_path}" if known else ""
        raise click.ClickException(f"{error}{kept}") from None
    except KeyboardInterrupt:
        command = shlex.join(["tritonmm", *sys.argv[1:]])
        said = f"interrupted; {len(known)} trials are in {store_path}, and this goes on: {command}"
        click.echo(f"tritonmm: {said}", err=True)
        sys.exit(130)

    files = {"store": store_path, "csv": csv_path, "parquet": parquet_path, "table": table}
    outcome = {"gpu": engine.environment.gpu, "search": search} | report.tuned(searches, trials)
    outcome |= {"minutes": minutes, "measured": measured, "measured_a_minute": measured / minutes}
    outcome |= {name: str(path) if path else None for name, path in files.items()}
    if as_json:
        click.echo(json.dumps(outcome | ({"quick": gained} if gained else {}), indent=2))
    else:
        report.show_tuned(outcome)
        if gained:
            quick_tuning.show(gained)
    sys.exit(int(any(each.over and each.best is None for each in searches)))


def _problems(suite, ms, n, k, dtype, layout, groups, ragged) -> list:
    """What is tuned, each once: of grouped problems those that `grouped_mm` looks up in the tables."""
    from tritonmm.autotune.bench import suite as suites
    from tritonmm.autotune.measuring import space
    from tritonmm.model.groups import of_class

    if ms or n or k:
        needs.refuse("suite", why="--m, --n and --k are tuned instead of a suite")
        if not (ms and n and k):
            raise click.UsageError("--m, --n and --k go together")
    else:
        needs.refuse("dtype", "layout", "groups", "ragged", why="it goes with --m; a suite has it for each entry")
    try:
        if ms:
            given = {"dtype": dtype, "layout": layout} | grouped.fields(groups, ragged)
            problems = [space.problem(m, n, k, **given) for m in ms]
        else:
            problems = [entry.problem() for entry in suites.load(suite)]
        return list(dict.fromkeys(of_class(each) if each.ragged else each for each in problems))
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _searches(problems, gpu, search: str, budget: float | None, lanes: int) -> list:
    from tritonmm.autotune.measuring import space
    from tritonmm.autotune.tuner.search import SEARCHES, Search, within

    ranked = [space.candidates(problem, gpu) for problem in problems]
    rungs = SEARCHES[search]
    if budget and search == "halving":
        rungs = within(rungs, [len(configs) for configs in ranked], budget * 60 * lanes)
    return [Search(problem, configs, rungs) for problem, configs in zip(problems, ranked, strict=True)]


def _workers(gpus: int | None, scheduler: str | None) -> tuple:
    """The cluster, a context manager, and what its workers measure."""
    from tritonmm.autotune.tuner import cluster
    from tritonmm.autotune.tuner.worker import Setup

    if scheduler:
        needs.refuse("gpus", why="the scheduler's workers are used")
        if scheduler.startswith("tcp://"):
            click.echo(f"tritonmm: {scheduler} is not encrypted: whoever can reach it can run code as you", err=True)
        return cluster.remote(scheduler), Setup()
    visible = _visible()[:gpus]
    if not visible:
        raise click.ClickException(
            "tune measures and needs a GPU, or --scheduler; without one --dry-run says what it would do"
        )
    if gpus and len(visible) < gpus:
        raise click.UsageError(f"--gpus is {gpus}; this process may use {len(visible)}")
    return cluster.local(visible, _compilers(len(visible))), Setup()


def _visible() -> list[str]:
    """The names in CUDA_VISIBLE_DEVICES of the GPUs that this process may use. Creates no CUDA context."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [str(i) for i in range(torch.cuda.device_count())]
    return [name.strip() for name in named.split(",") if name.strip()][: torch.cuda.device_count()]


def _compilers(gpus: int) -> int:
    """Cores for compilation: all except one for each GPU's launches and one for the coordinator."""
    return max(1, len(os.sched_getaffinity(0)) - gpus - 1)


def _publish(searches, engine) -> Path | None:
    """Adds the winners to the user's table, if they were measured."""
    best = [each.best for each in searches if each.over and each.best]
    winners = [(trial.problem, trial.config, trial.time_us, trial.torch_us) for trial in best]
    if not winners or engine.source != "gpu":
        return None
    from tritonmm import tuned

    try:
        return tuned.publish(winners, engine.gpu)
    except ValueError as error:
        raise click.ClickException(f"the winners are in the store, and not published: {error}") from None


def _dry_run(problems, quick: bool, search: str, budget: float | None, gpus: int | None, as_json: bool) -> None:
    from tritonmm import gpu as specs
    from tritonmm.autotune.tuner.search import seconds

    gpu = specs.default()
    lanes = gpus or len(_visible()) or 1
    fitting = quick_tuning.expected(problems, gpu, lanes) if quick else None
    if fitting and budget:
        budget = max(0.1, budget - fitting["minutes"])
    searches = _searches(problems, gpu, search, budget, lanes)
    rungs = searches[0].rungs
    minutes = seconds(rungs, [len(each.ranked) for each in searches]) / 60 / lanes
    trials = sum(sum(each.counts()) for each in searches)
    if as_json:
        listed = [
            {"problem": str(each.problem), "candidates": len(each.ranked), "first": next(map(str, each.ranked), None)}
            | dict(zip((rung.regime for rung in rungs), each.counts(), strict=True))
            for each in searches
        ]
        said = {"gpu": gpu.name, "gpus": lanes, "search": search, "trials": trials, "minutes": round(minutes, 1)}
        click.echo(json.dumps(said | ({"quick": fitting} if fitting else {}) | {"problems": listed}, indent=2))
        return
    if fitting:
        click.echo(
            f"first {fitting['trials']} trials to fit constants, and a comparison at the end: about"
            f" {fitting['minutes']:.0f} min"
        )
    for each in searches:
        counts = ", then ".join(f"{count} {rung.regime}" for count, rung in zip(each.counts(), rungs, strict=True))
        tried = f"{counts} of {len(each.ranked)} configs, from {each.ranked[0]}" if each.ranked else "nothing is legal"
        click.echo(f"{each.problem!s:<28} {tried}")
    click.echo(
        f"{search}: at most {trials} trials of {len(searches)} problems, about {minutes:.0f} min on {lanes} x"
        f" {gpu.name}; trials in the store are not measured again"
    )
