"""`tritonmm layout`."""

from pathlib import Path

import click

from tritonmm.cli import needs, values
from tritonmm.cli.values import Parsed


@click.command()
@click.argument("name", type=Parsed("layout", values.layout))
@click.option(
    "--tile", type=Parsed("tile", values.grid), default="8x64", help="Rows x columns that a swizzle is put on."
)
@click.option("--dtype", type=click.Choice(["f8", "f16", "bf16", "f32", "f64"]), default="f16", help="Of the tile.")
@click.option("--out", type=click.Path(path_type=Path), help="Draw it too, as PNG and SVG.")
def layout(name, tile, dtype, out) -> None:
    """Print a swizzle's banks and conflicts, or who holds what of a tensor-core instruction.

    NAME is "swizzle<3,3,3>", as CuTe spells Swizzle<B,M,S>, or an atom such as SM80_16x8x16_F16F16F16F16_TN.
    """
    from tritonmm.layouts import Swizzle, show

    if not isinstance(name, Swizzle):
        needs.refuse("tile", "dtype", why="it goes with a swizzle; an atom says it itself")
    try:
        shown = show.SwizzledTile(name, *tile, show.ELEM_BITS[dtype]) if isinstance(name, Swizzle) else name
        click.echo("\n".join(show.lines(shown)))
        for path in needs.plots("layouts").draw(shown, out) if out else ():
            click.echo(path)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
