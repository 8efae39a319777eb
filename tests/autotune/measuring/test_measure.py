"""Paired timing: what is run in which order, when it stops, and what is made of the times."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tritonmm import gpu
from tritonmm.autotune.measuring import measure, space
from tritonmm.autotune.measuring.group_sizes import sizes_of
from tritonmm.autotune.measuring.measure import GRAPH_SECONDS, REGIMES, Paired, standard_error

BURST, SUSTAINED = REGIMES["burst"], REGIMES["sustained"]


class Bench:
    """Two rivals whose replays and rests are written down, each answering from its list of seconds."""

    def __init__(self, ours, torchs, mhz=()):
        self.log = []
        self.asked = []
        self.answers = {"ours": iter(ours), "torch": iter(torchs)}
        self.mhz = dict(mhz)

    def rival(self, name):
        def replay(seconds, meanwhile):
            self.log.append(name)
            self.asked.append(seconds)
            meanwhile()
            return next(self.answers[name])

        return replay

    def clock(self):
        return self.mhz.get(self.log[-1])

    def paired(self, regime):
        ours, torchs = self.rival("ours"), self.rival("torch")
        return measure.paired(ours, torchs, regime, rest=self.log.append, clock=self.clock)


def exactly(regime, rounds):
    return replace(regime, fewest=rounds, most=rounds)


def test_medians_are_kept_apart():
    # One disturbed replay on each side must not show.
    times = Bench([1e-6, 2e-6, 900e-6], [7e-6, 5e-6, 1e-9]).paired(exactly(BURST, 3)).times
    assert (times.time_us, times.torch_us) == (pytest.approx(2.0), pytest.approx(5.0))


def test_the_ratio_is_of_rounds_not_of_medians():
    # The card slows down by half on the way, for both: the rounds agree, the medians alone would not.
    paired = Bench([1e-6, 1e-6, 2e-6, 2e-6, 2e-6], [2e-6, 2e-6, 4e-6, 2e-6, 2e-6]).paired(exactly(BURST, 5))
    assert paired.ratios == pytest.approx([2, 2, 2, 1, 1])
    assert paired.ratio == pytest.approx(2)


def test_a_ratio_above_1_means_that_ours_is_faster():
    assert Paired((1e-6,) * 3, (2e-6,) * 3).ratio == 2


def test_each_round_runs_both_once_in_random_and_balanced_order():
    bench = Bench([1e-6] * 40, [1e-6] * 40)
    bench.paired(exactly(BURST, 40))
    runs = [name for name in bench.log if name in ("ours", "torch")]
    rounds = list(zip(runs[::2], runs[1::2], strict=True))
    assert all(set(pair) == {"ours", "torch"} for pair in rounds)
    assert rounds.count(("ours", "torch")) == 20
    assert 3 < rounds[::2].count(("ours", "torch")) < 17


def test_burst_rests_before_each_replay():
    bench = Bench([1e-6] * 11, [1e-6] * 11)
    bench.paired(exactly(BURST, 11))
    assert bench.log[::2] == [BURST.rest] * 22
    assert set(bench.log[1::2]) == {"ours", "torch"}


def test_sustained_never_rests_and_warms_up_unseen():
    regime = replace(exactly(SUSTAINED, 3), warm=0.5, replay=0.02)
    cold = [1.0] * 13
    bench = Bench([*cold, 1e-6, 1e-6, 1e-6], [*cold, 2e-6, 2e-6, 2e-6])
    times = bench.paired(regime).times
    assert (times.time_us, times.torch_us) == (pytest.approx(1.0), pytest.approx(2.0))
    assert len(bench.log) == 32
    assert set(bench.log) == {"ours", "torch"}
    assert set(bench.asked) == {0.02}


@pytest.mark.parametrize("regime", REGIMES.values(), ids=REGIMES)
def test_steady_rivals_are_measured_in_the_fewest_rounds(regime):
    paired = Bench([1e-6] * 99, [1.1e-6] * 99).paired(regime)
    assert len(paired.ratios) == regime.fewest
    assert paired.error < measure.PRECISE


@pytest.mark.parametrize("regime", REGIMES.values(), ids=REGIMES)
def test_restless_rivals_are_measured_in_the_most_rounds(regime):
    paired = Bench([1e-6, 1.5e-6] * 50, [1e-6] * 99).paired(regime)
    assert len(paired.ratios) == regime.most
    assert paired.error > measure.PRECISE


def test_rivals_that_calm_down_are_measured_until_the_ratio_is_precise():
    unsteady = [1e-6, 1.2e-6, 0.9e-6, 1.1e-6, 0.8e-6, 1.3e-6]
    paired = Bench([*unsteady, *[1e-6] * 40], [1e-6] * 46).paired(replace(BURST, fewest=7, most=40))
    assert 7 < len(paired.ratios) < 40
    assert paired.error < measure.PRECISE
    assert standard_error(paired.ratios[:-1]) > measure.PRECISE * paired.ratio


def test_clocks_are_read_while_each_rival_runs():
    paired = Bench([1e-6] * 7, [1e-6] * 7, {"ours": 1900.0, "torch": 1700.0}).paired(BURST)
    assert (paired.ours_mhz, paired.torch_mhz) == (1900, 1700)


def test_a_clock_that_cannot_be_read_is_no_error():
    paired = Bench([1e-6] * 7, [1e-6] * 7, {"ours": 1900.0}).paired(BURST)
    assert (paired.ours_mhz, paired.torch_mhz) == (1900, None)


def test_ours_is_measured_alone_where_torch_refuses():
    paired = measure.paired(lambda seconds, meanwhile: 2e-6, None, BURST, rest=lambda seconds: None)
    assert paired.ours == (2e-6,) * BURST.fewest
    assert (paired.times.torch_us, paired.ratio, paired.ratios, paired.torch_mhz) == (None, None, [], None)
    assert paired.times.time_us == pytest.approx(2)


@pytest.mark.parametrize("seconds", [math.nan, 0.0, -1e-6, math.inf], ids=["nan", "zero", "negative", "inf"])
def test_what_no_clock_measures_is_refused(seconds):
    with pytest.raises(ValueError, match="finite and above 0"):
        Bench([1e-6, seconds], [1e-6] * 2).paired(exactly(BURST, 2))


@pytest.mark.parametrize("count", [7, 13, 25])
def test_the_standard_error_of_normal_numbers_is_that_of_their_median(count):
    draws = torch.randn(4000, count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scatter = draws.median(dim=1).values.std().item()
    estimated = sum(standard_error(row) for row in draws.tolist()) / len(draws)
    assert estimated == pytest.approx(scatter, rel=0.12)


@given(st.lists(st.floats(0.5, 2.0), min_size=6), st.floats(0, 1e9))
def test_one_disturbed_round_cannot_raise_the_error_at_will(values, disturbed):
    spread = max(values) - min(values)
    assert standard_error([*values, disturbed]) <= spread / 3.29 * (1 + 1e-9)


@pytest.mark.parametrize("values", [[], [1.0]], ids=["none", "one"])
def test_too_few_values_are_never_precise(values):
    assert standard_error(values) == math.inf


@pytest.mark.parametrize("seconds", [1e-6, 9.8e-6, 1.4e-3, 0.5])
@pytest.mark.parametrize("sets", [1, 3, 1024])
def test_a_graph_is_long_enough_and_every_set_counts_the_same(sets, seconds):
    launches = measure.launch_count(seconds, sets)
    assert launches % sets == 0
    assert launches * seconds >= GRAPH_SECONDS * 0.999
    assert (launches - sets) * seconds <= GRAPH_SECONDS * 1.001


@pytest.mark.parametrize("sizes", [(256, 256, 256), (1, 4096, 4096), (4096, 4096, 4096)], ids=str)
def test_operands_of_a_replay_exceed_the_l2(sizes):
    h200 = gpu.spec("h200")
    problem = space.problem(*sizes)
    sets = measure.set_count(problem, h200)
    assert sets * problem.compulsory_bytes > h200.l2_bytes
    assert (sets - 1) * problem.compulsory_bytes < 2 * h200.l2_bytes


@pytest.mark.parametrize(("distribution", "read"), [("even", 128), ("one-hot", 1), ("empties", 64)])
def test_matrices_of_empty_groups_do_not_exceed_the_l2(distribution, read):
    """They are not read, so they leave what is read in L2."""
    h200 = gpu.spec("h200")
    problem = space.problem(512, 1536, 2048, ragged="m", groups=128)
    moved = 2 * (512 * (1536 + 2048) + read * 1536 * 2048)
    sets = measure.set_count(problem, h200, sizes_of(problem, distribution))
    assert sets * moved > h200.l2_bytes
    assert (sets - 1) * moved < 2 * h200.l2_bytes


def test_tiny_problems_take_a_bounded_number_of_sets():
    assert measure.set_count(space.problem(1, 1, 1), gpu.spec("h200")) == measure.MOST_SETS


@pytest.mark.gpu
@pytest.mark.parametrize("seconds", [0.001, 0.02], ids=["one graph", "many graphs"])
def test_graph_replay_computes_and_takes_time(seconds):
    sets = [tuple(torch.randn(512, 512, device="cuda") for _ in range(3)) for _ in range(3)]
    replay = measure.GraphReplay(lambda a, b, out: torch.mm(a, b, out=out), sets)
    for _, _, out in sets:
        out.fill_(math.nan)
    busy = []
    once = replay(seconds, lambda: busy.append(not torch.cuda.current_stream().query()))
    for a, b, out in sets:
        torch.testing.assert_close(out, a @ b)
    assert replay.launches % 3 == 0
    assert busy == [True]
    assert 0 < once * replay.launches < 1
    replay.free()


@pytest.mark.gpu
def test_a_graph_keeps_the_tensors_that_it_reads(device):
    """Nobody else may hold them, and what the allocator has left it gives back before the next capture."""
    sets = [tuple(torch.randn(2048, 2048, device=device) for _ in range(3)) for _ in range(4)]
    replay = measure.GraphReplay(lambda a, b, out: torch.mm(a, b, out=out), sets)
    del sets
    torch.cuda.empty_cache()
    assert replay(0.002) > 0
    torch.cuda.synchronize()
    replay.free()


def test_a_row_has_medians_of_both_sides():
    assert Paired((1e-6, 3e-6, 2e-6), (4e-6, 6e-6, 6e-6)).row == (6.0, 2.0, 3.0)
