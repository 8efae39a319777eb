"""Residues of a product whose K is multiplied in parts: the launch that adds those of two parts."""

import torch

from tritonmm.launch import launch_options
from tritonmm.launch.steps import Step, Steps
from tritonmm.moduli import MODULI
from tritonmm.ozaki.merge_kernel import MergeSpec, merge_kernel

BLOCK = 4096
"""Elements of a block of `merge_kernel`."""

MERGE = Steps()


def merge(sums: torch.Tensor, more: torch.Tensor, moduli: int, skip: torch.Tensor | None = None) -> None:
    """Adds `more` to `sums`, modulo the modulus of each plane. Both: int8 (batch * moduli, m, n), contiguous, n a
    multiple of 16. skip: one int32; nothing is added if it is not 0 on the device."""
    tensors = {"sums": sums, "more": more, "skip": skip}
    MERGE.launch((sums.shape, moduli), sums.device, tensors, {}, lambda: steps(sums, more, moduli, skip))


def steps(sums: torch.Tensor, more: torch.Tensor, moduli: int, skip: torch.Tensor | None = None) -> list[Step]:
    """The one launch."""
    planes, m, n = sums.shape
    grid = planes * -(-m * n // BLOCK)
    arguments = sums, more, m * n, skip, MergeSpec(BLOCK, MODULI[:moduli])
    return [Step(merge_kernel, grid, arguments, launch_options(sums.device, num_warps=4))]
