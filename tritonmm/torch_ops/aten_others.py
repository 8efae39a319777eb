"""Aten ops that only invariant accumulation concerns: those to fp32, and those that stay with torch and say so.

Policies leave all of these to torch. They are registered when invariant accumulation is first required, so that they
cost no other program host time.
"""

from collections.abc import Callable, Iterator

import torch

from tritonmm.torch_ops.aten import ADDED, SUBCLASS, original
from tritonmm.torch_ops.operator import PLAIN
from tritonmm.torch_ops.product import How, key, product
from tritonmm.torch_ops.routes import Routes, Switch

Tensor = torch.Tensor

TO_FP32 = {"mm.dtype": 2, "bmm.dtype": 3, "addmm.dtype": 2, "baddbmm.dtype": 3}
"""Overloads with an `out_dtype`, and the dimensions of their matrices."""

LEFT = {
    **dict.fromkeys((f"{name}_out" for name in TO_FP32), "out is given together with out_dtype"),
    **dict.fromkeys(("_addmm_activation", "_addmm_activation.out"), "tritonmm's kernels have no activation"),
    **dict.fromkeys(("_weight_int4pack_mm", "_weight_int8pack_mm"), "tritonmm does not read weights that torch packed"),
    "_mixed_dtypes_linear": "tritonmm does not read weights that torch packed; weight_only_linear takes others",
    **dict.fromkeys((f"_sparse_semi_structured_{name}" for name in ("mm", "addmm", "linear")), "an operand is sparse"),
    "_cslt_sparse_mm": "an operand is sparse",
}
"""Ops that stay with torch, and why."""


def kernels(dispatch_key: str) -> Iterator[tuple[Switch, Callable]]:
    """Kernels for those of the ops that this torch has, and the switch of each."""
    for name, dims in TO_FP32.items():
        if _is_present(name, dispatch_key):
            yield _to_fp32(name, dims, dispatch_key)
    for name, reason in LEFT.items():
        if _is_present(name, dispatch_key):
            yield _left(name, reason, dispatch_key)


def _is_present(name: str, dispatch_key: str) -> bool:
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", dispatch_key)
    except RuntimeError:
        return False  # another release of torch has no such op


def _left(name: str, reason: str, dispatch_key: str) -> tuple[Switch, Callable]:
    torchs, switch = original(name, dispatch_key), Switch(name)

    def kernel(*args, **kwargs):
        if switch.routes is not None:
            switch.routes.report(reason)
        return torchs(*args, **kwargs)

    return switch, kernel


def _to_fp32(name: str, dims: int, dispatch_key: str) -> tuple[Switch, Callable]:
    torchs, switch = original(name, dispatch_key), Switch(name)

    def kernel(*args, **scalars):
        routes = switch.routes
        if routes is not None and routes.demand.accumulation == "invariant":
            *c, a, b, dtype = args
            found = _product(routes, dims, a, b, dtype, *c, **scalars)
            if found is not None:
                return found
        return torchs(*args, **scalars)

    return switch, kernel


def _product(routes: Routes, dims: int, a, b, dtype: torch.dtype, c=None, beta=1, alpha=1) -> Tensor | None:
    """beta * c + alpha * (a @ b) in fp32; None if torch computes it."""
    if type(a) not in PLAIN or type(b) not in PLAIN or type(c) not in ADDED:
        return routes.report(SUBCLASS)
    if not a.dim() == b.dim() == dims or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        return None  # torch raises its error
    if a.dtype not in (torch.bfloat16, torch.float16) or b.dtype != a.dtype or dtype != torch.float32:
        return routes.report(f"operands are {a.dtype} and {b.dtype}, out_dtype is {dtype}")
    if not a.numel() or not b.numel():
        return None
    about = key(a, b), dtype
    if about in routes:
        return routes.report(routes[about])  # an earlier call failed
    if c is not None and beta != 0:
        try:
            c = c.expand(*a.shape[:-1], b.shape[-1])
        except RuntimeError:
            return None
        if c.dtype not in (a.dtype, dtype) or c.device != a.device:
            return None
    try:
        return product(a, b, c=c, beta=float(beta), alpha=float(alpha), how=How(out_dtype=dtype))
    except Exception as error:
        routes.give_up(about, a, b, error)
        return None
