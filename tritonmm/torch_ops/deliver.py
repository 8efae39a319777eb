"""From checked operands to the result of a function: a new tensor or `out`, after tuning where that is asked for."""

from typing import Any

import torch
from torch.autograd.graph import increment_version

from tritonmm.config import Config
from tritonmm.dtypes import output_dtype
from tritonmm.torch_ops import first_call
from tritonmm.torch_ops.call_cache import keep
from tritonmm.torch_ops.checks import addend, check_config, is_same, overlap, prepare_out, scalar
from tritonmm.torch_ops.operator import compute, is_plain
from tritonmm.torch_ops.product import How, product

Tensor = torch.Tensor


def deliver(
    name: str,
    operands: tuple[Tensor, ...],
    a: Tensor,
    b: Tensor,
    shape: tuple[int, ...],
    *,
    added: Tensor | None = None,
    alpha: float = 1,
    beta: float = 1,
    out: Tensor | None = None,
    config: Config | None = None,
    how: How | None = None,
    tune: str = "",
) -> Tensor:
    """alpha * a @ b + beta * added, in `shape`, for the public function `name`.

    operands: those of the function, checked, in the order of a, b and added, which are views or copies of them.
    a, b: both 2-D, or both 3-D.
    """
    alpha, beta = scalar(name, "alpha", alpha), scalar(name, "beta", beta)
    check_config(name, config)
    if tune:
        _check_tune(name, tune, config, how)
    folded = *a.shape[:-1], b.shape[-1]
    addends = {} if added is None else addend(name, added, alpha, beta, folded)
    options: dict[str, Any] = {"alpha": alpha, "beta": beta, "config": config, "how": how, **addends}
    if out is None:
        if tune:
            first_call.tune(a, b, how=how)
        found = compute(a, b, **options)
        result = found if found.shape == shape else found.reshape(shape)
        if config is None and (how is None or how.is_usual):
            keep(name, operands, alpha, beta, result, a, b, how=how, **addends)
        return result
    prepare_out(name, out, shape, *operands, dtype=(how and how.out_dtype) or output_dtype(a.dtype))
    scales = () if how is None else (x for x in (how.scale_a, how.scale_b) if x is not None)
    target = _target(out, folded, a, b, *scales, **addends)
    if tune:
        first_call.tune(a, b, target, how=how)
    if target is None:
        return out.copy_(compute(a, b, **options).reshape(shape))
    increment_version(out)  # kernels write what autograd may have saved
    product(a, b, target, **options)
    if config is None and (how is None or how.is_usual):
        keep(name, operands, alpha, beta, out, a, b, how=how, **addends)
    return out


def _check_tune(name: str, tune: str, config: Config | None, how: How | None) -> None:
    if tune != "first-call":
        raise ValueError(f'{name}: tune is {tune!r}; it must be "first-call", or "" for no tuning')
    if config is not None:
        raise ValueError(f"{name}: both config and tune are given; tuning chooses the config, so leave one out")
    if how is not None and how.precision.startswith("ozaki"):
        raise ValueError(f"{name}: tune is given with precision {how.precision!r}, which has no config to choose")


def _target(
    out: Tensor, shape: tuple[int, ...], *operands: Tensor, c: Tensor | None = None, bias: Tensor | None = None
) -> Tensor | None:
    """`out` in a shape that kernels can write, or None where its strides, memory or a transform of torch forbid it."""
    read = operands if bias is None else (*operands, bias)
    if not all(is_plain(x, out) for x in (*read, *(() if c is None else (c,)))):
        return None
    try:
        target = out.view(shape)
    except RuntimeError:
        return None
    if any(overlap(target, x) for x in read):
        return None
    # Every element of c is read by the program that writes it, before it does.
    return target if c is None or is_same(target, c) or not overlap(target, c) else None
