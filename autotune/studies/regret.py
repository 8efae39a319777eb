"""How much of the best measured config's speed `select` reaches, on the problems of a results file.

    python -m tritonmm.autotune.studies.regret sweep.csv

For each problem of an exhaustive sweep: its best config, and what three ways of selecting choose, each judged by the
time that the sweep measured of it, or if that has the config in other orders of tiles alone, by the longest of theirs:

* model: the estimates alone;
* table: the tuned tables of this machine, the user's and those that ship, before the estimates;
* neighbours: a table of the best configs of all the other problems of the file, before the estimates.
"""

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import click

from tritonmm import gpu as gpus
from tritonmm import tuned
from tritonmm.autotune.measuring import results_file
from tritonmm.config import Config
from tritonmm.gpu import TRITON, Gpu
from tritonmm.problem import Problem
from tritonmm.selection import best_by, estimated

WAYS = ("model", "table", "neighbours")

Measured = dict[Problem, dict[Config, float]]


@dataclass(frozen=True, slots=True)
class Regret:
    """What a way of selecting chose for a problem.

    us: what it took, in this order of tiles or another, or None if that was not measured; best, best_us: the fastest
    of all that were.
    """

    way: str
    problem: Problem
    config: Config
    us: float | None
    best: Config
    best_us: float

    @property
    def reached(self) -> float | None:
        """The share of the best one's speed, at most 1."""
        return None if self.us is None else self.best_us / self.us


def read(path: str | Path) -> tuple[Measured, dict[str, str]]:
    """Microseconds of every config of every problem in a results file, and the file's comments by key.

    Rows of another status than ok are left out; of several rows of the same it is the median. Raises ValueError for a
    file without such rows, or with rows that are not a sweep's.
    """
    about, _, rows = results_file.read(path)
    times: dict[Problem, dict[Config, list[float]]] = {}
    for row, problem, config in results_file.timed(path, rows):
        times.setdefault(problem, {}).setdefault(config, []).append(float(row["time_us"]))
    measured = {problem: {c: statistics.median(us) for c, us in found.items()} for problem, found in times.items()}
    return measured, about


def regrets(measured: Measured, gpu: Gpu, asked: Iterable[str] = WAYS) -> list[Regret]:
    """What each of the ways that are asked for chooses for each problem. Raises ValueError where no config is legal."""
    best = {problem: min(times.items(), key=lambda pair: pair[1]) for problem, times in measured.items()}
    triton = ".".join(TRITON.split(".")[:2])
    rows = [tuned.Row(problem, *winner, "none", triton, "2000-01-01") for problem, winner in best.items()]
    ways: dict[str, Callable[[Problem], Config]] = {
        "model": lambda problem: estimated(problem, gpu).config,
        "table": lambda problem: best_by(problem, gpu, "", tuned.tables(gpu)).config,
        "neighbours": lambda problem: (
            best_by(problem, gpu, "", tuned.Tables([row for row in rows if row.problem != problem])).config
        ),
    }
    found = []
    for problem, times in measured.items():
        for way in asked:
            config = ways[way](problem)
            found.append(Regret(way, problem, config, time_of(times, config), *best[problem]))
    return found


def time_of(times: dict[Config, float], config: Config) -> float | None:
    """What was measured of the config, or else the longest of all that are the same but for their order; or None."""
    if config in times:
        return times[config]
    return max((us for other, us in times.items() if replace(other, order=config.order) == config), default=None)


def lines(found: Iterable[Regret]) -> Iterable[str]:
    """For each problem the best config, and each way's with the share that it reaches; then a line for each way."""
    by_problem: dict[Problem, list[Regret]] = {}
    by_way: dict[str, list[Regret]] = {}
    for regret in found:
        by_problem.setdefault(regret.problem, []).append(regret)
        by_way.setdefault(regret.way, []).append(regret)
    for problem, of_problem in by_problem.items():
        yield f"{problem!s:<28} best {of_problem[0].best_us:>9.2f} us  {of_problem[0].best}"
        for regret in of_problem:
            reached = "not measured" if regret.reached is None else f"{regret.reached:12.3f}"
            same = "the same" if regret.config == regret.best else str(regret.config)
            yield f"{regret.way:>28} {reached}     {same}"
    yield ""
    for way, of_way in by_way.items():
        known = [regret for regret in of_way if regret.reached is not None]
        said = f"{way:<10} {len(known)} of {len(of_way)} problems"
        if known:
            mean = math.exp(statistics.fmean(math.log(regret.reached) for regret in known))
            worst = min(known, key=lambda regret: regret.reached)
            said += f": geometric mean {mean:.4f}, worst {worst.reached:.3f} on {worst.problem}"
        yield said + ("" if len(known) == len(of_way) else "; the others' configs were not measured")


def gpu_of(name: str | None, about: dict[str, str]) -> Gpu:
    """The GPU of that name, or else the one that a results file's comments name. Raises ValueError for unknown ones."""
    if name:
        return gpus.spec(name)
    found = gpus.named(about.get("gpu", ""))
    if found is None:
        raise ValueError(f"the results are of GPU {about.get('gpu')!r}; name the one to select for with --gpu")
    return found


@click.command()
@click.argument("path", metavar="RESULTS", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--gpu", help="Select for this GPU.  [default: the one of the results]")
def main(path: Path, gpu: str | None) -> None:
    """Judge what is selected by the measurements in RESULTS, a sweep's CSV file."""
    try:
        measured, about = read(path)
        for line in lines(regrets(measured, gpu_of(gpu, about))):
            click.echo(line)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
