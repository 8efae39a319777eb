"""Estimates rank a family's configs as an H200 does. They are judged by committed measurements, never by a formula."""

import math
import statistics

import pytest
from measured import SWEEPS, estimate, geomean, study, sweep, tile

from tritonmm import gpu as gpus
from tritonmm.selection import timed

H200 = gpus.spec("h200")


def reached(kernel, wanted=lambda problem: True):
    """For each measured problem, the speed of the family's shortest estimate relative to its fastest config."""
    shares = []
    for name in SWEEPS:
        for problem, times in sweep(name).items():
            of_family = {config: us for config, us in times.items() if config.kernel == kernel}
            if len(of_family) > 1 and wanted(problem):
                shortest = min(of_family, key=lambda config: estimate(config, problem))
                shares.append(min(of_family.values()) / of_family[shortest])
    return shares


@pytest.mark.parametrize(
    ("kernel", "mean", "slow"),
    [("hopper", 0.965, 0.04), ("persistent", 0.96, 0.08), ("tile", 0.92, 0.20), ("skinny", 0.93, 0.12)],
)
def test_the_shortest_estimate_is_nearly_the_fastest_config(kernel, mean, slow):
    """slow: the largest share of problems in which it may be slower than 85% of the fastest."""
    shares = reached(kernel)
    assert len(shares) > 100
    assert geomean(shares) > mean
    assert sum(share < 0.85 for share in shares) / len(shares) < slow


def test_the_shortest_estimate_is_a_good_tile_where_elements_are_loaded_one_by_one():
    """There the slowest config takes several times as long as the fastest."""
    shares = reached("tile", lambda problem: min(problem.a_alignment, problem.b_alignment) < 4)
    assert len(shares) > 50
    assert geomean(shares) > 0.86


RANKED = {
    "tiles too small for wgmma start later": (
        ("random76", (32, 3648, 64)),
        {"kernel": "skinny", "block_m": 32, "block_n": 64},
        {"kernel": "skinny", "block_m": 32, "block_n": 32},
    ),
    "the larger operand is read once": (
        ("random74", (976, 64, 128)),
        {"kernel": "skinny", "block_m": 32, "block_n": 64, "block_k": 128},
        {"kernel": "skinny", "block_m": 64, "block_n": 32, "block_k": 128},
    ),
    "one step of K has a short start": (
        ("random72", (16, 640, 256)),
        {"kernel": "skinny", "block_k": 256},
        {"kernel": "tile", "block_k": 128},
    ),
    "split-K fills the SMs": (
        ("random70", (37, 5509, 8607)),
        {"kernel": "skinny", "block_n": 64, "split_k": 3},
        {"kernel": "skinny", "block_n": 64, "split_k": 1},
    ),
    "only rows that are there are exchanged": (
        ("random64", (67, 264, 5272)),
        {"kernel": "hopper", "block_m": 128, "block_n": 64, "split_tail": 16},
        {"kernel": "hopper", "block_m": 128, "block_n": 64, "split_tail": 4},
    ),
    "tiles of unaligned operands spill": (
        ("random70", (33, 291, 9331)),
        {"kernel": "tile", "block_m": 16, "block_n": 64},
        {"kernel": "tile", "block_m": 32, "block_n": 64},
    ),
}
"""A product, and the fields of two configs, the first of which is clearly faster on it."""


@pytest.mark.parametrize(("product", "faster", "slower"), RANKED.values(), ids=RANKED)
def test_estimates_rank_what_differs_clearly(product, faster, slower):
    name, shape = product
    ((problem, times),) = ((p, found) for p, found in sweep(name).items() if (p.m, p.n, p.k) == shape)
    both = []
    for fields in (faster, slower):
        alike = [c for c in times if all(getattr(c, field) == value for field, value in fields.items())]
        both.append((min(times[c] for c in alike), min(estimate(c, problem) for c in alike)))
    (fast_us, fast_estimate), (slow_us, slow_estimate) = both
    assert fast_us < 0.87 * slow_us
    assert fast_estimate < 0.97 * slow_estimate


def test_tiles_that_are_mostly_empty_are_estimated_as_well_as_others():
    """A consumer whose rows are not there multiplies nothing: at most 64 rows in Hopper tiles of 192 x 128."""
    errors = [
        math.log(estimate(config, problem) / us)
        for name in SWEEPS
        for problem, times in sweep(name).items()
        for config, us in times.items()
        if problem.m <= 64 and problem.n * problem.k > 4e6
        and tile(config) == ("hopper", 192, 128, 64, 5, 12, 1, "")
    ]  # fmt: skip
    assert len(errors) > 10
    assert statistics.fmean(map(abs, errors)) < 0.15


def of_study(name):
    """(problem, tile, row, estimated microseconds) of a study's rows, where the Hopper kernel has that tile."""
    estimates = {}
    for problem, wanted, row in study(name):
        if problem not in estimates:
            estimates[problem] = {tile(c): us for c, us in reversed(timed(problem, H200, "hopper").items())}
        if wanted in estimates[problem]:
            yield problem, wanted, row, estimates[problem][wanted]


def test_just_more_tiles_than_half_of_the_sms_take_longer():
    """With dependent launches 59x4096x968 took 6.4 us in 64 tiles, and 59x4352x968 7.9 us in 68."""
    times = {}
    for problem, wanted, row, us in of_study("halves"):
        if row["launch"] == "dependent" and row["tiles"] in ("64", "68") and problem.k == 968:
            times.setdefault((problem.m, wanted), {})[row["tiles"]] = float(row["us"]), us
    assert len(times) == 4
    for found in times.values():
        (before, estimated_before), (after, estimated_after) = found["64"], found["68"]
        assert after > 1.2 * before
        assert estimated_after > 1.05 * estimated_before


def test_tiles_that_are_assigned_to_sms_are_estimated_so():
    """Where that gains, the estimate is near the time with it, not the one without."""
    times = {}
    for problem, wanted, row, us in of_study("seats"):
        times.setdefault((problem, wanted), {})[row["dealt"]] = float(row["us"]), us
    errors = []
    for found in times.values():
        assigned, us = min(found.values())
        if assigned < 0.95 * found["no"][0]:
            errors.append((abs(math.log(us / assigned)), abs(math.log(us / found["no"][0]))))
    assert len(errors) > 20
    assert statistics.fmean(near for near, _ in errors) < 0.1
    assert sum(near < far for near, far in errors) > 0.6 * len(errors)
