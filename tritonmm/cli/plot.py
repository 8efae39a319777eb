"""`tritonmm plot`."""

import json
import sys
from pathlib import Path

import click

from tritonmm.cli import needs

_END = """\b
Example:
  tritonmm plot sweep.csv --out figures
"""


@click.command(epilog=_END)
@click.argument("results", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=".", help="Folder for the figures.")
@click.option("--json", "as_json", is_flag=True, help="Print the files' names and the omitted figures as JSON.")
def plot(results, out, as_json) -> None:
    """Draw the results of a sweep.

    The figures are: hit rate, traffic and throughput over the swizzle factor; the orders compared; predicted and
    counted bytes; and the cost of idle programs. Each is written as PNG and SVG. A figure without data is omitted, with
    a message. Exits with 1 if all are.
    """
    plots = needs.plots()
    try:
        frame, about = plots.read_csv(results)
    except (ValueError, OSError) as error:
        raise click.ClickException(_line(error)) from None
    try:
        needs.plots("rows").ok(frame)  # every figure needs this
    except ValueError as error:
        raise click.ClickException(f"{results}: {_line(error)}") from None
    written, left_out = [], {}
    stem = Path(results.name.removesuffix(".gz")).stem
    for name in ("factors", "comparison", "validation", "overflow"):
        try:
            written += needs.plots(name).draw(frame, about, out / f"{stem}-{name}")
        except ValueError as error:
            left_out[name] = _line(error)
            click.echo(f"tritonmm: no {name} figure: {left_out[name]}", err=True)
    if as_json:
        click.echo(json.dumps({"files": list(map(str, written)), "left_out": left_out}, indent=2))
    else:
        click.echo("\n".join(map(str, written)), nl=bool(written))
    sys.exit(0 if written else 1)


def _line(error: Exception) -> str:
    """The message of an error in one line, whatever the file contains."""
    return " ".join(str(error).split())[:400]
