"""The study of quantized weights: both sides multiply by the same weights, and requests are read."""

import pytest
import torch
from click.testing import CliRunner

from tritonmm import families
from tritonmm import gpu as gpus
from tritonmm.autotune.measuring.measure import set_count
from tritonmm.autotune.studies import weights
from tritonmm.plan import plan_for
from tritonmm.selection import choose, timed


@pytest.mark.parametrize("kind", weights.KINDS)
def test_both_sides_multiply_by_the_same_weights(kind, device):
    problem = weights.problem_of(5, 64, 256, kind)
    made = [weights.made(problem, kind, device) for _ in range(2)]
    assert not torch.equal(made[0][0], made[1][0])
    ours, torchs = weights.sets_of(problem, made)
    launch = weights.launch_of(plan_for(problem, choose(problem, gpus.spec("h200"), families.portable()), device))
    for mine, theirs in zip(ours, torchs, strict=True):
        launch(*mine)
        found = mine[2].double()
        weights.torch_mm(*theirs)
        torch.testing.assert_close(found, theirs[2].double(), rtol=0.02, atol=0.1)  # the dense weights are rounded


@pytest.mark.parametrize("kind", weights.KINDS)
@pytest.mark.parametrize("shape", weights.SHAPES)
def test_an_h200_has_configs_and_sets_larger_than_its_l2(kind, shape):
    gpu = gpus.spec("h200")
    for m in weights.ROWS:
        problem = weights.problem_of(m, *shape, kind)
        assert choose(problem, gpu).fits(problem, gpu)
        assert set_count(problem, gpu) * problem.compulsory_bytes >= 2 * gpu.l2_bytes


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--kinds", "int3", "any of int8-row, fp8-row, int8-group, fp8-group, int8p-group, int8p-row, int4-group"),
        ("--rows", "0,4", "must be a list of numbers above 0"),
        ("--shapes", "4096", "must be a list of n x k, as in 14336x4096"),
    ],
)
def test_unknown_requests_are_refused(option, value, said, tmp_path):
    result = CliRunner().invoke(weights.main, [str(tmp_path / "x.csv"), option, value])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_several_configs_are_those_of_the_least_estimates():
    gpu = gpus.spec("h200")
    problem = weights.problem_of(64, 4096, 4096, "int4-group")
    one, several = weights.configs_of(problem, gpu, 1), weights.configs_of(problem, gpu, 5)
    assert one == (choose(problem, gpu),)
    assert several == tuple(timed(problem, gpu))[:5]


def test_what_has_no_config_is_a_row_with_its_reason(device, monkeypatch):
    def refuse(problem, gpu):
        raise ValueError("no config is legal")

    monkeypatch.setattr(weights, "choose", refuse)
    rows = list(weights.all_measured((1, 16), ((64, 128),), ("int4-group",), 1, "burst", gpus.spec("h200"), device))
    assert [row.m for row in rows] == [1, 16]
    assert {(row.lost, row.ours_us) for row in rows} == {("no config is legal", None)}
