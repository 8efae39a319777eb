"""The first choices of NVIDIA's matmul heuristics, run through our kernels, beside what `select` estimates to be best.

    pip install nvidia-matmul-heuristics
    python -m tritonmm.autotune.studies.heuristics autotune/results/h200-random60.csv.gz --csv heuristics.csv

For each problem of a sweep: its best config, the one that `select` chooses without tables, and those of the
heuristics, mapped as `nvidia_heuristics.py` says. Each is checked alone; then all of a problem are timed in rounds of
random order, as a contest does.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

import click
import torch

from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import results_file
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.precompile import precompile_all
from tritonmm.autotune.measuring.trial import COLUMNS, Trial
from tritonmm.autotune.studies import contest, regret
from tritonmm.autotune.studies.csv_rows import Output
from tritonmm.autotune.studies.nvidia_heuristics import WAYS, first_choice, mapped, spelled
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.problem import Problem
from tritonmm.selection import estimated


@dataclass(frozen=True, slots=True)
class Arm:
    """A config of a problem, and whose it is. asked: what the heuristics chose, "" where it is not theirs."""

    problem: Problem
    way: str
    config: Config
    asked: str = ""

    @property
    def moved(self) -> bool:
        """Whether the tile has other rows or columns than what the heuristics chose."""
        return bool(self.asked) and not self.asked.startswith(f"{self.config.block_m}x{self.config.block_n}x")


def arms(measured: regret.Measured, gpu: Gpu) -> Iterator[Arm]:
    """The configs of every problem: the sweep's best, the one estimated best, and those of the heuristics."""
    for problem, times in measured.items():
        yield Arm(problem, "sweep", min(times, key=times.__getitem__))
        yield Arm(problem, "select", estimated(problem, gpu).config)
        for way in WAYS:
            found = first_choice(way, problem, gpu)
            yield Arm(problem, way, mapped(found, problem, gpu), spelled(found))


def lines(found: list[Arm], times: dict[tuple[Problem, Config], float]) -> Iterator[str]:
    """For each problem its configs, with what the heuristics chose and, where there are times, the share of the speed
    of the sweep's best, which may exceed 1; then for each way what it reaches on all problems."""
    best = {arm.problem: times.get((arm.problem, arm.config)) for arm in found if arm.way == "sweep"}
    shares: dict[str, dict[Problem, float]] = {}
    for problem, of_problem in itertools.groupby(found, key=lambda arm: arm.problem):
        yield str(problem)
        for arm in of_problem:
            us, said = times.get((problem, arm.config)), ""
            if us and best[problem]:
                shares.setdefault(arm.way, {})[problem] = best[problem] / us
                said = f"{us:9.2f} us {best[problem] / us:6.3f}  "
            asked = f"  {'near' if arm.moved else 'for'} {arm.asked}" if arm.asked else ""
            yield f"{arm.way:>16}  {said}{arm.config}{asked}"
    yield ""
    for way in WAYS:
        moved = [arm.moved for arm in found if arm.way == way]
        yield f"{way}: {sum(moved)} of {len(moved)} tiles have other rows or columns than what it chose"
    for way, of_way in shares.items():
        worst = min(of_way, key=of_way.__getitem__)
        yield (
            f"{way}: {len(of_way)} of {len(best)} problems, geometric mean {geometric_mean(of_way.values()):.4f} of the"
            f" sweep's best, worst {of_way[worst]:.3f} on {worst}"
        )
    for way in WAYS:
        ratios = [share / shares[way][p] for p, share in shares.get("select", {}).items() if p in shares.get(way, {})]
        if ratios:
            faster = sum(ratio > 1 for ratio in ratios)
            slower = sum(ratio < 1 for ratio in ratios)
            mean = geometric_mean(ratios)
            yield f"select is {mean:.3f} times as fast as {way}: faster on {faster}, slower on {slower}"


@click.command()
@click.argument("path", metavar="RESULTS", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--rounds", type=click.IntRange(1), default=15, show_default=True, help="Replays of each config.")
@click.option("--csv", "csv_path", type=Output(), help="Write a row for each config.")
def main(path: Path, rounds: int, csv_path: Path | None) -> None:
    """Time the first choices of nvidia-matmul-heuristics on the problems in RESULTS, a sweep's CSV file, beside the
    sweep's best config and what is estimated to be best. Without a GPU: list them."""
    try:
        measured, about = regret.read(path)
        has_gpu = torch.cuda.is_available()
        gpu = gpus.of_device(torch.cuda.current_device()) if has_gpu else regret.gpu_of(None, about)
        found = list(arms(measured, gpu))
    except (ValueError, OSError, ModuleNotFoundError) as error:
        raise click.ClickException(str(error)) from None
    if not has_gpu:
        if csv_path:
            raise click.ClickException(f"--csv {csv_path}: times need a GPU, and torch sees none")
        click.echo("\n".join(lines(found, {})))
        return
    pairs = dict.fromkeys((arm.problem, arm.config) for arm in found)
    precompile_all(pairs, gpu)
    timed: dict[tuple[Problem, Config], Trial] = {}
    for problem, of_problem in itertools.groupby(found, key=lambda arm: arm.problem):
        try:
            configs = list(dict.fromkeys(arm.config for arm in of_problem))
            ran = contest.trials(problem, configs, rounds, gpu)
        except RuntimeError as error:
            raise click.ClickException(f"{problem}: {error}") from None
        timed |= {(problem, trial.config): trial for trial in ran}
        for trial in ran:
            if trial.status != "ok":
                click.echo(f"{problem}  {trial.config}: {trial.status} {trial.message}")
    click.echo("\n".join(lines(found, {pair: trial.time_us for pair, trial in timed.items() if trial.time_us})))
    if csv_path:
        rows = [timed[arm.problem, arm.config].row() | {"way": arm.way, "asked": arm.asked} for arm in found]
        here = Environment.here(torch.cuda.get_device_name()).about()
        here["regime"] = f"burst, medians of {rounds} rounds of a problem's configs in random order"
        results_file.write(csv_path, here, [*COLUMNS, "way", "asked"], rows)


if __name__ == "__main__":
    main()
