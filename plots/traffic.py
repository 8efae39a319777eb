"""DRAM reads, L2 reads and hit rate against the swizzle factor: only together do they rank orders."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from tritonmm.plots import rows, style

PANELS = {"dram_read_bytes": "DRAM reads", "l2_read_bytes": "L2 reads", "hit_rate": "L2 hit rate"}


def draw(frame: pd.DataFrame, about: dict[str, str], path: str | Path) -> list[Path]:
    """Draw a results file (its table, its comment lines); returns the paths of PNG and SVG.

    Bytes are in GB (10^9). The hit rate alone would mislead: requests that are merged before L2 are
    not counted, so an order with fewer hits can be the better one.
    Raises ValueError for results that cannot be drawn: see `rows.ok`, `rows.by_factor`, `rows.caption`.
    """
    return style.save(figure(frame, about), path)


@style.styled
def figure(frame: pd.DataFrame, about: dict[str, str]) -> Figure:
    """The figure of `draw`: three axes, in each a line of gid "M = ..." for each problem."""
    drawn = rows.ok(frame, "time_us", *PANELS)
    lines = rows.by_factor(drawn)
    origin, rest = rows.caption(drawn, about, rows.traffic_column(drawn))
    sheet = style.sheet(6.6, f"Memory traffic and swizzle factor: {origin}", rest, style.configs(lines))
    panels = sheet.subplots(len(PANELS), sharex=True)
    for axes, (column, name) in zip(panels, PANELS.items(), strict=True):
        unit = 1.0 if column == "hit_rate" else 1e9
        for i, (label, part, _) in enumerate(lines):
            style.line(axes, i, len(lines), part.factor, part[column] / unit, label)
        if column == "hit_rate":
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        else:
            style.byte_axis(axes)
        axes.set_ylabel(name if column == "hit_rate" else f"{name} (GB)")
    style.factor_axis(panels[-1], [part.factor for _, part, _ in lines])
    sheet.align_ylabels(panels)
    style.key(panels[0])
    return sheet
