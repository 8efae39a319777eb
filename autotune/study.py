"""The file of a study: what was measured where in comments, then a row of CSV for each dataclass."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path


def write_csv(path: Path, rows: Sequence, comments: Sequence[str]) -> None:
    """The rows, dataclasses of one kind and at least one, below the comments, lines that begin with "#"."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        file.writelines(f"{comment}\n" for comment in comments)
        writer = csv.DictWriter(file, [field.name for field in fields(rows[0])], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, rows))
