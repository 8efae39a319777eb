"""Models of transformers that decode with `decode_attention`.

The name of their attention stays "sdpa": with another name some models compute other masks, or choose keys in another
way. So transformers' function of that name is replaced, in the whole process. The new one calls `decode_attention` for
decode steps of marked models, and the function that it replaced for everything else.
"""

from collections.abc import Callable
from typing import Any

import torch

from tritonmm.torch_ops.decode_attention import DTYPES, MOST_LENGTH, decode_attention, fits

Tensor = torch.Tensor

SDPA = "sdpa"
"""The attention that is replaced, as transformers' `attn_implementation` calls it."""

MARK = "decodes_with_tritonmm"
"""The attribute of modules that are to decode with `decode_attention`."""

_REPLACED: dict[str, Callable] = {}
"""The function that `forward` has replaced, by its name: transformers' own, or what somebody else registered."""


def use_decode_attention_(model: torch.nn.Module) -> torch.nn.Module:
    """Makes a model of transformers decode with `nn.decode_attention`, and returns the model.

    Query heads that share a key head then read its keys and values once, and only as far as the cache is filled.
    Prompts, activations that need a derivative, dropout, fp32, position biases, masks that are not bool or differ
    between heads, and heads that `decode_attention` does not support are computed as before. Compile the model and
    capture CUDA graphs afterwards. There is no way back but to load the model again.

    Bitwise reproducible. In decode steps the bits of a sequence's attention do not depend on the batch.

    model: a PreTrainedModel whose attention is "sdpa", transformers' default, and called through its
        AttentionInterface. Other models are not affected.

    Raises TypeError for other modules, and ValueError for models that do not call their attention so, or of which a
    part does not support "sdpa". They are unchanged then.

    For example:

        model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", dtype=torch.bfloat16, device_map="cuda")
        tritonmm.nn.use_decode_attention_(tritonmm.quantize_(model, "int4"))
    """
    if not hasattr(model, "set_attn_implementation"):
        raise TypeError(
            f"use_decode_attention_: model must be a PreTrainedModel of transformers, not {type(model).__name__}"
        )
    _check(model)
    from transformers import AttentionInterface

    registered = AttentionInterface()[SDPA]
    if registered is not forward:
        _REPLACED[SDPA] = registered
        AttentionInterface.register(SDPA, forward)
    for module in _of_sdpa(model):
        setattr(module, MARK, True)
    return model


def _check(model: torch.nn.Module) -> None:
    """Raises ValueError if the model would not decode with `decode_attention`."""

    def refuse(name: str, reason: str) -> None:
        raise ValueError(f"use_decode_attention_: {name} {reason}")

    if not model._can_set_attn_implementation():
        refuse(type(model).__name__, "does not call its attention through transformers' AttentionInterface")
    for part in model.modules():
        if hasattr(part, "set_attn_implementation") and not part._supports_sdpa:
            refuse(type(part).__name__, f'does not support attn_implementation="{SDPA}"')
    if not _of_sdpa(model):
        refuse(
            type(model).__name__,
            f'has no attention that is "{SDPA}"; call model.set_attn_implementation("{SDPA}") before',
        )


def _of_sdpa(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules whose attention, if they have any, is called "sdpa"."""
    configs = ((module, getattr(module, "config", None)) for module in model.modules())
    return [module for module, config in configs if getattr(config, "_attn_implementation", None) == SDPA]


def forward(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    dropout: float = 0.0, scaling: float | None = None, **options: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The attention (batch, tokens, heads, value dim), as transformers calls for it.

    query: (batch, heads, tokens, dim). key, value: (batch, key heads, length, dim). attention_mask: broadcasts to
    (batch, heads, tokens, length).
    """
    has_more = dropout or any(options.get(name) is not None for name in ("softcap", "position_bias"))
    if has_more or not getattr(module, MARK, False) or not _is_decoded(query, key, value, attention_mask):
        given = {"dropout": dropout, "scaling": scaling} | options
        return _REPLACED[SDPA](module, query, key, value, attention_mask, **given)
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
        and key.shape[2] <= MOST_LENGTH
        and fits(query.shape[1] // key.shape[1], query.shape[3], value.shape[3])
        and (mask is None or (mask.dtype == torch.bool and mask.dim() == 4 and mask.shape[1:] == (1, 1, key.shape[2])))
    )
