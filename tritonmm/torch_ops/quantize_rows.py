"""Rows of activations as fp8 in one kernel, `torch.ops.tritonmm.quantize_rows`: torch's compiler keeps it whole."""

import math

import torch

from tritonmm.torch_ops.checks import check_without_tangents

Tensor = torch.Tensor

LEAST_SCALE = torch.finfo(torch.float32).tiny
"""Smaller scales would be subnormal."""


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as fp8 e4m3, and a scale for each row: x is about codes * scale. x: (m, k), bf16, fp16 or fp32, any strides.

    Returns codes (m, k), contiguous, and scales (m, 1), fp32: the largest absolute value of a row over 448, and at
    least 2**-126. Each code is the quotient, in fp32, rounded to nearest. The scale of a row with a NaN or an infinity
    is NaN. One kernel, which reads x from memory once where a row fits into the L1 cache. Bitwise reproducible. Not
    differentiable.

    Raises RuntimeError, as torch does, for other dtypes and shapes, and if x has a tangent.

    >>> from tritonmm.torch_ops.quantize_rows import quantize_rows
    >>> codes, scales = quantize_rows(torch.tensor([[1.0, -896.0]], device="cuda"))
    >>> codes.float().tolist(), scales.item()
    ([[0.5, -448.0]], 2.0)
    """
    return torch.ops.tritonmm.quantize_rows(x)


_library = torch.library.Library("tritonmm", "FRAGMENT")
_library.define("quantize_rows(Tensor x) -> (Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,))


def _empty(x: Tensor) -> tuple[Tensor, Tensor]:
    torch._check(x.dim() == 2, lambda: f"quantize_rows: x is {x.dim()}-D; it must have rows and columns")
    torch._check(
        x.dtype in (torch.bfloat16, torch.float16, torch.float32),
        lambda: f"quantize_rows: x is {x.dtype}; it must be bf16, fp16 or fp32",
    )
    return x.new_empty(x.shape, dtype=torch.float8_e4m3fn), x.new_empty((x.shape[0], 1), dtype=torch.float32)


def _on_gpu(x: Tensor) -> tuple[Tensor, Tensor]:
    from tritonmm.launch import quantize_rows as launch  # which imports Triton

    codes, scales = _empty(x)
    if not codes.numel():
        return codes, scales.fill_(LEAST_SCALE)
    with torch.cuda.device(x.device):
        launch.fill(x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous(), codes, scales)
    return codes, scales


def _on_cpu(x: Tensor) -> tuple[Tensor, Tensor]:
    """The same by torch: Triton's interpreter does not round to fp8 correctly."""
    codes, scales = _empty(x)
    if not codes.numel():
        return codes, scales.fill_(LEAST_SCALE)
    x = x.float()
    most = x.abs().amax(1, keepdim=True)
    scales.copy_(torch.where(most < math.inf, (most / torch.finfo(codes.dtype).max).clamp(min=LEAST_SCALE), math.nan))
    return codes.copy_(x / scales), scales


def _autograd(x: Tensor) -> tuple[Tensor, Tensor]:
    check_without_tangents("quantize_rows", x)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.tritonmm.quantize_rows(x)


_library.impl("quantize_rows", _on_gpu, "CUDA")
_library.impl("quantize_rows", _on_cpu, "CPU")
_library.impl("quantize_rows", _autograd, "Autograd")
torch.library.register_fake("tritonmm::quantize_rows", _empty, lib=_library)
