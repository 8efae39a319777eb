"""Launches the kernel of attention of one new token of each sequence."""

import math
from typing import Any

import torch

from tritonmm.device.decode_attention import decode_attention_kernel
from tritonmm.launch import launch_options, workspace
from tritonmm.launch.interpreter import INTERPRETED
from tritonmm.launch.steps import Step, Steps

LEAST_PART, MOST_PARTS = 128, 32
"""The fewest keys of a part, unless there are fewer in all, and the most parts of a sequence. Each has a program."""

STAGES = 2
"""Blocks of keys and values that are in shared memory at a time."""

SCAN = 512
"""Keys whose mask is read at a time."""

TOGETHER = 8
"""Parts that are loaded at a time when they are merged."""

DECODE = Steps()


def keys_of_part(length: int) -> int:
    """Keys that one program attends to, of `length`: a power of two. It depends on nothing else, so bits do not depend
    on the batch."""
    return max(LEAST_PART, _power_of_two(-(-length // MOST_PARTS)))


def fill(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, out: torch.Tensor,
    scale: float,
) -> None:  # fmt: skip
    """Writes softmax(query @ key.mT * scale, where mask) @ value to out, on the current stream of query's device, which
    is the current one.

    query: (batch, heads, dim). key: (batch, groups, length, dim). value: (batch, groups, length, value dim). out:
    (batch, heads, value dim), contiguous. None of them is empty, and all are contiguous along the last dimension.
    mask: (batch, length), bool, any strides. `groups` divides `heads`.
    """
    tensors, numbers = arguments(query, key, value, mask, out, scale)
    constants = constants_of(query, key, value, mask)
    wide = tuple(name for name, x in numbers.items() if x >= 2**31)  # Triton compiles for 64 bits there
    about = query.dtype, *constants.values(), numbers["splits"], query.shape, wide

    def steps() -> list[Step]:
        return [step(tensors, numbers, constants)]

    DECODE.launch(about, out.device, tensors, numbers, steps)


def step(tensors: dict[str, torch.Tensor], numbers: dict[str, float], constants: dict[str, Any]) -> Step:
    """The kernel's launch. tensors, numbers: from `arguments`. constants: from `constants_of`."""
    batch, groups, _, _ = tensors["key"].shape
    options = launch_options(tensors["out"].device, **constants)
    given = *tensors.values(), *numbers.values()
    return Step(decode_attention_kernel, int(numbers["splits"]) * batch * groups, given, options)


def arguments(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, out: torch.Tensor,
    scale: float,
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:  # fmt: skip
    """The kernel's tensors and numbers, in turn."""
    batch, groups, length, _ = key.shape
    parts = -(-length // keys_of_part(length))
    merged = batch * groups if parts > 1 else 0
    sums = merged * parts * (query.shape[1] // groups) * (value.shape[3] + 2)
    tensors = {
        "query": query, "key": key, "value": value, "mask": query if mask is None else mask, "out": out,
        "sums": workspace.sums(sums, out.device), "flags": workspace.flags(merged, out.device),
    }  # fmt: skip
    numbers = {
        "length": length, "part": keys_of_part(length), "splits": parts, "groups": groups,
        "scale": scale * math.log2(math.e), "q_batch": query.stride(0), "q_head": query.stride(1),
        "k_batch": key.stride(0), "k_group": key.stride(1), "k_key": key.stride(2),
        "v_batch": value.stride(0), "v_group": value.stride(1), "v_key": value.stride(2),
        "mask_batch": 0 if mask is None else mask.stride(0), "mask_key": 0 if mask is None else mask.stride(1),
    }  # fmt: skip
    return tensors, numbers


def constants_of(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> dict[str, Any]:
    """What the kernel is compiled for, besides dtypes and aligned addresses."""
    heads, dim, value_dim = query.shape[1] // key.shape[1], key.shape[3], value.shape[3]
    rows, cols, value_cols = (max(16, _power_of_two(x)) for x in (heads, dim, value_dim))
    # Larger tiles would not fit into the registers.
    is_wide, is_high = cols + value_cols > 256, rows * value_cols > 4096
    uneven = any(x.stride(axis) % 8 for x in (key, value) for axis in range(3))
    return {
        "HEADS": heads, "ROWS": rows, "DIM": dim, "COLS": cols, "VALUE_DIM": value_dim, "VALUE_COLS": value_cols,
        "MASKED": mask is not None, "ALIGN": 1 if uneven else 8, "BLOCK": 64 >> is_wide,
        "MERGED_ROWS": _power_of_two(heads), "SCAN": SCAN, "STAGES": STAGES, "TOGETHER": TOGETHER,
        "INTERPRETED": INTERPRETED, "num_warps": 8 if is_high else 4,
    }  # fmt: skip


def _power_of_two(x: int) -> int:
    """The least power of two that is at least x."""
    return 1 << (x - 1).bit_length()
