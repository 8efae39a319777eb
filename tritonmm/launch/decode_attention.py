"""Launches the kernels of attention of one new token of each sequence."""

import math
from typing import Any

import torch

from tritonmm import gpu as gpus
from tritonmm.device.decode_attention import decode_attention_kernel, mask_ends_kernel, slot_elements
from tritonmm.launch import launch_options, workspace
from tritonmm.launch.interpreter import INTERPRETED
from tritonmm.launch.steps import Step, Steps

PARTS, LEAST_PART, MOST_PART = 32, 128, 2048
"""About how many parts a cache is divided into, and the fewest and the most keys of a part, which take precedence."""

PROGRAMS_OF_SM = 8
"""Programs launched per SM, if there are enough parts. An SM has room for 4 at a time, of 4 warps each."""

STAGES = 2
"""One more than the blocks of keys and values that are in shared memory. With 3, fewer programs fit on an SM."""

SCANS = 1024, 4096
"""Lengths up to which each program reads the whole mask, as one tile. `mask_ends_kernel` reads longer ones."""

TOGETHER = 8
"""Parts that are loaded at a time when they are merged."""

DECODE = Steps()


def keys_of_part(length: int) -> int:
    """Keys of a part, of `length` in all: a power of two. It depends on nothing else, so bits do not depend on the
    batch or on the GPU's size."""
    return max(LEAST_PART, min(_power_of_two(-(-length // PARTS)), MOST_PART))


def fill(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, out: torch.Tensor,
    scale: float,
) -> None:  # fmt: skip
    """Writes softmax(query @ key.mT * scale, where mask) @ value to out, on the current stream of query's device, which
    must be the current device.

    query: (batch, heads, dim). key: (batch, groups, length, dim). value: (batch, groups, length, value dim). out:
    (batch, heads, value dim), contiguous. mask: (batch, length), bool. None of them is empty, and all are contiguous
    along the last dimension. `groups` divides `heads`.
    """
    tensors, numbers = arguments(query, key, value, mask, out, scale)
    constants = constants_of(query, key, value, mask)
    wide = tuple(name for name, x in numbers.items() if x >= 2**31)  # Triton compiles for 64 bits there
    about = query.dtype, mask is None, *constants.values(), numbers["programs"], query.shape, wide

    def steps() -> list[Step]:
        return steps_of(tensors, numbers, constants)

    DECODE.launch(about, out.device, tensors, numbers, steps)


def steps_of(
    tensors: dict[str, torch.Tensor | None], numbers: dict[str, float], constants: dict[str, Any]
) -> list[Step]:
    """The launches, in turn. tensors, numbers: from `arguments`. constants: from `constants_of`."""
    device = tensors["out"].device
    found = []
    if tensors["ends"] is not None:
        given = tensors["mask"], tensors["ends"], numbers["length"], numbers["mask_batch"]
        options = launch_options(device, SCAN=SCANS[-1], num_warps=8)
        found.append(Step(mask_ends_kernel, len(tensors["ends"]), given, options))
    given = *tensors.values(), *numbers.values()
    programs = int(numbers["pairs"] * numbers["programs"])
    return [*found, Step(decode_attention_kernel, programs, given, launch_options(device, **constants))]


def arguments(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, out: torch.Tensor,
    scale: float,
) -> tuple[dict[str, torch.Tensor | None], dict[str, float]]:  # fmt: skip
    """The tensors and numbers of `decode_attention_kernel`, in the order of its arguments."""
    batch, groups, length, _ = key.shape
    pairs, part = batch * groups, keys_of_part(length)
    parts = -(-length // part)
    sums = pairs * parts * slot_elements(query.shape[1] // groups, value.shape[3])
    is_scanned_before = mask is not None and length > SCANS[-1]
    tensors = {
        "query": query, "key": key, "value": value, "mask": mask,
        "ends": query.new_empty((batch, 3), dtype=torch.int32) if is_scanned_before else None, "out": out,
        "sums": workspace.sums(sums, out.device), "flags": workspace.flags(pairs, out.device),
    }  # fmt: skip
    gpu = gpus.of_device(out.device.index) if out.is_cuda else gpus.default()
    programs = PROGRAMS_OF_SM * gpu.sms // pairs
    numbers = {
        "length": length, "part_bits": part.bit_length() - 1, "parts": parts, "pairs": pairs,
        "programs": max(1, min(programs, parts)), "groups": groups, "scale": scale * math.log2(math.e),
        "q_batch": query.stride(0), "q_head": query.stride(1),
        "k_batch": key.stride(0), "k_group": key.stride(1), "k_key": key.stride(2),
        "v_batch": value.stride(0), "v_group": value.stride(1), "v_key": value.stride(2),
        "mask_batch": 0 if mask is None else mask.stride(0),
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
    is_uneven = any(x % 8 for x in (*query.stride()[:2], *key.stride()[:3], *value.stride()[:3]))
    scan = 0 if mask is None else next((scan for scan in SCANS if key.shape[2] <= scan), 0)
    return {
        "HEADS": heads, "ROWS": rows, "DIM": dim, "COLS": cols, "VALUE_DIM": value_dim, "VALUE_COLS": value_cols,
        "ALIGN": 1 if is_uneven else 8, "BLOCK": 64 >> is_wide, "STAGES": STAGES, "SCAN": scan,
        "MERGED_ROWS": _power_of_two(heads), "TOGETHER": TOGETHER, "INTERPRETED": INTERPRETED,
        "num_warps": 8 if is_high or is_uneven else 4,
    }  # fmt: skip


def _power_of_two(x: int) -> int:
    """The least power of two that is at least x."""
    return 1 << (x - 1).bit_length()
