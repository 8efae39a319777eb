"""Tests that take long start first, on every worker, and none is lost."""

import pytest
from scheduling import long_first


@pytest.mark.parametrize("workers", [1, 2, 3, 14])
@pytest.mark.parametrize("count", [0, 1, 5, 16, 101])
def test_every_test_runs_once(count, workers):
    assert sorted(long_first(list(range(count)), lambda i: i % 3 == 1, workers)) == list(range(count))


def test_each_worker_starts_with_its_share_of_the_long_ones():
    assert long_first(list("abcdefXYZ"), str.isupper, 2) == list("XZabYcdef")
