"""Launches the kernel that makes rows fp8."""

import torch

from tritonmm.device.quantize_rows import quantize_rows_kernel
from tritonmm.launch import launch_options
from tritonmm.launch.steps import Step, Steps

BLOCK = 4096
"""Elements of a row at a time, at most."""

ROWS = Steps()


def fill(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """Writes codes and scales of x, (m, k), contiguous along k and not empty, on the current stream of x's device,
    which is the current one."""
    tensors = {"x": x, "codes": codes, "scales": scales}
    ROWS.launch((x.shape, x.stride(), x.dtype), x.device, tensors, {}, lambda: [step(x, codes, scales)])


def step(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> Step:
    """The launch."""
    m, k = x.shape
    block = min(BLOCK, 1 << (k - 1).bit_length())
    own = {"MOST": torch.finfo(codes.dtype).max, "BLOCK": block, "num_warps": max(1, min(8, block // 512))}
    return Step(quantize_rows_kernel, m, (x, codes, scales, k, x.stride(0)), launch_options(x.device, **own))
