"""`tritonmm demo`."""

import sys
from pathlib import Path

import click

from tritonmm.cli import needs


@click.command()
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default="demo-out", help="Folder for its files."
)
def demo(out) -> None:
    """The tour: a ragged product, a sweep of swizzle factors, the figures.

    On a GPU with real times, in less than a minute; without one in Triton's interpreter and with
    modelled times, in less than three.
    """
    source = needs.source(None, "burst")
    needs.plots()
    from tritonmm import tour

    sys.exit(tour.run(source, out))
