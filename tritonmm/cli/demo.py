"""`tritonmm demo`."""

import sys
from pathlib import Path

import click

from tritonmm.cli import needs

_END = """\b
Examples:
  tritonmm demo
  tritonmm demo --out somewhere --json
"""


@click.command(epilog=_END)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default="demo-out", help="Folder for its files."
)
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON, and the text on stderr.")
def demo(out, as_json) -> None:
    """Show ragged GEMMs, a sweep of swizzle factors, and figures.

    On a GPU it takes about a minute and shows real times. Without one it runs in Triton's interpreter with modelled
    times, in less than three minutes. Exits with 1 if a result is wrong.
    """
    source = needs.source(None, "burst")
    needs.plots()
    from tritonmm.autotune.tuner.store import StoreError
    from tritonmm.cli import tour

    out.mkdir(parents=True, exist_ok=True)  # fails now if it cannot be created, not after a minute of work
    try:
        sys.exit(tour.run(source, out, as_json))
    except StoreError as error:
        raise click.ClickException(str(error)) from None
