"""Launches the kernel that makes rows fp8."""

import torch

from tritonmm.device.quantize_rows import quantize_rows_kernel
from tritonmm.launch import capture, context, interpreter, launch_options

MOST = 448.0
"""The largest number of e4m3."""

BLOCK = 4096
"""Elements of a row at a time, at most."""


def fill(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """Writes codes and scales of x, (m, k), contiguous along k and not empty, on the current stream."""
    arguments, options = launch(x, codes, scales)
    if x.device.type == "cuda":
        context.bind(x.device.index)
    with interpreter.exclusive(), capture.relaxed():
        quantize_rows_kernel[(x.shape[0],)](*arguments, **options)


def launch(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> tuple[tuple, dict]:
    """Arguments and options of the launch."""
    k = x.shape[1]
    block = min(BLOCK, 1 << (k - 1).bit_length())
    own = {"MOST": MOST, "BLOCK": block, "num_warps": max(1, min(8, block // 512))}
    return (x, codes, scales, k, x.stride(0)), launch_options(x.device, **own)
