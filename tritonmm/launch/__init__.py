"""Launching: what the plans of all kernel families share.

A family's `launch.py` derives its plan from `Plan` here and says with which arguments its kernel is called.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from triton.runtime import driver

from tritonmm.config import Config
from tritonmm.dtypes import DTYPES
from tritonmm.launch import capture, context, direct, interpreter, order_table, workspace
from tritonmm.orders import Grouped
from tritonmm.problem import Problem


@dataclass(frozen=True, slots=True)
class Plan:
    """A Config bound to a Problem on a device. A family's `plan` makes it. Safe to call from several threads and
    streams.

    launched: launch indices of the tile order for one GEMM of the batch, idle ones included.
    programs: launch indices for the whole batch.
    grid: programs that the kernel is launched with; 0 if there is nothing to compute.
    order: name, factors and axis of the order, as the kernel takes them.
    table: the order as a table on the device, from `order_table.of`, if the order has no closed form.
    launches: launches made before, by everything that their kernel and arguments depend on.
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
        """The plan of a legal config that launches `grid` programs. own: the fields that the family's plan adds."""
        tiles = config.tiles(problem)
        one = config.order.inner if isinstance(config.order, Grouped) else config.order
        if one.closed_form:
            order, table = (one.name, one.factors, one.along), None
        else:
            order, table = ("table", (), "m"), order_table.of(config.order, tiles, device)
        launched = config.order.launched(*tiles)
        return cls(problem, config, device, launched, config.programs(problem), grid, order, table, **own)

    @property
    def skippable(self) -> bool:
        """Whether a call takes `skip`. Then `arguments` has it, too."""
        return False

    def workspace(self) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Workspace and flags of one launch on the current stream, for a plan that splits all its tiles into `split_k`
        parts."""
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
        groups: torch.Tensor | None = None,
        skip: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """out = alpha * (a @ b) + bias + beta * c, on the current stream of the plan's device.

        a: (batch, m, k) or (m, k).
        b: (batch, k, n) or (k, n).
        out: (batch, m, n) or (m, n); returned.
        c: a tensor that expands to out's shape.
        bias: (n,), contiguous; (groups, n) for a grouped product.
        scales: fp32 scales of a and b, with the shapes of `Problem.scale_shapes`; None for an a of 2 bytes. The hopper
            kernel takes b's scales contiguous along the columns if each scale group has its own. Where groups divide
            m, b's may be 3-D, (groups, scale groups, columns), with any strides.
        groups: the table of groups of a grouped product, see `launch.groups`. Where groups divide m, b alone is 3-D,
            (groups, k, n); where they divide k, out alone is, (groups, m, n).
        skip: one int32, for a plan that is `skippable`: if it is not 0 when the kernel runs, nothing is written. Each
            program reads it and ends, so the host need not know it, and a skipped launch takes as long as its programs
            take to start.

        Shapes, dtypes, layouts, alignments and the epilogue's operands must be the problem's, and all memory must be on
        the plan's device. That is checked, with ValueError, only in the first call with tensors of these strides and
        alignments. Later calls look at strides and addresses alone. They cost 2 us more than Triton's C launcher
        (docs/notebook/launch.md).
        """
        if not self.grid:
            return out
        if self.table is not None:
            with self.current_device():
                order_table.retain(self.table)
        if scales is not None:
            scales = _within_32_bits(scales[0]), _within_32_bits(scales[1])
        a_at, b_at, out_at = a.data_ptr(), b.data_ptr(), out.data_ptr()
        key = _key(a, b, out, a_at, b_at, out_at, c, bias, scales)
        if skip is not None:
            key = *key, skip.data_ptr() & 15
        launch = self.launches.get(key)
        if launch is None or direct.hooked():
            self._launch_by_jit(key, a, b, out, alpha, beta, c, bias, scales, groups, skip)
        else:
            launch.again(self, a, b, out, a_at, b_at, out_at, alpha, beta, c, bias, scales, groups, skip)
        return out

    def repeated(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor,
        c: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> direct.Launch | None:
        """The kept launch of a call that has been made with these tensors. It serves all tensors of equal strides,
        dtypes and alignments.

        None if each call needs more than the launch: a table of the order or of groups, or scales.
        """
        if self.table is not None or self.problem.scales or self.problem.ragged:
            return None
        return self.launches.get(_key(a, b, out, a.data_ptr(), b.data_ptr(), out.data_ptr(), c, bias, None))

    def arguments(self, a, b, out, alpha=1.0, beta=1.0, c=None, bias=None, scales=None) -> tuple[tuple, dict]:
        """The kernel's arguments, and its constants and options by name."""
        raise NotImplementedError

    def kernels(self, a, b, out, **epilogue) -> Iterator[tuple[Any, tuple, dict]]:
        """The kernels that a call launches: each with its arguments, and its constants and options by name."""
        yield self.kernel, *self.arguments(a, b, out, **epilogue)

    @property
    def operands(self) -> dict[str, str]:
        """ "a" or "b" by the name of the kernel's argument, for arguments with other names."""
        return {}

    def _launch_by_jit(self, key: tuple, a, b, out, alpha, beta, c, bias, scales, groups, skip) -> None:
        """Launches through Triton's JIT, which compiles if needed, and keeps the launch if it can be repeated."""
        self._check(a, b, out, c, bias, scales, skip)
        with self.current_device(), capture.relaxed():
            if self.device.type == "cuda":
                context.bind(self.device.index)
            given = {name: x for name, x in (("groups", groups), ("skip", skip)) if x is not None}
            arguments, options = self.arguments(a, b, out, alpha, beta, c, bias, scales, **given)
            with interpreter.exclusive():
                kernel = self.kernel[(self.grid,)](*arguments, **options)
            if self.device.type == "cuda" and key not in self.launches:
                try:
                    launch = direct.repeatable(
                        self.kernel, kernel, self.grid, self.device.index, arguments, options, self.operands
                    )
                except Exception as error:
                    # The kernel is already launched. If this raised, `override` would compute the GEMM again with
                    # torch, and would add C twice.
                    direct.warn_not_kept(error)
                    launch = None
                if launch is not None:
                    direct.LAUNCHES.put(self.launches, key, launch)

    def current_device(self) -> contextlib.AbstractContextManager:
        """Inside, the plan's device is the current one."""
        if self.device.type != "cuda" or driver.active.get_current_device() == self.device.index:
            return contextlib.nullcontext()
        return torch.cuda.device(self.device)

    def _check(self, a, b, out, c, bias, scales, skip) -> None:
        p = self.problem
        for name, x, dtype, shape in (
            ("a", a, p.dtype, (p.m, p.k)),
            ("b", b, p.b_dtype, (p.b_rows, p.n)),
            ("out", out, p.out_dtype, (p.m, p.n)),
        ):
            batch = p.groups if (name, p.ragged) in (("b", "m"), ("out", "k")) else p.batch
            if x.shape != (batch, *shape) and (batch != 1 or x.shape != shape):
                raise ValueError(f"{name} has shape {list(x.shape)}; a plan of {p} takes {[batch, *shape]}")
            if x.dtype != DTYPES[dtype]:
                raise ValueError(f"{name} is {x.dtype}; a plan of {p} takes {DTYPES[dtype]}")
        for name, x, wanted in (("c", c, p.epilogue.c), ("bias", bias, p.epilogue.bias)):
            if (x is not None) != wanted:
                raise ValueError(f"{name} is {'missing' if wanted else 'given'}, and {p} has {p.epilogue}")
        bias_shape = [p.groups, p.n] if p.ragged else [p.n]
        if bias is not None and (list(bias.shape) != bias_shape or not bias.is_contiguous()):
            raise ValueError(
                f"bias has shape {list(bias.shape)} and strides {bias.stride()}; it must be {bias_shape}, contiguous"
            )
        if skip is not None and not self.skippable:
            raise ValueError(f"skip is given, and a launch of {self.config} for {p} cannot be skipped")
        if skip is not None and (skip.numel() != 1 or skip.dtype != torch.int32):
            raise ValueError(f"skip is {skip.dtype} {list(skip.shape)}; it must be one torch.int32")
        if (scales is not None) != bool(p.scales):
            raise ValueError(f"scales are {'missing' if p.scales else 'given'}, and {p} has scales {p.scales!r}")
        for name, x, shape in zip(("scale_a", "scale_b"), scales or (), p.scale_shapes, strict=False):
            if x is None and shape is None:
                continue
            shapes = (shape, (p.groups, shape[0] // p.groups, shape[1])) if shape and p.ragged == "m" else (shape,)
            if x is None or shape is None or x.shape not in shapes or x.dtype != torch.float32:
                found = "missing" if x is None else f"{x.dtype} {list(x.shape)}"
                wanted = "none" if shape is None else f"torch.float32 {list(shape)}"
                raise ValueError(f"{name} is {found}; a plan of {p} takes {wanted}")


def _key(a, b, out, a_at: int, b_at: int, out_at: int, c, bias, scales) -> tuple:
    """Everything that Triton looks at to choose or compile a kernel, apart from what the plan fixes."""
    return (
        a.stride(), b.stride(), out.stride(),
        (a_at | b_at | out_at) & 15 and (a_at & 15, b_at & 15, out_at & 15),
        None if c is None and bias is None else (_seen_by_triton(c), _seen_by_triton(bias)),
        scales and (_seen_by_triton(scales[0]), _seen_by_triton(scales[1])),
    )  # fmt: skip


def _seen_by_triton(x: torch.Tensor | None) -> tuple | None:
    """Everything that Triton may look at in a tensor, apart from its memory."""
    return None if x is None else (x.dtype, x.shape, x.stride(), x.data_ptr() % 16)


def _within_32_bits(x: torch.Tensor | None) -> torch.Tensor | None:
    """x, or a contiguous copy if its last element is 2**31 elements or more behind its first: kernels use 32-bit
    offsets."""
    if x is None or x.is_contiguous():
        return x
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.contiguous() if last >= 2**31 else x


FUSION = {"enable_fp_fusion": True}
"""The option by which a multiplication and an addition become one fma, passed in every launch: it decides bits, and
Triton's default is True up to 3.9 and False from 3.10 on."""


def launch_options(device: torch.device, **own: Any) -> dict[str, Any]:
    """The options of a kernel's launch: those of all kernels, and the kernel's own.

    Programmatic dependent launch (PDL) is one of them, where the current device supports it.
    device: may be "meta": tensors without memory are compiled for the GPU of the active driver.
    """
    return own | FUSION | early_start(device)


def early_start(device: torch.device) -> dict[str, bool]:
    """The launch option for PDL, where the current device supports it; else no option. device: see `launch_options`."""
    if device.type not in ("cuda", "meta"):
        return {}
    target = driver.active.get_current_target()
    return {"launch_pdl": True} if target.backend == "cuda" and target.arch >= 90 else {}


def strides(x: torch.Tensor) -> tuple[int, int, int]:
    """Batch, row and column stride of a 2-D or 3-D tensor, in elements."""
    return (x.stride(0) if x.dim() == 3 else 0), x.stride(-2), x.stride(-1)


def needs_int64(rows: int, cols: int, depth: int, a: tuple, b: tuple, *outputs: tuple) -> bool:
    """True if an operand's offsets within one tile of rows x cols x depth do not fit in 32 bits.

    a: strides of A along rows and K. b: strides of B along columns and K. outputs: strides along rows and columns. An
        offset is a sum over both axes; it may overflow where neither term does.
    """
    operands = (rows, depth, *a), (cols, depth, *b), *((rows, cols, *x) for x in outputs)
    return any((first - 1) * step + (second - 1) * other >= 2**31 for first, second, step, other in operands)


def described(x: torch.Tensor) -> tuple[torch.Tensor, list[int], list[int]]:
    """x with the shape and strides that TMA takes. x: (batch, rows, columns), with a contiguous last dimension.

    The stride of a dimension of size 1 has no meaning; it is set to a multiple of 16 bytes, which TMA requires.
    """
    vector = 16 // x.element_size()
    row = -(-max(1, x.shape[2]) // vector) * vector
    spans = [stride if size > 1 else row for size, stride in zip(x.shape[:2], x.stride()[:2], strict=True)]
    return x, list(x.shape), [*spans, 1]


def line_divisor(elements: int, line: int) -> int:
    """The largest power of two, at most `elements`, that divides `line`.

    elements: the elements that an alignment holds; 0 counts as 1. line: elements of a contiguous line.
    """
    bits = max(1, elements) | line
    return bits & -bits


def scale_arguments(scales: tuple[torch.Tensor | None, torch.Tensor] | None) -> tuple:
    """Scales as kernels take them: A's, with strides along rows and scale groups; B's, with strides along columns and
    scale groups."""
    if scales is None:
        return None, 0, 0, None, 0, 0
    a, b = scales
    return a, *((0, 0) if a is None else a.stride()), b, b.stride(-1), b.stride(-2)


def scale_group_stride(problem: Problem, scales: tuple[torch.Tensor | None, torch.Tensor] | None) -> int:
    """Stride of B's scales from one group of a grouped product to the next."""
    if scales is None or not problem.ragged:
        return 0
    b = scales[1]
    return b.stride(0) if b.dim() == 3 else b.stride(0) * (b.shape[0] // problem.groups)


def addend_strides(c: torch.Tensor | None, out: torch.Tensor) -> tuple[int, int, int]:
    """Strides of c expanded to out's shape; 0 along expanded dimensions and without c."""
    return (0, 0, 0) if c is None else strides(c.expand(out.shape))
