"""scaled_grouped_mm: exact where that can be, scales of rows and blocks in every form, and torch's errors."""

import inspect
import itertools
import math

import pytest
import torch
from grouped_cases import OFFS, expected_of, in_groups, int32, poisoned

import tritonmm
from tritonmm import scaled_grouped_mm

E4M3, E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8

K, M, N = 200, 130, 135
SHAPES = {"rows": ((17, K), (4, K, N)), "columns": ((4, M, K), (K, 17)), "k": ((9, 17), (17, 20))}
SHAPES["batch"] = (4, 9, K), (4, K, N)
CASES = [("k", "row"), *itertools.product(("rows", "columns", "batch"), ("row", "1x128", "128x128"))]


def integers(shape, dtype, device, most=4):
    return torch.randint(-most, most + 1, shape, device=device).to(dtype)


def powers(shape, device):
    """Scales that leave sums exact."""
    return torch.randint(-2, 3, shape, device=device).float().exp2()


def scales_of(form, scales, device):
    """scale_a and scale_b, and the factors of each element of the operands, with a dimension for the group where groups
    divide K."""
    shape_a, shape_b = SHAPES[form]
    if form == "k":
        of_a, of_b = powers((4 * 9,), device), powers((4 * 20,), device)
        return of_a, of_b, of_a.view(4, 9, 1), of_b.view(4, 1, 20)
    if scales == "row":
        of_a, of_b = powers(shape_a[:-1], device), powers((*shape_b[:-2], shape_b[-1]), device)
        return of_a, of_b, of_a.unsqueeze(-1), of_b.unsqueeze(-2)
    parts = math.ceil(K / 128)
    lines_a, lines_b = shape_a[-2], shape_b[-1]
    coarse = scales == "128x128"
    blocks_a = math.ceil(lines_a / 128) if coarse and form == "columns" else lines_a
    blocks_b = math.ceil(lines_b / 128) if coarse and form != "columns" else lines_b
    of_a = powers((*shape_a[:-2], blocks_a, parts), device)
    of_b = powers((*shape_b[:-2], parts, blocks_b), device)
    full_a, full_b = of_a.repeat_interleave(128, -1)[..., :K], of_b.repeat_interleave(128, -2)[..., :K, :]
    if blocks_a != lines_a:
        full_a = full_a.repeat_interleave(128, -2)[..., :lines_a, :]
    if blocks_b != lines_b:
        full_b = full_b.repeat_interleave(128, -1)[..., :lines_b]
    return of_a, of_b, full_a, full_b


def expected(form, a, b, full_a, full_b, bias=None):
    """In float64; 0 where nothing belongs to a group."""
    a, b, bias = a.double(), b.double(), None if bias is None else bias.double()
    if form == "k":
        return expected_of(a, b, OFFS) * full_a * full_b + (0 if bias is None else bias.unsqueeze(1))
    return expected_of(a * full_a, b * full_b, None if form == "batch" else OFFS, bias)


@pytest.mark.parametrize(
    ("form", "scales", "dtypes"),
    [(*case, [(E4M3, E4M3), (E5M2, E4M3), (INT8, INT8)][(i + i // 3) % 3]) for i, case in enumerate(CASES)],
    ids=str,
)
def test_each_scale_applies_to_its_part_of_its_group(form, scales, dtypes, device):
    a, b = (integers(shape, dtype, device) for shape, dtype in zip(SHAPES[form], dtypes, strict=True))
    scale_a, scale_b, full_a, full_b = scales_of(form, scales, device)
    offs = None if form == "batch" else int32(OFFS, device)
    with poisoned():
        found = scaled_grouped_mm(a, b, scale_a, scale_b, offs)
    wanted = expected(form, a, b, full_a, full_b)
    assert found.dtype == torch.bfloat16
    assert found.shape == wanted.shape
    assert found.is_contiguous()
    groups = None if form == "batch" else OFFS
    assert torch.equal(in_groups(found, a, b, groups), in_groups(wanted, a, b, groups).bfloat16())
    outside = found.numel() - in_groups(found, a, b, groups).numel()
    assert int(found.isnan().sum()) == outside


@pytest.mark.parametrize(
    ("form", "scales", "fast"), [(*case, i % 2 == 0) for i, case in enumerate(CASES) if case[0] != "columns"]
)
def test_a_bias_and_results_in_fp32(form, scales, fast, device):
    a, b = (integers(shape, E4M3, device) for shape in SHAPES[form])
    scale_a, scale_b, full_a, full_b = scales_of(form, scales, device)
    offs, groups = (None, None) if form == "batch" else (int32(OFFS, device), OFFS)
    bias = integers((4, b.shape[-1]), torch.bfloat16, device)
    found = scaled_grouped_mm(a, b, scale_a, scale_b, offs, bias, None, torch.float32, fast)
    wanted = expected(form, a, b, full_a, full_b, bias)
    assert torch.equal(in_groups(found, a, b, groups), in_groups(wanted, a, b, groups).float())


@pytest.mark.parametrize(("form", "scales"), CASES)
def test_operands_and_scales_of_any_strides(form, scales, device):
    a, b = (integers(shape, E4M3, device) for shape in SHAPES[form])
    scale_a, scale_b, *_ = scales_of(form, scales, device)
    offs, groups = (None, None) if form == "batch" else (int32(OFFS, device), OFFS)
    found = scaled_grouped_mm(a, b, scale_a, scale_b, offs)

    def apart(x):  # every other element of each line, which are those of the last dimension but one where there is one
        lines = torch.zeros(*x.shape[:-2], *(2 * size for size in reversed(x.shape[-2:])), device=x.device).to(x.dtype)
        view = lines[..., ::2, ::2].mT if x.dim() > 1 else lines[::2]
        return view.copy_(x)

    again = scaled_grouped_mm(apart(a), apart(b), apart(scale_a), apart(scale_b), offs)
    assert torch.equal(in_groups(again, a, b, groups), in_groups(found, a, b, groups))


@pytest.mark.parametrize("scales", ["row", "1x128"])
def test_a_nan_scale_stays_in_its_group(scales, device):
    a, b = (integers(shape, E4M3, device) for shape in SHAPES["rows"])
    scale_a, scale_b, *_ = scales_of("rows", scales, device)
    scale_b[2] = float("nan")
    found = scaled_grouped_mm(a, b, scale_a, scale_b, int32(OFFS, device))
    assert found[OFFS[1] : OFFS[2]].isnan().all()
    assert not found[: OFFS[1]].isnan().any()
    assert not found[OFFS[2] : OFFS[3]].isnan().any()


@pytest.mark.parametrize("form", SHAPES)
def test_no_elements_of_k_give_the_bias(form, device):
    shapes = {"rows": ((17, 0), (4, 0, 6)), "columns": ((4, 6, 0), (0, 17)), "k": ((9, 0), (0, 6))}
    shapes["batch"] = (4, 9, 0), (4, 0, 6)
    a, b = (torch.ones(shape, device=device).to(E4M3) for shape in shapes[form])
    offs = None if form == "batch" else int32([0] * 4 if form == "k" else OFFS, device)
    for tail in ((), *(((0,),) if form != "k" else ())):  # scales of rows, and of no blocks
        if form == "k":
            scale_a, scale_b = torch.ones(36, device=device), torch.ones(24, device=device)
        elif tail:
            scale_a, scale_b = torch.ones(a.shape, device=device), torch.ones(b.shape, device=device)
        else:
            scale_a = torch.ones(a.shape[:-1], device=device)
            scale_b = torch.ones((*b.shape[:-2], b.shape[-1]), device=device)
        bias = None if form == "columns" else torch.arange(24.0, device=device).view(4, 6).bfloat16()
        found = scaled_grouped_mm(a, b, scale_a, scale_b, offs, bias)
        groups = None if form == "batch" else [0] * 4 if form == "k" else OFFS
        wanted = expected_of(a.double(), b.double(), groups, bias)
        assert torch.equal(in_groups(found, a, b, groups), in_groups(wanted, a, b, groups).bfloat16())


@pytest.mark.parametrize("form", ["rows", "columns", "k"])
def test_no_groups_and_empty_operands(form, device):
    shape_a, shape_b = SHAPES[form]
    empty = int32([], device)
    a = torch.zeros((0, *shape_a[1:]) if len(shape_a) == 3 else shape_a, device=device).to(E4M3)
    b = torch.zeros((0, *shape_b[1:]) if len(shape_b) == 3 else shape_b, device=device).to(E4M3)
    if form == "k":
        scale_a = scale_b = torch.ones(0, device=device)
    else:
        scale_a, scale_b = (
            torch.ones(a.shape[:-1], device=device),
            torch.ones((*b.shape[:-2], b.shape[-1]), device=device),
        )
    found = scaled_grouped_mm(a, b, scale_a, scale_b, empty)
    assert found.shape == ((0, 9, 20) if form == "k" else (shape_a[-2], shape_b[-1]))


def test_it_compiles_whole(device):
    torch._dynamo.reset()
    a, b = (integers(shape, E4M3, device) for shape in SHAPES["rows"])
    offs = int32(OFFS, device)
    compiled = torch.compile(scaled_grouped_mm, fullgraph=True, backend="aot_eager", dynamic=True)
    for scales in ("row", "1x128"):
        scale_a, scale_b, *_ = scales_of("rows", scales, device)
        found, wanted = compiled(a, b, scale_a, scale_b, offs), scaled_grouped_mm(a, b, scale_a, scale_b, offs)
        assert torch.equal(in_groups(found, a, b, OFFS), in_groups(wanted, a, b, OFFS))


def test_its_arguments_are_torchs():
    ours = list(inspect.signature(scaled_grouped_mm).parameters)
    torchs = [each.name for each in torch.ops.aten._scaled_grouped_mm.default._schema.arguments]
    assert ours[2 : len(torchs)] == torchs[2:]
    assert ours[len(torchs) :] == ["config", "accumulation"]


ROW_A, ROW_B = torch.ones(17), torch.ones(4, N)


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (RuntimeError, r"scales are torch.float32 \[16\]", {"scale_a": torch.ones(16)}),
        (RuntimeError, r"must be float32, \[17\] and \[4, 135\], or \[17, 2\]", {"scale_b": torch.ones(4, 3)}),
        (RuntimeError, "scales are torch.float64", {"scale_a": ROW_A.double()}),
        (RuntimeError, "must be fp8, or both int8", {"mat_a": torch.zeros(17, K).bfloat16()}),
        (RuntimeError, "offs is missing", {"offs": None}),
        (RuntimeError, "must be torch.int32", {"offs": torch.tensor([1, 2, 3, 4])}),
        (RuntimeError, "inner dimensions differ", {"mat_a": torch.zeros(17, K + 1).to(E4M3)}),
        (RuntimeError, "bias is torch.int8", {"bias": torch.zeros(4, N).char()}),
        (RuntimeError, r"bias is \[4, 7\]", {"bias": torch.zeros(4, 7)}),
        (RuntimeError, "no derivative", {"scale_a": ROW_A.clone().requires_grad_()}),
        (NotImplementedError, "scale_result is given", {"scale_result": torch.ones(1)}),
        (NotImplementedError, "out_dtype is torch.float64", {"out_dtype": torch.float64}),
        (TypeError, "offs must be a Tensor", {"offs": [1, 2, 3, 4]}),
        (TypeError, "config is 'fast'", {"config": "fast"}),
        (ValueError, "accumulation is 'all'", {"accumulation": "all"}),
    ],
    ids=str,
)
def test_errors_say_what_would_be_right(error, message, change, device):
    given = {
        "mat_a": torch.zeros(17, K).to(E4M3), "mat_b": torch.zeros(4, K, N).to(E4M3),
        "scale_a": ROW_A, "scale_b": ROW_B, "offs": torch.tensor(OFFS, dtype=torch.int32),
    }  # fmt: skip
    given = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in (given | change).items()}
    with pytest.raises(error, match=message):
        scaled_grouped_mm(**given)


def test_blocks_where_groups_divide_k_are_refused(device):
    a, b = (torch.zeros(shape, device=device).to(E4M3) for shape in SHAPES["k"])
    with pytest.raises(RuntimeError, match=r"must be float32, \[36\] and \[80\]"):
        scaled_grouped_mm(a, b, torch.ones(9, 1, device=device), torch.ones(1, 20, device=device), int32(OFFS, device))


def test_groups_of_a_batch_agree(device):
    a, b = torch.zeros(4, 9, K, device=device).to(E4M3), torch.zeros(3, K, N, device=device).to(E4M3)
    with pytest.raises(RuntimeError, match="batch"):
        scaled_grouped_mm(a, b, torch.ones(4, 9, device=device), torch.ones(3, N, device=device))
    assert tritonmm.scaled_grouped_mm is scaled_grouped_mm
