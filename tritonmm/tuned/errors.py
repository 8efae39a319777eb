"""By how much estimates erred where products were measured, and what to expect of another product from that.

`h200-errors.csv` in this folder has a row for each estimate of a measured product: of torch's time, and of the config
that `select` chooses. `python -m tritonmm.autotune.studies.fit_torch --write` makes it from the committed results.
"""

import csv
import functools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model.torch_time import kernels_of
from tritonmm.problem import Problem

NEAR = 0.3
"""Powers of two between the sizes of two products at which the error of one has 0.6 of its weight for the other. This
and the next two are round numbers: from 0.2 to 0.5 the policy reaches the same on products that nobody measured."""

ALONE = 0.3
"""The weight of what is not known, beside 1 for a row of the same sizes: times differ from file to file."""

OTHER_LAYOUT = 0.55
"""Powers of two that another layout counts for."""

UNKNOWN = 0.15
"""The spread of errors of a kind before any was seen, with the weight of two rows."""

OUTSIDE = 0.2
"""What the spread grows by for each power of two that a size lies outside of all measured ones of a kind."""

OUTLIER = 0.5
"""The most of one error that counts for the spread of its kind."""


class Row(NamedTuple):
    """error: logarithm of the estimated over the measured time; kind: of `torch_kind` or `our_kind`."""

    kind: str
    m: int
    n: int
    k: int
    batch: int
    layout: str
    error: float


class Expected(NamedTuple):
    """Of an estimate's logarithm: what to subtract, and the standard deviation of what remains."""

    error: float
    spread: float


def torch_kind(problem: Problem) -> str:
    """What estimates of torch's time have in common: the kernels, and of operands of a byte the scales too. Of grouped
    products it is what the groups divide."""
    if problem.ragged:
        return f"torch {_groups(problem)}"
    scales = f" {problem.scales} {problem.precision}" if problem.element_bytes == 1 else ""
    return f"torch {kernels_of(problem)}{scales}"


def our_kind(problem: Problem, config: Config, is_measured: bool) -> str:
    """The same of our time: that it is a table's, measured another day, or our kernel, with copies or without."""
    kernels = _groups(problem) if problem.ragged else kernels_of(problem)
    if is_measured:
        return f"table {kernels}"
    return f"{config.kernel} {kernels}{' relayout' if config.repack else ''}"


def _groups(problem: Problem) -> str:
    return f"groups of {problem.ragged}"


class _Kind:
    """The rows of one kind."""

    def __init__(self, rows: list[Row]):
        errors = np.array([row.error for row in rows])
        # The usual error, which a few rows say less of than many, and what is left of each.
        self.usual = float(np.median(errors)) * len(rows) / (len(rows) + 1)
        self.rest = errors - self.usual
        clipped = np.minimum(np.abs(self.rest), OUTLIER)
        self.spread = math.sqrt((float(np.square(clipped).sum()) + 2 * UNKNOWN**2) / (len(rows) + 2))
        self.sizes = np.log2([[row.m, row.n, row.k, row.batch] for row in rows])
        self.least, self.most = self.sizes.min(axis=0), self.sizes.max(axis=0)
        self.layouts = np.array([_code(row.layout) for row in rows])

    def expected(self, problem: Problem, here: bool) -> Expected:
        sizes = np.log2([problem.m, problem.n, max(1, problem.k), problem.batch])
        outside = float(np.maximum(0, np.maximum(self.least - sizes, sizes - self.most)).sum())
        if not here:
            return Expected(self.usual, self.spread + OUTSIDE * outside)
        squares = np.square(self.sizes - sizes).sum(axis=1) + OTHER_LAYOUT**2 * (self.layouts != _code(problem.layout))
        weights = np.exp(-squares / (2 * NEAR**2))
        error = self.usual + float(weights @ self.rest) / (float(weights.sum()) + ALONE)
        itself = int((squares < 1e-6).sum())
        return Expected(error, self.spread * ALONE / (itself + ALONE) + OUTSIDE * outside)


def _code(layout: str) -> int:
    return int.from_bytes(layout.encode())


class Errors:
    """What is known of some estimates. Immutable.

    here: whether they are of the GPU in question, and not of another of its architecture, of which only what is usual
    holds.
    """

    def __init__(self, rows: Iterable[Row], here: bool = True):
        kinds: dict[str, list[Row]] = {}
        for row in rows:
            kinds.setdefault(row.kind, []).append(row)
        self._kinds = {kind: _Kind(of_kind) for kind, of_kind in kinds.items()}
        self._here = here

    def expected(self, kind: str, problem: Problem) -> Expected:
        """The usual error of that kind, and of the rest a mean of its rows, in which those of like sizes count most.

        The spread is that of the kind, less for a product that was measured itself (neighbours correct an estimate, but
        each product is off by as much again), and more outside of what was measured.
        """
        if kind not in self._kinds or not problem.m * problem.n * problem.batch:
            return Expected(0.0, UNKNOWN)
        return self._kinds[kind].expected(problem, self._here)


@functools.lru_cache(maxsize=64)
def of(gpu: Gpu) -> Errors:
    """What ships of a GPU, or of another of its architecture."""
    for path in sorted(Path(__file__).parent.glob("*-errors.csv")):
        measured = gpus.spec(path.name.removesuffix("-errors.csv"))
        if measured.arch == gpu.arch:
            return Errors(read(path), here=(measured.name, measured.sms) == (gpu.name, gpu.sms))
    return Errors(())


def read(path: Path) -> list[Row]:
    """The rows of a file that `write` wrote."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.reader(line for line in file if not line.startswith("#"))
        next(rows)
        return [
            Row(kind, int(m), int(n), int(k), int(batch), layout, float(error))
            for kind, m, n, k, batch, layout, error in rows
        ]


def write(path: Path, rows: Iterable[Row], comments: Iterable[str]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        file.writelines(f"# {comment}\n" for comment in comments)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows((*row[:-1], f"{row.error:.3f}") for row in sorted(rows))
