"""Fits the model of torch's time and judges the policy by it. `python -m tritonmm.autotune.studies.fit_torch`

The data are all products of the committed results files, see `measured_products`. One half of the shapes gives the
constants of `tritonmm.model.torch_time`, the other is only predicted. The constants of the kernels for aligned bf16
and fp16 are free; those of others start there and are held back by a penalty, since fewer products were measured. The
loss is the logarithm of the estimated over the measured time, squared up to `ROBUST` and linear beyond. Gauss-Newton
steps with numerical derivatives make it least. It prints the constants, the errors of the estimates, and what the
policy "faster" reaches: on the held-out half, while it knows the errors of the other half alone, and on all products
with what ships. With --write it writes the errors of all products, by which `tritonmm.policy` corrects estimates.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import click
import numpy as np

from tritonmm import policy, tuned
from tritonmm.autotune.studies.measured_products import Measured, held_out, judged, products
from tritonmm.gpu import Gpu, spec
from tritonmm.model.torch_time import KERNELS, Kernels, Sizes, kernels_of, tiles_us, torch_us
from tritonmm.problem import Problem
from tritonmm.selection import best
from tritonmm.tuned import errors
from tritonmm.tuned.errors import Errors

GPU = spec("h200")

START = Kernels(
    tiles="wgmma", share=0.9, step_us=0.1, tile_us=0.64, sm_bandwidth=155e9, l2_bandwidth=21e12, stream=0.88,
    crossed=0.7, launch_us=2.6, first_us=0.2, split_us=3.6, partial_bandwidth=6.5e12, overlap=2.8,
)  # fmt: skip

FROM_HALF = {
    "half unaligned": {
        "tiles": "mma.sync", "share": 0.2, "step_us": 0.2, "launch_us": 3.0, "tile_us": 1.5, "crossed": 0.1
    },
    "tf32": {},
    "tf32 tn": {"tiles": "mma.sync", "share": 0.45},
    "tf32 unaligned": {},
    "fp32": {"tiles": "fma", "share": 0.8, "step_us": 0.3, "sm_bandwidth": 500e9},
    "int8": {"share": 0.4},
    "fp8": {},
    "fp8 blocks": {},
}  # fmt: skip
"""Where the other kinds of kernels start: from those of aligned bf16 and fp16, with these changes."""

FEW = ("share", "step_us", "tile_us", "sm_bandwidth", "crossed", "launch_us", "split_us", "overlap")
"""What is fitted where few products were measured."""

PENALTY = {"half": 0.0, "half unaligned": 0.02}
"""Of the squared logarithm of each constant over its start, beside those of the errors; 0.1 for other kinds."""

ROBUST = 0.15
"""The error beyond which the loss grows linearly: cuBLAS sometimes chooses badly."""


@dataclass(frozen=True, slots=True)
class Times:
    """Products as columns, and the logarithms of torch's measured times of them."""

    sizes: Sizes
    logs: np.ndarray

    @classmethod
    def of(cls, found: dict[Problem, float]) -> "Times":
        rows = [Sizes.of(problem, GPU) for problem in found]
        columns = {f.name: np.array([[float(getattr(row, f.name))] for row in rows]) for f in fields(Sizes)}
        return cls(Sizes(**columns), np.log(list(found.values())))

    def errors(self, kernels: Kernels) -> np.ndarray:
        return np.log(tiles_us(self.sizes, kernels, GPU).min(axis=-1)) - self.logs


def torch_times(found: Iterable[Measured]) -> dict[Problem, float]:
    """The geometric mean of torch's times of each problem in all files."""
    times: dict[Problem, list[float]] = {}
    for x in found:
        if x.problem.dtype != "fp64":
            times.setdefault(x.problem, []).append(math.log(x.torch_us))
    return {problem: math.exp(sum(logs) / len(logs)) for problem, logs in times.items()}


def fit(times: dict[Problem, float]) -> dict[str, Kernels]:
    """The constants of each kind of kernels with the least loss on those products."""
    of_kind: dict[str, dict[Problem, float]] = {}
    for problem, us in times.items():
        of_kind.setdefault(kernels_of(problem), {})[problem] = us
    every = [f.name for f in fields(Kernels) if f.name != "tiles"]
    half = fit_kernels(Times.of(of_kind["half"]), START, every, PENALTY["half"])
    found = {"half": half}
    for kind, changes in FROM_HALF.items():
        free = every if kind in PENALTY else FEW
        start = replace(half, **changes)
        found[kind] = fit_kernels(Times.of(of_kind[kind]), start, free, PENALTY.get(kind, 0.1))
    return found


def fit_kernels(times: Times, start: Kernels, free: list[str] | tuple[str, ...], penalty: float) -> Kernels:
    """The constants with the least loss: `start` with the `free` ones changed. Three digits each."""

    def kernels(logs: np.ndarray) -> Kernels:
        return replace(start, **{name: math.exp(x) for name, x in zip(free, logs, strict=True)})

    first = x = np.log([getattr(start, name) for name in free])
    error = times.errors(start)

    def loss(error: np.ndarray, x: np.ndarray) -> float:
        size = np.abs(error)
        of_errors = np.where(size < ROBUST, size**2 / 2, ROBUST * (size - ROBUST / 2)).sum()
        return float(of_errors + penalty * np.square(x - first).sum() / 2)

    least, damping = loss(error, x), 1e-2
    for _ in range(30):
        slopes = [(times.errors(kernels(x + 0.02 * unit)) - error) / 0.02 for unit in np.eye(len(x))]
        jacobian = np.stack(slopes, axis=1)
        weights = np.minimum(1, ROBUST / np.maximum(np.abs(error), 1e-9))
        curvature = jacobian.T @ (jacobian * weights[:, None]) + penalty * np.eye(len(x))
        gradient = jacobian.T @ (weights * error) + penalty * (x - first)
        gained = 0.0
        while damping < 1e4 and not gained:
            damped = curvature + damping * np.diag(np.diag(curvature) + 1e-9)
            tried = x - np.clip(np.linalg.solve(damped, gradient), -0.4, 0.4)
            tried_error = times.errors(kernels(tried))
            gained = max(0.0, least - loss(tried_error, tried))
            damping = damping / 5 if gained else damping * 4
        if not gained:
            break
        x, error, least = tried, tried_error, least - gained
        if gained < 1e-4 * least:
            break
    return replace(start, **{name: float(f"{math.exp(log):.3g}") for name, log in zip(free, x, strict=True)})


def error_rows(found: list[Measured], gpu: Gpu = GPU) -> list[errors.Row]:
    """What the estimates of torch's time and of ours err, and the times of tables."""
    rows = [_row(errors.torch_kind(p), p, math.log(torch_us(p, gpu) / us)) for p, us in torch_times(found).items()]
    ours: dict[Problem, list[Measured]] = {}
    for x in judged(found):
        ours.setdefault(x.problem, []).append(x)
    for problem, measured in ours.items():
        choice = best(problem, gpu)
        if problem.dtype != "fp64":
            kind = errors.our_kind(problem, choice.config, choice.is_measured)
            mean = sum(math.log(x.ours_us) for x in measured) / len(measured)
            rows.append(_row(kind, problem, math.log(choice.us) - mean))
    return rows


def _row(kind: str, p: Problem, error: float) -> errors.Row:
    return errors.Row(kind, p.m, p.n, p.k, p.batch, p.layout, error)


@dataclass(frozen=True, slots=True)
class Reached:
    """Geometric means of torch's time over that of a policy, of so many measured products.

    losers: the share of them that are given to tritonmm and take more than 5% longer than torch's.
    """

    products: int
    always: float
    faster: float
    oracle: float
    losers: float

    @property
    def lost(self) -> float:
        """The share of the oracle's speed that "faster" does not reach."""
        return 1 - self.faster / self.oracle


def reached(found: list[Measured], known: Errors, gpu: Gpu = GPU) -> Reached:
    """What the policy reaches on those products, with what is `known` of estimates."""
    ratios = np.log([x.torch_us / x.ours_us for x in found])
    ours = np.array([x.problem.dtype != "fp64" and policy.times(x.problem, gpu, known).faster for x in found])
    means = (ratios.mean(), (ratios * ours).mean(), np.maximum(ratios, 0).mean())
    losers = float(((ratios < math.log(0.95)) & ours).mean())
    return Reached(len(found), *map(math.exp, means), losers)


def known_of(rows: Iterable[errors.Row], problems: set[Problem]) -> Errors:
    """What is known from those problems alone, and those of the same sizes and layouts."""
    shapes = {(p.m, p.n, p.k, p.batch) for p in problems}
    return Errors(row for row in rows if (row.m, row.n, row.k, row.batch) in shapes)


COLUMNS = "products | always | faster | oracle | below the oracle | lose more than 5%"


def _lines(found: list[Measured], known: Errors, title: str) -> Iterable[str]:
    yield f"\n| {title} | {COLUMNS} |\n|---|---:|---:|---:|---:|---:|---:|"
    groups: dict[str, Callable[[Measured], bool]] = {"all": lambda x: True}
    for kind in dict.fromkeys(kernels_of(x.problem) for x in found if x.problem.dtype != "fp64"):
        groups[kind] = lambda x, kind=kind: x.problem.dtype != "fp64" and kernels_of(x.problem) == kind
    groups["batched"] = lambda x: x.problem.batch > 1
    groups["tn, tt"] = lambda x: x.problem.layout[0] == "t"
    groups["fp16"] = lambda x: x.problem.dtype == "fp16"
    for name, belongs in groups.items():
        if group := [x for x in found if belongs(x)]:
            r = reached(group, known)
            speeds = f"{r.always:.3f} | {r.faster:.3f} | {r.oracle:.3f}"
            yield f"| {name} | {r.products} | {speeds} | {r.lost:.2%} | {r.losers:.1%} |"


@click.command()
@click.option("--write", is_flag=True, help="Write what estimates erred to where the policy finds it.")
def main(write: bool) -> None:
    """Fit the model of torch's time to all committed measurements, and judge the policy "faster"."""
    try:
        found = products(GPU)
    except FileNotFoundError as error:
        raise click.ClickException(str(error)) from None
    held = held_out({x.problem for x in found})
    times = torch_times(found)
    fitted = fit({problem: us for problem, us in times.items() if problem not in held})
    for kind, kernels in fitted.items():
        same = "the same in torch_time" if KERNELS.get(kind) == kernels else f"in torch_time: {KERNELS.get(kind)}"
        click.echo(f'    "{kind}": {kernels},\n{"":8}{same}')
    KERNELS.update(fitted)

    click.echo("\n| torch's time | products | median error | 90% are within |\n|---|---:|---:|---:|")
    for kind, kernels in fitted.items():
        for name, group in (("fit", set(times) - held), ("held out", held)):
            error = np.abs(
                Times.of({p: us for p, us in times.items() if p in group and kernels_of(p) == kind}).errors(kernels)
            )
            click.echo(f"| {kind}, {name} | {len(error)} | {np.median(error):.1%} | {np.quantile(error, 0.9):.1%} |")

    rows = error_rows(found)
    with_both = judged(found)
    fit_half, other = ([x for x in with_both if (x.problem in held) == is_held] for is_held in (False, True))
    from_fit = known_of(rows, {x.problem for x in found} - held)
    for title, group, known in (
        ("fit half, nothing known", fit_half, Errors(())),
        ("held-out half, the other known", other, from_fit),
        ("all, with what ships", with_both, Errors(rows)),
    ):
        for line in _lines(group, known, title):
            click.echo(line)
    if write:
        path = Path(tuned.__file__).parent / f"{GPU.name}-errors.csv"
        about = f"{len(times)} products of autotune/results/{GPU.name}-*.csv"
        errors.write(path, rows, ["python -m tritonmm.autotune.studies.fit_torch --write", about])
        click.echo(f"\n{path}: {len(rows)} rows")


if __name__ == "__main__":
    main()
