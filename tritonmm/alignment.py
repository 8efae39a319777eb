"""How an operand or an output lies in memory: which dimension is contiguous, and what divides addresses and strides."""

import torch


def layout_of(x: torch.Tensor) -> str:
    """The letter of `Problem.layout`: "n" if the last dimension is contiguous, "t" if the one before is, else "s"."""
    rows, cols = x.stride(-2), x.stride(-1)
    if cols == 1 or x.shape[-1] == 1:
        return "n"
    return "t" if rows == 1 or x.shape[-2] == 1 else "s"


def alignment_of(x: torch.Tensor) -> int:
    """`Problem.a_alignment`: the largest power of two up to 16 that divides address and strides, in bytes."""
    lead = x.stride(-1) if layout_of(x) == "t" else x.stride(-2)
    spans = [x.data_ptr(), lead * x.itemsize]
    if x.dim() == 3 and x.shape[0] > 1:
        spans.append(x.stride(0) * x.itemsize)
    bits = 16
    for span in spans:
        bits |= span
    return power_of_two(bits)


def out_alignment_of(x: torch.Tensor) -> int:
    """`Problem.out_alignment`: the same of an output, and of the bytes of its rows."""
    if layout_of(x) != "n":
        return x.itemsize
    return power_of_two(alignment_of(x) | x.shape[-1] * x.itemsize)


def power_of_two(bits: int) -> int:
    """The largest power of two that divides every number in a bitwise "or" of them."""
    return bits & -bits
