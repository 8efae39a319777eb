"""The figures: of orders, exact, and of results files.

    visit.py         the tiles of a grid in the order of their visit
    factors.py       throughput against the swizzle factor
    traffic.py       DRAM reads, L2 reads and hit rate against the swizzle factor
    comparison.py    the orders against row-major
    layouts.py       tiles coloured by bank, fragments coloured by thread
    transpose.py     the transpose through plain, padded and swizzled tiles, against a copy

Each has functions that make a matplotlib Figure, and `draw(..., path)`, which writes it as PNG and SVG and
returns both paths. Factors, traffic and comparison draw what `read_csv` returns. All need the `plot` extra, matplotlib
and pandas. `python -m tritonmm.plots` draws the exact figures of the README again.
"""

from tritonmm.plots import comparison, factors, traffic, visit
from tritonmm.plots.rows import read_csv

__all__ = ["comparison", "factors", "read_csv", "traffic", "visit"]
