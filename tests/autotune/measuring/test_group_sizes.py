"""Sizes of groups: what each distribution promises, and that it is the same everywhere."""

import itertools

import pytest

from tritonmm.autotune.measuring.group_sizes import DISTRIBUTIONS, TYPICAL, checked, group_sizes, sizes_of
from tritonmm.problem import Problem

TOTALS = [(1, 1), (1, 8), (7, 128), (1000, 16), (32768, 128), (2**31 - 1, 4096)]


@pytest.mark.parametrize("name", [*DISTRIBUTIONS, "zipf:7", "random:999999999"])
@pytest.mark.parametrize(("total", "groups"), TOTALS)
def test_sizes_add_up_to_the_total(name, total, groups):
    sizes = group_sizes(name, total, groups)
    assert (len(sizes), sum(sizes), min(sizes) >= 0) == (groups, total, True)
    assert sizes == group_sizes(name, total, groups)


def test_sizes_are_the_same_on_every_machine():
    """Results of different machines are compared by the name of a distribution."""
    assert group_sizes("random", 1000, 8) == [50, 99, 256, 41, 196, 211, 72, 75]
    assert group_sizes("zipf:1", 1000, 8) == [368, 92, 61, 74, 52, 123, 46, 184]


def test_seeds_differ():
    for name in ("random", "zipf", "one-hot"):
        assert len({tuple(group_sizes(f"{name}:{seed}", 10_000, 64)) for seed in range(9)}) > 7, name
    assert group_sizes("zipf:0", 10_000, 64) == group_sizes("zipf", 10_000, 64)


@pytest.mark.parametrize(("total", "groups"), [(1000, 16), (1003, 16), (5, 16)])
def test_even_sizes_differ_by_one_at_most(total, groups):
    sizes = group_sizes("even", total, groups)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("groups", [1, 2, 15, 128])
def test_of_one_hot_sizes_one_is_not_0(groups):
    assert sorted(group_sizes("one-hot", 777, groups)) == [0] * (groups - 1) + [777]


@pytest.mark.parametrize("groups", [1, 2, 15, 128])
def test_half_of_the_groups_are_empty(groups):
    sizes = sorted(group_sizes("empties", 1280, groups))
    assert sizes.count(0) == groups // 2
    assert sizes[-1] - sizes[groups // 2] <= 1


def test_zipf_sizes_fall_as_one_over_their_rank():
    sizes = sorted(group_sizes("zipf", 10**6, 64), reverse=True)
    for rank, size in enumerate(sizes, 1):
        assert size * rank == pytest.approx(sizes[0], abs=2 * rank)


def test_the_largest_of_random_sizes_is_several_times_the_mean():
    largest = [max(group_sizes(f"random:{seed}", 64_000, 64)) / 1000 for seed in range(100)]
    assert sum(largest) / 100 == pytest.approx(4.74, rel=0.1)  # the harmonic number of 64


def test_sizes_are_those_of_what_is_ragged():
    rows, parts = (Problem.dense(300, 64, 500, ragged=ragged, groups=4) for ragged in "mk")
    assert (sum(sizes_of(rows)), sum(sizes_of(parts))) == (300, 500)
    assert sizes_of(rows) == group_sizes(TYPICAL, 300, 4) != sizes_of(rows, "even")
    assert sizes_of(Problem.dense(300, 64, 500)) == []


@pytest.mark.parametrize("spelled", ["", "zip", "zipf:", "zipf:-1", "zipf:1.5", "Even", "even, zipf", "x" * 1000, 3])
def test_other_spellings_are_refused_in_a_short_line(spelled):
    with pytest.raises(ValueError, match="must be one of even, random, zipf, empties, one-hot") as caught:
        checked(spelled)
    assert len(str(caught.value)) < 200


def test_what_is_spelled_is_kept():
    for name, seed in itertools.product(DISTRIBUTIONS, ("", ":0", ":12")):
        assert checked(name + seed) == name + seed
