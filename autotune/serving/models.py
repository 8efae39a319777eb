"""The models that are served: shapes of published ones, with random weights. transformers is imported when one is
made."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tritonmm.autotune.serving import attention


class Model(NamedTuple):
    """A model. title: of the published one whose shape it has. config: makes its configuration."""

    title: str
    config: Callable[[], Any]

    def made(self, device: torch.device, layers: int | None = None) -> torch.nn.Module:
        """The model in bf16, with the same random weights at each call. layers: as many instead of its own number."""
        from transformers import AutoModelForCausalLM

        config = self.config()
        if layers is not None:
            config.num_hidden_layers = layers
        torch.manual_seed(0)
        with device:  # random numbers of billions of weights take minutes on the host
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        attention.register()
        model.set_attn_implementation(attention.NAME)
        return model


def _llama() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=128_256, max_position_embeddings=8192, rope_theta=500_000.0,
    )  # fmt: skip


def _qwen() -> Any:
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(
        hidden_size=2048, moe_intermediate_size=768, intermediate_size=6144, num_hidden_layers=8, num_experts=128,
        num_experts_per_tok=8, num_key_value_heads=4, num_attention_heads=32, head_dim=128, norm_topk_prob=True,
        vocab_size=151_936, max_position_embeddings=8192,
    )  # fmt: skip


MODELS = {"Llama": Model("Llama 3 8B", _llama), "Qwen": Model("Qwen3-30B-A3B, 8 layers", _qwen)}
"""By the names of `--model`. Qwen has 8 of its 48 layers."""
