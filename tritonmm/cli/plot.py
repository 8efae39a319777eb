"""`tritonmm plot`."""

import sys
from pathlib import Path

import click

from tritonmm.cli import needs


@click.command()
@click.argument("results", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=".", help="Folder for the figures.")
def plot(results, out) -> None:
    """Draw the results of a sweep: plot sweep.csv --out figures.

    Hit rate, traffic and throughput against the swizzle factor, the orders compared, the model against
    the counters, and the cost of overflow, each as PNG and SVG. What the results have no data for is
    left out, and said.
    """
    plots = needs.plots()
    try:
        frame, about = plots.read_csv(results)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    written = []
    for name in ("factors", "comparison", "validation", "overflow"):
        try:
            written += needs.plots(name).draw(frame, about, out / f"{results.stem}-{name}")
        except ValueError as error:
            click.echo(f"tritonmm: no {name} figure: {error}", err=True)
    for path in written:
        click.echo(path)
    sys.exit(0 if written else 1)
