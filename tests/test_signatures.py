"""Public functions have torch's arguments in torch's order, then out, config, precision and tune, and obey them."""

import inspect

import pytest
import torch
from bounds import assert_product

import tritonmm
from tritonmm.config import Config
from tritonmm.torch_ops import call_cache
from tritonmm.torch_ops import product as products

DENSE = ("matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "linear", "mv", "dot")
QUANTIZED = ("int_mm", "scaled_mm", "weight_only_linear")
OURS = ("out_dtype", "out", "config", "precision", "accumulation", "tune")

HAVE = dict.fromkeys(DENSE, ("out", "config", "precision", "accumulation"))
HAVE |= dict.fromkeys(QUANTIZED, ("out", "config", "accumulation"))
HAVE |= dict.fromkeys(("mm", "bmm"), OURS) | {"matmul": OURS[1:]}

TORCH = {name: name for name in DENSE} | {"int_mm": "_int_mm", "scaled_mm": "_scaled_mm"}


def parameters(name, kind):
    return [x for x in inspect.signature(getattr(tritonmm, name)).parameters.values() if x.kind == kind]


@pytest.mark.parametrize("name", [*DENSE, *QUANTIZED])
def test_arguments_of_ours_are_keywords_in_one_order(name):
    found = [x.name for x in parameters(name, inspect.Parameter.KEYWORD_ONLY)]
    scalars = ("beta", "alpha") if name in ("addmm", "baddbmm", "addbmm") else ()
    assert tuple(found) == (*scalars, *HAVE[name])
    typed = inspect.signature(getattr(tritonmm, name)).parameters
    assert {typed[x].annotation for x in ("out", "config")} == {torch.Tensor | None, Config | None}


@pytest.mark.parametrize("name", TORCH)
def test_positional_arguments_are_torchs(name):
    schema = getattr(torch.ops.aten, TORCH[name]).out._schema
    torchs = [("input" if x.name == "self" else x.name) for x in schema.arguments if not x.kwarg_only]
    assert [x.name for x in parameters(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)] == torchs
    scalars = {x.name for x in schema.arguments if x.kwarg_only} - {"out", "out_dtype"}
    assert scalars == {x.name for x in parameters(name, inspect.Parameter.KEYWORD_ONLY)} & {"alpha", "beta"}


SHAPES = {
    "matmul": ((2, 5, 40), (40, 24)), "mm": ((17, 40), (40, 24)), "bmm": ((2, 17, 40), (2, 40, 24)),
    "addmm": ((24,), (17, 40), (40, 24)), "baddbmm": ((2, 17, 24), (2, 17, 40), (2, 40, 24)),
    "addbmm": ((17, 24), (2, 17, 40), (2, 40, 24)), "linear": ((2, 5, 40), (24, 40), (24,)), "mv": ((17, 40), (40,)),
    "dot": ((40,), (40,)),
}  # fmt: skip


def operands(name, device):
    if name == "int_mm":
        return [torch.randint(-5, 6, shape, device=device).char() for shape in ((17, 40), (40, 24))]
    one = torch.ones(1, device=device)
    if name == "scaled_mm":
        x, w = (torch.randint(-3, 4, shape, device=device).to(torch.float8_e4m3fn) for shape in ((17, 40), (24, 40)))
        return [x, w.t(), one, one]
    if name == "weight_only_linear":
        x, w = torch.randint(-3, 4, (2, 5, 40), device=device), torch.randint(-3, 4, (24, 40), device=device)
        return [x.bfloat16(), w.char(), one.expand(24)]
    return [torch.randn(shape, device=device) for shape in SHAPES[name]]


@pytest.fixture
def planned(monkeypatch):
    """(problem, config) of every plan that is made."""
    from tritonmm import plan

    found, plan_for = [], plan.plan_for

    def recorded(problem, config, device):
        found.append((problem, config))
        return plan_for(problem, config, device)

    monkeypatch.setattr(plan, "plan_for", recorded)
    for memory in (products._CALLS, call_cache._KEPT):
        memory.clear()
    return found


@pytest.mark.parametrize("name", [*DENSE, *QUANTIZED])
def test_config_is_obeyed_also_by_calls_like_earlier_ones(name, planned, device):
    given, config = operands(name, device), Config("tile", 32, 16, 32, 2, 2)
    expected = getattr(tritonmm, name)(*given)
    for _ in range(2):
        planned.clear()
        found = getattr(tritonmm, name)(*given, config=config)
        assert [each[1] for each in planned] == [config]
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)
    with pytest.raises(ValueError, match="block_m is 48"):
        getattr(tritonmm, name)(*given, config=Config("tile", block_m=48))
    with pytest.raises(TypeError, match=r"config is 'tile'; it must be a tritonmm\.Config"):
        getattr(tritonmm, name)(*given, config="tile")


@pytest.mark.parametrize("name", DENSE)
def test_precision_is_obeyed_also_by_calls_like_earlier_ones(name, planned, device):
    given = operands(name, device)
    expected = getattr(tritonmm, name)(*given)
    for precision in ("tf32x3", "bf16x3"):
        found = getattr(tritonmm, name)(*given, precision=precision)
        assert planned[-1][0].precision == precision
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        into = getattr(tritonmm, name)(*given, precision=precision, out=torch.empty_like(expected))
        assert torch.equal(into, found)
    with pytest.raises(
        ValueError, match=r"precision is 'fp8' for torch.float32; it is one of ieee, tf32, tf32x3, bf16x3"
    ):
        getattr(tritonmm, name)(*given, precision="fp8")


def test_ieee_is_the_precision_of_every_dtype_and_half_has_no_other(planned, device):
    a = torch.randn(24, 40, device=device).bfloat16()
    assert torch.equal(tritonmm.mm(a, a.mT, precision="ieee"), tritonmm.mm(a, a.mT))
    assert planned[0] == planned[-1]
    with pytest.raises(ValueError, match=r"precision is 'tf32' for torch.bfloat16; only torch.float32 and torch.float"):
        tritonmm.mm(a, a.mT, precision="tf32")
    with pytest.raises(ValueError, match=r"precision is 'tf32' for torch.float64; it is one of ieee, ozaki, [^.]*$"):
        tritonmm.mm(a.double(), a.mT.double(), precision="tf32")
    with pytest.raises(TypeError, match="operands must be Tensors, not list"):
        tritonmm.mm(a.tolist(), a.mT, precision="tf32")


@pytest.mark.parametrize("name", [*DENSE, *QUANTIZED])
def test_out_is_written_and_returned(name, device):
    given = operands(name, device)
    expected = getattr(tritonmm, name)(*given)
    out = torch.empty_like(expected)
    for _ in range(2):
        assert getattr(tritonmm, name)(*given, out=out.zero_()) is out
        assert torch.equal(out, expected)
    with pytest.raises(RuntimeError, match=f"{name}: out must have dtype"):
        getattr(tritonmm, name)(*given, out=expected.double())


def test_out_may_be_an_operand(device):
    x, w = operands("weight_only_linear", device)[:2]
    square, scale = w.new_ones(40, 40), torch.ones(40, device=device)
    expected = tritonmm.weight_only_linear(x, square, scale)
    assert torch.equal(tritonmm.weight_only_linear(x, square, scale, out=x), expected)
    weight, bias = torch.randn(24, 40, device=device), torch.randn(24, device=device)
    x = torch.randn(40, 40, device=device)
    expected = tritonmm.linear(x, x)
    assert torch.equal(tritonmm.linear(x, x, out=x), expected)
    out = torch.randn(5, device=device)
    assert_product(tritonmm.linear(weight[:5], weight[7], out=out), weight[:5], weight[7])
    expected = out + bias[0]
    assert torch.equal(tritonmm.linear(weight[:5], weight[7], bias[0], out=out), expected)


@pytest.mark.parametrize("k", [0, 40])
def test_quantized_results_without_an_inner_dimension_go_into_out(k, device):
    a = torch.zeros(5, k, device=device, dtype=torch.int8)
    b, bias = torch.zeros(k, 7, device=device, dtype=torch.int8), torch.randn(7, device=device).bfloat16()
    one = torch.ones(1, device=device)
    out = torch.empty(5, 7, device=device, dtype=torch.bfloat16)
    assert tritonmm.scaled_mm(a, b, one, one, bias, out=out) is out
    assert torch.equal(out, bias.expand(5, 7))
    x = torch.zeros(5, k, device=device, dtype=torch.bfloat16)
    assert tritonmm.weight_only_linear(x, b.t(), one.expand(7), bias, out=out.zero_()) is out
    assert torch.equal(out, bias.expand(5, 7))


def test_scaled_mm_takes_the_arguments_of_torchs(device):
    a = torch.randint(-3, 4, (32, 64), device=device).to(torch.float8_e4m3fn)
    b = torch.randint(-3, 4, (48, 64), device=device).to(torch.float8_e4m3fn).t()
    one, bias = torch.ones(1, device=device), torch.randn(48, device=device).bfloat16()
    given = a, b, one, one, bias, None, torch.bfloat16, True
    torch.testing.assert_close(tritonmm.scaled_mm(*given), torch._scaled_mm(*given))
    with pytest.raises(NotImplementedError, match="scale_result is given"):
        tritonmm.scaled_mm(a, b, one, one, bias, one)
