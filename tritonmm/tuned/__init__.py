"""Tuned tables: the fastest measured configs for each GPU, the user's own and the shipped ones.

The user's tables are in the folder TRITONMM_TABLES, by default in the user's data folder. The shipped tables, such as
`h200.json`, are in this folder. A file that cannot be read causes one warning and counts as empty.
"""

import datetime
import heapq
import itertools
import math
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from tritonmm import forks, user_files
from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.gpu import TRITON, Gpu
from tritonmm.model.chunks import chunk_k
from tritonmm.problem import Problem
from tritonmm.tuned import files, table
from tritonmm.tuned.table import DamagedError, Row, TableError
from tritonmm.version import __version__

__all__ = ["Row", "TableError", "Tables", "publish", "shipped", "tables", "user_path"]

NEAR = 2.0
"""The largest ratio between a neighbour's m, n or k and the problem's, in either direction."""

NEAREST = 8
"""Neighbours that are considered."""

_SHIPPED = Path(__file__).parent
_TRITON = ".".join(TRITON.split(".")[:2])


class Tables:
    """Rows of several tables; rows of earlier tables come first. Immutable, compared by identity."""

    def __init__(self, *layers: Iterable[Row]):
        self._exact: dict[Problem, list[Row]] = {}
        self._near: dict[tuple, list[Row]] = {}
        for rows in layers:
            # Within one table, rows of this Triton version come first, and then the newest.
            for row in sorted(sorted(rows, key=lambda row: row.date, reverse=True), key=lambda r: r.triton != _TRITON):
                self._exact.setdefault(_as_bf16(row.problem), []).append(row)
                self._near.setdefault((_kind(row.problem), *_bits(row.problem)), []).append(row)

    def exact(self, problem: Problem) -> list[Row]:
        """The rows of this problem, the preferred one first, then those of the same problem in bf16 instead of fp16 or
        the reverse: both take the same time to load and to multiply. For a problem with invariant accumulation those of
        the problem without follow: their configs are as fast where they are legal."""
        rows = [row for p in _or_any(problem) for row in self._exact.get(_as_bf16(p), ())]
        return sorted(rows, key=lambda row: (row.problem.accumulation != problem.accumulation, row.problem != problem))

    def near(self, problem: Problem) -> list[Row]:
        """The `NEAREST` rows of similar problems, the nearest first. Each size differs by at most a factor of `NEAR`.

        Similar problems have the same dtypes (bf16 and fp16 count as the same), precision, scales, symmetry, layout and
        epilogue; the same operands are aligned, and the batch has the same number of bits. Those of a problem with
        invariant accumulation may have any.
        """
        if not problem.flops:
            return []
        kinds, found = [_kind(p) for p in _or_any(problem)], []
        for kind, *bits in itertools.product(kinds, *((bit - 1, bit, bit + 1) for bit in _bits(problem))):
            for row in self._near.get((kind, *bits), ()):
                steps = _steps(problem, row.problem)
                if max(steps) <= math.log2(NEAR):
                    found.append((sum(steps), row))
        return [row for _, row in heapq.nsmallest(NEAREST, found, key=lambda pair: pair[0])]


def tables(gpu: Gpu) -> Tables:
    """The tables of a GPU, the user's before the shipped one. They are read once in a process, and again after
    `publish`."""
    return _TABLES.get(gpu) or _read_once(gpu, [(user_path(gpu), gpu), (_shipped_path(gpu), gpu)])


def shipped(arch: str) -> Tables:
    """The shipped tables of all GPUs of an architecture, such as "sm_90". They are read once in a process."""
    alike = [gpu for gpu in map(gpus.spec, gpus.names()) if gpu.arch == arch]
    return _TABLES.get(arch) or _read_once(arch, [(_shipped_path(gpu), gpu) for gpu in alike])


def user_path(gpu: Gpu) -> Path:
    """Path of the user's table for a GPU."""
    return user_files.path(gpu)


Winner = tuple[Problem, Config, float] | tuple[Problem, Config, float, float | None]
"""A problem, its fastest config, microseconds, and optionally torch's microseconds in the same measurement, or None."""


def publish(winners: Iterable[Winner], gpu: Gpu, path: str | os.PathLike | None = None) -> Path:
    """Adds the fastest config of each problem, with its times, to the user's table or to the file `path`. Returns the
    file.

    A winner replaces the table's row for the same problem and Triton version. All other rows stay, even if several
    processes publish at once. This process selects with the new table from now on; GEMMs that it has already computed
    keep their plans.

    Raises ValueError, and writes nothing, for a config that does not fit its problem; TableError for a file that is
    another GPU's or a newer tritonmm's; OSError if the file cannot be written. A damaged file is renamed, with a
    warning.
    """
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    rows = [
        Row(problem, config, float(us), __version__, _TRITON, today, *torch_us)
        for problem, config, us, *torch_us in winners
    ]
    for row in rows:
        row.to_json()  # raises ValueError for a `Table` order
        if not (fit := row.config.fits(row.problem, gpu)):
            raise ValueError(f"{row.config} does not fit {row.problem} on {gpu.name}: {fit.reason}")
    path = Path(os.path.realpath(path or user_path(gpu)))
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.locked(path):
        kept = {_key(row): row for row in _kept(path, gpu)}
        for row in rows:
            kept.pop(_key(row), None)
            kept[_key(row)] = row
        newest = sorted(kept.values(), key=lambda row: row.date)[-table.MAX_ROWS :]
        table.write(path, newest, gpu)
    with _LOCK:
        _TABLES.pop(gpu, None)
    return path


def _read_once(key: Gpu | str, found: Iterable[tuple[Path, Gpu]]) -> Tables:
    with _LOCK:
        if key not in _TABLES:
            while len(_TABLES) >= 64:
                del _TABLES[next(iter(_TABLES))]
            _TABLES[key] = Tables(*itertools.starmap(_rows, found))
        return _TABLES[key]


def _shipped_path(gpu: Gpu) -> Path:
    return _SHIPPED / user_files.name(gpu)


def _rows(path: Path, gpu: Gpu) -> list[Row]:
    try:
        rows, wrong = table.read(path, gpu)
    except TableError as error:
        warnings.warn(f"tritonmm: tuned table not used: {error}", stacklevel=2)
        return []
    if wrong:
        warnings.warn(f"tritonmm: tuned table {path}: {len(wrong)} rows not used, {wrong[0]}", stacklevel=2)
    return rows


def _kept(path: Path, gpu: Gpu) -> list[Row]:
    try:
        return table.read(path, gpu)[0]
    except DamagedError as error:
        aside = path.with_name(path.name + ".damaged")
        os.replace(path, aside)
        warnings.warn(f"tritonmm: {error}; renamed to {aside.name}", stacklevel=3)
        return []


def _key(row: Row) -> tuple[Problem, str]:
    return row.problem, row.triton


def _as_bf16(problem: Problem) -> Problem:
    """The problem with bf16 instead of fp16. Mixed-input problems stay, because 8-bit weights are converted differently
    to each."""
    if problem.b_dtype != problem.dtype:
        return problem
    a, b, out = ("bf16" if x == "fp16" else x for x in (problem.dtype, problem.b_dtype, problem.out_dtype))
    return replace(problem, dtype=a, b_dtype=b, out_dtype=out)


def _or_any(problem: Problem) -> list[Problem]:
    """The problem, and the same with any accumulation if its sums are those of a kernel for that."""
    shared = problem.accumulation == "invariant" and not chunk_k(problem)
    return [problem, replace(problem, accumulation="any")] if shared else [problem]


def _kind(problem: Problem) -> tuple:
    p = _as_bf16(problem)
    aligned = tuple(x == 16 for x in (p.a_alignment, p.b_alignment, p.out_alignment))
    dtypes = p.dtype, p.b_dtype, p.out_dtype, p.precision, p.scales, p.group, p.accumulation
    return *dtypes, p.symmetric, p.ragged, p.groups, p.moduli, p.layout, p.epilogue, aligned, p.batch.bit_length()


def _bits(problem: Problem) -> Iterator[int]:
    return (size.bit_length() for size in (problem.m, problem.n, problem.k))


def _steps(one: Problem, other: Problem) -> list[float]:
    """Ratios of the sizes, as absolute powers of two."""
    return [abs(math.log2(x / y)) for x, y in ((one.m, other.m), (one.n, other.n), (one.k, other.k))]


_TABLES: dict[Gpu | str, Tables] = {}
"""What was read: the tables of a GPU, and those that ship for an architecture."""

_LOCK = forks.lock()
