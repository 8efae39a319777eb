"""The folder of results: small, and nothing in it that nothing reads."""

import re
from pathlib import Path

import pytest

from tritonmm.autotune.measuring import results_file
from tritonmm.autotune.studies.measured_products import RESULTS

ROOT = Path(__file__).parents[2]
FILES = sorted(RESULTS.iterdir())
FITTED = {"m", "n", "k", "layout", "dtype", "torch_us"}
"""What a file has that the fit of torch's time reads."""


@pytest.fixture(scope="module")
def mentioned():
    """All that pages and code say."""
    folders = [ROOT / folder for folder in ("autotune", "docs", "plots", "tests", "tritonmm")]
    paths = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".md", ".py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *paths))


def test_they_have_less_than_5_mb():
    assert sum(path.stat().st_size for path in FILES) < 5e6


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_fit_a_test_a_figure_or_a_page_reads_it(path, mentioned):
    _, columns, rows = results_file.read(path)
    assert rows
    # Of several that differ in a number at the end, such as Triton's version, the first is named in full.
    name = re.sub(r"(-[\d.]+)?\.csv(\.gz)?$", "", path.name)
    assert set(columns) >= FITTED or name in mentioned
