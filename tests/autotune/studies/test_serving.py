"""The study of served models: what of it needs neither a GPU nor transformers."""

import pytest
import torch
from click.testing import CliRunner

from tritonmm.autotune.studies import serving


def test_divergence():
    logits = torch.randn(5, 40)
    assert serving.divergence(logits, logits + 3) == pytest.approx(0, abs=1e-6)
    p, q = torch.tensor([[0.25, 0.75]]), torch.tensor([[0.5, 0.5]])
    expected = (p * (p / q).log()).sum().item()
    assert serving.divergence(p.log(), q.log()) == pytest.approx(expected, rel=1e-5)


def test_the_cache_holds_all_tokens():
    assert serving.PROMPT + serving.ROUNDS * serving.REPLAYS + 4 <= serving.LONGEST


def test_unknown_ways_are_refused(tmp_path):
    result = CliRunner().invoke(serving.main, [str(tmp_path / "x.csv"), "--ways", "torch,int3"])
    assert result.exit_code == 2
    assert "--ways has int3; known are torch, torch+compile, enable, int8" in result.output
