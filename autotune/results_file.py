"""Results files, as the store writes them: lines `# key: value`, then CSV with a row a trial."""

import csv
import json
from dataclasses import fields
from pathlib import Path

from tritonmm import orders
from tritonmm.autotune import space
from tritonmm.config import Config
from tritonmm.problem import Problem

Row = dict[str, str]


def read(path: str | Path) -> tuple[dict[str, str], list[str], list[Row]]:
    """The comments by their keys, the columns, and the rows as text. Raises OSError and UnicodeDecodeError."""
    with open(path, newline="", encoding="utf-8") as file:
        lines = file.readlines()
    comments = [line for line in lines if line.startswith("#")]
    about = {key.strip("# "): value.strip() for key, _, value in (line.partition(":") for line in comments)}
    reader = csv.DictReader(line for line in lines if not line.startswith("#"))
    return about, list(reader.fieldnames or ()), list(reader)


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
