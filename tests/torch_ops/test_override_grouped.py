"""enable() and grouped products: ours in every form, with torch's strides, errors, derivatives and fallbacks."""

import math

import pytest
import torch
from grouped_cases import in_groups, int32
from torch.nn.functional import ScalingType, grouped_mm, scaled_grouped_mm

import tritonmm
from tritonmm import gpu as gpus
from tritonmm.policy import prefers
from tritonmm.problem import KINDS, Problem
from tritonmm.torch_ops import aten_grouped, routes
from tritonmm.torch_ops.routes import LeftToTorchError, kept_by_torch

BF16, F8 = torch.bfloat16, torch.float8_e4m3fn
FORMS = ("rows", "columns", "k", "batch")
OFFS = [8, 8, 16, 24]
"""torch's kernel on a GPU takes groups of 16 bytes or a multiple of that, where their elements lie side by side."""

SIZES = {"rows": ((26, 24), (4, 24, 9)), "columns": ((4, 9, 24), (24, 26)), "k": ((9, 26), (26, 11)),
         "batch": ((4, 9, 24), (4, 24, 7))}  # fmt: skip
"""No size of a result is a multiple of 8, so that its rows are padded. 2 rows, or others, belong to no group."""

F8_SIZES = {"rows": ((49, 32), (4, 32, 16)), "columns": ((4, 16, 32), (32, 48)), "k": ((9, 48), (48, 48)),
            "batch": ((4, 9, 32), (4, 32, 16))}  # fmt: skip
F8_OFFS = [16, 16, 32, 32]


@pytest.fixture(autouse=True)
def nothing_known(override, monkeypatch):
    """No route and no failure of tests before."""
    monkeypatch.setattr(routes, "_CAUSES", set())
    override.enable()
    override.disable()


@pytest.fixture
def ours(override, nothing_known):
    with override.use("always"):
        yield


def lined(x, along):
    """x with rows ("n") or columns ("t") that lie 16 bytes apart or a multiple of that."""
    x = x if along == "n" else x.mT
    rows, cols = x.shape[-2:]
    wide = x.new_empty(*x.shape[:-2], rows, math.ceil(cols / 16) * 16)
    found = wide[..., :cols]
    found.copy_(x)
    return found if along == "n" else found.mT


def operands(form, device, dtype=BF16, layout="nn", sizes=SIZES):
    a, b = (torch.randint(-4, 5, shape, device=device).float().to(dtype) for shape in sizes[form])
    return lined(a, layout[0]), lined(b, layout[1])


def offs_of(form, device):
    return None if form == "batch" else int32(OFFS, device)


def assert_same(found, expected, a, b, offs):
    """The same in all that a caller sees. What belongs to no group may be anything."""
    assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)
    offs = None if offs is None else offs.tolist()
    assert torch.equal(in_groups(found, a, b, offs), in_groups(expected, a, b, offs))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32], ids=str)
def test_every_form_is_ours_with_torchs_values_and_strides(form, dtype, layout, override, launched, device):
    a, b = operands(form, device, dtype, layout)
    offs = offs_of(form, device)
    expected = grouped_mm(a, b, offs=offs)
    assert expected.stride(-2) % 4 == 0, "torch pads"
    with override.use("always"):
        for _ in range(2):
            assert_same(grouped_mm(a, b, offs=offs), expected, a, b, offs)
            assert_same(torch._grouped_mm(a, b, offs, out_dtype=dtype), expected, a, b, offs)
    assert len(launched) == 4
    if form == "batch":
        assert (launched[0].ragged, launched[0].batch) == ("", 4)
    else:
        assert (launched[0].ragged, launched[0].groups) == ("k" if form == "k" else "m", 4)
    grouped_mm(a, b, offs=offs)
    assert len(launched) == 4, "torch's own again"


@pytest.mark.parametrize("cols", [8, 9, 15, 16])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
def test_rows_of_results_are_padded_as_torchs(form, cols, dtype, override, launched, device):
    a, b = operands(form, device, dtype)
    b = lined(torch.ones(*b.shape[:-1], cols, device=device).to(dtype), "n")
    offs = None if form == "batch" else int32([0, 0, 8, 8 if form == "columns" else 16], device)
    expected = grouped_mm(a, b, offs=offs)
    with override.use("always"):
        assert_same(grouped_mm(a, b, offs=offs), expected, a, b, offs)
    assert launched


@pytest.mark.parametrize("form", ["rows", "columns", "k"])
def test_groups_are_tritonmms(form, ours, device):
    """Offsets may be anything, a NaN stays in its group, and groups without elements give zeros."""
    a, b = operands(form, device)
    for offs in ([30, 10, -7, 12], [0, 0, 0, 0], [26, 26, 26, 26], [1, 2, 3, 4]):
        offs = int32(offs, device)
        found, direct = grouped_mm(a, b, offs=offs), tritonmm.grouped_mm(a, b, offs=offs)
        assert torch.equal(in_groups(found, a, b, offs.tolist()), in_groups(direct, a, b, offs.tolist()))
    offs = int32(OFFS, device)
    clean = grouped_mm(a, b, offs=offs)
    spoilt = a.clone(memory_format=torch.preserve_format) if form != "columns" else a
    if form == "rows":
        spoilt[21] = float("nan")  # of the last group
    elif form == "k":
        spoilt[:, 21] = float("nan")
    else:
        b = b.clone(memory_format=torch.preserve_format)
        b[:, 21] = float("nan")
    found = grouped_mm(lined(spoilt, "n"), lined(b, "n"), offs=offs)
    if form == "k":
        assert torch.equal(found[:3], clean[:3])
        assert found[3].isnan().all()
    else:
        kept = [i for i in range(24) if i != 21]
        of = (lambda x: x) if form == "rows" else (lambda x: x.mT)
        assert torch.equal(of(found)[kept], of(clean)[kept])
        assert of(found)[21].isnan().all()


def bad_calls(device):
    """Calls that torch refuses."""
    a, b = operands("rows", device)
    x, y = operands("k", device)
    offs = int32(OFFS, device)
    bias = torch.zeros(4, 9, device=device, dtype=BF16)
    return {
        "bias": lambda: torch._grouped_mm(a, b, offs, bias),
        "out_dtype": lambda: torch._grouped_mm(a, b, offs, out_dtype=torch.float32),
        "no offs": lambda: grouped_mm(a, b),
        "offs of a batch": lambda: grouped_mm(b.mT, b, offs=offs),
        "int64 offs": lambda: grouped_mm(a, b, offs=offs.long()),
        "2-D offs": lambda: grouped_mm(a, b, offs=offs[None]),
        "too few offs": lambda: grouped_mm(a, b, offs=offs[:3]),
        "inner": lambda: grouped_mm(a[:, :16], b, offs=offs),
        "batches": lambda: grouped_mm(b[:3].mT, b),
        "1-D": lambda: grouped_mm(a[0], b, offs=offs),
        "double": lambda: grouped_mm(a.double(), b.double(), offs=offs),
        "int8": lambda: grouped_mm(a.char(), b.char(), offs=offs),
        "mixed": lambda: grouped_mm(a, lined(b.half(), "n"), offs=offs),
        "narrow lines": lambda: grouped_mm(torch.zeros(17, 9, device=device, dtype=BF16), b[:, :9], offs=offs),
        "broadcast": lambda: grouped_mm(a[:1].expand(17, 24), b, offs=offs),
        "steps": lambda: grouped_mm(x[:, ::2], y[::2], offs=offs),
    }


@pytest.mark.parametrize("name", bad_calls(torch.device("cpu")))
def test_errors_are_torchs_own(name, override, launched, device):
    call = bad_calls(device)[name]
    with pytest.raises((RuntimeError, ValueError)) as torchs:
        call()
    with override.use("always"), pytest.raises(type(torchs.value)) as caught:
        call()
    assert str(caught.value) == str(torchs.value)
    assert not launched


def test_what_torch_computes_and_we_leave_is_torchs(override, launched, device):
    """Empty operands, and addresses between multiples of 16 bytes, which torch takes on CPUs."""
    a, b = operands("rows", device)
    offs = int32(OFFS, device)
    calls = [lambda: grouped_mm(a[:0], b, offs=int32([0] * 4, device))]
    if device.type == "cpu":
        odd = torch.ones(1 + 17 * 24, dtype=BF16)[1:].view(17, 24)
        calls.append(lambda: grouped_mm(odd, b, offs=offs)[:15])
    expected = [call() for call in calls]
    with override.use("always"):
        grouped = launched.copy()
        found = [call() for call in calls]
        assert not [problem for problem in launched[len(grouped) :] if problem.ragged]
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


class Tagged(torch.Tensor):
    pass


@pytest.mark.parametrize("which", [0, 1, 2])
def test_subclasses_stay_torchs(which, override, launched, device):
    given = [*operands("rows", device), int32(OFFS, device)]
    expected = grouped_mm(*given[:2], offs=given[2])[:15]
    given[which] = given[which].as_subclass(Tagged)
    with override.use("always"):
        found = grouped_mm(*given[:2], offs=given[2])[:15]
        assert isinstance(found, Tagged) or which == 2
        assert torch.equal(found.as_subclass(torch.Tensor), expected)
    assert not [problem for problem in launched if problem.ragged]


@pytest.mark.parametrize("form", FORMS)
def test_derivatives_are_torchs_formulas_of_our_products(form, override, launched, device):
    sizes = {"rows": ((16, 24), (4, 24, 8)), "columns": ((4, 8, 24), (24, 16)), "k": ((8, 16), (16, 24)),
             "batch": ((4, 8, 24), (4, 24, 16))}  # fmt: skip
    a, b = operands(form, device, sizes=sizes)
    offs = None if form == "batch" else int32([8, 8, 8, 16], device)

    def gradients():
        left, right = (x.detach().requires_grad_() for x in (a, b))
        found = grouped_mm(left, right, offs=offs)
        weights = torch.arange(found.numel(), device=device).remainder(5).view(found.shape).to(BF16)
        return (found, *torch.autograd.grad((found * weights).sum(), (left, right)))

    expected = gradients()
    with override.use("always"):
        for found, torchs in zip(gradients(), expected, strict=True):
            assert torch.equal(found, torchs)
            assert found.stride() == torchs.stride()
    assert len(launched) == 3
    assert [bool(problem.ragged) for problem in launched] == [form != "batch"] * 3


def test_offsets_are_not_read_on_the_host(override, monkeypatch, device):
    a, b = operands("rows", device)
    offs = int32(OFFS, device)
    expected = tritonmm.grouped_mm(a, b, offs=offs)

    def refuse(self, *args):
        raise AssertionError("a value came to the host")

    with override.use("always"):
        for name in ("item", "tolist", "__bool__", "__int__", "__index__", "__iter__"):
            monkeypatch.setattr(torch.Tensor, name, refuse)
        found = grouped_mm(a, b, offs=offs)
        monkeypatch.undo()
    assert torch.equal(found[:15], expected[:15])


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("form", FORMS)
def test_no_call_waits_for_the_device(form, ours, device):
    a, b = operands(form, device)
    offs = offs_of(form, device)
    expected = grouped_mm(a, b, offs=offs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = grouped_mm(a, b, offs=offs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_same(found, expected, a, b, offs)


def test_autocast_casts_nothing(override, launched, device):
    a, b = operands("rows", device, torch.float32)
    offs = int32(OFFS, device)
    with override.use("always"), torch.autocast(device.type, dtype=BF16):
        assert grouped_mm(a, b, offs=offs).dtype == torch.float32
    assert launched[0].dtype == "fp32"


def test_transforms_and_compilers_work_above_it(override, launched, device):
    a, b = operands("rows", device, sizes={"rows": ((26, 24), (4, 24, 8))})
    offs = int32(OFFS, device)

    def layer(a, b):
        return grouped_mm(a, b, offs=offs)[:15].float().square().sum()

    expected = torch.func.grad(layer)(a, b)[:15]
    compiled = torch.compile(layer, backend="aot_eager")
    with override.use("always"):
        assert torch.equal(torch.func.grad(layer)(a, b)[:15], expected)
        assert len(launched) == 2
        assert torch.equal(compiled(a, b), layer(a, b))
        assert [problem.ragged for problem in launched] == ["m"] * 4


def test_the_policy_is_asked_about_groups(override, monkeypatch, launched, device):
    asked = []
    wanted = False

    def prefers(problem, gpu):
        asked.append(problem)
        return wanted, "never"

    monkeypatch.setattr("tritonmm.torch_ops.override.prefers", prefers)
    a, b = operands("rows", device)
    offs = int32(OFFS, device)
    for wanted in (False, True):
        launched.clear()
        asked.clear()
        override.enable("faster")
        for _ in range(2):
            grouped_mm(a, b, offs=offs)
        override.disable()
        grouped = [problem for problem in asked if problem.ragged]
        assert [(p.m, p.n, p.k, p.groups, p.ragged) for p in grouped] == [(26, 9, 24, 4, "m")], (
            "once for a kind of call"
        )
        assert bool([problem for problem in launched if problem.ragged]) == wanted


def test_calls_of_two_problems_share_no_route(ours, launched, device):
    a, b = operands("rows", device)
    x, y = operands("k", device)
    offs = int32(OFFS, device)
    for call in (
        lambda: grouped_mm(a, b, offs=offs),
        lambda: grouped_mm(lined(a, "t"), b, offs=offs),
        lambda: grouped_mm(a.half(), lined(b.half(), "n"), offs=offs),
        lambda: grouped_mm(a[:16], b, offs=offs),
        lambda: grouped_mm(x, y, offs=offs),
        lambda: grouped_mm(x, y, offs=offs[:3]),
    ):
        launched.clear()
        call()
        first = launched[:]
        call()
        assert launched == first * 2
    assert launched[0].groups == 3


def test_invariant_accumulation_is_ours_whatever_the_policy(override, monkeypatch, launched, device):
    monkeypatch.setattr("tritonmm.torch_ops.override.prefers", lambda problem, gpu: (False, "never"))
    a, b = operands("rows", device)
    offs = int32(OFFS, device)
    with override.use(accumulation="invariant", strict=True):
        grouped_mm(a, b, offs=offs)
        assert [problem.ragged for problem in launched] == ["m"]
        with pytest.raises(LeftToTorchError, match=r"_grouped_mm stays with torch's kernel.* subclass"):
            grouped_mm(a.as_subclass(Tagged), b, offs=offs)
        with pytest.raises(LeftToTorchError, match="strides in multiples of 16 bytes"):
            grouped_mm(
                a, torch.ones(4 * 217 * 9, device=device, dtype=BF16).as_strided((4, 24, 9), (217, 16, 1)), offs=offs
            )
        with pytest.raises((RuntimeError, ValueError)) as refused:  # torch's error
            grouped_mm(a, b)
        assert not isinstance(refused.value, LeftToTorchError)


# Scales.


def scaled_operands(form, device):
    a, b = operands(form, device, F8, "nt", F8_SIZES)
    groups = 4 if form == "k" else 1
    scale_a = 2.0 ** torch.randint(-2, 3, (*a.shape[:-2], a.shape[-2] * groups), device=device)
    scale_b = 2.0 ** torch.randint(-2, 3, (*b.shape[:-2], b.shape[-1] * groups), device=device)
    return a, b, scale_a, scale_b


def by_v1(a, b, scale_a, scale_b, offs, fast=False, **rest):
    return torch._scaled_grouped_mm(a, b, scale_a, scale_b, offs, use_fast_accum=fast, **rest)


def by_v2(a, b, scale_a, scale_b, offs, fast=False, **rest):
    kind = ScalingType.RowWise
    return scaled_grouped_mm(a, b, scale_a, kind, scale_b, kind, offs=offs, use_fast_accum=fast, **rest)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("call", [by_v1, by_v2])
def test_scaled_products_are_ours(call, form, fast, override, launched, device):
    given = scaled_operands(form, device)
    offs = None if form == "batch" else int32(F8_OFFS, device)
    expected = call(*given, offs, fast)
    with override.use("always"):
        for _ in range(2):
            assert_same(call(*given, offs, fast), expected, *given[:2], offs)
    assert len(launched) == 2
    assert {(problem.scales, problem.precision) for problem in launched} == {("row", "fast" if fast else "ieee")}
    assert launched[0].ragged == ("k" if form == "k" else "m")


def bad_scaled_calls(device):
    a, b, scale_a, scale_b = scaled_operands("rows", device)
    offs = int32(OFFS, device)
    bias = torch.zeros(4, 16, device=device, dtype=BF16)
    x, y, scale_x, scale_y = scaled_operands("columns", device)
    return {
        "columns": lambda call: call(x, y[:, :15], scale_x, scale_y[:15], offs),
        "bias": lambda call: call(a, b, scale_a, scale_b, offs, bias=bias),
        "layout of a": lambda call: call(lined(a, "t"), b, scale_a, scale_b, offs),
        "layout of b": lambda call: call(a, lined(b, "n"), scale_a, scale_b, offs),
        "no offs": lambda call: call(a, b, scale_a, scale_b, None),
        "k": lambda call: call(a[:, :24], b[:, :24], scale_a, scale_b, offs),
        "n": lambda call: call(a, b[..., :9], scale_a, scale_b[:, :9], offs),
        "scales": lambda call: call(a, b, scale_a[:3], scale_b, offs),
        "e5m2": lambda call: call(a.to(torch.float8_e5m2), b, scale_a, scale_b, offs),
        "inner": lambda call: call(a[:, :16], b, scale_a, scale_b, offs),
    }


@pytest.mark.parametrize("call", [by_v1, by_v2])
@pytest.mark.parametrize("name", bad_scaled_calls(torch.device("cpu")))
def test_errors_of_scaled_products_are_torchs(name, call, override, launched, device):
    bad = bad_scaled_calls(device)[name]
    with pytest.raises((RuntimeError, ValueError)) as torchs:
        bad(call)
    with override.use("always"), pytest.raises(type(torchs.value)) as caught:
        bad(call)
    assert str(caught.value) == str(torchs.value)
    assert not launched


def test_gpus_on_which_torch_refuses_scales(override, monkeypatch, launched, device):
    a, b, scale_a, scale_b = scaled_operands("rows", device)
    x, y = operands("rows", device)
    offs = int32(OFFS, device)
    monkeypatch.setattr(aten_grouped, "gpu_of", lambda device: gpus.spec("rtx5090"))
    with override.use("always"):
        by_v1(a, b, scale_a, scale_b, offs)
        by_v2(a, b, scale_a, scale_b, offs)
        assert not launched
        grouped_mm(x, y, offs=offs)
        assert launched
    problem = Problem.dense(512, 512, 512, layout="nt", ragged="m", groups=8, **KINDS["fp8-row"])
    assert prefers(problem, gpus.spec("rtx5090")) == (
        False,
        "torch multiplies no groups of fp8e4m3 on sm_120; tritonmm.scaled_grouped_mm does",
    )


def test_other_results_and_recipes_are_torchs(override, launched, device):
    a, b, scale_a, scale_b = scaled_operands("rows", device)
    offs = int32(OFFS, device)
    with override.use("always"):
        for call in (
            lambda: torch._scaled_grouped_mm(a, b, scale_a, scale_b, offs, out_dtype=torch.float16),
            lambda: scaled_grouped_mm(a, b, scale_a, ScalingType.RowWise, scale_b, ScalingType.RowWise, offs=offs,
                                      output_dtype=torch.float32),
            lambda: scaled_grouped_mm(a, b, scale_a, ScalingType.BlockWise1x32, scale_b, ScalingType.BlockWise1x32,
                                      offs=offs),
        ):  # fmt: skip
            with pytest.raises((RuntimeError, ValueError)):
                call()
    assert not launched


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        (KINDS["fp32"], ""),
        (KINDS["fp16"], ""),
        ({"dtype": "fp64"}, "bf16, fp16 and fp32, not fp64"),
        (KINDS["bf16-fp32"], "no fp32 results of bf16"),
        (KINDS["tf32x3"], "torch has no tf32x3"),
        ({"n": 1001, "layout": "nn"}, "multiples of 16 bytes"),
        ({"groups": 1023}, ""),
        ({"groups": 1024}, "at most 1023 groups"),
        ({"m": 0}, "empty"),
        (KINDS["fp8-row"], ""),
        (KINDS["fp8-row-ieee"], ""),
        (KINDS["fp8-row"] | {"layout": "nn"}, "takes layout nt"),
        (KINDS["fp8-row"] | {"n": 1000}, "multiples of 16"),
        (KINDS["fp8-block"], "e4m3 with scales of rows"),
        ({"dtype": "int8", "scales": "row", "out_dtype": "bf16"}, "e4m3 with scales of rows"),
    ],
    ids=str,
)
def test_what_torch_refuses_under_every_policy(fields, said):
    problem = Problem.dense(**{"m": 512, "n": 1024, "k": 512, "layout": "nt", "ragged": "m", "groups": 8} | fields)
    found = kept_by_torch(problem)
    assert (said in found) if said else not found


def test_operators_that_torch_lacks_are_left_out(monkeypatch):
    assert not aten_grouped._is_present("_grouped_mm_of_another_release", "CPU")
    monkeypatch.setattr(aten_grouped, "_is_present", lambda name, key: False)
    assert not list(aten_grouped.kernels("CPU"))


def test_no_config_is_a_reason_and_no_failure(override, monkeypatch, device, recwarn):
    def none(problem, gpu, kernel=""):
        raise ValueError(f"no config for {problem} on {gpu.name}: none")

    a, b = operands("rows", device)
    offs = int32(OFFS, device)
    expected = grouped_mm(a, b, offs=offs)
    monkeypatch.setattr(aten_grouped, "chosen", none)
    with override.use("always"):
        assert torch.equal(grouped_mm(a, b, offs=offs)[:15], expected[:15])
    assert not recwarn
