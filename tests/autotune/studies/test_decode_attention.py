"""The study of attention while decoding: its ways compute the same, and its errors notice one wrong element."""

import pytest
import torch

from tritonmm.autotune.studies import decode_attention as study
from tritonmm.nn import decode_attention


@pytest.fixture
def operands(device, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda run, dynamic: run)
    return study.operands(2, 200, 130, device)


def test_ways_of_torch_compute_the_same(operands):
    ours = decode_attention(*operands).double()
    found = dict(study.ways(130))
    assert len(found) == 2
    for name, attend in found.items():
        assert attend(*operands).shape == ours.shape
        assert study.error(attend, *operands) < 1, name
    assert study.error(decode_attention, *operands) < 1


def test_an_error_is_noticed(operands):
    def wrong(query, key, value, mask):
        out = decode_attention(query, key, value, mask)
        out[0, 31, 127] += 0.05
        return out

    assert study.error(wrong, *operands) > 1
    query, key, value, mask = operands
    mask = mask.clone()
    mask[:, 130] = True
    assert study.error(lambda *given: decode_attention(*given[:3], mask), query, key, value, operands[3]) > 1


def test_cases_fit_their_caches():
    for batch, length, seen in study.CASES:
        assert 0 < seen <= length
        assert batch * study.GROUPS * length * study.DIM * 4 < 8 << 30
