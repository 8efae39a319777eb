"""Neighbours: what was tuned for one problem is taken for another nearby if its grid of tiles is the same, unless the
estimates speak against it."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tables import H200, PROBLEM, WINNER, best, put, row, select, valid

from tritonmm import families, tuned
from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.problem import KINDS, Epilogue, Problem

pytestmark = pytest.mark.usefixtures("user")

FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

CLOSE = replace(PROBLEM, m=4000)
"""In blocks of 128 rows it has the 32 rows of tiles of PROBLEM."""


def margin(problem, config, gpu=H200):
    """How much longer a config's estimate is than the shortest."""
    us = families.family(config.kernel).estimate(config, problem, gpu).us
    return us / select.estimated(problem, gpu).us


def test_a_neighbours_config_is_taken_where_its_estimate_agrees(user):
    """As it was tuned."""
    expected = select.estimated(CLOSE, H200)
    put(user, valid())
    assert margin(CLOSE, WINNER) > 1.1
    assert best(CLOSE) == expected
    agreeing = replace(expected.config, num_stages=3)
    put(user, valid(row(config=agreeing)))
    assert margin(CLOSE, agreeing) == 1
    found = best(CLOSE)
    assert (found.config, found.is_measured) == (agreeing, False)
    assert str(PROBLEM) in found.origin
    assert "nearby" in found.origin


SPLIT = replace(WINNER, split_tail=4)
SKINNY = Config("skinny", 16, 64, 128, 4, 4, split_k=8)
WEIGHTS = Config("mixed_input", 64, 256, 128, 4, 8, split_k=4, persistent=False)


@pytest.mark.parametrize(
    ("config", "tuned_for", "asked", "is_taken"),
    [
        (WINNER, (4096, 4096, 4096), (3969, 4088, 3000), True),
        (WINNER, (4096, 4096, 4096), (3968, 4096, 4096), False),
        (WINNER, (4096, 4096, 4096), (4097, 4096, 4096), False),
        (WINNER, (4096, 2048, 4096), (2048, 4096, 4096), False),
        (SPLIT, (512, 512, 16384), (512, 480, 9000), True),
        (SPLIT, (512, 512, 16384), (640, 512, 9000), False),
        (SKINNY, (8, 4096, 4096), (10, 4064, 4096), True),
        (SKINNY, (8, 4096, 4096), (8, 8192, 4096), False),
        (WEIGHTS, (64, 8192, 4096), (50, 8192, 4096), True),
        (WEIGHTS, (64, 8192, 4096), (64, 4096, 4096), False),
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_it_is_taken_for_as_many_rows_and_columns_of_tiles_alone(user, monkeypatch, config, tuned_for, asked, is_taken):
    """An H100 took 1.4 times as long for 672x1024x8576 in the tiles of 512x512x16384, whose 32 were split, as these 96
    were not."""
    monkeypatch.setattr(select, "AGREES", 100)
    kind = KINDS["bf16-int8-row" if config is WEIGHTS else "bf16"]
    one, other = (Problem.dense(*sizes, layout="nt", **kind) for sizes in (tuned_for, asked))
    put(user, valid(row(one, config)))
    assert tuned.tables(H200).near(other)
    assert config.fits(other, H200)
    assert best(other).config == (config if is_taken else select.estimated(other, H200).config)


def test_it_is_taken_for_as_many_products_alone(user, monkeypatch):
    monkeypatch.setattr(select, "AGREES", 100)
    put(user, valid(row(replace(CLOSE, batch=5))))
    assert best(replace(CLOSE, m=4001, batch=5)).config == WINNER
    other = replace(CLOSE, batch=6)
    assert tuned.tables(H200).near(other)
    assert best(other) == select.estimated(other, H200)


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
    stages = {4032: 4, 3970: 3, 5000: 5}
    rows = {m: row(replace(PROBLEM, m=m), replace(WINNER, num_stages=s)) for m, s in stages.items()}
    put(user, valid(*rows.values()))
    assert [x.problem.m for x in tuned.tables(H200).near(PROBLEM)] == [4032, 3970, 5000]
    assert best().config.num_stages == 4
    put(user, valid(*rows.values(), row(replace(PROBLEM, m=4090), replace(WINNER, num_stages=9))))
    assert best().config.num_stages == 4


def test_an_empty_product_has_no_neighbour(user):
    put(user, valid(row(Problem.dense(1, 1, 1), Config())))
    for m, n, k in ((0, 1, 1), (1, 1, 0)):
        assert tuned.tables(H200).near(Problem.dense(m, n, k)) == []


@FUZZ
@given(
    sizes=st.tuples(*[st.integers(1, 20_000)] * 3), shares=st.tuples(*[st.floats(0.5, 2) | st.floats(0.95, 1.05)] * 3),
    layout=st.sampled_from(["nn", "nt", "tn"]), gpu=st.sampled_from(gpus.names()),
)  # fmt: skip
def test_what_is_chosen_is_legal_and_agrees(user, sizes, shares, layout, gpu):
    gpu = gpus.spec(gpu)
    asked = Problem.dense(*sizes, layout=layout)
    other = Problem.dense(*(max(1, round(x * share)) for x, share in zip(sizes, shares, strict=True)), layout=layout)
    tables = tuned.Tables([row(other, config) for config in list(select.timed(other, gpu))[:3]])
    found = select.best_by(asked, gpu, "", tables)
    assert found.config.fits(asked, gpu)
    assert found.us <= select.estimated(asked, gpu).us * select.AGREES or found.is_measured
