"""Several GEMMs of one input as one: the operator, and the compiler's pass that inserts it."""

import copy
import pickle
import shutil
from collections import Counter

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx

import tritonmm
from tritonmm import Config, weight_only_linear
from tritonmm.launch import Plan
from tritonmm.nn.int4 import pack, with_zero_points
from tritonmm.nn.linear import DynamicFp8Linear, WeightOnlyLinear
from tritonmm.torch_ops.siblings import joined, operator

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
SIZES = 32, 16, 48
K = 64
KINDS = "int8", "int8-group", "int4", "int4-zero", "fp8"

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler's own


def integers(*shape, device, most=3):
    return torch.randint(-most, most + 1, shape, device=device)


def weights(kind, device, has_bias=False):
    """Weights, scales and bias of all siblings, with which products of small integers are exact."""
    n = sum(SIZES)
    codes = integers(n, K, device=device)
    groups = 1 if kind in ("int8", "fp8") else K // 32
    scale = torch.randint(-2, 3, (groups, n), device=device).float().exp2().t()
    if kind.startswith("int4"):
        codes = pack(codes + 8)
        if kind == "int4-zero":
            scale = with_zero_points(scale, torch.randint(5, 12, scale.shape, device=device)).mT.contiguous().mT
    else:
        codes = codes.to(E4M3 if kind == "fp8" else torch.int8)
    bias = integers(n, device=device).to(BF16) if has_bias else None
    return codes, scale.squeeze(1) if groups == 1 else scale, bias


def parts_of(whole, apart=False):
    """For each sibling its weights, scales and bias: rows of the whole ones, or copies of them elsewhere."""
    rows = zip(*([None] * len(SIZES) if x is None else x.split(SIZES) for x in whole), strict=True)
    return [tuple(x.clone() if apart and x is not None else x for x in each) for each in rows]


def as_operands(parts, group=32):
    """The operator's arguments after `a`, of `weight_only_linear`'s."""
    weight, scale, bias = zip(*parts, strict=True)
    kind = "group-zero" if scale[0].dtype == torch.int32 else "group" if scale[0].dim() == 2 else "row"
    scale = [x.view(torch.float32).reshape(x.shape[0], -1).mT for x in scale]
    biases = [] if bias[0] is None else list(bias)
    return [x.t() for x in weight], scale, biases, None, "ieee", BF16, kind, 128 if kind == "row" else group, ""


@pytest.fixture
def launches(monkeypatch):
    """The shapes of the outputs of all launches."""
    found = []
    once = Plan.__call__

    def counted(self, a, b, out, **options):
        found.append(tuple(out.shape))
        return once(self, a, b, out, **options)

    monkeypatch.setattr(Plan, "__call__", counted)
    return found


@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_are_one_launch(kind, has_bias, device, launches):
    whole = weights(kind, device, has_bias)
    x = integers(5, K, device=device).to(BF16)
    expected = weight_only_linear(x, *whole)
    launches.clear()
    assert torch.equal(operator(x, *as_operands(parts_of(whole))), expected)
    assert launches == [(5, sum(SIZES))]
    launches.clear()
    assert torch.equal(operator(x, *as_operands(parts_of(whole, apart=True))), expected)
    assert launches == [(5, n) for n in SIZES]


def test_only_those_next_to_each_other_are_one_launch(device, launches):
    whole = weights("int4", device, True)
    first, second, third = parts_of(whole)
    x = integers(5, K, device=device).to(BF16)

    def check(parts, expected):
        launches.clear()
        found = operator(x, *as_operands(parts))
        assert launches == [(5, n) for n in expected]
        assert torch.equal(found, torch.cat([weight_only_linear(x, *each) for each in parts], 1))

    check([first, second, parts_of(whole, True)[2]], (48, 48))
    check([first, third, second], (32, 48, 16))
    check([second, first, third], (16, 32, 48))
    check([first, first], (32, 32))
    for i in range(3):  # one operand of the second lies elsewhere
        check([first, tuple(x.clone() if i == j else x for j, x in enumerate(second)), third], (32, 16, 48))
        check([first, second], (48,))


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(rows, device):
    whole = weights("int8", device, True)
    x = integers(rows, K, device=device).to(BF16)
    for apart in (False, True):
        found = operator(x, *as_operands(parts_of(whole, apart)))
        assert found.shape == (rows, sum(SIZES))
        assert torch.equal(found, weight_only_linear(x, *whole))


def test_what_is_not_next_to_each_other():
    whole = torch.arange(24.0).view(4, 6)
    assert torch.equal(joined(whole.split([2, 1, 3], 1)), whole)
    assert torch.equal(joined(whole.t().split([1, 3], 1)), whole.t())
    assert joined([whole[:, :2], whole[:, 3:]]) is None
    assert joined([whole[:, 2:], whole[:, :2]]) is None
    assert joined([whole[:2, :2], whole[2:, 2:]]) is None
    assert joined([whole[:, :2], whole[:2, 2:]]) is None
    assert joined([whole[:, :2], whole[:, 2:].view(torch.int32)]) is None
    assert joined([whole[0, :2], torch.tensor([1.0, 2, 3])[2:]]) is None  # of another storage
    assert joined([whole[:, :2], whole.view(-1)[2:14].view(4, 3)]) is None  # of another pitch


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w, s, b: (w[:2], s, b), "there are 2 weights, 3 scales and 3 biases; each weight needs a scale"),
        (lambda w, s, b: ([], [], []), "there are 0 weights"),
        (lambda w, s, b: (w, s, b[:1]), "3 scales and 1 biases"),
        (lambda w, s, b: ([w[0], w[1][1:], w[2]], s, b), "weight 1 63x16 and its scale 1x16"),
        (lambda w, s, b: (w, [s[0], s[2], s[1]], b), "weight 1 64x16 and its scale 1x48"),
        (lambda w, s, b: (w, s, [b[0], b[2], b[1]]), r"bias 1 is 48; it must be \(16,\)"),
    ],
)
def test_operands_that_do_not_fit_are_errors(change, said, device):
    w, s, b, *rest = as_operands(parts_of(weights("int8", device, True)))
    with pytest.raises(RuntimeError, match=said):
        operator(torch.ones(2, K, device=device, dtype=BF16), *change(w, s, b), *rest)


@pytest.mark.parametrize("kind", ["int8", "int4-zero"])
def test_torch_checks_the_operator(kind, device):
    x = integers(5, K, device=device).to(BF16)
    for apart in (False, True):
        torch.library.opcheck(operator, (x, *as_operands(parts_of(weights(kind, device, True), apart))))


def traced(function, *inputs):
    with torch.no_grad():
        return make_fx(function, tracing_mode="fake")(*inputs)


def merged(graph_module):
    tritonmm.merge_siblings()(graph_module.graph)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


def called(graph_module):
    """How often each of our operators is called."""
    targets = (str(node.target) for node in graph_module.graph.nodes if node.op == "call_function")
    return Counter(name.split(".")[1] for name in targets if name.startswith("tritonmm."))


def layers(x, *flat):
    """What attention does with its input: GEMMs of three layers, and views of them that need contiguous results."""
    x = x * 2
    q, k, v = (weight_only_linear(x, *flat[i : i + 3]) for i in (0, 3, 6))
    return q.view(*x.shape[:-1], -1, 16).transpose(-2, -1), torch.cat((k, v), -1).relu(), v.view(-1)


def flattened(parts):
    return [x for each in parts for x in each]


@pytest.mark.parametrize("shape", [(5, K), (2, 3, K), (2, 1, K), (K,)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_has_one_operator(kind, shape, device):
    x = integers(*shape, device=device).to(BF16)
    flat = flattened(parts_of(weights(kind, device, True)))
    graph = traced(layers, x, *flat)
    assert called(graph) == {"product": 3}
    assert called(merged(graph)) == {"sibling_products": 1}
    for found, expected in zip(graph(x, *flat), layers(x, *flat), strict=True):
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()


@pytest.mark.parametrize("dynamic", [False, True])
def test_graphs_of_torchs_compiler(dynamic, device, launches):
    """As it makes them of modules, also for numbers of rows that change."""
    torch._dynamo.reset()
    graphs = []

    def compiler(graph_module, inputs):
        assert called(graph_module) == {"product": 3}
        graphs.append(merged(graph_module))
        return make_boxed_func(graph_module.forward)

    siblings = torch.nn.ModuleList(WeightOnlyLinear(*each) for each in parts_of(weights("int4", device, True)))
    compiled = torch.compile(
        lambda x: [layer(x).view(-1) for layer in siblings], backend=aot_autograd(fw_compiler=compiler), dynamic=dynamic
    )
    for rows in (3, 5):
        x = integers(2, rows, K, device=device).to(BF16)
        expected = [layer(x).view(-1) for layer in siblings]
        launches.clear()
        with torch.no_grad():
            assert all(map(torch.equal, compiled(x), expected))
        assert launches == [(2 * rows, sum(SIZES))]
    assert [called(graph) for graph in graphs] == [{"sibling_products": 1}] * (1 if dynamic else 2)


def test_rows_are_quantized_once(device):
    x = torch.randn(2, 3, K, device=device, dtype=BF16)
    flat = flattened(parts_of(weights("fp8", device, True)))

    def attention(x, *flat):
        return [DynamicFp8Linear(*flat[i : i + 3])(x) for i in (0, 3, 6)]

    graph = traced(attention, x, *flat)
    assert called(graph) == {"product": 3, "quantize_rows": 3}
    assert called(merged(graph)) == {"sibling_products": 1, "quantize_rows": 1}
    for found, expected in zip(graph(x, *flat), attention(x, *flat), strict=True):
        assert torch.equal(found, expected)


def linear(*arguments, **options):
    return weight_only_linear(*arguments, **options)


CONFIG = Config(block_m=16, block_n=16, block_k=32)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, a, b: (linear(x, *a), linear(x, *b)), {"sibling_products": 1}),
        (lambda x, a, b: (linear(x, *a), linear(x.relu(), *b)), {"product": 2}),
        (lambda x, a, b: (linear(x, *a), linear(x.relu(), *a), linear(x, *b)), {"product": 3}),
        (lambda x, a, b: (linear(x, *a), linear(x, b[0] + 1, *b[1:])), {"product": 2}),
        (lambda x, a, b: (linear(x, *a), linear(x, b[0], b[1] * 2, b[2])), {"product": 2}),
        (lambda x, a, b: (linear(x, *a), linear(x, *b[:2])), {"product": 2}),
        (lambda x, a, b: (linear(x, *a), linear(x, b[0], b[1], b[2].float())), {"product": 2}),
        (lambda x, a, b: (linear(x, *a, config=CONFIG), linear(x, *b, config=CONFIG)), {"product": 2}),
        (lambda x, a, b: (linear(x, *a), linear(x, *b, accumulation="invariant")), {"product": 2}),
        (lambda x, a, b: [linear(x, *c, accumulation="invariant") for c in (a, b)], {"sibling_products": 1}),
        (lambda x, a, b: (linear(x, *a), tritonmm.mm(x, a[0].t().to(BF16))), {"product": 2}),
        (lambda x, a, b: [linear(y, *c) for y in (x, x.relu()) for c in (a, b)], {"sibling_products": 2}),
        (lambda x, a, b: (linear(x, *a).relu(), linear(x, *a)), {"sibling_products": 1}),
        (lambda x, a, b: (linear(x.half(), *a), linear(x.half(), *b)), {"sibling_products": 1}),
        (lambda x, a, b: (linear(x.half(), *a), linear(x, *b)), {"product": 2}),
    ],
)
def test_which_calls_are_merged(function, expected, device):
    x = integers(5, K, device=device).to(BF16)
    a, b, _ = parts_of(weights("int8", device, True))
    graph = traced(function, x, a, b)
    before = function(x, a, b)
    assert called(merged(graph)) == expected
    for found, expected in zip(graph(x, a, b), before, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("apart", [False, True], ids=["neighbours", "apart"])
def test_groups_of_other_sizes_are_not_merged(apart, device):
    x = integers(5, K, device=device).to(BF16)
    (codes, scale, _), (others, rows, _), _ = parts_of(weights("int8-group", device), apart)
    half = rows.repeat_interleave(2, 1)
    graph = traced(lambda *given: (linear(*given[:3]), linear(given[0], *given[3:])), x, codes, scale, others, half)
    assert called(merged(graph)) == {"product": 2}


def test_results_have_the_products_dtype_where_none_is_asked_for():
    """By its own operator: of fp8 it is bf16."""
    x, w, v = (torch.zeros(n, 64).to(torch.float8_e4m3fn) for n in (4, 32, 32))
    of_rows, of_cols = torch.ones(4, 1), torch.ones(1, 32)

    def both(x, w, v, of_rows, of_cols):
        product = torch.ops.tritonmm.product.default
        how = "", "ieee", None, of_rows, of_cols, "row", 128, ""
        return [product(x, each.t(), None, None, 1.0, 1.0, *how) for each in (w, v)]

    (made,) = (
        node.meta["val"]
        for node in merged(traced(both, x, w, v, of_rows, of_cols)).graph.nodes
        if node.target is operator
    )
    assert (made.shape, made.dtype) == ((4, 64), torch.bfloat16)


def test_what_nothing_uses_any_longer_is_gone(device):
    x = integers(2, 3, K, device=device).to(BF16)
    flat = flattened(parts_of(weights("int4-zero", device, True)))
    graph = merged(traced(layers, x, *flat))
    unused = [node for node in graph.graph.nodes if node.op == "call_function" and not node.users]
    assert not unused
    assert all("val" in node.meta for node in graph.graph.nodes if node.op != "output")


def test_compiled_graphs_are_cached_by_the_passs_source():
    one = tritonmm.merge_siblings()
    assert one is tritonmm.merge_siblings()
    assert one.uuid() == type(one)().uuid()
    assert len(one.uuid()) == 32


@pytest.mark.long
@pytest.mark.skipif(not torch.cuda.is_available() and not shutil.which("g++"), reason="Inductor needs a compiler")
def test_inductor_compiles_it(device, launches):
    """Layers whose tensors are neighbours, and others: the same graph, and other launches."""
    torch._dynamo.reset()
    compiled = torch.compile(layers, options={"post_grad_custom_pre_pass": tritonmm.merge_siblings()}, fullgraph=True)
    x = integers(2, 3, K, device=device).to(BF16)
    whole = weights("int4", device, True)
    for apart, expected in ((False, [sum(SIZES)]), (True, list(SIZES))):
        flat = flattened(parts_of(whole, apart))
        before = layers(x, *flat)
        launches.clear()
        for found, wanted in zip(compiled(x, *flat), before, strict=True):
            assert torch.equal(found, wanted)
        assert launches == [(6, n) for n in expected]


def test_copies_of_the_pass_are_the_pass():
    """transformers compares options that it has copied, and compiles the model again where they differ."""
    options = {"post_grad_custom_pre_pass": tritonmm.merge_siblings()}
    assert copy.deepcopy(options) == options == pickle.loads(pickle.dumps(options))
