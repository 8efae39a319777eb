"""The model's bytes compared with the bytes that the hardware counted."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from tritonmm.plots import families, model, rows, style

PANELS = {"dram_read_bytes": "DRAM reads", "l2_read_bytes": "L2 reads"}
BAND = 0.1
"""Relative error that the grey band shows."""

_MARKERS = "os^DvPX<>p"


def draw(frame: pd.DataFrame, about: dict[str, str], path: str | Path) -> list[Path]:
    """Draws the counted rows of a results file, given as its table and its comment lines. Returns the paths of PNG and
    SVG.

    Predictions are the model's present ones. Raises ValueError if nothing was counted, for a GPU that the model does
    not know, and for results that cannot be drawn: see `rows.ok` and `rows.caption`.
    """
    return style.save(figure(frame, about), path)


@style.styled
def figure(frame: pd.DataFrame, about: dict[str, str]) -> Figure:
    """The figure of `draw`. Each axes has markers of gid "family, kernel and tile" for each family and kernel."""
    drawn = model.with_predictions(rows.ok(frame, *(f"counted_{name}" for name in PANELS)), about)
    if drawn.predicted_dram_read_bytes.isna().all():
        raise ValueError(f"the model does not know {about.get('gpu', 'an unnamed GPU')}")
    drawn = drawn.assign(
        family=[families.family(text) for text in drawn.order],
        tile=[f"{row.kernel} {row.block_m}x{row.block_n}" for row in drawn.itertuples()],
    )
    tiles = sorted(set(drawn.tile))
    _, rest = rows.caption(
        drawn, {name: text for name, text in about.items() if name != "regime"}
    )  # counters have no regime
    shapes = len(drawn.groupby(["m", "n", "k"]))
    note = f"{style.count(len(drawn), 'config')} of {style.count(shapes, 'shape')}."
    note += f" The band: an error of {BAND:.0%}. p95: 95% of the errors are less."
    sheet = style.sheet(4.1, f"Bytes, predicted against counted: {about['gpu']}", rest, note)
    columns = [f"{whose}_{name}" for whose in ("counted", "predicted") for name in PANELS]
    unit, size = style.byte_unit(drawn[columns].max(axis=None))
    for axes, (name, said) in zip(sheet.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for (family, tile), part in drawn.groupby(["family", "tile"], sort=False):
            axes.plot(
                part[f"counted_{name}"] / size, part[f"predicted_{name}"] / size, ls="", alpha=0.75, mec="none",
                marker=_MARKERS[tiles.index(tile) % len(_MARKERS)], ms=4.5, color=families.colour(family),
                gid=f"{family}, {tile}",
            )  # fmt: skip
        error = errors(drawn, name)
        axes.set_title(f"{said}: median {error.median():.1%}, p95 {error.quantile(0.95):.1%}", size=9.5, loc="left")
        _square(axes)
        axes.set_xlabel(f"counted ({unit})")
    sheet.axes[0].set_ylabel(f"predicted ({unit})")
    present = [name for name in families.COLOURS if name in {each.removesuffix("@n") for each in drawn.family}]
    handles = [Line2D([], [], ls="", marker="s", color=families.colour(name), label=name) for name in present]
    handles += [
        Line2D([], [], ls="", marker=_MARKERS[i % len(_MARKERS)], color=style.MUTED, label=tile)
        for i, tile in enumerate(tiles)
    ]
    sheet.axes[-1].legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), fontsize=8, handletextpad=0.2)
    return sheet


def errors(drawn: pd.DataFrame, name: str) -> pd.Series:
    """Absolute relative errors of the predictions of a column. drawn: as `model.with_predictions` returns it."""
    return (drawn[f"predicted_{name}"] / drawn[f"counted_{name}"] - 1).abs()


def _square(axes) -> None:
    """Equal logarithmic axes, with the identity and the band."""
    values = np.concatenate([each.get_xydata().ravel() for each in axes.lines])
    ends = np.array((values.min() / 1.25, values.max() * 1.25))
    axes.fill_between(ends, ends * (1 - BAND), ends * (1 + BAND), color=style.FAINT, lw=0, zorder=0)
    axes.plot(ends, ends, color=style.MUTED, lw=0.8, zorder=1)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
