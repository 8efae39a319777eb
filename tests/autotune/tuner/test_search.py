"""Searches: which trials they ask for, and that they find the best."""

import itertools
import random

import pytest

from tritonmm import gpu
from tritonmm.autotune.bench import suite
from tritonmm.autotune.measuring import space
from tritonmm.autotune.measuring.trial import Trial
from tritonmm.autotune.tuner import search
from tritonmm.autotune.tuner.search import SEARCHES, Rung, Search
from tritonmm.problem import Problem
from tritonmm.selection import estimated

H200 = gpu.spec("h200")
PROBLEM = space.problem(1000, 4096, 4096)
CONFIGS = space.candidates(PROBLEM, H200)


def hunted(search, time_us, torch_us=lambda: None):
    """Every question that the search asks, answered from `time_us(config, regime)`."""
    asked, trials = [], search.trials()
    question = next(trials)
    while True:
        regime, configs = question
        asked.append((regime, list(configs)))
        answers = [
            Trial(search.problem, config, "gpu", regime, "ok", "", time_us(config, regime), torch_us())
            for config in configs
        ]
        random.Random(0).shuffle(answers)
        try:
            question = trials.send(answers)
        except StopIteration:
            return asked


GRAMS = [Problem.dense(n, n, k, layout="nt", symmetric="gram") for n, k in ((2048, 2048), (1001, 4096))]


GROUPED = [entry.problem() for entry in suite.load("grouped-mm")[::12]]


@pytest.mark.parametrize(
    "problem", [*(entry.problem() for entry in suite.load("public")[::6]), *GRAMS, *GROUPED], ids=str
)
def test_candidates_are_legal_different_and_begin_with_what_select_chooses(problem):
    found = space.candidates(problem, H200)
    assert all(config.fits(problem, H200) for config in found)
    assert len(found) == len(set(found)) >= 50
    assert found[0] == estimated(problem, H200).config
    assert found == space.candidates(problem, H200)


def test_candidates_vary_what_may_matter():
    for name, fewest in (("kernel", 3), ("num_stages", 4), ("split_tail", 3), ("order", 4), ("block_m", 4)):
        assert len({str(getattr(config, name)) for config in CONFIGS}) >= fewest, name
    ragged = space.candidates(space.problem(1000, 4095, 4095), H200)
    assert {config.repack for config in ragged} >= {"", "ab"}


def test_orders_around_that_of_a_tall_product_lie_along_its_shorter_side():
    problem = space.problem(14240, 448, 8384)
    found = [config for config in space.candidates(problem, H200) if config.kernel == "hopper"]
    for config in found:
        tiles_n = config.tiles(problem)[1]
        assert (config.order.along == "n") == (tiles_n > 1)
        assert tiles_n == 1 or config.order.factors[0] <= tiles_n
    four = {str(config.order) for config in found if config.tiles(problem)[1] == 4}
    assert four == {"swizzle-merge:4@n", "swizzle-merge:2@n"}


@pytest.mark.parametrize("problem", GROUPED, ids=str)
def test_candidates_for_groups_vary_their_sequence(problem):
    found = [config.order for config in space.candidates(problem, H200)]
    assert {order.largest_first for order in found} == {False, True}
    assert {order.joined for order in found} == ({False, True} if problem.ragged == "m" else {False})
    assert all(order.inner.factors[0] > 1 for order in found if order.joined), "else it is the same sequence"


@pytest.mark.parametrize("name", SEARCHES)
def test_the_fastest_that_is_tried_wins(name):
    fast = CONFIGS[7]
    search = Search(PROBLEM, CONFIGS, SEARCHES[name])
    asked = hunted(search, lambda config, regime: 1.0 if config == fast else 2.0 + CONFIGS.index(config) / 1000)
    assert search.over
    assert (search.best.config, search.best.regime) == (fast, "burst")
    assert [len(configs) for _, configs in asked] == search.counts()


def test_exhaustive_tries_everything():
    asked = hunted(Search(PROBLEM, CONFIGS, SEARCHES["exhaustive"]), lambda config, regime: 1.0)
    assert asked[0][1] == CONFIGS


def test_survivors_are_the_fastest_of_the_rung_before():
    rungs = (Rung("quick", 16), Rung("short", 4), Rung("burst", 2))
    times = {config: us for us, config in enumerate(random.Random(1).sample(CONFIGS, len(CONFIGS)), 1)}
    asked = hunted(Search(PROBLEM, CONFIGS, rungs), lambda config, regime: float(times[config]))
    for (_, before), (_, after) in itertools.pairwise(asked):
        assert after == sorted(before, key=times.get)[: len(after)]


def test_a_disturbed_round_is_compared_with_torchs_own():
    slow_card = iter([1.0, 2.0, 1.0, 1.0])
    rungs = (Rung("burst", 4),)
    factors = {}

    def time_us(config, regime):
        factors[config] = next(slow_card)
        return factors[config] * (10.0 + CONFIGS.index(config) % 2 * 5)

    search = Search(PROBLEM, CONFIGS[1:5], rungs)
    hunted(search, time_us, lambda: list(factors.values())[-1] * 20.0)
    assert search.best.config == CONFIGS[2]  # 20 us while torch took 40


def test_no_right_config_is_no_winner():
    search = Search(PROBLEM, CONFIGS, SEARCHES["halving"])
    asked = hunted(search, lambda config, regime: None)
    assert (search.over, search.best) == (True, None)
    assert [len(configs) for _, configs in asked] == [96, 0, 0]


def test_a_budget_takes_configs_from_the_rungs_before_the_last_and_then_from_the_last():
    rungs = SEARCHES["halving"]
    counts = [600] * 60
    for minutes in (1000, 60, 20, 10, 5):
        fitted = search.within(rungs, counts, minutes * 60)
        assert search.seconds(fitted, counts) <= minutes * 60
        assert all(a.most <= b.most for a, b in zip(fitted, rungs, strict=True))
        assert all(2 * b.most <= a.most for a, b in itertools.pairwise(fitted))
        assert fitted[-1] == rungs[-1] or minutes < 20
    assert search.within(rungs, counts, 60_000) == rungs
    assert [rung.most for rung in search.within(rungs, counts, 1)] == [4, 2, 1]
