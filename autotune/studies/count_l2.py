"""Counts the traffic of every GEMM of a results file on this GPU, so that two GPUs can be compared, launch by launch.

    python -m tritonmm.autotune.studies.count_l2 autotune/results/h200-l2.csv --csv h100-l2.csv

Nothing is timed; `fit_l2` reads the file. Needs NVIDIA's profiler, which must be allowed to read counters.
"""

from datetime import UTC, datetime
from pathlib import Path

import click
import torch

from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import counters, results_file
from tritonmm.autotune.measuring.environment import Environment, comments_of
from tritonmm.autotune.measuring.precompile import precompile_all
from tritonmm.autotune.measuring.results_file import ResultsFile
from tritonmm.autotune.measuring.trial import COLUMNS, Trial
from tritonmm.autotune.studies.csv_rows import Output
from tritonmm.config import Config
from tritonmm.problem import Problem


def pairs(path: Path) -> list[tuple[Problem, Config]]:
    """The GEMMs of a results file that were counted, and their configs. Raises OSError, KeyError and ValueError."""
    counted = (row for row in results_file.read(path)[2] if row["counted_us"])
    return list(dict.fromkeys(map(results_file.product, counted)))


@click.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--csv", "path", required=True, type=Output(), help="Write a row for each config.")
def main(source: Path, path: Path) -> None:
    """Count again what SOURCE, a results file, has counters of."""
    try:
        asked = pairs(source)
    except (OSError, KeyError, ValueError) as error:
        raise click.ClickException(f"{source}: not the counters of a sweep: {error}") from None
    if not asked:
        raise click.ClickException(f"{source} has no counters")
    if not torch.cuda.is_available():
        raise click.ClickException("counters need a GPU, and torch sees none")
    precompile_all(asked, gpus.of_device(0))
    try:
        found = counters.count(asked, warn=lambda message: click.echo(message, err=True))
    except counters.CountersError as error:
        raise click.ClickException(str(error)) from None
    about = Environment.here(torch.cuda.get_device_name(0)).about() | {"suite": source.name, "source": "gpu"}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    trials = [
        Trial(problem, config, "gpu", "none", "ok", now, counted=counted)
        for (problem, config), counted in zip(asked, found, strict=True)
        if counted
    ]
    with ResultsFile(path, comments_of(about), COLUMNS) as results:
        results.add(*(trial.row() for trial in trials))
    click.echo(f"{len(trials)} of {len(asked)} counted, in {path}")


if __name__ == "__main__":
    main()
