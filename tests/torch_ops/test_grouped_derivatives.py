"""grouped_mm under autograd, torch.compile, torch.func and torch's other transforms."""

import pytest
import torch
from bounds import assert_like_torch
from grouped_cases import OFFS, SHAPES, expected_of, in_groups, int32, poisoned
from torch.utils.flop_counter import FlopCounterMode

import tritonmm

RAGGED = ("rows", "columns", "k")
JVP = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""For forward mode, which torch begins with a warning."""

DOUBLE = {"dtype": torch.float64}


def multiplied(device, offs=OFFS):
    """grouped_mm with these offsets, of which only what belongs to a group is kept; new memory is NaN."""
    ends = int32(offs, device)

    def multiply(a, b, bias=None, **options):
        with poisoned():
            found = tritonmm.grouped_mm(a, b, offs=ends, bias=bias, **options)
        return in_groups(found, a, b, offs)

    return multiply


def reference(a, b, bias=None, offs=OFFS):
    return in_groups(expected_of(a, b, offs, bias), a, b, offs)


@pytest.mark.parametrize(("dtype", "derivatives"), [(torch.float32, 2), (torch.bfloat16, 1)], ids=str)
@pytest.mark.parametrize("form", RAGGED)
def test_derivatives_are_those_of_the_groups(form, dtype, derivatives, device):
    """First and second ones, of every element: those that belong to no group are 0."""
    given = [torch.randn(shape, device=device).to(dtype) for shape in SHAPES[form]]
    if form != "columns":
        given.append(torch.randn(4, given[1].shape[-1], device=device).to(dtype))
    assert_like_torch(multiplied(device), reference, given, {}, derivatives)


@pytest.mark.parametrize("form", RAGGED)
def test_derivatives_past_the_end_are_zero(form, device):
    a, b = (torch.randn(shape, device=device, requires_grad=True) for shape in SHAPES[form])
    found = tritonmm.grouped_mm(a, b, offs=int32(OFFS, device))
    weight = torch.full_like(found, float("nan"))
    in_groups(weight, a, b, OFFS).fill_(1.0)
    with poisoned():
        grad_a, grad_b = torch.autograd.grad(found, (a, b), weight)
    outside = {"rows": [grad_a[15:]], "columns": [grad_b[:, 15:]], "k": [grad_a[:, 15:], grad_b[15:]]}[form]
    assert all(x.numel() and x.eq(0).all() for x in outside)
    assert grad_a.isfinite().all()
    assert grad_b.isfinite().all()
    if form == "rows":
        assert grad_b[1].eq(0).all()  # a group without rows


def test_derivatives_of_a_batch(device):
    given = [torch.randn(shape, device=device) for shape in (*SHAPES["batch"], (4, 7))]
    assert_like_torch(
        lambda a, b, bias: tritonmm.grouped_mm(a, b, bias=bias),
        lambda a, b, bias: expected_of(a, b, None, bias),
        given,
        {},
    )


@pytest.mark.parametrize("form", ["rows", "k"])
def test_derivatives_of_fp32_results_have_the_dtype_of_the_operands(form, device):
    a, b = (torch.randn(shape, device=device).bfloat16().requires_grad_() for shape in SHAPES[form])
    bias = torch.randn(4, b.shape[-1], device=device).bfloat16().requires_grad_()
    found = multiplied(device)(a, b, bias, out_dtype=torch.float32)
    assert found.dtype == torch.float32
    grads = torch.autograd.grad(found.sum(), (a, b, bias))
    assert {x.dtype for x in grads} == {torch.bfloat16}
    twins = [x.detach().double().requires_grad_() for x in (a, b, bias)]
    for ours, exact in zip(grads, torch.autograd.grad(reference(*twins).sum(), twins), strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-2, atol=1e-2)


TINY = {"rows": ((4, 2), (2, 2, 2)), "columns": ((2, 2, 2), (2, 4)), "k": ((2, 4), (4, 2))}


@JVP
@pytest.mark.parametrize("form", RAGGED)
def test_gradcheck(form, device):
    """In both modes, and of the gradients again."""
    given = [torch.randn(shape, device=device, requires_grad=True, **DOUBLE) for shape in TINY[form]]
    multiply = multiplied(device, [1, 3])
    options = {"fast_mode": True, "check_undefined_grad": False}
    assert torch.autograd.gradcheck(multiply, given, check_forward_ad=True, **options)
    assert torch.autograd.gradgradcheck(multiply, given, check_fwd_over_rev=form == "rows", **options)


@JVP
@pytest.mark.parametrize("form", RAGGED)
def test_tangents(form, device):
    """Forward mode, with a bias and an output of another dtype."""
    given = [torch.randn(shape, device=device).bfloat16() for shape in SHAPES[form]]
    if form != "columns":
        given.append(torch.randn(4, given[1].shape[-1], device=device).bfloat16())
    tangents = [torch.randn_like(x) for x in given]

    def multiply(a, b, bias=None):
        return tritonmm.grouped_mm(a, b, offs=int32(OFFS, device), bias=bias, out_dtype=torch.float32)

    def expected(a, b, bias=None):
        return expected_of(a, b, OFFS, bias)

    with poisoned():
        found, tangent = torch.func.jvp(multiply, tuple(given), tuple(tangents))
    exact = torch.func.jvp(expected, *(tuple(x.double() for x in each) for each in (given, tangents)))
    assert found.dtype == tangent.dtype == torch.float32
    torch.testing.assert_close(tangent.double(), exact[1], rtol=1e-3, atol=1e-3)


def test_gradients_are_contiguous_where_their_operands_are(device):
    """Those of weights that are stored as (groups, n, k) need no copy."""
    x, weights = torch.randn(17, 20, device=device), torch.randn(4, 9, 20, device=device)
    x.requires_grad_()
    weights.requires_grad_()
    found = tritonmm.grouped_mm(x, weights.mT, offs=int32(OFFS, device))
    grads = torch.autograd.grad(found.sum(), (x, weights))
    assert [grad.is_contiguous() for grad in grads] == [True, True]
    exact = torch.autograd.grad(reference(x, weights.mT).sum(), (x, weights))
    torch.testing.assert_close(grads, exact, rtol=1e-4, atol=1e-4)


def test_compiled_whole_for_any_number_of_tokens(device):
    weights = torch.randn(3, 6, 5, device=device, requires_grad=True)
    bias = torch.randn(3, 5, device=device, requires_grad=True)
    graphs = []

    def counted(graph, inputs):
        from torch._dynamo.backends.debugging import aot_eager

        graphs.append(graph)
        return aot_eager(graph, inputs)

    def layer(x, weights, bias, offs):
        return tritonmm.grouped_mm(x, weights, offs=offs, bias=bias).relu() * 2.0

    compiled = torch.compile(layer, backend=counted, fullgraph=True, dynamic=True)
    for total, offs in ((7, [2, 2, 7]), (9, [0, 4, 9]), (12, [1, 11, 12])):
        x = torch.randn(total, 6, device=device, requires_grad=True)
        found = compiled(x, weights, bias, int32(offs, device))
        exact = expected_of(x, weights, offs, bias).relu() * 2.0
        torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-4)
        leaves = x, weights, bias
        torch.testing.assert_close(
            torch.autograd.grad(found.sin().sum(), leaves), torch.autograd.grad(exact.sin().sum(), leaves),
            rtol=1e-4, atol=1e-4,
        )  # fmt: skip
    assert len(graphs) == 1


def test_compiled_with_groups_of_k_and_columns(device):
    def both(a, b, offs):
        k = tritonmm.grouped_mm(a, b, offs=offs)
        return tritonmm.grouped_mm(k, b.mT, offs=offs)

    a, b = torch.randn(4, 9, device=device), torch.randn(9, 5, device=device)
    offs = [3, 5, 9]
    found = torch.compile(both, backend="eager", fullgraph=True, dynamic=True)(a, b, int32(offs, device))
    exact = expected_of(expected_of(a, b, offs), b.mT, offs)
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", RAGGED)
def test_the_operator_is_what_torch_asks_for(form, device):
    """Schema, registration, fake tensors and AOT dispatch with dynamic shapes."""
    given = [torch.randn(shape, device=device, requires_grad=True) for shape in TINY[form]]
    bias = None if form == "columns" else torch.randn(2, 2, device=device, requires_grad=True)
    found = torch.library.opcheck(
        torch.ops.tritonmm.grouped_product.default,
        (*given, int32([1, 4], device), bias, "", "", None, None, None, "", "", True),
    )
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("form", SHAPES)
def test_meta_tensors(form, device):
    a, b = (torch.empty(shape, device="meta", dtype=torch.bfloat16) for shape in SHAPES[form])
    offs = None if form == "batch" else torch.empty(4, device="meta", dtype=torch.int32)
    found = tritonmm.grouped_mm(a, b, offs=offs, out_dtype=torch.float32)
    there = [torch.ones(shape, device=device) for shape in SHAPES[form]]
    real = tritonmm.grouped_mm(*there, offs=None if offs is None else int32(OFFS, device))
    assert (found.shape, found.stride(), found.dtype) == (real.shape, real.stride(), torch.float32)


@pytest.mark.parametrize("form", SHAPES)
def test_flops_are_counted(form, device):
    a, b = (torch.randn(shape, device=device, requires_grad=form == "rows") for shape in SHAPES[form])
    with FlopCounterMode(display=False) as counter:
        found = tritonmm.grouped_mm(a, b, offs=None if form == "batch" else int32(OFFS, device))
        once = {"rows": 17 * 20 * 9, "columns": 9 * 20 * 17, "k": 9 * 17 * 20, "batch": 4 * 9 * 20 * 7}[form] * 2
        assert counter.get_total_flops() == once
        if form == "rows":
            found[:15].sum().backward()
            assert counter.get_total_flops() == 3 * once


def test_torch_func(device):
    a, b = (torch.randn(shape, device=device) for shape in SHAPES["rows"])
    found = torch.func.grad(lambda a: multiplied(device)(a, b).sin().sum())(a)
    expected = torch.func.grad(lambda a: reference(a, b).sin().sum())(a)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(NotImplementedError, match="vmap: grouped_mm has no batch"):
        torch.func.vmap(lambda a: tritonmm.grouped_mm(a, b, offs=int32(OFFS, device)))(a.expand(2, 17, 20))
