"""8-bit weights, packed: how they lie in memory.

A row is packed by itself, 16 elements of K in 16 bytes, which hold them in this order:

    byte    0       1       2       3       4       5       6       7       8 ...   15
    k       0       1       8       9       2       3       10      11      4       15

Bytes 4 c to 4 c + 3 hold what one thread of a group of four multiplies: tensor cores take elements 2 c, 2 c + 1,
2 c + 8 and 2 c + 9 of 16 from it, so it reads them at once. A byte is the weight plus 128: kernels need not flip signs.
`device/int8.py` makes numbers of them. Rows are filled up to a multiple of 16 elements. Tensors are int16, two bytes an
element, so that they are not taken for others.
"""

import torch

Tensor = torch.Tensor

TOGETHER = 16
"""Elements of K that are packed together."""

ZERO = 128
"""The byte of the weight 0."""


def packed_words(k: int) -> int:
    """int16 elements of a packed row of k weights."""
    return -(-k // TOGETHER) * TOGETHER // 2


def pack(weight: Tensor) -> Tensor:
    """Packs weights, int8 (..., n, k), into int16 (..., n, ceil(k / 16) * 8).

    Raises TypeError for other dtypes and ValueError for other shapes.

    >>> pack(torch.arange(16, dtype=torch.int8).view(1, 16)).view(torch.uint8)[0, :4].tolist()
    [128, 129, 136, 137]
    """
    if weight.dtype != torch.int8:
        raise TypeError(f"pack: weights are {weight.dtype}; they must be torch.int8")
    if weight.dim() < 2:
        raise ValueError(f"pack: weights are {list(weight.shape)}; they must be (n, k)")
    *lines, k = weight.shape
    if not weight.numel():
        return weight.new_empty(*lines, packed_words(k), dtype=torch.int16)
    if k % TOGETHER:
        weight = torch.nn.functional.pad(weight, (0, -k % TOGETHER))
    x = weight.contiguous().view(torch.uint8) ^ ZERO
    x = x.view(*lines, x.shape[-1] // TOGETHER, 2, 4, 2).transpose(-3, -2)  # [..., block, thread, half of 16, k % 2]
    return x.reshape(*lines, 2 * packed_words(k)).view(torch.int16)


def unpack(packed: Tensor, k: int | None = None) -> Tensor:
    """Packed weights as int8 (..., n, k): the inverse of `pack`. k: by default as many as there is room for.

    >>> weight = torch.randint(-128, 128, (3, 40), dtype=torch.int8)
    >>> torch.equal(unpack(pack(weight), 40), weight)
    True
    """
    *lines, words = packed.shape
    if not packed.numel():
        return packed.new_empty(*lines, 2 * words, dtype=torch.int8)[..., :k]
    x = packed.contiguous().view(torch.uint8) ^ ZERO
    x = x.view(*lines, 2 * words // TOGETHER, 4, 2, 2).transpose(-3, -2).reshape(*lines, 2 * words)
    return x.view(torch.int8)[..., :k]
