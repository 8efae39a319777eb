"""A small Llama whose q, k and v, and gate and up, are one GEMM each after torch.compile."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import tritonmm
from tritonmm.launch import Plan
from tritonmm.nn.weights import quantized
from tritonmm.torch_ops.quantized import weight_only_linear
from tritonmm.torch_ops.siblings import operator

BF16 = torch.bfloat16
WIDTH, HEADS, HEAD, KV, LAYERS = 256, 4, 64, 2, 2
KINDS = "int8", "int4", "fp8", "fp8-dynamic"

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's compiler's own, as are the next two
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),
    pytest.mark.skipif(not torch.cuda.is_available() and not shutil.which("g++"), reason="Inductor needs a compiler"),
]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        for name, n in (("q_proj", HEADS * HEAD), ("k_proj", KV * HEAD), ("v_proj", KV * HEAD)):
            setattr(self, name, nn.Linear(WIDTH, n, bias=False))
        self.o_proj = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, 512, bias=False), nn.Linear(WIDTH, 512, bias=False)
        self.down_proj = nn.Linear(512, WIDTH, bias=False)

    def forward(self, x):
        def heads(rows):
            return rows.view(*rows.shape[:-1], -1, HEAD).transpose(1, 2)

        normed = self.before(x)
        q, k, v = heads(self.q_proj(normed)), heads(self.k_proj(normed)), heads(self.v_proj(normed))
        k, v = (y.repeat_interleave(HEADS // KV, 1) for y in (k, v))
        found = nn.functional.scaled_dot_product_attention(torch.cos(q), torch.cos(k), v, is_causal=True)
        x = x + self.o_proj(found.transpose(1, 2).flatten(2))
        normed = self.between(x)
        return x + self.down_proj(nn.functional.silu(self.gate_proj(normed)) * self.up_proj(normed))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(96, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.lm_head = nn.Linear(WIDTH, 96, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return SimpleNamespace(logits=self.lm_head(x))


def published(device):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=WIDTH, intermediate_size=512, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=KV, vocab_size=96, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config, dtype=BF16).to(device)


LLAMAS = {"own": lambda device: Llama().to(device, BF16), "transformers": published}


@pytest.fixture
def launches(monkeypatch):
    """The columns of the outputs of all launches."""
    found = []
    once = Plan.__call__

    def counted(self, a, b, out, **options):
        found.append(out.shape[-1])
        return once(self, a, b, out, **options)

    monkeypatch.setattr(Plan, "__call__", counted)
    return found


def compiled(model, **options):
    torch._dynamo.reset()
    options["post_grad_custom_pre_pass"] = tritonmm.merge_siblings()
    run = torch.compile(lambda tokens: model(tokens).logits, options=options, dynamic=False)
    return torch.no_grad()(run)


def assert_close(found, expected, kind):
    """Inductor keeps fp32 between operations that it fuses, and kernels for other sizes may add in another order. fp8
    activations may then be rounded to the next code."""
    off = (found.float() - expected.float()).norm() / expected.float().norm()
    assert off < (0.1 if kind == "fp8-dynamic" else 0.03), f"the relative error is {off}"


SEPARATE = [256, 128, 128, 256, 512, 512, 256]
MERGED = [512, 256, 1024, 256]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["int8", *(pytest.param(kind, marks=pytest.mark.gpu) for kind in KINDS[1:])])
@pytest.mark.parametrize("llama", [pytest.param("own"), pytest.param("transformers", marks=pytest.mark.gpu)])
def test_a_layer_has_four_launches_instead_of_seven(llama, kind, device, launches):
    model = tritonmm.quantize_(LLAMAS[llama](device).eval(), kind)
    tokens = torch.randint(96, (2, 1), device=device)
    with torch.no_grad():
        expected = model(tokens).logits
    assert launches == SEPARATE * LAYERS
    run = compiled(model)
    run(tokens)
    launches.clear()
    assert_close(run(tokens), expected, kind)
    assert launches == MERGED * LAYERS


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("llama", LLAMAS)
def test_a_step_is_a_cuda_graph(llama, kind, device, launches):
    model = tritonmm.quantize_(LLAMAS[llama](device).eval(), kind)
    run = compiled(model)
    tokens = torch.randint(96, (2, 3), device=device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run(tokens)
    torch.cuda.synchronize()
    launches.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(tokens)
    assert launches == MERGED * LAYERS
    for _ in range(3):
        tokens.copy_(torch.randint(96, (2, 3), device=device))
        graph.replay()
        expected = run(tokens)
        assert torch.equal(out, expected)
        with torch.no_grad():
            assert_close(out, model(tokens).logits, kind)


@pytest.mark.gpu
def test_inductors_own_cuda_graphs(device, launches):
    model = tritonmm.quantize_(Llama().to(device, BF16).eval(), "int4")
    run = compiled(model, **{"triton.cudagraphs": True})
    tokens = torch.randint(96, (2, 3), device=device)
    with torch.no_grad():
        expected = model(tokens).logits
    launches.clear()
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        assert_close(run(tokens).clone(), expected, "int4")
    # None is computed apart: weights are at their own addresses in the graph, too.
    assert launches
    assert set(launches) == set(MERGED)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 7, 64, 300])
@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_invariant_bits_are_those_of_separate_gemms(kind, rows, device):
    whole, scale = quantized(torch.randn(512, WIDTH, device=device), kind, 128)
    sizes = 256, 128, 128
    x = torch.randn(rows, WIDTH, device=device, dtype=BF16)
    parts = list(zip(whole.split(sizes), scale.split(sizes), strict=True))
    settings = None, "ieee", BF16, "group", 128, "invariant"
    expected = torch.cat([weight_only_linear(x, *each, accumulation="invariant") for each in parts], 1)
    for each in (parts, [tuple(y.clone() for y in pair) for pair in parts]):
        found = operator(x, [w.t() for w, _ in each], [s.t() for _, s in each], [], *settings)
        assert torch.equal(found, expected)
