"""The Newton-Schulz iteration of the Muon optimizer: two of its three products are symmetric."""

import math
from collections.abc import Sequence

import torch

from tritonmm.torch_ops.checks import shape_of
from tritonmm.torch_ops.dense import addmm, baddbmm
from tritonmm.torch_ops.symmetric import gram, symmetric_mm

Tensor = torch.Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Those of Muon (Keller Jordan, https://kellerjordan.github.io/posts/muon/), and of torch.optim.Muon."""

EPS = 1e-7
"""The least norm that a matrix is divided by, as in torch.optim.Muon."""

MOST_STEPS = 99
"""As in torch.optim.Muon."""


@torch.no_grad()
def newton_schulz(
    g: Tensor,
    steps: int = 5,
    coefficients: tuple[float, float, float] = COEFFICIENTS,
    out: Tensor | None = None,
) -> Tensor:
    """An approximation of the semi-orthogonal matrix nearest to g, in bf16: what torch.optim.Muon steps along.

    g: (..., m, n), of any floating-point dtype and strides; the matrices of a batch share the launches.
    steps: iterations of X = a * X + (b * A + c * A @ A) @ X with A = X @ X.mT, or the same from the right where m > n.
        X begins as g over its Frobenius norm, both in bf16 as in torch.
    coefficients: a, b and c. With the default ones the result's singular values are between 0.5 and 1.5 or so.
    out: where to store the result, of g's shape and any floating-point dtype. It may be g.

    A is computed by `gram`, and the polynomial by `symmetric_mm`: a step takes little more than two thirds of the
    time of its products in full. No derivatives are recorded. Neither torch.func.vmap nor DTensors are supported.
    Results are bitwise reproducible from run to run.

    Raises RuntimeError for a shape or device that is wrong, TypeError for a dtype, and ValueError for steps and
    coefficients.

    >>> x = tritonmm.newton_schulz(torch.randn(64, 32, device="cuda"))
    >>> x.shape, x.dtype
    (torch.Size([64, 32]), torch.bfloat16)
    """
    _check(g, steps, coefficients, out)
    a, b, c = (float(x) for x in coefficients)
    x = g.detach()
    x = x if x.dim() <= 3 else x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])
    if not x.numel():
        return torch.empty_like(g, dtype=torch.bfloat16) if out is None else out
    x = x.to(torch.bfloat16)
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=EPS)
    is_tall = x.shape[-2] > x.shape[-1]
    plus = addmm if x.dim() == 2 else baddbmm
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    side = min(x.shape[-2:])
    square = x.new_empty(*x.shape[:-2], side, side)
    polynomial = torch.empty_like(square)
    for _ in range(steps):
        gram(x.mT if is_tall else x, out=square)
        symmetric_mm(square, square, c=square, alpha=c, beta=b, symmetric_c=True, out=polynomial)
        left, right = (x, polynomial) if is_tall else (polynomial, x)
        x, y = plus(x, left, right, beta=a, out=y), x
        y = y if y.is_contiguous() else torch.empty_like(x)  # the first has the strides of g
    x = x.view(g.shape) if x.is_contiguous() else x.reshape(g.shape)
    return x if out is None else out.copy_(x)


def _check(g: Tensor, steps: int, coefficients: tuple[float, float, float], out: Tensor | None) -> None:
    for name, x in (("g", g), ("out", g if out is None else out)):
        if not isinstance(x, Tensor):
            raise TypeError(f"newton_schulz: {name} must be a Tensor, not {type(x).__name__}")
        if not x.is_floating_point():
            raise TypeError(f"newton_schulz: {name} has dtype {x.dtype}; it must be of real floating-point numbers")
    if g.dim() < 2:
        raise RuntimeError(f"newton_schulz: g needs two dimensions or more, but it is {g.dim()}-D, {shape_of(g)}")
    if out is not None and (out.shape != g.shape or out.device != g.device):
        raise RuntimeError(
            f"newton_schulz: out is {shape_of(out)} on {out.device}; it must be as g, {shape_of(g)} on {g.device}"
        )
    if not isinstance(steps, int) or isinstance(steps, bool) or not 0 <= steps <= MOST_STEPS:
        raise ValueError(f"newton_schulz: steps is {steps!r}; it must be an integer from 0 to {MOST_STEPS}")
    if not isinstance(coefficients, Sequence) or len(coefficients) != 3:
        raise ValueError(f"newton_schulz: coefficients are {coefficients!r}; they must be three numbers")
