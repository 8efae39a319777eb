"""A product by exact int8 products, in panels: what `precision="ozaki"` and `ozaki_mm` launch."""

import contextlib
import functools
from dataclasses import dataclass

import torch

from tritonmm import families
from tritonmm.ozaki.decide import decide
from tritonmm.ozaki.panels import Panel, panels, products_of, round_up
from tritonmm.ozaki.planes import quantize
from tritonmm.ozaki.reconstruct import Epilogue, reconstruct
from tritonmm.problem import Problem
from tritonmm.torch_ops.product import gpu_of

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class OzakiPlan:
    """A plan that multiplies with precision "ozaki". It is called as `launch.Plan` is."""

    problem: Problem

    def __call__(
        self,
        a: Tensor,
        b: Tensor,
        out: Tensor,
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
        c: Tensor | None = None,
        bias: Tensor | None = None,
        scales: None = None,
    ) -> Tensor:
        """As `Plan.__call__`."""
        multiply(a, b, out, Epilogue(alpha, beta, c, bias), self.problem.ozaki)
        return out

    def repeated(self, *tensors) -> None:
        """None: a call is several launches, with memory of their own. See `Plan.repeated`."""
        return None


def multiply(a: Tensor, b: Tensor, out: Tensor, epilogue: Epilogue, moduli: int, proved: Tensor | None = None) -> None:
    """out = alpha * (a @ b) + bias + beta * c, of matrices or batches that the caller has checked.

    c expands to out's shape; bias is contiguous. proved: one int32, set to whether `ozaki.rule` proves that the product
    is as accurate as a native one.
    """
    a, b, out = (x if x.dim() == 3 else x.unsqueeze(0) for x in (a, b, out))
    if epilogue.c is not None:
        epilogue = epilogue._replace(c=epilogue.c.expand(out.shape))
    batch, m, n = out.shape
    with torch.cuda.device(a.device) if a.is_cuda else contextlib.nullcontext():
        if proved is not None:
            proved.fill_(1)
        for panel in panels(m, n, a.shape[2], batch, moduli):
            _multiply(panel, a, b, out, epilogue, moduli, proved)


def _multiply(
    panel: Panel, a: Tensor, b: Tensor, out: Tensor, epilogue: Epilogue, moduli: int, proved: Tensor | None
) -> None:
    """Computes a panel of the output."""
    a = _part(a, panel.batch, panel.rows)
    of_a = quantize(a, moduli, a.shape[1], proved is not None)
    for columns in panel.columns:
        right = _part(b, panel.batch, slice(0, b.shape[1]), columns)
        of_b = quantize(right.mT, moduli, round_up(right.shape[2]), proved is not None)
        if proved is not None:
            decide(of_a, of_b, a.shape[2], a.dtype, moduli, proved)
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
    plan = _plan_of_products(m, n, k, batch // moduli, moduli, a.device)
    return plan(a, b.mT, torch.empty(batch, m, n, dtype=torch.int8, device=a.device))


@functools.lru_cache(maxsize=1024)
def _plan_of_products(m: int, n: int, k: int, batch: int, moduli: int, device: torch.device):
    """The plan of the products of planes."""
    from tritonmm.launch.interpreter import INTERPRETED
    from tritonmm.plan import plan_for
    from tritonmm.selection import choose

    problem = products_of(m, n, k, batch, moduli)
    kernel = families.portable() if INTERPRETED else ""  # the others need a GPU
    return plan_for(problem, choose(problem, gpu_of(device), kernel), device)
