"""Results files, as the store writes them: lines `# key: value`, then CSV with a row a trial."""

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

from tritonmm import orders
from tritonmm.autotune import space
from tritonmm.config import Config
from tritonmm.problem import Problem

Row = dict[str, str]


def parts(path: str | Path) -> tuple[dict[str, str], list[str]]:
    """The comments by their keys, and the lines of CSV. Raises OSError, and ValueError for what is no text."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            lines = file.readlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error}") from None
    comments = [line for line in lines if line.startswith("#")]
    about = {key.strip("# "): value.strip() for key, _, value in (line.partition(":") for line in comments)}
    return about, [line for line in lines if not line.startswith("#")]


def read(path: str | Path) -> tuple[dict[str, str], list[str], list[Row]]:
    """The comments by their keys, the columns, and the rows as text. Raises OSError and ValueError as `parts`."""
    about, lines = parts(path)
    reader = csv.DictReader(lines)
    return about, list(reader.fieldnames or ()), list(reader)


def timed(path: str | Path, rows: Iterable[Row]) -> Iterator[tuple[Row, Problem, Config]]:
    """The rows of status ok with a time, and what they measured. Raises ValueError for rows that are no trial's, and
    where there are no such."""
    found = False
    for i, row in enumerate(rows, 1):
        try:
            if row["status"] == "ok" and float(row["time_us"] or 0):
                yield row, *product(row)
                found = True
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"{path}: row {i} is not a trial's: {error}") from None
    if not found:
        raise ValueError(f"{path} has no row of status ok with a time")


def write(path: str | Path, about: dict[str, str], columns: list[str], rows: list[Row]) -> None:
    """The inverse of `read`."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        file.writelines(f"# {key}: {value}\n" for key, value in about.items())
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def product(row: Row) -> tuple[Problem, Config]:
    """What a row measured. Raises KeyError, ValueError or TypeError where it is not a trial's."""
    m, n, k, batch = (int(row[name]) for name in ("m", "n", "k", "batch"))
    given = {}
    for field in fields(Config):
        if row.get(field.name):  # later fields are missing in older files, and empty where they are ""
            text = row[field.name]
            if field.name == "order":
                given["order"] = orders.parse(text)
            elif field.type is str:
                given[field.name] = text
            else:  # as JSON has numbers and truth
                given[field.name] = json.loads(text.lower())
    return space.problem(m, n, k, batch=batch, dtype=row["dtype"], layout=row["layout"]), Config(**given)
