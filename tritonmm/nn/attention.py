"""Models of transformers that decode with `decode_attention`."""

from typing import Any

import torch

from tritonmm.torch_ops.decode_attention import DTYPES, decode_attention, fits

Tensor = torch.Tensor

NAME = "tritonmm"
"""As transformers' `attn_implementation` takes it, once `use_decode_attention_` was called."""


def use_decode_attention_(model: torch.nn.Module) -> torch.nn.Module:
    """Makes a model of transformers decode with `nn.decode_attention`, and returns the model.

    Query heads that share a key head then read its keys and values once, and only as far as the cache is filled.
    Prompts, activations that need a derivative, dropout, fp32, masks that are not bool or differ between heads, and
    heads that `decode_attention` does not support are computed by transformers' "sdpa" as before. Compile the model and
    capture CUDA graphs afterwards.

    model: a PreTrainedModel whose class supports "sdpa".

    Raises TypeError for other modules, ValueError for a model that does not support "sdpa", and, in its forward, if its
    attention has sinks.

    For example:

        model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", dtype=torch.bfloat16, device_map="cuda")
        tritonmm.nn.use_decode_attention_(tritonmm.quantize_(model, "int4"))
    """
    if not hasattr(model, "set_attn_implementation"):
        raise TypeError(
            f"use_decode_attention_: model must be a PreTrainedModel of transformers, not {type(model).__name__}"
        )
    if not model._supports_sdpa:
        raise ValueError(f'use_decode_attention_: {type(model).__name__} does not support attn_implementation="sdpa"')
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    return model


def forward(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    dropout: float = 0.0, scaling: float | None = None, s_aux: Tensor | None = None, **options: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The attention (batch, tokens, heads, value dim), as transformers calls for it.

    query: (batch, heads, tokens, dim). key, value: (batch, key heads, length, dim). attention_mask: broadcasts to
    (batch, heads, tokens, length).
    """
    if s_aux is not None:
        raise ValueError('tritonmm\'s attention has no sinks (s_aux); load the model with attn_implementation="eager"')
    has_more = any(options.get(name) is not None for name in ("softcap", "position_bias"))
    if dropout or has_more or not _is_decoded(query, key, value, attention_mask):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        given = {"dropout": dropout, "scaling": scaling} | options
        return sdpa_attention_forward(module, query, key, value, attention_mask, **given)
    mask = None if attention_mask is None else attention_mask[:, 0, 0]
    return decode_attention(query[:, :, 0], key, value, mask, scaling).unsqueeze(1), None


def _is_decoded(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether `decode_attention` computes it."""
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return False
    return (
        query.shape[2] == 1
        and query.dtype in DTYPES
        and query.dtype == key.dtype == value.dtype
        and query.shape[1] % key.shape[1] == 0
        and fits(query.shape[1] // key.shape[1], query.shape[3], value.shape[3])
        and (mask is None or (mask.dtype == torch.bool and mask.dim() == 4 and mask.shape[1:] == (1, 1, key.shape[2])))
    )
