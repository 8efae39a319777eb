"""Stand-ins for torch's grouped products of fp8, which its builds for CPUs have not.

They have torch's checks, its strides of results and its errors, and let the override of these operators be tested
without a GPU.
"""

import itertools

import torch

_LIBRARIES: list[torch.library.Library] = []
"""Kept for ever: deleting a library unregisters its kernels."""


def register():
    """Registers them for CPU tensors, once a process."""
    if not _LIBRARIES:
        library = torch.library.Library("aten", "IMPL")
        library.impl("_scaled_grouped_mm", scaled_grouped_mm, "CPU")
        library.impl("_scaled_grouped_mm_v2", scaled_grouped_mm_v2, "CPU")
        _LIBRARIES.append(library)


def scaled_grouped_mm(
    a, b, scale_a, scale_b, offs=None, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False
):
    return _product(a, b, scale_a, scale_b, offs, bias, out_dtype)


def scaled_grouped_mm_v2(
    a, b, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, offs=None, bias=None, out_dtype=None,
    contraction_dim=(), use_fast_accum=False,
):  # fmt: skip
    if [*recipe_a] != [1] or [*recipe_b] != [1]:
        raise ValueError("No gemm implementation was found")
    return _product(a, b, scale_a[0], scale_b[0], offs, bias, out_dtype)


def _product(a, b, scale_a, scale_b, offs, bias, out_dtype):
    if a.stride(-1) != 1:
        raise ValueError("Expected mat1 to not be transposed")
    if b.stride(-2) != 1:
        raise ValueError("Expected mat2 to be transposed")
    if a.shape[-1] != b.shape[-2]:
        raise ValueError("contraction dimension of mat_a and mat_b must match")
    if a.shape[-1] % 16 or b.shape[-2] % 16 or b.shape[-1] % 16:
        raise ValueError("Expected mat_b shape to be divisible by 16")
    if bias is not None:
        raise ValueError("Bias not supported yet")
    if (offs is None) != (a.dim() == b.dim() == 3):
        raise ValueError("Have to provide offsets if there is a 2d matrix")
    if out_dtype not in (None, torch.bfloat16):
        raise ValueError("Only bf16 high precision output types are supported for grouped gemm")
    groups = len(offs) if a.dim() == b.dim() == 2 else 1
    for mat, scale, shape in (
        (a, scale_a, (a.shape[-2] * groups,)),
        (b, scale_b, (b.shape[-1] * groups,)),
    ):
        if scale.shape != (*mat.shape[:-2], *shape):
            raise RuntimeError("scale must have the same length as mat for arg 0")
    if not a.dtype == b.dtype == torch.float8_e4m3fn:
        raise ValueError("Expected mat_a to be Float8_e4m3 matrix")
    left, right = a.double(), b.double()
    if a.dim() == b.dim() == 2:
        ranges = itertools.pairwise([0, *offs.tolist()])
        parts = zip(ranges, scale_a.view(groups, -1), scale_b.view(groups, -1), strict=True)
        found = torch.stack([(left[:, s:e] @ right[s:e]) * x[:, None] * y for (s, e), x, y in parts])
    else:
        left, right = left * scale_a.unsqueeze(-1), right * scale_b.unsqueeze(-2)
        if offs is None:
            found = left @ right
        else:
            ranges = list(itertools.pairwise([0, *offs.tolist()]))
            if a.dim() == 2:
                found = left.new_full((a.shape[0], b.shape[2]), 77)
                for (s, e), matrix in zip(ranges, right, strict=True):
                    found[s:e] = left[s:e] @ matrix
            else:
                found = left.new_full((a.shape[1], b.shape[1]), 77)
                for (s, e), matrix in zip(ranges, left, strict=True):
                    found[:, s:e] = matrix @ right[:, s:e]
    lead = -(-found.shape[-1] // 8) * 8
    strides = (lead, 1) if found.dim() == 2 else (found.shape[1] * lead, lead, 1)
    return torch.empty_strided(found.shape, strides, dtype=torch.bfloat16).copy_(found)
