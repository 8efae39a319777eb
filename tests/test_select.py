"""What `select` chooses is legal, splits what leaves SMs idle, and groups tiles for their neighbours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.families.hopper.rules import HAS_CLUSTERS
from tritonmm.problem import Problem
from tritonmm.selection import choose, select, timed

H200 = gpus.spec("h200")


def test_select_without_a_legal_config_says_why():
    with pytest.raises(ValueError, match="a100 is sm_80"):
        choose(Problem(64, 64, 64), gpus.spec("a100"), "hopper")


def test_select_splits_a_tail_that_is_almost_empty():
    """33 x 16 tiles are four rounds of 132 SMs and not one more; 34 x 16 leave 16 tiles to a fifth."""
    assert select(33 * 128, 4096, 8192, gpu="h200").split_tail == 1
    assert select(34 * 128, 4096, 8192, gpu="h200").split_tail > 1


def test_select_takes_large_tiles_for_large_products_and_small_ones_for_small():
    large, small = select(8192, 8192, 8192, gpu="h200"), select(64, 64, 4096, gpu="h200")
    assert large.block_m * large.block_n >= 128 * 256
    assert small.block_m * small.block_n <= 64 * 64


def test_select_orders_waves_to_be_as_tall_as_wide_in_bytes():
    config = select(16384, 16384, 4096, gpu="h200")
    (factor,) = config.order.factors
    assert factor * config.block_m == pytest.approx(H200.sms / factor * config.block_n, rel=0.1)


@given(
    m=st.integers(1, 20000),
    n=st.integers(1, 20000),
    k=st.integers(1, 4000),
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
    kernel=st.sampled_from(["hopper", "persistent", "tile"]),
)
def test_select_groups_tiles_along_the_side_on_which_neighbours_share_more(m, n, k, layout, kernel):
    """Rows of A for tall tiles, columns of B for others; or all of the output's shorter side, where that is few tiles,
    up to 1.5 times as many as a group if neighbours along it share no less."""
    problem = Problem.dense(m, n, k, layout=layout)
    for config in timed(problem, H200, kernel):
        tiles_m, tiles_n = config.tiles(problem)
        ratio = config.block_n / config.block_m
        tall, wide = (max(1, round((H200.sms * of_blocks) ** 0.5)) for of_blocks in (ratio, 1 / ratio))
        most_n = wide * 1.5 if config.block_m >= config.block_n else wide
        most_m = tall * 1.5 if config.block_n >= config.block_m else tall
        if 1 < tiles_n < tiles_m and tiles_n <= most_n:
            expected = orders.SwizzleMerge(tiles_n, along="n")
            first = [config.order.tile(i, tiles_m, tiles_n) for i in range(tiles_n)]
            assert first == [(0, column) for column in range(tiles_n)]
        elif tiles_m <= tiles_n and tiles_m <= most_m:
            expected = orders.SwizzleMerge(tiles_m)
        elif config.block_m > config.block_n:
            expected = orders.SwizzleMerge(min(wide, tiles_n), along="n")
        else:
            expected = orders.SwizzleMerge(min(tall, tiles_m))
        assert config.order == expected


@pytest.mark.parametrize(
    ("m", "n", "blocks", "order"),
    [
        (16384, 16 * 128, (128, 128), "swizzle-merge:16@n"),  # groups of 128 x 128 are 11, up to 16 with all of a side
        (16384, 17 * 128, (128, 128), "swizzle-merge:11"),
        (16 * 128, 16384, (128, 128), "swizzle-merge:16"),
        (17 * 128, 16384, (128, 128), "swizzle-merge:11"),
        (16384, 24 * 64, (128, 64), "swizzle-merge:24@n"),  # 16 of 128 x 64 along n, 8 along m
        (16384, 25 * 64, (128, 64), "swizzle-merge:16@n"),
        (8 * 128, 16384, (128, 64), "swizzle-merge:8"),
        (9 * 128, 16384, (128, 64), "swizzle-merge:16@n"),
    ],
)
def test_groups_of_all_of_a_side(m, n, blocks, order):
    configs = timed(Problem.dense(m, n, 1024, layout="nt"), H200, "hopper")
    assert {str(c.order) for c in configs if c.cta_tile == blocks and not c.cluster} == {order}


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
