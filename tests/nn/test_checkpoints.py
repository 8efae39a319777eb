"""Layers of GPTQ's and AWQ's checkpoints: every weight is what the format says, and what does not fit is refused."""

import re
from pathlib import Path

import pytest
import torch

from tritonmm.nn import from_awq, from_gptq
from tritonmm.nn.int4 import scales_and_zero_points, with_zero_points
from tritonmm.nn.weights import dequantized


def in_words(codes, dim, order=range(8)):
    """int32 of 8 neighbours of `codes` along `dim` each: in bits 4 i to 4 i + 3 the one at `order[i]`, as
    AutoGPTQ and AutoAWQ pack them."""
    parts = codes.long().unflatten(dim, (-1, 8))
    found = sum(parts.select(dim + 1, column) << 4 * i for i, column in enumerate(order))
    return torch.where(found < 2**31, found, found - 2**32).to(torch.int32)


def checkpoint(form, codes, zero, scales):
    """The tensors of codes (k, n) and zero points (groups, n), as they are stored."""
    if form == "awq":
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        return {"qweight": in_words(codes, 1, order), "qzeros": in_words(zero, 1, order), "scales": scales}
    stored = zero if form == "gptq-v2" else zero - 1 & 15
    return {"qweight": in_words(codes, 0), "qzeros": in_words(stored, 1), "scales": scales}


def loaded(form, **tensors):
    return from_awq(**tensors) if form == "awq" else from_gptq(**tensors, **({"v2": True} if form == "gptq-v2" else {}))


def made(k, n, groups, symmetric):
    codes = torch.randint(16, (k, n))
    zero = torch.full((groups, n), 8) if symmetric else torch.randint(16, (groups, n))
    scales = (torch.rand(groups, n) * 0.01 + 0.001).half()
    weight = (codes - zero.repeat_interleave(k // groups, 0)).double() * scales.double().repeat_interleave(
        k // groups, 0
    )
    return codes, zero, scales, weight.t()


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "zero-points"])
@pytest.mark.parametrize(("k", "groups"), [(256, 2), (256, 1), (192, 3), (96, 3), (512, 2), (160, 1)])
@pytest.mark.parametrize("form", ["gptq", "gptq-v2", "awq"])
def test_every_weight_is_what_the_checkpoint_says(form, k, groups, symmetric):
    codes, zero, scales, weight = made(k, 24, groups, symmetric)
    layer = loaded(form, **checkpoint(form, codes, zero, scales))
    assert (layer.in_features, layer.out_features, layer.bias) == (k, 24, None)
    assert layer.scale.dtype == (torch.float32 if symmetric else torch.int32)
    assert torch.equal(dequantized(layer.weight, layer.scale, torch.float32, k).double(), weight)
    assert layer.scale.t().is_contiguous()  # kernels read the scales of many rows at once


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "zero-points"])
@pytest.mark.parametrize("form", ["gptq", "awq"])
def test_layers_multiply_by_the_checkpoints_weights(form, symmetric, dtype, device):
    codes, zero, scales, weight = made(256, 48, 2, symmetric)
    scales = torch.exp2(torch.randint(-2, 3, scales.shape)).half()
    weight = (codes - zero.repeat_interleave(128, 0)).double() * scales.double().repeat_interleave(128, 0)
    bias = torch.randint(-3, 4, (48,)).to(dtype)
    tensors = checkpoint(form, codes, zero, scales) | {"bias": bias}
    layer = loaded(form, **{name: x.to(device) for name, x in tensors.items()})
    x = torch.randint(-2, 3, (5, 256)).to(dtype)
    assert torch.equal(layer(x.to(device)).cpu(), (x.double() @ weight + bias).to(dtype))
    x = x.to(device).requires_grad_()
    layer(x).sum().backward()
    assert torch.equal(x.grad[0].cpu().double(), weight.sum(1).to(dtype).double())


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "zero-points"])
def test_tensors_may_be_parameters(symmetric, device):
    codes, zero, scales, _ = made(64, 24, 1, symmetric)
    given = {name: x.to(device) for name, x in checkpoint("gptq", codes, zero, scales.float()).items()}
    of_parameters = {"scales": torch.nn.Parameter(given.pop("scales").half().float())}
    layer = from_gptq(**given, **of_parameters, bias=torch.nn.Parameter(torch.zeros(24, device=device).half()))
    assert not any(x.requires_grad for x in layer.buffers())
    assert layer(torch.randn(2, 64, device=device).half()).shape == (2, 24)


def test_zero_points_survive_casts_and_state():
    codes, zero, scales, weight = made(128, 16, 1, False)
    layer = from_awq(**checkpoint("awq", codes, zero, scales))
    assert "zero_points=True" in repr(layer)
    other = from_awq(**checkpoint("awq", 15 - codes, zero, scales))
    other.load_state_dict(layer.half().state_dict(), assign=True)
    assert torch.equal(dequantized(other.weight, other.scale, torch.float32).double(), weight)


def test_scales_and_zero_points_come_back():
    scale, zero = torch.randn(5, 7).bfloat16(), torch.randint(16, (5, 7), dtype=torch.uint8)
    found, points = scales_and_zero_points(with_zero_points(scale, zero))
    assert torch.equal(found, scale.float())
    assert torch.equal(points, zero)
    assert torch.equal(with_zero_points(scale, torch.full_like(zero, 8)).view(torch.float32), scale.float())


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"qweight": torch.zeros(32, 24)}, TypeError, "qweight is torch.float32; it must be int32 with 8"),
        ({"qweight": torch.zeros(768, dtype=torch.int32)}, ValueError, "qweight is [768]; it must have two dimensions"),
        ({"scales": torch.ones(2, 24).int()}, TypeError, "scales are torch.int32; they must be floating-point numbers"),
        ({"scales": torch.ones(2, 32)}, ValueError, "scales are [2, 32]; for 24 x 256 weights they must be"),
        ({"scales": torch.ones(3, 24)}, ValueError, "there are 3 groups of 256 in_features"),
        ({"qweight": torch.zeros(0, 24).int()}, ValueError, "there are 2 groups of 0 in_features"),
        ({"scales": torch.ones(16, 24)}, ValueError, "a group must be a multiple of 32"),
        ({"qzeros": torch.zeros(2, 24).int()}, ValueError, "for scales [2, 24] it must be (2, 24 / 8)"),
        ({"bias": torch.zeros(25)}, ValueError, "bias is [25]; it must be (24,)"),
        ({"bias": torch.zeros(24).int()}, TypeError, "bias is torch.int32; it must be floating-point numbers"),
        ({"scales": torch.full((2, 24), torch.inf)}, ValueError, "scales have inf; they must be finite"),
        ({"qweight": torch.zeros(32, 24, device="meta").int()}, ValueError, "qweight is on meta"),
        ({"g_idx": torch.arange(256) % 2}, ValueError, "g_idx does not count groups of 128 neighbours"),
        ({"g_idx": torch.arange(128) // 128}, ValueError, "quantize with desc_act=False"),
        ({"scales": torch.full((2, 24), 0.1)}, ValueError, "has more than 20 significant bits"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(changes, error, said):
    codes, zero, scales, _ = made(256, 24, 2, False)
    with pytest.raises(error, match=re.escape(said)):
        from_gptq(**checkpoint("gptq", codes, zero, scales) | changes)


@pytest.mark.parametrize(
    ("scale", "zero", "error", "said"),
    [
        (torch.ones(2, 2), torch.ones(2, 2), TypeError, "zero points torch.float32"),
        (torch.ones(2, 2), torch.ones(2, 3).int(), ValueError, "zero points [2, 3]; each scale needs one"),
        (torch.ones(2, 2), torch.full((2, 2), 16), ValueError, "zero points are 16 to 16; they must be 0 to 15"),
    ],
)  # fmt: skip
def test_what_is_no_zero_point_is_refused(scale, zero, error, said):
    with pytest.raises(error, match=re.escape(said)):
        with_zero_points(scale, zero)


@pytest.mark.parametrize("form", ["gptq", "awq"])
def test_the_page_replaces_all_layers_of_a_checkpoint(form):
    page = Path(__file__).parents[2].joinpath("docs", "quantized-models.md").read_text(encoding="utf-8")
    names = {}
    exec(re.search(r"```python\n(def replace_layers.*?)```", page, re.S)[1], names)
    model = torch.nn.Sequential(torch.nn.Linear(256, 24), torch.nn.Sequential(torch.nn.Linear(256, 24, bias=False)))
    state, weights = {"2.weight": torch.ones(3)}, {}
    for name in ("0", "1.0"):
        codes, zero, scales, weights[name] = made(256, 24, 2, False)
        found = checkpoint(form, codes, zero, scales) | ({"bias": torch.ones(24)} if name == "0" else {})
        state |= {f"{name}.{kind}": x for kind, x in found.items()}
    names["replace_layers"](model, state, from_gptq if form == "gptq" else from_awq)
    for name, weight in weights.items():
        layer = model.get_submodule(name)
        assert torch.equal(dequantized(layer.weight, layer.scale, torch.float32).double(), weight)
        assert (layer.bias is None) == (name != "0")
    if form == "gptq":
        state["0.g_idx"] = torch.arange(256) % 2
        with pytest.raises(ValueError, match="g_idx does not count"):
            names["replace_layers"](model, state, from_gptq)


def test_groups_of_neighbours_may_be_named():
    codes, zero, scales, weight = made(256, 24, 2, False)
    for g_idx in (torch.arange(256, dtype=torch.int32) // 128, torch.empty(0, dtype=torch.int32)):
        layer = from_gptq(**checkpoint("gptq", codes, zero, scales), g_idx=g_idx)
        assert torch.equal(dequantized(layer.weight, layer.scale, torch.float32).double(), weight)


@pytest.mark.parametrize("name", ["qweight", "qzeros", "scales", "bias", "g_idx"])
def test_what_is_no_tensor_with_numbers_is_refused(name):
    codes, zero, scales, _ = made(256, 24, 2, False)
    given = checkpoint("gptq", codes, zero, scales) | {"bias": torch.ones(24), "g_idx": torch.arange(256) // 128}
    with pytest.raises(ValueError, match=f"{name} is on meta and has no numbers"):
        from_gptq(**given | {name: given[name].to("meta")})
    with pytest.raises(TypeError, match=f"{name} is of type list; it must be a Tensor"):
        from_gptq(**given | {name: [1]})


def test_scales_of_float64_are_not_rounded():
    with pytest.raises(ValueError, match="more than 20 significant bits"):
        with_zero_points(torch.tensor([[1 + 2**-40]], dtype=torch.float64), torch.tensor([[3]]))
