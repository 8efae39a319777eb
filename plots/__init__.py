"""The figures: of orders, exact, and of results files.

    visit.py         the tiles of a grid in the order of their visit
    factors.py       throughput against the swizzle factor
    traffic.py       DRAM reads, L2 reads and hit rate against the swizzle factor
    comparison.py    the orders against row-major

Each has `figure(...)`, a matplotlib Figure, and `draw(..., path)`, which writes it as PNG and SVG and
returns both paths. The last three draw what `read_csv` returns. All need the `plot` extra, matplotlib
and pandas. `python -m tritonmm.plots` draws the exact figures of the README again.
"""

from tritonmm.plots import comparison, factors, traffic, visit
from tritonmm.plots.rows import read_csv

__all__ = ["comparison", "factors", "read_csv", "traffic", "visit"]
