"""Draw every figure of the README and the docs again, into plots/figures: `python -m tritonmm.plots`.

In a checkout: the measured ones are drawn from the files of autotune/results.
"""

from pathlib import Path

import pandas as pd

from tritonmm.layouts import Swizzle, mma_atoms
from tritonmm.layouts.show import SwizzledTile
from tritonmm.orders import ColumnMajor, Hilbert, Morton, RowMajor, Serpentine, SplitMerge, SwizzleMerge
from tritonmm.plots import comparison, factors, layouts, overflow, pipeline, rows, transpose, validation, visit

ROOT = Path(__file__).parent


def exact(folder: Path) -> list[Path]:
    """Write the grid of issue #3942, every order on one ragged grid, and the layouts of the docs; returns the paths."""
    gallery = [
        *(RowMajor(), ColumnMajor(), Hilbert()),
        *(Morton(), Serpentine(4), SwizzleMerge(4, along="n")),
        *(SplitMerge(4), SwizzleMerge(4), SwizzleMerge(4, 3)),
    ]
    return [
        *visit.draw([SplitMerge(4), SwizzleMerge(4)], 7, 6, folder / "visit_order"),
        *visit.draw(gallery, 10, 13, folder / "orders_gallery"),
        *layouts.draw(SwizzledTile(Swizzle(3, 3, 3), 8, 64, 16), folder / "swizzle_banks"),
        *layouts.draw(mma_atoms.atom("SM80_16x8x16_F32BF16BF16F32_TN"), folder / "mma_fragments"),
    ]


def measured(results: Path, folder: Path) -> list[Path]:
    """Write the figures of the results files in the folder `results`; returns the paths."""
    large, l2, plain = (rows.read_csv(results / f"h200-{name}.csv") for name in ("l2-16384", "l2", "factors"))
    return [
        *factors.draw(*plain, folder / "h200-factors-factors"),
        *comparison.draw(*plain, folder / "h200-factors-comparison"),
        *factors.draw(*large, folder / "h200-l2-16384-factors"),
        *factors.draw(*l2, folder / "h200-l2-factors"),
        *validation.draw(*together(large, l2), folder / "h200-l2-validation"),
        *comparison.draw(*together(large, l2, of_each="problem"), folder / "h200-l2-comparison"),
        *overflow.draw(*together(large, l2, plain, of_each="config"), folder / "h200-l2-overflow"),
        *pipeline.draw(*rows.read_csv(results / "h200-pipeline.csv"), folder / "h200-pipeline"),
        *transpose.draw(*rows.read_csv(results / "h200-transpose.csv"), folder / "h200-transpose"),
    ]


def together(*files, of_each: str = "row") -> tuple[pd.DataFrame, dict[str, str]]:
    """Several files, as `rows.read_csv` returns them, as one.

    of_each: what is taken whole from one file, the first that has it: a "row", a "problem", or a "config" of a problem.
    Times of files that were measured in different ways must not meet in one comparison.
    """
    keys = {"row": None, "problem": rows.PROBLEM, "config": [*rows.PROBLEM, *rows.CONFIG]}[of_each]
    frames = []
    for frame, _ in files:
        for earlier in frames if keys else ():
            had = pd.MultiIndex.from_frame(earlier[keys])
            frame = frame[~pd.MultiIndex.from_frame(frame[keys]).isin(had)]
        frames.append(frame)
    abouts = [about for _, about in files]
    merged = {key: " and ".join(dict.fromkeys(each[key] for each in abouts if key in each)) for key in abouts[0]}
    return pd.concat(frames, ignore_index=True), merged


if __name__ == "__main__":
    for path in [*exact(ROOT / "figures"), *measured(ROOT.parent / "autotune" / "results", ROOT / "figures")]:
        print(path)
