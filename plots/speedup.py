"""Speed-up over torch (cuBLAS) by family of GEMMs: a dot for each GEMM, a bar for the geometric mean."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from tritonmm.autotune.measuring import results_file
from tritonmm.plots import style

OURS, SLOWER = "#0077bb", style.RED

TICKS = (0.7, 0.8, 0.9, 1, 1.25, 1.5, 2, 3, 4, 6, 8)


def ratios(path: str | Path, regime: str = "burst") -> dict[str, list[float]]:
    """torch's time over ours for each row of a file of `tritonmm bench`, by family. Raises ValueError for other
    files."""
    _, columns, rows = results_file.read(path)
    if missing := [name for name in ("family", "regime", "ratio") if name not in columns]:
        raise ValueError(f"{path} is not a file of `tritonmm bench --csv`: it has no column {', '.join(missing)}")
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["regime"] == regime and row["ratio"]:
            found.setdefault(row["family"], []).append(float(row["ratio"]))
    return found


def draw(groups: Mapping[str, Mapping[str, Sequence[float]]], subtitle: str, path: str | Path) -> list[Path]:
    """Draws groups of families, each with a list of speed-ups. Returns the paths of PNG and SVG."""
    return style.save(figure(groups, subtitle), path)


@style.styled
def figure(groups: Mapping[str, Mapping[str, Sequence[float]]], subtitle: str) -> Figure:
    """A panel for each group, a line for each family, on one logarithmic axis. Raises ValueError for a family without
    values."""
    for group, families in groups.items():
        if not families or not all(families.values()):
            raise ValueError(f"the group {group!r} has a family without speed-ups")
    counts = [len(families) for families in groups.values()]
    sheet = style.sheet(
        0.25 * sum(counts) + 0.35 * len(counts) + 0.3,
        "Speed-up over torch (cuBLAS 13)",
        subtitle,
        "A dot: one GEMM, torch's time over tritonmm's, paired in one process. A bar: the geometric mean. Right of 1 "
        "tritonmm is faster.",
    )
    panels = sheet.subplots(len(groups), 1, sharex=True, squeeze=False, height_ratios=counts)[:, 0]
    every = [ratio for families in groups.values() for ratios in families.values() for ratio in ratios]
    for axes, (group, families) in zip(panels, groups.items(), strict=True):
        for line, (family, values) in enumerate(families.items()):
            mean = math.exp(math.fsum(map(math.log, values)) / len(values))
            axes.barh(line, mean - 1, left=1, height=0.62, color=OURS if mean >= 1 else SLOWER, alpha=0.35, gid=family)
            axes.plot(values, [line] * len(values), "o", color=OURS, ms=3.2, alpha=0.75, mew=0)
            axes.text(
                1.005, line, f"{mean:.2f}", transform=axes.get_yaxis_transform(), va="center", size=8.5,
                weight="bold", color=style.INK,
            )  # fmt: skip
        axes.axvline(1, color=style.INK, lw=1)
        axes.set_yticks(range(len(families)), labels=list(families))
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(families) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.set_title(group, size=9, loc="left", weight="bold")
    axes.set_xscale("log")
    axes.set_xlim(min(every) / 1.03, max(every) * 1.05)
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    return sheet
