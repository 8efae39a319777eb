"""`tritonmm tune`."""

import json
import os
import shlex
import sys
import time
from pathlib import Path

import click

from tritonmm.cli import needs, values
from tritonmm.cli.values import Parsed

_SEARCHES = ("exhaustive", "model", "halving")


_END = """\b
Examples:
  tritonmm tune --dry-run
  tritonmm tune --suite mine.json --budget 30
  tritonmm tune --m 100,2049 --n 4096 --k 4096
"""


@click.command(epilog=_END)
@click.option("--suite", default="public", help="A suite by name, or a JSON file like it.")
@click.option("--m", "ms", type=Parsed("sizes", values.sizes), help="Rows of A, a list, instead of a suite.")
@click.option("--n", type=Parsed("size", values.size), help="Columns of B, with --m.")
@click.option("--k", type=Parsed("size", values.size), help="Columns of A, rows of B, with --m.")
@click.option("--dtype", type=Parsed("dtype", values.dtype), default="bf16", help="With --m.")
@click.option("--layout", type=click.Choice(["nn", "nt", "tn", "tt"]), default="nn", help="With --m.")
@click.option("--search", type=click.Choice(_SEARCHES), default="halving", help="How to search the legal configs.")
@click.option("--budget", type=Parsed("minutes", values.minutes), help="Minutes; a halving search fits into it.")
@click.option(
    "--gpus", type=Parsed("count", values.size), help="Number of GPUs of this machine to use.  [default: all]"
)
@click.option(
    "--scheduler",
    type=Parsed("address", values.address),
    help="Measure on the workers of this Dask scheduler, as in tls://10.0.0.1:8786. With tcp://, anyone who can reach"
    " it can run code as you, on the workers and here.",
)
@click.option("--store", "store_path", type=click.Path(path_type=Path), help="SQLite file; tuning again continues it.")
@click.option("--csv", "csv_path", type=Parsed("file", values.output), help="Export the trials.")
@click.option("--parquet", "parquet_path", type=Parsed("file", values.output), help="Export the trials.")
@click.option("--dry-run", is_flag=True, help="Only say what would be tried.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def tune(
    suite, ms, n, k, dtype, layout, search, budget, gpus, scheduler, store_path, csv_path, parquet_path, dry_run,
    as_json,
):  # fmt: skip
    """Find the fastest config of each GEMM, on all GPUs.

    The fastest configs go into the table that `tritonmm.select` reads from then on.

    Every config is checked before it is timed, in a process that may hang or crash. Trials are stored as they come:
    the same command continues after an interruption. See docs/tuning.md. Exits with 1 if a GEMM has no right config.
    """
    problems = _problems(suite, ms, n, k, dtype, layout)
    if parquet_path:
        needs.module("pyarrow", "tritonmm[parquet]", "--parquet")
    if dry_run:
        return _dry_run(problems, search, budget, gpus, as_json)
    for name in ("distributed", "cryptography"):
        needs.module(name, "tritonmm[tune]", "tuning")
    from tritonmm.autotune.measuring.trial import COLUMNS
    from tritonmm.autotune.tuner import report
    from tritonmm.autotune.tuner.engine import Engine, EngineError
    from tritonmm.autotune.tuner.leases import Claims
    from tritonmm.autotune.tuner.store import Store, StoreError, write_csv, write_parquet

    store_path = store_path or needs.default_store()
    trials = []
    measured = 0
    workers, setup = _workers(gpus, scheduler)
    try:
        # The store is opened first: that it cannot be written is known before anything is started.
        with Store(store_path) as store, Claims(store) as claims, workers as client:
            engine = Engine(client, store, claims, setup)
            begun = time.monotonic()
            deadline = begun + budget * 60 if budget else float("inf")
            hunts = _hunts(problems, engine.gpu, search, budget, len(engine.lanes))
            click.echo(f"tuning on {len(engine.lanes)} x {engine.environment.gpu}, into {store_path}", err=True)
            with report.Tuning(sum(sum(hunt.counts()) for hunt in hunts)) as progress:
                for trial, new in engine.run(hunts, deadline):
                    trials.append(trial)
                    measured += new
                    progress.count(trial, new)
            minutes = (time.monotonic() - begun) / 60
        if csv_path:
            write_csv(csv_path, trials, engine.environment, (*COLUMNS, "regime"))
        if parquet_path:
            write_parquet(parquet_path, trials, engine.environment)
        table = _publish(hunts, engine)
    except (StoreError, EngineError, OSError) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        command = shlex.join(["tritonmm", *sys.argv[1:]])
        said = f"interrupted; {len(trials)} trials are in {store_path}, and this goes on: {command}"
        click.echo(f"tritonmm: {said}", err=True)
        sys.exit(130)

    files = {"store": store_path, "csv": csv_path, "parquet": parquet_path, "table": table}
    outcome = {"gpu": engine.environment.gpu, "search": search} | report.tuned(hunts, trials)
    outcome |= {"minutes": minutes, "measured": measured, "measured_a_minute": measured / minutes}
    outcome |= {name: str(path) if path else None for name, path in files.items()}
    if as_json:
        click.echo(json.dumps(outcome, indent=2))
    else:
        report.show_tuned(outcome)
    sys.exit(int(any(hunt.over and hunt.best is None for hunt in hunts)))


def _problems(suite, ms, n, k, dtype, layout) -> list:
    from tritonmm.autotune.bench import suite as suites
    from tritonmm.autotune.measuring import space

    if ms or n or k:
        needs.refuse("suite", why="--m, --n and --k are tuned instead of a suite")
        if not (ms and n and k):
            raise click.UsageError("--m, --n and --k go together")
    else:
        needs.refuse("dtype", "layout", why="it goes with --m; a suite says it for each GEMM")
    try:
        if ms:
            return [space.problem(m, n, k, dtype=dtype, layout=layout) for m in ms]
        return list(dict.fromkeys(entry.problem() for entry in suites.load(suite)))
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _hunts(problems, gpu, search: str, budget: float | None, lanes: int) -> list:
    from tritonmm.autotune.measuring import space
    from tritonmm.autotune.tuner.search import SEARCHES, Hunt, within

    ranked = [space.candidates(problem, gpu) for problem in problems]
    rungs = SEARCHES[search]
    if budget and search == "halving":
        rungs = within(rungs, [len(configs) for configs in ranked], budget * 60 * lanes)
    return [Hunt(problem, configs, rungs) for problem, configs in zip(problems, ranked, strict=True)]


def _workers(gpus: int | None, scheduler: str | None) -> tuple:
    """The cluster, to be entered, and what its workers measure."""
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
    """What CUDA_VISIBLE_DEVICES calls each GPU that this process may use. It makes no CUDA context."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [str(i) for i in range(torch.cuda.device_count())]
    return [name.strip() for name in named.split(",") if name.strip()][: torch.cuda.device_count()]


def _compilers(gpus: int) -> int:
    """Cores that are left to compile on: each GPU has one that launches, and one coordinates."""
    return max(1, len(os.sched_getaffinity(0)) - gpus - 1)


def _publish(hunts, engine) -> Path | None:
    """Winners into the user's table, if they were measured."""
    best = [hunt.best for hunt in hunts if hunt.over and hunt.best]
    winners = [(trial.problem, trial.config, trial.time_us, trial.torch_us) for trial in best]
    if not winners or engine.source != "gpu":
        return None
    from tritonmm import tuned

    try:
        return tuned.publish(winners, engine.gpu)
    except ValueError as error:
        raise click.ClickException(f"the winners are in the store, and not published: {error}") from None


def _dry_run(problems, search: str, budget: float | None, gpus: int | None, as_json: bool) -> None:
    from tritonmm import gpu as specs
    from tritonmm.autotune.tuner.search import seconds

    gpu = specs.default()
    lanes = gpus or len(_visible()) or 1
    hunts = _hunts(problems, gpu, search, budget, lanes)
    rungs = hunts[0].rungs
    minutes = seconds(rungs, [len(hunt.ranked) for hunt in hunts]) / 60 / lanes
    trials = sum(sum(hunt.counts()) for hunt in hunts)
    if as_json:
        listed = [
            {"problem": str(hunt.problem), "candidates": len(hunt.ranked), "first": next(map(str, hunt.ranked), None)}
            | dict(zip((rung.regime for rung in rungs), hunt.counts(), strict=True))
            for hunt in hunts
        ]
        said = {"gpu": gpu.name, "gpus": lanes, "search": search, "trials": trials, "minutes": round(minutes, 1)}
        click.echo(json.dumps(said | {"problems": listed}, indent=2))
        return
    for hunt in hunts:
        counts = ", then ".join(f"{count} {rung.regime}" for count, rung in zip(hunt.counts(), rungs, strict=True))
        tried = f"{counts} of {len(hunt.ranked)} configs, from {hunt.ranked[0]}" if hunt.ranked else "nothing is legal"
        click.echo(f"{hunt.problem!s:<28} {tried}")
    click.echo(
        f"{search}: at most {trials} trials of {len(hunts)} GEMMs, about {minutes:.0f} min on {lanes} x {gpu.name};"
        " those that the store has are not measured again"
    )
