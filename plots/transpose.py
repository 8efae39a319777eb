"""The transpose through plain, padded and swizzled shared memory: the fraction of a copy's bandwidth that each
reaches."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from tritonmm.plots import style
from tritonmm.plots.rows import provenance

_COLOURS = {"plain": style.RED, "padded": "#0077bb", "swizzled": "#009988", "torch": style.MUTED}  # Paul Tol's vibrant


def draw(frame: pd.DataFrame, about: dict[str, str], path: str | Path) -> list[Path]:
    """Draws a file of `python -m tritonmm.autotune.studies.bank_conflicts --csv`. Returns the paths of PNG and SVG.

    frame, about: the file as `rows.read_csv` returns it. Raises ValueError for rows that were not measured.
    """
    return style.save(figure(frame, about), path)


@style.styled
def figure(frame: pd.DataFrame, about: dict[str, str]) -> Figure:
    """A bar of gid "bars" for each row, from top to bottom in the order of the file."""
    missing = [name for name in ("layout", "vector", "read_ways", "of_copy", "gb_per_s") if name not in frame]
    if missing or frame.empty or frame.of_copy.isna().any():
        raise ValueError(
            f"the results are not measured transposes: {'no ' + ', '.join(missing) if missing else 'no times'}"
        )
    gpu = about.get("gpu", "unknown GPU")
    sheet = style.sheet(
        0.27 * len(frame) + 0.5,
        f"Transposing {about.get('shape', 'a matrix')} through shared memory: {gpu}, measured",
        provenance(about),
        "Ways: passes of shared memory for each phase of a read, predicted by tritonmm.layouts.",
    )
    axes = sheet.subplots()
    at = range(len(frame))
    axes.barh(
        at, frame.of_copy, height=0.62, color=[_COLOURS.get(name, style.INK) for name in frame.layout], gid="bars"
    )
    axes.axvline(1, color=style.MUTED, lw=1, ls=":")
    axes.set_yticks(at, labels=[_label(row) for row in frame.itertuples()], size=8.5, color=style.INK)
    axes.set_ylim(len(frame) - 0.5, -0.5)
    axes.set_xlim(0, max(1.12, 1.12 * frame.of_copy.max()))
    axes.set_xlabel("fraction of the bandwidth of torch's copy")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    for i, row in zip(at, frame.itertuples(), strict=True):
        ink = "white" if style.is_dark(_COLOURS.get(row.layout, style.INK)) else "black"
        axes.annotate(
            f"{row.of_copy:.2f}, {row.gb_per_s:.0f} GB/s", (0, i), (5, 0), textcoords="offset points", va="center",
            size=8, color=ink,
        )  # fmt: skip
    return sheet


def _label(row) -> str:
    if pd.isna(row.vector):
        return f"{row.layout}'s own"
    vector = "single elements" if row.vector == 1 else f"vectors of {row.vector:.0f}"
    return f"{row.layout}, {vector}: {row.read_ways:.0f}-way" if row.read_ways > 1 else f"{row.layout}, {vector}: free"
