"""Checks and times every config that `select` chooses from, on every product of a suite and all GPUs of this machine.

    python -m tritonmm.autotune.random_suite --seed 74 > random74.json
    python -m tritonmm.autotune.exhaustive --suite random74.json --csv random74.csv
    python -m tritonmm.autotune.regret random74.csv

What `regret` judges `select` by. `tritonmm tune --search exhaustive` varies stages and orders too, measures each config
beside torch, survives what hangs, and takes ten times as long; this takes minutes, and anything that hangs ends it.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import Queue, get_context
from pathlib import Path

import click
import torch

from tritonmm import gpu as gpus
from tritonmm.autotune import contest, results_file, suite
from tritonmm.autotune.environment import Environment
from tritonmm.autotune.precompile import precompile_all
from tritonmm.autotune.trial import COLUMNS, Trial
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.problem import Problem
from tritonmm.select import timed

IDLE = 0.003
"""Seconds of rest before each replay: a quarter of a contest's, since here are a hundred configs a problem."""


def measured(configs: dict[Problem, list[Config]], rounds: int, gpu: Gpu, count: int) -> list[Trial]:
    """A trial of every config of every problem, on so many GPUs. Raises RuntimeError where torch refuses a product."""
    context = get_context("spawn")
    devices = context.Queue()
    for device in range(count):
        devices.put(device)
    with ProcessPoolExecutor(count, context, _take, (devices,)) as pool:
        asked = [pool.submit(contest.trials, *pair, rounds, gpu, IDLE) for pair in configs.items()]
        return list(chain.from_iterable(found.result() for found in asked))


def _take(devices: Queue) -> None:
    torch.cuda.set_device(devices.get())


@click.command()
@click.option("--suite", "asked", default="random60", show_default=True, help="A shipped suite, or a file.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Replays of each config.")
@click.option(
    "--csv", "path", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Write a row for each config."
)
def main(asked: str, rounds: int, path: Path) -> None:
    """Time every config that select chooses from, on every product of a suite."""
    try:
        problems = dict.fromkeys(entry.problem() for entry in suite.load(asked))
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if not torch.cuda.is_available():
        raise click.ClickException("times need a GPU, and torch sees none")
    gpu, count = gpus.of_device(0), torch.cuda.device_count()
    configs = {problem: list(timed(problem, gpu)) for problem in problems}
    pairs = [(problem, config) for problem, found in configs.items() for config in found]
    click.echo(f"{len(pairs)} configs of {len(problems)} products on {count} GPUs; compiling")
    precompile_all(pairs, gpu, os.cpu_count() or 1)
    click.echo("timing")
    try:
        trials = measured(configs, rounds, gpu, count)
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    about = Environment.here(torch.cuda.get_device_name(0)).about()
    about |= {"suite": Path(asked).name, "gpus": str(count), "source": "gpu"}
    about["regime"] = f"burst, {rounds} rounds of a problem's configs in random order, {IDLE * 1e3:g} ms of rest"
    results_file.write(path, about, list(COLUMNS), [trial.row() for trial in trials])
    for trial in trials:
        if trial.status != "ok":
            click.echo(f"{trial.problem}  {trial.config}: {trial.status} {trial.message}")


if __name__ == "__main__":
    main()
