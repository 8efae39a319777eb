"""Estimated times: lower bounds, and what must make a launch longer or shorter, whatever the constants."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonmm import families
from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.model.time import Parts, Time
from tritonmm.orders import Hilbert, RowMajor, SplitMerge, SwizzleMerge, Table
from tritonmm.problem import Problem

H200 = gpus.spec("h200")
LARGEST = Config(block_m=128, block_n=256, num_stages=4, order=SwizzleMerge(16))
MIDDLE = Config(block_m=128, block_n=128, num_stages=4)
SMALL = Config(block_m=64, block_n=64, num_stages=4, num_warps=4)
SLIM = Config(block_m=16, block_n=64, block_k=128, num_stages=4, num_warps=4)
UNLISTED = Config(block_m=32, block_n=256, block_k=32, num_stages=2, num_warps=4)
HOPPER = Config("hopper", order=SwizzleMerge(8))
CONFIGS = [
    LARGEST,
    MIDDLE,
    SMALL,
    SLIM,
    UNLISTED,
    HOPPER,
    replace(HOPPER, split_tail=4),
    replace(HOPPER, block_n=128, order=Hilbert()),
    replace(SMALL, num_stages=1, num_warps=1, order=RowMajor()),
]


def time(problem: Problem, config: Config, gpu=H200) -> Time:
    return families.family(config.kernel).estimate(config, problem, gpu)


def least_us(problem: Problem, gpu) -> float:
    """What no kernel can beat: all FLOPs at the peak rate, or all compulsory bytes at the peak bandwidth."""
    return 1e6 * max(
        problem.flops / gpu.rate(problem.dtype, problem.precision), problem.compulsory_bytes / gpu.bandwidth
    )


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
        found = time(p, config, gpu)
        if dtype == "fp32" and config.kernel == "hopper":
            assert found.us == math.inf, "the Hopper kernel has no tiles for exact fp32"
            continue
        assert found.us > least_us(p, gpu) > 0, f"{p}: {found}"
        assert math.isfinite(found.us)


@settings(max_examples=100, deadline=None)
@given(
    m=st.integers(1, 2000),
    n=st.integers(1, 2000),
    k=st.integers(0, 3000),
    more=st.integers(1, 5),
    config=st.sampled_from(CONFIGS),
    name=st.sampled_from(gpus.names()),
)
def test_more_k_takes_no_less(m, n, k, more, config, name):
    """By whole cache lines, so that alignment is the same."""
    short, long = (time(Problem(m, n, depth), config, gpus.spec(name)) for depth in (64 * k, 64 * (k + more)))
    assert short.us <= long.us * (1 + 1e-9)


@settings(max_examples=200, deadline=None)
@given(
    m=st.integers(1, 5000), n=st.integers(1, 5000), k=st.integers(1, 5000), config=st.sampled_from(CONFIGS),
    batch=st.integers(1, 4),
)  # fmt: skip
def test_the_whole_is_no_shorter_than_any_part(m, n, k, config, batch):
    found = time(Problem(m, n, k, batch=batch), config)
    assert found.us >= max(found.parts) * (1 - 1e-9), found
    assert min(found.parts) >= 0, found
    assert getattr(found.parts, found.bound) == max(found.parts)


@pytest.mark.parametrize("size", [2048, 4096, 8192, 16384])
def test_large_squares_want_large_tiles(size):
    times = [time(Problem(size, size, size), c).us for c in (LARGEST, MIDDLE, SMALL, SLIM)]
    assert times == sorted(times)
    assert times[2] > 1.5 * times[0]


def test_small_squares_want_small_tiles():
    for size in (128, 256, 512):
        times = [time(Problem(size, size, size), c).us for c in (SMALL, MIDDLE, LARGEST)]
        assert times == sorted(times), size


def test_a_wave_that_is_just_too_long_is_paid():
    """133 tiles on 132 SMs take about as long as 264, and much longer than 132."""
    full, spilled, double = (time(Problem(128 * m, 256 * n, 8192), HOPPER).us for m, n in ((11, 12), (19, 7), (22, 12)))
    assert spilled > 1.7 * full
    assert spilled > 0.85 * double


def test_splitting_the_last_wave_pays_where_it_is_nearly_empty():
    p = Problem(128 * 19, 256 * 7, 8192)
    assert time(p, replace(HOPPER, split_tail=16)).us < 0.7 * time(p, HOPPER).us


@pytest.mark.parametrize("config", [LARGEST, SMALL], ids=str)
def test_fewer_stages_hide_less_latency(config):
    p = Problem(512, 512, 8192)
    times = [time(p, replace(config, num_stages=stages)).us for stages in (1, 2, 3)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.2 * times[1]


def test_a_lone_warp_leaves_most_of_an_sm_idle():
    p = Problem(64, 64, 8192, dtype="fp32")
    one, four = (time(p, replace(SMALL, num_warps=w)).us for w in (1, 4))
    assert one > 1.5 * four


def test_a_bad_order_costs_what_was_measured():
    """16384 x 16384 x 4096 on an H200: factor 1 takes 1.166 of the time of factor 12, factor 4 1.018 (2026-11-21)."""
    one, four, twelve = (
        time(Problem(16384, 16384, 4096, layout="nt"), replace(HOPPER, order=SwizzleMerge(f))).us for f in (1, 4, 12)
    )
    assert 1.1 < one / twelve < 1.35
    assert four / twelve == pytest.approx(1.018, abs=0.02)


def test_overflow_programs_are_not_free():
    p = Problem(128 * 9, 256 * 64, 512)
    split, swizzle = (time(p, replace(LARGEST, order=o(8))).us for o in (SplitMerge, SwizzleMerge))
    assert split > swizzle + 1


@pytest.mark.parametrize(
    ("bound", "problem", "config"),
    [
        ("mma", Problem(8192, 8192, 8192), HOPPER),
        ("dram", Problem(16384, 16384, 64, out_dtype="fp32"), HOPPER),
        ("l2", Problem(8192, 8192, 8192), Config("hopper", 64, 32, 128, 8, 4)),
        ("launch", Problem(64, 64, 64), Config("hopper", 64, 64, 64, 8, 4)),
        ("launch", Problem(0, 64, 64), SMALL),
        ("repack", Problem.dense(4096, 65, 1001), Config("hopper", 128, 64, 64, 8, 4, repack="ab")),
    ],
    ids=["square", "outer product", "small tiles", "tiny", "empty", "copies"],
)
def test_names_what_binds(bound, problem, config):
    found = time(problem, config)
    assert found.bound == bound, found


def test_an_empty_output_takes_a_launch():
    for sizes in ((0, 8, 8), (8, 0, 8)):
        found = time(Problem(*sizes), MIDDLE)
        assert found.us == found.parts.launch > 0


def test_table_of_another_grid_is_refused():
    with pytest.raises(ValueError, match="does not fit a grid of 8 x 8 tiles"):
        time(Problem(1024, 1024, 64), replace(MIDDLE, order=Table([(0, 0)])))


def test_prints_time_bound_and_parts():
    text = str(Time(12.34, Parts(mma=8.0, dram=9.04, launch=1.5)))
    assert text == "12.3 us, bound by dram (mma 8.0, dram 9.0, launch 1.5)"
