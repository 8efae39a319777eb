"""What `select` chooses is legal, splits what leaves SMs idle, and is nearly the fastest that was measured."""

import itertools
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured import estimate, geomean, sweep

from tritonmm import families, orders
from tritonmm import gpu as gpus
from tritonmm.autotune.studies import regret
from tritonmm.families.hopper.rules import HAS_CLUSTERS
from tritonmm.problem import KINDS, Problem
from tritonmm.selection import ORDERED, choose, estimated, in_full_if_faster, select, timed

H200 = gpus.spec("h200")


def test_select_without_a_legal_config_says_why():
    with pytest.raises(ValueError, match="a100 is sm_80"):
        choose(Problem(64, 64, 64), gpus.spec("a100"), "hopper")


@pytest.mark.parametrize(
    "problem",
    [Problem.dense(5003, 4096, 4096, layout="nt"), Problem.dense(1, 4096, 14336), Problem.dense(300, 300, 20000)],
    ids=str,
)
def test_configs_that_are_estimated_only_where_their_bound_allows_it_are_in_the_right_order(problem):
    found = timed(problem, H200)
    every = {
        config: family.estimate(config, problem, H200).us
        for family in families.each()
        if not family.passed_over(problem, H200)
        for config in family.candidates(problem, H200)
        if config.fits(problem, H200)
    }
    assert list(found.values()) == sorted(found.values())
    first = sorted(every, key=every.__getitem__)[:ORDERED]  # in other orders of tiles, too
    assert {config: us for config, us in every.items() if config not in first}.items() <= found.items()
    assert next(iter(found.values())) <= min(every.values())
    assert estimated(problem, H200).us == next(iter(found.values()))


def test_select_splits_a_tail_that_is_almost_empty():
    """33 x 16 tiles are four rounds of 132 SMs and not one more; 34 x 16 leave 16 tiles to a fifth."""
    assert select(33 * 128, 4096, 8192, gpu="h200").split_tail == 1
    assert select(34 * 128, 4096, 8192, gpu="h200").split_tail > 1


@pytest.mark.parametrize("kind", KINDS)
def test_one_invariant_row_takes_no_longer_than_sixteen(kind):
    one, sixteen = (
        estimated(Problem.dense(m, 4096, 4096, layout="nt", accumulation="invariant", **KINDS[kind]), H200).us
        for m in (1, 16)
    )
    assert one <= 1.01 * sixteen


def test_select_takes_large_tiles_for_large_products_and_small_ones_for_small():
    large, small = select(8192, 8192, 8192, gpu="h200"), select(64, 64, 4096, gpu="h200")
    assert large.block_m * large.block_n >= 128 * 256
    assert small.block_m * small.block_n <= 64 * 64


@pytest.mark.parametrize("name", ["random60", "random70", "random78", "random80", "random82"])
def test_choices_are_nearly_the_fastest_configs_measured(name):
    """Of every legal config of 60 random products, to half of which the model is fitted."""
    shares = []
    for problem, times in sweep(name).items():
        us = regret.time_of(times, estimated(problem, H200).config)
        if us:
            shares.append(min(times.values()) / us)
    assert len(shares) > 40
    assert geomean(shares) > 0.955
    assert sum(share < 0.85 for share in shares) <= 5


@pytest.mark.parametrize(
    ("names", "mean", "worst"),
    [(("l2", "l2-16384", "orders-large"), 0.99, 0.95), (("orders62", "orders93"), 0.985, 0.85)],
    ids=["large", "random"],
)
def test_estimates_choose_tile_orders_that_are_nearly_the_fastest(names, mean, worst):
    """Of each config that was timed in several orders."""
    times = defaultdict(dict)
    for name in names:
        for problem, found in sweep(name).items():
            for config, us in found.items():
                times[problem, replace(config, order=orders.RowMajor())][config] = us
    shares = {}
    for (problem, config), found in times.items():
        if len(found) > 2:
            chosen = min(found, key=lambda each: estimate(each, problem))
            shares[problem, config] = min(found.values()) / found[chosen]
    assert len(shares) > 50
    assert geomean(list(shares.values())) > mean
    assert min(shares.values()) > worst, min(shares, key=shares.__getitem__)


@given(
    m=st.integers(1, 20000),
    n=st.integers(1, 20000),
    k=st.integers(1, 4000),
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
    kernel=st.sampled_from(["hopper", "persistent", "tile"]),
)
def test_chosen_orders_launch_no_program_without_a_tile(m, n, k, layout, kernel):
    problem = Problem.dense(m, n, k, layout=layout)
    for config in itertools.islice(timed(problem, H200, kernel), 3):
        tiles_m, tiles_n = config.tiles(problem)
        assert config.order.launched(tiles_m, tiles_n) == tiles_m * tiles_n


@pytest.mark.parametrize(
    ("problem", "in_pairs"),
    [
        (Problem.dense(1000, 1000, 1000, batch=32), True),  # lines of 2000 bytes
        (Problem.dense(4072, 4072, 4072), True),
        (Problem.dense(4096, 4072, 4096), False),  # lines of B only
        (Problem.dense(4096, 4096, 4096), False),
        (Problem.dense(4095, 4095, 4095), False),  # copied into whole lines
        (Problem.dense(1000, 1000, 1000, dtype="fp8e4m3", batch=32), False),
    ],
    ids=str,
)
def test_pairs_share_an_operand_where_lines_of_both_cross_cache_lines(problem, in_pairs):
    found = timed(problem, H200)
    best = next(iter(found))
    assert (best.cluster == "m") == (in_pairs and HAS_CLUSTERS)
    if best.cluster:
        alone = next(config for config in found if not config.cluster)
        assert (best.block_m, best.block_n) == (256, 256)
        assert found[best] < 0.95 * found[alone]


def test_a_small_gram_is_computed_in_full_where_that_is_faster():
    """The SMs multiply 128 tiles of 1024 x 1024 at once, and the 72 that meet its triangle."""

    def gram(n, **fields):
        return Problem.dense(n, n, n, layout="nt", symmetric="gram", **fields)

    for n, is_whole in ((1024, True), (1280, False), (8192, False)):
        found = in_full_if_faster(gram(n), H200)
        assert found == (replace(gram(n), symmetric="", accumulation="invariant") if is_whole else gram(n))
    parts = gram(1024, dtype="fp32", precision="bf16x3")  # whose sums above the diagonal are others
    assert in_full_if_faster(parts, H200) == parts
