"""The folder of results: small, and nothing in it that nothing reads."""

import re
from pathlib import Path

import pytest

from tritonmm.autotune.measuring import results_file
from tritonmm.autotune.studies import measured_products
from tritonmm.autotune.studies.measured_products import RESULTS
from tritonmm.gpu import spec

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


def test_times_of_groups_are_not_taken_for_those_of_one_product(tmp_path, monkeypatch):
    """What estimates torch's time knows no grouped kernels."""
    columns = ["m", "n", "k", "batch", "layout", "dtype", "torch_us", "regime", "ragged", "groups"]
    plain = dict(zip(columns, ("64", "48", "32", "1", "nt", "bf16", "7.0", "burst", "", ""), strict=True))
    rows = [plain, plain | {"torch_us": "9.0", "ragged": "m", "groups": "4"}]
    results_file.write(tmp_path / "h200-moe.csv", {"gpu": "NVIDIA H200"}, columns, rows)
    monkeypatch.setattr(measured_products, "RESULTS", tmp_path)
    (found,) = measured_products.products(spec("h200"))
    assert (found.problem.ragged, found.torch_us) == ("", 7.0)
