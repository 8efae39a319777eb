"""Launches a grouped GEMM: first its table of groups, which `device/groups.py` describes, then the product.

The table is a torch tensor, allocated on the current stream at each call, and during capture in the graph's own pool.
So launches on different streams never share one. Nothing comes to the host.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch

from tritonmm.config import Config
from tritonmm.device.groups import ENTRY, FIELDS, group_table_kernel
from tritonmm.launch import Plan, capture, context, direct, interpreter, launch_options
from tritonmm.orders import Grouped
from tritonmm.problem import Problem

ENTRIES = 128
"""Entries that a program writes."""

COMPARISONS = 4096
"""Comparisons of sizes at a time, 16 of each thread of a program."""


@dataclass(frozen=True, slots=True)
class GroupTable:
    """What the table of one plan depends on.

    groups: how many. total: rows or elements of K that are divided among them. block_m: rows of a tile, or 0 where K is
    divided. largest_first: as in `orders.Grouped`. launches: those made before, by the alignment of the offsets.
    """

    groups: int
    total: int
    block_m: int
    largest_first: bool
    launches: dict[int, direct.Kept] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, problem: Problem, config: Config) -> Self:
        """The table of a legal config."""
        assert isinstance(config.order, Grouped)  # else it is not legal
        total, block_m = (problem.m, config.block_m) if problem.ragged == "m" else (problem.k, 0)
        return cls(problem.groups, total, block_m, config.order.largest_first)

    @property
    def entries(self) -> int:
        """Entries at most: the last row of tiles of each group may have one row."""
        if not self.block_m:
            return self.groups
        return self.total // self.block_m + min(self.groups, self.total)

    @property
    def slots(self) -> int:
        """Groups that a program looks at, a power of two."""
        return max(32, 1 << (self.groups - 1).bit_length())

    @property
    def programs(self) -> int:
        return max(1, -(-self.entries // ENTRIES))

    def empty(self, device: torch.device) -> torch.Tensor:
        """Memory of the table and of its programs' scratch memory."""
        count = ENTRY.value * (1 + self.entries) + FIELDS.value * self.slots * self.programs
        return torch.empty(count, dtype=torch.int32, device=device)

    def launch(self, offs: torch.Tensor, table: torch.Tensor) -> tuple[tuple, dict]:
        """Arguments and options of the launch."""
        arguments = offs, table, self.groups, self.total, self.entries
        own = {"BLOCK_M": self.block_m, "LARGEST_FIRST": self.largest_first, "SLOTS": self.slots, "ENTRIES": ENTRIES}
        own["COMPARED"] = max(1, COMPARISONS // self.slots)
        return arguments, launch_options(table.device, **own, num_warps=8)

    def make(self, offs: torch.Tensor) -> torch.Tensor:
        """The table for these offsets, on the current stream of the current device.

        offs: int32 [groups], contiguous. Calls after the first launch without Triton's JIT.
        """
        table = self.empty(offs.device)
        at, to = offs.data_ptr(), table.data_ptr()
        kept = self.launches.get(at & 15)
        if kept is None or to & 15 or direct.hooked():
            self._make_by_jit(offs, table, to)
        else:
            values = kept.values.copy()
            values[kept.places["offs"]], values[kept.places["table"]] = at, to
            kept.send(values)
        return table

    def _make_by_jit(self, offs: torch.Tensor, table: torch.Tensor, to: int) -> None:
        """Launches through Triton's JIT, which compiles if needed, and keeps the launch if it can be repeated."""
        index = offs.device.index
        if offs.device.type == "cuda":
            context.bind(index)
        arguments, options = self.launch(offs, table)
        with interpreter.exclusive(), capture.relaxed():
            kernel = group_table_kernel[(self.programs,)](*arguments, **options)
        if offs.device.type == "cuda" and not to & 15:
            try:
                kept = direct.kept(group_table_kernel, kernel, self.programs, index, arguments, options)
            except Exception as error:  # the table is made
                direct.warn_not_kept(error)
                return
            if kept is not None:
                direct.LAUNCHES.put(self.launches, offs.data_ptr() & 15, kept)


@dataclass(frozen=True, slots=True)
class GroupedPlan:
    """A plan that makes the table of groups, then calls `inner`, the plan of the product. It is called as `Plan` is.

    `kernel` and `arguments` describe the kernel that makes the table.
    """

    kernel: ClassVar[Any] = group_table_kernel

    problem: Problem
    config: Config
    device: torch.device
    table: GroupTable
    inner: Plan

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *, offs: torch.Tensor, **epilogue
    ) -> torch.Tensor:
        """As `Plan.__call__`. offs: where each group ends, int32 [groups], contiguous."""
        if offs.shape != (self.table.groups,) or offs.dtype != torch.int32 or not offs.is_contiguous():
            found = f"{offs.dtype} {list(offs.shape)} with strides {offs.stride()}"
            raise ValueError(f"offs is {found}; a plan of {self.problem} takes int32 [{self.table.groups}], contiguous")
        if not self.inner.grid:
            return out
        with self.inner.current_device():
            table = self.table.make(offs)
        return self.inner(a, b, out, groups=table, **epilogue)

    def repeated(self, *tensors) -> None:
        """None: each call has to make a new table. See `Plan.repeated`."""
        return None

    def arguments(self, a, b, out, *, offs, **epilogue) -> tuple[tuple, dict]:
        """Arguments of the kernel that makes the table, and its constants and options by name."""
        return self.table.launch(offs, self.table.empty(offs.device))

    def kernels(self, a, b, out, *, offs, **epilogue) -> Iterator[tuple[Any, tuple, dict]]:
        """The kernels that a call launches: each with its arguments, and its constants and options by name."""
        arguments, options = self.arguments(a, b, out, offs=offs)
        yield self.kernel, arguments, options
        yield self.inner.kernel, *self.inner.arguments(a, b, out, groups=arguments[1], **epilogue)
