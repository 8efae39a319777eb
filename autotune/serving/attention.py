"""Grouped-query attention for decoding: one new token of each sequence, with fewer key heads than query heads.

Under torch.compile, transformers copies the keys and values for each query head; with 16 sequences that is 40% of the
time of a step of 8 layers in bf16 (docs/quantized-models.md). Here the query heads that share a key head are the rows
of one GEMM.
"""

from typing import Any

import torch

NAME = "grouped_decode"
"""As `set_attn_implementation` takes it."""


def register() -> None:
    """Makes the attention known to transformers, with the masks of its "sdpa"."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def forward(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, scaling: float | None = None, **options: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """The attention (batch, tokens, heads, dim), as transformers calls for it. Prompts go to its "sdpa".

    query: (batch, heads, tokens, dim). key, value: (batch, key heads, length, dim). attention_mask: bool, (batch,
    1, tokens, length), True where a query sees a key.
    """
    if query.shape[2] > 1 or attention_mask is None or attention_mask.dtype != torch.bool:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    return decode(query, key, value, attention_mask, scaling), None


def decode(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float | None = None
) -> torch.Tensor:
    """`forward` of one token: softmax in fp32, of scores that a GEMM has rounded to the query's dtype."""
    batch, heads, _, dim = query.shape
    groups = key.shape[1]
    scale = dim**-0.5 if scaling is None else scaling
    scores = torch.matmul(query.reshape(batch, groups, heads // groups, dim), key.transpose(-1, -2)).float() * scale
    weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1).to(query.dtype)
    return torch.matmul(weights, value).reshape(batch, 1, heads, dim)
