"""Paired timing: what is run in which order, and what is made of the times."""

import math
from dataclasses import replace

import pytest
import torch

from tritonmm import gpu
from tritonmm.autotune import measure, space
from tritonmm.autotune.measure import REGIMES, Times, median_us


class Bench:
    """Two rivals whose replays and rests are written down, each answering from its list of seconds."""

    def __init__(self, ours, torchs):
        self.log = []
        self.answers = {"ours": iter(ours), "torch": iter(torchs)}

    def rival(self, name):
        def replay():
            self.log.append(name)
            return next(self.answers[name])

        return replay

    def paired(self, regime):
        return measure.paired(self.rival("ours"), self.rival("torch"), regime, rest=self.log.append)


def test_medians_are_kept_apart():
    # One disturbed replay on each side must not show.
    bench = Bench([1e-6, 2e-6, 900e-6], [7e-6, 5e-6, 1e-9])
    assert bench.paired(replace(REGIMES["burst"], rounds=3)) == Times(pytest.approx(2.0), pytest.approx(5.0))


def test_each_round_runs_both_once_in_random_order():
    regime = replace(REGIMES["burst"], rounds=40)
    bench = Bench([1e-6] * 40, [1e-6] * 40)
    bench.paired(regime)
    runs = [name for name in bench.log if name in ("ours", "torch")]
    rounds = list(zip(runs[::2], runs[1::2], strict=True))
    assert all(set(pair) == {"ours", "torch"} for pair in rounds)
    assert 5 < rounds.count(("ours", "torch")) < 35


def test_burst_rests_before_each_replay():
    bench = Bench([1e-6] * 11, [1e-6] * 11)
    bench.paired(REGIMES["burst"])
    assert bench.log[::2] == [0.08] * 22
    assert set(bench.log[1::2]) == {"ours", "torch"}


def test_sustained_never_rests_and_warms_up_unseen():
    regime = replace(REGIMES["sustained"], rounds=3, warm=0.5, replay=0.02)
    cold = [1.0] * 13
    bench = Bench([*cold, 1e-6, 1e-6, 1e-6], [*cold, 2e-6, 2e-6, 2e-6])
    assert bench.paired(regime) == Times(pytest.approx(1.0), pytest.approx(2.0))
    assert len(bench.log) == 32
    assert set(bench.log) == {"ours", "torch"}


@pytest.mark.parametrize(
    "seconds", [[], [1e-6, math.nan], [0.0], [-1e-6], [math.inf]], ids=["none", "nan", "zero", "negative", "inf"]
)
def test_median_refuses_what_no_clock_measures(seconds):
    with pytest.raises(ValueError, match="median"):
        median_us(seconds)


@pytest.mark.parametrize("seconds", [1e-6, 9.8e-6, 1.4e-3, 0.5])
@pytest.mark.parametrize("sets", [1, 3, 1024])
@pytest.mark.parametrize("regime", REGIMES.values(), ids=REGIMES)
def test_a_replay_is_long_enough_and_every_set_counts_the_same(regime, sets, seconds):
    launches = measure.launch_count(seconds, sets, regime.replay)
    assert launches % sets == 0
    assert launches * seconds >= regime.replay * 0.999
    assert (launches - sets) * seconds <= regime.replay * 1.001


@pytest.mark.parametrize("sizes", [(256, 256, 256), (1, 4096, 4096), (4096, 4096, 4096)], ids=str)
def test_operands_of_a_replay_exceed_the_l2(sizes):
    h200 = gpu.spec("h200")
    problem = space.problem(*sizes)
    sets = measure.set_count(problem, h200)
    assert sets * problem.compulsory_bytes > h200.l2_bytes
    assert (sets - 1) * problem.compulsory_bytes < 2 * h200.l2_bytes


def test_tiny_problems_take_a_bounded_number_of_sets():
    assert measure.set_count(space.problem(1, 1, 1), gpu.spec("h200")) == measure.MOST_SETS


@pytest.mark.gpu
def test_graph_replay_computes_and_takes_time():
    sets = [tuple(torch.randn(512, 512, device="cuda") for _ in range(3)) for _ in range(3)]
    replay = measure.GraphReplay(lambda a, b, out: torch.mm(a, b, out=out), sets, 1e-3)
    for _, _, out in sets:
        out.fill_(math.nan)
    seconds = replay()
    for a, b, out in sets:
        torch.testing.assert_close(out, a @ b)
    assert replay.launches % 3 == 0
    assert 0 < seconds < 1
    replay.free()
