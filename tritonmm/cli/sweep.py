"""`tritonmm sweep`."""

import json
import sys
from collections import Counter
from pathlib import Path

import click

from tritonmm.cli import groups as grouped
from tritonmm.cli import needs, values
from tritonmm.cli.values import Parsed

_END = """\b
Examples:
  tritonmm sweep --m 1000,2049,4096 --factors 1,2,4,8,16 --csv sweep.csv
  tritonmm sweep --gpu h100 --orders row-major,hilbert --json
"""


@click.command(epilog=_END)
@click.option(
    "--m", "ms", type=Parsed("sizes", values.sizes), default="1000,2048,2049,4096", help="Rows of A, one or more."
)
@click.option("--n", type=Parsed("size", values.size), default="4096", help="Columns of B.")
@click.option("--k", type=Parsed("size", values.size), default="4096", help="Columns of A, rows of B.")
@click.option("--dtype", type=Parsed("dtype", values.dtype), default="bf16", help=values.DTYPES_HELP)
@click.option("--layout", type=click.Choice(["nn", "nt", "tn", "tt"]), default="nn")
@grouped.options
@click.option("--kernel", help="Kernel family.  [default: the one that runs on every GPU]")
@click.option("--blocks", type=Parsed("blocks", values.blocks), help="Tiles, as in 128x256x64,64x128x64.")
@click.option("--stages", type=Parsed("counts", values.sizes), help="Pipeline stages, as in 3,4.")
@click.option("--warps", type=Parsed("counts", values.sizes), help="Warps of a CTA, as in 4,8.")
@click.option(
    "--orders", "tile_orders", type=Parsed("orders", values.tile_orders), help="As in row-major,swizzle-merge:8."
)
@click.option(
    "--factors", type=Parsed("factors", values.sizes), help="Add swizzle-merge with each factor, as in 1,2,4,8."
)
@click.option(
    "--persistent/--plain",
    default=None,
    help="Persistent, or one program per tile; a choice of the tile and mixed_input kernels.  [default: plain, and"
    " persistent with --groups]",
)
@click.option(
    "--regime",
    type=click.Choice(["burst", "sustained"]),
    default="burst",
    help="burst: after a rest; sustained: at the power limit.",
)
@click.option("--counters", is_flag=True, help="Also count DRAM and L2 traffic, with NVIDIA's profiler ncu.")
@click.option("--gpu", type=Parsed("name", values.gpu), help="Model this GPU instead of measuring one.")
@click.option(
    "--store", "store_path", type=click.Path(path_type=Path), help="SQLite file; the same command continues it."
)
@click.option("--csv", "csv_path", type=Parsed("file", values.output), help="Export this sweep's trials.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def sweep(
    ms, n, k, dtype, layout, groups, ragged, kernel, blocks, stages, warps, tile_orders, factors, persistent, regime,
    counters, gpu, store_path, csv_path, as_json,
):  # fmt: skip
    """Check and time every config on every problem.

    Trials go into a store, from which the same command continues, and into a CSV file. Without a GPU, times come from
    the model. Each config is then checked in Triton's interpreter on a smaller problem, if its kernel runs there. Exits
    with 1 if a trial is wrong or fails, if no config is legal, or if nothing can be counted.
    """
    source = needs.source(gpu, regime)
    if source.source == "model":
        needs.refuse("counters", why="counting needs a GPU, and these times come from the model")
        needs.refuse("regime", why="a regime needs a GPU, and these times come from the model")
    from tritonmm.autotune.measuring import space
    from tritonmm.autotune.tuner import report
    from tritonmm.autotune.tuner import sweep as sweeping
    from tritonmm.autotune.tuner.store import Store, StoreError, write_csv
    from tritonmm.orders import Grouped, SwizzleMerge

    asked = {"blocks": blocks, "stages": stages, "warps": warps}
    of_groups = grouped.fields(groups, ragged)
    if tile_orders or factors or of_groups:
        swizzled = [SwizzleMerge(f) for f in factors or ()] if tile_orders or factors else space.Space().tile_orders
        asked["tile_orders"] = (tile_orders or ()) + tuple(Grouped(x) if of_groups else x for x in swizzled)
    lists = {name: value for name, value in asked.items() if value}
    if persistent is None:
        persistent = bool(of_groups)
    try:
        configs = list(dict.fromkeys(space.Space(kernels=(kernel or "",), persistent=(persistent,), **lists)))
        problems = [space.problem(m, n, k, dtype=dtype, layout=layout, **of_groups) for m in ms]
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    trials = []
    store_path = store_path or needs.default_store()
    needs.distinct_files(store=store_path, csv=csv_path)
    try:
        with Store(store_path) as store:
            report.announce(source)
            with report.Progress(len(problems) * len(configs)) as progress:
                for trial, new in sweeping.sweep(problems, configs, store, source):
                    trials.append(trial)
                    progress.count(trial, new)
            uncounted = ""
            if counters:
                trials, uncounted = _counted(trials, store, source.environment)
    except (StoreError, OSError) as error:
        raise click.ClickException(str(error)) from None
    except sweeping.DeviceLostError as error:
        click.echo(f"tritonmm: {error}; the same command continues after it", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        done = f"{len(trials)} of {len(problems) * len(configs)} trials are in {store_path}"
        click.echo(f"tritonmm: interrupted; {done}, and the same command continues", err=True)
        sys.exit(130)

    lost = ""
    if csv_path:
        try:
            write_csv(csv_path, trials, source.environment)
        except OSError as error:
            why = error.strerror or error
            lost = f"{csv_path}: {why}; the trials are in {store_path}, and the same command writes them again"
    outcome = report.outcome(trials, source, store_path, None if lost else csv_path)
    if as_json:
        click.echo(json.dumps(outcome, indent=2))
    else:
        report.show(outcome)
    if lost:
        raise click.ClickException(lost)
    if outcome["illegal"] == len(trials):
        reason, times = Counter(trial.message for trial in trials).most_common(1)[0]
        click.echo(f"tritonmm: no config is legal, {times} of {len(trials)} because: {reason}", err=True)
    sys.exit(1 if not outcome["ok"] or outcome["wrong"] or outcome["failed"] or uncounted else 0)


def _counted(trials, store, environment):
    """The trials with their counters, and why nothing could be counted, or ""."""
    from tritonmm.autotune.measuring import counters

    def warn(message: str) -> None:
        click.echo(f"tritonmm: {message}", err=True)

    click.echo("Counting with ncu.", err=True)
    try:
        return counters.join(trials, store, environment, warn=warn), ""
    except counters.CountersError as error:
        warn(f"no counters: {error}; the times are kept, and the same command counts what is missing")
        return trials, str(error)
