"""A table of tuned problems: a JSON file for each GPU, written as a whole, and never trusted when it is read.

    {"schema": 5, "gpu": {"name": "h200", "arch": "sm_90", "sms": 132}, "rows": [
    {"problem": {"m": 4096, ...}, "config": {"kernel": "hopper", ...}, "us": 193.1,
     "tritonmm": "0.1.0", "triton": "3.6", "date": "2026-11-21", "torch_us": 196.4},
    ...]}

A row is a problem, its fastest config, the time of that config in microseconds, and the date and versions of the
measurement. torch_us is torch's time in the same measurement, if it was measured.
"""

import datetime
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tritonmm import user_files
from tritonmm.config import FORMER_FIELDS, Config
from tritonmm.gpu import Gpu
from tritonmm.orders import Order
from tritonmm.problem import Epilogue, Problem
from tritonmm.tuned import files

SCHEMA = 5
"""Version of the file format. A new field in `Problem` or `Config` needs a new version; older files are still read:
those of version 1 have no accumulation, those of 1 and 2 no symmetric products, those of 1 to 3 no groups, and
those of 1 to 4 no moduli."""

MAX_BYTES = 4 * 2**20
MAX_ROWS = 4096
"""Limits of a file. A larger file is not read, and the oldest rows are not written."""

MAX_SIZE = 2**31 - 1
MAX_PARAMETER = 2**20
MAX_TEXT = 64
"""Limits of a row: of the sizes of a problem, the numbers of a config, and the characters of a text."""


class TableError(ValueError):
    """A file that cannot be this GPU's table. The message names the file and the reason."""


class DamagedError(TableError):
    """A file with a table's name whose content is not a table."""


@dataclass(frozen=True, slots=True)
class Row:
    """The fastest config measured for a problem. Raises ValueError, naming the field, for impossible values.

    us: microseconds of one GEMM.
    tritonmm, triton: versions; Triton's as "3.6".
    date: ISO 8601, in UTC.
    torch_us: microseconds of torch's kernel in the same run; None if it was not measured.
    """

    problem: Problem
    config: Config
    us: float
    tritonmm: str
    triton: str
    date: str
    torch_us: float | None = None

    def __post_init__(self):
        for name in ("m", "n", "k", "batch"):
            if not 1 <= getattr(self.problem, name) <= MAX_SIZE:
                raise ValueError(f"problem: {name} must be from 1 to {MAX_SIZE}")
        for name, us in (("us", self.us), ("torch_us", 1.0 if self.torch_us is None else self.torch_us)):
            if type(us) not in (int, float) or not 0 < us < 1e12:
                raise ValueError(f"{name} must be a finite number above 0")
        if reason := self.config.symmetry_reason(self.problem):
            raise ValueError(f"config: {reason}")
        if not re.fullmatch(r"[\w.+-]{1,64}", self.tritonmm, re.ASCII):
            raise ValueError("tritonmm must be a version")
        if not re.fullmatch(r"\d{1,4}\.\d{1,4}", self.triton, re.ASCII):
            raise ValueError('triton must be a version such as "3.6"')
        datetime.date.fromisoformat(self.date)

    def to_json(self) -> str:
        """One line of JSON. Raises ValueError for a `Table` order, which has no spelling."""
        values = {name: getattr(self, name) for name in ("us", "tritonmm", "triton", "date")}
        if self.torch_us is not None:
            values["torch_us"] = self.torch_us
        return json.dumps({"problem": asdict(self.problem), "config": json.loads(self.config.to_json()), **values})

    @classmethod
    def of(cls, found: object) -> "Row":
        """The row of a parsed JSON object. Raises ValueError, naming the field, for anything else."""
        found = _object("row", found, cls)
        for name in ("tritonmm", "triton", "date"):
            _text(name, found.get(name))
        return cls(**found | {"problem": _problem(found.get("problem")), "config": _config(found.get("config"))})


def read(path: Path, gpu: Gpu) -> tuple[list[Row], list[str]]:
    """The valid rows of a file, and what is wrong with each of the others. A missing file has no rows.

    Raises TableError for a file that is another GPU's, too large, of a newer schema or unreadable, and DamagedError for
    content that is not a table.
    """
    try:
        content = user_files.content(path, MAX_BYTES)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise TableError(f"{path}: cannot be read: {error}") from error
    try:
        found = user_files.parsed(content)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: not a table: {user_files.line(error)}") from None
    if not isinstance(found, dict) or type(found.get("schema")) is not int or not isinstance(found.get("rows"), list):
        raise DamagedError(f"{path}: not a table: it must be an object with a schema and a list of rows")
    if found["schema"] > SCHEMA:
        raise TableError(f"{path}: written by a newer tritonmm; this one knows schema {SCHEMA}")
    if found.get("gpu") != user_files.named(gpu):
        raise TableError(f"{path}: not measured on {json.dumps(user_files.named(gpu))}")
    if len(found["rows"]) > MAX_ROWS:
        raise TableError(f"{path}: {len(found['rows'])} rows; at most {MAX_ROWS} are read")
    rows, wrong = [], []
    for i, row in enumerate(found["rows"], 1):
        try:
            rows.append(Row.of(row))
        except (ValueError, TypeError, OverflowError) as error:
            wrong.append(f"row {i}: {user_files.line(error)}")
    return rows, wrong


def write(path: Path, rows: Iterable[Row], gpu: Gpu) -> None:
    """Replaces the file in one step: a reader sees either the old rows or the new ones, even after a crash. Raises
    OSError."""
    lines = ",\n".join(row.to_json() for row in rows)
    head = json.dumps({"schema": SCHEMA, "gpu": user_files.named(gpu), "rows": []}).removesuffix("]}")
    with files.written(path) as file:
        file.write(f"{head}\n{lines}\n]}}\n")


def _typed(name: str, found: object, of: type, most: int) -> dict:
    """Checks that `found` has only fields of the dataclass `of`, integers up to `most` and texts (orders are texts)."""
    found = _object(name, found, of)
    for field in fields(of):
        if field.name in found:
            if field.type is int:
                _integer(field.name, found[field.name], int(field.default != 0), most)
            elif field.type in (str, Order):
                _text(field.name, found[field.name])
    return found


def _problem(found: object) -> Problem:
    found = _typed("problem", found, Problem, MAX_SIZE)
    epilogue = _object("epilogue", found.get("epilogue", {}), Epilogue)
    for name, value in epilogue.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false")
    return Problem(**found | {"epilogue": Epilogue(**epilogue)})


def _config(found: object) -> Config:
    if isinstance(found, dict):
        found = {FORMER_FIELDS.get(name, name): value for name, value in found.items()}
    found = _typed("config", found, Config, MAX_PARAMETER)
    return Config.from_json(json.dumps(found))


def _object(name: str, found: object, cls: type) -> dict[str, Any]:
    if not isinstance(found, dict) or set(found) - {field.name for field in fields(cls)}:
        raise ValueError(f"{name} must be an object with {', '.join(field.name for field in fields(cls))}")
    return found


def _integer(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be an integer from {least} to {most}")


def _text(name: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise ValueError(f"{name} must be a text of at most {MAX_TEXT} characters")
