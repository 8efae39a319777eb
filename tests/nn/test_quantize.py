"""Models with weights of 8 and 4 bits: results, state, what is replaced and what is not, and what is refused."""

import copy
import io
import re
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import tritonmm
from tritonmm.nn import int8
from tritonmm.nn.int4 import pack, unpack
from tritonmm.nn.linear import DynamicFp8Linear, WeightOnlyLinear
from tritonmm.nn.quantize import KINDS
from tritonmm.nn.weights import dequantized, quantized

BF16 = torch.bfloat16


class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, words=40, width=128):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.lm_head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


@pytest.fixture
def model(device):
    return Model().to(device, BF16).eval()


@pytest.fixture
def tokens(device):
    return torch.randint(40, (2, 5), device=device)


def linears(model):
    return {name: type(m).__name__ for name, m in model.named_modules() if "Linear" in type(m).__name__}


@pytest.mark.parametrize(("kind", "error"), [("int8", 0.02), ("int4", 0.15), ("fp8", 0.06), ("fp8-dynamic", 0.09)])
def test_a_model_computes_about_the_same(kind, error, model, tokens):
    expected = model(tokens)
    assert tritonmm.quantize_(model, kind) is model
    assert linears(model) == dict.fromkeys(
        [f"layers.{i}.{name}" for i in (0, 1) for name in ("up", "down")], KINDS[kind][0].__name__
    ) | {"lm_head": "Linear"}
    found = model(tokens)
    assert found.dtype == BF16
    assert 0 < (found - expected).float().norm() < error * expected.float().norm()


@pytest.mark.parametrize("group", [None, 32])
@pytest.mark.parametrize("codes", ["int8", "int4", "fp8"])
def test_weights_are_rounded_to_the_nearest_code(codes, group):
    weight = torch.randn(33, 128).to(BF16)
    weight[3] = 0
    found, scale = quantized(weight, codes, group)
    of_each = scale.view(33, -1).repeat_interleave(group or 128, 1).double()
    if codes == "int4":
        found = unpack(found).to(torch.int8) - 8
    off = (found.double() * of_each - weight.double()).abs()
    if codes != "fp8":
        assert (off <= 0.5 * of_each * (1 + 1e-4)).all()
        assert found.abs().amax() == {"int8": 127, "int4": 7}[codes]
    else:  # 3 bits behind the first, or steps of 2**-9
        assert (off <= torch.maximum(weight.double().abs() * 2.0**-4, of_each * 2.0**-10) * (1 + 1e-4)).all()
    assert not found[3].float().any()
    assert scale.t().is_contiguous()  # kernels read the scales of many rows at once


def test_large_weights_are_quantized_part_by_part(monkeypatch):
    weight = torch.randn(70, 64).to(BF16)
    whole = [quantized(weight, codes, 32) for codes in ("int8", "int4")]
    monkeypatch.setattr("tritonmm.nn.weights.AT_ONCE", 64 * 9)
    for codes, before in zip(("int8", "int4"), whole, strict=True):
        for found, expected in zip(quantized(weight, codes, 32), before, strict=True):
            assert torch.equal(found, expected)


def test_groups_and_biases(device):
    layer = nn.Linear(128, 20).to(device, torch.float16)
    x = torch.randn(3, 128, device=device, dtype=torch.float16)
    model = tritonmm.quantize_(nn.Sequential(layer), "int8", group=32)
    assert model[0].scale.shape == (20, 4)
    found = model[0]
    exact = x.double() @ (int8.unpack(found.weight).double() * found.scale.double().repeat_interleave(32, 1)).t()
    assert torch.allclose(found(x).double(), exact + layer.bias.double(), rtol=2e-3, atol=2e-3)
    assert "group=32" in repr(model)


@pytest.mark.parametrize("kind", KINDS)
def test_any_shape_of_activations(kind, device):
    model = tritonmm.quantize_(nn.Sequential(nn.Linear(128, 24)).to(device, BF16), kind)
    for shape in ((128,), (1, 128), (2, 3, 128), (0, 128), (2, 0, 128)):
        assert model(torch.ones(shape, device=device, dtype=BF16)).shape == (*shape[:-1], 24)


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_is_loaded_into_a_model_without_memory(kind, model, tokens, device):
    tritonmm.quantize_(model, kind)
    expected = model(tokens)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    with torch.device("meta"):
        other = Model().to(BF16)
    tritonmm.quantize_(other, kind)
    other.load_state_dict(torch.load(file, weights_only=True, map_location=device), assign=True)
    assert torch.equal(other(tokens), expected)
    tritonmm.quantize_(again := Model().to(device, BF16), kind).load_state_dict(model.state_dict())
    assert torch.equal(again(tokens), expected)
    assert torch.equal(copy.deepcopy(model)(tokens), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_casts_leave_codes_and_scales(kind, device):
    model = tritonmm.quantize_(nn.Sequential(nn.Linear(128, 24)).to(device, BF16), kind)
    before = model[0].weight.clone(), model[0].scale.clone()
    for cast in (model.half, model.float, model.double, lambda: model.to(torch.float16)):
        cast()
        for old, new in zip(before, (model[0].weight, model[0].scale), strict=True):
            assert old.dtype == new.dtype
            assert torch.equal(*(x.flatten().view(torch.uint8) for x in (old, new)))
    assert model[0].bias.dtype == torch.float16
    assert model(torch.ones(128, device=device, dtype=torch.float16)).dtype == torch.float16
    assert model.to("meta")[0].weight.dtype == before[0].dtype


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's compiler does
@pytest.mark.parametrize("kind", KINDS)
def test_models_stay_whole_under_torch_compile(kind, model, tokens):
    tritonmm.quantize_(model, kind)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(tokens), model(tokens))
    assert torch.equal(compiled(tokens), model(tokens))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.float64])
def test_autocast_casts_only_what_torchs_layers_cast(dtype, device):
    layer = tritonmm.quantize_(nn.Sequential(nn.Linear(64, 8, dtype=torch.bfloat16, device=device)), "int8")
    with torch.autocast(device.type, dtype=torch.bfloat16), pytest.raises((RuntimeError, TypeError)):
        layer(torch.ones(1, 64, dtype=dtype, device=device))


def test_autocast_casts_activations(device):
    model = tritonmm.quantize_(nn.Sequential(nn.Linear(128, 24)).to(device, BF16), "int8")
    x = torch.randn(3, 128, device=device)
    with torch.autocast(device.type, dtype=BF16):
        assert torch.equal(model(x), model(x.to(BF16)))
    with pytest.raises(RuntimeError, match="input must be bf16 or fp16"):
        model(x)


def test_what_is_skipped(model):
    tritonmm.quantize_(model, "int8", skip=("layers.0", "up"))
    assert {name for name, kind in linears(model).items() if kind == "Linear"} == {
        "layers.0.up", "layers.0.down", "layers.1.up"
    }  # fmt: skip


def test_tied_weights(device):
    tied = Model().to(device, BF16)
    tied.lm_head.weight = tied.embed.weight
    tritonmm.quantize_(tied, "int8", skip=())
    assert type(tied.lm_head) is nn.Linear
    assert tied.lm_head.weight is tied.embed.weight
    shared = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)).to(device, BF16)
    shared[1].weight = shared[0].weight
    twice = nn.ModuleDict({"a": shared, "b": shared[2]})
    bias = shared[1].bias.clone()
    tritonmm.quantize_(twice, "fp8")
    assert shared[0].weight is shared[1].weight
    assert torch.equal(shared[1].bias, bias)
    assert twice["b"] is shared[2]
    kept = nn.ModuleDict({"one": nn.Linear(8, 8), "two": nn.Linear(8, 8), "three": nn.Linear(8, 8)}).to(device, BF16)
    kept["two"].weight = kept["one"].weight
    tritonmm.quantize_(kept, "int8", skip=("one",))
    assert [type(m).__name__ for m in kept.values()] == ["Linear", "Linear", "WeightOnlyLinear"]


def test_subclasses_of_linear_stay(device):
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(64, 2), "out": nn.Linear(64, 64)}).to(device, BF16)
    tritonmm.quantize_(model, "int8")
    assert isinstance(model["out"], WeightOnlyLinear)
    x = torch.randn(3, 1, 64, device=device, dtype=BF16)
    model["attention"](x, x, x)


def test_nothing_needs_a_derivative_and_modes_are_kept(device):
    model = nn.Sequential(nn.Linear(128, 24)).to(device, BF16).train()
    tritonmm.quantize_(model, "int8")
    assert not list(model.parameters())
    assert model[0].training
    assert not model(torch.ones(128, device=device, dtype=BF16)).requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_of_activations(kind, device):
    model = tritonmm.quantize_(nn.Sequential(nn.Linear(128, 24)).to(device, BF16), kind)
    x = torch.randn(2, 5, 128, device=device, dtype=BF16, requires_grad=True)
    grad = torch.randn(2, 5, 24, device=device, dtype=BF16)
    found = model(x)
    assert torch.equal(found, model(x.detach()))
    found.backward(grad)
    exact = grad.double() @ dequantized(model[0].weight, model[0].scale, torch.float64)
    assert torch.allclose(x.grad.double(), exact, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda m: tritonmm.quantize_(nn.Parameter(torch.ones(3)), "int8"), TypeError, "must be a torch.nn.Module"),
        (lambda m: tritonmm.quantize_(m, "int3"), ValueError, "kind is 'int3'; it must be one of 'int8', 'int4'"),
        (lambda m: tritonmm.quantize_(m, "int8", group=100), ValueError, "group is 100 of int8"),
        (lambda m: tritonmm.quantize_(m, "int4", group=16), ValueError, "of int4; it can be 32, 64, 128, 'rows'"),
        (lambda m: tritonmm.quantize_(m, "fp8-dynamic", group=32), ValueError, "group is 32 of fp8-dynamic"),
        (lambda m: tritonmm.quantize_(m, "int8", group="row"), ValueError, "group is 'row' of int8"),
        (lambda m: tritonmm.quantize_(m, "int8", group=32.0), ValueError, "group is 32.0 of int8"),
        (lambda m: tritonmm.quantize_(m, ["int8"]), ValueError, "kind is ['int8']; it must be one of 'int8', 'int4'"),
        (lambda m: tritonmm.quantize_(m, "int8", skip=None), TypeError, "skip is None; it must be several names"),
        (lambda m: tritonmm.quantize_(Model(40, 64).bfloat16(), "int4"), ValueError, "group can be 32, 64, 'rows'"),
        (lambda m: tritonmm.quantize_(m, "int8", skip="lm_head"), TypeError, "skip is 'lm_head'; it must be several"),
        (lambda m: tritonmm.quantize_(m, "int8", skip=("layers", "lm_head")), ValueError, "nothing to quantize"),
        (lambda m: tritonmm.quantize_(m, "int8", skip=("layers.1.uq",)), ValueError, "did you mean 'layers.1.up'?"),
        (lambda m: tritonmm.quantize_(m, "int8", skip=("experts",)), ValueError, "no module of the model is named"),
        (lambda m: tritonmm.quantize_(nn.Linear(64, 64), "int8"), ValueError, "there is nothing to quantize"),
        (lambda m: tritonmm.quantize_(m.float(), "int8"), ValueError, "'layers.0.up' has weights of torch.float32"),
        (lambda m: tritonmm.quantize_(Model(40, 72).bfloat16(), "int8", group=16), ValueError, "has 72 input features"),
    ],
)  # fmt: skip
def test_errors_leave_the_model_as_it_was(call, error, said, model):
    with pytest.raises(error, match=re.escape(said)):
        call(model)
    assert set(linears(model).values()) == {"Linear"}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(bad, model):
    with torch.no_grad():
        model.layers[1].down.weight[3, 4] = bad
    with pytest.raises(ValueError, match=r"'layers.1.down' has weights that are not finite"):
        tritonmm.quantize_(model, "int8")
    assert set(linears(model).values()) == {"Linear"}


def test_layers_are_described():
    weight, scale = torch.ones(24, 64, dtype=torch.int8), torch.ones(24, 2)
    assert repr(WeightOnlyLinear(weight, scale)) == (
        "WeightOnlyLinear(in_features=64, out_features=24, bias=False, weight=int8, group=32)"
    )
    packed = WeightOnlyLinear(pack(torch.ones(24, 72, dtype=torch.int8)), scale[:, 0], in_features=72)
    assert repr(packed) == "WeightOnlyLinear(in_features=72, out_features=24, bias=False, weight=int4)"
    made = DynamicFp8Linear(weight.to(torch.float8_e4m3fn), scale[:, 0], torch.ones(24))
    assert repr(made) == "DynamicFp8Linear(in_features=64, out_features=24, bias=True, weight=float8_e4m3fn)"


def test_the_readmes_script(monkeypatch, capsys, device):
    """With a small model instead of one from the network."""

    class Pretrained(Model):
        @classmethod
        def from_pretrained(cls, name, dtype, device_map):
            assert device_map == "cuda"
            return cls().to(device, dtype)

        @torch.no_grad()
        def generate(self, input_ids, max_new_tokens):
            assert max_new_tokens == 40
            for _ in range(2):
                input_ids = torch.cat((input_ids, self(input_ids)[:, -1:].argmax(-1)), 1)
            return input_ids

    class Tokens(dict):
        def to(self, where):
            assert where == "cuda"
            return Tokens({name: x.to(device) for name, x in self.items()})

    class Tokenizer:
        @classmethod
        def from_pretrained(cls, name):
            return cls()

        def __call__(self, text, return_tensors):
            return Tokens(input_ids=torch.tensor([[len(word) for word in text.split()]]))

        def decode(self, tokens):
            return f"{len(tokens)} tokens"

    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```python\n([^`]*?quantize_[^`]*?)^```", readme, re.M)
    assert len([line for line in script.splitlines() if line]) <= 8
    transformers = types.ModuleType("transformers")
    transformers.AutoModelForCausalLM, transformers.AutoTokenizer = Pretrained, Tokenizer
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    exec(compile(script, "README.md", "exec"), {})
    assert capsys.readouterr().out == "6 tokens\n"
