"""The file of a study: what was measured where in comments, then a row of CSV for each dataclass."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import click

from tritonmm.tuned import files


class Output(click.Path):
    """The option of a file to write. What cannot be written is refused before anything is measured."""

    def __init__(self):
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value, param, ctx):
        path = super().convert(value, param, ctx)
        try:
            files.check_writable(path)
        except OSError as error:
            self.fail(str(error), param, ctx)
        return path


def write_csv(path: Path, rows: Sequence, comments: Sequence[str]) -> None:
    """The rows, dataclasses of one kind and at least one, below the comments, lines that begin with "#"."""
    with files.written(path) as file:
        file.writelines(f"{comment}\n" for comment in comments)
        writer = csv.DictWriter(file, [field.name for field in fields(rows[0])], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, rows))
