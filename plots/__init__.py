"""The figures: of orders, exact, and of results files.

    visit.py         the tiles of a grid in the order of their visit
    factors.py       hit rate, DRAM reads, L2 reads and throughput against the swizzle factor, measured and predicted
    comparison.py    the families of orders against the best single factor
    validation.py    the model's bytes against the counted ones
    overflow.py      split-merge against swizzle-merge: programs and time
    layouts.py       tiles coloured by bank, fragments coloured by thread
    pipeline.py      stages, depth of a step and epilogue
    speedup.py       speed-up over torch by family of GEMMs
    transpose.py     the transpose through plain, padded and swizzled tiles, against a copy

What they share: model.py, what is predicted for the rows of a file; families.py, names and colours of orders; rows.py,
which rows are drawn; style.py.

Each figure's module has functions that make a matplotlib Figure, and `draw(..., path)`, which writes it as PNG and
SVG and returns both paths. Factors, comparison, validation and overflow draw what `read_csv` returns of a sweep. All
need the `plot` extra, matplotlib and pandas. `python -m tritonmm.plots` draws the figures of the README and the
docs again.
"""

from tritonmm.plots import comparison, factors, visit
from tritonmm.plots.rows import read_csv

__all__ = ["comparison", "factors", "read_csv", "visit"]
