"""8-bit weights, packed: how they lie in memory.

A row is packed by itself, 16 elements of K in 16 bytes, which hold them in this order:

    byte    0       1       2       3       4       5       6       7       8 ...   15
    k       0       1       8       9       2       3       10      11      4       15

Bytes 4 c to 4 c + 3 hold what one thread of a group of four multiplies: tensor cores take elements 2 c, 2 c + 1,
2 c + 8 and 2 c + 9 of 16 from it, so it reads them at once. A byte is the weight plus 128: kernels need not flip signs.
`device/int8.py` makes numbers of them. Rows are filled up to a multiple of 16 elements. Packed weights are int8 with
one dimension more than others, the 16 bytes, so that they are not taken for these.
"""

import torch

Tensor = torch.Tensor

TOGETHER = 16
"""Elements of K that are packed together."""

ZERO = 128
"""The byte of the weight 0."""


def pack(weight: Tensor) -> Tensor:
    """Packs weights, int8 (..., n, k), into int8 (..., n, ceil(k / 16), 16).

    Raises TypeError for other dtypes and ValueError for other shapes.

    >>> pack(torch.arange(16, dtype=torch.int8).view(1, 16)).view(torch.uint8)[0, 0, :4].tolist()
    [128, 129, 136, 137]
    """
    if weight.dtype != torch.int8:
        raise TypeError(f"pack: weights are {weight.dtype}; they must be torch.int8")
    if weight.dim() < 2:
        raise ValueError(f"pack: weights are {list(weight.shape)}; they must be (..., n, k)")
    *lines, k = weight.shape
    blocks = -(-k // TOGETHER)
    weight = torch.nn.functional.pad(weight, (0, blocks * TOGETHER - k)) if k % TOGETHER else weight.contiguous()
    x = weight.view(torch.uint8) ^ ZERO
    x = x.view(*lines, blocks, 2, 4, 2).transpose(-3, -2)  # [..., block, thread, half of 16, k % 2]
    return x.reshape(*lines, blocks, TOGETHER).view(torch.int8)


def unpack(packed: Tensor, k: int | None = None) -> Tensor:
    """Packed weights as int8 (..., n, k): the inverse of `pack`. k: by default as many as there is room for.

    Raises TypeError for other dtypes and ValueError for other shapes and more elements than there are.

    >>> weight = torch.randint(-128, 128, (3, 40), dtype=torch.int8)
    >>> torch.equal(unpack(pack(weight), 40), weight)
    True
    """
    if packed.dtype != torch.int8:
        raise TypeError(f"unpack: weights are {packed.dtype}; packed ones are torch.int8")
    if packed.dim() < 3 or packed.shape[-1] != TOGETHER:
        raise ValueError(f"unpack: weights are {list(packed.shape)}; packed ones are (..., n, k / 16, 16)")
    *lines, blocks, _ = packed.shape
    if k is not None and not 0 <= k <= blocks * TOGETHER:
        raise ValueError(
            f"unpack: k is {k}; weights {list(packed.shape)} have 0 to {blocks * TOGETHER} elements in a row"
        )
    x = packed.contiguous().view(torch.uint8) ^ ZERO
    x = x.view(*lines, blocks, 4, 2, 2).transpose(-3, -2).reshape(*lines, blocks * TOGETHER)
    return x.view(torch.int8)[..., :k]
