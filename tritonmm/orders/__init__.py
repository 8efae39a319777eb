"""Tile orders: the sequence in which a GEMM visits the tiles of its output.

A GEMM of M x N output tiles launches programs ``i = 0, 1, 2, ...`` (a persistent kernel loops over the same indices).
An order maps each index to a tile (m, n). Programs that run at the same time have neighbouring indices, so the order
decides which rows of A and columns of B are read together, and with that the L2 hit rate. It never changes the result.

Every order except `SplitMerge` is a bijection on every grid: ``launched == tiles_m * tiles_n``, and each tile is
visited exactly once. `Triangular` is one on the tiles that meet the lower triangle, and `Grouped` on the tiles of many
products. `Dies` divides another order among the dies of a GPU. Each map is written once, for Python integers and numpy
arrays alike. `tritonmm.device.order` and `tritonmm.device.groups` are the same arithmetic on the device.

Sources: NVIDIA/Fuser issue #3942 compares `SwizzleMerge` and `SplitMerge`. With one factor, `SwizzleMerge` is Triton's
    grouped ordering (GROUP_M in Triton's matmul tutorial). It also takes a list of factors, and unlike `SplitMerge` it
    launches no idle programs.
"""

from tritonmm.orders.curves import Hilbert, Morton
from tritonmm.orders.dies import Dies
from tritonmm.orders.grouped import Grouped
from tritonmm.orders.groups_of_tiles import Serpentine, SplitMerge, SwizzleMerge
from tritonmm.orders.order import ColumnMajor, Order, RowMajor
from tritonmm.orders.spelling import parse
from tritonmm.orders.table import Table
from tritonmm.orders.triangular import Triangular

__all__ = [
    "ColumnMajor",
    "Dies",
    "Grouped",
    "Hilbert",
    "Morton",
    "Order",
    "RowMajor",
    "Serpentine",
    "SplitMerge",
    "SwizzleMerge",
    "Table",
    "Triangular",
    "parse",
]
