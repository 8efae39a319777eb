"""The GPU as a source of times: which operands and sizes of groups a launch is given."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import sources, space
from tritonmm.autotune.measuring.group_sizes import DISTRIBUTIONS, sizes_of
from tritonmm.autotune.measuring.measure import REGIMES, Paired
from tritonmm.config import Config

ROWS = space.problem(60, 24, 40, ragged="m", groups=5)
PARTS = space.problem(24, 40, 60, layout="tn", ragged="k", groups=5)


@pytest.fixture
def source(monkeypatch):
    """A source on the CPU. `launched` has the sides and offsets of all launches, ours computed by torch."""
    launched = []

    def plan_for(problem, config, device):
        def plan(a, b, out, offs=None):
            launched.append(("ours", offs.tolist()))
            out.copy_(torch.nn.functional.grouped_mm(a, b, offs=offs))

        return plan

    class Replay:
        def __init__(self, launch, sets):
            self.launch, self.sets = launch, sets

        def free(self):
            self.sets = ()

    def paired(ours, torchs, regime, clock):
        for side in (ours, torchs):
            for operands in side.sets:
                side.launch(*operands)
        return Paired((1e-6,) * 7, (2e-6,) * 7)

    def product(problem, offs):
        return lambda a, b, out: launched.append(("torch", offs.tolist()))

    monkeypatch.setattr(sources, "INTERPRETED", False)
    monkeypatch.setattr(sources.gpus, "of_device", lambda _: replace(gpus.spec("h200"), l2_bytes=1))
    monkeypatch.setattr(sources.Nvml, "of_device", lambda _: SimpleNamespace(mhz=lambda: None))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H200")
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda _: None)
    for name, value in (("plan_for", plan_for), ("GraphReplay", Replay), ("torch_product", product)):
        monkeypatch.setattr(sources, name, value)
    monkeypatch.setattr(sources.measure, "paired", paired)
    found = sources.GpuSource()
    found.device, found.launched = torch.device("cpu"), launched
    return found


@pytest.mark.parametrize("problem", [ROWS, PARTS], ids=str)
def test_both_sides_are_checked_and_timed_in_the_sizes_that_are_named(problem, source):
    for sizes in (*DISTRIBUTIONS, "zipf:3"):
        ends = torch.tensor(sizes_of(problem, sizes)).cumsum(0).tolist()
        assert source.error_ratio(problem, Config(), sizes) <= 1
        assert source.paired(problem, Config(), REGIMES["burst"], sizes).ratio == 2
        assert {side for side, _ in source.launched} == {"ours", "torch"}
        assert all(offs == ends for _, offs in source.launched), sizes
        source.launched.clear()


def test_without_a_name_sizes_are_typical(source):
    source.error_ratio(ROWS, Config())
    source.times(ROWS, Config())
    assert {tuple(offs) for _, offs in source.launched} == {tuple(torch.tensor(sizes_of(ROWS)).cumsum(0).tolist())}


def test_operands_are_kept_as_long_as_sizes_are(source):
    source.error_ratio(ROWS, Config(), "even")
    kept = source._sets
    source.paired(ROWS, Config(), REGIMES["burst"], "even")
    assert source._sets is kept
    source.paired(ROWS, Config(), REGIMES["burst"], "zipf")
    assert source._sets is not kept
