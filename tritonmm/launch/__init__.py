"""How plans are launched, a module a kernel family; this one holds what they share."""

import contextlib
import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tritonmm.config import Config
from tritonmm.problem import Problem


@dataclass(frozen=True, slots=True)
class Plan:
    """A Config bound to a Problem on a device. Made by `plan.plan_for`; safe in several threads and streams.

    launched: the indices of the tile order for one product of the batch, overflow included;
    programs: those of the whole batch; the last `split` of them are shared by `splits` programs each;
    grid: what the kernel is launched with;
    order: name, factors and axis of the order as the kernel takes it; table: the order as a table,
    for an order that has no closed form.
    """

    kernel: ClassVar[Any]

    problem: Problem
    config: Config
    device: torch.device
    launched: int
    programs: int
    split: int
    splits: int
    grid: int
    order: tuple[str, tuple[int, ...], str]
    table: torch.Tensor | None

    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor,
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
        c: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """out = alpha * (a @ b) + bias + beta * c, on the current stream of the plan's device.

        a: (batch, m, k) or (m, k); b: (batch, k, n) or (k, n); out: (batch, m, n) or (m, n);
        c: what expands to out's shape; bias: (n,), contiguous. Shapes, dtypes, layouts, alignments and the operands of
        the epilogue must be the problem's.
        """
        if self.grid:
            arguments, options = self.arguments(a, b, out, alpha, beta, c, bias)
            with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
                self.kernel[(self.grid,)](*arguments, **options)
        return out

    def arguments(self, a, b, out, alpha=1.0, beta=1.0, c=None, bias=None) -> tuple[tuple, dict]:
        """What the kernel is called with: its arguments, and its constants and options."""
        raise NotImplementedError


@functools.cache
def early_start(device: torch.device) -> dict[str, bool]:
    """The option by which a grid starts before the previous one has ended, on a device that can do so."""
    able = device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9
    return {"launch_pdl": True} if able else {}


def strides(x: torch.Tensor) -> tuple[int, int, int]:
    """Batch, row and column stride of a 2-D or 3-D tensor, in elements."""
    return (x.stride(0) if x.dim() == 3 else 0), x.stride(-2), x.stride(-1)


def described(x: torch.Tensor) -> tuple[torch.Tensor, list[int], list[int]]:
    """x [batch, rows, columns], whose last dimension is contiguous, its shape and its strides, as TMA takes them.

    The stride of a dimension of size 1 has no meaning, and is set to what TMA accepts.
    """
    vector = 16 // x.element_size()
    row = -(-max(1, x.shape[2]) // vector) * vector
    spans = [stride if size > 1 else row for size, stride in zip(x.shape[:2], x.stride()[:2], strict=True)]
    return x, list(x.shape), [*spans, 1]


def addend_strides(c: torch.Tensor | None, out: torch.Tensor) -> tuple[int, int, int]:
    """The strides of c expanded to out's shape, 0 along what it is expanded."""
    return (0, 0, 0) if c is None else strides(c.expand(out.shape))
