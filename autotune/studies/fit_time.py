"""Fits the time model's constants to measured times, and says what is chosen by them.

    python -m tritonmm.autotune.studies.fit_time            # judge the record that ships
    python -m tritonmm.autotune.studies.fit_time --write    # fit it again; minutes
    python -m tritonmm.autotune.studies.fit_time --gpu h100 --write

The data are committed results files of a GPU: exhaustive sweeps of random products, in which the configs of a product
differ in their tiles, and sweeps over tile orders, in which they differ in nothing else. Half of the products give the
constants, the others are only predicted. A GPU without a record starts from another's, and stays near it, then and in
later fits: see `PRIOR`.

The loss and the descent are those of `fitting.time_fit`.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import geometric_mean

import click
import numpy as np

from tritonmm import families
from tritonmm.autotune.fitting.time_fit import Constant, Fit, Points, model_of
from tritonmm.autotune.measuring import results_file
from tritonmm.autotune.studies import regret
from tritonmm.autotune.studies.measured_products import RESULTS
from tritonmm.config import Config
from tritonmm.gpu import Gpu, spec
from tritonmm.model import constants
from tritonmm.model.record import Limits, Record, spelled, values
from tritonmm.orders import RowMajor
from tritonmm.problem import Problem

SWEEPS = (*(f"random{seed}" for seed in (60, 64, 66, 68, 70, 72, 74, 76, 78, 80, 82)), "quick")
ORDERS = ("orders62", "orders93", "orders-large", "l2", "l2-16384")
"""Results files of a GPU, by what stands behind its name. A GPU may have some of them."""

COMMAND = "python -m tritonmm.autotune.studies.fit_time"

SHARED = ("launch_us", "first_us", "lone_bandwidth", "split_us", "part_us", "partial_bandwidth")
LIMITS = (
    "again", "write_page", "sm_bandwidth", "l2_bandwidth", "crossed", "half_lines", "late", "step_overlap", "overlap",
    "absent", "drain_us",
)  # fmt: skip
"""What is fitted besides the tiles. `stream` is what a copy reaches."""

ROUNDS = 6
"""Of the fit."""

PRIOR = 0.01
"""Weight of the prior for a GPU that has few results, and starts from the constants of another. On the 60 GEMMs of an
H100, fitted to 40 and judged by 20 in turns: choices reach 96.9% of the best without a fit, 97.2% with this prior, and
96.8% with a thirtieth of it."""


OTHERS = "all else"
"""The part of a record that is another GPU's, in what the record says of how it was made."""


def prior_of(made: Mapping[str, str]) -> float:
    """Weight of the prior in the fit of a record that was made so.

    A record with parts of another GPU's is of a GPU that has few results, in its first fit and in later ones.
    """
    return PRIOR if OTHERS in made else 0.0


def is_seen(problem: Problem) -> bool:
    """Whether the fit may see a product: every other one, by a digest of its sizes."""
    p = problem
    return hashlib.sha256(f"{p.batch}x{p.m}x{p.n}x{p.k}".encode()).digest()[0] % 2 == 0


def files_of(gpu: Gpu, names: Iterable[str]) -> dict[str, Path]:
    """Those of the results files that there are of a GPU, and that have times: some have counters alone."""
    paths = {name: [RESULTS / f"{gpu.name}-{name}{end}" for end in (".csv", ".csv.gz")] for name in names}
    found = {name: path for name, both in paths.items() for path in both if path.is_file()}
    return {name: path for name, path in found.items() if any(row["time_us"] for row in results_file.read(path)[2])}


def read(path: Path, seen: bool) -> regret.Measured:
    """The products of a results file that the fit may see, or the others."""
    measured, _ = regret.read(path)
    return {problem: times for problem, times in measured.items() if is_seen(problem) == seen}


def points(
    gpu: Gpu, seen: bool, sweeps: Iterable[str] = SWEEPS, orders: Iterable[str] = ORDERS, kernels: Sequence[str] = ()
) -> Points:
    """The points of results files that take at most `FAR` times as long as their group's best.

    kernels: the families whose listed tiles are free.
    """
    return Points.of(
        _sets(gpu, seen, sweeps, orders),
        lambda config, problem: config.kernel in kernels and _is_listed(config, problem, gpu),
    )


def _sets(
    gpu: Gpu, seen: bool, sweeps: Iterable[str], orders: Iterable[str]
) -> Iterator[tuple[Problem, dict[Config, float], bool]]:
    files = [(path, False) for path in files_of(gpu, sweeps).values()]
    files += [(path, True) for path in files_of(gpu, orders).values()]
    if not files:
        raise FileNotFoundError(f"{RESULTS} has no sweeps of the {gpu.name}: results are in a checkout only")
    for path, is_order in files:
        for problem, times in read(path, seen).items():
            apart: dict[Config | None, dict[Config, float]] = {}
            for config, us in times.items():
                apart.setdefault(replace(config, order=RowMajor()) if is_order else None, {})[config] = us
            for of_group in apart.values():
                yield problem, of_group, is_order


def _is_listed(config: Config, problem: Problem, gpu: Gpu) -> bool:
    model = model_of(config.kernel)
    tile = model.tile_of(config, problem, gpu)
    return tile in model.tiles(problem, gpu) and tile.num_stages == config.num_stages and not config.cluster


def free(kernels: Sequence[str]) -> list[Constant]:
    """What is fitted of those families, which have the same limits, and of what all families share. Of tiles see
    `of_tiles`."""

    def of_shared(name: str) -> Constant:
        return Constant(
            name,
            lambda record, x: replace(
                record, shared=replace(record.shared, **{name: getattr(record.shared, name) * math.exp(x)})
            ),
        )

    def of_limits(name: str) -> Constant:
        return Constant(
            name,
            lambda record, x: with_limits(
                record, kernels, lambda limits: replace(limits, **{name: getattr(limits, name) * math.exp(x)})
            ),
        )

    return [*map(of_shared, SHARED), *map(of_limits, LIMITS)]


def with_limits(record: Record, kernels: Sequence[str], change: Callable[[Limits], Limits]) -> Record:
    found = {
        name: section | {"limits": change(section["limits"])} if name in kernels else section
        for name, section in record.families.items()
    }
    return replace(record, families=found)


def report(gpu: Gpu, seen: bool) -> Iterator[str]:
    """How good choices of tiles and of orders are by the record that ships, and how far off its times.

    seen: on the GEMMs that the fit has seen, or on the others.
    """
    reached: list[float] = []
    for name, path in files_of(gpu, SWEEPS).items():
        judged = regret.regrets(read(path, seen), gpu, ("model",))
        found = [each.reached for each in judged if each.reached is not None]
        reached += found
        yield f"{name:<14} {_of_the_best(found)}"
    yield f"{'all':<14} {_of_the_best(reached)}"
    for name in files_of(gpu, ORDERS):
        found = points(gpu, seen, (), (name,))
        logs = np.log(
            [
                families.family(c.kernel).estimate(c, p, gpu).us
                for p, c in zip(found.problems, found.configs, strict=True)
            ]
        )
        costs, errors = [], []
        for group in range(found.group.max() + 1):
            of_group = found.group == group
            us = found.us[of_group]
            costs.append(us[logs[of_group].argmin()] / us.min())
            errors.append(np.exp(logs[of_group][us.argmin()]) / us.min() - 1)
        near = np.mean(np.array(costs) <= 1.01)
        yield (
            f"{name:<14} {near:.1%} of {len(costs)} orders within 1% of the best; estimates are off by "
            f"{np.median(np.abs(errors)):.1%} in the median, {np.median(errors):+.1%}"
        )


def fitted(gpu: Gpu, is_new: bool, rounds: int) -> Record:
    """The record of a GPU, fitted to its results. is_new: the record that ships is another GPU's."""
    record = constants.shipped(gpu)
    made = {OTHERS: f"those of the {record.gpu}"} if is_new else dict(record.made)
    files = files_of(gpu, (*SWEEPS, *ORDERS))
    kernels = "hopper", "persistent"
    found = points(gpu, True, kernels=kernels)
    fit = Fit(found, free(kernels), gpu, each_tile=True, prior=prior_of(made))
    record = fit.run(record, rounds, click.echo)
    command = f"{COMMAND} --gpu {gpu.name} --write, {date.today()}"
    made["shared, hopper, persistent"] = f"{command}; products: {', '.join(f'{gpu.name}-{name}' for name in files)}"
    _, about = regret.read(next(iter(files.values())))
    return replace(record, gpu=about["gpu"], made=made)


def _of_the_best(found: Sequence[float]) -> str:
    low = sum(share < 0.85 for share in found)
    return f"{geometric_mean(found):.4f} of the best, {low} of {len(found)} below 0.85"


@click.command()
@click.option("--gpu", default="h200", show_default=True, help="The GPU of the results and the record.")
@click.option("--write", is_flag=True, help="Fit the record and write it.")
@click.option("--rounds", default=ROUNDS, show_default=True, help="Of the fit.")
def main(gpu: str, write: bool, rounds: int) -> None:
    """Fit the constants of the time model, and judge what is chosen by them."""
    try:
        found = spec(gpu)
        found = replace(found, constants=constants.shipped(found))  # whatever is fitted to this machine's
        if write:
            path = constants.FOLDER / f"{found.name}.json"
            record = fitted(found, is_new=not path.is_file(), rounds=rounds)
            path.write_text(spelled(values(record)), encoding="utf-8")
            click.echo(f"wrote {path}; run again without --write to judge it")
            return
        for seen, said in ((True, "Fitted to:"), (False, "Only predicted:")):
            click.echo(said)
            for line in report(found, seen):
                click.echo(line)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
