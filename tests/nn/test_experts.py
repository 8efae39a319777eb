"""Experts with weights of 8 and 4 bits: against a dense forward in float64, their state, and what is replaced."""

import copy
import io
import re

import pytest
import torch
from moe_layers import CLASSES, EXPERTS, FORMS, INNER, WIDTH, Bare, Model, Plain, parameter
from torch import nn

import tritonmm
from tritonmm.nn.experts import Gated, Projection, QuantizedExperts, projections_of
from tritonmm.nn.int4 import pack, with_zero_points
from tritonmm.nn.quantize import KINDS
from tritonmm.nn.weights import dequantized, quantized

BF16 = torch.bfloat16
NOT_DYNAMIC = [kind for kind in KINDS if kind != "fp8-dynamic"]


@pytest.fixture
def x(device):
    return torch.randn(7, WIDTH, device=device).to(BF16)


def routed(tokens, device, top_k=2):
    """Experts of tokens, of which the last has none, and their weights."""
    index = torch.stack([torch.randperm(EXPERTS - 1, device=device)[:top_k] for _ in range(tokens)])
    return index, torch.rand(tokens, top_k, device=device).to(BF16)


def experts_of(form, kind, device, group=32):
    """Experts in bf16, and what replaces them."""
    whole = nn.ModuleList([CLASSES[form]()]).to(device, BF16)
    given = copy.deepcopy(whole[0])
    tritonmm.quantize_(whole, kind, group=None if kind == "fp8-dynamic" else group)
    return given, whole[0]


def dense_of(given, found):
    """The experts in float64, with the weights that codes and scales stand for."""
    dense = copy.deepcopy(given).double()
    for name, (weight, _) in projections_of(given).items():
        codes, scale = getattr(found, name), getattr(found, f"{name}_scale")
        exact = dequantized(codes, scale, torch.float64, weight.shape[2], lines=2)
        with torch.no_grad():
            getattr(dense, name).copy_(exact.mT if given.is_transposed else exact)
    return dense


@pytest.mark.parametrize("kind", NOT_DYNAMIC)
@pytest.mark.parametrize("form", FORMS)
def test_forward_is_that_of_dense_experts(form, kind, device, x):
    given, found = experts_of(form, kind, device)
    index, weights = routed(len(x), device)
    assert type(found) is QuantizedExperts
    with torch.no_grad():
        out, expected = found(x, index, weights), dense_of(given, found)(x.double(), index, weights.double())
    assert out.dtype == BF16
    # Rounded to bf16: both projections, the activation, the products with the router's weights, and their sum.
    assert (out.double() - expected).norm() < 2.0**-7 * expected.norm()


@pytest.mark.parametrize("kind", ["int8", "e4m3", "int4", "int4-zero"])
@pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=str)
def test_small_integers_are_exact(kind, dtype, device):
    def projection(n, k, zero):
        values, scale = torch.randint(-1, 2, (EXPERTS, n, k), device=device), torch.ones(EXPERTS, n, device=device)
        if kind.startswith("int4"):
            shift = torch.randint(2, 15, scale.shape, device=device) if zero else torch.full_like(scale, 8).long()
            packed = pack((values + shift.unsqueeze(2)).flatten(0, 1)).view(EXPERTS, n, -1)
            coded = with_zero_points(scale, shift).unsqueeze(2) if zero else scale
            return values, Projection(packed, coded, None, k)
        return values, Projection(values.to(torch.int8 if kind == "int8" else torch.float8_e4m3fn), scale)

    up, down = projection(64, 32, kind == "int4-zero"), projection(32, 32, kind == "int4-zero")
    # The input of the second projection is the second half of the first's output, or 0: integers up to 32.
    gate = Gated(lambda rows: (rows > 2).to(rows.dtype))
    found = QuantizedExperts({"gate_up_proj": up[1], "down_proj": down[1]}, gate)
    hidden = torch.randint(-1, 2, (9, 32), device=device)
    index = torch.stack([torch.randperm(EXPERTS, device=device)[:3] for _ in range(9)])
    weights = torch.tensor([0.5, 1.0, 2.0], device=device).expand(9, 3)
    first = torch.einsum("tk,eok->teo", hidden.double(), up[0].double())
    gated = (first[..., :32] > 2) * first[..., 32:]
    second = torch.einsum("teo,eho->teh", gated, down[0].double()).to(dtype)
    each = second.gather(1, index.unsqueeze(2).expand(9, 3, 32)).double()
    assert gated.any()
    assert torch.equal(found(hidden.to(dtype), index, weights), (each * weights.unsqueeze(2)).sum(1).to(dtype))


@pytest.mark.parametrize("case", ["one expert", "no tokens", "one token", "three dimensions"])
def test_any_tokens(case, device):
    given, found = experts_of("biased", "int8", device)
    tokens = {"no tokens": 0, "one token": 1}.get(case, 12)
    x, (index, weights) = torch.randn(tokens, WIDTH, device=device).to(BF16), routed(12, device)
    index, weights = index[:tokens], weights[:tokens]
    if case == "one expert":
        index = torch.full_like(index[:, :1], 3)
        weights = weights[:, :1]
    with torch.no_grad():
        out = found(x.view(3, 4, WIDTH) if case == "three dimensions" else x, index, weights)
        expected = dense_of(given, found)(x.double(), index, weights.double())
    assert out.shape == ((3, 4, WIDTH) if case == "three dimensions" else (tokens, WIDTH))
    assert torch.allclose(out.view(tokens, WIDTH).double(), expected, rtol=2**-5, atol=2**-5)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # NumPy, in the interpreter
def test_an_expert_with_nan_spoils_its_tokens_alone(device, x):
    _, found = experts_of("plain", "int8", device)
    index, weights = routed(len(x), device)
    expected = found(x, index, weights)
    found.down_proj_scale[1] = float("nan")
    out = found(x, index, weights)
    of_expert = (index == 1).any(1)
    assert of_expert.any()
    assert out[of_expert].isnan().all()
    assert torch.equal(out[~of_expert], expected[~of_expert])


def test_bits_depend_on_no_order(device, x):
    """Of tokens, and of the experts of a token, whose sum has two terms."""
    _, found = experts_of("plain", "int4", device)
    index, weights = routed(len(x), device)
    expected = found(x, index, weights)
    assert torch.equal(found(x, index, weights), expected)
    assert torch.equal(found(x, index.flip(1), weights.flip(1)), expected)
    some = torch.randperm(len(x), device=device)
    assert torch.equal(found(x[some], index[some], weights[some]), expected[some])


def test_nothing_comes_to_the_host(device, x, monkeypatch):
    _, found = experts_of("plain", "int8", device)
    index, weights = routed(len(x), device)
    expected = found(x, index, weights)

    def refuse(self, *args):
        raise AssertionError("a value came to the host")

    for name in ("item", "tolist", "__bool__", "__int__", "__index__", "__iter__", "nonzero"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    out = found(x, index, weights)
    monkeypatch.undo()
    assert torch.equal(out, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_follow_the_router(kind, device):
    _, found = experts_of("plain", kind, device)
    x, (index, weights) = torch.randn(40, WIDTH, device=device).to(BF16), routed(40, device)
    with torch.no_grad():
        found(x, index, weights)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = found(x, index, weights)
        for _ in range(3):
            index.copy_(routed(40, device)[0])
            graph.replay()
            assert torch.equal(out, found(x, index, weights))


@pytest.mark.parametrize(("kind", "error"), [("int8", 0.02), ("int4", 0.2), ("fp8", 0.06), ("fp8-dynamic", 0.09)])
def test_experts_compute_about_the_same(kind, error, device, x):
    given, found = experts_of("own gate", kind, device)
    index, weights = routed(len(x), device)
    with torch.no_grad():
        out, expected = found(x, index, weights), given(x, index, weights)
    assert 0 < (out - expected).float().norm() < error * expected.float().norm()


def test_a_model_keeps_its_routers(device, x):
    model = Model(layers=2).to(device, BF16).train()
    routers = [layer.gate.weight for layer in model.layers]
    assert tritonmm.quantize_(model, "int8") is model
    assert [layer.gate.weight for layer in model.layers] == routers
    for layer in model.layers:
        assert type(layer.experts) is QuantizedExperts
        assert layer.experts.training
        assert (layer.experts.num_experts, layer.experts.hidden_dim, layer.experts.intermediate_dim) == (4, 32, 64)
    assert type(model.head).__name__ == "WeightOnlyLinear"
    assert {name.split(".")[-2] for name, _ in model.named_parameters()} == {"gate"}
    assert model(x).shape == (7, 32)


@pytest.mark.parametrize(("form", "kind"), [*(("plain", kind) for kind in KINDS), ("own gate", "int4")])
def test_the_state_is_loaded_into_a_model_without_memory(form, kind, device, x):
    group = None if kind == "fp8-dynamic" else 32
    model = tritonmm.quantize_(Model(form).to(device, BF16), kind, group=group)
    biases = {f"{name}_bias" for name in ("gate_up_proj", "down_proj") if form == "own gate"}
    names = {name.split("experts.")[1] for name in model.state_dict() if "experts." in name}
    assert names == {"gate_up_proj", "gate_up_proj_scale", "down_proj", "down_proj_scale"} | biases
    with torch.no_grad():
        expected = model(x)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    with torch.device("meta"):
        other = Model(form).to(BF16)
    tritonmm.quantize_(other, kind, group=group)
    other.load_state_dict(torch.load(file, weights_only=True, map_location=device), assign=True)
    contiguous = {name: value.contiguous() for name, value in model.state_dict().items()}  # as in safetensors
    again = tritonmm.quantize_(Model(form).to(device, BF16), kind, group=group)
    again.load_state_dict(contiguous, assign=True)
    with torch.no_grad():
        for each in (other, again, copy.deepcopy(model)):
            assert torch.equal(each(x), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_casts_leave_codes_and_scales(kind, device, x):
    _, found = experts_of("biased", kind, device)
    names = [f"{name}{what}" for name in ("gate_up_proj", "down_proj") for what in ("", "_scale")]
    before = {name: getattr(found, name).clone() for name in names}
    for cast in (found.half, found.float, found.double, lambda: found.to(torch.float16)):
        cast()
        for name, old in before.items():
            assert getattr(found, name).dtype == old.dtype
            assert torch.equal(getattr(found, name).flatten().view(torch.uint8), old.flatten().view(torch.uint8))
    assert found.down_proj_bias.dtype == torch.float16
    assert found(x.half(), *routed(len(x), device)).dtype == torch.float16
    assert found.to("meta").gate_up_proj.dtype == before["gate_up_proj"].dtype


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's compiler does
@pytest.mark.parametrize(("kind", "form"), [("int8", "plain"), ("int4", "own gate"), ("fp8-dynamic", "no gate")])
def test_models_stay_whole_under_torch_compile(kind, form, device, x):
    group = None if kind == "fp8-dynamic" else 32
    model = tritonmm.quantize_(Model(form).to(device, BF16), kind, group=group)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))
    assert torch.equal(compiled(x), model(x))


def test_a_memory_format_leaves_codes_as_they_are(device):
    """Packed int8 of experts is 4-D, as images are."""
    made = {name: Projection(*quantized(torch.randn(4, n, 32), "int8p"), None, 32) for name, n in (
        ("gate_up_proj", 64), ("down_proj", 32)
    )}  # fmt: skip
    layer = QuantizedExperts(made, Gated(nn.SiLU())).to(device)
    x, chosen, weights = torch.randn(5, 32, device=device).bfloat16(), torch.zeros(5, 2).long(), torch.ones(5, 2)
    given = x, chosen.to(device), weights.bfloat16().to(device)
    expected = layer(*given)
    assert torch.equal(layer.to(memory_format=torch.channels_last)(*given), expected)


def test_autocast_casts_hidden_states(device, x):
    _, found = experts_of("plain", "int8", device)
    index, weights = routed(len(x), device)
    with torch.autocast(device.type, dtype=BF16):
        assert torch.equal(found(x.float(), index, weights), found(x, index, weights))
    with pytest.raises(RuntimeError, match="input must be bf16 or fp16"):
        found(x.float(), index, weights)


@pytest.mark.parametrize(("form", "kind"), [*(("own gate", kind) for kind in KINDS), ("plain", "int8")])
def test_derivatives_of_hidden_states_and_of_the_routers_weights(form, kind, device, x):
    given, found = experts_of(form, kind, device)
    if form == "own gate":  # values at its limits have a derivative or none, wherever they are rounded
        given.limit = found.activation.experts.limit = 100.0
    index, weights = routed(len(x), device)
    grad = torch.randn(len(x), WIDTH, device=device).to(BF16)
    dense, results = dense_of(given, found), []
    for module, dtype in ((found, BF16), (dense, torch.float64)):
        inputs = x.detach().to(dtype).requires_grad_(), weights.detach().to(dtype).requires_grad_()
        out = module(inputs[0], index, inputs[1])
        results.append(torch.autograd.grad(out, inputs, grad.to(dtype)))
    error = 0.06 if kind == "fp8-dynamic" else 0.025
    for got, expected in zip(*results, strict=True):
        assert got.dtype == BF16
        assert (got.double() - expected).norm() < error * expected.norm()
    inputs = x.detach().requires_grad_()
    with torch.no_grad():
        without = found(x, index, weights)
    assert torch.equal(found(inputs, index, weights), without)


def test_weights_are_quantized_as_those_of_linear_layers():
    weight = torch.randn(3, 40, 64).to(BF16)
    for codes in ("int8", "int4", "fp8"):
        for group in (None, 32):
            found, scale = quantized(weight, codes, group)
            for i in range(3):
                alone = quantized(weight[i], codes, group)
                assert torch.equal(found[i].view(torch.uint8), alone[0].view(torch.uint8))
                assert torch.equal(scale[i], alone[1])
            assert torch.equal(dequantized(found, scale, BF16, lines=2)[1], dequantized(found[1], scale[1], BF16))


def changed(form="plain", **attributes):
    module = CLASSES[form]()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


class Reordered(Plain):
    """With a forward of its own, which the interface did not wrap."""

    def forward(self, hidden_states, top_k_index, top_k_weights):
        return super().forward(hidden_states, top_k_index.flip(1), top_k_weights)


@pytest.mark.parametrize(
    "module",
    [
        changed(has_post_expert_norm=True),
        changed(_is_expert_parallel=True),
        changed(is_transposed=True),
        changed(has_gate=False),
        changed(has_bias=True),
        changed("biased", has_bias=False),
        changed("no gate", has_gate=True),
        changed(num_experts=EXPERTS + 1),
        changed(down_proj=parameter(EXPERTS, WIDTH, INNER + 1)),
        changed(down_proj=parameter(WIDTH, INNER)),
        changed(norm=nn.LayerNorm(WIDTH)),
        changed(act_fn=nn.BatchNorm1d(8, affine=False)),
        changed("no gate", act_fn=None),
        Reordered(),
        Bare(),
        nn.Linear(8, 8),
    ],
    ids=lambda module: type(module).__name__,
)
def test_what_is_not_recognized_stays(module, device):
    model = nn.ModuleDict({"experts": module, "out": nn.Linear(64, 64)}).to(device, BF16)
    assert projections_of(module) == {}
    tritonmm.quantize_(model, "int8", skip=("experts",) if type(module) is nn.Linear else ())
    assert model["experts"] is module
    assert model["out"] is not module


def test_what_is_skipped_and_shared(device):
    model = Model(layers=2).to(device, BF16)
    tritonmm.quantize_(model, "int8", skip=("layers.0", "head"))
    assert [type(layer.experts) for layer in model.layers] == [Plain, QuantizedExperts]
    tied = nn.ModuleDict({"a": Plain(), "b": Plain(), "c": Plain(), "d": Plain()}).to(device, BF16)
    tied["b"].down_proj = tied["a"].down_proj
    tied["c"].other = nn.Module()
    outside = nn.Module()
    outside.weight = tied["d"].gate_up_proj
    tied["outside"] = outside
    tied["same"] = tied["a"]
    tritonmm.quantize_(tied, "int4", group=32)
    assert tied["a"].down_proj is tied["b"].down_proj
    assert tied["a"].gate_up_proj is not tied["b"].gate_up_proj
    assert tied["same"] is tied["a"]
    assert type(tied["c"]) is QuantizedExperts
    assert type(tied["d"]) is Plain
    with pytest.raises(ValueError, match="there is nothing to quantize"):
        tritonmm.quantize_(tied, "int4", group=32, skip=())


def broken(model):
    with torch.no_grad():
        model.layers[1].experts.down_proj[3, 4, 5] = float("inf")
    return model


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: tritonmm.quantize_(m, "int8", group=64), "'layers.0.experts.gate_up_proj' has 32 input features"),
        (lambda m: tritonmm.quantize_(m, "int4"), "'layers.0.experts.gate_up_proj' has 32 input features, which 128"),
        (lambda m: tritonmm.quantize_(m.float(), "int8"), "experts.gate_up_proj' has weights of torch.float32"),
        (lambda m: tritonmm.quantize_(broken(m), "int8"), "experts.down_proj' has weights that are not finite"),
    ],
)  # fmt: skip
def test_errors_leave_the_model_as_it_was(call, said, device):
    model = Model(layers=2).to(device, BF16)
    with pytest.raises(ValueError, match=re.escape(said)):
        call(model)
    assert [type(layer.experts) for layer in model.layers] == [Plain, Plain]
    assert type(model.head) is nn.Linear


def test_experts_are_described(device):
    _, found = experts_of("plain", "int4", device)
    assert repr(found).splitlines()[1].strip() == (
        "num_experts=4, hidden_dim=32, intermediate_dim=64, bias=False, weight=int4, group=32"
    )
    _, found = experts_of("biased", "fp8-dynamic", device)
    assert "bias=True, weight=float8_e4m3fn, activations=fp8" in repr(found)
