"""Models of transformers that decode with `decode_attention`; they need transformers."""

import pytest
import torch

import tritonmm
from tritonmm.autotune.serving.steps import cache_name
from tritonmm.nn import attention
from tritonmm.torch_ops import decode_attention


def test_other_modules_are_refused():
    with pytest.raises(TypeError, match="not Linear"):
        tritonmm.nn.use_decode_attention_(torch.nn.Linear(2, 2))


def test_attention_with_sinks_is_refused():
    x = torch.zeros(1, 2, 1, 16, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="sinks"):
        attention.forward(None, x, x, x, None, s_aux=torch.zeros(2))


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


@pytest.fixture
def model(transformers, device):
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
        vocab_size=100, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to(device).eval()


@pytest.fixture
def calls(monkeypatch):
    """The shapes of the queries of all calls of decode_attention."""
    found = []

    def counted(query, *rest):
        found.append(tuple(query.shape))
        return decode_attention.decode_attention(query, *rest)

    monkeypatch.setattr(attention, "decode_attention", counted)
    return found


def decoded(transformers, model, prompt, seen):
    """Logits of the prompt's last token and of three more, with a static cache and padding on the left."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=64)
    logits = []
    with torch.no_grad():
        for step in range(4):
            given = {"attention_mask": seen, cache_name(model): cache, "use_cache": True}
            logits.append(model(prompt, **given).logits[:, -1])
            prompt = torch.full_like(prompt[:, :1], 7 + step)
            seen = torch.cat([seen, torch.ones_like(seen[:, :1])], 1)
    return torch.stack(logits)


def test_tokens_are_those_of_sdpa(transformers, model, calls, device):
    prompt = torch.randint(1, 100, (3, 20), device=device)
    seen = (torch.arange(20, device=device) >= torch.tensor([0, 5, 19], device=device)[:, None]).long()
    expected = decoded(transformers, model, prompt, seen)
    assert tritonmm.nn.use_decode_attention_(model) is model
    found = decoded(transformers, model, prompt, seen)
    assert calls == [(3, 8, 16)] * 6  # two layers, three tokens: the prompt is sdpa's
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02)
    assert expected.abs().max() > 0.4


def test_generate(model, calls, device):
    prompt = torch.randint(1, 100, (2, 9), device=device)
    expected = model.generate(prompt, max_new_tokens=4, do_sample=False)
    found = tritonmm.nn.use_decode_attention_(model).generate(prompt, max_new_tokens=4, do_sample=False)
    assert torch.equal(found, expected)
    assert len(calls) == 6


def test_derivatives_dropout_and_fp32_are_left_to_sdpa(model, calls, device):
    tritonmm.nn.use_decode_attention_(model)
    token = torch.tensor([[3]], device=device)
    model(token).logits.sum().backward()
    assert not calls
    with torch.no_grad():
        model.float()(token)
        assert not calls
        model.bfloat16()(token)
        assert len(calls) == 2
        model.model.layers[0].self_attn.attention_dropout = 0.5
        model.train()(token)
    assert len(calls) == 3


def test_torch_compile_keeps_it_whole(transformers, model, device):
    """One graph, in which a cache that is filled further is nothing new."""
    tritonmm.nn.use_decode_attention_(model)
    token = torch.tensor([[3], [5]], device=device)
    cache = transformers.StaticCache(config=model.config, max_cache_len=64)
    given = {cache_name(model): cache, "use_cache": True}
    with torch.no_grad():
        model(torch.randint(1, 100, (2, 9), device=device), **given)
        run = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)
        for _ in range(2):
            run(token, **given)
        with torch.compiler.set_stance("fail_on_recompile"):
            found = run(token, **given)
    assert found.logits.isfinite().all()
