"""4-bit weights, two in a byte: how they lie in memory.

A code is 0 to 15; the weight is the code minus 8, times its scale. Rows are packed by themselves, 32 elements of K in
16 bytes, which hold the codes in this order:

    byte    0       1       2       3       4       5       6       7       8 ...   15
    low     k 0     k 16    k 1     k 17    k 2     k 18    k 3     k 19    k 4     k 23
    high    k 8     k 24    k 9     k 25    k 10    k 26    k 11    k 27    k 12    k 31

A row may also have a zero point for each group of K, the code of the weight 0. It lies in the last 4 bits of the
group's fp32 scale, with its highest bit flipped, so that a scale with zeros there has the zero point 8.

Bytes 4 c to 4 c + 3 hold what one thread of a group of four multiplies: tensor cores take elements 2 c, 2 c + 1,
2 c + 8 and 2 c + 9 of 16 from it. `device/int4.py` makes numbers of them. Rows are filled up to a multiple of 32
elements.
"""

import torch

Tensor = torch.Tensor

TOGETHER = 32
"""Elements of K that are packed together."""

ZERO = 8
"""The code of the weight 0."""


def pack(codes: Tensor) -> Tensor:
    """Packs codes from 0 to 15, (..., n, k) of any integer dtype, into uint8 (..., n, ceil(k / 32) * 16).

    Raises TypeError for other dtypes and ValueError for other shapes and codes.

    >>> pack(torch.arange(32).view(1, 32) % 16)[0, :4].tolist()
    [128, 128, 145, 145]
    """
    if codes.is_floating_point() or codes.is_complex() or codes.dtype == torch.bool:
        raise TypeError(f"pack: codes are {codes.dtype}; they must be integers")
    if codes.dim() < 2:
        raise ValueError(f"pack: codes are {list(codes.shape)}; they must be (..., n, k)")
    codes = codes.to(torch.int64) if codes.dtype in _UNSIGNED else codes
    if codes.numel() and codes.device.type != "meta" and not 0 <= codes.min() <= codes.max() <= 15:
        raise ValueError(f"pack: codes are {codes.min().item()} to {codes.max().item()}; they must be 0 to 15")
    *lines, k = codes.shape
    blocks = -(-k // TOGETHER)
    codes = codes.to(torch.uint8)
    codes = torch.nn.functional.pad(codes, (0, -k % TOGETHER), value=ZERO) if k % TOGETHER else codes.contiguous()
    low, high = codes.view(*lines, blocks, 2, 2, 8).unbind(-2)  # [..., n, block, half of 32, k % 8]
    return (low | high << 4).transpose(-2, -1).reshape(*lines, blocks * TOGETHER // 2)


def unpack(weight: Tensor, k: int | None = None) -> Tensor:
    """The codes of packed weights, uint8 (..., n, k): the inverse of `pack`. k: by default as many as there is room
    for.

    Raises TypeError for other dtypes and ValueError for other shapes and more elements than there are.

    >>> codes = torch.randint(16, (3, 40), dtype=torch.uint8)
    >>> torch.equal(unpack(pack(codes), 40), codes)
    True
    """
    if weight.dtype != torch.uint8:
        raise TypeError(f"unpack: weights are {weight.dtype}; packed ones are torch.uint8")
    if weight.dim() < 2 or weight.shape[-1] % 16:
        raise ValueError(f"unpack: weights are {list(weight.shape)}; packed ones are (..., n, a multiple of 16)")
    *lines, row = weight.shape
    if k is not None and not 0 <= k <= 2 * row:
        raise ValueError(f"unpack: k is {k}; weights {list(weight.shape)} have 0 to {2 * row} elements in a row")
    x = weight.contiguous().view(*lines, row // 16, 8, 2).transpose(-2, -1)  # [..., n, block, half of 32, k % 8]
    return torch.stack((x & 15, x >> 4), -2).view(*lines, 2 * row)[..., :k]


_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""Dtypes that torch neither compares nor shifts. A uint64 from 2**63 on becomes a negative number, which is refused."""

SCALE_BITS = 20
"""Significant bits of a scale that has a zero point in its last ones."""


def with_zero_points(scale: Tensor, zero: Tensor) -> Tensor:
    """Scales, of any floating-point dtype, and the zero points from 0 to 15 of the same groups, as kernels take them:
    int32, the bits of fp32 scales with zero points in the last 4. A weight is (code - zero) * scale.

    Raises TypeError for other dtypes and ValueError for other shapes, zero points and scales: those of bf16 and fp16
    are kept as they are, and so are all with 20 significant bits.

    >>> with_zero_points(torch.tensor([[0.5, 1.0]]), torch.tensor([[8, 3]])).view(torch.float32)
    tensor([[0.5000, 1.0000]])
    """
    if not scale.is_floating_point() or zero.is_floating_point() or zero.is_complex() or zero.dtype == torch.bool:
        raise TypeError(
            f"with_zero_points: scales are {scale.dtype} and zero points {zero.dtype}; they must be"
            " floating-point numbers and integers"
        )
    if scale.shape != zero.shape:
        raise ValueError(
            f"with_zero_points: scales are {list(scale.shape)} and zero points {list(zero.shape)}; each scale needs one"
        )
    zero = zero.to(torch.int64) if zero.dtype in _UNSIGNED else zero
    bits = scale.float().view(torch.int32)
    if scale.device.type != "meta" and scale.numel():
        if not 0 <= zero.min() <= zero.max() <= 15:
            raise ValueError(
                f"with_zero_points: zero points are {zero.min().item()} to {zero.max().item()}; they must be 0 to 15"
            )
        lost = ((bits & 15) != 0) | ((scale.float().to(scale.dtype) != scale) & ~scale.isnan())
        if lost.any():
            inexact = scale[lost][0].item()
            raise ValueError(
                f"with_zero_points: a scale is {inexact}, which has more than {SCALE_BITS} significant bits;"
                " round scales to bf16 or fp16 and quantize by those"
            )
    return bits | (zero.to(torch.int32) ^ ZERO)


def scales_and_zero_points(both: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 scales and their zero points, uint8: the inverse of `with_zero_points`."""
    return (both & -16).view(torch.float32), ((both & 15) ^ ZERO).to(torch.uint8)
