"""Calls like earlier ones take a short way: to the same results, and never by the plan of another Problem."""

import contextlib

import pytest
import torch
from bounds import assert_within
from hypothesis import given, settings
from hypothesis import strategies as st
from strided import strided

import tritonmm
from tritonmm.problem import Epilogue, Problem
from tritonmm.torch_ops import call_cache
from tritonmm.torch_ops import checks as rules
from tritonmm.torch_ops import product as products

FORMS = {
    "mm": [((5, 7), (7, 3))],
    "bmm": [((2, 5, 7), (2, 7, 3))],
    "matmul": [((5, 7), (7, 3)), ((2, 5, 7), (7, 3)), ((7,), (7, 3)), ((2, 5, 7), (7,)), ((2, 5, 7), (1, 7, 3))],
    "mv": [((5, 7), (7,))],
    "dot": [((7,), (7,))],
    "linear": [
        *(((5, 7), (3, 7), *bias) for bias in ((), ((3,),), ((1, 3),), ((5, 3),), ((),))),
        *(((2, 5, 7), (3, 7), *bias) for bias in ((), ((3,),))),
        ((7,), (3, 7), (3,)),
    ],
    "addmm": [((5, 3), (5, 7), (7, 3)), ((3,), (5, 7), (7, 3)), ((5, 1), (5, 7), (7, 3))],
    "baddbmm": [((2, 5, 3), (2, 5, 7), (2, 7, 3)), ((3,), (2, 5, 7), (2, 7, 3))],
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_kept():
    call_cache.forget()
    yield
    call_cache.forget()


@pytest.mark.parametrize(("name", "shapes"), [(name, shapes) for name in FORMS for shapes in FORMS[name]], ids=str)
def test_the_second_call_takes_the_short_way(name, shapes, device, monkeypatch):
    args = [torch.randn(shape, device=device) for shape in shapes]
    function = getattr(tritonmm, name)
    numbers = [{}, {"alpha": 2}, {"beta": 0.5}, {"alpha": -1.5, "beta": 0}] if name in ("addmm", "baddbmm") else [{}]
    for options in numbers:
        expected = function(*args, **options)
        with monkeypatch.context() as patch:
            patch.setattr("tritonmm.torch_ops.dense.check_operands", None)  # the long way cannot be taken
            found = function(*args, **options)
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()
            if name != "linear":
                out = torch.full_like(expected, float("nan"))
                assert function(*args, out=out, **options) is out
                assert torch.equal(out, expected)


class Recorded:
    """Stands for the launch that a plan has kept: it computes as that would, and writes down what it is given."""

    def __init__(self):
        self.calls = []

    def hooked(self):
        return False

    def again(self, plan, a, b, out, a_at, b_at, out_at, alpha, beta, c, bias):
        assert (a_at, b_at, out_at) == (a.data_ptr(), b.data_ptr(), out.data_ptr())
        self.calls.append((a, b, out, alpha, beta, c, bias))


def test_a_kept_launch_is_given_the_tensors_as_they_are(device, monkeypatch):
    launch, bias = Recorded(), torch.randn(4, device=device)[:3]
    monkeypatch.setattr("tritonmm.launch.Plan.repeated", lambda *given: launch)
    x, w, c = torch.randn(2, 5, 8, device=device), torch.randn(3, 8, device=device), torch.randn(5, 3, device=device)
    tritonmm.linear(x, w, bias)
    out = tritonmm.linear(x, w, bias)
    assert [given is known for given, known in zip(launch.calls.pop(), (x, w, out, 1, 1, None, bias), strict=True)] == [
        True
    ] * 7
    assert out.shape == (2, 5, 3)
    assert out.is_contiguous()
    tritonmm.addmm(c, x[0], w.t(), alpha=2, beta=0.5)
    tritonmm.addmm(c, x[0], w.t(), alpha=2, beta=0.5, out=out[0])
    (*_, alpha, beta, added, none) = launch.calls.pop()
    assert (alpha, beta, none) == (2, 0.5, None)
    assert added is c
    # One that another kernel would read: its address is no multiple of 16.
    off = torch.randn(4, device=device)[1:]
    assert torch.equal(tritonmm.linear(x, w, off), tritonmm.linear(x.clone()[:, :, :], w, off))
    assert not launch.calls


def test_outputs_alone_are_kept_too(device, monkeypatch):
    """Who always brings an output never asks for a new one."""
    a, b, out = torch.randn(5, 7, device=device), torch.randn(7, 3, device=device), torch.empty(5, 3, device=device)
    expected = tritonmm.mm(a, b, out=out).clone()
    monkeypatch.setattr("tritonmm.torch_ops.dense.check_operands", None)
    assert torch.equal(tritonmm.mm(a, b, out=out.zero_()), expected)


def test_operands_that_require_grad_take_the_long_way(device):
    x, w = torch.randn(5, 7, device=device), torch.randn(3, 7, device=device)
    for bias in (None, torch.randn(3, device=device)):
        tritonmm.linear(x, w, bias)
        for needs in (x, w, bias):
            if needs is not None:
                needs.requires_grad_()
                tritonmm.linear(x, w, bias).sum().backward()
                assert needs.grad is not None
                needs.requires_grad_(False)


def test_what_transforms_and_modes_do_is_not_kept_from_them(device):
    x, w, bias = torch.randn(5, 7, device=device), torch.randn(3, 7, device=device), torch.randn(3, device=device)
    expected = tritonmm.linear(x, w, bias)
    tritonmm.linear(x, w, bias)
    batched = torch.func.vmap(tritonmm.linear, (0, None, None))(x[None].expand(4, 5, 7), w, bias)
    torch.testing.assert_close(batched, expected.expand(4, 5, 3))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert tritonmm.linear(x, w, bias).dtype == torch.bfloat16
    torch.testing.assert_close(tritonmm.linear(x, w, torch._neg_view(bias)), expected - 2 * bias)
    torch.testing.assert_close(tritonmm.linear(torch._neg_view(x), w, bias), 2 * bias - expected)


def test_what_is_refused_stays_refused(device):
    """These look, in part, like calls that are kept."""
    x, a, b, c = (torch.randn(shape, device=device) for shape in ((3, 2, 7), (6, 7), (7, 3), (6, 3)))
    for _ in range(2):
        tritonmm.addmm(c, a, b)
        tritonmm.baddbmm(c[None], a[None], b[None])
        tritonmm.linear(a, b.t(), c)
        tritonmm.linear(x, b.t(), c[:2])
        tritonmm.matmul(x, b)
        tritonmm.matmul(a[0], a[0])
    for wrong in (
        lambda: tritonmm.linear(x, b.t(), c),
        lambda: tritonmm.addmm(c, a, b, alpha="2"),
        lambda: tritonmm.addmm(c, a, b, beta=2j),
        lambda: tritonmm.addmm(c.half(), a, b),
        lambda: tritonmm.addmm(c.to("meta"), a, b),
        lambda: tritonmm.addmm([1.0], a, b),
        lambda: tritonmm.addmm(c, a, b, out=torch.empty(6, 3, device=device, dtype=torch.float16)),
        lambda: tritonmm.addmm(c[None], a[None], b[None]),
        lambda: tritonmm.baddbmm(c, a, b),
        lambda: tritonmm.addmm(c, a, b, out=3),
        lambda: tritonmm.mm(x, b),
        lambda: tritonmm.mm(a[0], a[0]),
        lambda: tritonmm.bmm(a, b),
    ):
        with pytest.raises((RuntimeError, TypeError), match=r"^(mm|bmm|addmm|baddbmm|linear): "):
            wrong()
    out = torch.empty(7, 3, device=device)
    with pytest.warns(UserWarning, match="7x3 and is resized"):
        tritonmm.addmm(c, a, b, out=out)
    assert torch.equal(out, tritonmm.addmm(c, a, b))


def test_functions_of_the_same_operands_are_kept_apart(device):
    a, b = torch.randn(6, 6, device=device), torch.randn(6, 6, device=device)
    for _ in range(2):
        for found, expected in (
            (tritonmm.mm(a, b), a @ b),
            (tritonmm.linear(a, b), a @ b.t()),
            (tritonmm.addmm(a[:1], a, b), a @ b + a[:1]),
            (tritonmm.addmm(a, a, b), a @ b + a),
            (tritonmm.addmm(a[0], a, b), a @ b + a[0]),
            (tritonmm.linear(a, b, a[0]), a @ b.t() + a[0]),
        ):
            torch.testing.assert_close(found, expected)


def test_what_is_unread_stays_unread(device):
    a, b, c = (torch.randn(6, 6, device=device) for _ in range(3))
    nan = torch.full_like(a, float("nan"))
    for _ in range(2):
        torch.testing.assert_close(tritonmm.addmm(c, a, b, beta=2), a @ b + 2 * c)
        torch.testing.assert_close(tritonmm.addmm(c, a, b, beta=0), a @ b)
        torch.testing.assert_close(tritonmm.addmm(nan, a, b, beta=0), a @ b)
        torch.testing.assert_close(tritonmm.addmm(c, a, b, alpha=2), 2 * (a @ b) + c)
        assert torch.equal(tritonmm.addmm(c, nan, b, alpha=0), c)
        assert torch.equal(tritonmm.addmm(c, a[:, :0], b[:0], alpha=3), c)
        assert torch.equal(tritonmm.addmm(c, a[:, :0], b[:0], alpha=float("nan")), c)


class Checked:
    """A plan that raises for operands of another Problem than the one it was made for, and multiplies with torch."""

    def repeated(self, *tensors):
        return None

    def __init__(self, problem: Problem, *_):
        self.problem = problem

    def __call__(self, a, b, out, *, alpha=1.0, beta=1.0, c=None, bias=None, scales=None):
        assert bias is None or bias.is_contiguous()
        assert not any(rules.overlap(out, x) for x in (a, b, *(() if bias is None else (bias,))))
        assert c is None or rules.is_same(out, c) or not rules.overlap(out, c)
        epilogue = Epilogue(alpha != 1, bias is not None, c is not None)
        assert Problem.of(a, b, out, products.fp32_precision(), epilogue) == self.problem
        total = alpha * (a.double() @ b.double())
        total = total if bias is None else total + bias.double()
        return out.copy_(total if c is None else total + beta * c.double())


@contextlib.contextmanager
def checked_plans():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tritonmm.plan.plan_for", Checked)
        patch.setattr("tritonmm.selection.choose", lambda *_: None)
        patch.setattr(products, "_CALLS", {})
        patch.setattr(call_cache, "_KEPT", {})
        yield


SHAPES = {
    "mm": ("mk", "kn"), "bmm": ("smk", "skn"), "matmul": ("smk", "kn"), "linear": ("smk", "nk", "n"), "mv": ("mk", "k"),
    "addmm": ("mk", "kn", "mn"), "baddbmm": ("smk", "skn", "smn"), "addbmm": ("smk", "skn", "mn"), "dot": ("k", "k"),
}  # fmt: skip
RESULTS = {"matmul": "smn", "linear": "smn", "mv": "m", "bmm": "smn", "baddbmm": "smn", "dot": ""}

LAYOUTS = ("rows", "columns", "padded rows", "every other")
OFFSETS = (0, 1, 8)
BASE = {
    **dict.fromkeys("smnk", 4),
    **{f"{name} lies in": "rows" for name in ("a", "b", "added", "out")},
    **{f"{name} starts at": 0 for name in ("a", "b", "added", "out")},
    "dtype": torch.float32,
    "a row is added": False,
    "out": "new",
    "alpha, beta": (1, 1),
    "precision": "ieee",
}
VALUES = {
    **dict.fromkeys("smnk", (1, 3, 4)),
    **{f"{name} lies in": LAYOUTS for name in ("a", "b", "added", "out")},
    **{f"{name} starts at": OFFSETS for name in ("a", "b", "added", "out")},
    "dtype": (torch.float32, torch.bfloat16),
    "a row is added": (False, True),
    "out": ("", "new", "strided", "over a", "over b", "over added"),
    "alpha, beta": ((1, 1), (2, 1), (1, 0), (1, 2), (0, 1)),
    "precision": ("ieee", "tf32"),
}


def multiplied(name: str, call: dict, device: torch.device) -> None:
    """One call of the function, compared with torch's of float64."""
    shapes = [tuple(call[size] for size in sizes) for sizes in (*SHAPES[name], RESULTS.get(name, "mn"))]
    if len(shapes) == 3:
        shapes.insert(2, ())
    elif call["a row is added"]:
        shapes[2] = shapes[2][-1:]
    tensors, memories = {}, {}
    for key, shape in zip(("a", "b", "added", "out"), shapes, strict=True):
        memories[key] = torch.randn(2_000, device=device).to(call["dtype"])
        tensors[key] = strided(memories[key], shape, call[f"{key} lies in"], call[f"{key} starts at"])
    a, b, added, out = tensors.values()
    args, options = [a, b], {}
    if len(SHAPES[name]) == 3:
        args = [a, b, added] if name == "linear" else [added, a, b]
    if name in ("addmm", "baddbmm", "addbmm"):
        options = dict(zip(("alpha", "beta"), call["alpha, beta"], strict=True))
    reference = torch.nn.functional.linear if name == "linear" else getattr(torch, name)
    doubles = [x.double() for x in args]
    expected, magnitude = (reference(*given, **options) for given in (doubles, [x.abs() for x in doubles]))
    if call["out"] and name != "linear":
        over = call["out"].removeprefix("over ")
        if over in memories:
            out = strided(memories[over], out.shape, call["out lies in"], call["out starts at"])
        options["out"] = torch.empty_like(expected, dtype=call["dtype"]) if over == "new" else out
    found = getattr(tritonmm, name)(*args, **options)
    assert found.dtype == call["dtype"]
    assert found is options.get("out", found)
    assert_within(found, expected, magnitude, torch.ones_like(magnitude))


@contextlib.contextmanager
def fp32_precision():
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def assert_computed(name, calls, device):
    with checked_plans(), fp32_precision():
        for call in calls:
            torch.backends.cuda.matmul.fp32_precision = call["precision"]
            multiplied(name, call, device)


@pytest.mark.parametrize("base", [{}, {"out": "strided"}, {"a row is added": True}, {"alpha, beta": (2, 2)}], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_calls_that_differ_in_one_aspect(name, base, device):
    """Every launch is by the plan of its own Problem."""
    base = BASE | base
    for aspect, values in VALUES.items():
        for value in values:
            changed = base | {aspect: value}
            assert_computed(name, (base, base, changed, changed, base), device)


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=30)
@given(st.lists(st.fixed_dictionaries({x: st.sampled_from(values) for x, values in VALUES.items()}), min_size=2))
def test_any_calls(name, device, calls):
    assert_computed(name, calls, device)
