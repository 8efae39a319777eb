"""The aten ops for 8-bit operands, and kernels for them that fall back to torch's.

They are _int_mm, _scaled_mm, and _scaled_mm_v2, which torch.nn.functional.scaled_mm calls. torch still gets what it
refuses, and raises its errors: see `routes.kept_by_torch`. It also computes mx formats.
"""

import math
from collections.abc import Callable, Iterator

import torch

from tritonmm.torch_ops.aten import original
from tritonmm.torch_ops.checks import overlap, repeats
from tritonmm.torch_ops.operator import PLAIN
from tritonmm.torch_ops.product import How, gpu_of, key, new_output, problem_of, product, remember
from tritonmm.torch_ops.quantized import FP8_DTYPES, OUTPUTS, matched_scales
from tritonmm.torch_ops.routes import Routes, Switch

Tensor = torch.Tensor


def kernels(dispatch_key: str) -> Iterator[tuple[Switch, Callable]]:
    """Kernels for the overloads, and the switch of each.

    They call the present kernels for what the policy does not want, what tritonmm does not support, and what fails.
    """
    device = dispatch_key.lower()

    def attempt(
        routes: Routes | None, a, b, find: Callable[[], How | str], about: tuple,
        bias=None, scale_a=None, scale_b=None, out=None,
    ) -> Tensor | None:  # fmt: skip
        """The result, or None if torch computes the call. find() says how to compute it, once for each kind of call."""
        if routes is None:
            return None
        given = [x for x in (a, b, bias, scale_a, scale_b, out) if x is not None]
        if any(type(x) not in PLAIN or x.device != a.device for x in given) or a.device.type != device:
            routes.report("operands are of a subclass of Tensor, or on several devices")
            return None
        about = key(a, b), *about
        if out is not None:
            about += out.shape, out.stride(), out.dtype, out.data_ptr() & 15
        try:
            try:
                how = routes[about]
            except KeyError:
                how = _accepted(find(), routes, a, b, bias, out)
                remember(routes, about, how)
            if not isinstance(how, str) and out is not None and any(overlap(out, x) for x in given[:-1]):
                how = "out overlaps an operand"
            if isinstance(how, str):
                routes.report(how)
                return None
            if how.scales == "tensor":
                scale_a, scale_b = scale_a.view(1, 1), scale_b.view(1, 1)
            return product(a, b, out, bias=bias, how=how._replace(scale_a=scale_a, scale_b=scale_b))
        except Exception as error:
            routes.give_up(about, a, b, error)
            return None

    def overloads(name: str) -> Iterator[tuple[Callable, Switch]]:
        """torch's kernels of an op and of its out variant, with a switch for ours."""
        for overload in (name, f"{name}.out"):
            yield original(overload, dispatch_key), Switch(overload)

    def is_present(name: str) -> bool:
        return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", dispatch_key)

    if is_present("_int_mm"):
        (torchs_int, switch_int), (torchs_int_out, switch_int_out) = overloads("_int_mm")

        def int_mm(a, b):
            found = attempt(switch_int.routes, a, b, lambda: _int_how(a, b), ())
            return torchs_int(a, b) if found is None else found

        def int_mm_out(a, b, *, out):
            found = attempt(switch_int_out.routes, a, b, lambda: _int_how(a, b), (), out=out)
            return torchs_int_out(a, b, out=out) if found is None else found

        yield switch_int, int_mm
        yield switch_int_out, int_mm_out

    def scaled(routes, a, b, scale_a, scale_b, bias, scale_result, out_dtype, fast, out=None):
        if routes is None:
            return None
        if scale_result is not None:
            routes.report("scale_result is given")
            return None
        about = tuple(x if x is None else (x.dtype, x.shape, x.stride()) for x in (scale_a, scale_b, bias))

        def find():
            return _scaled_how(a, b, scale_a, scale_b, bias, out_dtype, fast)

        return attempt(routes, a, b, find, (*about, out_dtype, fast), bias, scale_a, scale_b, out)

    if is_present("_scaled_mm"):
        (torchs_scaled, switch_scaled), (torchs_scaled_out, switch_scaled_out) = overloads("_scaled_mm")

        def scaled_mm(
            a, b, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False
        ):  # fmt: skip
            given = scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum
            found = scaled(switch_scaled.routes, a, b, *given)
            return torchs_scaled(a, b, *given) if found is None else found

        def scaled_mm_out(
            a, b, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False, *, out
        ):  # fmt: skip
            given = scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum
            found = scaled(switch_scaled_out.routes, a, b, *given, out=out)
            return torchs_scaled_out(a, b, *given, out=out) if found is None else found

        yield switch_scaled, scaled_mm
        yield switch_scaled_out, scaled_mm_out

    if is_present("_scaled_mm_v2"):
        (torchs_v2, switch_v2), (torchs_v2_out, switch_v2_out) = overloads("_scaled_mm_v2")

        def by_recipes(
            routes, a, b, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, out_dtype,
            contraction_dim=(), use_fast_accum=False, out=None,
        ):  # fmt: skip
            if routes is None:
                return None
            plain = not (any(swizzle_a) or any(swizzle_b) or contraction_dim)
            scales = _scales_by_recipes(a, b, scale_a, recipe_a, scale_b, recipe_b) if plain else None
            if scales is None:
                routes.report("the scales are not fp32 ones of tensors, rows, 1x128 or 128x128 blocks")
                return None
            return scaled(routes, a, b, *scales, bias, None, out_dtype, use_fast_accum, out)

        def scaled_mm_v2(*args, **rest):
            found = by_recipes(switch_v2.routes, *args, **rest)
            return torchs_v2(*args, **rest) if found is None else found

        def scaled_mm_v2_out(*args, **rest):
            found = by_recipes(switch_v2_out.routes, *args, **rest)
            return torchs_v2_out(*args, **rest) if found is None else found

        yield switch_v2, scaled_mm_v2
        yield switch_v2_out, scaled_mm_v2_out


_OF_TENSOR, _OF_ROWS, _OF_GROUPS, _OF_BLOCKS = 0, 1, 4, 5
"""torch.nn.functional.ScalingType's numbers of TensorWise, RowWise, BlockWise1x128 and BlockWise128x128."""


def _scales_by_recipes(a, b, scales_a, recipes_a, scales_b, recipes_b) -> tuple[Tensor, Tensor] | None:
    """The scales of both operands as _scaled_mm takes them, or None where their shapes are not those of the recipes."""
    if not _are_matrices(a, b) or [len(x) for x in (scales_a, recipes_a, scales_b, recipes_b)] != [1, 1, 1, 1]:
        return None
    (scale_a,), (scale_b,), recipes = scales_a, scales_b, (*recipes_a, *recipes_b)
    (m, k), n = a.shape, b.shape[1]
    if recipes == (_OF_TENSOR, _OF_TENSOR):
        return (scale_a, scale_b) if scale_a.numel() == scale_b.numel() == 1 else None
    if recipes == (_OF_ROWS, _OF_ROWS):
        return (scale_a, scale_b) if scale_a.shape == (m, 1) and scale_b.shape == (1, n) else None
    if recipes not in ((_OF_GROUPS, _OF_GROUPS), (_OF_GROUPS, _OF_BLOCKS), (_OF_BLOCKS, _OF_GROUPS)):
        return None
    of_a, of_b = _of_lines(scale_a, recipes[0], m, k), _of_lines(scale_b, recipes[1], n, k)
    return None if of_a is None or of_b is None else (of_a, of_b.t())


def _of_lines(scale: Tensor, recipe: int, lines: int, k: int) -> Tensor | None:
    """Block-wise scales as (lines or blocks of 128 lines, ceil(k / 128)). lines: rows of a, or columns of b.

    torch stores those of 128x128 blocks with k first and contiguous, padded to a multiple of 4.
    """
    groups = math.ceil(k / 128)
    if recipe == _OF_GROUPS:
        return scale if scale.shape == (lines, groups) else None
    padded = math.ceil(groups / 4) * 4, math.ceil(lines / 128)
    return scale[:groups].t() if scale.shape == padded and scale.stride(0) == 1 else None


def _accepted(how: How | str, routes: Routes, a, b, bias, out) -> How | str:
    """How to compute a call, without its scales, or why torch does; "" if there is nothing to say about that."""
    if isinstance(how, str):
        return how
    into = new_output(a, b, how.out_dtype) if out is None else out
    if into.dtype != how.out_dtype or into.shape != (a.shape[0], b.shape[1]) or repeats(into):
        return "out has another dtype or shape, or elements that share memory"
    reason = routes.refusal(problem_of(a, b, into, (False, bias is not None, False), how), gpu_of(a.device))
    return reason or how._replace(scale_a=None, scale_b=None)


def _int_how(a: Tensor, b: Tensor) -> How | str:
    if not a.dtype == b.dtype == torch.int8 or not _are_matrices(a, b):
        return ""
    return How(out_dtype=torch.int32)


def _scaled_how(a, b, scale_a, scale_b, bias, out_dtype, fast) -> How | str:
    if not _are_matrices(a, b):
        return ""
    if a.dtype not in FP8_DTYPES or b.dtype not in FP8_DTYPES:
        return f"operands are {a.dtype} and {b.dtype}"
    if out_dtype not in OUTPUTS:
        return f"out_dtype is {out_dtype}"
    if bias is not None and (bias.shape != b.shape[1:] or out_dtype == torch.float32 or bias.dtype != out_dtype):
        return f"the bias is {bias.dtype}, the output {out_dtype}"
    try:
        scales = matched_scales(a, b, scale_a, scale_b)[2]
    except RuntimeError as error:
        return str(error)
    return How("fast" if fast else "ieee", out_dtype, scales=scales)


def _are_matrices(a: Tensor, b: Tensor) -> bool:
    return a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0] and a.numel() > 0 and b.numel() > 0
