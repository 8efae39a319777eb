"""Models of transformers that decode with `decode_attention`; they need transformers."""

import re

import pytest
import torch

import tritonmm
from tritonmm.autotune.serving.steps import cache_name
from tritonmm.nn import attention
from tritonmm.torch_ops import decode_attention


def test_other_modules_are_refused():
    with pytest.raises(TypeError, match="not Linear"):
        tritonmm.nn.use_decode_attention_(torch.nn.Linear(2, 2))


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


def test_keys_of_one_sequence_for_all(model, calls, device):
    tritonmm.nn.use_decode_attention_(model)
    marked = torch.nn.Identity()
    setattr(marked, attention.MARK, True)
    query = torch.randn(3, 8, 1, 16, device=device).bfloat16()
    key, value = torch.randn(2, 1, 8, 40, 16, device=device).bfloat16()
    found, _ = attention.forward(marked, query, key, value, None)
    every = (x.expand(3, -1, -1, -1) for x in (key, value))
    expected, _ = attention.forward(marked, query, *every, None)
    assert calls == [(3, 8, 16)]
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02)


@pytest.mark.parametrize(("length", "is_decoded"), [(2**28, True), (2**28 + 1, False)])
def test_more_keys_than_the_kernel_counts_are_left_to_sdpa(length, is_decoded):
    query, key = torch.zeros(2, 1, 8, 1, 16, dtype=torch.bfloat16)
    key = key.expand(-1, -1, length, -1)
    assert attention._is_decoded(query, key, key, None) == is_decoded


SMALL = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "pad_token_id": 0,
}  # fmt: skip


def falcon(transformers):
    config = transformers.FalconConfig(vocab_size=100, hidden_size=64, num_attention_heads=4, num_hidden_layers=2)
    return transformers.FalconForCausalLM(config)


def gemma_2(transformers):
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SMALL, head_dim=16))


def gemma_2_with_images(transformers):
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    text = SMALL | {"model_type": "gemma2", "head_dim": 16}
    config = transformers.PaliGemmaConfig(
        vision_config={"model_type": "siglip_vision_model", **vision}, text_config=text, projection_dim=64
    )
    return transformers.PaliGemmaForConditionalGeneration(config)


def gemma_4(transformers):
    """With attention of another name it drops queries of a prompt even if no mask says which they are."""
    return transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**SMALL, head_dim=16))


def deepseek_v32(transformers):
    """Its keys are chosen by a mask for sdpa, and by indices for other attention."""
    config = transformers.DeepseekV32Config(
        **SMALL, q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16,
        n_routed_experts=4, first_k_dense_replace=2, index_topk=4, index_n_heads=2, index_head_dim=32,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config)


REASONS = {
    falcon: "FalconForCausalLM does not call its attention through transformers' AttentionInterface",
    gemma_2: 'Gemma2ForCausalLM does not support attn_implementation="sdpa"',
    gemma_2_with_images: 'Gemma2Model does not support attn_implementation="sdpa"',
}


@pytest.mark.parametrize("make", REASONS, ids=lambda make: make.__name__)
def test_models_that_would_not_decode_so_are_refused(transformers, make, monkeypatch):
    monkeypatch.setattr(transformers.Gemma2PreTrainedModel, "_supports_sdpa", False)  # as since transformers 5.24
    model = make(transformers)
    with pytest.raises(ValueError, match=re.escape(REASONS[make])):
        tritonmm.nn.use_decode_attention_(model)
    assert not any(hasattr(module, attention.MARK) for module in model.modules())


def test_a_model_that_is_eager_is_refused(model):
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match=re.escape('call model.set_attn_implementation("sdpa") before')):
        tritonmm.nn.use_decode_attention_(model)


@pytest.mark.parametrize("make", [gemma_4, deepseek_v32], ids=lambda make: make.__name__)
def test_models_that_treat_sdpa_in_a_way_of_their_own(transformers, calls, make, device):
    if not hasattr(transformers, "DeepseekV32Config" if make is deepseek_v32 else "Gemma4TextConfig"):
        pytest.skip("this release of transformers does not have the model")
    torch.manual_seed(0)
    model = make(transformers).bfloat16().to(device).eval()
    prompt = torch.randint(1, 100, (2, 12), device=device)

    def logits():
        with torch.no_grad():
            cache = transformers.DynamicCache(config=model.config)
            found = [model(prompt, **{cache_name(model): cache}, use_cache=True, logits_to_keep=4).logits]
            for token in (3, 4):
                found.append(model(torch.full_like(prompt[:, :1], token), **{cache_name(model): cache}).logits)
            return torch.cat(found, 1).float()

    expected = logits()
    assert not calls
    tritonmm.nn.use_decode_attention_(model)
    found = logits()
    assert calls
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05 * expected.abs().max().item())


def test_what_somebody_else_registered_is_called_for_other_models(transformers, model, calls, monkeypatch, device):
    asked = []

    def theirs(module, query, *rest, **options):
        asked.append(query.shape[2])
        return query.transpose(1, 2), None

    monkeypatch.setattr(attention, "_REPLACED", {})
    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, attention.SDPA, theirs)
    other = transformers.AutoModelForCausalLM.from_config(model.config, dtype=torch.bfloat16).to(device).eval()
    for _ in range(2):  # what is registered then is ours already
        tritonmm.nn.use_decode_attention_(model)
    with torch.no_grad():
        other(torch.tensor([[3]], device=device))
        assert (asked, calls) == ([1, 1], [])
        model(torch.tensor([[3, 4]], device=device))
        model(torch.tensor([[3]], device=device))
    assert asked == [1, 1, 2, 2]
    assert len(calls) == 2


def test_other_models_are_not_affected(transformers, model, calls, device):
    other = transformers.AutoModelForCausalLM.from_config(model.config, dtype=torch.bfloat16).to(device).eval()
    tritonmm.nn.use_decode_attention_(model)
    token = torch.tensor([[3]], device=device)
    with torch.no_grad():
        other(token)
        assert not calls
        model(token)
    assert len(calls) == 2


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
