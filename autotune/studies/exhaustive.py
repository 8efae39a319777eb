"""Checks and times every config that `select` chooses from, on every GEMM of a suite, on all GPUs of this machine.

    python -m tritonmm.autotune.studies.random_suite --seed 1234 > mine.json
    python -m tritonmm.autotune.studies.exhaustive --suite mine.json --csv mine.csv
    python -m tritonmm.autotune.studies.regret mine.csv

`regret` judges `select` by the result. With `--orders 2` the two best tiles of each GEMM are timed in many orders
instead, by which `fit_time` judges the choice of orders. `tritonmm tune --search exhaustive` also varies stages and
orders, measures each config together with torch, and survives a hanging kernel. This command takes only minutes, but a
hanging kernel has to be killed by hand.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import Queue, get_context
from pathlib import Path

import click
import torch

from tritonmm import gpu as gpus
from tritonmm.autotune.bench import suite
from tritonmm.autotune.measuring.environment import Environment, comments_of
from tritonmm.autotune.measuring.precompile import precompile_all
from tritonmm.autotune.measuring.results_file import ResultsFile
from tritonmm.autotune.measuring.trial import COLUMNS, Trial
from tritonmm.autotune.studies import contest
from tritonmm.autotune.studies.csv_rows import Output
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model import tile_order
from tritonmm.problem import Problem
from tritonmm.selection import timed

WIDE = 3.0

IDLE = 0.003
"""Idle seconds before each replay: a quarter of a contest's, because a problem has 70 to 80 configs."""


def measured(configs: dict[Problem, list[Config]], rounds: int, gpu: Gpu, count: int) -> Iterator[list[Trial]]:
    """Yields the trials of each problem as they are finished, from `count` GPUs of one model.

    Raises RuntimeError if a GPU or a process did not survive a problem; waiting problems are then not begun.
    """
    context = get_context("spawn")
    devices = context.Queue()
    for device in range(count):
        devices.put(device)
    with ProcessPoolExecutor(count, context, _take, (devices,)) as pool:
        asked = {pool.submit(contest.trials, *pair, rounds, gpu, IDLE): pair[0] for pair in configs.items()}
        try:
            for done in as_completed(asked):
                try:
                    yield done.result()
                except RuntimeError as error:
                    raise RuntimeError(f"{asked[done]}: {error}") from error
        finally:
            pool.shutdown(cancel_futures=True)


def _take(devices: Queue) -> None:
    torch.cuda.set_device(devices.get())


def in_orders(problem: Problem, gpu: Gpu, tiles: int) -> list[Config]:
    """The first configs of `timed` that have different tiles, each in the orders of groups up to `WIDE` times larger or
    smaller than the square root says. None where a grid has no more than two orders."""
    found: dict[Config, None] = {}
    seen: set[tuple] = set()
    for config in timed(problem, gpu):
        blocks = config.kernel, *config.cta_tile, config.block_k
        if blocks in seen or len(seen) == tiles:
            continue
        seen.add(blocks)
        grid = config.tiles(problem)
        orders = tile_order.nearby(*grid, gpu.sms // config.ctas, config.block_m, config.block_n, WIDE)
        if len(orders) > 2:
            square_root = tile_order.group_order(problem, gpu, config.block_m, config.block_n)
            every = (replace(config, order=order) for order in (config.order, square_root, *orders))
            found |= dict.fromkeys(each for each in every if each.fits(problem, gpu))
    return list(found)


def _fastest(trials: list[Trial]) -> str:
    """A line about one problem's trials."""
    times = {trial.config: trial.time_us for trial in trials if trial.status == "ok"}
    config = min(times, key=times.__getitem__, default=None)
    return f"{trials[0].problem}  " + (f"{times[config]:.2f} us  {config}" if config else "none was right")


@click.command()
@click.option("--suite", "asked", default="random60", show_default=True, help="A shipped suite, or a file.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Replays of each config.")
@click.option("--orders", "tiles", type=click.IntRange(1), help="Time this many tiles of each, in many orders.")
@click.option("--csv", "path", required=True, type=Output(), help="Write a row for each config.")
def main(asked: str, rounds: int, tiles: int | None, path: Path) -> None:
    """Time every config that select chooses from, on every GEMM of a suite."""
    try:
        problems = dict.fromkeys(entry.problem() for entry in suite.load(asked))
        if not torch.cuda.is_available():
            raise click.ClickException("times need a GPU, and torch sees none")
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    gpu, count = gpus.of_device(0), torch.cuda.device_count()
    configs = {p: in_orders(p, gpu, tiles) if tiles else list(timed(p, gpu)) for p in problems}
    configs = {problem: found for problem, found in configs.items() if found}
    pairs = [(problem, config) for problem, found in configs.items() for config in found]
    click.echo(f"{len(pairs)} configs of {len(problems)} problems on {count} GPUs; compiling")
    precompile_all(pairs, gpu)
    about = Environment.here(torch.cuda.get_device_name(0)).about()
    about |= {"suite": Path(asked).name, "gpus": str(count), "source": "gpu"}
    about["regime"] = f"burst, {rounds} rounds of a problem's configs in random order, {IDLE * 1e3:g} ms of rest"
    trials: list[Trial] = []
    ended = ""
    try:
        with ResultsFile(path, comments_of(about), COLUMNS) as results:
            for done, of_problem in enumerate(measured(configs, rounds, gpu, count), 1):
                trials += of_problem
                results.add(*(trial.row() for trial in of_problem))
                click.echo(f"{done}/{len(configs)}  {_fastest(of_problem)}")
    except RuntimeError as error:
        ended = f"{error}; {path} has the {len(trials)} trials before that"
    for trial in trials:
        if trial.status != "ok":
            click.echo(f"{trial.problem}  {trial.config}: {trial.status} {trial.message}")
    if ended:
        raise click.ClickException(ended)


if __name__ == "__main__":
    main()
