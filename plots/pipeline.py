"""How throughput depends on stages, block_k and the epilogue.

Draws the files of `python -m tritonmm.autotune.studies.pipeline --csv`.
"""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from tritonmm.plots import style
from tritonmm.plots.rows import provenance

_COLOURS = {32: "#ee7733", 64: "#0077bb", 128: "#009988"}  # Paul Tol's vibrant
_COLUMNS = ("study", "m", "n", "k", "block_k", "num_stages", "store", "torch_us", "tflops")
_TITLES = {
    "tile": "cp.async, 128 x 128 tile",
    "hopper": "TMA pipeline, 128 x 256 tile",
    "epilogue": "epilogue",
}


def draw(frame: pd.DataFrame, about: dict[str, str], path: str | Path) -> list[Path]:
    """Draws the study. Returns the paths of PNG and SVG.

    frame, about: the file as `rows.read_csv` returns it.
    """
    return style.save(figure(frame, about), path)


@style.styled
def figure(frame: pd.DataFrame, about: dict[str, str]) -> Figure:
    """A row of panels for each shape: throughput over stages, a line for each block_k, and bars for the epilogues.

    Raises ValueError for another kind of file, or if nothing was measured.
    """
    missing = [name for name in _COLUMNS if name not in frame]
    if missing or frame.tflops.isna().all():
        raise ValueError(
            f"the results are not a study of pipelines: {'no ' + ', '.join(missing) if missing else 'no times'}"
        )
    shapes = list(frame.groupby(["m", "n", "k"], sort=False))
    sheet = style.sheet(
        2.3 * len(shapes) + 0.6,
        f"Pipelines and epilogues, bf16: {about.get('gpu', 'unknown GPU')}, measured",
        provenance(about),
        "Dotted: torch in the same process. A gap: more stages than shared memory holds.",
    )
    panels = sheet.subplots(len(shapes), 3, squeeze=False)
    for (shape, rows), axes in zip(shapes, panels, strict=True):
        top = 1.12 * max(rows.tflops.max(), _torch(rows))
        for study, at in zip(_TITLES, axes, strict=True):
            of_study = rows[rows.study == study]
            at.axhline(_torch(of_study if len(of_study) else rows), color=style.MUTED, lw=1, ls=":")
            (_bars if study == "epilogue" else _lines)(at, of_study)
            at.set_ylim(0, top)
            at.set_title(_TITLES[study], size=9, loc="left")
        axes[0].set_ylabel(f"{' x '.join(map(str, shape))}\nTFLOP/s")
    handles, labels = panels[0][0].get_legend_handles_labels()
    panels[0][0].legend(handles, labels, loc="lower right", fontsize=8)
    return sheet


def _torch(rows: pd.DataFrame) -> float:
    """torch's median throughput in the same rows, in 10^12 FLOP/s."""
    return (2e-6 * rows.m * rows.n * rows.k / rows.torch_us).median()


def _lines(axes, rows: pd.DataFrame) -> None:
    for block_k, line in rows.groupby("block_k"):
        axes.plot(line.num_stages, line.tflops, marker="o", color=_COLOURS[block_k], label=f"block_k {block_k}")
    axes.set_xlabel("stages")
    axes.set_xticks(range(1, 7))
    axes.set_xlim(0.6, 6.4)


def _bars(axes, rows: pd.DataFrame) -> None:
    axes.bar(range(len(rows)), rows.tflops, width=0.6, color=_COLOURS[64])
    axes.set_xticks(range(len(rows)), labels=rows.store)
    axes.grid(axis="x", visible=False)
    for i, tflops in enumerate(rows.tflops):
        axes.annotate(
            f"{tflops:.0f}", (i, tflops), (0, -11), textcoords="offset points", ha="center", color="white", size=8
        )
