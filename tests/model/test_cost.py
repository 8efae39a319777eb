"""Predicted times: lower bounds, monotonicity, and rankings that a measurement would give too."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.model import cost, l2
from tritonmm.orders import Hilbert, RowMajor, SplitMerge, SwizzleMerge, Table
from tritonmm.problem import Problem

H200 = gpus.spec("h200")
LARGEST = Config(block_m=128, block_n=256, num_stages=4, order=SwizzleMerge(16))
MIDDLE = Config(block_m=128, block_n=128, num_stages=4)
SMALL = Config(block_m=64, block_n=64, num_stages=4, num_warps=4)
SLIM = Config(block_m=16, block_n=64, block_k=128, num_stages=4, num_warps=4)
CONFIGS = [
    LARGEST,
    MIDDLE,
    SMALL,
    SLIM,
    replace(LARGEST, persistent=True),
    replace(SMALL, persistent=True, order=SplitMerge(3)),
    replace(SMALL, num_stages=1, num_warps=1, order=RowMajor()),
    replace(MIDDLE, split_k=3, order=Hilbert()),
]


def best(problem: Problem, *configs: Config) -> Config:
    return min(configs, key=lambda c: cost.predict(problem, c, H200).seconds)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", gpus.names())
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_nothing_beats_the_speed_of_light(config, name, dtype):
    gpu = gpus.spec(name)
    for m, n, k, batch in (
        (1, 1, 1, 1),
        (4096, 4096, 4096, 1),
        (1, 28672, 4096, 1),
        (300, 77, 5001, 3),
        (64, 64, 0, 2),
    ):
        p = Problem(m, n, k, batch=batch, dtype=dtype)
        found = cost.predict(p, config, gpu)
        assert found.seconds > cost.speed_of_light(p, gpu) > 0, f"{p}: {found}"
        assert math.isfinite(found.seconds)


def test_speed_of_light_is_the_longer_of_flops_and_bytes():
    square, decode = Problem(8192, 8192, 8192), Problem(1, 28672, 4096)
    assert cost.speed_of_light(square, H200) == square.flops / 989e12
    assert cost.speed_of_light(decode, H200) == decode.compulsory_bytes / 4.8e12
    exact, rounded = (Problem(8192, 8192, 8192, dtype="fp32", precision=p) for p in ("ieee", "tf32"))
    assert cost.speed_of_light(exact, H200) > 7 * cost.speed_of_light(rounded, H200)


@settings(max_examples=100, deadline=None)
@given(
    m=st.integers(1, 2000),
    n=st.integers(1, 2000),
    k=st.integers(0, 3000),
    more=st.integers(1, 500),
    config=st.sampled_from(CONFIGS),
    name=st.sampled_from(gpus.names()),
)
def test_never_falls_as_k_grows(m, n, k, more, config, name):
    short, long = (cost.predict(Problem(m, n, depth), config, gpus.spec(name)) for depth in (k, k + more))
    assert short.seconds <= long.seconds


@pytest.mark.parametrize("size", [2048, 4096, 8192, 16384])
def test_large_squares_want_large_tiles(size):
    times = [cost.predict(Problem(size, size, size), c, H200).seconds for c in (LARGEST, MIDDLE, SMALL, SLIM)]
    assert times == sorted(times)
    assert times[2] > 1.5 * times[0]


@pytest.mark.parametrize("size", [128, 256, 512])
def test_small_squares_want_small_tiles(size):
    assert best(Problem(size, size, size), LARGEST, MIDDLE, SMALL) is SMALL


def test_a_row_vector_wants_slim_tiles():
    assert best(Problem(1, 4096, 4096), LARGEST, MIDDLE, SMALL, SLIM) is SLIM


def test_a_wave_that_is_just_too_long_is_paid():
    """133 tiles on 132 SMs take about as long as 264, and much longer than 132."""
    alone = replace(LARGEST, persistent=True)
    grids = (11, 12), (19, 7), (22, 12)
    full, spilled, double = (cost.predict(Problem(128 * m, 256 * n, 8192), alone, H200) for m, n in grids)
    assert (full.waves, spilled.waves, double.waves) == (1, 2, 2)
    assert spilled.seconds > 1.8 * full.seconds
    assert spilled.seconds > 0.9 * double.seconds


def test_waves_count_what_runs_together():
    p = Problem(8192, 8192, 8192)
    assert cost.predict(p, LARGEST, H200).waves == math.ceil(64 * 32 / 132)
    pairs = replace(MIDDLE, block_m=64, num_stages=3)
    assert l2.programs_per_sm(p, pairs, H200) == 2
    assert cost.predict(p, pairs, H200).waves == math.ceil(128 * 64 / 264)


@pytest.mark.parametrize("config", [LARGEST, SMALL], ids=str)
def test_more_stages_hide_more_latency(config):
    p = Problem(512, 512, 8192)
    times = [cost.predict(p, replace(config, num_stages=stages), H200).seconds for stages in (1, 2, 3)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.2 * times[1]


def test_programs_of_an_sm_hide_each_others_loads_and_stores():
    p = Problem(16384, 16384, 64)
    several, one = (cost.predict(p, replace(SMALL, persistent=alone), H200).seconds for alone in (False, True))
    assert l2.programs_per_sm(p, SMALL, H200) > 1
    assert one > 1.5 * several


def test_a_lone_warp_leaves_most_of_an_sm_idle():
    p = Problem(64, 64, 8192, dtype="fp32")
    one, four = (cost.predict(p, replace(SMALL, num_warps=w), H200).seconds for w in (1, 4))
    assert one > 3 * four


def test_deep_k_wants_split_k():
    p = Problem(256, 256, 65536)
    assert cost.predict(p, replace(MIDDLE, split_k=16), H200).seconds < cost.predict(p, MIDDLE, H200).seconds / 4


def test_a_bad_order_costs_what_was_measured():
    """16384 x 16384 x 4096 on an H200: factor 1 takes 1.166 of the time of factor 12, factor 4 1.018 (2026-11-21)."""
    one, four, twelve = (
        cost.predict(
            Problem(16384, 16384, 4096), replace(LARGEST, persistent=True, order=SwizzleMerge(f)), H200
        ).seconds
        for f in (1, 4, 12)
    )
    assert one / twelve == pytest.approx(1.166, abs=0.06)
    assert four / twelve == pytest.approx(1.018, abs=0.02)


def test_overflow_programs_are_not_free():
    p = Problem(128 * 9, 256 * 64, 512)
    split, swizzle = (cost.predict(p, replace(LARGEST, order=o(8)), H200) for o in (SplitMerge, SwizzleMerge))
    assert split.seconds > swizzle.seconds + 1e-6
    assert split.waves == swizzle.waves


@pytest.mark.parametrize(
    ("bound", "problem", "config"),
    [
        ("tensor cores", Problem(8192, 8192, 8192), LARGEST),
        ("device memory", Problem(1, 28672, 4096), SLIM),
        ("device memory", Problem(16384, 16384, 64, out_dtype="fp32"), replace(SMALL, num_stages=2)),
        ("l2", Problem(8192, 8192, 8192), SMALL),
        ("l2", Problem(128, 128, 65536), MIDDLE),
        ("launch", Problem(64, 64, 64), SMALL),
        ("launch", Problem(0, 64, 64), SMALL),
    ],
    ids=["square", "decode", "outer product", "small tiles", "one tile", "tiny", "empty"],
)
def test_names_what_binds(bound, problem, config):
    found = cost.predict(problem, config, H200)
    assert found.bound == bound, found


@pytest.mark.parametrize(
    ("problem", "config", "microseconds"),
    [
        (Problem(8192, 8192, 8192), LARGEST, (1376, 1620)),
        (Problem(16384, 16384, 4096), LARGEST, (2782, 3344)),
        (Problem(4096, 4096, 4096), LARGEST, (193, 208)),
        (Problem(2048, 2048, 2048), LARGEST, (25.6, 25.6)),
        (Problem(1, 28672, 4096, layout="nt"), SLIM, (55.6, 55.6)),
        (Problem(64, 28672, 4096, layout="nt"), SMALL, (61, 61)),
    ],
    ids=lambda x: str(x) if isinstance(x, Problem) else "",
)
def test_near_the_best_times_of_an_h200(problem, config, microseconds):
    """A fifth around the times of torch.mm, rested to sustained: a good config is about as good."""
    fastest, slowest = microseconds
    assert 0.8 * fastest < cost.predict(problem, config, H200).seconds * 1e6 < 1.2 * slowest


@pytest.mark.parametrize("sizes", [(0, 8, 8, 1), (8, 0, 8, 1), (8, 8, 8, 0)], ids=["m", "n", "batch"])
def test_empty_product_takes_no_time(sizes):
    m, n, k, batch = sizes
    p = Problem(m, n, k, batch=batch)
    assert cost.predict(p, MIDDLE, H200) == cost.Prediction(0.0, "launch", 0, l2.Traffic(0, 0, 0))
    assert cost.speed_of_light(p, H200) == 0


def test_carries_the_traffic_it_used():
    p = Problem(1024, 1024, 1024)
    assert cost.predict(p, MIDDLE, H200).traffic == l2.of(p, MIDDLE, H200)


def test_table_of_another_grid_is_refused():
    with pytest.raises(ValueError, match="does not fit a grid of 8 x 8 tiles"):
        cost.predict(Problem(1024, 1024, 64), replace(MIDDLE, order=Table([(0, 0)])), H200)


def test_prints_time_bound_and_waves():
    text = str(cost.Prediction(12.34e-6, "l2", 1, l2.Traffic(10, 20, 40)))
    assert text == "12.3 us, bound by l2, 1 wave; DRAM reads 10 B, writes 20 B; L2 reads 40 B, 75.0% hit"
