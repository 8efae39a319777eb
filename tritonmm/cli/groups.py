"""Options of grouped GEMMs, which the commands that measure share."""

import click

from tritonmm.cli import needs, values
from tritonmm.cli.values import Parsed

_OPTIONS = (
    click.option("--groups", type=Parsed("count", values.size), help="Number of groups, for a grouped GEMM."),
    click.option("--ragged", type=click.Choice(["m", "k"]), default="m", help="What --groups divide: rows of A, or K."),
)


def options(command):
    """Adds --groups and --ragged to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def fields(groups: int | None, ragged: str) -> dict:
    """The fields of `Problem` that the options say. Without --groups there are none, and --ragged and --sizes are
    refused."""
    if groups is None:
        needs.refuse("ragged", "sizes", why="it goes with --groups")
        return {}
    return {"ragged": ragged, "groups": groups}


def sized(problem, distribution: str):
    """The grouped problem with the sizes of a distribution."""
    from tritonmm.autotune.measuring.group_sizes import sizes_of
    from tritonmm.model import groups

    return groups.sized(problem, sizes_of(problem, distribution))
