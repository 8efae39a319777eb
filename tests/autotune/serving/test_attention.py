"""Attention of one token: the same as transformers computes with a copy of the keys for each query head."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tritonmm.autotune.serving import attention


@pytest.mark.parametrize("scaling", [None, 0.3])
@pytest.mark.parametrize(("heads", "groups"), [(8, 2), (4, 4), (6, 1)])
def test_one_token_is_as_with_repeated_keys(heads, groups, scaling):
    query = torch.randn(3, heads, 1, 16)
    key, value = torch.randn(2, 3, groups, 40, 16)
    mask = (torch.arange(40) <= torch.tensor([0, 20, 39])[:, None])[:, None, None]
    found, _ = attention.forward(None, query, key, value, mask, scaling=scaling, dropout=0.0)
    key, value = (x.repeat_interleave(heads // groups, 1) for x in (key, value))
    expected = scaled_dot_product_attention(query, key, value, mask, scale=scaling)
    assert found.shape == (3, 1, heads, 16)
    torch.testing.assert_close(found, expected.transpose(1, 2))


def test_models_of_transformers_give_the_same_tokens():
    transformers = pytest.importorskip("transformers")
    from tritonmm.autotune.serving import steps

    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
        vocab_size=100,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    attention.register()
    found = []
    for name in ("sdpa", attention.NAME):
        model.set_attn_implementation(name)
        with torch.no_grad():
            step, _ = steps.decoder(model, model, torch.arange(40).reshape(2, 20), 64)
            found.append(torch.stack([step().logits for _ in range(3)]))
    torch.testing.assert_close(*found)
