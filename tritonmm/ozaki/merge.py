"""Residues of a product whose K is multiplied in parts: the launch that adds those of two parts."""

import torch

from tritonmm.launch import launch_options
from tritonmm.launch.steps import Step, Steps
from tritonmm.moduli import MODULI
from tritonmm.ozaki.merge_kernel import MergeSpec, merge_kernel

BLOCK = 4096
"""Elements of a block of `merge_kernel`."""

MERGE = Steps()


def merge(sums: torch.Tensor, more: torch.Tensor, moduli: int) -> None:
    """Adds `more` to `sums`, modulo the modulus of each plane. Both: int8 (batch * moduli, m, n), contiguous, n a
    multiple of 16."""
    about = sums.shape, moduli
    MERGE.launch(about, sums.device, {"sums": sums, "more": more}, {}, lambda: steps(sums, more, moduli))


def steps(sums: torch.Tensor, more: torch.Tensor, moduli: int) -> list[Step]:
    """The one launch."""
    planes, m, n = sums.shape
    grid = planes * -(-m * n // BLOCK)
    arguments = sums, more, m * n, MergeSpec(BLOCK, MODULI[:moduli])
    return [Step(merge_kernel, grid, arguments, launch_options(sums.device, num_warps=4))]
