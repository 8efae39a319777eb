"""fp32 and fp64 products by exact int8 products; docs/ozaki.md."""

import contextlib
import functools

import torch

from tritonmm import families
from tritonmm.moduli import FEWEST_MODULI, MODULI, MOST_K
from tritonmm.ozaki.panels import Panel, panels
from tritonmm.ozaki.planes import quantize, round_up
from tritonmm.ozaki.reconstruct import Epilogue, reconstruct
from tritonmm.problem import Problem
from tritonmm.torch_ops.checks import check_inner, check_operands, overlap, shape_of
from tritonmm.torch_ops.product import check_device, gpu_of

Tensor = torch.Tensor


def ozaki_mm(
    a: Tensor,
    b: Tensor,
    *,
    moduli: int,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """alpha * (a @ b) + bias + beta * c with the exact products of integers that int8 tensor cores multiply.

    a: (m, k) or (batch, m, k), fp32 or fp64, with any strides. b: (k, n) or (batch, k, n) of the same dtype.
    moduli: N, 5 to 16. Each row of a and column of b is rounded to integers with about 4 * N - 1 bits in the norm:
        14 or 15 for fp64, 7 or 8 for fp32 are as accurate as a product in the dtype itself, if the elements of a line
        do not differ by more than some powers of ten.
    c: a matrix that broadcasts to the result; it is not read if beta is 0, and may be out. bias: (n,).
    out: (m, n) or (batch, m, n) of the operands' dtype and any strides; it must not overlap a or b.

    The result is X * 2**-e, rounded once, with the exact product X of the integers; then alpha, bias and c are added,
    in fp64. Elements of rows and columns with an infinity or NaN are those of IEEE products, infinity or NaN. A result
    of 0 is +0. Each element depends on its row of a, its column of b, its addends, N and the dtype alone: not on
    shapes, strides, batch, or the GPU. Planes of residues take up to 2 GiB on the current stream; nothing waits for the
    GPU, so calls may be captured in a graph. No derivatives are recorded.

    Raises ValueError for moduli, or a K above 131,071; TypeError, RuntimeError and NotImplementedError for operands, as
    `tritonmm.mm` does.

    >>> a, b = (torch.randn(64, 64, dtype=torch.float64, device="cuda") for _ in range(2))
    >>> bool((ozaki_mm(a, b, moduli=15) - a @ b).abs().max() < 1e-12)
    True
    """
    from tritonmm.launch.interpreter import INTERPRETED

    _check(a, b, moduli, c, bias, out)
    check_device(a.device, INTERPRETED)
    shape = *a.shape[:-1], b.shape[-1]
    if out is None:
        out = torch.empty(shape, dtype=a.dtype, device=a.device)
    a, b, target = (x.detach() if x.dim() == 3 else x.detach().unsqueeze(0) for x in (a, b, out))
    if c is not None:
        c = None if beta == 0 else c.detach().expand(target.shape)
    if bias is not None:
        bias = bias.detach().contiguous()
    with torch.cuda.device(a.device) if a.is_cuda else contextlib.nullcontext():
        batch, m, n = target.shape
        for panel in panels(m, n, a.shape[2], batch, moduli):
            _multiply(panel, a, b, target, Epilogue(alpha, beta, c, bias), moduli)
    return out


def _multiply(panel: Panel, a: Tensor, b: Tensor, out: Tensor, epilogue: Epilogue, moduli: int) -> None:
    """Computes a panel of the output."""
    a = _part(a, panel.batch, panel.rows)
    of_a = quantize(a, moduli, a.shape[1])
    for columns in panel.columns:
        right = _part(b, panel.batch, slice(0, b.shape[1]), columns)
        of_b = quantize(right.mT, moduli, round_up(right.shape[2]))
        sums = _products(of_a.planes, of_b.planes, moduli)
        at = panel.batch, panel.rows, columns
        c = None if epilogue.c is None else _part(epilogue.c, *at)
        bias = None if epilogue.bias is None else _part(epilogue.bias, columns)
        reconstruct(sums, a, right, of_a, of_b, _part(out, *at), epilogue._replace(c=c, bias=bias), moduli)


def _part(x: Tensor, *slices: slice) -> Tensor:
    """x[slices]; x itself, which takes less time, if they are all of it."""
    whole = all(each.start == 0 and each.stop == size for each, size in zip(slices, x.shape, strict=False))
    return x if whole else x[slices]


def _products(a: Tensor, b: Tensor, moduli: int) -> Tensor:
    """The products of planes, a @ b.mT, each modulo its modulus: int8, (batch * moduli, rows of a, rows of b)."""
    batch, m, k = a.shape
    n = b.shape[1]
    plan = _plan_of_products(m, n, k, batch, moduli, a.device)
    return plan(a, b.mT, torch.empty(batch, m, n, dtype=torch.int8, device=a.device))


@functools.lru_cache(maxsize=1024)
def _plan_of_products(m: int, n: int, k: int, batch: int, moduli: int, device: torch.device):
    """The plan of the products of planes."""
    from tritonmm.launch.interpreter import INTERPRETED
    from tritonmm.plan import plan_for
    from tritonmm.selection import choose

    problem = Problem(m, n, k, batch, "int8", layout="nt", moduli=moduli)
    kernel = families.portable() if INTERPRETED else ""  # the others need a GPU
    return plan_for(problem, choose(problem, gpu_of(device), kernel), device)


def _check(a: Tensor, b: Tensor, moduli: int, c: Tensor | None, bias: Tensor | None, out: Tensor | None) -> None:
    if type(moduli) is not int or not FEWEST_MODULI <= moduli <= len(MODULI):
        raise ValueError(f"ozaki_mm: moduli is {moduli!r}; it must be an integer from {FEWEST_MODULI} to {len(MODULI)}")
    check_operands("ozaki_mm", a, b, *(x for x in (c, bias) if x is not None))
    if a.dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(f"ozaki_mm: operands are {a.dtype}; it multiplies torch.float32 and torch.float64")
    if a.dim() != b.dim() or a.dim() not in (2, 3) or a.shape[:-2] != b.shape[:-2]:
        raise RuntimeError(f"ozaki_mm: operands are {shape_of(a)} and {shape_of(b)}; both must be matrices, or batches")
    check_inner("ozaki_mm", a, b, a, b)
    if a.shape[-1] > MOST_K:
        raise ValueError(f"ozaki_mm: k is {a.shape[-1]}; exact sums in int32 have at most {MOST_K} terms")
    if bias is not None and bias.shape != b.shape[-1:]:
        raise RuntimeError(f"ozaki_mm: bias is {shape_of(bias)}; it must be [{b.shape[-1]}]")
    if out is not None:
        shape = *a.shape[:-1], b.shape[-1]
        if out.shape != shape or out.dtype != a.dtype or out.device != a.device:
            wanted = f"{list(shape)} {a.dtype} on {a.device}"
            raise RuntimeError(f"ozaki_mm: out is {shape_of(out)} {out.dtype} on {out.device}; it must be {wanted}")
        if overlap(out, a) or overlap(out, b):
            raise RuntimeError("ozaki_mm: out overlaps an operand, which is read while out is written")
