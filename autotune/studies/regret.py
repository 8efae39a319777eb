"""How much of the best measured config's speed `select` reaches, on the problems of results files.

    python -m tritonmm.autotune.studies.regret sweep.csv
    python -m tritonmm.autotune.studies.regret h100-sweep.csv --neighbours h200-sweep.csv

For each problem of an exhaustive sweep: its best config, and what three ways of selecting choose, each judged by the
time that the sweep measured of it, or if that has the config in other orders of tiles alone, by the longest of theirs:

* model: the estimates alone;
* table: the tuned tables of this machine, the user's and those that ship, before the estimates;
* neighbours: a table of the best configs of all the other problems of the files, or of those of `--neighbours`, before
  the estimates. The choices of the estimates that this table replaces are also judged separately.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator
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
from tritonmm.tuned import table

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


def winners(measured: Measured) -> list[tuned.Row]:
    """The best config of each problem, as rows of a table."""
    triton = ".".join(TRITON.split(".")[:2])
    best = {problem: min(times.items(), key=lambda pair: pair[1]) for problem, times in measured.items()}
    return [tuned.Row(problem, *winner, "none", triton, "2000-01-01") for problem, winner in best.items()]


def regrets(
    measured: Measured, gpu: Gpu, asked: Iterable[str] = WAYS, neighbours: Iterable[tuned.Row] | None = None
) -> list[Regret]:
    """What each of the ways that are asked for chooses for each problem. Raises ValueError where no config is legal.

    neighbours: The rows of the table of that way, or None for `winners(measured)`. Those of the problem itself are left
    out.
    """
    best = {row.problem: (row.config, row.us) for row in winners(measured)}
    rows = list(winners(measured) if neighbours is None else neighbours)
    known = tuned.Tables(rows)

    def others(problem: Problem) -> tuned.Tables:
        exact = known.exact(problem)
        return tuned.Tables([row for row in rows if row not in exact]) if exact else known

    ways: dict[str, Callable[[Problem], Config]] = {
        "model": lambda problem: estimated(problem, gpu).config,
        "table": lambda problem: best_by(problem, gpu, "", tuned.tables(gpu)).config,
        "neighbours": lambda problem: best_by(problem, gpu, "", others(problem)).config,
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
            mean = statistics.geometric_mean(regret.reached for regret in known)
            worst = min(known, key=lambda regret: regret.reached)
            said += f": geometric mean {mean:.4f}, worst {worst.reached:.3f} on {worst.problem}"
        yield said + ("" if len(known) == len(of_way) else "; the others' configs were not measured")
    yield from _replaced(by_way.get("model", []), by_way.get("neighbours", []))


def _replaced(model: list[Regret], neighbours: list[Regret]) -> Iterator[str]:
    """The speed with neighbours' configs relative to that with the estimates' choices, where the two differ.

    Nothing is yielded if they never differ, or if one of the ways was not asked for.
    """
    if not model or not neighbours:
        return
    pairs = [pair for pair in zip(model, neighbours, strict=True) if pair[0].config != pair[1].config]
    known = [(was.us / now.us, now.problem) for was, now in pairs if was.us and now.us]
    said = f"neighbours replace {len(pairs)} choices of the model, {len(known)} measured"
    if known:
        worst, problem = min(known, key=lambda pair: pair[0])
        said += f": geometric mean of the speeds' ratios {statistics.geometric_mean(ratio for ratio, _ in known):.3f}"
        said += f", worst {worst:.3f} on {problem}"
    if pairs:
        yield said


def gpu_of(name: str | None, about: dict[str, str]) -> Gpu:
    """The GPU of that name, or else the one that a results file's comments name. Raises ValueError for unknown ones."""
    if name:
        return gpus.spec(name)
    found = gpus.named(about.get("gpu", ""))
    if found is None:
        raise ValueError(f"the results are of GPU {about.get('gpu')!r}; name the one to select for with --gpu")
    return found


def rows_of(path: Path, gpu: Gpu) -> list[tuned.Row]:
    """The rows of a tuned table, a .json file, or those that the best configs of a results file would be."""
    return table.read(path, gpu)[0] if path.suffix == ".json" else winners(read(path)[0])


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("paths", metavar="RESULTS...", nargs=-1, required=True, type=FILE)
@click.option("--gpu", help="Select for this GPU.  [default: the one of the first results]")
@click.option("--neighbours", multiple=True, type=FILE, help="Results or a tuned table with the neighbours.")
def main(paths: tuple[Path, ...], gpu: str | None, neighbours: tuple[Path, ...]) -> None:
    """Judge what is selected by the measurements in RESULTS, CSV files of sweeps of one GPU, each of other problems."""
    try:
        found = [read(path) for path in paths]
        of = {about.get("gpu", "") for _, about in found}
        if len(of) > 1:
            raise ValueError(f"the results are of several GPUs, {', '.join(sorted(of))}; judge one GPU at a time")
        measured = {problem: times for of_file, _ in found for problem, times in of_file.items()}
        which = gpu_of(gpu, found[0][1])
        rows = [row for path in neighbours for row in rows_of(path, which)] if neighbours else None
        for line in lines(regrets(measured, which, neighbours=rows)):
            click.echo(line)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
