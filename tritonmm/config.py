"""How a GEMM is computed: a kernel family and its parameters."""

import json
from dataclasses import dataclass, fields
from typing import Any

from tritonmm import families, orders
from tritonmm.gpu import Gpu
from tritonmm.problem import Problem


@dataclass(frozen=True, slots=True)
class Fit:
    """Result of `Config.fits`: true, or false with the reason."""

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


FORMER_FIELDS = {"relayout": "repack"}
"""Present names of fields by their former names, which older tables, stores and results files have."""

_OF_FAMILY: Any = None
"""Marks a field that takes the family's default."""


@dataclass(frozen=True, slots=True)
class Config:
    """A kernel family and its parameters. Frozen and hashable; fields that are left out take the family's defaults.

    kernel: the family, one of `families.names()`; the portable one by default.
    block_m, block_n, block_k: rows and columns of an output tile, and elements of K in one step.
    num_stages: pipeline stages, in steps along K.
    num_warps: warps of one CTA.
    split_k: parts into which the K of each tile is divided (split-K). One CTA, or one cluster, computes a part.
    split_tail: the same for the tiles of the last, partial wave alone.
    persistent: one CTA computes several tiles in turn instead of one. Most families allow only one of the two.
    order: the order in which tiles are visited, see `tritonmm.orders`.
    cluster: "" for no cluster. "m" or "n": a cluster of two CTAs divides each tile along that axis and shares the other
        operand by TMA multicast. The blocks are the cluster's: 256x256 with "m" is two CTAs of 128x256. Stages and
        warps are each CTA's.
    repack: operands, "a", "b" or "ab", that are first copied into aligned rows so that TMA can address them; "" for
        none.

    Raises ValueError for values that are legal in no family. Whether a config is legal for a problem is what `fits`
    says.

    >>> Config("hopper", 128, 256, 64, num_stages=4, num_warps=8).block_n
    256
    """

    kernel: str = ""
    block_m: int = _OF_FAMILY
    block_n: int = _OF_FAMILY
    block_k: int = _OF_FAMILY
    num_stages: int = _OF_FAMILY
    num_warps: int = _OF_FAMILY
    split_k: int = 1
    split_tail: int = 1
    persistent: bool = _OF_FAMILY
    order: orders.Order = _OF_FAMILY
    cluster: str = ""
    repack: str = ""

    def __post_init__(self):
        if not isinstance(self.kernel, str):
            raise ValueError(f"Config: kernel is {self.kernel!r}; it must be one of {', '.join(families.names())}")
        family = families.family(self.kernel)
        object.__setattr__(self, "kernel", family.name)
        for name, value in family.defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        for name in ("block_m", "block_n", "block_k", "num_stages", "num_warps", "split_k", "split_tail"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"Config: {name} is {value!r}; it must be an integer >= 1")
        if not isinstance(self.persistent, bool):
            raise ValueError(f"Config: persistent is {self.persistent!r}; it must be True or False")
        if not isinstance(self.order, orders.Order):
            raise ValueError(f"Config: order is {self.order!r}; it must be an Order, such as orders.parse('hilbert')")
        if self.cluster not in ("", "m", "n"):
            raise ValueError(f"Config: cluster is {self.cluster!r}; it must be '', 'm' or 'n'")
        if self.repack not in ("", "a", "b", "ab"):
            raise ValueError(f"Config: repack is {self.repack!r}; it must be '', 'a', 'b' or 'ab'")

    @property
    def ctas(self) -> int:
        """CTAs that compute one tile, each on its own SM: 2 in a cluster, else 1."""
        return 2 if self.cluster else 1

    @property
    def cta_tile(self) -> tuple[int, int]:
        """Rows and columns of a tile that one CTA computes."""
        return self.block_m // (2 if self.cluster == "m" else 1), self.block_n // (2 if self.cluster == "n" else 1)

    def tiles(self, problem: Problem) -> tuple[int, int]:
        """Rows and columns of the grid of output tiles."""
        return -(-problem.m // self.block_m), -(-problem.n // self.block_n)

    def step_bytes(self, problem: Problem) -> int:
        """Operand bytes that one CTA multiplies in one step along K."""
        block_m, block_n = self.cta_tile
        return (block_m * problem.element_bytes + block_n * problem.b_element_bytes) * self.block_k

    def programs(self, problem: Problem) -> int:
        """Launch indices of the order for the whole batch, idle (overflow) ones included."""
        return self.order.launched(*self.tiles(problem)) * problem.batch

    def fits(self, problem: Problem, gpu: Gpu) -> Fit:
        """Whether this config can compute `problem` on `gpu`. The result is false with a reason where it cannot.

        >>> from tritonmm import gpu
        >>> bool(Config(block_m=48).fits(Problem(64, 64, 64), gpu.spec("h200")))
        False
        """
        reason = families.family(self.kernel).reason(self, problem.repacked(self.repack), gpu)
        return Fit(reason or self._order_reason(problem))

    def shared_bytes(self, problem: Problem) -> int:
        """Shared memory of one CTA in bytes; never less than the compiled kernel uses."""
        return families.family(self.kernel).shared_bytes(self, problem)

    def _order_reason(self, problem: Problem) -> str:
        tiles = self.tiles(problem)
        if isinstance(self.order, orders.Table) and self.order.grid != tiles:
            return f"{self.order} does not fit the grid of {tiles[0]} x {tiles[1]} tiles"
        programs = self.programs(problem) * self.split_k
        return f"{programs} programs exceed the grid limit of 2**31 - 1" if programs >= 2**31 else ""

    def to_json(self) -> str:
        """One line of JSON. Raises ValueError for a `Table` order, which has no spelling."""
        if isinstance(self.order, orders.Table):
            raise ValueError(f"Config: order {self.order} is a table of tiles and has no spelling in JSON")
        return json.dumps({f.name: getattr(self, f.name) for f in fields(self)} | {"order": str(self.order)})

    @classmethod
    def from_json(cls, text: str) -> "Config":
        """The inverse of `to_json`. Former names of fields and families are accepted. Raises ValueError that names the
        wrong field."""
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError(f"Config: expected a JSON object, got {type(found).__name__}")
        found = {FORMER_FIELDS.get(name, name): value for name, value in found.items()}
        unknown = set(found) - {f.name for f in fields(cls)}
        if unknown:
            raise ValueError(f"Config: unknown field {sorted(unknown)[0]!r}")
        for name, value in found.items():
            if value is None:
                raise ValueError(f"Config: {name} is null; leave it out for the family's default")
        if "order" in found:
            found["order"] = orders.parse(found["order"])
        return cls(**found)

    def __str__(self) -> str:
        split = f" split-k:{self.split_k}" if self.split_k > 1 else ""
        split += f" split-tail:{self.split_tail}" if self.split_tail > 1 else ""
        persistent = " persistent" if self.persistent else ""
        persistent += f" cluster:{self.cluster}" if self.cluster else ""
        persistent += f" repack:{self.repack}" if self.repack else ""
        blocks = f"{self.block_m}x{self.block_n}x{self.block_k}"
        return f"{self.kernel} {blocks} stages:{self.num_stages} warps:{self.num_warps}{split}{persistent} {self.order}"
