"""Results files, as the store writes them: lines `# key: value`, then CSV with a row a trial.

Large ones in results/ are gzipped: `gzip -9n sweep.csv`. What is read is recognised by its first bytes.
"""

import csv
import gzip
import io
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from tritonmm import orders
from tritonmm.autotune.measuring import space
from tritonmm.config import FORMER_FIELDS, Config
from tritonmm.problem import Problem
from tritonmm.tuned import files

Row = dict[str, str]

MAX_BYTES = 2**28
"""The most bytes that are read of a file, some hundred times the largest file in results/."""


def parts(path: str | Path) -> tuple[dict[str, str], list[str]]:
    """The comments by key, and the lines of CSV. Former names of columns are replaced by the present ones.

    Raises OSError, and ValueError for content that is not UTF-8, is damaged, or is longer than `MAX_BYTES`.
    """
    with open(path, "rb") as file:
        is_gzipped = file.peek(2).startswith(b"\x1f\x8b")
        try:
            content = (gzip.GzipFile(fileobj=file) if is_gzipped else file).read(MAX_BYTES + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is gzipped, and damaged: {error}") from None
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES} bytes, the limit of a results file")
    try:
        lines = io.StringIO(content.decode("utf-8-sig"), newline="").readlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None
    comments = [line for line in lines if line.startswith("#")]
    about = {key.strip("# "): value.strip() for key, _, value in (line.partition(":") for line in comments)}
    header, *rows = [line for line in lines if not line.startswith("#")] or [""]
    return about, [re.sub(r"\w+", lambda name: FORMER_FIELDS.get(name[0], name[0]), header), *rows]


def read(path: str | Path) -> tuple[dict[str, str], list[str], list[Row]]:
    """The comments by key, the columns, and the rows as text. Raises OSError and ValueError as `parts` does."""
    about, lines = parts(path)
    reader = csv.DictReader(lines)
    try:
        return about, list(reader.fieldnames or ()), list(reader)
    except csv.Error as error:
        raise ValueError(f"{path} is not a table of comma-separated values: {error}") from None


def timed(path: str | Path, rows: Iterable[Row]) -> Iterator[tuple[Row, Problem, Config]]:
    """The rows of status ok that have a time, each with its problem and config.

    Raises ValueError for a row that is not a trial, and if there is no row with a time.
    """
    found = False
    for i, row in enumerate(rows, 1):
        try:
            if row["status"] == "ok" and row["time_us"]:
                if not 0 < float(row["time_us"]) < math.inf:
                    raise ValueError(f"time_us is {row['time_us']:.40}")
                yield row, *product(row)
                found = True
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}: row {i} is not a trial's: {error}") from None
    if not found:
        raise ValueError(f"{path} has no row of status ok with a time")


def write(path: str | Path, about: dict[str, str], columns: list[str], rows: list[Row]) -> None:
    """The inverse of `read`; `path` is written in one step, gzipped if its name ends in .gz."""
    text = io.StringIO(newline="")
    text.writelines(f"# {key}: {value}\n" for key, value in about.items())
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    content = text.getvalue().encode()
    with files.written(path, "wb") as file:
        file.write(gzip.compress(content, mtime=0) if str(path).endswith(".gz") else content)


class ResultsFile:
    """A results file to which each row is written as soon as it is added. It replaces an existing file. Use it in a
    `with`.

    comments: lines that begin with "#", written before the header.
    columns: the header.
    """

    def __init__(self, path: str | Path, comments: Iterable[str], columns: Sequence[str]):
        self._file = files.opened(path)
        self._is_kept = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)  # fsync needs a regular file
        self._file.writelines(f"{line}\n" for line in comments)
        self._writer = csv.DictWriter(self._file, columns, lineterminator="\n")
        self._writer.writeheader()
        self._keep()

    def __enter__(self) -> "ResultsFile":
        return self

    def __exit__(self, *_) -> None:
        self._file.close()

    def add(self, *rows: dict[str, object]) -> None:
        self._writer.writerows(rows)
        self._keep()

    def _keep(self) -> None:
        self._file.flush()
        if self._is_kept:
            os.fsync(self._file.fileno())


def product(row: Row) -> tuple[Problem, Config]:
    """The problem and the config of a row. Raises KeyError, ValueError or TypeError if it is not a trial's row."""
    m, n, k, batch = (int(row[name]) for name in ("m", "n", "k", "batch"))
    given = {}
    for field in fields(Config):
        if row.get(field.name):  # newer fields are missing in older files; an empty cell is the default
            text = row[field.name]
            if field.name == "order":
                given["order"] = orders.parse(text)
            elif field.type is str:
                given[field.name] = text
            else:  # numbers and booleans, spelled as in JSON
                given[field.name] = json.loads(text.lower())
    groups = {"ragged": row.get("ragged") or "", "groups": int(row.get("groups") or 0)}  # older files have neither
    return space.problem(m, n, k, batch=batch, dtype=row["dtype"], layout=row["layout"], **groups), Config(**given)
