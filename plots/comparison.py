"""Kinds of orders compared with the best single factor: time, and bytes read from DRAM."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from tritonmm.plots import families, model, rows, style

_MARKERS = "osD^vPX<>p"
_SPREAD = 0.66  # fraction of the space between two families over which their problems are spread


def draw(frame: pd.DataFrame, about: dict[str, str], path: str | Path) -> list[Path]:
    """Draws a results file, given as its table and its comment lines. Returns the paths of PNG and SVG.

    Each family of orders is shown with its fastest factor, relative to the fastest single factor of swizzle-merge, in
    the config that ran most families. DRAM reads are counted values if all of a problem were counted; else they are the
    model's present predictions, for a GPU that it knows.

    Raises ValueError for results that cannot be drawn, see `rows.ok` and `rows.caption`, and if no problem has a row of
    swizzle-merge with one factor and one of another family.
    """
    return style.save(figure(frame, about), path)


@style.styled
def figure(frame: pd.DataFrame, about: dict[str, str]) -> Figure:
    """The figure of `draw`. Each axes has a line of markers for each problem; its gid is the problem's label."""
    drawn = rows.ok(frame, "time_us")
    table = best(model.with_predictions(drawn, about))
    labels = list(dict.fromkeys(table.label))
    names = [name for name in [*families.COLOURS, *dict.fromkeys(table.family)] if name in set(table.family)]
    names = [name for name in dict.fromkeys(names) if name != "grouped"]
    origin, rest = rows.caption(drawn, about)
    panels = {"time": "time (less is better)"}
    if table.dram.notna().any():
        said = {(True,): "counted", (False,): "predicted", (False, True): "counted, or predicted (hollow)"}
        panels["dram"] = f"DRAM reads, {said[tuple(sorted(set(table.counted)))]}"
        if not table.counted.all():
            panels["dram"] += model.unverified(about)
    tried = table.groupby("family").tried.min()
    more = " or more" if table.tried[table.family == "grouped"].max() > tried["grouped"] else ""
    fastest = (
        f"fastest of {tried['grouped']}{more} single factors" if tried["grouped"] > 1 or more else "one single factor"
    )
    note = f"1, the dotted line: the {fastest} of swizzle-merge, in the same config."
    note += " In brackets: how many orders of the family were run; the fastest is shown."
    alone = len(rows.problems(drawn)) - len(labels)
    if alone:
        note += f" Of the results {style.count(alone, 'problem')} had nothing to compare."
    note += "\n" + style.configs((label, None, config) for label, config in zip(table.label, table.config, strict=True))

    height = max(0.46 * len(names) + 0.9, 0.2 * len(labels) + 0.5)
    sheet = style.sheet(height, f"Orders against the best single factor: {origin}", rest, note)
    for axes, (column, name) in zip(
        sheet.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items(), strict=True
    ):
        axes.axvline(1, color=style.MUTED, lw=1, ls=":")
        for i, label in enumerate(labels):
            part = table[(table.label == label) & (table.family != "grouped")]
            shift = _SPREAD * (i / max(len(labels) - 1, 1) - 0.5)
            colour = colormaps["viridis"](0.88 * i / max(len(labels) - 1, 1))
            hollow = column == "dram" and not part.counted.all()
            axes.plot(
                part[column], [names.index(family) + shift for family in part.family], ls="", gid=label, color=colour,
                marker=_MARKERS[i % len(_MARKERS)], ms=5, mfc="white" if hollow else colour,
            )  # fmt: skip
        _scale(axes, table[column])
        axes.set_xlabel(name)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        for between in np.arange(len(names) - 1) + 0.5:
            axes.axhline(between, color=style.FAINT, lw=0.8)
    first = sheet.axes[0]
    first.set_yticks(range(len(names)), labels=[f"{name} ({tried[name]})" for name in names], color=style.INK)
    first.set_ylim(len(names) - 0.5, -0.5)
    handles = [
        Line2D([], [], ls="", marker=line.get_marker(), color=line.get_color(), label=line.get_gid())
        for line in first.lines
        if line.get_gid()
    ]
    sheet.axes[-1].legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), fontsize=8, handletextpad=0.2)
    return sheet


def best(drawn: pd.DataFrame) -> pd.DataFrame:
    """A row for each problem and family: label, config, family, order, tried, time, dram, counted.

    drawn: as `model.with_predictions` returns it.

    tried: how many orders of the family were run. time, dram: relative to the family "grouped". counted: whether dram
        was counted. Problems with only one other family are left out if other problems have more.
    """
    drawn = drawn.assign(family=[families.family(text) for text in drawn.order])
    alike = [_alike(group) for _, group in rows.problems(drawn)]
    having = {len(set(group.family)) for group in alike if "grouped" in set(group.family)}
    if max(having, default=1) == 1:
        raise ValueError("no problem has an ok row of swizzle-merge with one factor above 1 and one of another order")
    least = min(3, max(having))
    alike = [group for group in alike if "grouped" in set(group.family) and len(set(group.family)) >= least]
    found = []
    for label, group in rows.problems(pd.concat(alike)):
        fastest = group.drop_duplicates("family").set_index("family")
        counted = "counted_dram_read_bytes" in fastest and bool(fastest.counted_dram_read_bytes.notna().all())
        dram = fastest["counted_dram_read_bytes" if counted else "predicted_dram_read_bytes"]
        reference, config = fastest.loc["grouped"], rows.config_text(group.iloc[0])
        for family, row in fastest.iterrows():
            tried = group[group.family == family].order.nunique()
            relative = row.time_us / reference.time_us, dram[family] / dram["grouped"]
            found.append((label, config, family, row.order, tried, *relative, counted))
    names = ["label", "config", "family", "order", "tried", "time", "dram", "counted"]
    return pd.DataFrame(found, columns=names)


def _alike(group: pd.DataFrame) -> pd.DataFrame:
    """A problem's rows of one config, the fastest first: the config that ran the family "grouped" and most others."""
    group = group.sort_values("time_us", kind="stable")
    configs = [each for _, each in group.groupby([*rows.CONFIG, *rows.LATER], dropna=False, sort=False)]
    return max(configs, key=lambda each: ("grouped" in set(each.family), each.family.nunique()))


def _scale(axes, values) -> None:
    """A linear axis of at least 0.96 to 1.04, so that noise looks small; logarithmic for values above 2."""
    if values.max() > 2 and values.min() > 0:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator([0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8, 12, 16]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        return
    axes.update_datalim([(0.96, 0), (1.04, 0)])
    axes.autoscale_view(scaley=False)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))  # 1.0 is a tick
