"""Draw the figures that need no measurement into plots/figures: `python -m tritonmm.plots`."""

from pathlib import Path

from tritonmm.orders import ColumnMajor, Hilbert, Morton, RowMajor, Serpentine, SplitMerge, SwizzleMerge
from tritonmm.plots import visit


def main(folder: Path) -> list[Path]:
    """Write the grid of issue #3942, and every order on one ragged grid; returns the paths."""
    gallery = [
        *(RowMajor(), ColumnMajor(), Hilbert()),
        *(Morton(), Serpentine(4), SwizzleMerge(4, along="n")),
        *(SplitMerge(4), SwizzleMerge(4), SwizzleMerge(4, 3)),
    ]
    return [
        *visit.draw([SplitMerge(4), SwizzleMerge(4)], 7, 6, folder / "visit_order"),
        *visit.draw(gallery, 10, 13, folder / "orders_gallery"),
    ]


if __name__ == "__main__":
    for path in main(Path(__file__).parent / "figures"):
        print(path)
