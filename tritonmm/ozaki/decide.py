"""Whether quantized operands prove that their product is accurate: the launch."""

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


def decide(
    of_a: Planes,
    of_b: Planes,
    k: int,
    dtype: torch.dtype,
    moduli: int,
    proved: torch.Tensor,
    first: bool,
    refused: torch.Tensor | None = None,
) -> None:
    """Sets proved, one int32, to whether the rule holds for these rows and columns: 1, or 0.

    of_a, of_b: planes with counts. k, dtype: of the operands. first: else it stays 0 if it is 0. refused: one int32,
    set to the opposite.
    """
    about = of_a.scales.numel(), of_b.scales.numel(), k, dtype, moduli, first
    tensors: dict[str, torch.Tensor | None]
    tensors = {"row_counts": of_a.counts, "row_scales": of_a.scales}
    tensors |= {"col_counts": of_b.counts, "col_scales": of_b.scales, "proved": proved, "refused": refused}
    given = of_a, of_b, k, dtype, moduli, proved, first, refused
    DECIDE.launch(about, proved.device, tensors, {}, lambda: steps(*given))


def steps(
    of_a: Planes,
    of_b: Planes,
    k: int,
    dtype: torch.dtype,
    moduli: int,
    proved: torch.Tensor,
    first: bool,
    refused: torch.Tensor | None = None,
) -> list[Step]:
    """The one launch."""
    _, one, both = rule(k, any_name(dtype), moduli)
    operands = of_a.counts, of_a.scales, of_b.counts, of_b.scales
    sizes = of_a.scales.numel(), of_b.scales.numel(), k
    arguments = *operands, proved, refused, *sizes, one, both, DecideSpec(SEARCHED, first)
    return [Step(decide_kernel, 1, arguments, launch_options(proved.device, num_warps=8))]
