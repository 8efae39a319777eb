"""A cache of calls: a call like an earlier one is launched as that one was, without checking its arguments again.

The key is the function and all properties of its arguments that decide which plan is called, and with what.
"""

from typing import Any, NamedTuple

import torch
from torch.autograd.graph import increment_version

from tritonmm.torch_ops.checks import spanned
from tritonmm.torch_ops.operator import PLAIN, is_plain
from tritonmm.torch_ops.product import Call, How, empty, find, key, remember

Tensor = torch.Tensor

Geometry = tuple[tuple[int, ...], tuple[int, ...]]
"""A shape and strides."""

# Inductor's: two thirds of the time of as_strided, which dispatches, and keeps track of views for autograd.
_alias = torch._C._dynamo.guards._reinterpret_tensor


class Kept(NamedTuple):
    """How a call was computed.

    a, b, added, out: the shape and strides in which the plan takes each tensor; None for its own.
    role: what the added tensor is in the plan, "bias" or "c"; "" if there is none or it is not read.
    launch: the launch, if it serves all calls like it: then no views are made. None otherwise.
    added_at: the address modulo 16 of the added tensor for which `launch` is valid.
    shape, strides: of a new result.
    spans: bytes from the first element to the end of the last, of a, b, the added tensor (0 if it is not read) and the
        result.
    """

    call: Call
    a: Geometry | None
    b: Geometry | None
    added: Geometry | None
    role: str
    out: Geometry | None
    launch: Any  # a `launch.direct.Launch`, whose module imports Triton, or None
    added_at: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    spans: tuple[int, int, int, int]


def again(
    name: str,
    a: Tensor,
    b: Tensor,
    added: Tensor | None = None,
    out: Tensor | None = None,
    alpha: float = 1,
    beta: float = 1,
) -> Tensor | None:
    """alpha * a @ b + beta * added, as an earlier call of the function `name` computed it; None if there is none."""
    if not is_plain(a, b) or not (added is None or _is_added(added, alpha, beta)):
        return None
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or (added is not None and added.requires_grad)):
        return None
    try:
        kept = _KEPT.get(_about(name, a, b, added, alpha, beta))
        if kept is None or not (out is None or _takes(kept, out, a, b, added)):
            return None
    except RuntimeError:  # one has no memory: a sparse tensor, say, which is refused elsewhere
        return None
    if out is None:
        out = empty(kept.shape, kept.strides, a)
    else:
        increment_version(out)
    launch = kept.launch
    if launch is not None and (not kept.role or added.data_ptr() & 15 == kept.added_at) and not launch.hooked():
        a_at, b_at, out_at = a.data_ptr(), b.data_ptr(), out.data_ptr()
        if kept.role == "bias":
            launch.again(kept.call.plan, a, b, out, a_at, b_at, out_at, alpha, beta, None, added)
        else:
            launch.again(kept.call.plan, a, b, out, a_at, b_at, out_at, alpha, beta, added if kept.role else None, None)
        return out
    target = out if kept.out is None else _alias(out, *kept.out, 0)
    a = a if kept.a is None else _alias(a, *kept.a, 0)
    b = b if kept.b is None else _alias(b, *kept.b, 0)
    if added is None:
        kept.call.plan(a, b, target)
        return out
    if kept.added is not None:
        added = _alias(added, *kept.added, 0)
    if kept.role == "bias":
        kept.call.plan(a, b, target, alpha=alpha, bias=added)
    elif kept.role == "c":
        kept.call.plan(a, b, target, alpha=alpha, beta=beta, c=added)
    else:
        kept.call.plan(a, b, target, alpha=alpha)
    return out


def keep(
    name: str,
    operands: tuple[Tensor, ...],
    alpha: float,
    beta: float,
    result: Tensor,
    left: Tensor,
    right: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    how: How | None = None,
) -> None:
    """Keeps how `result` was computed, if calls with the same key can all be computed so.

    operands: a, b, and the added tensor if there is one. left, right, c, bias, how: those as `product.product` took
    them; `how` is the function's own.
    """
    a, b, added = (*operands, None)[:3]
    if not is_plain(a, b) or not (added is None or _is_added(added, alpha, beta)):
        return
    if result.requires_grad or result.is_meta:
        return
    if not (left.numel() and right.numel()) or (added is None and alpha != 1):  # keys have alpha only beside an addend
        return
    about = _about(name, a, b, added, alpha, beta)
    if about in _KEPT:
        return
    role = "" if added is None or beta == 0 else "c" if bias is None else "bias"
    read = {"": None, "c": c, "bias": bias}[role]
    pairs = [(a, left), (b, right), *(() if read is None else ((added, read),))]
    if any(x.data_ptr() != seen.data_ptr() for x, seen in pairs):
        return  # some were copied
    if role == "bias" and not read.is_contiguous():
        return  # kernels read a copy
    call = find(left, right, (alpha != 1, role == "bias", role == "c"), None, how)
    if _about(name, a, b, added, alpha, beta) != about:
        return  # another thread has changed what is required
    spans = spanned(a), spanned(b), 0 if read is None else spanned(added), result.nbytes
    geometries = [_geometry(x, seen) for x, seen in pairs]
    of_added = geometries[2] if read is not None else None
    shape = tuple(result.shape)
    out = None if shape == call.shape else (call.shape, call.strides)
    launch = None
    if result.stride() == _contiguous(shape) and not result.data_ptr() & 15:
        target = result if out is None else _alias(result, *out, 0)
        launch = call.plan.repeated(left, right, target, *(read if role == each else None for each in ("c", "bias")))
    added_at = 0 if read is None else added.data_ptr() & 15
    kept = Kept(call, *geometries[:2], of_added, role, out, launch, added_at, shape, _contiguous(shape), spans)
    remember(_KEPT, about, kept)


def forget() -> None:
    """Forgets all calls, so that the next ones use plans that were adopted meanwhile."""
    _KEPT.clear()


_NUMBERS = frozenset((int, float))


def _is_added(added: Tensor, alpha: float, beta: float) -> bool:
    """Whether only autograd can intercept `added`, alpha and beta are plain numbers, and a and b are read."""
    return (
        type(added) in PLAIN
        and type(alpha) in _NUMBERS
        and type(beta) in _NUMBERS
        and alpha != 0
        and not added.is_neg()
    )


def _about(name: str, a: Tensor, b: Tensor, added: Tensor | None, alpha: float, beta: float) -> tuple:
    """The key of a call. No plan depends on the address of the added tensor."""
    if added is None:
        return name, key(a, b)
    index = added.get_device()  # numbers compare faster than devices
    looks = added.shape, added.stride(), added.dtype, added.device if index < 0 else index
    return name, key(a, b), looks, alpha == 1, beta == 0, beta == 1


def _takes(kept: Kept, out: Tensor, a: Tensor, b: Tensor, added: Tensor | None) -> bool:
    """Whether such a call may write its result to `out`, which may be any tensor."""
    if (
        type(out) is not Tensor
        or out.shape != kept.shape
        or out.stride() != kept.strides
        or out.dtype is not a.dtype
        or out.get_device() != a.get_device()
        or out.is_neg()
        or (out.requires_grad and torch.is_grad_enabled())
        or (out.is_inference() and not torch.is_inference_mode_enabled())
    ):
        return False
    of_a, of_b, of_added, of_out = kept.spans
    start = out.data_ptr()
    end = start + of_out
    first = a.data_ptr()
    if start & 15 or (first < end and start < first + of_a):
        return False
    first = b.data_ptr()
    if first < end and start < first + of_b:
        return False
    if not of_added:
        return True
    first = added.data_ptr()
    if first >= end or start >= first + of_added:
        return True
    # Every element of C is read by the program that writes it, before it does.
    return kept.role == "c" and first == start and added.shape == out.shape and added.stride() == out.stride()


def _geometry(x: Tensor, seen: Tensor) -> Geometry | None:
    """Shape and strides of `seen`, which is x as the plan takes it; None if they are x's own."""
    same = x.shape == seen.shape and x.stride() == seen.stride()
    return None if same else (tuple(seen.shape), seen.stride())


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a new tensor."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


_KEPT: dict[tuple, Kept] = {}
