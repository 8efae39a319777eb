"""aten's products of operands of one byte, _int_mm and _scaled_mm, and kernels for them that fall back on torch's.

What torch refuses is left to it, and so keeps its errors: other sizes and strides, e5m2 by e5m2, mx formats.
"""

from collections.abc import Callable, Iterator

import torch

from tritonmm.dispatch import PLAIN
from tritonmm.leaves import Wanted, original
from tritonmm.problem import DTYPES, FP8
from tritonmm.products import How, gpu_of, key, new_output, problem_of, product, remember
from tritonmm.quantized import FP8_DTYPES, OUTPUTS, matched_scales
from tritonmm.rules import overlap, repeats

Tensor = torch.Tensor


def kernels(dispatch_key: str, wanted: Wanted) -> Iterator[tuple[str, Callable]]:
    """The names of the overloads, and kernels for them, that leave to the present ones what is not `wanted`."""
    device = dispatch_key.lower()
    routes: dict[tuple, How | None] = {}

    def attempt(a, b, find: Callable, about: tuple, bias=None, scale_a=None, scale_b=None, out=None) -> Tensor | None:
        """The result, or None where the call is torch's; find() says how it is done, once for calls alike."""
        given = [x for x in (a, b, bias, scale_a, scale_b, out) if x is not None]
        if any(type(x) not in PLAIN or x.device != a.device for x in given) or a.device.type != device:
            return None
        about = key(a, b), *about
        try:
            how = routes[about]
        except KeyError:
            how = find()
            if how is not None:
                epilogue = False, bias is not None, False
                problem = problem_of(a, b, new_output(a, b, how.out_dtype), epilogue, how)
                how = how if wanted(problem, gpu_of(a.device)) else None
            remember(routes, about, how and how._replace(scale_a=None, scale_b=None))
        if how is None:
            return None
        if out is not None and (out.dtype != how.out_dtype or out.shape != (a.shape[0], b.shape[1]) or repeats(out)):
            return None
        if out is not None and any(overlap(out, x) for x in given[:-1]):
            return None
        if how.scales == "tensor":
            scale_a, scale_b = scale_a.view(1, 1), scale_b.view(1, 1)
        return product(a, b, out, bias=bias, how=how._replace(scale_a=scale_a, scale_b=scale_b))

    if torch._C._dispatch_has_kernel_for_dispatch_key("aten::_int_mm", dispatch_key):
        torchs_int, torchs_int_out = (original(name, dispatch_key) for name in ("_int_mm", "_int_mm.out"))

        def int_mm(a, b):
            found = attempt(a, b, lambda: _int_how(a, b), ("int",))
            return torchs_int(a, b) if found is None else found

        def int_mm_out(a, b, *, out):
            found = attempt(a, b, lambda: _int_how(a, b), ("int",), out=out)
            return torchs_int_out(a, b, out=out) if found is None else found

        yield "_int_mm", int_mm
        yield "_int_mm.out", int_mm_out

    if torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm", dispatch_key):
        torchs_scaled, torchs_scaled_out = (original(name, dispatch_key) for name in ("_scaled_mm", "_scaled_mm.out"))

        def scaled(a, b, scale_a, scale_b, bias, scale_result, out_dtype, fast, out=None):
            if scale_result is not None:
                return None
            about = tuple(x if x is None else (x.dtype, x.shape, x.stride()) for x in (scale_a, scale_b, bias))

            def find():
                return _scaled_how(a, b, scale_a, scale_b, bias, out_dtype, fast)

            return attempt(a, b, find, (*about, out_dtype, fast), bias, scale_a, scale_b, out)

        def scaled_mm(
            a, b, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False
        ):  # fmt: skip
            given = scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum
            found = scaled(a, b, *given)
            return torchs_scaled(a, b, *given) if found is None else found

        def scaled_mm_out(
            a, b, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False, *, out
        ):  # fmt: skip
            given = scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum
            found = scaled(a, b, *given, out=out)
            return torchs_scaled_out(a, b, *given, out=out) if found is None else found

        yield "_scaled_mm", scaled_mm
        yield "_scaled_mm.out", scaled_mm_out


def _int_how(a: Tensor, b: Tensor) -> How | None:
    if not a.dtype == b.dtype == torch.int8 or not _are_matrices(a, b):
        return None
    if a.device.type == "cuda" and (a.shape[0] <= 16 or a.shape[1] % 8 or b.shape[1] % 8):
        return None  # torch refuses them
    return How(out_dtype=torch.int32)


def _scaled_how(a, b, scale_a, scale_b, bias, out_dtype, fast) -> How | None:
    if a.dtype not in FP8_DTYPES or b.dtype not in FP8_DTYPES or a.dtype == b.dtype == DTYPES[FP8[1]]:
        return None
    if out_dtype not in OUTPUTS or not _are_matrices(a, b) or a.shape[1] % 16 or b.shape[1] % 16:
        return None
    if a.stride(1) != 1 or b.stride(0) != 1:
        return None
    if bias is not None and (bias.shape != b.shape[1:] or out_dtype == torch.float32 or bias.dtype != out_dtype):
        return None
    try:
        scales = matched_scales(a, b, scale_a, scale_b)[2]
    except RuntimeError:
        return None
    return How("fast" if fast else "ieee", out_dtype, scales=scales)


def _are_matrices(a: Tensor, b: Tensor) -> bool:
    return a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0] and a.numel() > 0 and b.numel() > 0
