"""The file of a study: comments about the environment, then CSV with a row for each dataclass."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path

import click

from tritonmm.autotune.measuring.counters import Counted
from tritonmm.autotune.measuring.environment import comments_of
from tritonmm.model.l2 import Traffic
from tritonmm.tuned import files


class Output(click.Path):
    """An option that names a file to write. An unwritable file is refused before anything is measured."""

    def __init__(self):
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value, param, ctx):
        path = super().convert(value, param, ctx)
        try:
            files.check_writable(path)
        except OSError as error:
            self.fail(str(error), param, ctx)
        return path


def megabytes(counted: Counted, model: Traffic) -> list[float]:
    """Bytes that were counted and those of the model, in turns: read from DRAM, written to it, and read from L2."""
    pairs = (
        (counted.dram_read_bytes, model.dram_read_bytes),
        (counted.dram_write_bytes, model.dram_write_bytes),
        (counted.l2_read_bytes, model.l2_read_bytes),
    )
    return [round(x / 1e6, 1) for pair in pairs for x in pair]


def write_each(path: Path, rows: Iterable, about: Mapping[str, str]) -> None:
    """Prints each row as it is measured, and writes all so far: they are kept if this ends early."""
    done = []
    for row in rows:
        click.echo(row)
        done.append(row)
        write_csv(path, done, comments_of(about))


def write_csv(path: Path, rows: Sequence, comments: Sequence[str]) -> None:
    """Writes the comments, lines that begin with "#", then the rows: at least one, all of one dataclass."""
    with files.written(path) as file:
        file.writelines(f"{comment}\n" for comment in comments)
        writer = csv.DictWriter(file, [field.name for field in fields(rows[0])], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, rows))
