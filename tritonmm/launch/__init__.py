"""How plans are launched, a module a kernel family; this one holds what they share."""

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from triton.runtime import driver

from tritonmm.config import Config
from tritonmm.launch import capture, context, direct, interpreter, order_table, workspace
from tritonmm.problem import DTYPES, Problem


@dataclass(frozen=True, slots=True)
class Plan:
    """A Config bound to a Problem on a device. Made by a family's `plan`; safe in several threads and streams.

    launched: the indices of the tile order for one product of the batch, overflow included;
    programs: those of the whole batch; grid: what the kernel is launched with;
    order: name, factors and axis of the order as the kernel takes it; table: the order as a table,
    for an order that has no closed form, from `order_table.of`;
    launches: those made before, by what their kernel and arguments depend on.
    """

    kernel: ClassVar[Any]

    problem: Problem
    config: Config
    device: torch.device
    launched: int
    programs: int
    grid: int
    order: tuple[str, tuple[int, ...], str]
    table: torch.Tensor | None
    launches: dict[tuple, direct.Launch] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, problem: Problem, config: Config, device: torch.device, grid: int, **own: Any) -> Self:
        """The plan of a legal config that launches `grid` programs. own: the fields of the family's plan."""
        tiles = config.tiles(problem)
        if config.order.closed_form:
            order, table = (config.order.name, config.order.factors, config.order.along), None
        else:
            order, table = ("table", (), "m"), order_table.of(config.order, tiles, device)
        launched = config.order.launched(*tiles)
        return cls(problem, config, device, launched, config.programs(problem), grid, order, table, **own)

    def workspace(self) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Sums and flags of one launch on the current stream, for a plan whose tiles are all in split_k parts."""
        config = self.config
        slots, elements = self.programs * config.split_k, config.block_m * config.block_n
        return workspace.split_k(slots, self.programs, elements, 1, self.device)

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
        scales: tuple[torch.Tensor | None, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """out = alpha * (a @ b) + bias + beta * c, on the current stream of the plan's device.

        a: (batch, m, k) or (m, k); b: (batch, k, n) or (k, n); out: (batch, m, n) or (m, n);
        c: what expands to out's shape; bias: (n,), contiguous; scales: those of a and of b, fp32, in as many rows and
        columns as `Problem.scales` says, None for an a of 2 bytes; the hopper kernel takes b's contiguous along the
        columns where each group of K has its own. Shapes, dtypes, layouts, alignments and the operands of the epilogue
        must be the problem's, and all memory on the plan's device.

        That is checked, with ValueError, only the first time that tensors have these strides and alignments: later
        calls look at strides and addresses alone, and cost 2 us more than Triton's C launcher (an EPYC, Triton 3.6.0
        and 3.9.0, 2026-11-21).
        """
        if not self.grid:
            return out
        if self.table is not None:
            with self._current_device():
                order_table.retain(self.table)
        if scales is not None:
            scales = _near(scales[0]), _near(scales[1])
        a_at, b_at, out_at = a.data_ptr(), b.data_ptr(), out.data_ptr()
        key = _key(a, b, out, a_at, b_at, out_at, c, bias, scales)
        launch = self.launches.get(key)
        if launch is None or direct.hooked():
            self._launch_by_jit(key, a, b, out, alpha, beta, c, bias, scales)
        else:
            launch.again(self, a, b, out, a_at, b_at, out_at, alpha, beta, c, bias, scales)
        return out

    def repeated(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor,
        c: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> direct.Launch | None:
        """The launch that a call of these tensors, which has been made, was kept as; None where each call needs more.

        It serves all tensors of the same strides, dtypes and alignments.
        """
        if self.table is not None or self.problem.scales:
            return None
        return self.launches.get(_key(a, b, out, a.data_ptr(), b.data_ptr(), out.data_ptr(), c, bias, None))

    def arguments(self, a, b, out, alpha=1.0, beta=1.0, c=None, bias=None, scales=None) -> tuple[tuple, dict]:
        """What the kernel is called with: its arguments, and its constants and options."""
        raise NotImplementedError

    def kernels(self, a, b, out, **epilogue) -> Iterator[tuple[Any, tuple, dict]]:
        """The kernels that a call launches, each with its arguments, and its constants and options."""
        yield self.kernel, *self.arguments(a, b, out, **epilogue)

    @property
    def operands(self) -> dict[str, str]:
        """Which of the kernel's arguments are "a" and "b", where they have other names."""
        return {}

    def _launch_by_jit(self, key: tuple, a, b, out, alpha, beta, c, bias, scales) -> None:
        """Launches by Triton's JIT, which compiles where it must, and keeps the launch where it can be repeated."""
        self._check(a, b, out, c, bias, scales)
        with self._current_device(), capture.relaxed():
            if self.device.type == "cuda":
                context.bind(self.device.index)
            arguments, options = self.arguments(a, b, out, alpha, beta, c, bias, scales)
            with interpreter.exclusive():
                kernel = self.kernel[(self.grid,)](*arguments, **options)
            if self.device.type == "cuda" and key not in self.launches:
                try:
                    launch = direct.repeatable(
                        self.kernel, kernel, self.grid, self.device.index, arguments, options, self.operands
                    )
                except Exception as error:
                    # The kernel is launched: an error here would have `override` compute the product twice, on C too.
                    warnings.warn(f"tritonmm: a launch was not kept, which makes calls slower: {error!r}", stacklevel=2)
                    launch = None
                if launch is not None:
                    direct.LAUNCHES.put(self.launches, key, launch)

    def _current_device(self) -> contextlib.AbstractContextManager:
        if self.device.type != "cuda" or driver.active.get_current_device() == self.device.index:
            return contextlib.nullcontext()
        return torch.cuda.device(self.device)

    def _check(self, a, b, out, c, bias, scales) -> None:
        p = self.problem
        for name, x, dtype, shape in (
            ("a", a, p.dtype, (p.m, p.k)),
            ("b", b, p.b_dtype, (p.k, p.n)),
            ("out", out, p.out_dtype, (p.m, p.n)),
        ):
            if x.shape != (p.batch, *shape) and (p.batch != 1 or x.shape != shape):
                raise ValueError(f"{name} has shape {list(x.shape)}; a plan of {p} takes {[p.batch, *shape]}")
            if x.dtype != DTYPES[dtype]:
                raise ValueError(f"{name} is {x.dtype}; a plan of {p} takes {DTYPES[dtype]}")
        for name, x, wanted in (("c", c, p.epilogue.c), ("bias", bias, p.epilogue.bias)):
            if (x is not None) != wanted:
                raise ValueError(f"{name} is {'missing' if wanted else 'given'}, and {p} has {p.epilogue}")
        if bias is not None and (bias.shape != (p.n,) or not bias.is_contiguous()):
            raise ValueError(
                f"bias has shape {list(bias.shape)} and strides {bias.stride()}; it must be [{p.n}], contiguous"
            )
        if (scales is not None) != bool(p.scales):
            raise ValueError(f"scales are {'missing' if p.scales else 'given'}, and {p} has scales {p.scales!r}")
        for name, x, shape in zip(("scale_a", "scale_b"), scales or (), p.scale_shapes, strict=False):
            if x is None and shape is None:
                continue
            if x is None or shape is None or x.shape != shape or x.dtype != torch.float32:
                found = "missing" if x is None else f"{x.dtype} {list(x.shape)}"
                wanted = "none" if shape is None else f"torch.float32 {list(shape)}"
                raise ValueError(f"{name} is {found}; a plan of {p} takes {wanted}")


def _key(a, b, out, a_at: int, b_at: int, out_at: int, c, bias, scales) -> tuple:
    """All that Triton looks at when it chooses or compiles a kernel, apart from what the plan fixes."""
    return (
        a.stride(), b.stride(), out.stride(),
        (a_at | b_at | out_at) & 15 and (a_at & 15, b_at & 15, out_at & 15),
        None if c is None and bias is None else (_looks(c), _looks(bias)),
        scales and (_looks(scales[0]), _looks(scales[1])),
    )  # fmt: skip


def _looks(x: torch.Tensor | None) -> tuple | None:
    """What Triton may look at in a tensor, apart from its memory."""
    return None if x is None else (x.dtype, x.shape, x.stride(), x.data_ptr() % 16)


def _near(x: torch.Tensor | None) -> torch.Tensor | None:
    """Scales whose last element is within 2**31 of the first, copied if need be: kernels have 32 bits for offsets."""
    if x is None or x.is_contiguous():
        return x
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.contiguous() if last >= 2**31 else x


def early_start(device: torch.device) -> dict[str, bool]:
    """The option by which a grid starts before the previous one has ended, where the current device can do so.

    Tensors without memory are compiled with, for the GPU that the active driver names.
    """
    if device.type not in ("cuda", "meta"):
        return {}
    target = driver.active.get_current_target()
    return {"launch_pdl": True} if target.backend == "cuda" and target.arch >= 90 else {}


def strides(x: torch.Tensor) -> tuple[int, int, int]:
    """Batch, row and column stride of a 2-D or 3-D tensor, in elements."""
    return (x.stride(0) if x.dim() == 3 else 0), x.stride(-2), x.stride(-1)


def needs_int64(rows: int, cols: int, depth: int, a: tuple, b: tuple, *outputs: tuple) -> bool:
    """True if an offset within a tile of rows x cols x depth does not fit 32 bits, for any operand.

    a: its strides along rows and K; b: along columns and K; outputs: along rows and columns. An offset is a sum over
    both axes: each term may fit while the sum does not.
    """
    operands = (rows, depth, *a), (cols, depth, *b), *((rows, cols, *x) for x in outputs)
    return any((first - 1) * step + (second - 1) * other >= 2**31 for first, second, step, other in operands)


def described(x: torch.Tensor) -> tuple[torch.Tensor, list[int], list[int]]:
    """x [batch, rows, columns], whose last dimension is contiguous, its shape and its strides, as TMA takes them.

    The stride of a dimension of size 1 has no meaning, and is set to what TMA accepts.
    """
    vector = 16 // x.element_size()
    row = -(-max(1, x.shape[2]) // vector) * vector
    spans = [stride if size > 1 else row for size, stride in zip(x.shape[:2], x.stride()[:2], strict=True)]
    return x, list(x.shape), [*spans, 1]


def line_divisor(elements: int, line: int) -> int:
    """The largest power of two, at most `elements`, those that an alignment holds, which divides a line of them."""
    bits = max(1, elements) | line
    return bits & -bits


def scale_arguments(problem: Problem, scales: tuple[torch.Tensor | None, torch.Tensor] | None) -> tuple:
    """Scales as kernels take them: A's and their strides along rows and groups, B's along columns and groups."""
    if scales is None:
        return None, 0, 0, None, 0, 0
    a, b = scales
    return a, *((0, 0) if a is None else a.stride()), b, b.stride(1), b.stride(0)


def addend_strides(c: torch.Tensor | None, out: torch.Tensor) -> tuple[int, int, int]:
    """The strides of c expanded to out's shape, 0 along what it is expanded."""
    return (0, 0, 0) if c is None else strides(c.expand(out.shape))
