"""The planes of residues of a constant operand, made once: `tritonmm.quantized_planes`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tritonmm.dtypes import any_name, has_precision
from tritonmm.moduli import DEFAULT_MODULI, FEWEST_MODULI, MODULI, MOST_K, SAFE, moduli_of
from tritonmm.torch_ops.checks import check_operands, prepare_out, shape_of

if TYPE_CHECKING:
    from tritonmm.ozaki.planes import Planes

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class QuantizedPlanes:
    """A matrix b, (k, n), and its residues, for `tritonmm.matmul(a, planes, precision="ozaki")`.

    `quantized_planes` makes it. It keeps b, and raises if b was changed in place since.
    """

    source: Tensor
    planes: "Planes"
    moduli: int
    version: int

    @property
    def shape(self) -> torch.Size:
        """That of b."""
        return self.source.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the planes: about `moduli` for an element of b."""
        return self.planes.planes.nbytes

    def check(self, precision: str) -> None:
        """Raises ValueError for a precision that needs other planes, and RuntimeError if b has changed."""
        name = any_name(self.source.dtype)
        wanted = moduli_of(name, precision) if has_precision(name, precision) else 0
        if wanted != self.moduli:
            spelled = f'"ozaki:{self.moduli}"'
            if self.moduli == DEFAULT_MODULI[name]:
                spelled = f'"ozaki", {SAFE!r} or {spelled}'
            raise ValueError(f"matmul: precision is {precision!r}; these planes of {self.moduli} moduli need {spelled}")
        if self.source._version != self.version:
            raise RuntimeError(
                "matmul: the operand of these planes was changed in place after they were made; call"
                " tritonmm.quantized_planes again"
            )


def quantized_planes(b: Tensor, *, moduli: int | None = None) -> QuantizedPlanes:
    """Quantizes a constant operand of products with precision "ozaki" once: `matmul(a, planes, precision="ozaki")`.

    b: (k, n), fp32 or fp64, with any strides. It is kept, and takes `moduli` bytes an element more. moduli: N; by
        default that of precisions "ozaki" and "ozaki:safe", 15 for fp64 and 8 for fp32. Others need "ozaki:N".

    Products have the bits of `matmul(a, b, precision=)`. They have no derivatives. "ozaki:safe" falls back to the
    native product of b where nothing is proved, but not because that should be faster.

    If b is changed in place later, products raise RuntimeError. Changes that torch does not count are not seen: those
    through b.data, by kernels of others, and in a CUDA graph whatever happens after it was captured.

    Raises ValueError for moduli, and for an inference tensor, whose changes are not counted; TypeError, RuntimeError
    and NotImplementedError for other operands, as `tritonmm.mm` does.

    >>> a, b = (torch.randn(64, 64, dtype=torch.float64, device="cuda") for _ in range(2))
    >>> planes = tritonmm.quantized_planes(b)
    >>> torch.equal(tritonmm.matmul(a, planes, precision="ozaki"), tritonmm.matmul(a, b, precision="ozaki"))
    True
    """
    from tritonmm.torch_ops.ozaki_product import planes_of
    from tritonmm.torch_ops.product import check_device

    check_operands("quantized_planes", b)
    if b.dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(f"quantized_planes: b is {b.dtype}; it must be torch.float32 or torch.float64")
    if b.dim() != 2 or not b.numel():
        raise RuntimeError(f"quantized_planes: b is {shape_of(b)}; it must be a matrix that is not empty")
    if b.is_inference():
        raise ValueError("quantized_planes: b is an inference tensor, whose changes in place are not counted; clone it")
    name = any_name(b.dtype)
    moduli = DEFAULT_MODULI[name] if moduli is None else moduli
    if type(moduli) is not int or not FEWEST_MODULI <= moduli <= len(MODULI):
        known = f"an integer from {FEWEST_MODULI} to {len(MODULI)}"
        raise ValueError(f"quantized_planes: moduli is {moduli!r}; it must be {known}")
    check_device(b.device)
    b = b.detach()
    b = b.resolve_neg() if b.is_neg() else b
    return QuantizedPlanes(b, planes_of(b, moduli, counted=b.shape[0] <= MOST_K), moduli, b._version)


def matmul_by_planes(a: Tensor, b: QuantizedPlanes, precision: str, accumulation: str, out: Tensor | None) -> Tensor:
    """a @ b.source with the planes of b, as torch.matmul. a: (..., k) or (k,)."""
    from tritonmm.ozaki.reconstruct import Epilogue
    from tritonmm.torch_ops.ozaki_product import multiply, multiply_or, skippable_plan
    from tritonmm.torch_ops.product import BARE, How, problem_of

    b.check(precision)
    check_operands("matmul", a, b.source)
    k, n = b.shape
    if not a.dim() or a.shape[-1] != k:
        raise RuntimeError(f"matmul: inner dimensions differ: {shape_of(a)} by planes of {shape_of(b.source)}")
    if torch.is_grad_enabled() and a.requires_grad:
        raise RuntimeError("matmul: a requires a gradient, and products with planes have none; pass b itself")
    shape = *a.shape[:-1], n
    left = a.detach().reshape(-1, k)
    left = left.resolve_neg() if left.is_neg() else left
    found = torch.empty(left.shape[0], n, dtype=a.dtype, device=a.device)
    problem_of(left, b.source, found, BARE, How(precision, accumulation=accumulation))  # raises if there is none
    if precision == SAFE:
        native = problem_of(left, b.source, found, BARE, How("ieee", accumulation="any"))
        multiply_or(skippable_plan(native, a.device), left, b.source, found, Epilogue(), b.moduli, planes=b.planes)
    else:
        multiply(left, b.source, found, Epilogue(), b.moduli, planes=b.planes)
    if out is None:
        return found.reshape(shape)
    prepare_out("matmul", out, shape, a, b.source)
    return out.copy_(found.reshape(shape))
