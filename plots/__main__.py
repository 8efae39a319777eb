"""Draw the figures that need no measurement into plots/figures: `python -m tritonmm.plots`."""

from pathlib import Path

from tritonmm.layouts import Swizzle, mma_atoms
from tritonmm.layouts.show import SwizzledTile
from tritonmm.orders import ColumnMajor, Hilbert, Morton, RowMajor, Serpentine, SplitMerge, SwizzleMerge
from tritonmm.plots import layouts, visit


def main(folder: Path) -> list[Path]:
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


if __name__ == "__main__":
    for path in main(Path(__file__).parent / "figures"):
        print(path)
