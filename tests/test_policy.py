"""The policy "faster": what it promises holds on the committed measurements, and tables with torch's time decide."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tables import H200, PROBLEM, put, row, valid

from tritonmm import gpu as gpus
from tritonmm import policy
from tritonmm.autotune.studies import fit_torch, measured_products
from tritonmm.model import torch_time
from tritonmm.problem import KINDS, Problem
from tritonmm.tuned import errors
from tritonmm.tuned.errors import Errors

SHIPPED = Path(errors.__file__).parent / "h200-errors.csv"


@pytest.fixture(scope="module")
def found():
    return measured_products.products(H200)


@pytest.fixture(scope="module")
def held(found):
    return measured_products.held_out({x.problem for x in found})


def test_on_all_measured_products_it_is_near_the_oracle(found):
    judged = measured_products.judged(found)
    assert len(judged) > 1400
    reached = fit_torch.reached(judged, errors.of(H200))
    assert reached.lost <= 0.005, reached
    assert reached.faster > reached.always, reached


def test_on_products_that_the_fit_has_not_seen_few_lose(found, held):
    known = fit_torch.known_of(errors.read(SHIPPED), {x.problem for x in found} - held)
    judged = [x for x in measured_products.judged(found) if x.problem in held]
    assert len(judged) > 600
    reached = fit_torch.reached(judged, known)
    assert reached.losers <= 0.02, reached
    assert reached.faster > reached.always, reached
    assert reached.lost <= 0.025, reached  # a quarter are random products of all dtypes


def test_the_fit_has_seen_no_shape_that_is_held_out(found, held):
    shapes = [{(torch_time.kernels_of(p), p.m, p.n, p.k, p.batch) for p in problems if p.dtype != "fp64"}
              for problems in (held, {x.problem for x in found} - held)]  # fmt: skip
    assert not shapes[0] & shapes[1]
    assert 0.9 < len(shapes[0]) / len(shapes[1]) < 1.1


@pytest.mark.parametrize(
    ("kernels", "median", "most"), [("half", 0.05, 0.13), ("half unaligned", 0.12, 0.30), ("fp32", 0.12, 0.30)]
)
def test_torchs_time_of_unseen_products(found, held, kernels, median, most):
    times = {p: us for p, us in fit_torch.torch_times(found).items() if torch_time.kernels_of(p) == kernels}
    error = [abs(math.log(torch_time.torch_us(p, H200) / us)) for p, us in times.items() if p in held]
    assert np.median(error) < median
    assert np.quantile(error, 0.9) < most


def test_no_other_value_near_a_fitted_one_is_better(found, held):
    times = {p: us for p, us in fit_torch.torch_times(found).items() if p not in held}
    half = fit_torch.Times.of({p: us for p, us in times.items() if torch_time.kernels_of(p) == "half"})

    def loss(kernels):
        size = np.abs(half.errors(kernels))
        return np.where(size < fit_torch.ROBUST, size**2, fit_torch.ROBUST * (2 * size - fit_torch.ROBUST)).sum()

    fitted = torch_time.KERNELS["half"]
    for name in ("share", "launch_us", "sm_bandwidth", "stream"):
        for factor in (0.95, 1.05):
            assert loss(replace(fitted, **{name: getattr(fitted, name) * factor})) > loss(fitted), (name, factor)


def test_what_ships_is_what_the_script_writes(found):
    shipped = {row[:-1]: row.error for row in errors.read(SHIPPED) if row.kind.startswith("torch ")}
    times = fit_torch.torch_times(found)
    assert len(shipped) == len({(errors.torch_kind(p), p.m, p.n, p.k, p.batch, p.layout) for p in times})
    for problem, us in list(times.items())[::20]:
        key = errors.torch_kind(problem), problem.m, problem.n, problem.k, problem.batch, problem.layout
        one = [x for x in times if (errors.torch_kind(x), x.m, x.n, x.k, x.batch, x.layout) == key]
        if len(one) == 1:  # bf16 and fp16 have a row each
            assert shipped[key] == pytest.approx(math.log(torch_time.torch_us(problem, H200) / us), abs=0.002), problem


@pytest.mark.parametrize(("torch_us", "ours"), [(190.0, False), (200.0, False), (210.0, True)])
def test_torchs_measured_time_decides(user, torch_us, ours):
    put(user, valid(replace(row(us=200.0), torch_us=torch_us)))
    faster, reason = policy.prefers(PROBLEM, H200)
    assert faster == ours
    assert f"ours was measured to take 200.0 us and torch's {torch_us} us" in reason


def test_a_table_without_torchs_time_is_corrected_by_what_such_times_err(user):
    put(user, valid(row(us=1e6)))
    faster, reason = policy.prefers(PROBLEM, H200)
    assert not faster
    assert "ours was measured to take 1000000.0 us, torch's is predicted" in reason


def test_what_is_close_stays_torchs(user):
    """Between products that are clearly faster and clearly slower there are some that are only said to be faster."""
    said = [policy.prefers(Problem.dense(m, 2048, 2048, layout="nt"), H200) for m in range(64, 4096, 256)]
    assert any("too close to call" in reason for faster, reason in said if not faster)
    assert not any("too close to call" in reason for faster, reason in said if faster)


def test_far_from_all_that_was_measured_torchs_is_kept_more_often():
    known = errors.of(H200)
    near, far = (Problem.dense(m, 4096, 4096, layout="nt") for m in (1000, 2**24))
    assert known.expected(errors.torch_kind(far), far).spread > 2 * known.expected(errors.torch_kind(near), near).spread


@pytest.mark.parametrize("shape", [(0, 8, 8), (8, 0, 8), (8, 8, 0), (1, 1, 1), (2**31 - 1, 64, 64)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_and_size_has_a_verdict(user, kind, shape):
    faster, reason = policy.prefers(Problem.dense(*shape, layout="nt", **KINDS[kind]), H200)
    assert isinstance(faster, bool)
    assert "torch's" in reason


@pytest.mark.parametrize("name", gpus.names())
def test_every_gpu_has_a_verdict(user, name):
    gpu = gpus.spec(name)
    found = policy.times(PROBLEM, gpu, errors.of(gpu))
    assert 0 < found.torch_us < 1e6
    assert found.spread > 0


def test_of_another_gpu_of_its_architecture_only_what_is_usual_is_known():
    seen = Problem.dense(4096, 4096, 4096, layout="nt")
    kind = errors.torch_kind(seen)
    here, there = (errors.of(gpus.spec(name)).expected(kind, seen) for name in ("h200", "h100"))
    assert here.spread < there.spread < 0.2
    assert errors.of(gpus.spec("a100")).expected(kind, seen) == errors.Expected(0.0, errors.UNKNOWN)


def test_an_error_counts_for_its_product_more_than_for_its_neighbours():
    given = {512: 0.3, 1024: 0.0, 4096: 0.0}
    rows = [errors.Row("torch half", m, 1024, 1024, 1, "nt", error) for m, error in given.items()]
    known = Errors(rows)
    found = [known.expected("torch half", Problem.dense(m, 1024, 1024, layout="nt")) for m in (512, 580, 2048)]
    assert found[0].error > found[1].error > found[2].error
    assert found[0].spread < found[1].spread
    assert known.expected("another", PROBLEM).error == 0


def test_errors_are_read_as_they_were_written(tmp_path):
    rows = [errors.Row("torch half", 5, 6, 7, 8, "nt", 0.25), errors.Row("hopper half", 1, 2, 3, 4, "nn", -1.5)]
    errors.write(tmp_path / "x.csv", rows, ["a comment"])
    assert errors.read(tmp_path / "x.csv") == sorted(rows)


def test_estimates_take_no_longer_than_a_choice():
    """Candidates are few enough: the time of a verdict is that of so many numbers."""
    for tiles in torch_time.TILES:
        assert len(torch_time._candidates(tiles)[0]) <= 1000


def test_without_results_files_the_fit_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(measured_products, "RESULTS", tmp_path)
    result = CliRunner().invoke(fit_torch.main)
    assert result.exit_code == 1
    assert "has no results of the h200" in result.output


def test_a_fit_finds_what_made_the_times():
    """Constants from which times were made are found again, from a start that is off by a third."""
    true = replace(torch_time.KERNELS["half"], share=0.8, launch_us=3.0)
    shapes = [(m, n, k) for m in (16, 700, 8192) for n in (64, 4096) for k in (64, 1024, 8192)]
    problems = [Problem.dense(*shape, layout="nt") for shape in shapes]
    sizes = fit_torch.Times.of(dict.fromkeys(problems, 1.0)).sizes
    times = fit_torch.Times(sizes, np.log(torch_time.tiles_us(sizes, true, H200).min(axis=-1)))
    start = replace(true, share=0.6, launch_us=4.0)
    found = fit_torch.fit_kernels(times, start, ("share", "launch_us"), 0.0)
    assert found.share == pytest.approx(0.8, rel=0.01)
    assert found.launch_us == pytest.approx(3.0, rel=0.01)
