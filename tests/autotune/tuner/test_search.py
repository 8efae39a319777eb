"""Searches: which trials they ask for, and that they find the best."""

import itertools
import random
from dataclasses import replace

import pytest
from tables import WINNER, put, row, valid

from tritonmm import gpu, orders, tuned
from tritonmm.autotune.bench import suite
from tritonmm.autotune.measuring import space
from tritonmm.autotune.measuring.trial import Trial
from tritonmm.autotune.tuner import search
from tritonmm.autotune.tuner.search import SEARCHES, Rung, Search
from tritonmm.config import Config
from tritonmm.problem import KINDS, Problem
from tritonmm.selection import choose, estimated
from tritonmm.tuned import table

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


H100 = gpu.spec("h100")
LIKE_H200 = replace(H200, name="nvidiagh200480gb", sms=114)
INT8_WEIGHTS = Problem.dense(33, 4096, 4096, layout="nt", **KINDS["bf16-int8"])

TUNED = {
    "plain": (PROBLEM, WINNER),
    "invariant": (replace(PROBLEM, accumulation="invariant"), WINNER),
    "batch": (space.problem(1000, 1000, 1000, batch=32), WINNER),
    "scales": (INT8_WEIGHTS, Config("tile", 16, 128, 32, 5, 4)),
    "groups": (GROUPED[0], Config("grouped", 64, 128, 64, 3, 8, order=orders.Grouped(orders.SwizzleMerge(7)))),
}
"""GEMMs, and for each a config that is legal and that no estimate suggests."""


def ships(user, *rows, on=H100):
    """Makes them the rows of the only table that ships, a GPU's."""
    named = {"name": on.name, "arch": on.arch, "sms": on.sms}
    put(user.parents[1] / "shipped" / f"{on.name}.json", valid(*rows) | {"schema": table.SCHEMA, "gpu": named})


def best_of_four(problem, on, fastest):
    """What wins where there is time for four configs and one of all is the fastest."""
    searched = Search(problem, space.candidates(problem, on), (Rung("quick", 4), Rung("burst", 1)))
    hunted(searched, lambda config, regime: 1.0 if config == fastest else 2.0)
    return searched.best.config


@pytest.mark.parametrize("on", [H100, H200, LIKE_H200], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("name", TUNED)
def test_what_another_gpus_table_has_for_the_gemm_is_among_the_first_that_are_tried(user, name, on):
    problem, config = TUNED[name]
    without = space.candidates(problem, on)
    assert config.fits(problem, on)
    assert config not in without
    ships(user, row(problem, config))
    assert space.candidates(problem, on) == [without[0], config, *without[1:]]
    assert best_of_four(problem, on, config) == config


def test_what_another_table_has_is_tried_once(user):
    without = space.candidates(PROBLEM, H200)
    for known in (without[0], without[200]):
        ships(user, row(PROBLEM, known), row(PROBLEM, known, triton="3.0"))
        others = [config for config in without[1:] if config != known]
        assert space.candidates(PROBLEM, H200) == list(dict.fromkeys([without[0], known])) + others


OTHERS = {
    "other architecture": (H200, PROBLEM, gpu.spec("a100")),
    "architecture without tables": (replace(H200, name="new", arch="sm_99"), PROBLEM, H100),
    "other product": (H200, replace(PROBLEM, m=1001), H100),
    "too little shared memory": (replace(H200, name="small", shared_bytes=101_376), PROBLEM, H100),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_says_nothing_of_this_gemm_on_this_gpu_is_not_tried(user, name):
    on, tuned_for, where = OTHERS[name]
    without = space.candidates(PROBLEM, on)
    ships(user, row(tuned_for, WINNER), on=where)
    assert space.candidates(PROBLEM, on) == without


def test_what_is_tried_is_the_same_after_the_winners_are_published(user):
    ships(user, row(PROBLEM, WINNER))
    before = space.candidates(PROBLEM, H200)
    assert tuned.publish([(PROBLEM, before[50], 100.0)], H200) == user
    assert choose(PROBLEM, H200) == before[50]
    assert space.candidates(PROBLEM, H200) == before


@pytest.mark.parametrize("on", [H100, H200], ids=lambda gpu: gpu.name)
def test_all_that_ships_is_tried_even_by_a_short_search(on):
    shipped = [row for of in (H100, H200) for row in table.read(tuned._SHIPPED / f"{of.name}.json", of)[0]]
    rows = [row for row in shipped if row.problem.n == row.problem.k == 4096]  # 257x4096x4096 among them
    late = [
        f"{row.problem}: {row.config}"
        for row in rows
        if row.config.fits(row.problem, on) and row.config not in space.candidates(row.problem, on)[:4]
    ]
    assert len(rows) > 30
    assert not late


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
