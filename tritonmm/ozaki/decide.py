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


def decide(of_a: Planes, of_b: Planes, k: int, dtype: torch.dtype, moduli: int, proved: torch.Tensor) -> None:
    """Sets proved, one int32, to 0 unless the rule holds for these rows and columns.

    of_a, of_b: planes with counts. k, dtype: of the operands.
    """
    about = of_a.scales.numel(), of_b.scales.numel(), k, dtype, moduli
    tensors = {"row_counts": of_a.counts, "row_scales": of_a.scales}
    tensors |= {"col_counts": of_b.counts, "col_scales": of_b.scales, "proved": proved}
    DECIDE.launch(about, proved.device, tensors, {}, lambda: steps(of_a, of_b, k, dtype, moduli, proved))


def steps(of_a: Planes, of_b: Planes, k: int, dtype: torch.dtype, moduli: int, proved: torch.Tensor) -> list[Step]:
    """The one launch."""
    _, one, both = rule(k, any_name(dtype), moduli)
    operands = of_a.counts, of_a.scales, of_b.counts, of_b.scales
    sizes = of_a.scales.numel(), of_b.scales.numel(), k
    arguments = *operands, proved, *sizes, one, both, DecideSpec(SEARCHED)
    return [Step(decide_kernel, 1, arguments, launch_options(proved.device, num_warps=8))]
