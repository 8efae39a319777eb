"""Grouped products as values and in the models: what is legal, what is expected of sizes, and what is estimated."""

import math

import pytest

from tritonmm import families, orders
from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.model import l2
from tritonmm.model.groups import as_equal, average, expected_sizes, of_class, sized, without_sizes
from tritonmm.problem import Epilogue, Problem
from tritonmm.selection import best, best_in_class, choose, timed

H200 = gpus.spec("h200")
ROWS = Problem.dense(16384, 2816, 2048, layout="nt", ragged="m", groups=64)
PARTS = Problem.dense(2048, 2816, 16384, layout="tn", ragged="k", groups=64)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ragged": "n", "groups": 2}, "it must be m or k"),
        ({"groups": 2}, "of 2 groups it must be m or k"),
        ({"ragged": "m"}, "groups is 0"),
        ({"ragged": "m", "groups": 4097}, "1 to 4096"),
        ({"ragged": "m", "groups": -1}, "integer >= 0"),
        ({"ragged": "m", "groups": 2, "batch": 2}, "batch is 2"),
        ({"ragged": "m", "groups": 2, "symmetric": "known"}, "symmetric"),
        ({"ragged": "m", "groups": 2, "epilogue": Epilogue(c=True)}, "no alpha and no C"),
        (
            {"ragged": "k", "groups": 2, "dtype": "fp8e4m3", "scales": "1x128*1x128"},
            "where groups divide k it can be '', 'row'",
        ),
        ({"ragged": "m", "groups": 2, "dtype": "fp8e4m3", "scales": "128x128*1x128"}, "'128x128\\*1x128'"),
        ({"ragged": "m", "groups": 2, "dtype": "fp8e4m3", "scales": "tensor"}, "'tensor'"),
    ],
    ids=str,
)
def test_what_no_grouped_product_is(fields, said):
    with pytest.raises(ValueError, match=said):
        Problem(64, 64, 64, **fields)


def test_bytes_and_flops():
    """Each group has its own B, or its own output, and the rest is divided."""
    assert ROWS.flops == 2 * 16384 * 2816 * 2048
    assert ROWS.compulsory_bytes == 2 * (16384 * 2048 + 64 * 2816 * 2048 + 16384 * 2816)
    assert PARTS.flops == 2 * 2048 * 2816 * 16384
    assert PARTS.compulsory_bytes == 2 * (16384 * (2048 + 2816) + 64 * 2048 * 2816)
    assert str(ROWS) == "16384x2816x2048 nt bf16 64 groups of m"


@pytest.mark.parametrize(
    ("spelling", "problem", "said"),
    [
        ("swizzle-merge:8", ROWS, "needs one such as groups/swizzle-merge:8"),
        ("joined-groups/swizzle-merge:8", PARTS, "none can be joined"),
        ("groups/swizzle-merge:8", Problem.dense(512, 512, 512), "the product has no groups"),
        ("joined-groups/swizzle-merge:8", ROWS, ""),
        ("largest-groups/row-major", PARTS, ""),
    ],
)
def test_an_order_is_for_groups_or_not(spelling, problem, said):
    config = Config("tile", 64, 64, 32, 3, 4, persistent=True, order=orders.parse(spelling))
    assert said in config.fits(problem, H200).reason
    assert bool(said) != bool(config.fits(problem, H200))


def test_programs_that_visit_one_tile_each_do_not_know_the_groups():
    order = orders.parse("groups/row-major")
    assert "persistent is False" in Config("tile", 64, 64, 32, 3, 4, order=order).fits(ROWS, H200).reason


def test_other_kernels_multiply_no_groups():
    for family in families.each():
        fits = Config(family.name, order=orders.parse("groups/row-major")).fits(ROWS, H200)
        assert family.grouped or fits.reason == f"the {family.name} kernel multiplies no groups"


@pytest.mark.parametrize("problem", [ROWS, PARTS, Problem.dense(5, 2816, 2048, ragged="m", groups=64)], ids=str)
@pytest.mark.parametrize("spelling", ["groups/swizzle-merge:8", "largest-groups/row-major"])
def test_traffic_of_groups_is_of_what_they_read(problem, spelling):
    """Each operand once at least, but not the matrices of groups that are expected to be empty."""
    config = Config("tile", 64, 64, 32, 3, 4, persistent=True, order=orders.parse(spelling))
    moved, equal = l2.of(problem, config, H200), as_equal(problem, config)
    assert moved.dram_write_bytes == problem.output_bytes
    assert 0.99 * equal.operand_bytes <= moved.dram_read_bytes <= moved.l2_read_bytes
    assert moved.dram_read_bytes <= 2 * problem.operand_bytes("ab")


@pytest.mark.parametrize(("total", "groups"), [(0, 3), (1, 1), (5, 9), (16384, 64), (777, 100), (10**6, 4096)])
def test_expected_sizes_add_up_and_are_uneven(total, groups):
    sizes = expected_sizes(total, groups)
    assert len(sizes) == groups
    assert sum(sizes) == total
    assert min(sizes) >= 0
    if total > 20 * groups > 20:
        assert max(sizes) > 3 * total / groups
        assert sizes == sorted(sizes) or max(abs(a - b) for a, b in zip(sizes, sorted(sizes), strict=True)) <= 1


def test_equal_groups_have_the_tiles_of_uneven_ones():
    config = choose(ROWS, H200, "tile")
    equal = as_equal(ROWS, config)
    rows = sum(math.ceil(size / config.block_m) for size in expected_sizes(16384, 64))
    assert equal.tiles == rows * math.ceil(2816 / config.block_n)
    assert equal.tiles <= config.programs(ROWS)
    assert equal.config.order == config.order.inner
    assert (average(ROWS).m, average(PARTS).k) == (256, 256)
    assert as_equal(PARTS, config).problem.batch == 64


@pytest.mark.parametrize("name", ["h200", "a100", "b200", "mi300x"])
@pytest.mark.parametrize("problem", [ROWS, PARTS], ids=str)
def test_a_legal_config_is_chosen_by_its_estimate(name, problem):
    gpu = gpus.spec(name)
    found = best(problem, gpu)
    assert found.config.fits(problem, gpu)
    assert isinstance(found.config.order, orders.Grouped)
    assert found.config.order.largest_first == (problem.ragged == "k")
    bound = max(problem.flops / gpu.rate("bf16", "ieee"), problem.compulsory_bytes / gpu.bandwidth)
    assert 1e6 * bound < found.us < 5e6 * bound
    assert found.us == min(timed(problem, gpu).values())


def test_more_groups_take_longer_and_empty_ones_are_not_read():
    """Of as many tokens: more weights are read, and more tiles are not full."""
    times = [best(Problem.dense(4096, 2048, 2048, layout="nt", ragged="m", groups=g), H200).us for g in (4, 32, 256)]
    assert times == sorted(times)
    few = Problem.dense(8, 2048, 2048, layout="nt", ragged="m", groups=256)
    assert as_equal(few, choose(few, H200)).operand_bytes < few.operand_bytes("ab") / 10


@pytest.mark.parametrize(
    ("problem", "sizes", "said"),
    [
        (ROWS, [16384], "64 integers >= 0"),
        (ROWS, [-1, *[0] * 63], "64 integers >= 0"),
        (ROWS, [1.5, *[0] * 63], "64 integers >= 0"),
        (ROWS, [257] * 64, "16448, more than the 16384"),
        (PARTS, [257] * 64, "16448, more than the 16384"),
        (Problem.dense(8, 8, 8), [8], "has no groups"),
    ],
    ids=str,
)
def test_sizes_that_no_groups_have(problem, sizes, said):
    with pytest.raises(ValueError, match=said):
        sized(problem, sizes)


@pytest.mark.parametrize("problem", [ROWS, PARTS], ids=str)
def test_known_sizes_are_for_estimates_alone(problem):
    """Configs are chosen without them, and those to expect give the same time."""
    known = sized(problem, expected_sizes(16384, 64))
    assert known != problem
    assert without_sizes(known) == problem
    assert of_class(known) == of_class(problem)
    assert best_in_class(known, H200) == best_in_class(problem, H200)
    even = sized(problem, [256] * 64)
    assert best_in_class(even, H200).config == best_in_class(problem, H200).config
    if problem is ROWS:  # no tile has rows that nothing fills
        assert best_in_class(even, H200).us <= best_in_class(problem, H200).us


@pytest.mark.parametrize("problem", [ROWS, PARTS], ids=str)
def test_the_traffic_of_known_sizes(problem):
    config = choose(problem, H200)
    even, one, none, half = (
        l2.of(sized(problem, sizes), config, H200)
        for sizes in ([256] * 64, [16384, *[0] * 63], [0] * 64, [0, 512] * 32)
    )
    equal = l2.of(problem, config, H200)
    if problem is PARTS:  # the mean of the sizes to expect
        assert even == equal
    assert none.dram_read_bytes == none.l2_read_bytes == 0
    whole = 16384 * (2048 if problem is ROWS else 2048 + 2816) * 2
    weights = 2048 * 2816 * 2 if problem is ROWS else 0
    for found, groups in ((even, 64), (half, 32)):
        assert whole + groups * weights <= found.dram_read_bytes < 1.3 * (whole + groups * weights)
        assert found.l2_read_bytes >= found.dram_read_bytes
        assert found.dram_write_bytes == problem.output_bytes
    assert none.dram_write_bytes == (0 if problem is ROWS else problem.output_bytes)
    # One group is the product without groups.
    dense = Problem.dense(problem.m, problem.n, problem.k, layout=problem.layout)
    alone = l2.of(dense, config.ordered(config.order.inner), H200)
    assert (one.dram_read_bytes, one.l2_read_bytes) == (alone.dram_read_bytes, alone.l2_read_bytes)
