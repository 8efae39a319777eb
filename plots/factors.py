"""L2 hit rate, DRAM reads, L2 reads and throughput over the swizzle factor, measured and predicted, in one figure."""

import itertools
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from tritonmm.plots import model, rows, style

PANELS = {
    "hit_rate": "L2 hit rate",
    "dram_read_bytes": "DRAM reads",
    "l2_read_bytes": "L2 reads",
    "tflops": "TFLOP/s",
}
"""Names of the rows of panels, by column."""

MOST_PROBLEMS = 4
"""Columns of a figure; more would be too narrow to read."""

_LEGEND = ("measured", "predicted", "torch", "fastest measured", "fastest predicted")
_MEASURED, _PREDICTED = "#0077bb", "#ee7733"  # Paul Tol's vibrant


def draw(frame: pd.DataFrame, about: dict[str, str], path: str | Path) -> list[Path]:
    """Draws a results file, given as its table and its comment lines. Returns the paths of PNG and SVG.

    There is a column of panels for each of `MOST_PROBLEMS` problems: those with the most counted factors and, among
    these, the largest; half of them with an M that the tile does not divide, if there are such. Measured values are
    counters and times of a GPU; predictions are the model's present ones, whatever the file has. Without counters, or
    for a GPU that the model does not know, only the other half is drawn, and the subtitle says so.

    Raises ValueError for results that cannot be drawn: see `rows.ok`, `rows.by_factor`, `rows.caption`.
    """
    return style.save(figure(frame, about), path)


@style.styled
def figure(frame: pd.DataFrame, about: dict[str, str]) -> Figure:
    """The figure of `draw`: a row of axes for each of `PANELS` with a value.

    Lines have the gids "measured", "predicted" and "torch"; vertical lines "fastest measured" and "fastest predicted".
    """
    drawn = rows.ok(frame, "time_us", "tflops")
    every = rows.by_factor(drawn)
    chosen = _chosen(every)
    drawn = pd.concat([group for label, group in rows.problems(drawn) if label in chosen])
    lines = [(label, _values(part, about), config) for label, part, config in rows.by_factor(drawn)]
    whole = pd.concat([part for _, part, _ in lines])
    panels = {name: PANELS[name] for name in PANELS if whole[[name, f"predicted_{name}"]].notna().any(axis=None)}
    if not panels:
        raise ValueError(f"nothing was measured, and the model does not know {about.get('gpu', 'an unnamed GPU')}")

    origin, rest = rows.caption(drawn, about)
    if whole[[*PANELS][:3]].isna().all(axis=None):
        rest += "; no counters: the traffic is predicted"
    if whole.predicted_tflops.isna().all():
        rest += "; nothing predicted: the model does not know this GPU"
    note = style.configs(lines)
    if len(every) > len(lines):
        note += f"\n{len(lines)} of the file's {len(every)} problems."
    if whole.tflops.notna().any() and whole.predicted_tflops.notna().any():
        origin += f" and predicted{model.unverified(about)}"
    sheet = style.sheet(1.5 * len(panels) + 0.8, f"L2 and swizzle factor: {origin}", rest, note, legend=True)
    grid = sheet.subplots(len(panels), len(lines), sharex="col", squeeze=False)
    units = {
        name: style.byte_unit(whole[[name, f"predicted_{name}"]].max(axis=None)) for name in panels if _is_bytes(name)
    }
    for column, (label, part, _) in enumerate(lines):
        for axes, name in zip(grid[:, column], panels, strict=True):
            _panel(axes, part, name, units[name][1] if name in units else 1)
        tiles = -(-part.m.iloc[0] // part.block_m.iloc[0]), -(-part.n.iloc[0] // part.block_n.iloc[0])
        ragged = ", M ragged" if _ragged(part) else ""
        title = f"{textwrap.fill(label, 30 if len(lines) > 2 else 60)}\n{tiles[0]} x {tiles[1]} tiles{ragged}"
        grid[0, column].set_title(title, size=8.5, loc="left")
        style.factor_axis(grid[-1, column], part.factor, style.WIDTH / len(lines))
    for line, (name, said) in zip(grid, panels.items(), strict=True):
        line[0].set_ylabel(f"{said} ({units[name][0]})" if name in units else said)
        _scale(line, name)
    sheet.align_ylabels(grid[:, 0])
    found = {each.get_gid(): each for axes in grid.flat for each in axes.lines}
    style.legend(sheet, {name: found[name] for name in _LEGEND if name in found})
    return sheet


def _chosen(lines) -> set[str]:
    """The labels of the problems that are drawn."""

    def rank(each):
        part = each[1]
        counted = part.counted_dram_read_bytes.notna().sum() if "counted_dram_read_bytes" in part else 0
        return -counted, -part.m.iloc[0]

    ranked = sorted(lines, key=rank)
    ragged, whole = ([each for each in ranked if _ragged(each[1]) == wanted] for wanted in (True, False))
    alternating = itertools.chain.from_iterable(itertools.zip_longest(ragged, whole))
    return {each[0] for each in itertools.islice(filter(None, alternating), MOST_PROBLEMS)}


def _ragged(part: pd.DataFrame) -> bool:
    return part.m.iloc[0] % part.block_m.iloc[0] != 0


def _is_bytes(name: str) -> bool:
    return name.endswith("bytes")


def _values(part: pd.DataFrame, about: dict[str, str]) -> pd.DataFrame:
    """The rows with each of `PANELS` as measured and, with the prefix `predicted_`, as predicted; and torch_tflops."""
    part = model.with_predictions(part, about)
    flops = part.tflops * part.time_us
    measured = {name: part.get(f"counted_{name}", float("nan")) for name in [*PANELS][:3]}
    if set(part.source) == {"model"}:
        measured |= {"tflops": float("nan")}
    torch = flops / part.torch_us if "torch_us" in part else float("nan")
    return part.assign(predicted_tflops=flops / part.predicted_us, torch_tflops=torch, **measured)


def _panel(axes, part: pd.DataFrame, name: str, unit: float) -> None:
    for which, colour in (("", _MEASURED), ("predicted_", _PREDICTED)):
        speed = part[f"{which}tflops"]
        said = "predicted" if which else "measured"
        if speed.notna().any():
            fastest = part.factor[speed.idxmax()]
            axes.axvline(fastest, color=colour, alpha=0.22, lw=6, zorder=0, gid=f"fastest {said}")
        shown = part.dropna(subset=which + name)
        if len(shown):
            look = {"ls": "--", "marker": "x", "lw": 1.2} if which else {"ls": "-", "marker": "o"}
            axes.plot(shown.factor, shown[which + name] / unit, color=colour, ms=4, gid=said, clip_on=False, **look)
    if name == "tflops" and part.torch_tflops.notna().any():
        axes.plot(part.factor, part.torch_tflops, ":", color=style.INK, gid="torch")


def _scale(line, name: str) -> None:
    """Sets the y axes of a row of panels: for bytes from zero and independent, for other values all alike."""
    drawn = ("measured", "predicted", "torch")
    values = [[y for each in axes.lines if each.get_gid() in drawn for y in each.get_ydata()] for axes in line]
    if _is_bytes(name):
        for axes, own in zip(line, values, strict=True):
            style.byte_axis(axes, own)
        return
    low, high = np.nanmin(np.concatenate(values)), np.nanmax(np.concatenate(values))
    margin = 0.06 * (high - low) or 0.06 * high
    for axes in line:
        axes.set_ylim(*((0, 1) if name == "hit_rate" else (low - margin, high + margin)))
        if name == "hit_rate":
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.tick_params(labelleft=axes is line[0])
