"""Layers of the 4-bit weights that GPTQ and AWQ store in checkpoints."""

import torch

from tritonmm.nn import int4
from tritonmm.nn.linear import WeightOnlyLinear
from tritonmm.torch_ops.quantized import SCALE_GROUPS

Tensor = torch.Tensor

IN_WORD = 8
"""Codes in an int32, the first in its lowest bits."""

AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
"""Columns of 8 neighbours, in the order in which AWQ's int32 hold them."""


@torch.no_grad()
def from_gptq(
    qweight: Tensor,
    qzeros: Tensor,
    scales: Tensor,
    bias: Tensor | None = None,
    g_idx: Tensor | None = None,
    *,
    v2: bool = False,
) -> WeightOnlyLinear:
    """The layer of a linear layer's tensors in a GPTQ checkpoint of 4 bits: weights (code - zero point) * scale.

    qweight: int32 (in_features / 8, out_features), 8 elements of in_features in each.
    qzeros: int32 (groups, out_features / 8), 8 zero points in each, stored less 1.
    scales: (groups, out_features), fp16 or bf16. Neighbours of in_features are a group.
    bias: (out_features,) or None.
    g_idx: the group of each of in_features. It must be that of groups of neighbours: activations of others would have
        to be permuted.
    v2: zero points are stored as they are, which checkpoints call format "gptq_v2".

    The result is on the device of qweight, and nothing is lost. Its scales are fp32, with zero points unless all are 8.
    Raises TypeError for other dtypes and for what is no tensor, and ValueError for other shapes, for groups that 32
    does not divide, for other g_idx, for scales that are not finite and for tensors on other devices or on "meta".

    >>> words = torch.full((16, 64), 0x77777777, dtype=torch.int32)
    >>> from_gptq(words, words[:1, :8], torch.ones(1, 64, dtype=torch.float16))
    WeightOnlyLinear(in_features=128, out_features=64, bias=False, weight=int4)
    """
    name = "from_gptq"
    _check_tensors(name, qweight=qweight, qzeros=qzeros, scales=scales, bias=bias, g_idx=g_idx)
    _check_words(name, qweight=qweight, qzeros=qzeros)
    k, n = IN_WORD * qweight.shape[0], qweight.shape[1]
    group = _group(name, qzeros, scales, bias, n, k)
    if g_idx is not None and g_idx.numel():
        expected = torch.arange(k, device=g_idx.device) // group
        if g_idx.shape != (k,) or not torch.equal(g_idx.to(expected.dtype), expected):
            raise ValueError(
                f"{name}: g_idx does not count groups of {group} neighbours, as it does not for models quantized with"
                " desc_act=True (act-order); quantize with desc_act=False"
            )
    codes = torch.stack(_nibbles(qweight), 1).view(k, n)
    zero = torch.stack(_nibbles(qzeros), 2).view(-1, n)
    return _layer(codes, zero if v2 else (zero + 1) & 15, scales, bias, group)


@torch.no_grad()
def from_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor, bias: Tensor | None = None) -> WeightOnlyLinear:
    """The layer of a linear layer's tensors in an AWQ checkpoint of 4 bits: weights (code - zero point) * scale.

    qweight: int32 (in_features, out_features / 8), 8 elements of out_features in each, in the order 0, 2, 4, 6, 1, 3,
        5, 7: AutoAWQ's version "gemm".
    qzeros: int32 (groups, out_features / 8), zero points in the same order.
    scales, bias, result, errors: as in `from_gptq`.

    >>> words = torch.full((128, 8), -0x77777778, dtype=torch.int32)
    >>> from_awq(words, words[:1], torch.ones(1, 64, dtype=torch.float16))
    WeightOnlyLinear(in_features=128, out_features=64, bias=False, weight=int4)
    """
    name = "from_awq"
    _check_tensors(name, qweight=qweight, qzeros=qzeros, scales=scales, bias=bias)
    _check_words(name, qweight=qweight, qzeros=qzeros)
    k, n = qweight.shape[0], IN_WORD * qweight.shape[1]
    group = _group(name, qzeros, scales, bias, n, k)
    codes, zero = (torch.stack(_in_columns(_nibbles(words)), 2).view(-1, n) for words in (qweight, qzeros))
    return _layer(codes, zero, scales, bias, group)


def _check_tensors(name: str, qweight: Tensor, **others: Tensor | None) -> None:
    """Raises unless all are tensors with numbers, on the device of qweight. bias and g_idx may be None, and g_idx is
    only compared, so it may be anywhere."""
    for argument, x in {"qweight": qweight, **others}.items():
        if x is None and argument in ("bias", "g_idx"):
            continue
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: {argument} is of type {type(x).__name__}; it must be a Tensor")
        if x.is_meta:
            raise ValueError(
                f"{name}: {argument} is on meta and has no numbers; it must be loaded from the checkpoint first"
            )
        if x.device != qweight.device and argument != "g_idx":
            raise ValueError(f"{name}: {argument} is on {x.device} and qweight on {qweight.device}; move one of them")


def _check_words(name: str, **given: Tensor) -> None:
    for argument, words in given.items():
        if words.dtype != torch.int32:
            raise TypeError(f"{name}: {argument} is {words.dtype}; it must be int32 with 8 codes in each")
        if words.dim() != 2:
            raise ValueError(f"{name}: {argument} is {list(words.shape)}; it must have two dimensions")


def _group(name: str, qzeros: Tensor, scales: Tensor, bias: Tensor | None, n: int, k: int) -> int:
    """Elements of K that share a scale. Raises for tensors that do not fit those of n x k weights."""
    if not scales.is_floating_point():
        raise TypeError(f"{name}: scales are {scales.dtype}; they must be floating-point numbers")
    if scales.dim() != 2 or scales.shape[1] != n or not scales.shape[0]:
        raise ValueError(f"{name}: scales are {list(scales.shape)}; for {n} x {k} weights they must be (groups, {n})")
    groups = scales.shape[0]
    if not k or k % groups or k // groups % 32:
        raise ValueError(f"{name}: there are {groups} groups of {k} in_features; a group must be a multiple of 32")
    if n % IN_WORD or qzeros.shape != (groups, n // IN_WORD):
        raise ValueError(
            f"{name}: qzeros is {list(qzeros.shape)}; for scales {list(scales.shape)} it must be ({groups},"
            f" {n} / {IN_WORD})"
        )
    if not scales.isfinite().all():
        raise ValueError(f"{name}: scales have {scales[~scales.isfinite()][0].item()}; they must be finite")
    if bias is not None and not bias.is_floating_point():
        raise TypeError(f"{name}: bias is {bias.dtype}; it must be floating-point numbers")
    if bias is not None and bias.shape != (n,):
        raise ValueError(f"{name}: bias is {list(bias.shape)}; it must be ({n},)")
    return k // groups


def _nibbles(words: Tensor) -> list[Tensor]:
    """The codes in each word, uint8, from the lowest."""
    return [(words >> 4 * i & 15).to(torch.uint8) for i in range(IN_WORD)]


def _in_columns(nibbles: list[Tensor]) -> list[Tensor]:
    """AWQ's codes in the order of columns."""
    return [nibbles[AWQ_COLUMNS.index(column)] for column in range(IN_WORD)]


def _layer(codes: Tensor, zero: Tensor, scales: Tensor, bias: Tensor | None, group: int) -> WeightOnlyLinear:
    """codes: (k, n); zero and scales: (k / group, n)."""
    k, scales = codes.shape[0], scales.detach()
    is_symmetric = bool((zero == int4.ZERO).all())
    scale = scales.float() if is_symmetric else int4.with_zero_points(scales, zero)
    if k == group and is_symmetric:
        scale = scale[0].contiguous()
    else:
        # Kernels have groups of at most 128: larger ones are cut into several.
        cut = next(size for size in reversed(SCALE_GROUPS) if group % size == 0)
        scale = scale.repeat_interleave(group // cut, 0).contiguous().t()  # a step reads those of a group
    return WeightOnlyLinear(int4.pack(codes.t()), scale, None if bias is None else bias.detach(), k)
