"""`tritonmm order`."""

from pathlib import Path

import click

from tritonmm.cli import needs, values
from tritonmm.cli.values import Parsed


@click.command()
@click.argument("order", type=Parsed("order", values.order))
@click.option("--grid", type=Parsed("grid", values.grid), default="8x8", help="Rows x columns of tiles.")
@click.option("--png", type=click.Path(path_type=Path), help="Draw it too, as PNG and SVG.")
def order(order, grid, png) -> None:
    """Print when each tile of a grid is visited: order swizzle-merge:3 --grid 8x5."""
    when = {tile: i for i, tile in enumerate(map(tuple, order.visit(*grid).tolist()))}
    width = len(str(max(when.values())))
    for m in range(grid[0]):
        click.echo(" ".join(f"{when[m, n]:{width}}" for n in range(grid[1])))
    overflow = order.launched(*grid) - grid[0] * grid[1]
    click.echo(f"{order} on {grid[0]} x {grid[1]} tiles: {order.launched(*grid)} programs, {overflow} of them overflow")
    if png:
        visit = needs.plots("visit")
        for path in visit.draw([order], *grid, png):
            click.echo(path)
