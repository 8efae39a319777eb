"""GEMMs measured together with torch, from all committed results files: data for fitting and testing the policy.

Benches and sweeps of random suites have times of both. A bench has one row for each GEMM, with the config that was
chosen at the time; a sweep has one row for each config. Only the time of the config that `select` chooses now counts.
From other files only torch's time is taken.
"""

import hashlib
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tritonmm.autotune.measuring import results_file, space
from tritonmm.autotune.studies import regret
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model.torch_time import kernels_of
from tritonmm.problem import Problem
from tritonmm.selection import best

RESULTS = Path(__file__).parents[1] / "results"

REGIMES = ("", "burst", "short")
"""Regimes of single launches after a rest. Files without the column have no others."""

WITHOUT_OPERATOR = ("tf32x3", "bf16x3", "bf16-int8", "bf16-fp8", "bf16-int8-row", "bf16-fp8-row")
"""Kinds that torch computes with several operators. Their time is not that of a kernel that the policy could choose."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A GEMM in one file. ours_us: None if the config that `select` chooses was not measured there."""

    file: str
    problem: Problem
    torch_us: float
    ours_us: float | None = None


def products(gpu: Gpu) -> list[Measured]:
    """All measured GEMMs of the GPU, file by file in the order of their names.

    Raises FileNotFoundError if there are no results files.
    """
    paths = sorted(RESULTS.glob(f"{gpu.name}-*.csv*"))
    paths = [path for path in paths if "-orders" not in path.name]  # these have few of a problem's configs
    if not paths:
        raise FileNotFoundError(f"{RESULTS} has no results of the {gpu.name}: it is in a checkout only")
    return [found for path in paths for found in _of_file(path, gpu)]


def judged(found: Iterable[Measured]) -> list[Measured]:
    """The GEMMs with both times; the policy is judged by them."""
    return [x for x in found if x.ours_us]


def held_out(problems: Iterable[Problem]) -> set[Problem]:
    """The problems that the fit must not see: in each of torch's kernel families every other shape, with all its dtypes
    and layouts. Shapes are ordered by a digest."""
    shapes: dict[str, dict[str, set[Problem]]] = {}
    for p in problems:
        kind = "fp64" if p.dtype == "fp64" else kernels_of(p)
        shapes.setdefault(kind, {}).setdefault(f"{p.batch}x{p.m}x{p.n}x{p.k}", set()).add(p)
    held: set[Problem] = set()
    for of_kind in shapes.values():
        for shape in sorted(of_kind, key=lambda shape: hashlib.sha256(shape.encode()).digest())[1::2]:
            held |= of_kind[shape]
    return held


JUDGED = ("bench", "dtypes", "fp8", "fp64", "ragged", "random", "mixed")
"""Words in the names of the files by which the policy is judged."""


def _of_file(path: Path, gpu: Gpu) -> Iterator[Measured]:
    _, columns, rows = results_file.read(path)
    if not {"m", "n", "k", "layout", "dtype", "torch_us"} <= set(columns):
        return
    of_product: dict[tuple[str, ...], list[results_file.Row]] = {}
    for row in rows:
        timed = row.get("status", "ok") == "ok" and row["torch_us"] and row.get("regime", "") in REGIMES
        timed = timed and not row.get("ragged")  # of grouped GEMMs `torch_time` knows nothing
        if timed and row["dtype"] not in WITHOUT_OPERATOR:
            sizes = (row.get(name) or "1" for name in ("m", "n", "k", "batch"))
            of_product.setdefault((*sizes, row["dtype"], row["layout"]), []).append(row)
    for (m, n, k, batch, dtype, layout), found in of_product.items():
        problem = space.problem(int(m), int(n), int(k), batch=int(batch), dtype=dtype, layout=layout)
        torch_us = statistics.median(float(row["torch_us"]) for row in found)
        ours_us = _ours_us(problem, found, gpu) if any(word in path.name for word in JUDGED) else None
        yield Measured(path.name, problem, torch_us, ours_us)


def _ours_us(problem: Problem, rows: list[results_file.Row], gpu: Gpu) -> float | None:
    """The time of the config that is chosen now; None if it was not measured."""
    config = best(problem, gpu).config
    times: dict[Config, list[float]] = {}
    for row in rows:
        if row.get("config"):  # a row of a bench
            times.setdefault(Config.from_json(row["config"]), []).append(float(row["ours_us"]))
        elif all(row[name] == str(getattr(config, name)) for name in ("kernel", "block_m", "block_n", "block_k")):
            times.setdefault(results_file.product(row)[1], []).append(float(row["time_us"]))
    return regret.time_of({config: statistics.median(us) for config, us in times.items()}, config)
