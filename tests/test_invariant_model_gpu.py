"""A Llama of random weights has the same bits for a prompt alone and in any batch, see docs/accumulation.md."""

import contextlib

import pytest
import torch

import tritonmm

pytestmark = [pytest.mark.gpu, pytest.mark.long]

LENGTH, STEPS = 37, 4


def llama(attention: str, device):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=512, intermediate_size=1376, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=1000, max_position_embeddings=256, attn_implementation=attention,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).to(device, torch.bfloat16).eval()
    for name, norm in list(model.named_modules()):
        if type(norm).__name__ == "LlamaRMSNorm":  # whose mean depends on the number of rows
            fused = torch.nn.RMSNorm(norm.weight.shape, norm.variance_epsilon, device=device, dtype=torch.bfloat16)
            fused.weight = norm.weight
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, fused)
    return model


@torch.no_grad()
def logits(model, prompts: torch.Tensor, following: torch.Tensor) -> list[torch.Tensor]:
    """The logits of the prompts, and of each decode step of the given tokens."""
    found = model(prompts, use_cache=True)
    steps = [found.logits]
    for step in range(STEPS):
        found = model(following[:, step : step + 1], past_key_values=found.past_key_values, use_cache=True)
        steps.append(found.logits)
    return steps


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_logits_are_the_same_alone_and_in_batches(attention, device):
    model = llama(attention, device)
    tokens = torch.randint(1000, (64, LENGTH + STEPS), device=device)
    math = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with tritonmm.use(accumulation="invariant", strict=True), math if attention == "sdpa" else contextlib.nullcontext():
        alone = logits(model, tokens[:1, :LENGTH], tokens[:1, LENGTH:])
        for batch in (2, 7, 64):
            for at in (0, batch - 1):
                order = torch.arange(batch, device=device).roll(at)  # the prompt is number `at` of the batch
                together = logits(model, tokens[order, :LENGTH], tokens[order, LENGTH:])
                for step, (found, expected) in enumerate(zip(together, alone, strict=True)):
                    assert torch.equal(found[at], expected[0]), f"batch of {batch}, at {at}, step {step}"
    assert alone[0].isfinite().all()
    assert alone[0].std() > 0.01
