"""`tritonmm layout`."""

import json
from pathlib import Path

import click

from tritonmm.cli import needs, values
from tritonmm.cli.values import Parsed

_END = """\b
Examples:
  tritonmm layout "swizzle<3,3,3>" --tile 8x64 --dtype f16
  tritonmm layout SM80_16x8x16_F32BF16BF16F32_TN --out fragments
"""


@click.command(epilog=_END)
@click.argument("name", type=Parsed("layout", values.layout))
@click.option("--tile", type=Parsed("tile", values.tile), default="8x64", help="Rows x columns of elements.")
@click.option("--dtype", type=click.Choice(["f8", "f16", "bf16", "f32", "f64"]), default="f16", help="Of the tile.")
@click.option("--out", type=click.Path(path_type=Path), help="Draw it too, as PNG and SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print a swizzle's banks and conflicts as JSON.")
def layout(name, tile, dtype, out, as_json) -> None:
    """Print a swizzle's bank conflicts, or a tensor core's fragments.

    NAME is "swizzle<3,3,3>", as CuTe spells Swizzle<B,M,S>, or an atom such as SM80_16x8x16_F16F16F16F16_TN.
    """
    from tritonmm.layouts import Swizzle, show

    if not isinstance(name, Swizzle):
        needs.refuse("tile", "dtype", why="it goes with a swizzle; an atom has its own")
        if as_json:
            raise click.UsageError("--json: it goes with a swizzle; an atom's fragments are a table")
    try:
        shown = show.SwizzledTile(name, tile[0], tile[1], show.ELEM_BITS[dtype]) if isinstance(name, Swizzle) else name
        lines = show.lines(shown)
        drawn = needs.plots("layouts").draw(shown, out) if out else ()
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        worst = {
            along: {state: shown.worst(state == "swizzled", along).worst for state in ("plain", "swizzled")}
            for along in ("column", "row")
        }
        said = {"layout": str(name), "tile": tile, "dtype": dtype, "banks": shown.banks(swizzled=True).tolist()}
        click.echo(json.dumps(said | {"ways": worst, "files": list(map(str, drawn))}))
        return
    click.echo("\n".join(lines))
    for path in drawn:
        click.echo(path)
