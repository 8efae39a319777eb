"""What invariant accumulation costs: the ways that are compared, and how times and sweeps are summed up."""

import dataclasses

import pytest
from click.testing import CliRunner

from tritonmm import Config, Problem
from tritonmm import gpu as gpus
from tritonmm.autotune.bench import suite
from tritonmm.autotune.studies import invariant, unsplit

H200 = gpus.spec("h200")


def test_every_way_has_a_legal_config_for_the_public_suite():
    for entry in suite.load("public"):
        for way, (problem, config) in invariant.ways(entry.problem(), H200).items():
            assert config.fits(problem, H200), f"{way}: {problem}: {config.fits(problem, H200).reason}"


def test_a_summary_is_of_speeds():
    shape = ("few", 1, 2, 3, 1, "nt", "bf16")
    costs = [
        invariant.Cost(*shape, torch_us=20.0, free_us=9.0, invariant_us=10.0, fixed_us=40.0, free="", invariant=""),
        invariant.Cost(*shape, torch_us=None, free_us=10.0, invariant_us=10.0, fixed_us=10.0, free="", invariant=""),
    ]
    _, line = invariant.summary(costs)
    assert line.split() == ["few", "0.949", "2.000", "2.000"]


def test_shares_are_of_the_best_config():
    """GEMVs and configs that split K have no chain; other dtypes, and problems of few configs, do not count."""
    problem, few = Problem(64, 64, 64), Problem(64, 64, 128)
    split = {Config("skinny", split_k=splits): 10.0 + splits for splits in range(2, 14)}
    times = split | {Config("skinny", block_m=1): 5.0, Config("tile"): 40.0, Config("hopper"): 20.0}
    given = [(p, config, us) for p in (problem, dataclasses.replace(problem, dtype="fp32", b_dtype="", out_dtype=""))
             for config, us in times.items()]  # fmt: skip
    given += [(few, Config("tile"), 1.0)]
    assert list(unsplit.shares(given)) == [(problem, 0.25)]


def test_a_file_that_is_no_sweep(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    found = CliRunner().invoke(unsplit.main, [str(path)])
    assert found.exit_code == 1
    assert "is not a trial's" in found.output


@pytest.mark.parametrize("study", [invariant.main])
def test_times_need_a_gpu(study, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = CliRunner().invoke(study, [])
    assert found.exit_code == 1
    assert "times need a GPU" in found.output
