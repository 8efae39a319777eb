"""explain: says what would be done, with no GPU and nothing computed."""

import pytest
import torch
from click.testing import CliRunner

import tritonmm
from tritonmm import gpu as gpus
from tritonmm.cli import main
from tritonmm.explanation import Explanation
from tritonmm.override import prefers
from tritonmm.problem import Problem
from tritonmm.select import choose

H200 = gpus.spec("h200")


@pytest.mark.parametrize(
    "problem",
    [
        Problem.dense(2049, 8192, 3584, layout="nt"),
        Problem.dense(777, 1001, 3001),
        Problem.dense(8, 8, 8, dtype="fp32"),
    ],
    ids=str,
)
def test_it_says_what_select_and_the_policy_say(problem):
    found = Explanation.of(problem, H200)
    assert found.config == choose(problem, H200)
    assert found.kernel == found.config.kernel
    assert (found.overrides, found.reason) == prefers(problem, H200)
    text = str(found)
    how = "measured" if found.is_measured else "predicted"
    for said in (problem, found.config, found.traffic, found.why, found.reason, f"{found.us:.1f} us, {how}"):
        assert str(said) in text
    assert ("enable()  tritonmm: " if found.overrides else "enable()  torch: ") in text


def test_why_names_what_the_other_kernels_lack():
    why = Explanation.of(Problem.dense(777, 1001, 0), H200).why
    assert "no hopper kernel: k is 0" in why
    assert "waves on 132 SMs" in why


def test_why_says_how_tiles_are_dealt():
    for m, n, says in ((64, 4352, "in singles"), (128, 4096, "in pairs"), (4096, 4096, "")):
        why = Explanation.of(Problem.dense(m, n, 4096, layout="nt"), H200).why
        assert ("dealt to SMs" in why) == bool(says)
        assert says in why


def test_of_tensors_nothing_is_computed(device):
    a = torch.empty(4, 96, 64, device=device, dtype=torch.bfloat16)
    found = tritonmm.explain(a, torch.empty(32, 64, device=device, dtype=torch.bfloat16).t())
    assert (found.problem.m, found.problem.n, found.problem.k, found.problem.layout) == (384, 32, 64, "nt")
    with pytest.raises(RuntimeError, match="inner dimensions"):
        tritonmm.explain(a, a)
    with pytest.raises(NotImplementedError, match="int8"):
        tritonmm.explain(a.char(), a.char())


def test_the_command():
    result = CliRunner().invoke(main, ["explain", "2049", "8192", "3584", "--layout", "nt", "--gpu", "h200"])
    assert result.exit_code == 0, result.output
    assert result.output == str(Explanation.of(Problem.dense(2049, 8192, 3584, layout="nt"), H200)) + "\n"
    result = CliRunner().invoke(main, ["explain", "64", "64", "64", "--dtype", "tf32", "--batch", "2", "--gpu", "a100"])
    assert "2x64x64x64 nt fp32 tf32 on a100" in result.output
