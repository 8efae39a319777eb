"""Neighbours: what was tuned for one problem is taken for another nearby, unless the estimates speak against it."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tables import H200, PROBLEM, WINNER, best, forget, put, row, select, valid

from tritonmm import families, orders, tuned
from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.problem import Epilogue, Problem

pytestmark = pytest.mark.usefixtures("user")

FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

CLOSE = replace(PROBLEM, m=3000)


def margin(problem, config, gpu=H200):
    """How much longer a config's estimate is than the shortest, adapted and in its best order."""
    return min(estimates(problem, config, gpu).values()) / select.estimated(problem, gpu).us


def estimates(problem, config, gpu=H200):
    """Microseconds of a config as its family adapts it, in all orders."""
    family = families.family(config.kernel)
    adapted = list(family.adapted(config, problem, problem, gpu))
    configs = adapted + [other for each in adapted for other in family.orders(each, problem, gpu)]
    return {each: family.estimate(each, problem, gpu).us for each in configs}


def test_a_neighbours_config_is_taken_where_its_estimate_agrees(user, monkeypatch):
    expected = select.estimated(CLOSE, H200)
    put(user, valid())
    assert margin(CLOSE, WINNER) > select.AGREES
    assert best(CLOSE) == expected
    monkeypatch.setattr(select, "AGREES", margin(CLOSE, WINNER) + 0.001)
    forget()
    found = best(CLOSE)
    assert (found.config.kernel, found.config.block_m, found.config.block_n) == ("hopper", 128, 128)
    assert (found.config.num_stages, found.is_measured) == (4, False)
    assert str(PROBLEM) in found.origin
    assert "nearby" in found.origin


def test_a_neighbours_config_follows_the_grid(user, monkeypatch):
    """The factor fits the rows of tiles, and the split of the tail its tiles."""
    monkeypatch.setattr(select, "AGREES", 100)
    small = Problem.dense(300, 4096, 4096, layout="nt")
    put(user, valid(row(replace(small, m=512), replace(WINNER, order=orders.SwizzleMerge(4), split_tail=8))))
    config = best(small).config
    assert max(config.order.factors) <= max(config.tiles(small)) <= 32
    assert config.num_stages == WINNER.num_stages
    times = estimates(small, WINNER)
    assert times[config] == min(times.values())


def test_a_skinny_neighbour_keeps_its_programs(user, monkeypatch):
    monkeypatch.setattr(select, "AGREES", 100)
    tuned_for, asked = Problem.dense(8, 4096, 4096, layout="nt"), Problem.dense(8, 8192, 4096, layout="nt")
    config = Config("skinny", 16, 64, 128, 4, 4, split_k=8, order=orders.RowMajor())
    put(user, valid(row(tuned_for, config)))
    assert best(asked).config == replace(config, split_k=4)
    put(user, valid(row(tuned_for, replace(config, split_k=1))))
    assert best(asked).config == replace(config, split_k=1)


def test_a_weights_neighbour_has_shares_of_its_own(user, monkeypatch):
    monkeypatch.setattr(select, "AGREES", 100)
    weights = {"layout": "nt", "b_dtype": "int8", "scales": "row"}
    tuned_for, asked = Problem.dense(64, 8192, 4096, **weights), Problem.dense(64, 4096, 4096, **weights)
    config = Config("mixed_input", 64, 256, 128, 4, 8, 4, persistent=False, order=orders.RowMajor())
    put(user, valid(row(tuned_for, config)))
    assert best(asked).config == replace(config, split_k=8)  # 16 tiles instead of 32, and 132 SMs


@pytest.mark.parametrize(
    "change",
    [
        {"m": PROBLEM.m * 2 + 1},
        {"k": PROBLEM.k // 2 - 8},
        {"layout": "nn"},
        {"b_dtype": "int8", "scales": "row"},
        {"out_dtype": "fp32"},
        {"batch": 2},
        {"epilogue": Epilogue(bias=True)},
        {"a_alignment": 8},
    ],
    ids=str,
)
def test_what_is_too_different_is_no_neighbour(user, monkeypatch, change):
    monkeypatch.setattr(select, "AGREES", 100)
    put(user, valid())
    assert tuned.tables(H200).near(replace(PROBLEM, m=PROBLEM.m * 2))
    other = replace(PROBLEM, **change)
    assert not tuned.tables(H200).near(other)
    assert best(other) == select.estimated(other, H200)


def test_fp16_takes_what_was_tuned_for_bf16_unless_it_was_tuned_itself(user):
    put(user, valid())
    half = replace(PROBLEM, dtype="fp16", b_dtype="fp16", out_dtype="fp16")
    found = best(half)
    assert (found.config, found.is_measured) == (WINNER, True)
    assert str(PROBLEM) in found.origin
    own = replace(WINNER, num_stages=3)
    put(user, valid(row(), row(half, own)))
    assert (best(half).config, best().config) == (own, WINNER)
    assert str(PROBLEM) not in best(half).origin
    assert tuned.tables(H200).near(replace(half, m=3000))
    assert best(replace(half, out_dtype="fp32")) == select.estimated(replace(half, out_dtype="fp32"), H200)


def test_the_nearest_comes_first_and_what_does_not_fit_is_passed_over(user, monkeypatch):
    monkeypatch.setattr(select, "AGREES", 100)
    stages = {4: 4032, 3: 3500, 5: 5000}
    put(user, valid(*(row(replace(PROBLEM, m=m), replace(WINNER, num_stages=s)) for s, m in stages.items())))
    assert [x.problem.m for x in tuned.tables(H200).near(PROBLEM)] == [4032, 3500, 5000]
    assert best().config.num_stages == 4
    rows = [row(replace(PROBLEM, m=m), replace(WINNER, num_stages=9 if s == 4 else s)) for s, m in stages.items()]
    put(user, valid(*rows))
    assert best().config.num_stages == 3


def test_a_neighbour_that_no_model_knows_is_none(user, monkeypatch):
    monkeypatch.setattr(select, "AGREES", 100)
    unknown = Config("tile", 128, 32, 32, 3, 8)
    assert unknown.fits(CLOSE, H200)
    put(user, valid(row(config=unknown)))
    assert best(CLOSE) == select.estimated(CLOSE, H200)


def test_an_empty_product_has_no_neighbour(user):
    put(user, valid(row(Problem.dense(1, 1, 1), Config())))
    for m, n, k in ((0, 1, 1), (1, 1, 0)):
        assert tuned.tables(H200).near(Problem.dense(m, n, k)) == []


@FUZZ
@given(
    sizes=st.tuples(*[st.integers(1, 20_000)] * 3), shares=st.tuples(*[st.floats(0.5, 2)] * 3),
    layout=st.sampled_from(["nn", "nt", "tn"]), gpu=st.sampled_from(gpus.names()),
)  # fmt: skip
def test_a_neighbours_config_is_legal_and_agrees(user, sizes, shares, layout, gpu):
    gpu = gpus.spec(gpu)
    asked = Problem.dense(*sizes, layout=layout)
    other = Problem.dense(*(max(1, round(x * share)) for x, share in zip(sizes, shares, strict=True)), layout=layout)
    tables = tuned.Tables([row(other, config) for config in list(select.timed(other, gpu))[:3]])
    found = select.best_by(asked, gpu, "", tables)
    assert found.config.fits(asked, gpu)
    assert found.us <= select.estimated(asked, gpu).us * select.AGREES or found.is_measured
