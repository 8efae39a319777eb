"""The estimates that rank configs: how times are joined, and what of operands and sums counts."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonmm import estimates
from tritonmm import gpu as gpus
from tritonmm.problem import Problem
from tritonmm.select import timed

H200 = gpus.spec("h200")

POSITIVE = st.floats(1e-6, 1e6)


@given(st.lists(POSITIVE, min_size=1, max_size=5), st.floats(1, 20))
def test_times_that_overlap_take_as_long_as_the_longest_and_no_longer_than_all(times, p):
    found = estimates.joined(times, p)
    assert max(times) * (1 - 1e-9) <= found <= sum(times) * (1 + 1e-9)
    assert estimates.joined(times, math.inf) == max(times)


def test_nothing_takes_no_time():
    assert estimates.joined([0.0, 0.0], 4) == 0


def tile_blocks(problem):
    return {tile.blocks for tile in estimates.tiles_of(problem) if tile.kernel == "tile"}


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_elements_that_are_loaded_one_by_one_have_tiles_that_do_not_spill(dtype):
    fields = {"out_dtype": "int32"} if dtype == "int8" else {}
    aligned = Problem.dense(1024, 1024, 1024, dtype=dtype, layout="nt", **fields)
    odd = replace(aligned, m=1023, n=1023, k=1023, a_alignment=1 if dtype == "int8" else 2, b_alignment=2)
    assert tile_blocks(odd) < tile_blocks(aligned)
    for tile in estimates.tiles_of(odd):
        if tile.kernel == "tile":
            block_m, block_n, block_k = tile.blocks
            loads, sums = (block_m + block_n) * block_k, block_m * block_n
            assert loads + sums <= estimates.MOST_VALUES * 32 * tile.num_warps


def splits_of(m, blocks=(128, 64, 64)):
    """Microseconds by the parts in which the Hopper kernel's tiles of those blocks are multiplied."""
    problem = Problem.dense(m, 264, 5272, layout="nt")
    return {
        config.split_tail: us
        for config, us in timed(problem, H200, "hopper").items()
        if (*config.cta_tile, config.block_k) == blocks and not config.cluster
    }


def test_only_sums_of_rows_that_are_there_are_exchanged():
    few, all_there = splits_of(67), splits_of(128)
    assert few[32] - few[16] < 0.8 * (all_there[32] - all_there[16])
    assert few[16] < few[4], "67x264x5272 took 5.6 us in 16 parts and 7.1 in 4 on an H200"


def test_consumers_without_rows_shorten_a_step(monkeypatch):
    one_of_three, all_three = (splits_of(m, (192, 128, 64))[1] for m in (64, 192))
    monkeypatch.setitem(estimates.KERNELS, "hopper", replace(estimates.KERNELS["hopper"], absent=0.0))
    assert splits_of(64, (192, 128, 64))[1] > 1.1 * one_of_three
    assert splits_of(192, (192, 128, 64))[1] == all_three


def test_an_operand_that_several_columns_of_tiles_read_costs_more(monkeypatch):
    """64 columns of a tall product are one column of tiles, 128 are two, which both read all of A."""

    def whole(n):
        configs = timed(Problem.dense(16384, n, 8192, layout="nt"), H200, "hopper")
        return next(
            us for c, us in configs.items() if c.cta_tile == (128, 64) and c.block_k == 64 and c.split_tail == 1
        )

    once, twice = whole(64), whole(128)
    monkeypatch.setitem(estimates.KERNELS, "hopper", replace(estimates.KERNELS["hopper"], again=0.5))
    assert whole(64) == pytest.approx(once, rel=0.01), "only B, which is small, is read again"
    assert whole(128) > 1.1 * twice
