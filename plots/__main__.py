"""Draws every figure of the README and the docs: `python -m tritonmm.plots`.

In a checkout it reads autotune/results and writes plots/figures; elsewhere name both folders by options.
"""

from pathlib import Path

import click
import pandas as pd

from tritonmm.autotune.measuring import results_file
from tritonmm.layouts import Swizzle, mma_atoms
from tritonmm.layouts.show import SwizzledTile
from tritonmm.orders import ColumnMajor, Hilbert, Morton, RowMajor, Serpentine, SplitMerge, SwizzleMerge
from tritonmm.plots import comparison, factors, layouts, overflow, pipeline, rows, speedup, transpose, validation, visit

ROOT = Path(__file__).parent
IS_CHECKOUT = (ROOT.parent / "pyproject.toml").is_file()
RESULTS = ROOT.parent / "autotune" / "results" if IS_CHECKOUT else None
FIGURES = ROOT / "figures" if IS_CHECKOUT else Path("figures")


def exact(folder: Path) -> list[Path]:
    """Writes the figures that need no results: a grid as in issue #3942, every order on one ragged grid, and layouts.

    Returns the paths.
    """
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
    """Writes the figures of the results files in the folder `results`. Returns the paths."""
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
        *speedup.draw(*speedups(results), folder / "h200-speedup"),
    ]


def speedups(results: Path) -> tuple[dict[str, dict[str, list[float]]], str]:
    """The groups of `speedup.draw` and its subtitle, from the results files of Triton 3.6.0."""
    large, others, dtypes, fp8 = (
        speedup.ratios(results / f"h200-{name}-triton-3.6.0.csv")
        for name in ("bench", "bench-shapes", "dtypes", "dtypes-2")
    )
    bf16 = {
        "square, 1024 to 16384": large["square"],
        "ragged M": large["ragged-m"],
        "prefill": large["prefill"],
        "decode, 1 to 257 rows": others["decode"],
        "deep K": others["deep-k"],
        "not 16-byte aligned": others["unaligned"],
        "batched": others["batched"],
        "small, up to 512": others["small"],
    }
    other = {
        "fp16": fp8["fp16"],
        "tf32": dtypes["tf32"],
        "tf32, NN": dtypes["tf32-nn"],
        "fp32, exact": dtypes["fp32"],
        "fp64": dtypes["fp64"],
        "fp8, tensor scales": fp8["fp8"],
        "fp8, 128-block scales": fp8["fp8-block"],
        "int8": dtypes["int8"],
        "8-bit weights, 1 to 64 rows": few_rows(results / "h200-weights-13.csv"),
    }
    about, _, _ = results_file.read(results / "h200-bench-triton-3.6.0.csv")
    return {"bf16": bf16, "other dtypes": other}, f"One {about['gpu']}, burst; torch {about['torch']}, Triton 3.6.0."


def few_rows(path: Path) -> list[float]:
    """Speed-ups of int8 weights over bf16 weights for at most 64 rows, with Triton 3.6.0."""
    _, _, found = results_file.read(path)
    chosen = (r for r in found if r["triton"] == "3.6.0" and r["weights"] == "int8" and int(r["m"]) <= 64)
    return [float(row["torch_us"]) / float(row["ours_us"]) for row in chosen]


def together(*files, of_each: str = "row") -> tuple[pd.DataFrame, dict[str, str]]:
    """Several files, as `rows.read_csv` returns them, as one file.

    of_each: the unit that is taken from one file only, the first that has it: a "row", a "problem", or a "config" of a
        problem. So times that were measured in different ways are not compared with each other.
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


@click.command()
@click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default=RESULTS,
    show_default="autotune/results of the checkout",
    help="Folder of the results files that are drawn.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=FIGURES,
    show_default="plots/figures of the checkout, or figures",
    help="Folder for the figures.",
)
def main(results: Path | None, out: Path) -> None:
    """Draw every figure of the README and the docs, as PNG and SVG."""
    if results is None:
        raise click.ClickException("the results files are in autotune/results of a checkout: name it by --results")
    try:
        for path in [*measured(results, out), *exact(out)]:
            click.echo(path)
    except FileNotFoundError as error:
        raise click.ClickException(f"{error.filename} is missing; it is in autotune/results of a checkout") from None
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
