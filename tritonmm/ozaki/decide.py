"""Whether quantized operands prove that their product is accurate: the launch."""

from typing import NamedTuple

import torch

from tritonmm.dtypes import any_name
from tritonmm.launch import launch_options
from tritonmm.launch.steps import Step, Steps
from tritonmm.ozaki.planes import Planes
from tritonmm.ozaki.rule import rule
from tritonmm.ozaki.rule_kernel import DecideSpec, decide_kernel

SEARCHED = 1024
"""Lines that the one program looks at together."""

DECIDE = Steps()


class Verdict(NamedTuple):
    """Device memory of what is decided about a product, one int32 each.

    proved: 1 or 0. refused: the opposite, or None if no launch reads it.
    """

    proved: torch.Tensor
    refused: torch.Tensor | None = None


def decide(of_a: Planes, of_b: Planes, k: int, dtype: torch.dtype, moduli: int, verdict: Verdict, first: bool) -> None:
    """Sets the verdict: whether the rule holds for these rows and columns.

    of_a, of_b: planes with counts. k, dtype: of the operands. first: else a product that is refused stays refused.
    """
    proved, refused = verdict
    about = of_a.scales.numel(), of_b.scales.numel(), k, dtype, moduli, first
    tensors: dict[str, torch.Tensor | None]
    tensors = {"row_counts": of_a.counts, "row_scales": of_a.scales}
    tensors |= {"col_counts": of_b.counts, "col_scales": of_b.scales, "proved": proved, "refused": refused}
    DECIDE.launch(about, proved.device, tensors, {}, lambda: steps(of_a, of_b, k, dtype, moduli, verdict, first))


def steps(
    of_a: Planes, of_b: Planes, k: int, dtype: torch.dtype, moduli: int, verdict: Verdict, first: bool
) -> list[Step]:
    """The one launch."""
    _, one, both = rule(k, any_name(dtype), moduli)
    operands = of_a.counts, of_a.scales, of_b.counts, of_b.scales
    sizes = of_a.scales.numel(), of_b.scales.numel(), k
    arguments = *operands, *verdict, *sizes, one, both, DecideSpec(SEARCHED, first)
    return [Step(decide_kernel, 1, arguments, launch_options(verdict.proved.device, num_warps=8))]
