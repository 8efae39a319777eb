"""Codes and scales of sibling layers: where they lie, what is kept, and what stays alone."""

import copy
import io
import itertools
import weakref

import pytest
import torch
from torch import nn

import tritonmm
from tritonmm.nn import from_gptq, int4, place_siblings_, quantize
from tritonmm.nn.linear import QuantizedLinear
from tritonmm.nn.weights import quantized

BF16 = torch.bfloat16
KINDS = [("int8", None), ("int8", 32), ("int4", 32), ("int4", "rows"), ("fp8", None), ("fp8-dynamic", None)]
QKV = "q_proj", "k_proj", "v_proj"
BUFFERS = "weight", "scale", "bias"


class Attention(nn.Module):
    def __init__(self, width=128, bias=(True, True, True), sizes=(128, 32, 32)):
        super().__init__()
        for name, size, has_bias in zip("qkv", sizes, bias, strict=True):
            setattr(self, f"{name}_proj", nn.Linear(width, size, bias=has_bias))
        self.o_proj = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.o_proj(q * torch.cat((k, v, k, v), -1))


class Mlp(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, 256, bias=False), nn.Linear(width, 256, bias=False)
        self.down_proj = nn.Linear(256, width, bias=False)

    def forward(self, x):
        return self.down_proj(self.gate_proj(x).relu() * self.up_proj(x))


def model(device, **options):
    return nn.Sequential(Attention(**options), Mlp(), Attention(**options)).to(device, BF16)


def of(module, *names):
    return [getattr(module, name) for name in names]


def qkv(module):
    return of(module, *QKV)


def are_neighbours(layers, name):
    """Whether each buffer begins where the rows of the one before end, in one memory and with the same strides."""
    parts = [getattr(layer, name) for layer in layers]
    return not any(x is None for x in parts) and all(
        y.data_ptr() - x.data_ptr() == x.shape[0] * x.stride(0) * x.itemsize
        and x.stride() == y.stride()
        and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
        for x, y in itertools.pairwise(parts)
    )


def placed(layers):
    """The names of the buffers that are neighbours."""
    return [name for name in BUFFERS if are_neighbours(layers, name)]


def are_same(x, y):
    """Whether codes or scales have the same bits."""
    return x.dtype == y.dtype and torch.equal(*(each.contiguous().view(torch.uint8) for each in (x, y)))


@pytest.mark.parametrize(("kind", "group"), KINDS, ids=str)
def test_neighbours_are_the_concatenated_weights_codes(kind, group, device):
    made = model(device)
    before = copy.deepcopy(made)
    tritonmm.quantize_(made, kind, group=group)
    for i, names in enumerate((QKV, ("gate_proj", "up_proj"), QKV)):
        layers, old = of(made[i], *names), of(before[i], *names)
        assert placed(layers) == list(BUFFERS if names is QKV else BUFFERS[:2])
        whole = torch.cat([layer.weight.detach() for layer in old])
        codes, scale = quantized(whole, quantize.KINDS[kind][1], group if isinstance(group, int) else None)
        first, n = layers[0], whole.shape[0]
        for found, expected in ((first.weight, codes), (first.scale, scale)):
            there = found.as_strided((n, *found.shape[1:]), found.stride())
            assert are_same(there, expected)
            assert there.stride() == expected.stride()  # fastest for kernels
        if first.bias is not None:
            assert torch.equal(first.bias.as_strided((n,), (1,)), torch.cat([layer.bias for layer in old]))


def test_packed_rows_of_the_joined_tensor(device):
    made = tritonmm.quantize_(model(device), "int4", group=32)
    layers = qkv(made[0])
    codes = torch.cat([int4.unpack(layer.weight) for layer in layers])
    first = layers[0].weight
    assert torch.equal(first.as_strided((codes.shape[0], first.shape[1]), first.stride()), int4.pack(codes))


@pytest.mark.parametrize(("kind", "group"), KINDS, ids=str)
def test_results_are_those_of_layers_alone(kind, group, device, monkeypatch):
    made = model(device)
    alone = copy.deepcopy(made)
    tritonmm.quantize_(made, kind, group=group)
    monkeypatch.setattr(quantize, "place_siblings_", lambda model: model)
    tritonmm.quantize_(alone, kind, group=group)
    assert not placed(qkv(alone[0]))
    x = torch.randn(2, 3, 128, device=device, dtype=BF16)
    assert torch.equal(made(x), alone(x))
    for (name, found), (other, expected) in zip(made.state_dict().items(), alone.state_dict().items(), strict=True):
        assert name == other
        assert found.stride() == expected.stride()
        assert are_same(found, expected)


@pytest.mark.parametrize(("kind", "group"), KINDS, ids=str)
def test_saving_and_loading(kind, group, device):
    made = tritonmm.quantize_(model(device), kind, group=group)
    x = torch.randn(3, 128, device=device, dtype=BF16)
    expected = made(x)
    file = io.BytesIO()
    torch.save(made.state_dict(), file)

    def state():
        file.seek(0)
        return torch.load(file, weights_only=True, map_location=device)

    other = tritonmm.quantize_(model(device), kind, group=group)
    at = [x.data_ptr() for x in other.buffers()]
    other.load_state_dict(state())
    assert [x.data_ptr() for x in other.buffers()] == at
    assert placed(qkv(other[0])) == list(BUFFERS)
    with torch.device("meta"):
        empty = model("meta")
    tritonmm.quantize_(empty, kind, group=group)
    empty.load_state_dict(state(), assign=True)
    assert place_siblings_(empty) is empty
    assert placed(qkv(empty[0])) == list(BUFFERS)
    for each in (other, empty, copy.deepcopy(made)):
        assert torch.equal(each(x), expected)
    assert placed(qkv(copy.deepcopy(made)[2])) == list(BUFFERS)


@pytest.mark.parametrize(("kind", "group"), KINDS, ids=str)
def test_tensors_of_the_state_are_apart_for_other_files(kind, group, device):
    """safetensors and transformers ask for the end of each tensor that shares a storage, and flatten it for that."""
    state = tritonmm.quantize_(model(device), kind, group=group).state_dict()
    by_storage = {}
    for x in state.values():
        by_storage.setdefault(x.untyped_storage().data_ptr(), []).append(x)
    assert max(map(len, by_storage.values())) == 3
    for shared in by_storage.values():
        if len(shared) > 1:
            ends = sorted((x.data_ptr(), x.view(-1)[-1:].data_ptr() + x.itemsize) for x in shared)
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))


def test_a_state_that_keeps_variables_has_the_buffers(device):
    made = tritonmm.quantize_(model(device), "int4", group=32)
    buffers = dict(made.named_buffers())
    assert all(x is buffers[name] for name, x in made.state_dict(keep_vars=True).items())


@pytest.mark.parametrize(("kind", "group"), KINDS, ids=str)
def test_safetensors(kind, group, device, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    made = tritonmm.quantize_(model(device), kind, group=group)
    file = tmp_path / "model.safetensors"
    safetensors.save_file({name: x.contiguous() for name, x in made.state_dict().items()}, file)
    other = tritonmm.quantize_(model(device), kind, group=group)
    other.load_state_dict(safetensors.load_file(file, device=str(device)))
    x = torch.randn(3, 128, device=device, dtype=BF16)
    assert torch.equal(other(x), made(x))
    assert placed(qkv(other[0])) == list(BUFFERS)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_model_of_transformers(kind, device, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=96, max_position_embeddings=64,
    )  # fmt: skip

    def llama():
        found = transformers.AutoModelForCausalLM.from_config(config, dtype=BF16)
        return tritonmm.quantize_(found.to(device).eval(), kind, group=32)

    made = llama()
    for layer in made.model.layers:
        assert placed(qkv(layer.self_attn)) == placed(of(layer.mlp, "gate_proj", "up_proj")) == ["weight", "scale"]
    made.save_pretrained(tmp_path)
    files = pytest.importorskip("safetensors.torch")
    state = files.load_file(tmp_path / "model.safetensors", device=str(device))
    other = llama()
    other.load_state_dict(state)
    tokens = torch.randint(96, (2, 5), device=device)
    assert torch.equal(other(tokens).logits, made(tokens).logits)
    assert placed(qkv(other.model.layers[1].self_attn)) == ["weight", "scale"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [["weight", "scale", "bias"]] * 2),
        ({"bias": (True, False, True)}, [[], []]),
        ({"bias": (True, True, False)}, [["weight", "scale", "bias"], []]),
        ({"sizes": (128, 40, 24)}, [[], []]),
        ({"sizes": (128, 64, 8)}, [["weight", "scale", "bias"], []]),
    ],
)
def test_what_stays_alone(options, expected, device):
    """Of q and k, and of k and v: layers of other kinds, and those whose neighbour would be at a crooked address."""
    made = Attention(**options).to(device, BF16)
    tritonmm.quantize_(made, "int8")
    assert [placed(of(made, "q_proj", "k_proj")), placed(of(made, "k_proj", "v_proj"))] == expected


def test_what_is_skipped_or_shared_stays(device):
    made = model(device)
    tritonmm.quantize_(made, "int8", skip=("q_proj",))
    assert type(made[0].q_proj) is nn.Linear
    assert placed(of(made[0], "k_proj", "v_proj")) == list(BUFFERS)
    tied = model(device)
    tied[2].k_proj.weight = tied[0].k_proj.weight
    tritonmm.quantize_(tied, "int8")
    assert tied[2].k_proj.weight is tied[0].k_proj.weight
    assert placed(of(tied[0], "q_proj", "v_proj")) == list(BUFFERS)
    with torch.device("meta"):
        empty = model("meta")
    tritonmm.quantize_(empty, "int8")
    assert empty[0].q_proj.weight.untyped_storage().nbytes() == empty[0].q_proj.weight.nbytes


def test_a_layer_of_two_modules_stays(device):
    made = model(device).append(Mlp().to(device, BF16))
    made[3].up_proj = made[1].up_proj
    tritonmm.quantize_(made, "int8")
    assert made[3].up_proj is made[1].up_proj
    assert made[1].up_proj.weight.untyped_storage().nbytes() == made[1].up_proj.weight.nbytes


def test_what_is_in_place_is_not_moved(device):
    made = tritonmm.quantize_(model(device), "int4", group=32)
    before = list(made.buffers())
    place_siblings_(made)
    assert all(x is y for x, y in zip(before, made.buffers(), strict=True))
    assert not any(x._is_view() for layer in qkv(made[0]) for x in layer.buffers())
    made[0].k_proj.scale = made[0].k_proj.scale.clone()
    place_siblings_(made)
    assert placed(qkv(made[0])) == list(BUFFERS)
    changed = sum(x is not y for x, y in zip(before, made.buffers(), strict=True))
    assert changed == 3  # the scales of q, k and v


def test_layers_of_checkpoints(device):
    made = nn.Module()
    for name, n in (("w1", 64), ("w2", 32), ("w3", 96)):
        words = torch.randint(-(2**31), 2**31 - 1, (16, n), dtype=torch.int32)
        zeros = torch.randint(-(2**31), 2**31 - 1, (1, n // 8), dtype=torch.int32)
        made.add_module(name, from_gptq(words, zeros, torch.rand(1, n).half()))
    made.to(device)
    x = torch.randn(3, 128, device=device, dtype=BF16)
    expected = made.w1(x), made.w3(x)
    place_siblings_(made)
    assert placed(of(made, "w1", "w3")) == ["weight", "scale"]
    assert made.w1.scale.dtype == torch.int32
    assert torch.equal(made.w1(x), expected[0])
    assert torch.equal(made.w3(x), expected[1])


def test_weights_are_released_layer_by_layer(device, monkeypatch):
    made = model(device)
    alive = [weakref.ref(m.weight) for m in made.modules() if isinstance(m, nn.Linear)]
    counts = []
    once = quantize.quantized

    def counted(*arguments):
        counts.append(sum(each() is not None for each in alive))
        return once(*arguments)

    monkeypatch.setattr(quantize, "quantized", counted)
    tritonmm.quantize_(made, "int8")
    assert len(counts) == len(alive)
    assert counts == list(range(len(alive), 0, -1))
    assert all(isinstance(m, QuantizedLinear) for m in (*qkv(made[0]), made[1].down_proj))


def test_what_is_no_module_is_refused():
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, not NoneType"):
        place_siblings_(None)
