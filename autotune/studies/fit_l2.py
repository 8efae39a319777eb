"""Fits the constants of `tritonmm.l2` to counters and checks them. `python -m tritonmm.autotune.studies.fit_l2`

The data are what a GPU counted, autotune/results/NAME-l2*.csv. The shapes of `FIT` give the constants, by the descent
of `fitting.l2_fit`; all others are only predicted. It prints the constants, then tables of the errors in Markdown.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np

from tritonmm import orders
from tritonmm.autotune.fitting.l2_fit import fit
from tritonmm.autotune.measuring import results_file
from tritonmm.config import Config
from tritonmm.gpu import Gpu, spec
from tritonmm.model import l2
from tritonmm.model.constants import shipped
from tritonmm.model.l2 import Constants, Traffic
from tritonmm.problem import Problem

RESULTS = Path(__file__).parents[1] / "results"
"""The folder of `FILES` in a checkout. An installed tritonmm has none."""

FILES = ("l2-16384", "l2")
"""Results files of a GPU, by what stands behind its name. A GPU may have one of them."""

FIT = {
    (4096, 8192, 8192),
    (4880, 8192, 4096),
    (6160, 8192, 4096),
    (8192, 8192, 4096),
    (8208, 8192, 8192),
    (12288, 16384, 4096),
    (16384, 16384, 4096),
}
"""Shapes (m, n, k) that the constants may see: every other one of the counted shapes, sorted."""

START = Constants(
    capacity=0.6, spread=0.2, stagger=0.4, drift=0.1, partner=1.0, merged=0.3, apart=2000.0, scattered=0.2,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point:
    """One measured row. time_us: of a burst, None in rows only counted; the bytes are counted, from a cold L2, and None
    in rows only timed."""

    file: str
    problem: Problem
    config: Config
    time_us: float | None
    dram_read_bytes: float | None
    l2_read_bytes: float | None
    hit_rate: float | None

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.problem.m, self.problem.n, self.problem.k

    @property
    def fitted(self) -> bool:
        return self.shape in FIT

    @property
    def tile(self) -> str:
        return f"{self.config.kernel} {self.config.block_m}x{self.config.block_n}"


def points(gpu: Gpu, results: Path = RESULTS) -> list[Point]:
    """All rows of the GPU's files, in the folder `results`. Raises FileNotFoundError if there are none."""
    paths = [path for name in FILES if (path := results / f"{gpu.name}-{name}.csv").is_file()]
    if not paths:
        raise FileNotFoundError(f"{results} has no {gpu.name}-l2.csv; it is in autotune/results of a checkout")
    return [_point(path.name, row) for path in paths for row in results_file.read(path)[2]]


def _point(name: str, row: results_file.Row) -> Point:
    problem, config = results_file.product(row)
    counted = (row[f"counted_{column}"] for column in ("dram_read_bytes", "l2_read_bytes"))
    dram, reads = (float(text) if text else None for text in counted)
    hit = float(row["counted_hits"]) / float(row["counted_lookups"]) if row["counted_lookups"] else None
    return Point(name, problem, config, float(row["time_us"]) if row["time_us"] else None, dram, reads, hit)


def counted(found: Iterable[Point]) -> list[Point]:
    return [point for point in found if point.dram_read_bytes is not None]


@dataclass(frozen=True, slots=True)
class Errors:
    """Of `points` points: median and 95th percentile of |predicted / counted - 1|, of bytes read."""

    points: int
    dram_median: float
    dram_p95: float
    l2_median: float
    l2_p95: float
    hit_rate_median: float


def errors(found: list[Point], gpu: Gpu, predict: Callable[[Point], Traffic] | None = None) -> Errors:
    """predict: what is checked, `l2.of` where it is not given. hit_rate_median: of the difference."""
    predict = predict or (lambda point: l2.of(point.problem, point.config, gpu))
    traffic = [predict(point) for point in found]
    dram, reads = (
        np.array([abs(getattr(t, name) / getattr(p, name) - 1) for t, p in zip(traffic, found, strict=True)])
        for name in ("dram_read_bytes", "l2_read_bytes")
    )
    hits = [abs(t.hit_rate - p.hit_rate) for t, p in zip(traffic, found, strict=True)]
    at = np.quantile
    return Errors(len(found), at(dram, 0.5), at(dram, 0.95), at(reads, 0.5), at(reads, 0.95), at(hits, 0.5))


@dataclass(frozen=True, slots=True)
class Best:
    """What `l2.best_factor` chooses among the factors of a sweep, and what it costs.

    regret: its measured time over the best measured one, minus 1.
    """

    shape: tuple[int, int, int]
    tile: str
    factors: int
    predicted: str
    measured: str
    regret: float


def best_factors(found: list[Point], gpu: Gpu) -> list[Best]:
    """For each shape, tile and kernel that was measured with several factors of swizzle-merge, timed together in
    one file."""
    groups = defaultdict(list)
    for point in found:
        if (
            point.time_us
            and isinstance(point.config.order, orders.SwizzleMerge)
            and len(point.config.order.factors) == 1
        ):
            groups[point.file, point.shape, point.tile].append(point)
    rows = []
    for (_, shape, tile), sweep in groups.items():
        fastest = min(sweep, key=lambda p: p.time_us)
        factors = {point.config.order.factors[0]: point for point in sweep}
        chosen = factors[l2.best_factor(fastest.problem, fastest.config, gpu, factors)]
        regret = chosen.time_us / fastest.time_us - 1
        rows.append(Best(shape, tile, len(sweep), str(chosen.config.order), str(fastest.config.order), regret))
    return rows


def family(point: Point) -> str:
    order = point.config.order
    if isinstance(order, orders.SwizzleMerge):
        if len(order.factors) > 1:
            return "swizzle-merge of two"
        return "swizzle-merge <= 4" if order.factors[0] <= 4 else "swizzle-merge > 4"
    return order.name


@click.command()
@click.option("--gpu", "name", default="h200", show_default=True, help="The GPU that counted.")
@click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default=RESULTS,
    show_default="autotune/results of the checkout",
    help="Folder of the counters.",
)
def main(name: str, results: Path) -> None:
    """Fit the constants of tritonmm.l2 to what a GPU counted, and check them.

    It prints the constants and, as Markdown, tables of the errors, and writes no file.
    """
    try:
        gpu = spec(name)
        every = points(gpu, results)
    except FileNotFoundError as error:
        raise click.ClickException(str(error)) from None
    except (OSError, ValueError, KeyError) as error:
        raise click.ClickException(f"{results}: not the counters of a sweep: {error}") from None
    found = counted(every)
    seen, unseen = [p for p in found if p.fitted], [p for p in found if not p.fitted]
    if not seen or not unseen:
        raise click.ClickException(f"{results}: there are no counters of shapes to fit, or none of others to check")
    constants = fit(seen, gpu, START)
    print("Fitted:", ", ".join(f"{name}={value:g}" for name, value in asdict(constants).items()))
    print("In l2 :", "the same" if constants == shipped(gpu).l2 else shipped(gpu).l2, "\n")
    columns = "points | DRAM median | DRAM p95 | L2 median | L2 p95 | hit rate median"
    print(f"| | {columns} |\n|---|---:|---:|---:|---:|---:|---:|")
    for name, group in (("fit", seen), ("test", unseen)):
        print(_row(f"**all, {name}**", group, gpu))
        for key in (lambda p: p.tile, family):
            kinds = dict.fromkeys(map(key, group))
            for kind in kinds:
                print(_row(f"{kind}, {name}", [p for p in group if key(p) == kind], gpu))
    rows = best_factors(every, gpu)
    if not rows:
        return  # nothing was timed
    print("\n| m x n x k | tile | factors | predicted best | measured best | costs |\n|---|---|---:|---|---|---:|")
    for row in rows:
        m, n, k = row.shape
        note = "" if row.shape in FIT else " (test)"
        print(f"| {m} x {n} x {k}{note} | {row.tile} | {row.factors} | {row.predicted} | {row.measured} |", end="")
        print(f" {row.regret:.1%} |")
    for name, group in (
        ("fit", [r for r in rows if r.shape in FIT]),
        ("test", [r for r in rows if r.shape not in FIT]),
    ):
        print(f"\n{name}: within 1% in {sum(r.regret <= 0.01 for r in group)} of {len(group)}", end="")
    print()


def _row(name: str, group: list[Point], gpu: Gpu) -> str:
    e = errors(group, gpu)
    return (
        f"| {name} | {e.points} | {e.dram_median:.1%} | {e.dram_p95:.1%} | {e.l2_median:.1%} | {e.l2_p95:.1%} |"
        f" {e.hit_rate_median:.3f} |"
    )


if __name__ == "__main__":
    main()
