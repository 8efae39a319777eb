"""Figures of orders and layouts, which are exact, and of results files.

    visit.py         the tiles of a grid in launch order
    factors.py       hit rate, DRAM reads, L2 reads and throughput over the swizzle factor, measured and predicted
    comparison.py    kinds of orders compared with the best single factor
    validation.py    predicted over counted bytes
    overflow.py      split-merge compared with swizzle-merge: programs and time
    layouts.py       tiles coloured by bank, fragments coloured by thread
    pipeline.py      stages, block_k and epilogue
    speedup.py       speed-up over torch by family of GEMMs
    transpose.py     the transpose through plain, padded and swizzled tiles, compared with a copy

Shared modules: model.py, predictions for the rows of a file; families.py, names and colours of kinds of orders;
    rows.py, the rows that are drawn; style.py.

Each figure's module has functions that make a matplotlib Figure, and `draw(..., path)`, which writes it as PNG and SVG
and returns both paths. Factors, comparison, validation and overflow draw a sweep's file as `read_csv` returns it. All
need the `plot` extra (matplotlib and pandas). `python -m tritonmm.plots` draws the figures of the README and the docs.
"""

from tritonmm.plots import comparison, factors, visit
from tritonmm.plots.rows import read_csv

__all__ = ["comparison", "factors", "read_csv", "visit"]
