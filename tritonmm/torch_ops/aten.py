"""The aten ops that all matmuls of torch end in, and kernels for them that fall back to torch's.

What a call needs is found once for operands of its kind, and kept as a route.

If a plan cannot be made, compiled or launched, torch's kernel computes the call. C is unchanged then, even if it is the
output: a plan writes its output in its last launch, and nothing fails after that. Errors that CUDA finds while the
kernel runs cannot be caught; the next synchronisation raises them, as for any kernel. The interpreter runs kernels
during the call: one that fails there may have overwritten part of C.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from tritonmm.dtypes import DTYPES, FLOATS
from tritonmm.torch_ops.checks import repeats, separate_blocks, spanned
from tritonmm.torch_ops.operator import PLAIN
from tritonmm.torch_ops.product import Call, How, empty, find, fp32_precision, gpu_of, key, problem_for, remember
from tritonmm.torch_ops.routes import Routes, Switch

Tensor = torch.Tensor

ADDED = PLAIN | {type(None)}

SUBCLASS = "an operand is of a subclass of Tensor"

_MULTIPLIED = tuple(DTYPES[name] for name in FLOATS)


class AtenOp(NamedTuple):
    """An aten op and the GEMM that computes it.

    dims: 2, or 3 for a batched GEMM.
    adds: True if it adds C, and therefore has an in-place overload.
    operands: converts the op's operands to the GEMM's a and b. addend: converts the op's C, and its output, to the
        GEMM's. shape: converts the GEMM's shape to the result's. None where they are the same.
    """

    name: str
    dims: int
    adds: bool
    operands: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    addend: Callable[[Tensor], Tensor] | None = None
    shape: Callable[[tuple[int, ...]], tuple[int, ...]] | None = None


def _column(x: Tensor) -> Tensor:
    return x.unsqueeze(-1) if x.dim() == 1 else x


def _side_by_side(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two batches as two matrices: one GEMM of these is the sum of the batch's."""
    return a.transpose(0, 1).flatten(1), b.flatten(0, 1)


ATEN_OPS = (
    AtenOp("mm", 2, False),
    AtenOp("bmm", 3, False),
    AtenOp("addmm", 2, True),
    AtenOp("baddbmm", 3, True),
    AtenOp("addbmm", 2, True, _side_by_side),
    AtenOp("addmv", 2, True, lambda a, b: (a, b.unsqueeze(1)), _column, lambda shape: shape[:1]),
    AtenOp("dot", 2, False, lambda a, b: (a.unsqueeze(0), b.unsqueeze(1)), shape=lambda shape: ()),
    AtenOp("vdot", 2, False, lambda a, b: (a.unsqueeze(0), b.unsqueeze(1)), shape=lambda shape: ()),
)


class Route(NamedTuple):
    """How a kind of call is computed: its plan, what C is in the epilogue ("", "bias", "c"), and bytes of tensors."""

    call: Call
    added: str
    spans: tuple[int, ...]


def original(name: str, dispatch_key: str) -> Callable:
    """torch's own kernel of an overload."""
    kernel = torch.library.get_kernel(f"aten::{name}", dispatch_key)
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, dispatch_key))
    return functools.partial(kernel.call_boxed, keys)


def kernels(op: AtenOp, dispatch_key: str) -> Iterator[tuple[Switch, Callable]]:
    """Kernels for the overloads of an op, and the switch of each.

    They call the present kernels for what the policy does not want, what tritonmm does not support, and what fails.
    """
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{op.name}", dispatch_key):
        return  # a build of torch for CPUs alone: there is nothing to override
    device = dispatch_key.lower()

    def attempt(routes: Routes | None, a, b, c=None, beta=1, alpha=1, out=None) -> Tensor | None:
        """The result, or None if torch computes the call."""
        if routes is None:
            return None
        if type(a) not in PLAIN or type(b) not in PLAIN or type(c) not in ADDED or type(out) not in ADDED:
            routes.report(SUBCLASS)
            return None
        about = key(a, b)
        if c is not None:
            about += c.shape, c.stride(), c.dtype, c.device, alpha == 1, beta == 0, beta == 1
        if out is not None:
            about += out.shape, out.stride(), out.dtype, out.device, out.data_ptr() & 15, out is c
        try:
            try:
                route = routes[about]
            except KeyError:
                route = _route(op, routes, device, a, b, c, beta, alpha, out)
                remember(routes, about, route)
            if alpha == 0:
                return None
            reason = route if type(route) is str else _reason_of_call(route, a, b, c, beta, alpha, out)
            if reason is not None:
                routes.report(reason)
                return None
            call, added, _ = route
            left, right = op.operands(a, b) if op.operands else (a, b)
            target = empty(call.shape, call.strides, a) if out is None else _as_addend(op, out)
            if added == "c":
                call.plan(left, right, target, alpha=alpha, beta=beta, c=_as_addend(op, c))
            elif added:
                call.plan(left, right, target, alpha=alpha, bias=c if c.dim() == 1 else c.view(-1))
            else:
                call.plan(left, right, target, alpha=alpha)
        except Exception as error:
            routes.give_up(about, a, b, error)
            return None
        if out is not None:
            return out
        return target.view(op.shape(call.shape)) if op.shape else target

    torchs, switch = original(op.name, dispatch_key), Switch(op.name)
    if op.adds:
        # scalars: beta and alpha, each only where it is not 1.
        def functional(c, a, b, **scalars):
            found = attempt(switch.routes, a, b, c, **scalars)
            return torchs(c, a, b, **scalars) if found is None else found

        def in_place(c, a, b, **scalars):
            found = attempt(switch_in_place.routes, a, b, c, out=c, **scalars)
            return torchs_in_place(c, a, b, **scalars) if found is None else found

        def into(c, a, b, *, out, **scalars):
            found = attempt(switch_out.routes, a, b, c, out=out, **scalars)
            return torchs_out(c, a, b, out=out, **scalars) if found is None else found

        torchs_in_place, switch_in_place = original(op.name + "_", dispatch_key), Switch(op.name + "_")
        yield switch_in_place, in_place
    elif op.name in ("mm", "bmm"):

        def functional(a, b):
            # As short as possible: this is the most frequent call.
            routes = switch.routes
            if routes is not None and type(a) in PLAIN and type(b) in PLAIN:
                about = key(a, b)
                try:
                    try:
                        route = routes[about]
                    except KeyError:
                        route = _route(op, routes, device, a, b)
                        remember(routes, about, route)
                    if type(route) is Route:
                        call = route.call
                        return call.plan(a, b, empty(call.shape, call.strides, a))
                    routes.report(route)
                except Exception as error:
                    routes.give_up(about, a, b, error)
            elif routes is not None:
                routes.report(SUBCLASS)
            return torchs(a, b)

        def into(a, b, *, out):
            found = attempt(switch_out.routes, a, b, out=out)
            return torchs_out(a, b, out=out) if found is None else found

    else:

        def functional(a, b):
            found = attempt(switch.routes, a, b)
            return torchs(a, b) if found is None else found

    yield switch, functional
    if op.adds or op.name in ("mm", "bmm"):
        torchs_out, switch_out = original(op.name + ".out", dispatch_key), Switch(op.name + ".out")
        yield switch_out, into


def _route(op: AtenOp, routes: Routes, device: str, a, b, c=None, beta=1, alpha=1, out=None) -> Route | str:
    """The route of calls with such operands, or why torch computes them; "" if there is nothing to say about that.

    The accumulation is the one that `routes` are for: another thread may have changed what is required since.
    """
    for x in (a, b, c, out):
        if x is not None and (x.dtype != a.dtype or x.device != a.device or x.layout != torch.strided):
            return ""  # torch raises its error
    if a.dtype not in _MULTIPLIED or a.device.type != device:
        return f"operands are {a.dtype} on {a.device.type}"
    if not a.numel() or not b.numel():
        return ""
    try:
        left, right = op.operands(a, b) if op.operands else (a, b)
    except (RuntimeError, IndexError):
        return ""  # their shapes are wrong, and torch raises its error
    shape = *left.shape[:-1], right.shape[-1]
    if not op.dims == left.dim() == right.dim() or left.shape[-1] != right.shape[-2]:
        return ""
    if left.shape[:-2] != right.shape[:-2]:
        return ""
    if op.name == "addbmm" and not (a.dim() == b.dim() == 3 and a.shape[::2] == b.shape[:2]):
        return ""
    # `op.addend` makes columns of vectors.
    if op.addend and any(x is not None and x.dim() > 1 for x in (c, out)):
        return ""
    added = ""
    if c is not None:
        addend = _as_addend(op, c)
        try:
            addend.expand(shape)
        except RuntimeError:
            return ""
        if beta != 0:
            # With another alpha a bias has other bits than a C: `checks.addend`.
            row = alpha == beta == 1 and c is not out and c.is_contiguous() and addend.dim() > 0
            added = "bias" if row and addend.numel() == addend.shape[-1] == shape[-1] else "c"
    target = None if out is None else _as_addend(op, out)
    if target is not None and (target.shape != shape or repeats(target)):
        return "out has another shape, or elements that share memory"
    epilogue = (alpha != 1, added == "bias", added == "c")
    new = left.new_empty(shape) if target is None else target
    fixed = routes.demand.accumulation
    how = None if fixed == "any" else How(accumulation=fixed)
    spans = tuple(0 if x is None else spanned(x) for x in (a, b, c if added else None, out))
    try:
        if (precision := routes.demand.precision(a.dtype)) and (how is None):
            emulated = _emulated(left, right, new, target, epilogue, precision)
            if emulated is not None:
                return Route(emulated, added, spans)
        if reason := routes.refusal(problem_for(left, right, new, epilogue, how), gpu_of(a.device)):
            return reason
        call = find(left, right, epilogue, target, how)
    except ValueError as error:
        return str(error)  # no config is legal
    return Route(call, added, spans)


def _emulated(a, b, new, out, epilogue: tuple[bool, bool, bool], precision: str) -> Call | None:
    """The call of a product with precision "ozaki:safe", if it should be faster than native ones and torch multiplies
    IEEE numbers; of A @ A.T the native symmetric one, if that should be faster still. new: its output; out: the same,
    or None if each call makes a new one."""
    from tritonmm.torch_ops.ozaki_product import OzakiPlan
    from tritonmm.torch_ops.ozaki_time import gains_on_torch

    if a.dtype == torch.float32 and fp32_precision() != "ieee":
        return None
    how = How(precision, accumulation="any")
    try:
        if not gains_on_torch(problem_for(a, b, new, epilogue, how), gpu_of(a.device)):
            return None
        call = find(a, b, epilogue, out, how)
    except ValueError:  # a K that has no such product
        return None
    return call if isinstance(call.plan, OzakiPlan) or call.plan.problem.symmetric else None


def _reason_of_call(route: Route, a, b, c, beta, alpha, out) -> str | None:
    """Why torch computes a call that has a route; None if it does not."""
    if isinstance(alpha, complex) or isinstance(beta, complex):
        return ""  # torch raises its error
    return "out overlaps an operand" if out is not None and _meets(route, a, b, c, out) else None


def _as_addend(op: AtenOp, x: Tensor) -> Tensor:
    return op.addend(x) if op.addend else x


def _meets(route: Route, a, b, c, out) -> bool:
    """Whether `out` overlaps an operand, other than as C itself."""
    span_a, span_b, span_c, span_out = route.spans
    start = out.data_ptr()
    end = start + span_out
    first = a.data_ptr()
    if first < end and start < first + span_a and not separate_blocks(a, out):
        return True
    first = b.data_ptr()
    if first < end and start < first + span_b and not separate_blocks(b, out):
        return True
    if not span_c or (out is c and route.added == "c"):
        return False
    first = c.data_ptr()
    if route.added == "c" and first == start and c.shape == out.shape and c.stride() == out.stride():
        return False
    return first < end and start < first + span_c and not separate_blocks(c, out)
