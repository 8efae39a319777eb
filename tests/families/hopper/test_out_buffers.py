"""Shared buffers through which the Hopper kernel writes its tiles: TMA may still read those that were written last."""

import itertools

import pytest
import torch
from compile_cases import hopper_cases, kind_cases

from tritonmm.plan import bind


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    monkeypatch.setattr("tritonmm.plan.INTERPRETED", False)  # else there are no plans of these kernels


def buffers_of(tiling):
    """The buffers of all pieces of two tiles, in the order in which a consumer writes them."""
    subtiles = range(len(tiling.n_subtiles))
    pieces = [(i, j) for i in subtiles for j in range(tiling.n_subtiles[i] // tiling.piece_cols)]
    return [tiling.out_buffer(*piece) for piece in 2 * pieces]


def test_a_piece_is_written_to_no_buffer_that_may_still_be_read():
    tilings = {
        bind(problem, config, gpu, torch.device("meta")).tiling
        for gpu, problem, config in itertools.chain(hopper_cases(), kind_cases())
        if config.kernel == "hopper" and not problem.symmetric
    }
    assert {len(tiling.n_subtiles) for tiling in tilings} == {1, 2}
    assert any(tiling.moduli and len(tiling.n_subtiles) == 2 for tiling in tilings)
    for tiling in tilings:
        used = buffers_of(tiling)
        assert set(used) == set(range(tiling.out_buffers))
        # `tma.store_wait` returns while at most this many stores of earlier pieces still read their buffers.
        pending = tiling.out_buffers - 1
        for i, buffer in enumerate(used):
            assert buffer not in used[max(0, i - pending) : i], (tiling, used)
