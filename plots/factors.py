"""Throughput against the swizzle factor, a line for each M, beside torch's."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from tritonmm.plots import rows, style


def draw(frame: pd.DataFrame, about: dict[str, str], path: str | Path) -> list[Path]:
    """Draw a results file (its table, its comment lines); returns the paths of PNG and SVG.

    torch's throughput, from torch_us of the same row, is dashed; it is left out where there is none.
    Raises ValueError for results that cannot be drawn: see `rows.ok`, `rows.by_factor`, `rows.caption`.
    """
    return style.save(figure(frame, about), path)


@style.styled
def figure(frame: pd.DataFrame, about: dict[str, str]) -> Figure:
    """The figure of `draw`: lines of gid "M = ..." and "torch, M = ..."."""
    drawn = rows.ok(frame, "time_us", "tflops")
    lines = rows.by_factor(drawn)
    torch = "torch_us" in drawn and any(part.torch_us.notna().any() for _, part, _ in lines)
    origin, rest = rows.caption(drawn, about)
    sheet = style.sheet(4.4, f"Throughput and swizzle factor: {origin}", rest, style.configs(lines))
    axes = sheet.subplots()
    for i, (label, part, _) in enumerate(lines):
        line = style.line(axes, i, len(lines), part.factor, part.tflops, label)
        if torch:
            paired = part.dropna(subset="torch_us")
            reference = paired.tflops * paired.time_us / paired.torch_us
            axes.plot(paired.factor, reference, "--", color=line.get_color(), lw=1.1, marker="_", gid=f"torch, {label}")
    style.factor_axis(axes, [part.factor for _, part, _ in lines])
    axes.set_ylabel("TFLOP/s")
    axes.margins(y=0.08)
    style.key(axes, "torch, paired" if torch else "")
    return sheet
