"""Quick fits: constants that made the data are found again, choices get better on GEMMs that no fit has seen."""

import math
from dataclasses import replace

import modelled_gpu
import numpy as np
import pytest
from measured import H200, sweep
from modelled_gpu import H100, WRONG

from tritonmm import families
from tritonmm import gpu as gpus
from tritonmm.autotune.fitting import gains, quick, short_sweep
from tritonmm.autotune.fitting.scales import NAMES, scales
from tritonmm.autotune.fitting.time_fit import Points, estimates
from tritonmm.autotune.measuring.trial import Counted, Trial
from tritonmm.autotune.studies import fit_l2
from tritonmm.autotune.tuner.search import Search
from tritonmm.model import constants, constants_file, l2
from tritonmm.selection import estimated

SHIPPED = constants.shipped(H200)


def trial(problem, config, us, **fields):
    return Trial(problem, config, "gpu", "short", "ok" if us else "failed", "", us, **fields)


@pytest.fixture(scope="module")
def modelled():
    """The short sweep on `modelled_gpu`, counted."""
    true = replace(H100, constants=modelled_gpu.record())
    large = set(short_sweep.large())
    return [
        trial(
            problem,
            config,
            modelled_gpu.time_us(problem, config, true),
            counted=modelled_gpu.counted(problem, config, true) if problem in large else None,
        )
        for problem, configs in short_sweep.configs(replace(H100, constants=constants.shipped(H100))).items()
        for config in configs
    ]


@pytest.fixture(scope="module")
def fitted(modelled):
    return quick.fitted(modelled, H100)


@pytest.fixture
def one_round(monkeypatch):
    """A fit of one round instead of six: as much as it takes to see which trials it reads."""
    monkeypatch.setattr(quick, "ROUNDS", 1)


def test_constants_that_made_the_times_are_found_again(fitted):
    for name in ("launch", "device memory", "share of hopper", "fixed times"):
        assert fitted.scales[name] == pytest.approx(WRONG[name], rel=0.15), (name, fitted.scales)
    true = modelled_gpu.record()
    assert fitted.record.shared.launch_us == pytest.approx(true.shared.launch_us, rel=0.15)
    assert fitted.after.error < 0.06 < fitted.before.error, fitted
    assert fitted.record.l2.capacity == pytest.approx(true.l2.capacity, rel=0.15)


def test_what_the_data_cannot_tell_stays(fitted):
    assert fitted.scales["share of skinny"] == pytest.approx(1.0, rel=0.1)
    assert fitted.record.l2.spread == fitted.start.l2.spread
    assert fitted.record.families["mixed_input"]["issue"] == fitted.start.families["mixed_input"]["issue"]


def test_what_was_fitted_survives_its_file(fitted, tmp_path):
    path = tmp_path / "h100-constants.json"
    path.write_text(constants_file.text(fitted.record, H100, fitted.start, "2026-11-26"))
    found = constants_file.read(path, H100, fitted.start)
    problem = short_sweep.large()[0]
    us = [
        families.family("hopper").estimate(estimated(problem, H100).config, problem, replace(H100, constants=each)).us
        for each in (fitted.record, found)
    ]
    assert us[0] == pytest.approx(us[1], rel=2e-3)


def test_what_the_fit_does_not_see(modelled, one_round):
    """The GEMMs that judge it, and trials that failed."""
    others = [
        replace(t, time_us=t.time_us * 1.02) if short_sweep.is_held_out(t.problem) and not t.counted else t
        for t in modelled
    ]
    seen = next(t for t in modelled if not short_sweep.is_held_out(t.problem))
    failed = [replace(seen, status="failed", time_us=None, counted=None, config=replace(seen.config, num_stages=9))]
    before, after = (quick.fitted(trials, H100) for trials in (modelled, others + failed))
    assert after.scales == before.scales != {}
    assert after.after != before.after


def few(problem, measured, gpu):
    """Ten measured configs of a GEMM as the short sweep would take them."""
    ranked = sorted(measured, key=lambda config: families.family(config.kernel).estimate(config, problem, gpu).us)
    rest = ranked[4:]
    return ranked[:4] + rest[:: max(1, -(-len(rest) // 6))]


def wrong_start(**factors):
    found = SHIPPED
    for scale in scales(("hopper", "persistent", "tile", "skinny")):
        found = scale.changed(found, math.log(factors.get(scale.name.replace(" ", "_"), 1.0)))
    return found


@pytest.mark.parametrize(
    "start",
    [
        wrong_start(launch=0.6, device_memory=1.2, share_of_hopper=0.8, share_of_skinny=1.5, SM_bandwidth=0.7),
        wrong_start(launch=1.6, device_memory=0.75, share_of_hopper=0.85, L2_bandwidth=0.6, fixed_times=1.5),
    ],
    ids=["too-fast", "too-slow"],
)
def test_choices_on_an_h200_get_better_where_nothing_was_fitted(start, monkeypatch):
    monkeypatch.setattr(constants, "shipped", lambda gpu: start)
    given = replace(H200, constants=start)
    trials = [
        trial(problem, config, measured[config])
        for problem, measured in sweep("random82").items()
        for config in few(problem, measured, given)
    ]
    found = quick.fitted(trials, H200)
    unseen = Points.of((problem, measured, False) for problem, measured in sweep("random80").items())
    before, after, best = (quick.judge(unseen, each, H200) for each in (start, found.record, SHIPPED))
    assert after.reached > before.reached + 0.3 * (best.reached - before.reached), (before, after, best)
    assert after.error < 0.75 * before.error, (before, after, best)


def test_constants_that_are_right_are_kept():
    """A fit of few GEMMs to noise would be a little better on those that judge it, by chance."""
    trials = [
        trial(problem, config, measured[config])
        for problem, measured in sweep("random82").items()
        for config in few(problem, measured, H200)
    ]
    assert quick.fitted(trials, H200).record is SHIPPED


def test_constants_that_fit_only_what_was_fitted_are_not_taken():
    """Times of the fitted GEMMs as if launches took 30 us more, of all others as they are."""
    trials = [
        trial(problem, config, us + 30 * (not short_sweep.is_held_out(problem)))
        for problem, measured in sweep("random82").items()
        for config in few(problem, measured, H200)
        if (us := measured[config])
    ]
    found = quick.fitted(trials, H200)
    assert not found.is_new
    assert found.record is found.start
    assert found.scales == {}
    assert found.before == found.after


def counted_trials():
    """What an H200 counted, as trials: up to six orders of a shape."""
    of_shape = {}
    for point in fit_l2.counted(fit_l2.points(gpus.spec("h200"))):
        of_shape.setdefault(point.shape, []).append(point)
    for found in of_shape.values():
        for point in found[:: max(1, len(found) // 6)]:
            read = round(point.dram_read_bytes), 1, round(point.l2_read_bytes)
            yield trial(point.problem, point.config, point.time_us, counted=Counted(1.0, 1, *read, 0, 2, 1, 1))


def test_the_capacity_of_l2_is_found_from_few_counters():
    start = replace(SHIPPED.l2, capacity=0.35, drift=0.2, merged=0.3)
    found, said = quick.corrected_l2(list(counted_trials()), H200, start)
    assert said.startswith("corrected by ")
    held = [t for t in counted_trials() if short_sweep.is_held_out(t.problem)]
    assert held

    def off(l2_constants):
        errors = [
            abs(l2.estimate(t.problem, t.config, H200, l2_constants).dram_read_bytes / t.counted.dram_read_bytes - 1)
            for t in held
        ]
        return float(np.mean(errors))

    assert off(found) < 0.6 * off(start)
    assert found.capacity == pytest.approx(SHIPPED.l2.capacity, rel=0.25)


@pytest.mark.parametrize("case", ["none", "few", "worse", "dies"])
def test_l2_is_kept_and_the_reason_said(case):
    trials, gpu, start = list(counted_trials()), H200, SHIPPED.l2
    if case == "none":
        trials = [replace(t, counted=None) for t in trials]
    elif case == "few":
        trials = [t for t in trials if short_sweep.is_held_out(t.problem)]
    elif case == "worse":  # what is fitted reads four times as much
        trials = [
            t
            if short_sweep.is_held_out(t.problem)
            else replace(t, counted=replace(t.counted, dram_read_bytes=4 * t.counted.dram_read_bytes))
            for t in trials
        ]
    else:
        gpu = gpus.spec("mi300x")
    found, said = quick.corrected_l2(trials, gpu, start)
    assert found == start
    assert said.startswith("kept: ")
    assert ("only" in said) == (case in ("none", "few"))


def test_too_few_gemms_are_not_fitted(modelled):
    few = [t for t in modelled if short_sweep.is_held_out(t.problem)]
    for trials in ([], few, [t for t in modelled if not short_sweep.is_held_out(t.problem)]):
        found = quick.fitted(trials, H100)
        assert (found.is_new, found.before, found.after) == (False, None, None)


def test_every_scale_multiplies_what_it_names_and_nothing_else():
    kernels = ("hopper", "persistent", "tile", "skinny")
    base = constants_file._values(SHIPPED)
    found = {scale.name: constants_file._values(scale.changed(SHIPPED, math.log(2.0))) for scale in scales(kernels)}
    assert set(found) == {*NAMES, "fixed times", *(f"share of {kernel}" for kernel in kernels)}
    for name, values in found.items():
        changed = set(different(base, values))
        assert changed, name
        for place in changed:
            factor = at(values, place) / at(base, place)
            assert factor == pytest.approx(2.0, rel=5e-3), (name, place)
        if name in NAMES:
            assert {place[-1] for place in changed} <= set(NAMES[name])
            assert ("shared", "launch_us") in changed if name == "launch" else True
    assert {place[1] for place in different(base, found["share of hopper"])} == {"hopper"}


def different(one, other, place=()):
    if isinstance(one, dict):
        for name in one:
            yield from different(one[name], other[name], (*place, name))
    elif isinstance(one, list):
        for i, (x, y) in enumerate(zip(one, other, strict=True)):
            yield from different(x, y, (*place, i))
    elif one != other:
        yield place


def at(values, place):
    for name in place:
        values = values[name]
    return values


@pytest.mark.parametrize("name", ["h200", "h100", "a100", "rtx4090", "b200"])
def test_the_short_sweep_is_short_legal_and_of_many_kinds(name):
    gpu = gpus.spec(name)
    found = short_sweep.configs(gpu)
    assert found == short_sweep.configs(gpu)
    assert 200 <= sum(map(len, found.values())) <= 600
    for problem, configs in found.items():
        assert len(set(configs)) == len(configs) >= 2, problem
        for config in configs:
            assert config.fits(problem, gpu), (problem, config)
    held = [short_sweep.is_held_out(problem) for problem in found]
    assert 1 / 6 < sum(held) / len(held) < 1 / 3
    assert 2 <= sum(map(short_sweep.is_held_out, short_sweep.large())) <= 4


def test_what_is_tuned_is_not_fitted():
    first, *_, last = short_sweep.configs(H100)
    assert {first, last}.isdisjoint(short_sweep.configs(H100, {first, last}))


def test_means_are_of_gemms_whose_choices_were_all_timed_with_torch():
    problem, other, third = short_sweep.large()[:3]
    configs = short_sweep.in_orders(problem, H100)[:3]
    asked = [gains.Compared(each, *configs) for each in (problem, other, third)]
    trials = [
        trial(each, config, us, torch_us=12.0)
        for each, scale in ((problem, 1.0), (other, 4.0))
        for config, us in zip(configs, (12.0 * scale, 6.0 * scale, 4.0 * scale), strict=True)
    ]
    trials += [trial(third, config, 1.0) for config in configs]
    found = gains.means(asked, trials)
    assert found == {
        "gemms": 2,
        "before": pytest.approx(0.5),
        "fitted": pytest.approx(1.0),
        "table": pytest.approx(1.5),
    }
    assert gains.means(asked, []) == {"gemms": 0, "before": None, "fitted": None, "table": None}


def test_unfinished_searches_are_not_compared():
    problem = short_sweep.large()[0]
    done, unfinished, hopeless = (Search(problem, [], ()) for _ in range(3))
    done.over = hopeless.over = True
    done.best = trial(problem, estimated(problem, H100).config, 1.0)
    start = constants.shipped(H100)
    (found,) = gains.compared([unfinished, done, hopeless], H100, start, modelled_gpu.record())
    assert found.before == estimated(problem, H100).config
    assert found.search.counts()[0] == len({found.before, found.fitted, found.table})


def test_estimates_of_a_record_are_those_of_a_gpu_that_has_it(fitted):
    problem = short_sweep.large()[0]
    configs = short_sweep.in_orders(problem, H100)
    points = Points.of([(problem, dict.fromkeys(configs, 1.0), True)])
    given = replace(H100, constants=fitted.record)
    expected = [math.log(families.family(c.kernel).estimate(c, problem, given).us) for c in configs]
    assert estimates(points, fitted.record, H100) == pytest.approx(expected)
