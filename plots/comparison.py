"""The orders against row-major, each at its best factor: time, and bytes read from DRAM."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tritonmm.orders import RowMajor, SwizzleMerge, parse
from tritonmm.plots import rows, style

_COLOURS = {  # Okabe and Ito's, by the order's name whatever its factors
    "swizzle-merge": "#0072b2",
    "split-merge": "#d55e00",
    "serpentine": "#009e73",
    "hilbert": "#cc79a7",
    "morton": "#e69f00",
    "column-major": "#56b4e9",
}


def draw(frame: pd.DataFrame, about: dict[str, str], path: str | Path) -> list[Path]:
    """Draw a results file (its table, its comment lines); returns the paths of PNG and SVG.

    Each order stands with its fastest row, whatever the config; so does row-major, to which it is
    compared. The second panel is left out where no row has dram_read_bytes.
    Raises ValueError for results that cannot be drawn, see `rows.ok` and `rows.caption`, and where no
    problem has a row of row-major and one of another order.
    """
    return style.save(figure(frame, about), path)


@style.styled
def figure(frame: pd.DataFrame, about: dict[str, str]) -> Figure:
    """The figure of `draw`: in each axes a scatter of gid "dots", top to bottom as `best` has the rows."""
    drawn = rows.ok(frame, "time_us")
    table = best(drawn)
    origin, rest = rows.caption(drawn, about)
    panels = {"time": "time, row-major = 1 (less is better)"}
    if table.dram.notna().any():
        panels["dram"] = f"DRAM reads {rows.origin(drawn, rows.traffic_column(drawn))}, row-major = 1"
    labels = list(dict.fromkeys(table.label))
    at = [i + 1.6 * labels.index(label) for i, label in enumerate(table.label)]  # a heading above each problem
    colours = [_COLOURS.get(parse(text).name, style.INK) for text in table.order]
    note = "Each order at its fastest factor and config; the dotted line is row-major's fastest."
    without = sorted({label for label, _ in rows.problems(drawn)} - set(labels))
    if without:
        note += f" Without a row of row-major: {', '.join(without)}."

    sheet = style.sheet(0.165 * (at[-1] + 2.5) + 0.55, f"Orders against row-major: {origin}", rest, note)
    for axes, (column, name) in zip(
        sheet.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items(), strict=True
    ):
        axes.axvline(1, color=style.MUTED, lw=1, ls=":")
        axes.hlines(at, 1, table[column], colors=colours, lw=2)
        axes.scatter(table[column], at, c=colours, s=34, zorder=3, gid="dots")
        axes.update_datalim([(0.96, at[0]), (1.04, at[0])])  # differences within the noise should look small
        axes.autoscale_view(scaley=False)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))  # 1.0 is a tick
        axes.set_xlabel(name)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    first = sheet.axes[0]
    first.set_yticks(at, labels=table.order, size=8, color=style.INK)
    first.set_ylim(at[-1] + 0.7, -1.8)
    for label in labels:
        top = at[list(table.label).index(label)]
        for axes in sheet.axes:
            axes.axhline(top - 1.7, color=style.FAINT, lw=0.8)
        first.annotate(
            label,
            (0, top - 1.1),
            (4, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            size=8.5,
            weight="bold",
        )
    return sheet


def best(drawn: pd.DataFrame) -> pd.DataFrame:
    """A row for each problem and order: label, family, order, and time and dram relative to row-major's.

    A family is an order whatever its factor, as long as there are as many and along the same axis.
    """
    found = []
    for label, group in rows.problems(drawn):
        group = group.assign(family=[_family(text) for text in group.order]).sort_values("time_us", kind="stable")
        fastest = group.drop_duplicates("family").set_index("family")
        if "row-major" not in fastest.index or len(fastest) == 1:
            continue
        reference = fastest.loc["row-major"]
        for family, row in fastest.drop("row-major").iterrows():
            dram = row.get("dram_read_bytes", float("nan")) / reference.get("dram_read_bytes", float("nan"))
            found.append((label, family, row.order, row.time_us / reference.time_us, dram))
    if not found:
        raise ValueError("no problem has an ok row of row-major and one of another order to compare with it")
    return pd.DataFrame(found, columns=["label", "family", "order", "time", "dram"])


def _family(text: str) -> str:
    order = parse(text)
    if order in (RowMajor(), SwizzleMerge(1)):
        return RowMajor.name
    return f"{order.name}{'@n' if order.along == 'n' else ''}{' of two' if len(order.factors) > 1 else ''}"
