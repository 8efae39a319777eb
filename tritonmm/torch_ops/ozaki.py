"""fp32 and fp64 products by exact int8 products; docs/ozaki.md."""

import torch

from tritonmm.moduli import DEFAULT_MODULI, FEWEST_MODULI, LONGEST_K, MODULI
from tritonmm.ozaki.decide import Verdict
from tritonmm.ozaki.reconstruct import Epilogue
from tritonmm.torch_ops.checks import check_inner, check_operands, is_same, overlap, shape_of
from tritonmm.torch_ops.ozaki_product import multiply, multiply_or, skippable_plan
from tritonmm.torch_ops.product import How, check_device, problem_of

Tensor = torch.Tensor


def ozaki_mm(
    a: Tensor,
    b: Tensor,
    *,
    moduli: int | str,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out: Tensor | None = None,
    proved: Tensor | None = None,
) -> Tensor:
    """alpha * (a @ b) + bias + beta * c with the exact products of integers that int8 tensor cores multiply.

    `precision="ozaki"` gives the same bits in torch's own functions, with their rules and derivatives.

    a: (m, k) or (batch, m, k), fp32 or fp64, with any strides. b: (k, n) or (batch, k, n) of the same dtype.
    moduli: N, 5 to 16. Each row of a and column of b is rounded to integers with about 4 * N - 1 bits in the norm:
        14 or 15 for fp64, 7 or 8 for fp32 are as accurate as a product in the dtype itself, if the elements of a line
        do not differ by more than some powers of ten. "safe" is 15 for fp64 and 8 for fp32, and where `proved` is 0,
        the result is the product in the dtype itself, by tritonmm's own kernel: the GPU decides. Then bits depend on
        all of the operands.
    c: a matrix that broadcasts to the result; it is not read if beta is 0, and may be out. bias: (n,).
    out: (m, n) or (batch, m, n) of the operands' dtype and any strides; it must not overlap a or b.

    proved: one int32 on the operands' device, which is set to 1 if this product is proved to be as accurate as one in
        the dtype itself, and else to 0: each element of a @ b is within (tau + 1) * u * (|a| @ |b|) of the exact one,
        with tau = min(2 * sqrt(k), k / 2) and u = 2**-53 or 2**-24, or off by half the least subnormal more.
        The proof is of norms and counts, not of each element: 0 says nothing. It is 0 for operands with an infinity or
        NaN, and for a k above 131,071.

    The result is X * 2**-e, rounded once, with the exact product X of the integers; then alpha, bias and c are added,
    in fp64. Elements of rows and columns with an infinity or NaN are those of IEEE products, infinity or NaN. A result
    of 0 is +0. Each element depends on its row of a, its column of b, its addends, N and the dtype alone: not on
    shapes, strides, batch, or the GPU. Planes of residues take up to 2 GiB on the current stream; nothing waits for the
    GPU, so calls may be captured in a graph. No derivatives are recorded.

    Raises ValueError for moduli, or a k above 16,777,215; TypeError, RuntimeError and NotImplementedError for operands,
    as `tritonmm.mm` does.

    >>> a, b = (torch.randn(64, 64, dtype=torch.float64, device="cuda") for _ in range(2))
    >>> bool((ozaki_mm(a, b, moduli=15) - a @ b).abs().max() < 1e-12)
    True
    """

    _check(a, b, moduli, c, bias, out)
    if proved is not None and (proved.numel() != 1 or proved.dtype != torch.int32 or proved.device != a.device):
        found = f"{shape_of(proved)} {proved.dtype} on {proved.device}"
        raise RuntimeError(f"ozaki_mm: proved is {found}; it must be one torch.int32 on {a.device}")
    check_device(a.device)
    shape = *a.shape[:-1], b.shape[-1]
    if out is None:
        out = torch.empty(shape, dtype=a.dtype, device=a.device)
    if c is not None:
        c = None if beta == 0 else c.detach()
    if bias is not None:
        bias = bias.detach().contiguous()
    if c is not None and overlap(c, out) and not is_same(c, out):
        c = c.clone()  # out is written while it is read
    if bias is not None and overlap(bias, out):
        bias = bias.clone()
    epilogue = Epilogue(float(alpha), float(beta), c, bias)
    if isinstance(moduli, int):
        verdict = None if proved is None else Verdict(proved)
        multiply(a.detach(), b.detach(), out.detach(), epilogue, moduli, verdict)
    else:
        _multiply_safely(a.detach(), b.detach(), out.detach(), epilogue, proved)
    return out


def _multiply_safely(a: Tensor, b: Tensor, out: Tensor, epilogue: Epilogue, proved: Tensor | None) -> None:
    """`ozaki_mm` with moduli "safe", of plain tensors."""
    adds = epilogue.alpha != 1, epilogue.bias is not None, epilogue.c is not None
    native = problem_of(a, b, out, adds, How("ieee", accumulation="any"))
    if epilogue.c is not None:
        epilogue = epilogue._replace(c=epilogue.c.expand(out.shape))
    moduli = DEFAULT_MODULI[native.dtype]
    multiply_or(skippable_plan(native, a.device), a, b, out, epilogue, moduli, proved)


def _check(a: Tensor, b: Tensor, moduli: int, c: Tensor | None, bias: Tensor | None, out: Tensor | None) -> None:
    if moduli != "safe" and not (type(moduli) is int and FEWEST_MODULI <= moduli <= len(MODULI)):
        known = f'an integer from {FEWEST_MODULI} to {len(MODULI)}, or "safe"'
        raise ValueError(f"ozaki_mm: moduli is {moduli!r}; it must be {known}")
    check_operands("ozaki_mm", a, b, *(x for x in (c, bias) if x is not None))
    if a.dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(f"ozaki_mm: operands are {a.dtype}; it multiplies torch.float32 and torch.float64")
    if a.dim() != b.dim() or a.dim() not in (2, 3) or a.shape[:-2] != b.shape[:-2]:
        raise RuntimeError(f"ozaki_mm: operands are {shape_of(a)} and {shape_of(b)}; both must be matrices, or batches")
    check_inner("ozaki_mm", a, b, a, b)
    if a.shape[-1] > LONGEST_K:
        raise ValueError(f"ozaki_mm: k is {a.shape[-1]}; it is at most {LONGEST_K}")
    if bias is not None and bias.shape != b.shape[-1:]:
        raise RuntimeError(f"ozaki_mm: bias is {shape_of(bias)}; it must be [{b.shape[-1]}]")
    if out is not None:
        shape = *a.shape[:-1], b.shape[-1]
        if out.shape != shape or out.dtype != a.dtype or out.device != a.device:
            wanted = f"{list(shape)} {a.dtype} on {a.device}"
            raise RuntimeError(f"ozaki_mm: out is {shape_of(out)} {out.dtype} on {out.device}; it must be {wanted}")
        if overlap(out, a) or overlap(out, b):
            raise RuntimeError("ozaki_mm: out overlaps an operand, which is read while out is written")
