"""On a GPU: graphs, streams, threads, devices, autocast, and models of transformers, with and without the override."""

import os
import subprocess
import sys

import pytest
import torch
from bounds import assert_product
from threads import at_once

import tritonmm

pytestmark = pytest.mark.gpu
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

WAYS = pytest.mark.parametrize("way", ["ours", "override"])


@pytest.fixture
def mm(way):
    """Our mm, or torch's under the override."""
    if way == "ours":
        yield tritonmm.mm
    else:
        with tritonmm.use("always"):
            yield torch.mm


def randn(*shape, device="cuda", dtype=torch.bfloat16):
    return torch.randn(shape, device=device).to(dtype)


@WAYS
def test_a_warm_product_is_captured_and_replayed(mm):
    a, b = randn(300, 256), randn(256, 520)
    mm(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = mm(a, b)
    for _ in range(3):
        a.copy_(randn(300, 256))
        c.fill_(float("nan"))
        graph.replay()
        assert_product(c, a, b)


COLD = """
import torch, tritonmm
a, b = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in ((333, 256), (256, 520)))
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph), tritonmm.use("always"):
    c = {call}
c.fill_(float("nan"))
graph.replay()
assert torch.equal(c, tritonmm.mm(a, b)), "the replay differs"
"""


@pytest.mark.parametrize("call", ["tritonmm.mm(a, b)", "torch.mm(a, b)"])
def test_a_product_that_was_never_seen_is_captured(call, tmp_path):
    env = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", COLD.format(call=call)], capture_output=True, text=True, env=env, timeout=240
    )
    assert ran.returncode == 0, ran.stderr


@WAYS
@pytest.mark.parametrize("shape", [(512, 512, 512), (4096, 4096, 8), (130, 130, 16384)], ids=str)
def test_streams_at_the_same_time(shape, mm):
    m, n, k = shape
    streams = [torch.cuda.Stream() for _ in range(4)]
    operands = [(randn(m, k), randn(k, n)) for _ in streams]
    torch.cuda.synchronize()
    results = []
    for _ in range(3):
        for stream, (a, b) in zip(streams, operands, strict=True):
            with torch.cuda.stream(stream):
                results.append((mm(a, b), a, b))
    torch.cuda.synchronize()
    for result in results:
        assert_product(*result)


@WAYS
def test_cold_cache_eight_threads(mm):
    """Shapes that no other test has, met by all threads at once, forwards and backwards."""
    shapes = [(211, 173, 96), (64, 1024, 520), (1, 777, 264)]
    operands = [(randn(m, k).requires_grad_(), randn(k, n).requires_grad_()) for m, n, k in shapes]

    def work(_):
        for a, b in operands:
            c = mm(a, b)
            ones = torch.ones_like(c)
            grad_a, grad_b = torch.autograd.grad(c, (a, b), ones)
            assert_product(c, a, b)
            assert_product(grad_a, ones, b.t())
            assert_product(grad_b, a.t(), ones)

    at_once(8, work)


@WAYS
@needs_two
def test_operands_on_another_device_than_the_current(mm):
    a, b = randn(300, 256, device="cuda:1"), randn(256, 520, device="cuda:1")
    assert torch.cuda.current_device() == 0
    for _ in range(2):
        c = mm(a, b)
        assert c.device == a.device
        assert_product(c, a, b)
    with pytest.raises(RuntimeError):
        mm(a, b.to("cuda:0"))


@WAYS
def test_autocast(mm):
    a, b = randn(300, 256, dtype=torch.float32).requires_grad_(), randn(256, 520, dtype=torch.float32)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        c = mm(a, b)
    assert c.dtype == torch.bfloat16
    assert_product(c, a.bfloat16(), b.bfloat16())
    c.sum().backward()
    assert a.grad.dtype == torch.float32


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Inductor's own, in some releases of torch
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo looks at a view that has none
@WAYS
def test_compiled_by_inductor(mm):
    torch._dynamo.reset()
    a, b = randn(300, 256).requires_grad_(), randn(256, 520)
    compiled = torch.compile(lambda a, b: mm(a, b).relu() + 1, fullgraph=True, dynamic=True)
    for rows in (300, 77):
        found, expected = compiled(a[:rows], b), torch.relu(a[:rows].double() @ b.double()) + 1
        torch.testing.assert_close(found.double(), expected, rtol=2**-7, atol=2**-4)
        found.sum().backward()


@pytest.mark.parametrize("name", ["addmm", "baddbmm"])
@pytest.mark.parametrize(
    "shape", [(64, 64, 64), (1000, 520, 264), (4096, 4096, 96), (96, 80, 8192), (33, 35, 37)], ids=str
)
def test_in_place_is_out_of_place(name, shape):
    """C and the output are one memory: each element must be read before it is written, in every kernel."""
    m, n, k = shape
    batch = () if name == "addmm" else (3,)
    a, b, c = randn(*batch, m, k), randn(*batch, k, n), randn(*batch, m, n)
    with tritonmm.use("always"):
        expected = getattr(torch, name)(c, a, b, beta=0.5, alpha=2)
        for _ in range(3):
            assert torch.equal(getattr(c.clone(), name + "_")(a, b, beta=0.5, alpha=2), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_memory_is_kept(dtype):
    """Neither the calls nor the plans hold on to operands."""
    before = torch.cuda.memory_allocated()
    a, b = randn(512, 512, dtype=dtype), randn(512, 512, dtype=dtype)
    with tritonmm.use("always"):
        torch.mm(a, b)
        tritonmm.mm(a, b)
    kept = torch.cuda.memory_allocated() - before - 2 * a.nbytes
    del a, b
    assert kept <= 2**22  # the flags of split tiles
    assert torch.cuda.memory_allocated() - before == kept


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2)
    assert config.vocab_size == 50257
    return GPT2LMHeadModel(config)


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512, intermediate_size=1376, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=32000,
    )  # fmt: skip
    return LlamaForCausalLM(config)


MODELS = pytest.mark.parametrize("build", [gpt2, llama])
POLICIES = pytest.mark.parametrize("policy", ["faster", "always"])


def model_and_tokens(build, dtype):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = build().to("cuda", dtype)
    return model, torch.randint(3, model.config.vocab_size, (4, 129), device="cuda")


@MODELS
@POLICIES
@pytest.mark.filterwarnings("ignore")
def test_models_train_as_without(build, policy):
    def losses():
        model, tokens = model_and_tokens(build, torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        found = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    expected = losses()
    with tritonmm.use(policy):
        found = losses()
    assert expected[-1] < expected[0] - 0.5  # it learns
    assert found == pytest.approx(expected, rel=2e-2)


@MODELS
@POLICIES
@pytest.mark.filterwarnings("ignore")
def test_models_generate_as_without(build, policy):
    model, tokens = model_and_tokens(build, torch.float32)
    model.eval()
    with torch.no_grad():
        expected = model(tokens).logits, model.generate(tokens[:, :9], max_new_tokens=12, do_sample=False)
        with tritonmm.use(policy):
            found = model(tokens).logits, model.generate(tokens[:, :9], max_new_tokens=12, do_sample=False)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-4)
    assert torch.equal(found[1], expected[1])


@MODELS
@pytest.mark.filterwarnings("ignore")
def test_models_compile_into_as_few_graphs_as_without(build):
    model, tokens = model_and_tokens(build, torch.bfloat16)

    def logits(tokens):
        return model(input_ids=tokens, use_cache=False).logits

    def breaks():
        torch._dynamo.reset()
        return torch._dynamo.explain(logits)(tokens).graph_break_count

    expected, without = logits(tokens), breaks()
    with tritonmm.use("always"):
        assert breaks() == without
        torch._dynamo.reset()
        found = torch.compile(logits)(tokens)
    torch.testing.assert_close(found, expected, rtol=2**-6, atol=2**-4)
