"""A product by exact int8 products, in panels: what `precision="ozaki"` and `ozaki_mm` launch."""

import contextlib
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tritonmm import families
from tritonmm.moduli import MOST_K
from tritonmm.ozaki.decide import Verdict, decide
from tritonmm.ozaki.merge import merge
from tritonmm.ozaki.panels import Panel, panels, parts_of, products_of, round_up
from tritonmm.ozaki.planes import Planes, quantize, quantize_both
from tritonmm.ozaki.reconstruct import Epilogue, reconstruct
from tritonmm.problem import Problem
from tritonmm.torch_ops.checks import overlap
from tritonmm.torch_ops.ozaki_time import gains
from tritonmm.torch_ops.product import gpu_of

if TYPE_CHECKING:
    from tritonmm.launch import Plan
    from tritonmm.plan import AnyPlan

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class OzakiPlan:
    """A plan that multiplies with precision "ozaki". It is called as `launch.Plan` is.

    native: what computes a product that is not proved to be as accurate; None if that does not matter.
    """

    problem: Problem
    native: "Plan | None" = None

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
        epilogue, moduli = Epilogue(alpha, beta, c, bias), self.problem.ozaki
        if self.native is None:
            multiply(a, b, out, epilogue, moduli)
        else:
            multiply_or(self.native, a, b, out, epilogue, moduli)
        return out

    def repeated(self, *tensors) -> None:
        """None: a call is several launches, with memory of their own. See `Plan.repeated`."""
        return None


def plan_of(problem: Problem, native: Problem | None, device: torch.device) -> "OzakiPlan | AnyPlan":
    """The plan of a problem with precision "ozaki".

    native: the product in the dtype itself, for a problem that falls back to it. Its plan is returned if it should be
    faster, and where its kernel cannot be skipped: that of few rows or columns, which it always is faster for.
    """
    if native is None:
        return OzakiPlan(problem)
    from tritonmm.launch.interpreter import INTERPRETED
    from tritonmm.plan import plan_for
    from tritonmm.selection import best

    gpu = gpu_of(device)
    choice = best(native, gpu, families.portable() if INTERPRETED else "")
    plan = plan_for(native, choice.config, device)
    return OzakiPlan(problem, plan) if _can_be_skipped(plan) and gains(problem, choice.us, gpu) else plan


@functools.lru_cache(maxsize=1024)
def skippable_plan(native: Problem, device: torch.device) -> "Plan":
    """The plan that should be fastest for a native product, of those that can be skipped."""
    from tritonmm.launch.interpreter import INTERPRETED
    from tritonmm.plan import plan_for
    from tritonmm.selection import best

    choices = []
    for name in [families.portable()] if INTERPRETED else families.names():
        with contextlib.suppress(ValueError):  # no config of that family is legal
            choices.append(best(native, gpu_of(device), name))
    plans = (plan_for(native, choice.config, device) for choice in sorted(choices, key=lambda choice: choice.us))
    return next(plan for plan in plans if _can_be_skipped(plan))


def _can_be_skipped(plan: Any) -> bool:
    return getattr(plan, "skippable", False)


def multiply_or(
    native: "Plan",
    a: Tensor,
    b: Tensor,
    out: Tensor,
    epilogue: Epilogue,
    moduli: int,
    proved: Tensor | None = None,
    planes: Planes | None = None,
) -> None:
    """As `multiply`; but if the product is not proved to be as accurate as a native one, it is that of `native`.

    native: a plan of the native product that can be skipped. Where c and out share memory, which `native` reads after
    out has been written, the result is computed in a temporary tensor. Both products are launched, and the GPU skips
    one of them.
    """
    if not out.numel():
        return
    alpha, beta, c, bias = epilogue
    if a.shape[-1] > MOST_K:
        if proved is not None:
            proved.fill_(0)
        native(a, b, out, alpha=alpha, beta=beta, c=c, bias=bias)
        return
    target = out if c is None or not overlap(c, out) else torch.empty_like(out)
    if proved is None:
        proved = torch.empty(1, dtype=torch.int32, device=a.device)
    with _current(a.device):
        multiply(a, b, target, epilogue, moduli, Verdict(proved, torch.empty_like(proved)), planes)
        native(a, b, target, alpha=alpha, beta=beta, c=c, bias=bias, skip=proved)
        if target is not out:
            out.copy_(target)


def multiply(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    epilogue: Epilogue,
    moduli: int,
    verdict: Verdict | None = None,
    planes: Planes | None = None,
) -> None:
    """out = alpha * (a @ b) + bias + beta * c, of matrices or batches that the caller has checked.

    c expands to out's shape; bias is contiguous. planes: those of b.mT if they are known, with counts if there is a
    verdict. verdict: set to whether `ozaki.rule` proves that the product is as accurate as a native one. If it has
    `refused`, the GPU skips the first panel that is not proved and all after it, and the elements of out there may have
    any values. For a K above `MOST_K` nothing is proved or skipped, and `refused` is not set.
    """
    a, b, out = (x if x.dim() == 3 else x.unsqueeze(0) for x in (a, b, out))
    if epilogue.c is not None:
        epilogue = epilogue._replace(c=epilogue.c.expand(out.shape))
    batch, m, n = out.shape
    with _current(a.device):
        if verdict is not None and (not out.numel() or a.shape[2] > MOST_K):
            verdict.proved.fill_(0 if out.numel() else 1)
            verdict = None
        for i, panel in enumerate(panels(m, n, a.shape[2], batch, moduli)):
            _multiply(panel, a, b, out, epilogue, moduli, verdict, i == 0, planes)


def _multiply(
    panel: Panel,
    a: Tensor,
    b: Tensor,
    out: Tensor,
    epilogue: Epilogue,
    moduli: int,
    verdict: Verdict | None,
    first: bool,
    planes: Planes | None,
) -> None:
    """Computes a panel of the output. first: whether it is the first of all."""
    a = _part(a, panel.batch, panel.rows)
    counted = verdict is not None
    refused = None if verdict is None else verdict.refused
    of_a = None if planes is None else quantize(a, moduli, a.shape[1], counted)
    for i, columns in enumerate(panel.columns):
        right = _part(b, panel.batch, slice(0, b.shape[1]), columns)
        if planes is not None:
            of_b = _lines(planes, columns)
        elif of_a is None:
            of_a, of_b = quantize_both(a, right.mT, moduli, (a.shape[1], round_up(right.shape[2])), counted)
        else:
            of_b = quantize(right.mT, moduli, round_up(right.shape[2]), counted)
        if verdict is not None:
            decide(of_a, of_b, a.shape[2], a.dtype, moduli, verdict, first and i == 0)
        sums = _products(of_a.planes, of_b.planes, moduli, refused)
        at = panel.batch, panel.rows, columns
        c = None if epilogue.c is None else _part(epilogue.c, *at)
        bias = None if epilogue.bias is None else _part(epilogue.bias, columns)
        addends = epilogue._replace(c=c, bias=bias)
        # Operands with an infinity or NaN are refused.
        reconstruct(sums, a, right, of_a, of_b, _part(out, *at), addends, moduli, refused is None, refused)


def planes_of(b: Tensor, moduli: int, counted: bool) -> Planes:
    """The planes of a matrix b, for `multiply`."""
    with _current(b.device):
        return quantize(b.mT[None], moduli, round_up(b.shape[1]), counted)


def _lines(planes: Planes, lines: slice) -> Planes:
    """Lines of the planes of one matrix, which begin at a multiple of `panels.FEWEST`."""
    count = planes.scales.shape[1]
    if lines == slice(0, count):
        return planes
    counts = None if planes.counts is None else planes.counts[:, lines]
    held = slice(lines.start, lines.start + round_up(lines.stop - lines.start))
    return Planes(planes.planes[:, held], planes.scales[:, lines], planes.special, counts)


_ALL = slice(None)


def _part(x: Tensor, *slices: slice) -> Tensor:
    """x[slices]; x itself, which takes less time, if they are all of it."""
    whole = all(
        each is _ALL or (each.start == 0 and each.stop == size) for each, size in zip(slices, x.shape, strict=False)
    )
    return x if whole else x[slices]


def _current(device: torch.device) -> contextlib.AbstractContextManager:
    """Inside, a GPU is the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _products(a: Tensor, b: Tensor, moduli: int, skip: Tensor | None) -> Tensor:
    """The products of planes, a @ b.mT, each modulo its modulus: int8, (batch * moduli, rows of a, rows of b).

    skip: one int32; if it is not 0 on the device, the products may have any values.
    """
    batch, m, k = a.shape
    n = b.shape[1]
    sums = torch.empty(batch, m, n, dtype=torch.int8, device=a.device)
    more = sums
    for part in parts_of(k):
        plan = _plan_of_products(m, n, part.stop - part.start, batch // moduli, moduli, a.device)
        unless = skip if _can_be_skipped(plan) else None
        plan(_part(a, _ALL, _ALL, part), _part(b, _ALL, _ALL, part).mT, more, skip=unless)
        if more is not sums:
            merge(sums, more, moduli, skip)
        elif part.stop < k:
            more = torch.empty_like(sums)
    return sums


@functools.lru_cache(maxsize=1024)
def _plan_of_products(m: int, n: int, k: int, batch: int, moduli: int, device: torch.device):
    """The plan of the products of planes."""
    from tritonmm.launch.interpreter import INTERPRETED
    from tritonmm.plan import plan_for
    from tritonmm.selection import choose

    problem = products_of(m, n, k, batch, moduli)
    kernel = families.portable() if INTERPRETED else ""  # the others need a GPU
    return plan_for(problem, choose(problem, gpu_of(device), kernel), device)
