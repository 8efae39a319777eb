"""The study of linear systems: its algorithms are right, and it counts the products that they launch."""

import functools

import pytest
import torch
from click.testing import CliRunner

from tritonmm.autotune.measuring.measure import Regime
from tritonmm.autotune.studies import solver
from tritonmm.torch_ops.ozaki import ozaki_mm


@pytest.mark.parametrize("n", [1, 16, 100, 257])
def test_the_recursive_solver_solves(n):
    system = solver.random_system(n, torch.float64, torch.device("cpu"))
    before = system.a.clone()
    factor = solver.cholesky_(system.a.clone(), leaf=16).tril()
    assert torch.dist(factor @ factor.mT, before) < 1e-12 * n
    x = solver.solve(system, leaf=16).x
    assert torch.equal(system.a, before)
    assert solver.residual(system, x) < 1e-15
    assert torch.allclose(x, torch.linalg.solve(before, system.b), rtol=1e-10, atol=1e-12)
    assert torch.allclose(x, solver.library(system).x, rtol=1e-10, atol=1e-12)


def test_the_likelihood_is_that_of_a_normal_distribution():
    system = solver.process(120, 2.0, torch.float64, torch.device("cpu"))
    found = solver.solve(system, leaf=16)
    normal = torch.distributions.MultivariateNormal(torch.zeros(120, dtype=torch.float64), system.a)
    expected = normal.log_prob(system.b.mT).sum()
    for answer in (found, solver.library(system)):
        assert answer.log_likelihood.item() == pytest.approx(expected.item(), rel=1e-10)
    assert torch.allclose(found.predicted, system.kernel @ torch.linalg.solve(system.a, system.b), atol=1e-8)


def test_a_matrix_that_is_not_definite_is_an_error():
    with pytest.raises(torch.linalg.LinAlgError):
        solver.cholesky_(-torch.eye(64), leaf=16)


def test_products_are_counted():
    system = solver.random_system(64, torch.float64, torch.device("cpu"))
    with solver.counted() as counts:
        solver.cholesky_(system.a.clone(), leaf=16)
    # Halves of 32 with one update inside of each, the solve of 32 x 32 with one, and the update of the corner.
    assert counts.row() == {"products": 4, "exact": 0, "refused": 0, "native": 4, "exact_flops": 0}
    assert counts.flops == 2 * 16**3 * 2 + 2 * 32 * 16 * 16 + 2 * 32**3


def test_verdicts_are_counted(device):
    a, b = (torch.randn(40, 96, dtype=torch.float64, device=device) for _ in range(2))
    sparse = a * (torch.rand_like(a) < 0.02)
    with solver.counted() as counts:
        for left in (a, sparse):
            counts.products += 1  # ozaki_mm is no operator of torch's
            counts.flops += solver.flops_of(left, b.mT)
            ozaki_mm(left, b.mT, moduli="safe")
    assert counts.row() == {"products": 2, "exact": 1, "refused": 1, "native": 0, "exact_flops": 0.5}


def test_cases_have_the_columns_of_a_row():
    found = [solver.Row(**row) for row, _ in solver.cases(torch.device("cpu"))]
    assert len({(row.what, row.dtype, row.n, row.length) for row in found}) == len(found) == 12


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure")
def test_without_a_gpu_nothing_is_measured(tmp_path):
    result = CliRunner().invoke(solver.main, [str(tmp_path / "x.csv")])
    assert result.exit_code == 1
    assert "times need a GPU" in result.output


@pytest.mark.parametrize("what", ["solve", "gaussian process"])
def test_a_row_has_times_errors_and_counts(what, monkeypatch):
    """Of this machine's CPU, where every product is torch's."""

    def seconds(run):
        run()
        return 0.25

    monkeypatch.setattr(solver, "_seconds", seconds)
    monkeypatch.setattr(solver, "solve", functools.partial(solver.solve, leaf=16))
    cpu = torch.device("cpu")
    system = solver.random_system(64, torch.float64, cpu)
    if what != "solve":
        system = solver.process(64, 2.0, torch.float64, cpu)
    named = {"what": what, "dtype": "fp64", "n": 64, "length": None}
    row = solver.measured(named, system, Regime("none", rest=0.0, replay=1.0, fewest=1, most=1, warm=0.0))
    assert (row.torch_ms, row.ours_ms, row.linalg_ms, row.ratio) == (250.0, 250.0, 250.0, 1.0)
    assert row.torch_residual == row.ours_residual < 1e-15
    assert (row.difference, row.exact, row.refused, row.lost) == (0.0, 0, 0, "")
    assert row.products == row.native > 0
    assert row.torch_log_likelihood == row.ours_log_likelihood
    assert (row.torch_log_likelihood is None) == (what == "solve")
