"""Models of transformers that decode with `decode_attention`."""

import inspect
import re
import sys
from typing import Any

import torch

from tritonmm.torch_ops.decode_attention import DTYPES, decode_attention, fits

Tensor = torch.Tensor

NAME = "tritonmm"
"""As transformers' `attn_implementation` takes it, once `use_decode_attention_` was called."""

REFUSED = "s_aux", "sinks", "indices", "block_indices"
"""What models pass to attention with sinks and to sparse attention, and transformers' "sdpa" ignores."""

BRANCH = re.compile(r"""_attn_implementation (?:==|!=|in|not in) [^\n]*["']sdpa["']""")
"""How code asks whether its attention is "sdpa"."""


def use_decode_attention_(model: torch.nn.Module) -> torch.nn.Module:
    """Makes a model of transformers decode with `nn.decode_attention`, and returns the model.

    Query heads that share a key head then read its keys and values once, and only as far as the cache is filled.
    Prompts, activations that need a derivative, dropout, fp32, masks that are not bool or differ between heads, and
    heads that `decode_attention` does not support are computed by transformers' "sdpa" as before. Compile the model and
    capture CUDA graphs afterwards.

    model: a PreTrainedModel that supports "sdpa" and calls its attention through transformers' AttentionInterface.

    Raises TypeError for other modules. Raises ValueError, and leaves the model as it is, if the model or a part of it
    does not support that, or if its code treats "sdpa" in a way of its own, as sparse attention and Gemma 4 do. Its
    forward raises ValueError if its attention has sinks.

    For example:

        model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", dtype=torch.bfloat16, device_map="cuda")
        tritonmm.nn.use_decode_attention_(tritonmm.quantize_(model, "int4"))
    """
    if not hasattr(model, "set_attn_implementation"):
        raise TypeError(
            f"use_decode_attention_: model must be a PreTrainedModel of transformers, not {type(model).__name__}"
        )
    _check(model)
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    return model


def _check(model: torch.nn.Module) -> None:
    """Raises ValueError if the model would not decode with `decode_attention`, or would compute something else."""

    def refuse(name: str, reason: str) -> None:
        raise ValueError(f"use_decode_attention_: {name} {reason}")

    for part in model.modules():
        if part is not model and not hasattr(part, "set_attn_implementation"):
            continue
        name = type(part).__name__
        if not part._can_set_attn_implementation():
            if part is model:
                refuse(name, "does not call its attention through transformers' AttentionInterface")
        elif not part._supports_sdpa:
            refuse(name, 'does not support attn_implementation="sdpa"')
    for name in sorted({type(x).__module__ for x in model.modules()}):
        try:
            found = BRANCH.search(inspect.getsource(sys.modules[name]))
        except (KeyError, OSError, TypeError):  # no source
            continue
        if found:
            refuse(name, f'treats attn_implementation="sdpa" in a way of its own ("{found[0]}")')


def forward(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    dropout: float = 0.0, scaling: float | None = None, **options: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The attention (batch, tokens, heads, value dim), as transformers calls for it.

    query: (batch, heads, tokens, dim). key, value: (batch, key heads, length, dim). attention_mask: broadcasts to
    (batch, heads, tokens, length).
    """
    for name in REFUSED:
        if options.get(name) is not None:
            raise ValueError(
                f"use_decode_attention_: {type(module).__name__} has attention with {name}, which is not supported;"
                ' load the model with attn_implementation="eager"'
            )
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
        and query.shape[0] == key.shape[0]
        and query.shape[1] % key.shape[1] == 0
        and fits(query.shape[1] // key.shape[1], query.shape[3], value.shape[3])
        and (mask is None or (mask.dtype == torch.bool and mask.dim() == 4 and mask.shape[1:] == (1, 1, key.shape[2])))
    )
