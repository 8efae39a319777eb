"""weight_only_grouped_mm: exact where that can be, within the bound elsewhere, whatever the offsets are; its errors."""

import inspect
import random
import warnings

import pytest
import torch
from bounds import assert_within
from expert_cases import WEIGHTS, Experts
from grouped_cases import OFFS, OFFSETS, bounds_of, expected_of, int32, poisoned
from pairs import all_pairs

import tritonmm
from tritonmm import weight_only_grouped_mm, weight_only_linear
from tritonmm.config import Config
from tritonmm.nn.int4 import pack
from tritonmm.problem import Problem

BF16, FP16 = torch.bfloat16, torch.float16
NAN = float("nan")
CONFIG = Config("tile", 16, 16, 32, 2, 1, persistent=True, order=tritonmm.orders.parse("groups/swizzle-merge:2"))


def integers(*shape, dtype, device, most=4):
    return torch.randint(-most, most + 1, shape, device=device).to(dtype)


def assert_exact(found, x, experts, offs, bias=None):
    """found is the product rounded once, and rows of no group are not written."""
    end = bounds_of(offs, len(x))[-1][1]
    expected = expected_of(x.double(), experts.dense.mT, offs, None if bias is None else bias.double())
    assert found.dtype == x.dtype
    assert found.is_contiguous()
    assert torch.equal(found[:end], expected[:end].to(x.dtype))
    assert found[end:].isnan().all()


@pytest.mark.parametrize(
    ("kind", "size", "group", "dtype"),
    [
        (kind, size, group, dtype)
        for kind, (size, group), dtype in all_pairs(
            WEIGHTS,
            [((49, 256), 128), ((16, 256), 64), ((70, 96), 32), ((33, 128), None), ((5, 40), None), ((21, 500), None)],
            [BF16, FP16],
        )
        if group or kind != "int4-zero"
    ],
    ids=str,
)
def test_small_integers_are_exact(kind, size, group, dtype, device):
    experts = Experts(kind, (4, *size), group, device)
    x = integers(17, size[1], dtype=dtype, device=device)
    bias = integers(4, size[0], dtype=dtype, device=device) if size[0] % 2 else None
    with poisoned():
        found = weight_only_grouped_mm(x, experts.weight, experts.scale, offs=int32(OFFS, device), bias=bias)
    assert_exact(found, x, experts, OFFS, bias)


def test_16_elements_of_8_bit_weights_share_a_scale(device):
    experts = Experts("int8", (4, 20, 64), 16, device)
    x = integers(17, 64, dtype=BF16, device=device)
    with poisoned():
        found = weight_only_grouped_mm(x, experts.weight, experts.scale, offs=int32(OFFS, device))
    assert_exact(found, x, experts, OFFS)


@pytest.mark.parametrize("case", OFFSETS)
@pytest.mark.parametrize("kind", ["int8", "int4-zero"])
def test_groups_of_any_sizes(kind, case, device):
    offs, total = OFFSETS[case]
    experts = Experts(kind, (len(offs), 10, 64), 32, device)
    x = integers(total, 64, dtype=BF16, device=device)
    with poisoned():
        found = weight_only_grouped_mm(x, experts.weight, experts.scale, offs=int32(offs, device), config=CONFIG)
    assert_exact(found, x, experts, offs)


def test_any_offsets(device):
    """Random ones of every kind: sorted, with repetitions, wild; of few and of many groups."""
    choose = random.Random(0)
    for groups in (1, 3, 40):
        experts = Experts("int4", (groups, 18, 64), 32, device)
        for i in range(6):
            total = choose.choice((1, 8, 50))
            offs = [choose.randint(-3, total + 3) for _ in range(groups)]
            offs = sorted(offs) if i % 3 else offs
            x = integers(total, 64, dtype=BF16, device=device)
            with poisoned():
                found = weight_only_grouped_mm(
                    x, experts.weight, experts.scale, offs=int32(offs, device), config=CONFIG
                )
            assert_exact(found, x, experts, offs)


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_random_data_within_the_bound(kind, dtype, device):
    experts = Experts(kind, (3, 50, 384), 128, device, exact=False)
    x, bias = torch.randn(40, 384, device=device).to(dtype), torch.randn(3, 50, device=device).to(dtype)
    offs = [7, 7, 40]
    found = weight_only_grouped_mm(x, experts.weight, experts.scale, offs=int32(offs, device), bias=bias)
    one = torch.ones_like
    expected, sizes, terms = (
        expected_of(*(change(each.double()) for each in (x, experts.dense.mT)), offs, change(bias.double()))
        for change in (lambda each: each, torch.abs, one)
    )
    assert_within(found, expected, sizes, terms)


def test_each_group_is_a_weight_only_linear(device):
    for kind in WEIGHTS:
        experts = Experts(kind, (2, 32, 256), 128, device, exact=False)
        x = torch.randn(12, 256, device=device).to(BF16)
        found = weight_only_grouped_mm(x, experts.weight, experts.scale, offs=int32([5, 12], device))
        for (start, end), weight, scale in zip(((0, 5), (5, 12)), experts.weight, experts.scale, strict=True):
            alone = weight_only_linear(x[start:end], weight, scale)
            torch.testing.assert_close(found[start:end], alone, rtol=2**-7, atol=1e-3)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # NumPy, in the interpreter
@pytest.mark.parametrize("what", ["x", "scale", "bias"])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_nan_stays_in_its_group(kind, what, device):
    k = 72 if kind == "int8" else 64  # a last step of K that ends inside the next row
    experts = Experts(kind, (4, 20, k), 32 if k == 64 else None, device)
    x, bias = integers(17, k, dtype=BF16, device=device), integers(4, 20, dtype=BF16, device=device)
    expected = expected_of(x.double(), experts.dense.mT, OFFS, bias.double()).to(BF16)
    x[OFFS[-1] :], experts.scale[1], bias[1] = NAN, NAN, NAN  # rows and weights of no token
    spoiled = {"x": x[OFFS[1] : OFFS[2]], "scale": experts.scale[2], "bias": bias[2]}[what]
    spoiled[:] = NAN
    found = weight_only_grouped_mm(x, experts.weight, experts.scale, offs=int32(OFFS, device), bias=bias)
    assert found[OFFS[1] : OFFS[2]].isnan().all()
    for rows in (slice(0, OFFS[0]), slice(OFFS[2], OFFS[3])):
        assert torch.equal(found[rows], expected[rows])


@pytest.mark.parametrize("kind", ["int8", "e4m3", "int4", "int4-zero"])
def test_operands_and_scales_of_any_strides(kind, device):
    experts = Experts(kind, (4, 20, 128), 64, device)
    x = integers(17, 128, dtype=FP16, device=device)

    def apart(x):  # every other element of lines along the dimension before the last
        lines = torch.zeros(*x.shape[:-2], *(2 * size for size in reversed(x.shape[-2:])), device=x.device).to(x.dtype)
        return lines[..., ::2, ::2].mT.copy_(x)

    given = apart(x), apart(experts.weight), apart(experts.scale)
    with poisoned():
        assert_exact(weight_only_grouped_mm(*given, offs=int32(OFFS, device)), x, experts, OFFS)


@pytest.mark.parametrize("empty", ["k", "total", "n", "groups"])
def test_sizes_may_be_zero(empty, device):
    size = {"k": 64, "total": 17, "n": 5, "groups": 4} | {empty: 0}
    total, k, n, groups = (size[each] for each in ("total", "k", "n", "groups"))
    x, weight = torch.ones(total, k, device=device).bfloat16(), torch.ones(groups, n, k, device=device).char()
    offs, bias = OFFS[:groups], torch.arange(float(groups * n), device=device).view(groups, n)
    packed = pack(weight.view(groups * n, k)).view(groups, n, k // 2) if weight.numel() else weight[..., : k // 2]
    for codes, scale in ((weight, (groups, n)), (weight, (groups, n, 1)), (packed.byte(), (groups, n))):
        scale = torch.ones(scale, device=device)
        found = weight_only_grouped_mm(x, codes, scale, offs=int32(offs, device), bias=bias)
        assert found.shape == (total, n)
        if groups and total:
            value = -7.0 if codes.dtype == torch.uint8 else 1.0  # a packed code of 1 stands for -7
            expected = expected_of(x.double(), value * weight.double().mT, offs, bias.double())
            assert torch.equal(found[: OFFS[-1]], expected[: OFFS[-1]].bfloat16())


def test_the_problem_and_the_config_are_obeyed(launched, device):
    experts = Experts("int4", (4, 24, 64), 32, device)
    x = integers(17, 64, dtype=BF16, device=device)
    given = x, experts.weight, experts.scale
    weight_only_grouped_mm(*given, offs=int32(OFFS, device), config=CONFIG)
    (made,) = launched
    assert (made.kind, made.group, made.groups, made.ragged) == ("bf16-int4", 32, 4, "m")
    assert (made.m, made.n, made.k, made.accumulation) == (17, 24, 64, "any")
    with pytest.raises(ValueError, match=r"invariant accumulation|with invariant"):  # not of such a tile
        weight_only_grouped_mm(*given, offs=int32(OFFS, device), config=CONFIG, accumulation="invariant")


def test_scales_are_read_where_they_lie(launched, device, monkeypatch):
    """Whether the scales of a row or of a group of K are beside each other: no call copies them."""
    experts = Experts("int8", (4, 24, 128), 32, device)
    x, offs = integers(17, 128, dtype=BF16, device=device), int32(OFFS, device)
    scales = experts.scale, experts.scale.mT.contiguous().mT
    for scale in scales:  # plans are made, which allocate what they like
        weight_only_grouped_mm(x, experts.weight, scale, offs=offs)
    from tritonmm.torch_ops import grouped_product

    given = []
    find = grouped_product._find

    def spy(*args):
        given.append(args[-1].scale_b)
        return find(*args)

    monkeypatch.setattr(grouped_product, "_find", spy)
    for scale in scales:
        weight_only_grouped_mm(x, experts.weight, scale, offs=offs)
    assert [each.data_ptr() for each in given] == [scale.data_ptr() for scale in scales]


def test_groups_of_scales_are_not_confused_in_kept_plans(device):
    """Two calls that differ in nothing but the elements of K that share a scale."""
    x, offs = integers(17, 256, dtype=BF16, device=device), int32(OFFS, device)
    for group in (32, 128, 64, 32):
        experts = Experts("int8", (4, 16, 256), group, device)
        with poisoned():
            assert_exact(weight_only_grouped_mm(x, experts.weight, experts.scale, offs=offs), x, experts, OFFS)


def test_offsets_are_not_read_on_the_host(device, monkeypatch):
    experts = Experts("int4-zero", (4, 20, 64), 32, device)
    x, offs = integers(17, 64, dtype=BF16, device=device), int32(OFFS, device)

    def refuse(self, *args):
        raise AssertionError("a value came to the host")

    for name in ("item", "tolist", "__bool__", "__int__", "__index__", "__iter__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    with poisoned():
        found = weight_only_grouped_mm(x, experts.weight, experts.scale, offs=offs)
    monkeypatch.undo()
    assert_exact(found, x, experts, OFFS)


@pytest.mark.gpu
def test_no_call_waits_for_the_device(device):
    experts = Experts("int4", (4, 20, 64), 32, device)
    x, offs = integers(17, 64, dtype=BF16, device=device), int32(OFFS, device)
    given = x, experts.weight, experts.scale
    weight_only_grouped_mm(*given, offs=offs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = weight_only_grouped_mm(*given, offs=offs)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    end = OFFS[-1]
    assert torch.equal(found[:end], expected_of(x.double(), experts.dense.mT, OFFS)[:end].to(BF16))


@pytest.mark.gpu
def test_graphs_follow_the_offsets(device):
    experts = Experts("int8", (4, 40, 256), 128, device)
    x, offs = integers(300, 256, dtype=BF16, device=device), int32([10, 10, 200, 300], device)
    given = x, experts.weight, experts.scale
    weight_only_grouped_mm(*given, offs=offs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = weight_only_grouped_mm(*given, offs=offs)
    for ends in ([10, 10, 200, 300], [0, 100, 101, 250], [300, 300, 300, 300]):
        offs.copy_(int32(ends, device))
        found.fill_(NAN)
        graph.replay()
        assert_exact(found, x, experts, ends)


def test_it_compiles_whole(device):
    torch._dynamo.reset()
    compiled = torch.compile(weight_only_grouped_mm, fullgraph=True, backend="aot_eager", dynamic=True)
    for kind in ("int8", "int4-zero"):
        experts = Experts(kind, (4, 20, 64), 32, device)
        x, offs = integers(17, 64, dtype=BF16, device=device), int32(OFFS, device)
        with poisoned():
            assert_exact(compiled(x, experts.weight, experts.scale, offs=offs), x, experts, OFFS)


def test_problems_say_what_there_is_not():
    fields = {"ragged": "m", "groups": 4, "dtype": "bf16", "layout": "nt"}
    with pytest.raises(ValueError, match="where groups divide k there are no packed weights"):
        Problem(8, 8, 64, b_dtype="int4", scales="row", **fields | {"ragged": "k"})
    with pytest.raises(ValueError, match="weights of 8 and 4 bits have such scales"):
        Problem(8, 8, 64, scales="group", **fields)
    problem = Problem(8, 8, 64, b_dtype="int4", scales="group", **fields)
    gpu = tritonmm.gpu.spec("h200")
    legal = [
        kernel
        for kernel in tritonmm.families.names()
        if Config(kernel, order=CONFIG.order, persistent=True).fits(problem, gpu)
    ]
    assert legal == ["tile", "mixed_input"]
    of_programs = Config("mixed_input", order=CONFIG.order, persistent=False).fits(problem, gpu)
    assert "only the device knows how many tiles groups have" in of_programs.reason


@pytest.mark.parametrize("kind", ["bf16-int8", "bf16-fp8-row", "bf16-int4", "bf16-int4-zero"])
def test_few_rows_of_each_expert_have_small_tiles(kind):
    from tritonmm.problem import KINDS
    from tritonmm.selection import choose

    for kernel, gpu, most in (("", "h200", 32), ("tile", "h200", 16), ("", "b200", 16)):
        for tokens in (8, 128, 1024):
            problem = Problem.dense(tokens, 1536, 2048, layout="nt", ragged="m", groups=128, **KINDS[kind])
            assert choose(problem, tritonmm.gpu.spec(gpu), kernel).block_m <= most
        many = Problem.dense(65536, 1536, 2048, layout="nt", ragged="m", groups=128, **KINDS[kind])
        assert choose(many, tritonmm.gpu.spec(gpu), kernel).block_m >= 64


def test_arguments_are_those_of_its_neighbours():
    of_linear, of_groups, ours = (
        inspect.signature(each).parameters for each in (weight_only_linear, tritonmm.grouped_mm, weight_only_grouped_mm)
    )
    assert list(ours)[:3] == list(of_linear)[:3]
    assert [each for each in of_groups if each in ours] == list(ours)[3:]


X, W, S = torch.ones(6, 64).bfloat16(), torch.ones(2, 4, 64).char(), torch.ones(2, 4)
ENDS = torch.tensor([2, 6], dtype=torch.int32)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"input": X[0]}, RuntimeError, "input must be 2-D, but it is 1-D, 64"),
        ({"weight": W[0]}, RuntimeError, "weight must be 3-D, but it is 2-D, 4x64"),
        ({"input": X.float()}, RuntimeError, "input must be bf16 or fp16 and weight int8, fp8 or uint8"),
        ({"weight": W.bfloat16()}, RuntimeError, "but they are torch.bfloat16 and torch.bfloat16"),
        ({"input": X[:, :32]}, RuntimeError, "inner dimensions differ: 6x32 has 32 columns, 2x4x64 has 64 columns"),
        ({"weight": W.byte()}, RuntimeError, "room for 128 elements of K; input 6x64 has 64 columns"),
        ({"scale": S[:, :3]}, RuntimeError, r"scale is torch.float32 \[2, 3\]; for weights \[2, 4, 64\] it must be"),
        ({"scale": S.half()}, RuntimeError, r"it must be float32 \[2, 4\] or \[2, 4, 64 / group\]"),
        ({"scale": torch.ones(2, 4, 3)}, RuntimeError, "with a group of 16, 32, 64 or 128"),
        ({"scale": torch.ones(2, 4, 2).int()}, RuntimeError, "scale is torch.int32"),
        ({"scale": torch.ones(8)}, RuntimeError, r"scale is torch.float32 \[8\]"),
        ({"offs": None}, TypeError, "offs must be a Tensor, not NoneType"),
        ({"offs": [2, 6]}, TypeError, "offs must be a Tensor, not list"),
        ({"offs": ENDS.long()}, RuntimeError, "must be torch.int32"),
        ({"offs": ENDS[:1]}, RuntimeError, "there must be one for each of its 2 groups"),
        ({"offs": ENDS.to("meta")}, RuntimeError, "offs is on meta"),
        ({"bias": torch.zeros(4)}, RuntimeError, r"bias is \[4\]; for these operands it must be \[2, 4\]"),
        ({"bias": torch.zeros(2, 4).char()}, RuntimeError, "bias is torch.int8; it must be of a floating-point dtype"),
        ({"scale": S.clone().requires_grad_()}, RuntimeError, "it has no derivative"),
        ({"config": "tile"}, TypeError, "config is 'tile'"),
        ({"config": Config()}, ValueError, "persistent is False"),
        ({"accumulation": "exact"}, ValueError, "accumulation is 'exact'"),
        ({"input": X.tolist()}, TypeError, "operands must be Tensors, not list"),
    ],
)  # fmt: skip
def test_errors(changes, error, said, device):
    given = {"input": X, "weight": W, "scale": S, "offs": ENDS} | changes
    there = {
        name: x.to(device) if isinstance(x, torch.Tensor) and x.device.type == "cpu" else x for name, x in given.items()
    }
    for name, x in there.items():
        if isinstance(given[name], torch.Tensor) and given[name].requires_grad:
            there[name] = x.detach().requires_grad_()
    with pytest.raises(error, match=said):
        weight_only_grouped_mm(**there)
