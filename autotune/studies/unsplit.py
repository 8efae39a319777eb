"""How much of the best measured speed the configs reach that sum all of K in one chain of tensor-core steps.

    python -m tritonmm.autotune.studies.unsplit autotune/results/h200-random*.csv.gz

It reads results files, and measures nothing. A GEMM counts once for each file that has at least FEWEST configs of it.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from tritonmm.autotune.measuring import results_file
from tritonmm.config import Config
from tritonmm.dtypes import HALF
from tritonmm.problem import Problem

FEWEST = 12

ROWS = 257
"""The most rows of a GEMM that counts as one of few rows."""

DEEP = 16_384
"""The smallest K that counts as deep."""


def is_one_chain(config: Config) -> bool:
    """Whether one program sums all of K, on tensor cores."""
    return config.split_k == config.split_tail == 1 and min(config.block_m, config.block_n) > 1


def shares(times: Iterable[tuple[Problem, Config, float]]) -> Iterator[tuple[Problem, float]]:
    """For each problem of bf16 or fp16, the time of its best config over that of its best with one chain.

    times: microseconds of the configs of each problem, as one file has them.
    """
    of_problem: dict[Problem, dict[Config, float]] = defaultdict(dict)
    for problem, config, us in times:
        if problem.dtype == problem.b_dtype and problem.dtype in HALF:
            of_problem[problem][config] = us
    for problem, configs in of_problem.items():
        chains = [us for config, us in configs.items() if is_one_chain(config)]
        if len(configs) >= FEWEST and chains:
            yield problem, min(configs.values()) / min(chains)


@click.command()
@click.argument("paths", metavar="RESULTS...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
def main(paths: tuple[Path, ...]) -> None:
    """Print geometric means by K and rows, and the GEMMs that lose most."""
    found = []
    for path in paths:
        try:
            _, _, rows = results_file.read(path)
            timed = results_file.timed(path, rows)
            found += shares((problem, config, float(row["time_us"])) for row, problem, config in timed)
        except ValueError as error:
            raise click.ClickException(str(error)) from None
    classes = defaultdict(list)
    for problem, share in found:
        depth = f"K {'from' if problem.k >= DEEP else 'below'} {DEEP:,}"
        classes[f"{depth}, {'at most' if problem.m <= ROWS else 'above'} {ROWS} rows"].append((share, problem))
    for name, of_class in sorted(classes.items()):
        mean = statistics.geometric_mean(share for share, _ in of_class)
        least = sorted(of_class, key=lambda pair: pair[0])[:3]
        click.echo(f"{name:<32} {len(of_class):4} GEMMs {mean:.3f}  " + ", ".join(f"{p}: {s:.2f}" for s, p in least))


if __name__ == "__main__":
    main()
