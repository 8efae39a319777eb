"""grouped_mm is torch's: its values in every form, layout and dtype, whatever the offsets are, and its errors."""

import inspect
import random
import warnings

import pytest
import torch
from grouped_cases import OFFS, SHAPES, assert_grouped, bounds_of, expected_of, in_groups, int32, poisoned
from pairs import all_pairs
from strided import strided
from threads import at_once

import tritonmm
from tritonmm.config import Config
from tritonmm.model.groups import size_class
from tritonmm.plan import plan_for
from tritonmm.problem import Problem
from tritonmm.torch_ops import grouped_product as products

NAN = float("nan")
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
RAGGED = ("rows", "columns", "k")


def offs_of(form, device):
    return None if form == "batch" else int32(OFFS, device)


def operands(form, device, dtype=torch.float32, bound=0):
    """Random operands; integers up to `bound` if there is one."""
    a, b = (torch.randn(shape, device=device) * (bound or 1) for shape in SHAPES[form])
    return [(x.clamp(-bound, bound).round() if bound else x).to(dtype) for x in (a, b)]


def bias_of(form, b, dtype, device):
    return None if form == "columns" else torch.randn(4, b.shape[-1], device=device).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", SHAPES)
def test_small_integers_are_exact(form, dtype, device):
    a, b = operands(form, device, dtype, bound=2)
    with poisoned():
        found = tritonmm.grouped_mm(a, b, offs=offs_of(form, device))
    expected = expected_of(a.double(), b.double(), None if form == "batch" else OFFS)
    offs = None if form == "batch" else OFFS
    assert found.shape == expected.shape
    assert found.is_contiguous()
    assert torch.equal(in_groups(found, a, b, offs).double(), in_groups(expected, a, b, offs))
    # Nothing else is written.
    outside = found.numel() - in_groups(found, a, b, offs).numel()
    assert int(found.isnan().sum()) == outside == {"rows": 2 * 9, "columns": 9 * 2}.get(form, 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", SHAPES)
def test_random_data_and_bias(form, dtype, device):
    a, b = operands(form, device, dtype)
    bias, offs = bias_of(form, b, dtype, device), offs_of(form, device)
    found = tritonmm.grouped_mm(a, b, offs=offs, bias=bias)
    assert found.dtype == dtype
    assert_grouped(found, a, b, None if offs is None else OFFS, bias)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("form", SHAPES)
def test_results_in_fp32(form, dtype, device):
    a, b = operands(form, device, dtype)
    bias, offs = bias_of(form, b, dtype, device), offs_of(form, device)
    found = tritonmm.grouped_mm(a, b, offs=offs, bias=bias, out_dtype=torch.float32)
    assert found.dtype == torch.float32
    assert_grouped(found, a, b, None if offs is None else OFFS, bias)


LAYOUTS = ["rows", "columns", "padded rows", "padded columns", "every other"]


@pytest.mark.parametrize(
    ("of_a", "of_b", "form", "offset"),
    [(*case, [0, 1, 4, 8, 3][(i // 5 + 2 * i) % 5]) for i, case in enumerate(all_pairs(LAYOUTS, LAYOUTS, [*SHAPES]))],
)
def test_operands_of_any_strides_at_any_address(of_a, of_b, form, offset, device):
    shape_a, shape_b = SHAPES[form]
    dtype = torch.float32 if offset == 4 else torch.bfloat16
    memories = [torch.randn(8000, device=device).to(dtype) for _ in range(2)]
    a, b = strided(memories[0], shape_a, of_a, offset), strided(memories[1], shape_b, of_b, 2 * offset)
    memory = torch.randn(4, 80, device=device).to(dtype)
    bias = None if form == "columns" else memory[:, offset : offset + 2 * b.shape[-1] : 2]
    # Offsets lie with gaps and anywhere, too.
    offs = None if form == "batch" else int32([9, *(x for each in OFFS for x in (each, -1))], device)[1::2]
    assert_grouped(tritonmm.grouped_mm(a, b, offs=offs, bias=bias), a, b, None if offs is None else OFFS, bias)


@pytest.mark.parametrize("form", RAGGED)
def test_what_broadcasts_is_read_in_place(form, device):
    a, b = operands(form, device)
    a, b = a[..., :1].expand_as(a), b[..., :1, :].expand_as(b)
    assert_grouped(tritonmm.grouped_mm(a, b, offs=int32(OFFS, device)), a, b, OFFS)


@pytest.mark.parametrize("group", [0, 1, 2])
@pytest.mark.parametrize("form", RAGGED)
def test_a_nan_stays_in_its_group(form, group, device):
    a, b = operands(form, device)
    spoiled = expected_of(a, b, OFFS)
    start, end = bounds_of(OFFS, 17)[group]
    if form == "rows":
        a[start:end], b[group], spoiled[start:end] = NAN, NAN, NAN
        a[OFFS[-1] :] = NAN
    elif form == "columns":
        b[:, start:end], a[group], spoiled[:, start:end] = NAN, NAN, NAN
        b[:, OFFS[-1] :] = NAN
    else:
        a[:, start:end], b[start:end] = NAN, NAN
        spoiled[group] = NAN if end > start else 0
        a[:, OFFS[-1] :], b[OFFS[-1] :] = NAN, NAN
    found = tritonmm.grouped_mm(a, b, offs=int32(OFFS, device))
    torch.testing.assert_close(
        in_groups(found, a, b, OFFS), in_groups(spoiled, a, b, OFFS), rtol=1e-4, atol=1e-4, equal_nan=True
    )


def test_rows_past_the_end_and_around_the_output_are_not_written(device):
    a, b = operands("rows", device)
    board = torch.full((30, 40), 7.0, device=device)
    out = board[5:22, 3:21:2]
    plan = plan_for(Problem.of(a, b, out, ragged="m"), config("groups/row-major"), device)
    plan(a, b, out, offs=int32(OFFS, device))
    expected = torch.full_like(board, 7.0)
    expected[5:22, 3:21:2][: OFFS[-1]] = expected_of(a, b, OFFS)[: OFFS[-1]]
    torch.testing.assert_close(board, expected)


@pytest.mark.parametrize("empty", ["k", "total", "n", "m", "groups"])
@pytest.mark.parametrize("form", RAGGED)
def test_sizes_may_be_zero(form, empty, device):
    size = {"k": 6, "total": 17, "n": 5, "m": 9, "groups": 4} | {empty: 0}
    total, k, n, m, groups = (size[each] for each in ("total", "k", "n", "m", "groups"))
    a, b, shape = {
        "rows": ((total, k), (groups, k, n), (total, n)),
        "columns": ((groups, m, k), (k, total), (m, total)),
        "k": ((m, total), (total, n), (groups, m, n)),
    }[form]
    a, b = torch.randn(a, device=device), torch.randn(b, device=device)
    offs, biases = OFFS[:groups], [None] if form == "columns" else [None, torch.randn(groups, n, device=device)]
    for bias in biases:
        found = tritonmm.grouped_mm(a, b, offs=int32(offs, device), bias=bias)
        assert found.shape == shape
        if groups:
            assert_grouped(found, a, b, offs, bias)


WRONG = [[30, 10, -7, 17], [-5, 100, 2**31 - 1, -(2**31)], [-1, -1, -1, -1], [16, 3, 16, 2], [3, 8, 5, 18]]


@pytest.mark.parametrize("offs", WRONG, ids=str)
@pytest.mark.parametrize("form", RAGGED)
def test_wrong_offsets_are_clamped(form, offs, device):
    a, b = operands(form, device)
    right = [end for _, end in bounds_of(offs, 17)]
    with poisoned():
        found, expected = (tritonmm.grouped_mm(a, b, offs=int32(each, device)) for each in (offs, right))
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert_grouped(found, a, b, right)


ORDERS = ["groups/row-major", "largest-groups/swizzle-merge:2", "joined-groups/swizzle-merge:8",
          "joined-largest-groups/serpentine:2@n"]  # fmt: skip


def config(order):
    return Config("tile", 16, 16, 16, 2, 1, persistent=True, order=tritonmm.orders.parse(order))


def test_any_offsets(device):
    """Random ones of every kind: sorted, with repetitions, wild; of few and of many groups."""
    choose = random.Random(0)
    for i in range(160):
        form = choose.choice(("rows", "k"))
        groups, total = choose.choice((1, 2, 2, 3)), choose.choice((1, 7, 16))
        offs = [choose.randint(0, total) for _ in range(groups)]
        if choose.random() < 0.6:
            offs.sort()
        if choose.random() < 0.2:
            offs[choose.randrange(groups)] = choose.randint(-(2**31), 2**31 - 1)
        a, b = {"rows": ((total, 3), (groups, 3, 2)), "k": ((3, total), (total, 2))}[form]
        a, b = (torch.randint(-9, 10, shape, device=device).float() for shape in (a, b))
        order = choose.choice(ORDERS[:2] if form == "k" else ORDERS)
        found = tritonmm.grouped_mm(a, b, offs=int32(offs, device), config=config(order))
        expected = expected_of(a, b, offs)
        assert torch.equal(in_groups(found, a, b, offs), in_groups(expected, a, b, offs)), (i, form, offs, total, order)


@pytest.mark.parametrize("form", SHAPES)
def test_torchs_own(form, device):
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 8:
        pytest.skip("torch multiplies no groups here")
    shapes = {"rows": ((32, 24), (4, 24, 16)), "columns": ((4, 16, 24), (24, 32)), "k": ((24, 32), (32, 16)),
              "batch": ((4, 16, 24), (4, 24, 16))}[form]  # fmt: skip
    a, b = (torch.randn(shape, device=device).bfloat16() for shape in shapes)
    offs = None if form == "batch" else int32([8, 8, 24, 32], device)
    found, theirs = tritonmm.grouped_mm(a, b, offs=offs), torch.nn.functional.grouped_mm(a, b, offs=offs)
    assert (found.shape, found.dtype) == (theirs.shape, theirs.dtype)
    torch.testing.assert_close(found, theirs, rtol=1e-2, atol=1e-2)


@pytest.fixture
def planned(monkeypatch):
    """(problem, config) of every plan that is made; none is kept."""
    from tritonmm import plan

    found = []

    def recorded(problem, config, device):
        found.append((problem, config))
        return plan_for(problem, config, device)

    monkeypatch.setattr(plan, "plan_for", recorded)
    monkeypatch.setattr(products, "_CALLS", {})
    return found


@pytest.mark.parametrize("form", RAGGED)
def test_config_is_obeyed(form, planned, device):
    a, b = operands(form, device)
    for order in ORDERS[:2]:
        planned.clear()
        found = tritonmm.grouped_mm(a, b, offs=int32(OFFS, device), config=config(order))
        assert [each for _, each in planned] == [config(order)]
        assert_grouped(found, a, b, OFFS)


def test_precision_and_accumulation_are_obeyed(planned, device):
    a, b = operands("rows", device)
    offs = int32(OFFS, device)
    first = tritonmm.grouped_mm(a, b, offs=offs)
    found = tritonmm.grouped_mm(a, b, offs=offs, precision="tf32x3")
    assert [problem.precision for problem, _ in planned] == ["ieee", "tf32x3"]
    torch.testing.assert_close(found[: OFFS[-1]], first[: OFFS[-1]], rtol=1e-4, atol=1e-4)
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        tritonmm.grouped_mm(a, b, offs=offs)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert planned[-1][0].precision == "tf32"
    legal = Config("tile", 32, 32, 32, 2, 4, persistent=True, order=tritonmm.orders.parse("groups/row-major"))
    tritonmm.grouped_mm(a, b, offs=offs, accumulation="invariant", config=legal)
    assert planned[-1][0].accumulation == "invariant"


def test_calls_like_earlier_ones_make_no_plan(planned, device):
    a, b = operands("rows", device)
    offs, bias = int32(OFFS, device), torch.ones(4, 9, device=device)
    for _ in range(2):
        tritonmm.grouped_mm(a, b, offs=offs)
        tritonmm.grouped_mm(a, b, offs=int32([1, 2, 3, 4], device), bias=bias)
    assert [problem.epilogue.bias for problem, _ in planned] == [False, True]
    x, y = operands("k", device)
    for groups in (4, 3, 4):
        tritonmm.grouped_mm(x, y, offs=offs[:groups])
    assert [problem.groups for problem, _ in planned[2:]] == [4, 3]


def test_the_calls_that_are_kept_are_bounded(planned, device, monkeypatch):
    monkeypatch.setattr("tritonmm.torch_ops.product.CACHED_CALLS", 3)
    b = torch.ones(1, 2, 2, device=device)
    for total in range(1, 7):
        a = torch.ones(total, 2, device=device)
        assert_grouped(tritonmm.grouped_mm(a, b, offs=int32([total], device)), a, b, [total])
    assert len(products._CALLS) == 3


def test_new_numbers_of_tokens_cost_no_new_choice(planned, device, monkeypatch):
    """Those of an eighth of an octave are computed with one config."""
    from tritonmm import selection

    asked, choose = set(), selection.choose
    monkeypatch.setattr(selection, "choose", lambda problem, *rest: (asked.add(problem), choose(problem, *rest))[1])
    b, offs = torch.ones(2, 8, 4, device=device), int32([0, 0], device)
    for total in range(65, 73):
        tritonmm.grouped_mm(torch.ones(total, 8, device=device), b, offs=offs)
    assert len(asked) == len({each for _, each in planned}) == 1
    assert [problem.m for problem, _ in planned] == list(range(65, 73))
    sizes = [size_class(total) for total in range(5000)]
    assert sizes[:17] == list(range(17))
    assert all(total <= size <= 1.125 * total for total, size in enumerate(sizes))
    assert all(len({*sizes[2**i : 2 ** (i + 1)]}) <= 9 for i in range(12))


def test_a_config_that_is_not_legal_for_the_tokens_is_chosen_for_them(device, monkeypatch):
    problem = Problem.dense(65, 4, 8, ragged="m", groups=2)
    from tritonmm import gpu as gpus

    fits = Config.fits
    refused = []

    def picky(self, given, gpu):
        if given.m == 65 and not refused:  # what was chosen for 72 rows
            refused.append(self)
            return type(fits(self, given, gpu))("refused")
        return fits(self, given, gpu)

    monkeypatch.setattr(Config, "fits", picky)
    found = products.chosen(problem, gpus.default(), "tile")
    assert refused
    assert fits(found, problem, gpus.default())


def test_threads(device):
    cases = [(form, *operands(form, device)) for form in RAGGED]
    expected = [expected_of(a, b, OFFS) for _, a, b in cases]
    products._CALLS.clear()

    def work(i):
        for j in (i, i + 1):
            _, a, b = cases[j % 3]
            found = tritonmm.grouped_mm(a, b, offs=int32(OFFS, device))
            torch.testing.assert_close(
                in_groups(found, a, b, OFFS), in_groups(expected[j % 3], a, b, OFFS), rtol=1e-4, atol=1e-4
            )

    at_once(6, work)


def test_offsets_are_not_read_on_the_host(device, monkeypatch):
    a, b = operands("rows", device)
    offs = int32(OFFS, device)

    def refuse(self, *args):
        raise AssertionError("a value came to the host")

    for name in ("item", "tolist", "__bool__", "__int__", "__index__", "__iter__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    found = tritonmm.grouped_mm(a, b, offs=offs)
    monkeypatch.undo()
    assert_grouped(found, a, b, OFFS)


@pytest.mark.gpu
@pytest.mark.parametrize("form", RAGGED)
def test_no_call_waits_for_the_device(form, device):
    a, b = operands(form, device, torch.bfloat16)
    offs = int32(OFFS, device)
    tritonmm.grouped_mm(a, b, offs=offs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = tritonmm.grouped_mm(a, b, offs=offs)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert_grouped(found, a, b, OFFS)


def test_arguments_are_torchs_and_then_ours():
    ours, torchs = (inspect.signature(x).parameters for x in (tritonmm.grouped_mm, torch.nn.functional.grouped_mm))
    assert list(ours) == [*torchs, "config", "precision", "accumulation"]
    assert [ours[name].kind for name in torchs] == [each.kind for each in torchs.values()]


def test_autocast_casts_nothing(device):
    a, b = operands("rows", device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        found = tritonmm.grouped_mm(a, b, offs=int32(OFFS, device))
    assert found.dtype == torch.float32
    assert_grouped(found, a, b, OFFS)


# By the names of the forms: (a, b) are rows, (c, d) columns, (d, a) k, and (c, b) a batch.
a, b, c, d = torch.ones(6, 4), torch.ones(2, 4, 3), torch.ones(2, 3, 4), torch.ones(4, 6)
ENDS = torch.tensor([2, 6], dtype=torch.int32)


@pytest.mark.parametrize(
    ("left", "right", "options", "error", "said"),
    [
        (a[0], b, {"offs": ENDS}, RuntimeError, "mat_a must be 2-D or 3-D, but it is 1-D, 4"),
        (a, b[None], {"offs": ENDS}, RuntimeError, "mat_b must be 2-D or 3-D, but it is 4-D, 1x2x4x3"),
        (a, b, {}, RuntimeError, "offs is missing for 6x4 by 2x4x3"),
        (c, d, {}, RuntimeError, "offs is missing for 2x3x4 by 4x6"),
        (d, a, {}, RuntimeError, "offs is missing for 4x6 by 6x4"),
        (c, b, {"offs": ENDS}, RuntimeError, "offs is given for 2x3x4 by 2x4x3; two 3-D operands are a batch"),
        (a, b, {"offs": ENDS.long()}, RuntimeError, r"offs is torch.int64 \[2\]; it must be torch.int32 \[groups\]"),
        (a, b, {"offs": ENDS[None]}, RuntimeError, r"offs is torch.int32 \[1, 2\]"),
        (a, b, {"offs": ENDS.to("meta")}, RuntimeError, "offs is on meta, the operands on cpu"),
        (a, b, {"offs": [2, 6]}, TypeError, "offs must be a Tensor, not list"),
        (a, b, {"offs": ENDS[:1]}, RuntimeError, "offs has 1 elements, mat_b is 2x4x3; there must be one for"),
        (c, d, {"offs": ENDS[:1]}, RuntimeError, "offs has 1 elements, mat_a is 2x3x4"),
        (a[:, :3], b, {"offs": ENDS}, RuntimeError, "inner dimensions differ: 6x3 has 3 columns, 2x4x3 has 4 rows"),
        (d, a[:5], {"offs": ENDS}, RuntimeError, "inner dimensions differ: 4x6 has 6 columns, 5x4 has 5 rows"),
        (c, b[:1], {}, RuntimeError, "batches differ: 2x3x4 has 2, 1x4x3 has 1"),
        (a, b.double(), {"offs": ENDS}, RuntimeError, "same dtype, but they are torch.float32 and torch.float64"),
        (a, b.to("meta"), {"offs": ENDS}, RuntimeError, "same device, but they are on cpu and meta"),
        (a.long(), b.long(), {"offs": ENDS}, NotImplementedError, "got torch.int64"),
        (a.tolist(), b, {"offs": ENDS}, TypeError, "operands must be Tensors, not list"),
        (a.to_sparse(), b, {"offs": ENDS}, NotImplementedError, "must be dense"),
        (a, b, {"offs": ENDS, "bias": a[:2]}, RuntimeError, r"bias is \[2, 4\]; for these operands it must be"),
        (c, b, {"bias": a[:2]}, RuntimeError, r"bias is \[2, 4\]; for these operands it must be \[2, 3\]"),
        (d, a, {"offs": ENDS, "bias": a[0]}, RuntimeError, r"bias is \[4\]; for these operands it must be \[2, 4\]"),
        (c, d, {"offs": ENDS, "bias": a}, NotImplementedError, "bias is given for 2x3x4 by 4x6; groups of columns"),
        (a, b, {"offs": ENDS, "bias": b[:, 0].half()}, RuntimeError, "need the same dtype"),
        (a, b, {"offs": ENDS, "out_dtype": torch.half}, RuntimeError, "out_dtype is torch.float16 for torch.float32"),
        (a, b, {"offs": ENDS, "precision": "fast"}, ValueError, "precision is 'fast'"),
        (a, b, {"offs": ENDS, "accumulation": "exact"}, ValueError, "accumulation is 'exact'"),
        (a, b, {"offs": ENDS, "config": "tile"}, TypeError, "config is 'tile'; it must be a tritonmm.Config"),
        (a, b, {"offs": ENDS, "config": Config()}, ValueError, "persistent is False"),
        (a, b, {"offs": ENDS, "config": config("row-major")}, ValueError, "needs one such as groups/swizzle-merge:8"),
    ],
)  # fmt: skip
def test_errors(left, right, options, error, said, device):
    def there(x):
        return x.to(device) if isinstance(x, torch.Tensor) and x.device.type == "cpu" else x

    with pytest.raises(error, match=said.replace("on cpu", f"on {device}")):
        tritonmm.grouped_mm(there(left), there(right), **{name: there(x) for name, x in options.items()})
