"""A plan's launch that computes nothing where a number on the device is not 0. The host does not know it.

Each program reads the number and ends, so a launch that is skipped takes as long as its programs take to start.
"""

import torch

from tritonmm.launch import Plan, order_table
from tritonmm.launch.steps import Step, Steps

CONDITIONAL = Steps()


def launch_unless(
    skip: torch.Tensor,
    plan: Plan,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    c: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> None:
    """What `plan` computes of these tensors, as `Plan.__call__` says, if skip is 0; else nothing is read or written.

    skip: one int32. plan: one whose `skippable` is True, without scales and groups. The plan's device is the current
    one. Launches may be captured in a graph.
    """
    if not plan.grid:
        return
    if plan.table is not None:
        order_table.retain(plan.table)
    sums, flags = plan.workspace() if plan.config.split_k > 1 else (None, None)
    tensors = {"a": a, "b": b, "out": out, "c": c, "bias": bias, "skip": skip, "workspace": sums, "flags": flags}
    looks = tuple(None if x is None else (x.shape, x.stride(), x.dtype) for x in (a, b, out, c, bias))
    about = plan.problem, plan.config, looks

    def steps() -> list[Step]:
        arguments, options = plan.arguments(a, b, out, alpha, beta, c, bias, skip=skip)
        return [Step(plan.kernel, plan.grid, arguments, options)]

    CONDITIONAL.launch(about, plan.device, tensors, {"alpha": float(alpha), "beta": float(beta)}, steps)
