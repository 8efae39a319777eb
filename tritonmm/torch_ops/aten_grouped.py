"""The aten ops for grouped products, and kernels for them that fall back to torch's.

They are _grouped_mm, which torch.nn.functional.grouped_mm calls, _scaled_grouped_mm, and _scaled_grouped_mm_v2, which
torch.nn.functional.scaled_grouped_mm calls. torch still gets what it refuses, and raises its errors: see
`routes.kept_by_torch`. It also computes mx and nvfp4 formats. torch's derivatives of _grouped_mm are calls of it again.

Results have torch's strides, rows that are padded to 16 bytes. Rows and columns past the last offset are uninitialised
memory, as in torch. The host never reads the offsets. A batch of _grouped_mm, two 3-D operands, is computed as `bmm`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from tritonmm.model.torch_time import GROUPED_ARCHS
from tritonmm.problem import MOST_GROUPS, Problem
from tritonmm.torch_ops.aten import SUBCLASS, original
from tritonmm.torch_ops.grouped_product import GroupedHow, chosen, grouped_product, problem_of, result_shape
from tritonmm.torch_ops.operator import PLAIN
from tritonmm.torch_ops.product import BARE, How, gpu_of, key, problem_for, product, remember
from tritonmm.torch_ops.routes import Routes, Switch
from tritonmm.torch_ops.scaled_grouped import matched, rows_of_batch

Tensor = torch.Tensor

MULTIPLIED = (torch.bfloat16, torch.float16, torch.float32)
"""Dtypes that torch's _grouped_mm takes."""

ROW_BYTES = 16
"""Bytes that the strides of operands must be multiples of, and that rows of results are padded to."""

_OF_ROWS = 1
"""torch.nn.functional.ScalingType's number of RowWise."""


class Route(NamedTuple):
    """How a kind of call is computed: what is asked, without scales, and the output's shape, strides and dtype."""

    how: GroupedHow
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def empty(self, like: Tensor) -> Tensor:
        return like.new_empty_strided(self.shape, self.strides, dtype=self.dtype)


def kernels(dispatch_key: str) -> Iterator[tuple[Switch, Callable]]:
    """Kernels for those of the ops that this torch has, and the switch of each.

    They call the present kernels for what the policy does not want, what tritonmm does not support, and what fails.
    """
    for name, arguments in OPERATORS.items():
        if _is_present(name, dispatch_key):
            yield _kernel(name, arguments, dispatch_key)


def _is_present(name: str, dispatch_key: str) -> bool:
    """Whether torch has a kernel for the op under this dispatch key, its own or one for all keys."""
    try:
        return torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{name}", dispatch_key)
    except RuntimeError:
        return False  # another release of torch has no such op


class Asked(NamedTuple):
    """The arguments of a call that kernels take; scales is None for _grouped_mm.

    kept: why torch computes the call whatever its operands are; "" if it is to raise an error, None for neither.
    """

    a: Tensor
    b: Tensor
    offs: Tensor | None
    out_dtype: torch.dtype | None
    scales: tuple[Tensor, Tensor] | None = None
    fast: bool = False
    kept: str | None = None


def _plain(a, b, offs=None, bias=None, out_dtype=None) -> Asked:
    return Asked(a, b, offs, out_dtype, kept=None if bias is None else "")


def _scaled(
    a, b, scale_a, scale_b, offs=None, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False
) -> Asked:  # fmt: skip
    kept = None if bias is scale_result is None else ""
    return Asked(a, b, offs, out_dtype, (scale_a, scale_b), use_fast_accum, kept)


def _by_recipes(
    a, b, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, offs=None, bias=None, out_dtype=None,
    contraction_dim=(), use_fast_accum=False,
) -> Asked:  # fmt: skip
    kept = None if bias is None else ""
    if not (len(scale_a) == len(scale_b) == 1 and [*recipe_a] == [*recipe_b] == [_OF_ROWS]):
        return Asked(a, b, offs, out_dtype, kept="the scales are not fp32 ones of rows")
    if any(swizzle_a) or any(swizzle_b) or contraction_dim:
        kept = "swizzle or contraction_dim is given"
    return Asked(a, b, offs, out_dtype, (scale_a[0], scale_b[0]), use_fast_accum, kept)


OPERATORS: dict[str, Callable[..., Asked]] = {
    "_grouped_mm": _plain,
    "_scaled_grouped_mm": _scaled,
    "_scaled_grouped_mm_v2": _by_recipes,
}
"""The ops, and what reads the arguments of a call."""


def _kernel(name: str, arguments: Callable[..., Asked], dispatch_key: str) -> tuple[Switch, Callable]:
    torchs, switch = original(name, dispatch_key), Switch(name)
    device = dispatch_key.lower()

    def kernel(*args, **rest):
        routes = switch.routes
        if routes is not None:
            found = _attempt(routes, arguments(*args, **rest), device)
            if found is not None:
                return found
        return torchs(*args, **rest)

    return switch, kernel


def _attempt(routes: Routes, asked: Asked, device: str) -> Tensor | None:
    """The result, or None if torch computes the call."""
    a, b, offs, out_dtype, scales, fast, kept = asked
    if kept is not None:
        routes.report(kept)
        return None
    given = [x for x in (a, b, offs, *(scales or ())) if x is not None]
    if any(type(x) not in PLAIN for x in given):
        routes.report(SUBCLASS)
        return None
    if any(x.device != a.device or x.layout != torch.strided for x in given) or a.device.type != device:
        return None  # torch raises its error
    about = key(a, b), offs is not None and (offs.shape, offs.dtype), out_dtype, fast
    if scales is not None:
        about += tuple((x.dtype, x.shape, x.stride()) for x in scales)
    try:
        try:
            route = routes[about]
        except KeyError:
            route = _route(routes, asked)
            remember(routes, about, route)
        if isinstance(route, str):
            routes.report(route)
            return None
        out = route.empty(a)
        if scales is not None:
            return _scaled_product(a, b, offs, scales, out, route.how)
        if offs is None:
            return product(a, b, out, how=How(accumulation=route.how.accumulation))
        return grouped_product(a, b, offs, how=route.how, out=out)
    except Exception as error:
        routes.give_up(about, a, b, error)
        return None


def _scaled_product(a, b, offs, scales, out: Tensor, how: GroupedHow) -> Tensor:
    scale_a, scale_b, _ = matched(a, b, *scales, offs)
    if offs is not None:
        return grouped_product(a, b, offs, how=how._replace(scale_a=scale_a, scale_b=scale_b), out=out)
    rows, offs = rows_of_batch(a)
    how = how._replace(scale_a=scale_a.flatten(0, 1), scale_b=scale_b)
    grouped_product(rows, b, offs, how=how, out=out.flatten(0, 1))
    return out


def _route(routes: Routes, asked: Asked) -> Route | str:
    """The route of such calls, or why torch computes them; "" if there is nothing to say about that."""
    a, b, offs, out_dtype, scales, fast, _ = asked
    if not _fit(a, b, offs):
        return ""
    groups = (b if a.dim() < b.dim() else a).shape[0] if offs is None or 3 in (a.dim(), b.dim()) else offs.shape[0]
    if not a.numel() or not b.numel() or not groups:
        return ""
    if groups > MOST_GROUPS:
        return f"there are {groups} groups; tritonmm.grouped_mm takes at most {MOST_GROUPS}"
    fixed = "" if routes.demand.accumulation == "any" else routes.demand.accumulation
    if scales is None:
        if a.dtype not in MULTIPLIED or a.dtype != b.dtype or out_dtype not in (None, a.dtype):
            return ""
        how, dtype = GroupedHow(accumulation=fixed), a.dtype
    else:
        dtype = torch.bfloat16
        if out_dtype not in (None, dtype) or gpu_of(a.device).arch not in GROUPED_ARCHS:
            return ""
        if offs is None and a.shape[0] * a.shape[1] >= 2**31:
            return "the batch has 2**31 rows or more"
        reason = _scales_reason(a, b, offs, *scales)
        if reason is not None:
            return reason
        how = GroupedHow("fast" if fast else "ieee", dtype, scales="row", accumulation=fixed)
    shape = (*a.shape[:-1], b.shape[-1]) if offs is None else result_shape(a, b, offs)
    route = Route(how, shape, _padded(shape, dtype), dtype)
    try:
        problem, is_grouped = _problem(a, b, offs, route)
        if reason := routes.refusal(problem, gpu_of(a.device)):
            return reason
        if is_grouped:
            chosen(problem, gpu_of(a.device))
    except ValueError as error:
        return str(error)  # no config is legal
    return route


def _problem(a: Tensor, b: Tensor, offs: Tensor | None, route: Route) -> tuple[Problem, bool]:
    """The problem of a call, and whether it is a grouped product."""
    out = route.empty(a)
    if offs is not None:
        return problem_of(a, b, out, route.how), True
    if route.how.scales:
        return problem_of(a.flatten(0, 1), b, out.flatten(0, 1), route.how), True
    return problem_for(a, b, out, BARE, How(accumulation=route.how.accumulation)), False


def _fit(a: Tensor, b: Tensor, offs: Tensor | None) -> bool:
    """Whether torch takes operands of these shapes and strides."""
    if a.dim() not in (2, 3) or b.dim() not in (2, 3) or a.shape[-1] != b.shape[-2]:
        return False
    if not _has_rows(a) or not _has_rows(b) or (offs is None) != (a.dim() == b.dim() == 3):
        return False
    if offs is None:
        return a.shape[0] == b.shape[0]
    if offs.dim() != 1 or offs.dtype != torch.int32:
        return False
    return all(x.dim() == 2 or x.shape[0] == offs.shape[0] for x in (a, b))


def _has_rows(x: Tensor, transposed: bool | None = None) -> bool:
    """Whether x has rows, or columns if it is `transposed`, that are contiguous, do not overlap and are aligned."""
    (rows, cols), (of_rows, of_cols) = x.shape[-2:], x.stride()[-2:]
    if of_rows == 1 and of_cols >= max(1, rows):
        lead, found = of_cols, True
    elif of_cols == 1 and of_rows >= max(1, cols):
        lead, found = of_rows, False
    else:
        return False
    aligned = lead * x.itemsize % ROW_BYTES == 0 and x.data_ptr() % ROW_BYTES == 0
    return aligned and transposed in (None, found)


def _scales_reason(a: Tensor, b: Tensor, offs: Tensor | None, scale_a: Tensor, scale_b: Tensor) -> str | None:
    """Why torch computes a product with scales: "" if it raises an error. None if it need not."""
    if not _has_rows(a, transposed=False) or not _has_rows(b, transposed=True):
        return ""
    if a.shape[-1] % 16 or b.shape[-1] % 16 or not a.dtype == b.dtype == torch.float8_e4m3fn:
        return ""
    if not scale_a.dtype == scale_b.dtype == torch.float32:
        return f"the scales are {scale_a.dtype} and {scale_b.dtype}"
    if scale_a.stride()[-1:] != (1,) or scale_b.stride()[-1:] != (1,):
        return ""
    try:
        return None if matched(a, b, scale_a, scale_b, offs)[2] == "row" else ""
    except RuntimeError:
        return ""


def _padded(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, ...]:
    """torch's strides of a result."""
    *batch, rows, cols = shape
    unit = ROW_BYTES // dtype.itemsize
    lead = -(-cols // unit) * unit
    return (rows * lead, lead, 1) if batch else (lead, 1)
