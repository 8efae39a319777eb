"""Quantized layers whose state, inputs or surroundings are not theirs: what is refused, and what stays as it is."""

import re

import pytest
import torch
import torch.nn.utils.prune
from torch import nn

import tritonmm
from tritonmm.nn.experts import Projection, QuantizedExperts
from tritonmm.nn.linear import WeightOnlyLinear
from tritonmm.nn.quantize import KINDS
from tritonmm.nn.weights import quantized

BF16 = torch.bfloat16


def layer(kind, device, k=64, n=32):
    return tritonmm.quantize_(nn.Sequential(nn.Linear(k, n)).to(device, BF16), kind, group="rows")


@pytest.mark.parametrize(("own", "given"), [("int8", "int4"), ("int4", "int8"), ("int8", "fp8"), ("fp8", "int8")])
def test_codes_of_another_kind_are_not_loaded(own, given, device):
    """torch would cast numbers of the same shape, whatever they mean."""
    found, other = layer(own, device), layer(given, device)
    before = found[0].weight.clone()
    with pytest.raises(RuntimeError, match=r"in the state_dict and|size mismatch"):
        found.load_state_dict(other.state_dict())
    assert torch.equal(found[0].weight.view(torch.uint8), before.view(torch.uint8))


def test_codes_of_another_dtype_are_not_cast(device):
    weight, x = torch.randn(32, 64, device=device), torch.randn(3, 64, device=device, dtype=BF16)
    found, other = (WeightOnlyLinear(*quantized(weight, codes)) for codes in ("int8", "fp8"))
    with pytest.raises(RuntimeError, match=r"weight is torch\.float8_e4m3fn in the state_dict and torch\.int8 in the"):
        found.load_state_dict(other.state_dict())
    found.load_state_dict(other.state_dict(), assign=True)
    assert torch.equal(found(x), other(x))


def test_scales_with_zero_points_are_not_loaded_as_numbers(device):
    codes, scale = quantized(torch.randn(16, 64, device=device), "int4", 32)
    zero = torch.full(scale.shape, 3, device=device)
    given = WeightOnlyLinear(codes, tritonmm.nn.int4.with_zero_points(scale.bfloat16(), zero))
    with pytest.raises(RuntimeError, match=r"scale is torch\.int32 in the state_dict and torch\.float32 in the module"):
        WeightOnlyLinear(codes, scale).load_state_dict(given.state_dict())


def test_a_model_in_bf16_is_not_loaded_as_codes(device):
    weight = nn.Linear(64, 32, bias=False).to(device, BF16).state_dict()
    codes, scale = quantized(torch.randn(32, 64, device=device), "int8")
    with pytest.raises(RuntimeError, match=r"weight is torch\.bfloat16 in the state_dict and torch\.int8"):
        WeightOnlyLinear(codes, scale).load_state_dict(weight, strict=False)


def test_packed_files_and_plain_modules_do_not_fit(device):
    codes, scale = quantized(torch.randn(32, 64, device=device), "int8")
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        WeightOnlyLinear(codes, scale).load_state_dict(layer("int8", device)[0].state_dict(), strict=False)


@pytest.mark.parametrize("k", [33, 47, 17])
def test_plain_int8_of_other_features_is_not_packed(k, device):
    codes, scale = quantized(torch.randn(32, k, device=device), "int8")
    state = {"0.weight": codes, "0.scale": scale, "0.bias": torch.zeros(32, device=device)}
    with pytest.raises(RuntimeError, match=rf"0\.weight has rows of {k} elements; the module's have 40") as raised:
        layer("int8", device, k=40).load_state_dict(state)
    assert "Missing" not in str(raised.value)


@pytest.mark.parametrize(("kind", "k", "given"), [("int8", 60, 64), ("int4", 100, 128)])
def test_packed_weights_of_more_features_are_refused(kind, k, given, device):
    """Packed rows of both have the same length."""
    with pytest.raises(RuntimeError, match=rf"0\.weight has weights beyond the first {k} of a row"):
        layer(kind, device, k=k).load_state_dict(layer(kind, device, k=given).state_dict())
    found, other = layer(kind, device, k=k), layer(kind, device, k=k)
    found.load_state_dict(other.state_dict())
    assert torch.equal(found[0].weight, other[0].weight)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("needs_derivative", [False, True])
def test_rows_of_other_features_are_refused(kind, needs_derivative, device):
    """Packed rows have room for more."""
    found = layer(kind, device, k=40)
    for k in (33, 48):
        x = torch.ones(3, k, device=device, dtype=BF16, requires_grad=needs_derivative)
        with pytest.raises(RuntimeError, match=rf"input is \[3, {k}\]; its last dimension must be 40"):
            found(x)


def test_hidden_states_of_another_width_are_refused(device):
    codes = (
        torch.ones(2, 16, 24, dtype=torch.int8, device=device),
        torch.ones(2, 24, 16, dtype=torch.int8, device=device),
    )
    up, down = (Projection(x, torch.ones(x.shape[:2], device=device)) for x in codes)
    experts = QuantizedExperts({"up_proj": up, "down_proj": down}, nn.ReLU())
    index, weights = torch.zeros(3, 1, dtype=torch.int64, device=device), torch.ones(3, 1, device=device)
    with pytest.raises(RuntimeError, match=r"input is \[3, 32\]; its last dimension must be 24"):
        experts(torch.ones(3, 32, device=device, dtype=BF16), index, weights)


@pytest.mark.parametrize("kind", KINDS)
def test_tangents_are_refused(kind, device):
    found, x = layer(kind, device), torch.randn(3, 64, device=device, dtype=BF16)
    with pytest.raises(RuntimeError, match="an operand has a tangent"):
        torch.func.jvp(found, (x,), (x,))


@pytest.mark.parametrize("kind", ["int8", "fp8-dynamic"])
def test_tangents_are_refused_under_torch_compile(kind, device):
    found, x = layer(kind, device), torch.randn(3, 64, device=device, dtype=BF16)
    tangent = torch.compile(lambda x: torch.func.jvp(found, (x,), (x,))[1], backend="eager")
    with pytest.raises(RuntimeError, match="an operand has a tangent"):
        tangent(x)


def test_tangents_of_scales_are_refused(device):
    a, b = torch.ones(16, 32, device=device).char(), torch.ones(32, 16, device=device).char()
    one = torch.ones(1, device=device)
    with pytest.raises(RuntimeError, match="an operand has a tangent"):
        torch.func.jvp(lambda scale: tritonmm.scaled_mm(a, b, scale, one), (one,), (one,))


@pytest.mark.parametrize("codes", ["int8", "int8p"])
def test_tangents_of_grouped_products_are_refused(codes, device):
    weight, scale = quantized(torch.randn(2, 32, 64, device=device), codes)
    offs = torch.tensor([1, 3], device=device, dtype=torch.int32)
    x = torch.randn(3, 64, device=device, dtype=BF16)
    with pytest.raises(RuntimeError, match="an operand has a tangent"):
        torch.func.jvp(lambda x: tritonmm.weight_only_grouped_mm(x, weight, scale, offs=offs), (x,), (x,))


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_without_memory_have_results(kind):
    found = layer(kind, "meta")
    assert found(torch.empty(3, 64, device="meta", dtype=BF16)).shape == (3, 32)


def test_layers_of_torchs_encoder_stay(device):
    """Its fast path multiplies by their weights itself."""
    model = nn.Sequential(nn.TransformerEncoderLayer(64, 2, 128, batch_first=True), nn.Linear(64, 64))
    model = tritonmm.quantize_(model.to(device, BF16).eval(), "int8")
    assert type(model[0].linear1) is type(model[0].linear2) is nn.Linear
    assert isinstance(model[1], WeightOnlyLinear)
    with torch.no_grad():
        assert model(torch.randn(2, 3, 64, device=device, dtype=BF16)).isfinite().all()


def test_weights_that_a_hook_computes_stay(device):
    """Before its first forward such a layer has a weight that is not its own, as after `load_state_dict`."""
    model = nn.ModuleDict({"hooked": nn.Linear(64, 64), "plain": nn.Linear(64, 64)}).to(device, BF16)
    with pytest.warns(FutureWarning):
        nn.utils.weight_norm(model["hooked"])
    tritonmm.quantize_(model, "int8")
    assert type(model["hooked"]) is nn.Linear
    assert isinstance(model["plain"], WeightOnlyLinear)


def test_layers_whose_bias_a_hook_computes_stay(device):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).to(device, BF16)
    nn.utils.prune.l1_unstructured(model[0], "bias", 0.5)
    tritonmm.quantize_(model, "int8")
    assert type(model[0]) is nn.Linear
    assert isinstance(model[1], WeightOnlyLinear)
    model(torch.randn(2, 64, device=device, dtype=BF16))


def test_layers_that_have_more_than_weights_stay(device):
    """An adapter in a layer, which a hook adds, and a buffer."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)).to(device, BF16)
    model[0].adapter = nn.Linear(64, 64).to(device, BF16)
    model[0].register_forward_hook(lambda module, args, out: out + module.adapter(args[0]))
    model[1].register_buffer("mask", torch.ones(64, device=device, dtype=BF16))
    names = set(model.state_dict())
    tritonmm.quantize_(model, "int8", skip=("adapter",))
    assert [type(each) for each in model] == [nn.Linear, nn.Linear, WeightOnlyLinear]
    assert names < set(model.state_dict())
    model(torch.randn(2, 64, device=device, dtype=BF16))


def test_a_weight_that_was_replaced_says_how_many_features_there_are(device):
    model = nn.Sequential(nn.Linear(64, 48, bias=False)).to(device, BF16)
    model[0].weight = nn.Parameter(model[0].weight[:, :60].clone())
    x = torch.randn(3, 60, device=device, dtype=BF16)
    assert tritonmm.quantize_(model, "int8")(x).shape == (3, 48)
    with pytest.raises(RuntimeError, match="its last dimension must be 60"):
        model(torch.nn.functional.pad(x, (0, 4)))


def test_codes_that_are_a_part_of_others_are_saved_as_they_lie(device):
    codes = torch.zeros(48, 256, device=device).to(torch.float8_e4m3fn)[:, :64]
    saved = WeightOnlyLinear(codes, torch.ones(48, device=device)).state_dict()["weight"]
    assert saved.is_contiguous()
    assert saved.untyped_storage().nbytes() == 48 * 64


def test_hooks_stay_with_their_layers_and_can_be_removed(device):
    """Those of forward and backward, with what was asked for each."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).to(device, BF16)
    calls = []
    handles = [
        model[0].register_forward_pre_hook(lambda module, args, kwargs: calls.append("before"), with_kwargs=True),
        model[0].register_forward_hook(lambda module, args, kwargs, out: -out, with_kwargs=True),
        model[1].register_full_backward_pre_hook(lambda module, grad: calls.append("backward")),
        model[1].register_full_backward_hook(lambda module, grad_in, grad_out: calls.append(grad_in[0].shape)),
    ]
    tritonmm.quantize_(model, "int8")
    x = torch.randn(2, 64, device=device, dtype=BF16, requires_grad=True)
    hooked = model[0](x).detach()
    model[1](x).sum().backward()
    assert calls == ["before", "backward", (2, 64)]
    for handle in handles:
        handle.remove()
    assert torch.equal(model[0](x), -hooked)
    model[1](x).sum().backward()
    assert len(calls) == 3


def test_hooks_that_are_always_called_are_called_when_a_layer_raises(device):
    layer = nn.Linear(64, 64).to(device, BF16)
    model, calls = nn.Sequential(layer), []
    layer.register_forward_hook(lambda module, args, out: calls.append(out), always_call=True)
    tritonmm.quantize_(model, "int8")
    with pytest.raises(RuntimeError, match="last dimension"):
        model(torch.randn(2, 63, device=device, dtype=BF16))
    assert calls == [None]


@pytest.mark.parametrize("where", ["here", "offloaded"])
@pytest.mark.parametrize("by", ["accelerate", "somebody"])
def test_a_forward_that_was_replaced_is_not_lost(by, where, device):
    """accelerate's may be: on a device that is the layer's it moves nothing that the block around it has not."""
    model = nn.ModuleDict({"a": nn.Linear(64, 64), "b": nn.Linear(64, 64)}).to(device, BF16)
    model["b"].forward = lambda x: x
    if by == "accelerate":
        model["b"]._hf_hook = object()
    if where == "offloaded":
        model["b"].to("meta")
    if (by, where) == ("accelerate", "here"):
        x = torch.randn(2, 64, device=device, dtype=BF16)
        assert not torch.equal(tritonmm.quantize_(model, "int8")["b"](x), x)
    else:
        with pytest.raises(ValueError, match=r"the forward of b was replaced and (loads its|is not its)"):
            tritonmm.quantize_(model, "int8")
        assert {type(layer) for layer in model.values()} == {nn.Linear}
        tritonmm.quantize_(model, "int8", skip=("b",))


def test_names_may_come_from_a_generator(device):
    model = nn.ModuleDict({name: nn.Linear(64, 64) for name in "abc"}).to(device, BF16)
    tritonmm.quantize_(model, "int8", skip=(name for name in "bc"))
    assert [type(x) is nn.Linear for x in model.values()] == [False, True, True]


@pytest.mark.parametrize(
    ("skip", "said"), [(None, "skip is None"), ([nn.Linear], "skip has <class"), ("lm_head", "as in ('lm_head',)")]
)
def test_what_is_no_name_is_refused(skip, said, device):
    with pytest.raises(TypeError, match=re.escape(said)):
        tritonmm.quantize_(nn.Sequential(nn.Linear(64, 64)).to(device, BF16), "int8", skip=skip)


def test_layers_without_features_leave_the_model_as_it_was(device):
    with pytest.warns(UserWarning, match="zero-element"):
        model = nn.ModuleDict({"a": nn.Linear(32, 16), "z": nn.Linear(0, 16)}).to(device, BF16)
    with pytest.raises(ValueError, match="'z' has no input features"):
        tritonmm.quantize_(model, "int8")
    assert type(model["a"]) is nn.Linear
