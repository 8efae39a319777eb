"""Attention of one new token of each sequence, `torch.ops.tritonmm.decode_attention`."""

import math
from collections.abc import Callable

import torch

Tensor = torch.Tensor

MOST_DIM = 256
"""Elements of a head, at most."""

MOST_ELEMENTS = 8192
"""Elements of all query heads that share a key head, at most, as `fits` counts them."""

MOST_LENGTH = 2**28
"""Keys of a sequence, at most: the kernel counts keys, and numbers in the slots of a sequence's parts, in 32 bits."""

DTYPES = torch.bfloat16, torch.float16


def decode_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """softmax(query @ key.mT * scale) @ value for one new token of each sequence, as a language model decodes.

    query: (batch, heads, dim), bf16 or fp16. key: (batch, groups, length, dim), value: (batch, groups, length, value
    dim), of the same dtype. `heads / groups` consecutive query heads share a key head. A head has at most 256 elements,
    and those that share a key head at most 8192 together, with both numbers rounded up to powers of two and elements
    to at least 16: 32 heads of 256, 64 of 128, 128 of 64, 512 of 16 or fewer. At most 2**28 keys. Any strides; what is
    not contiguous along the last dimension is copied.
    mask: (batch, length) or (1, length), bool, True where a sequence sees a key; None: everywhere. What lies before the
    first key that a sequence sees and after the last one is not read: a long cache costs as much as what it holds, and
    may contain anything there. A sequence that sees no key gets 0.
    scale: dim**-0.5 by default.

    Returns (batch, heads, value dim). Scores and sums are fp32; the softmax is rounded to the dtype before it is
    multiplied by value, as in flash attention. Bitwise reproducible; the bits of a sequence depend on the length of the
    cache and not on the batch. Works with torch.compile and in CUDA graphs. Not differentiable.

    Raises RuntimeError for other dtypes, shapes and devices.

    >>> from tritonmm.nn import decode_attention
    >>> query = torch.zeros(1, 8, 64, device="cuda", dtype=torch.bfloat16)
    >>> key, value = torch.ones(2, 1, 2, 100, 64, device="cuda", dtype=torch.bfloat16)
    >>> decode_attention(query, key, value)[0, 7, 0].item()
    1.0
    """
    return torch.ops.tritonmm.decode_attention(query, key, value, mask, scale)


def fits(heads: int, *dims: int) -> bool:
    """Whether so many heads can share a key head. dims: elements of a head.

    Both are rounded up to powers of two, and elements to at least 16, which is what the kernel's tiles have.
    """
    rows, cols = (1 << (max(1, int(x)) - 1).bit_length() for x in (heads, max(16, *dims)))
    return cols <= MOST_DIM and rows * cols <= MOST_ELEMENTS


_library = torch.library.Library("tritonmm", "FRAGMENT")
_library.define(
    "decode_attention(Tensor query, Tensor key, Tensor value, Tensor? mask=None, float? scale=None) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout),
)


def _empty(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
    """The result without its values. Raises what `decode_attention` does."""

    def check(is_right: bool, message: Callable[[], str]) -> None:
        if is_right is not True:  # False, or what torch's compiler has instead of a bool
            torch._check(is_right, lambda: f"decode_attention: {message()}")

    check(query.dim() == 3, lambda: f"query has shape {list(query.shape)}; it must be (batch, heads, dim)")
    check(
        key.dim() == 4 and (key.shape[0], key.shape[3]) == (query.shape[0], query.shape[2]),
        lambda: f"key has shape {list(key.shape)}; it must be ({query.shape[0]}, groups, length, {query.shape[2]})",
    )
    check(
        value.dim() == 4 and value.shape[:3] == key.shape[:3],
        lambda: f"value has shape {list(value.shape)}; it must be ({', '.join(map(str, key.shape[:3]))}, value dim)",
    )
    check(key.shape[2] <= MOST_LENGTH, lambda: f"key has shape {list(key.shape)}; there are at most {MOST_LENGTH} keys")
    check(query.shape[2] > 0, lambda: f"query has shape {list(query.shape)}; a head must have at least one element")
    heads, groups = query.shape[1], key.shape[1]
    check(
        groups > 0 and heads % groups == 0,
        lambda: (
            f"{groups} key heads cannot be shared by {heads} query heads; the number of query heads must be a multiple"
        ),
    )
    check(
        fits(heads // groups, query.shape[2], value.shape[3]),
        lambda: (
            f"{heads // groups} query heads of {max(query.shape[2], value.shape[3])} elements share a key head; a"
            f" head has at most {MOST_DIM} elements, and those that share a key head together {MOST_ELEMENTS}"
        ),
    )
    check(query.dtype in DTYPES, lambda: f"query is {query.dtype}; it must be bf16 or fp16")
    for name, x in (("key", key), ("value", value)):
        check(x.dtype == query.dtype, lambda name=name, x=x: f"{name} is {x.dtype} and query is {query.dtype}")
        check(x.device == query.device, lambda name=name, x=x: f"{name} is on {x.device} and query on {query.device}")
    if mask is not None:
        check(mask.dtype == torch.bool, lambda: f"mask is {mask.dtype}; it must be bool")
        check(mask.device == query.device, lambda: f"mask is on {mask.device} and query on {query.device}")
        check(
            mask.dim() == 2 and mask.shape[0] in (1, key.shape[0]) and mask.shape[1] == key.shape[2],
            lambda: f"mask has shape {list(mask.shape)}; it must be ({key.shape[0]}, {key.shape[2]}), or have one row",
        )
    return query.new_empty((*query.shape[:2], value.shape[3]))


def _computed(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    out = _empty(query, key, value, mask, scale)
    if not out.numel() or not key.numel():
        return out.zero_()
    scale = query.shape[2] ** -0.5 if scale is None else scale
    fill = _fill_by_kernel if query.is_cuda else _fill_by_torch
    fill(query, key, value, None if mask is None else mask.expand(key.shape[0], -1), out, scale)
    return out


def _fill_by_kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, out: Tensor, scale: float) -> None:
    from tritonmm.launch import decode_attention as launch  # which imports Triton

    query, key, value = (_contiguous_rows(x) for x in (query, key, value))
    with torch.cuda.device(query.device):
        launch.fill(query, key, value, None if mask is None else _contiguous_rows(mask), out, scale)


def _contiguous_rows(x: Tensor) -> Tensor:
    """x, or a copy if it is not contiguous along its last dimension."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _fill_by_torch(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, out: Tensor, scale: float) -> None:
    batch, heads, dim = query.shape
    groups = key.shape[1]
    rows = query.reshape(batch, groups, heads // groups, dim).float()
    scores = rows @ key.float().mT * scale
    value = value.float()
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], -math.inf)
        after_first, before_last = mask.cumsum(1) > 0, mask.flip(1).cumsum(1).flip(1) > 0
        value = value.masked_fill(~(after_first & before_last)[:, None, :, None], 0)  # NaN there must not matter
    weights = torch.where(scores.amax(-1, keepdim=True) == -math.inf, 0, torch.softmax(scores, -1))
    out.copy_((weights.to(query.dtype).float() @ value).reshape(out.shape))


_library.impl("decode_attention", _computed, "CUDA")
_library.impl("decode_attention", _computed, "CPU")
torch.library.register_fake("tritonmm::decode_attention", _empty, lib=_library)
