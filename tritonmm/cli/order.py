"""`tritonmm order`."""

import json
from pathlib import Path

import click

from tritonmm.cli import needs, values
from tritonmm.cli.values import Parsed

_END = """\b
Examples:
  tritonmm order swizzle-merge:3 --grid 8x5
  tritonmm order hilbert --grid 16x16 --png hilbert.png
"""


@click.command(epilog=_END)
@click.argument("order", type=Parsed("order", values.order))
@click.option("--grid", type=Parsed("grid", values.grid), default="8x8", help="Rows x columns of tiles.")
@click.option("--png", type=click.Path(path_type=Path), help="Draw it too, as PNG and SVG.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a tile [m, n] for each program as JSON, null for an idle one."
)
def order(order, grid, png, as_json) -> None:
    """Print the launch index of each tile of a grid.

    ORDER is row-major, column-major, split-merge:8, swizzle-merge:8 or :16,8, serpentine:8, triangular:8, morton or
    hilbert. With @n, as in swizzle-merge:8@n, columns are grouped instead of rows. triangular:8@2x1 is for tiles twice
    as high as wide. dies:8/swizzle-merge:4 divides an order among 8 dies, and dies:8,16/... in ranges of 16 tiles.
    groups/ORDER is for grouped GEMMs: ORDER in the grid of each group.
    """
    try:
        launched = order.launched(*grid)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if launched > values.MOST_TILES:
        raise click.UsageError(f"{order} launches {launched} programs there; at most {values.MOST_TILES} are shown")
    visited = list(map(tuple, order.visit(*grid).tolist()))
    overflow = visited.count((-1, -1))
    try:
        drawn = needs.plots("visit").draw([order], *grid, png) if png else ()
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        tiles = [[m, n] if m >= 0 else None for m, n in visited]
        said = {"order": str(order), "grid": grid, "launched": launched, "overflow": overflow, "tiles": tiles}
        click.echo(json.dumps(said | {"files": list(map(str, drawn))}))
        return
    when = {tile: i for i, tile in enumerate(visited)}
    width = len(str(max(when.values())))
    for m in range(grid[0]):
        click.echo(" ".join(f"{when.get((m, n), '-'):>{width}}" for n in range(grid[1])))
    programs = "1 program" if launched == 1 else f"{launched} programs"
    click.echo(f"{order} on {grid[0]} x {grid[1]} tiles: {programs}, {overflow} of them idle")
    for path in drawn:
        click.echo(path)
