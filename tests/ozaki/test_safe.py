"""moduli="safe" and precision "ozaki:safe": bits of the emulated product where it is proved, else those of the native
one; and which of both is launched at all."""

import re

import pytest
import torch

import tritonmm
from tritonmm.moduli import DEFAULT_MODULI
from tritonmm.ozaki import panels
from tritonmm.problem import Problem
from tritonmm.torch_ops import aten, ozaki_product, ozaki_time, product
from tritonmm.torch_ops.ozaki import ozaki_mm
from tritonmm.torch_ops.ozaki_product import OzakiPlan, skippable_plan

pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")  # NumPy's, of infinity and NaN

FP64, FP32 = torch.float64, torch.float32
MODULI = {FP64: DEFAULT_MODULI["fp64"], FP32: DEFAULT_MODULI["fp32"]}


@pytest.fixture
def emulating(monkeypatch):
    """Small products are emulated, too, whichever should be faster; plans are made anew before and after."""
    monkeypatch.setattr(ozaki_product, "gains", lambda *_: True)
    product._CALLS.clear()
    yield
    product._CALLS.clear()


def with_outlier(x):
    """x with an element that makes small ones of its row vanish."""
    x = x.clone()
    x[..., 1, 3] *= 2.0**40
    return x


def native(a, b, **addends):
    """The product by the kernel that a refused one falls back to."""
    out = torch.empty(*a.shape[:-1], b.shape[-1], dtype=a.dtype, device=a.device)
    config = skippable_plan(Problem.of(a, b, out), a.device).config
    return tritonmm.matmul(a, b, config=config, precision="ieee", **addends)


def test_bits_are_those_of_the_emulated_product_or_of_the_native_one(normal, dtype):
    a, b = normal(5, 20), normal(20, 6)
    verdict = torch.full((1,), -1, dtype=torch.int32, device=a.device)
    expected = ozaki_mm(a, b, moduli=MODULI[dtype])
    assert torch.equal(ozaki_mm(a, b, moduli="safe", proved=verdict), expected)
    assert verdict.item() == 1
    assert not torch.equal(expected, native(a, b))
    refused = with_outlier(a)
    assert torch.equal(ozaki_mm(refused, b, moduli="safe", proved=verdict), native(refused, b))
    assert verdict.item() == 0
    assert not torch.equal(ozaki_mm(refused, b, moduli=MODULI[dtype]), native(refused, b))


def test_one_refused_panel_or_matrix_refuses_all(device, monkeypatch):
    monkeypatch.setattr(panels, "FEWEST", 16)
    monkeypatch.setattr(panels, "WORKSPACE", 10_000)
    a, b = torch.randn(2, 20, 30, device=device), torch.randn(2, 30, 6, device=device)
    assert len(list(panels.panels(20, 6, 30, 2, 8))) > 2
    assert torch.equal(ozaki_mm(a, b, moduli="safe"), ozaki_mm(a, b, moduli=8))
    for batch in (0, 1):
        refused = a.clone()
        refused[batch] = with_outlier(refused[batch].flip(0)).flip(0)
        assert torch.equal(ozaki_mm(refused, b, moduli="safe"), native(refused, b))


def test_infinity_and_nan_are_native(normal):
    a, b = normal(5, 20), normal(20, 6)
    a[3, 5], b[7, 2] = float("inf"), float("nan")
    found, expected = ozaki_mm(a, b, moduli="safe"), native(a, b)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())


@pytest.mark.usefixtures("emulating")
def test_addends_into_the_memory_of_the_result(normal, dtype):
    """The native kernel reads C after the emulated product has been written."""
    a, b, c, bias = normal(5, 20), normal(20, 6), normal(5, 6), normal(6)
    how = {"precision": "ozaki:safe"}
    for x in (a, with_outlier(a)):
        expected = tritonmm.addmm(c, x, b, alpha=2, beta=3, **how)
        into = c.clone()
        assert tritonmm.addmm(into, x, b, alpha=2, beta=3, out=into, **how) is into
        assert torch.equal(into, expected)
    config = skippable_plan(Problem.of(a, b, c), a.device).config
    assert torch.equal(expected, tritonmm.addmm(c, x, b, alpha=2, beta=3, config=config, precision="ieee"))
    assert torch.equal(tritonmm.addmm(bias, a, b, **how), ozaki_mm(a, b, moduli=MODULI[dtype], bias=bias))
    assert torch.equal(tritonmm.addmm(bias, x, b, **how), tritonmm.addmm(bias, x, b, config=config, precision="ieee"))


@pytest.mark.usefixtures("emulating")
def test_derivatives_and_batches_fall_back_each_for_itself(normal, dtype):
    a, b, grad = with_outlier(normal(2, 5, 20)).requires_grad_(), normal(2, 20, 40).requires_grad_(), normal(2, 5, 40)
    found = tritonmm.bmm(a, b, precision="ozaki:safe")
    assert torch.equal(found, native(a.detach(), b.detach()))
    found.backward(grad)
    assert torch.equal(a.grad, ozaki_mm(grad, b.detach().mT, moduli=MODULI[dtype]))
    assert torch.equal(b.grad, ozaki_mm(a.detach().mT, grad, moduli="safe"))


def test_the_faster_one_is_launched(device, monkeypatch, dtype):
    a = torch.zeros(4, 4, dtype=dtype, device=device)
    plans = []
    monkeypatch.setattr(product, "_CALLS", {})
    for gain in (True, False):
        monkeypatch.setattr(ozaki_product, "gains", lambda problem, us, gpu, gain=gain: gain)
        product._CALLS.clear()
        tritonmm.mm(a, a, precision="ozaki:safe")
        (call,) = product._CALLS.values()
        plans.append(call.plan)
    emulated, plain = plans
    assert isinstance(emulated, OzakiPlan)
    assert not isinstance(plain, OzakiPlan)
    assert emulated.native is plain
    assert plain.problem.precision == "ieee"


def test_which_should_be_faster_is_as_measured():
    """Ratios of torch's time on an H200, docs/ozaki.md: fp64 0.74, 1.23, 1.42; fp32 1.59, 2.79, 3.32."""
    from tritonmm import gpu as gpus
    from tritonmm.selection import best

    h200 = gpus.spec("h200")
    for name, sizes in (("fp64", {1024: False, 2048: False, 4096: True}), ("fp32", {512: False, 2048: True})):
        for size, expected in sizes.items():
            problem = Problem.dense(size, size, size, dtype=name, precision="ozaki:safe")
            us = best(Problem.dense(size, size, size, dtype=name), h200).us
            assert ozaki_time.gains(problem, us, h200) == expected, (name, size)
    empty = Problem.dense(0, 4, 4, dtype="fp64", precision="ozaki:safe")
    assert not ozaki_time.gains(empty, 1.0, h200)


def test_errors(normal):
    a = normal(4, 4)
    with pytest.raises(ValueError, match='bits depend on all of the operands; for invariant accumulation use "ozaki"'):
        tritonmm.mm(a, a, precision="ozaki:safe", accumulation="invariant")
    with pytest.raises(ValueError, match="tune is given with precision 'ozaki:safe'"):
        tritonmm.mm(a, a, precision="ozaki:safe", tune="first-call")
    with pytest.raises(ValueError, match=r"it is one of ieee, .*ozaki:5 to ozaki:16, ozaki:safe"):
        tritonmm.mm(a, a, precision="ozaki:unsafe")
    assert tritonmm.mm(a[:0], a, precision="ozaki:safe").shape == (0, 4)
    assert not tritonmm.mm(a[:, :0], a[:0], precision="ozaki:safe").any()
    assert not ozaki_mm(a[:, :0], a[:0], moduli="safe").any()


@pytest.mark.usefixtures("emulating")
def test_torchs_own_products(override, normal, dtype, monkeypatch):
    a, b, c = normal(5, 20), normal(20, 6), normal(5, 6)
    name = {FP64: "fp64", FP32: "fp32"}[dtype]
    torchs, expected = a @ b, ozaki_mm(a, b, moduli=MODULI[dtype])
    assert not torch.equal(torchs, expected)
    monkeypatch.setattr(ozaki_time, "gains_on_torch", lambda *_: True)
    override.enable(**{name: "ozaki:safe"})  # which forgets routes of tests before
    try:
        assert torch.equal(a @ b, expected)
        assert torch.equal(torch.mm(a, b, out=torch.empty_like(c)), expected)
        assert torch.equal(torch.addmm(c, a, b, beta=2), ozaki_mm(a, b, moduli=MODULI[dtype], c=c, beta=2.0))
        assert torch.equal(c.clone().addmm_(a, b), ozaki_mm(a, b, moduli=MODULI[dtype], c=c))
        refused = with_outlier(a)
        assert torch.equal(refused @ b, native(refused, b))
        other = FP32 if dtype is FP64 else FP64
        assert not torch.equal(a.to(other) @ b.to(other), ozaki_mm(a.to(other), b.to(other), moduli=MODULI[other]))
        override.disable()
        assert torch.equal(a @ b, torchs)
        with override.use("faster"):
            assert not torch.equal(a @ b, expected)
        monkeypatch.setattr(ozaki_time, "gains_on_torch", lambda *_: False)
        with override.use("always", **{name: "ozaki:safe"}):
            assert not torch.equal(a @ b, expected)
    finally:
        override.enable()
        override.disable()


def test_torch_keeps_products_that_gain_nothing_and_tf32(device, monkeypatch):
    from tritonmm import gpu as gpus

    h200 = gpus.spec("h200")
    for name, size, expected in (
        ("fp64", 2048, False), ("fp64", 4096, True), ("fp32", 1024, False), ("fp32", 2048, True),
    ):  # fmt: skip
        problem = Problem.dense(size, size, size, dtype=name, precision="ozaki:safe")
        assert ozaki_time.gains_on_torch(problem, h200) == expected, (name, size)
    monkeypatch.setattr(ozaki_time, "gains_on_torch", lambda *_: True)
    monkeypatch.setattr(ozaki_product, "gains", lambda *_: True)
    a = torch.empty(8, 8, device=device)
    product._CALLS.clear()
    for tf32 in (False, True):
        monkeypatch.setattr(aten, "fp32_precision", lambda tf32=tf32: "tf32" if tf32 else "ieee")
        assert (aten._emulated(a, a, a, None, product.BARE, "ozaki:safe") is None) == tf32
    product._CALLS.clear()


def test_torchs_product_of_a_by_itself_is_symmetric_where_that_is_faster(device, monkeypatch, dtype):
    """In place too: a blocked Cholesky factorisation subtracts such products."""
    monkeypatch.setattr(aten, "fp32_precision", lambda: "ieee")
    monkeypatch.setattr(ozaki_time, "gains_on_torch", lambda *_: True)
    monkeypatch.setattr(ozaki_product, "gains", lambda *_: False)
    monkeypatch.setattr("tritonmm.selection.SYMMETRIC_GAIN", 1e6)
    matrix = torch.randn(48, 48, dtype=dtype, device=device)
    a, corner = matrix[24:, :24], matrix[24:, 24:]
    product._CALLS.clear()
    call = aten._emulated(a, a.mT, corner, corner, (True, False, True), "ozaki:safe")
    assert call.plan.problem.symmetric
    expected = corner.double() - a.double() @ a.double().mT
    call.plan(a, a.mT, corner, alpha=-1.0, beta=1.0, c=corner)
    torch.testing.assert_close(corner.double(), expected, rtol=1e-5, atol=1e-5)
    assert aten._emulated(a, a.clone().mT, corner, corner, (True, False, True), "ozaki:safe") is None
    product._CALLS.clear()


@pytest.mark.parametrize("name", ["fp64", "fp32"])
def test_demands(override, name):
    for wrong in ("ozaki", "safe", "ieee", True):
        with pytest.raises(ValueError, match=f"{name} is .*; it must be 'ozaki:safe'"):
            override.enable(**{name: wrong})
    with pytest.raises(ValueError, match="bits depend on all of the operands"):
        override.enable(accumulation="invariant", **{name: "ozaki:safe"})


def test_explained(dtype):
    small, large = torch.empty(256, 256, dtype=dtype), torch.empty(8192, 8192, dtype=dtype)
    found = tritonmm.explain(large, large, precision="ozaki:safe")
    text = " ".join(str(found).split())
    assert f"{MODULI[dtype]} exact int8 products" in text
    (refused_us,) = map(float, re.findall(r"if the GPU finds nothing proved, the product takes ([\d.]+) us", text))
    native_us = tritonmm.explain(large, large, precision="ieee").us
    assert native_us < refused_us < native_us + found.us / 2
    found = tritonmm.explain(small, small, precision="ozaki:safe")
    assert "exact int8 products is not enough less" in found.why
    assert found.us == tritonmm.explain(small, small, precision="ieee").us
    assert "enable(fp" in found.reason
