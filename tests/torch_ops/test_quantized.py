"""int_mm, scaled_mm and weight_only_linear: torch's results and errors, and exactly where that can be."""

import pytest
import torch
from pairs import all_pairs

import tritonmm
from tritonmm import int_mm, scaled_mm, weight_only_linear
from tritonmm.autotune.measuring.verify import _spread
from tritonmm.nn.int4 import pack, with_zero_points
from tritonmm.problem import SCALES
from tritonmm.torch_ops.dense import mm

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def integers(*shape, dtype, device, most=4):
    return torch.randint(-most, most + 1, shape, device=device).to(dtype)


def powers(*shape, device):
    """Scales that leave sums exact."""
    return torch.randint(-2, 3, shape, device=device).float().exp2()


def spread(scale, shape, rows, cols):
    return _spread(scale.reshape(1, 1) if scale.numel() == 1 else scale, shape, rows, cols)


@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
@pytest.mark.parametrize(("m", "n", "k"), [(33, 20, 70), (1, 1, 1), (64, 64, 128), (0, 4, 5), (4, 5, 0)])
def test_int_mm_is_exact(m, n, k, layout, device):
    a = torch.randint(-128, 128, (m, k) if layout[0] == "n" else (k, m), device=device).char()
    b = torch.randint(-128, 128, (k, n) if layout[1] == "n" else (n, k), device=device).char()
    a, b = a if layout[0] == "n" else a.t(), b if layout[1] == "n" else b.t()
    found = int_mm(a, b)
    assert found.dtype == torch.int32
    expected = (a.cpu().long() @ b.cpu().long()).int()
    assert torch.equal(found.cpu(), expected)
    out = torch.empty(m, n, dtype=torch.int32, device=device)
    assert int_mm(a, b, out=out) is out
    assert torch.equal(out.cpu(), expected)


@pytest.mark.parametrize(
    ("scales", "dtypes", "fast"),
    [
        *((scales, (E4M3, E5M2), False) for scales in SCALES if scales not in ("", "group")),
        *(("row", dtypes, True) for dtypes in ((E4M3, E4M3), (E5M2, E4M3), (torch.int8, torch.int8))),
    ],
    ids=str,
)
def test_scaled_mm_scales_what_each_scale_stands_for(scales, dtypes, fast, device):
    m, n, k = 135, 150, 200
    a, b = integers(m, k, dtype=dtypes[0], device=device), integers(n, k, dtype=dtypes[1], device=device).t()
    rows = {"tensor": 1, "128x128*1x128": 2}.get(scales, m)
    cols = {"tensor": 1, "1x128*128x128": 2}.get(scales, n)
    groups = 2 if "x" in scales else 1
    scale_a, scale_b = powers(groups, rows, device=device).t(), powers(groups, cols, device=device)
    group = 128 if groups > 1 else k
    left = a.double() * spread(scale_a, a.shape, {1: m, 2: 128}.get(rows, 1), group)
    right = b.double() * spread(scale_b, b.shape, group, {1: n, 2: 128}.get(cols, 1))
    found = scaled_mm(a, b, scale_a, scale_b, use_fast_accum=fast)
    assert torch.equal(found, (left @ right).bfloat16())
    bias = integers(n, dtype=torch.bfloat16, device=device)
    found = scaled_mm(a, b, scale_a, scale_b, bias, None, torch.float32, fast)
    assert torch.equal(found, (left @ right + bias).float())
    otherwise = scale_a.contiguous(), scale_b.t().contiguous().t()  # the same scales at other strides
    assert torch.equal(scaled_mm(a, b, *otherwise, bias, None, torch.float32, fast), found)


def test_scaled_mm_of_nothing(device):
    one = torch.ones((), device=device)
    a, b = torch.empty(4, 0, device=device).to(E4M3), torch.empty(0, 5, device=device).to(E4M3)
    bias = torch.arange(5.0, device=device).bfloat16()
    assert torch.equal(scaled_mm(a, b, one, one, bias), bias.expand(4, 5))
    assert scaled_mm(a[:0], b, one, one).shape == (0, 5)


@pytest.mark.parametrize(
    ("scale", "rows", "dtypes"),
    all_pairs(
        [(48,), (48, 1), (48, 2), (48, 4), (48, 16)],
        [1, 5, 70],
        [(torch.bfloat16, torch.int8), (torch.float16, E4M3), (torch.bfloat16, E5M2)],
    ),
    ids=str,
)
def test_weights_are_scaled_by_row_or_group(scale, rows, dtypes, device):
    x = integers(rows, 256, dtype=dtypes[0], device=device)
    weight = integers(48, 256, dtype=dtypes[1], device=device)
    scale = powers(*scale, device=device)
    bias = integers(48, dtype=dtypes[0], device=device)
    dense = weight.double() * scale.reshape(48, -1).repeat_interleave(256 // (scale.numel() // 48), 1)
    found = weight_only_linear(x, weight, scale, bias)
    assert found.dtype == x.dtype
    assert torch.equal(found, (x.double() @ dense.t() + bias).to(x.dtype))
    assert torch.equal(weight_only_linear(x.view(1, rows, 256), weight, scale, bias), found[None])


@pytest.mark.parametrize(
    ("shape", "rows", "kind"),
    all_pairs(
        [(48, 256), (49, 128), (1, 384), (50, 640)],
        [1, 5, 70, 16],
        [(None, torch.bfloat16), (32, torch.bfloat16), (64, torch.float16), (128, torch.bfloat16)],
    ),
    ids=str,
)  # fmt: skip
def test_packed_weights_are_scaled_by_row_or_group(shape, rows, kind, device):
    (n, k), (group, dtype) = shape, kind
    x = integers(rows, k, dtype=dtype, device=device)
    weight = torch.randint(-8, 8, shape, device=device)
    scale = powers(n, *((k // group,) if group else ()), device=device)
    bias = integers(n, dtype=dtype, device=device)
    dense = weight.double() * scale.reshape(n, -1).repeat_interleave(group or k, 1)
    found = weight_only_linear(x, pack(weight + 8), scale, bias)
    assert found.dtype == x.dtype
    assert torch.equal(found, (x.double() @ dense.t() + bias).to(x.dtype))


@pytest.mark.parametrize(
    ("shape", "rows", "kind"),
    all_pairs(
        [(48, 256), (49, 128), (1, 384), (50, 640)],
        [1, 5, 70, 16],
        [(32, torch.bfloat16), (64, torch.float16), (128, torch.bfloat16), (128, torch.float16)],
    ),
    ids=str,
)  # fmt: skip
def test_packed_weights_have_zero_points(shape, rows, kind, device):
    (n, k), (group, dtype) = shape, kind
    x = integers(rows, k, dtype=dtype, device=device)
    codes = torch.randint(16, shape, device=device)
    zero = torch.randint(16, (n, k // group), device=device)
    scale = powers(n, k // group, device=device)
    dense = (codes - zero.repeat_interleave(group, 1)).double() * scale.repeat_interleave(group, 1)
    found = weight_only_linear(x, pack(codes), with_zero_points(scale, zero))
    assert torch.equal(found, (x.double() @ dense.t()).to(dtype))


def test_zero_points_are_those_of_groups_of_int4(device):
    x, codes = torch.ones(2, 256, device=device).bfloat16(), torch.ones(8, 256, device=device, dtype=torch.uint8)
    for weight, scale in ((codes.char(), (8, 2)), (pack(codes), (8,)), (pack(codes), (8, 1)), (pack(codes), (8, 3))):
        with pytest.raises(RuntimeError, match=r"scale is torch\.int32"):
            weight_only_linear(x, weight, torch.zeros(scale, device=device, dtype=torch.int32))


@pytest.mark.parametrize("k", [8, 40, 72, 1000])
def test_rows_of_packed_weights_are_filled_up(k, device):
    x = integers(3, k, dtype=torch.bfloat16, device=device)
    weight = torch.randint(-8, 8, (20, k), device=device)
    found = weight_only_linear(x, pack(weight + 8), torch.ones(20, device=device))
    assert torch.equal(found, (x.double() @ weight.double().t()).bfloat16())


@pytest.mark.parametrize(("n", "k"), [(0, 256), (48, 0), (0, 0)])
@pytest.mark.parametrize("rows", [(5,), (2, 3), (0,)], ids=str)
def test_weights_without_elements(n, k, rows, device):
    x = torch.ones(*rows, k, device=device).bfloat16()
    weight, bias = torch.ones(n, k, device=device).char(), torch.arange(float(n), device=device).bfloat16()
    for scale in ((n,), (n, 1), *(((n, k // 128),) if k else ())):
        scale = torch.ones(scale, device=device)
        assert torch.equal(weight_only_linear(x, weight, scale), torch.zeros(*rows, n, device=device).bfloat16())
        assert torch.equal(weight_only_linear(x, weight, scale, bias), bias.expand(*rows, n))
        assert torch.equal(weight_only_linear(x, pack(weight), scale, bias), bias.expand(*rows, n))


def refused(error, message, function, *args, **kwargs):
    with pytest.raises(error, match=message):
        function(*args, **kwargs)


def test_errors_are_torchs_and_say_what_would_be_right(device):
    f8, i8 = torch.zeros(4, 32, device=device).to(E4M3), torch.zeros(4, 32, device=device).char()
    one = torch.ones(1, device=device)
    refused(RuntimeError, "must be torch.int8", int_mm, f8, f8.t())
    refused(RuntimeError, "inner dimensions differ", int_mm, i8, i8)
    refused(RuntimeError, "must be 2-D", int_mm, i8[0], i8.t())
    refused(RuntimeError, "must have dtype torch.int32", int_mm, i8, i8.t(), out=torch.empty(4, 4, device=device))
    refused(TypeError, "not list", int_mm, i8, [[1]])
    refused(RuntimeError, "must be fp8", scaled_mm, f8.float(), f8.t(), one, one)
    refused(RuntimeError, "must be fp8", scaled_mm, f8, i8.t(), one, one)
    refused(RuntimeError, r"\(4, 1\) and \(1, 4\)", scaled_mm, f8, f8.t(), one, torch.ones(1, 4, device=device))
    refused(RuntimeError, "float32", scaled_mm, f8, f8.t(), one.half(), one)
    refused(RuntimeError, "bias is", scaled_mm, f8, f8.t(), one, one, torch.zeros(3, device=device))
    refused(NotImplementedError, "out_dtype is torch.float8", scaled_mm, f8, f8.t(), one, one, out_dtype=E4M3)
    refused(RuntimeError, "same device", scaled_mm, f8, f8.t(), one, one.to("meta"))
    refused(RuntimeError, "requires grad", scaled_mm, f8, f8.t(), one.clone().requires_grad_(), one)
    x = torch.zeros(4, 32, device=device).bfloat16()
    refused(RuntimeError, "weight int8, fp8 or uint8", weight_only_linear, x, x, one)
    refused(RuntimeError, "group of 16", weight_only_linear, x, i8, torch.ones(4, 4, device=device))
    for scale in ((3,), (1, 4), (8,), (4, 0), (4, 1, 1), ()):
        refused(RuntimeError, "group of 16", weight_only_linear, x, i8, torch.ones(scale, device=device))
    refused(RuntimeError, "4x32 has 32 columns, 4x16 has 16 columns", weight_only_linear, x, i8[:, :16], one)
    i4 = pack(i8)
    refused(RuntimeError, "room for 32 elements of K; input 4x40", weight_only_linear, x.new_zeros(4, 40), i4, one)
    refused(RuntimeError, "group of 32, 64 or 128", weight_only_linear, x, i4, torch.ones(4, 2, device=device))
    refused(RuntimeError, "at least one dimension", weight_only_linear, x[0, 0], i8, one)
    refused(RuntimeError, "must be 2-D", weight_only_linear, x, i8[0], one)
    refused(TypeError, "not list", weight_only_linear, x, [[1]], one)
    refused(TypeError, "not list", weight_only_linear, [[1.0]], i8, one)
    refused(NotImplementedError, "int_mm multiplies int8", tritonmm.mm, i8, i8.t())
    refused(NotImplementedError, "scaled_mm multiplies fp8", tritonmm.mm, f8, f8.t())
    refused(NotImplementedError, "complex64", tritonmm.mm, torch.zeros(2, 2, dtype=torch.complex64, device=device),
            torch.zeros(2, 2, dtype=torch.complex64, device=device))  # fmt: skip


def test_they_stay_whole_in_compiled_graphs(device):
    a, b = integers(20, 48, dtype=E4M3, device=device), integers(32, 48, dtype=E4M3, device=device).t()
    one = torch.ones(1, device=device)
    graphs = []

    def keep(graph, _):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    compiled = torch.compile(lambda a, b: scaled_mm(a, b, one, one), backend=keep, fullgraph=True)
    assert torch.equal(compiled(a, b), scaled_mm(a, b, one, one))
    assert any(target is torch.ops.tritonmm.product.default for target in graphs[0])


@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3", "bf16x3"])
def test_precision_by_argument(precision, device):
    a, b = (torch.randn(shape, device=device, requires_grad=True) for shape in ((33, 70), (70, 20)))
    growth = {"tf32": 2**-9, "tf32x3": 2**-19, "bf16x3": 2**-14}.get(precision, 0.0) + 2 * 70**0.5 * 2**-24
    found = mm(a, b, precision=precision)
    expected = a.double() @ b.double()
    bound = growth * (a.double().abs() @ b.double().abs()) + 2**-24 * expected.abs()
    assert ((found.double() - expected).abs() <= bound).all()
    found.sum().backward()
    expected = torch.ones(33, 20, device=device).double() @ b.detach().double().t()
    assert ((a.grad.double() - expected).abs() <= 2 * growth * b.detach().double().abs().sum(1)).all()
    for function, args in (
        (tritonmm.matmul, (a, b)), (tritonmm.bmm, (a[None], b[None])), (tritonmm.linear, (a, b.t())),
        (tritonmm.addmm, (torch.zeros(1, device=device), a, b)),
        (tritonmm.baddbmm, (torch.zeros(1, device=device), a[None], b[None])),
    ):  # fmt: skip
        assert torch.equal(function(*args, precision=precision).view(33, 20), mm(a, b, precision=precision))


def test_precision_and_out_dtype_that_do_not_exist(device):
    x = torch.zeros(4, 4, device=device)
    refused(ValueError, "'tf64' for torch.float32", mm, x, x, precision="tf64")
    refused(ValueError, "'tf32' for torch.float16", mm, x.half(), x.half(), precision="tf32")
    refused(RuntimeError, "float32 for bf16 and fp16", mm, x, x, out_dtype=torch.bfloat16)
    refused(RuntimeError, "out must have dtype torch.float32", mm, x.half(), x.half(), out_dtype=torch.float32,
            out=x.half())  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sums_that_are_not_rounded(dtype, device):
    a, b = (
        integers(33, 100, dtype=dtype, device=device, most=100),
        integers(100, 20, dtype=dtype, device=device, most=100),
    )
    expected = a.double() @ b.double()
    found = mm(a, b, out_dtype=torch.float32)
    assert found.dtype == torch.float32
    assert torch.equal(found.double(), expected)
    assert torch.equal(mm(a, b, out_dtype=torch.float32, out=torch.empty_like(found)), found)
    assert torch.equal(tritonmm.bmm(a[None], b[None], out_dtype=torch.float32)[0], found)
    a, b = a.requires_grad_(), b.requires_grad_()
    mm(a, b, out_dtype=torch.float32).sum().backward()
    assert a.grad.dtype == b.grad.dtype == dtype


def test_double_is_as_exact_as_torchs(device):
    a, b = torch.randn(70, 300, device=device).double(), torch.randn(300, 50, device=device).double()
    c = torch.randn(50, device=device).double()
    for found, expected in (
        (tritonmm.mm(a, b), a @ b),
        (tritonmm.addmm(c, a, b, beta=0.5, alpha=0.25), torch.addmm(c, a, b, beta=0.5, alpha=0.25)),
    ):
        assert ((found - expected).abs() <= 2**-46 * (a.abs() @ b.abs() + c.abs())).all()


@pytest.mark.gpu
def test_double_scalars_are_not_rounded():
    """They are passed as doubles; the interpreter has them so anyway."""
    a = torch.eye(64, device="cuda", dtype=torch.float64)
    assert (tritonmm.addmm(torch.ones(64, device="cuda").double(), a, a, beta=0.1, alpha=0.3).diag() == 0.1 + 0.3).all()


def test_overriding_the_private_operators(device, override, monkeypatch):
    """Under enable() they are ours where that is wanted, with torch's errors, and torch's own again afterwards."""
    from tritonmm.torch_ops import aten_quantized

    ours = []
    compute = aten_quantized.product
    monkeypatch.setattr(aten_quantized, "product", lambda *args, **rest: ours.append(rest) or compute(*args, **rest))
    i8 = (
        torch.randint(-128, 128, (32, 48), device=device).char(),
        torch.randint(-128, 128, (48, 64), device=device).char(),
    )
    a, b = integers(32, 48, dtype=E4M3, device=device), integers(64, 48, dtype=E4M3, device=device).t()
    one = torch.full((), 0.5, device=device)
    bias = integers(64, dtype=torch.bfloat16, device=device)
    expected = torch._int_mm(*i8), (0.25 * (a.double() @ b.double()) + bias).bfloat16()
    with override.use("always"):
        assert torch.equal(torch._int_mm(*i8), expected[0])
        assert torch.equal(torch._int_mm(*i8, out=torch.zeros_like(expected[0])), expected[0])
        for _ in range(2):
            assert torch.equal(torch._scaled_mm(a, b, one, one, bias, out_dtype=torch.bfloat16), expected[1])
        out = torch.zeros_like(expected[1])
        assert torch._scaled_mm(a, b, one, one, bias, out_dtype=torch.bfloat16, out=out) is out
        assert torch.equal(out, expected[1])
        assert len(ours) == 5
        with pytest.raises(RuntimeError):
            torch._int_mm(i8[0], i8[0])
        with pytest.raises(RuntimeError):
            torch._scaled_mm(a, a, one, one, out_dtype=torch.bfloat16)
        assert len(ours) == 5
    torch._int_mm(*i8)
    assert len(ours) == 5


def by_recipe(recipe, lines, k, device):
    """Scales of `lines` lines of k as torch lays them out for a, and one for each element."""
    if recipe == "BlockWise128x128":  # k first and contiguous, padded
        scale = powers(-(-lines // 128), -(-k // 512) * 4, device=device)
        return scale.t(), scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:lines, :k]
    if recipe == "BlockWise1x128":
        scale = powers(-(-k // 128), lines, device=device).t()
        return scale, spread(scale, (lines, k), 1, 128)
    scale = powers(lines if recipe == "RowWise" else 1, 1, device=device)
    return scale, scale.expand(lines, k)


@pytest.mark.parametrize(
    ("recipe_a", "recipe_b"),
    [
        ("TensorWise", "TensorWise"),
        ("RowWise", "RowWise"),
        ("BlockWise1x128", "BlockWise1x128"),
        ("BlockWise1x128", "BlockWise128x128"),
        ("BlockWise128x128", "BlockWise1x128"),
    ],
)
@pytest.mark.parametrize("k", [128, 400, 512])
def test_overriding_scaled_mm_with_recipes(recipe_a, recipe_b, k, device, override, monkeypatch):
    """torch.nn.functional.scaled_mm under enable(): each recipe's scales mean what they mean to torch."""
    from tritonmm.torch_ops import aten_quantized

    ours = []
    compute = aten_quantized.product
    monkeypatch.setattr(aten_quantized, "product", lambda *args, **rest: ours.append(rest) or compute(*args, **rest))
    types = torch.nn.functional.ScalingType.__members__
    m, n = 144, 160
    a, b = integers(m, k, dtype=E4M3, device=device), integers(n, k, dtype=E4M3, device=device).t()
    (scale_a, each_a), (scale_b, each_b) = (by_recipe(*x, k, device) for x in ((recipe_a, m), (recipe_b, n)))
    given = a, b, scale_a, types[recipe_a], scale_b.t() if recipe_b == "RowWise" else scale_b, types[recipe_b]
    bias = integers(n, dtype=torch.bfloat16, device=device)
    exact = (a.double() * each_a) @ (b.double() * each_b.t()) + bias
    if device.type == "cuda" or "Block" not in recipe_a:
        torchs = torch.nn.functional.scaled_mm(*given, bias=bias)
        torch.testing.assert_close(torchs, exact.bfloat16(), rtol=2**-7, atol=2**-3)
    with override.use("always"):
        assert torch.equal(torch.nn.functional.scaled_mm(*given, bias=bias), exact.bfloat16())
        assert len(ours) == 1
        for wrong in ((*given[:3], types["BlockWise1x32"], *given[4:]), (a, b.t(), *given[2:])):
            with pytest.raises((RuntimeError, ValueError)):
                torch.nn.functional.scaled_mm(*wrong, bias=bias)
        assert len(ours) == 1


@pytest.mark.parametrize("missing", range(4))
def test_missing_operands_are_no_tensors(missing, device):
    x, w, one = (torch.ones(*shape, device=device) for shape in ((4, 64), (64, 8), (1,)))
    for function, given in (
        (scaled_mm, [x.char(), w.char(), one, one]),
        (int_mm, [x.char(), w.char()]),
        (weight_only_linear, [x.bfloat16(), w.t().char(), torch.ones(8, device=device)]),
    ):
        if missing < len(given):
            given[missing] = None
            with pytest.raises(TypeError, match="operands must be Tensors, not NoneType"):
                function(*given)


def test_errors_name_parameters(device):
    x = torch.ones(17, 8, dtype=torch.int8, device=device)
    with pytest.raises(RuntimeError, match="int_mm: mat2 must be 2-D"):
        int_mm(x, x[0])
