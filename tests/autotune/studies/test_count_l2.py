"""Launches that one GPU has counted are counted again on another; what has counters alone is no sweep of times."""

import pytest
import torch
from click.testing import CliRunner

from tritonmm.autotune.measuring import results_file
from tritonmm.autotune.studies import count_l2, fit_time
from tritonmm.autotune.studies.measured_products import RESULTS
from tritonmm.gpu import spec


def test_the_h100_has_counted_the_launches_of_the_h200():
    asked = count_l2.pairs(RESULTS / "h200-l2.csv")
    found = [results_file.product(row) for row in results_file.read(RESULTS / "h100-l2.csv")[2]]
    assert len(asked) == 280
    assert set(found) == set(asked)


def test_counters_without_times_are_no_sweep():
    assert "l2" in fit_time.files_of(spec("h200"), fit_time.ORDERS)
    assert fit_time.files_of(spec("h100"), fit_time.ORDERS) == {}
    assert {*fit_time.files_of(spec("h100"), fit_time.SWEEPS)} == {"random60", "random64", "quick"}


@pytest.mark.parametrize(
    ("content", "said"), [("m,n\n1,2\n", "not the counters of a sweep"), ("counted_us\n", "has no counters")]
)
def test_files_without_counters_are_refused(content, said, tmp_path):
    (source := tmp_path / "source.csv").write_text(content)
    found = CliRunner().invoke(count_l2.main, [str(source), "--csv", str(tmp_path / "found.csv")])
    assert found.exit_code == 1
    assert said in found.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_needs_a_gpu(tmp_path):
    asked = [str(RESULTS / "h200-l2.csv"), "--csv", str(tmp_path / "found.csv")]
    found = CliRunner().invoke(count_l2.main, asked)
    assert found.exit_code == 1
    assert "counters need a GPU" in found.output
