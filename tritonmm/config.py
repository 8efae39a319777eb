"""How a GEMM is computed: a kernel family and its parameters."""

import json
from dataclasses import dataclass, fields
from typing import Any

from tritonmm import families, orders
from tritonmm.dtypes import PACKED
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
    """A kernel family and its parameters. Fields that are not given have the family's defaults.

    The defaults are legal for a large GEMM of the kind that the family is made for: bf16 for most, fp32 for "exact",
    bf16 by int8 in layout "nt" for "mixed_input".

    kernel: the family, a name of `families.names()`; "" is the portable one, "tile".
    block_m, block_n, block_k: rows and columns of an output tile, and elements of K per pipeline stage.
    num_stages: pipeline stages. num_warps: warps per CTA; in "hopper" and "mixed_input" those of the consumers.
    split_k: CTAs that share the K of each tile.
    split_tail: CTAs that share the K of each tile of the last, partial wave.
    persistent: True for a persistent kernel, whose CTAs compute several tiles each; False for one tile per CTA. It is a
        choice in "tile" and "mixed_input". The other families are always or never persistent, and ignore it.
    order: in which order tiles are visited; see `tritonmm.orders`.
    cluster: "m" or "n" for clusters of two CTAs, which divide a tile along that axis and share the other operand by
        multicast; "" for none. block_m and block_n are those of both CTAs: 256x256 with "m" is 128x256 each.
        num_stages and num_warps are those of each CTA.
    repack: the operands, "a", "b" or "ab", that are first copied into aligned rows, for TMA to address them; "" none.

    Immutable and hashable. Raises ValueError, naming the field, for values that are legal in no problem. Whether a
    config is legal for a problem is said by `fits`.

    >>> tritonmm.Config("hopper", block_n=128, order=tritonmm.orders.SwizzleMerge(11))
    Config(kernel='hopper', block_m=128, block_n=128, ..., order=SwizzleMerge(11), ...)
    >>> problem = tritonmm.Problem.dense(4096, 4096, 4096)
    >>> bool(tritonmm.Config("hopper").fits(problem, tritonmm.gpu.spec("h200")))
    True
    >>> tritonmm.Config("hopper", num_stages=9).fits(problem, tritonmm.gpu.spec("h200")).reason
    '451584 bytes of shared memory exceed the 232448 of h200; fewer stages or a smaller tile'
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
        if family.persistent is not None and isinstance(self.persistent, bool | None):
            object.__setattr__(self, "persistent", family.persistent)
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
    def dynamic(self) -> bool:
        """Whether programs take tiles as they become free, see `Family.dynamic`."""
        return families.family(self.kernel).dynamic

    @property
    def ctas(self) -> int:
        """CTAs per cluster."""
        return 2 if self.cluster else 1

    @property
    def cta_tile(self) -> tuple[int, int]:
        """Rows and columns of a tile that one CTA computes."""
        return self.block_m // (2 if self.cluster == "m" else 1), self.block_n // (2 if self.cluster == "n" else 1)

    def changed(self, **fields: Any) -> "Config":
        """This config with other values of these fields. Faster than `replace`, because no value is checked."""
        new = object.__new__(Config)
        for name in Config.__slots__:
            object.__setattr__(new, name, getattr(self, name))
        for name, value in fields.items():
            object.__setattr__(new, name, value)
        return new

    def ordered(self, order: orders.Order) -> "Config":
        """This config with another order of tiles."""
        return self.changed(order=order)

    def tiles(self, problem: Problem) -> tuple[int, int]:
        """Rows and columns of the grid of output tiles. Where groups divide the rows, the most rows there can be."""
        if problem.ragged == "m":  # the last tile of each group may have one row
            return problem.m // self.block_m + min(problem.groups, problem.m), -(-problem.n // self.block_n)
        return -(-problem.m // self.block_m), -(-problem.n // self.block_n)

    def step_bytes(self, problem: Problem) -> int:
        """Bytes of both operands in one pipeline stage of a CTA."""
        block_m, block_n = self.cta_tile
        return int((block_m * problem.element_bytes + block_n * problem.b_element_bytes) * self.block_k)

    def programs(self, problem: Problem) -> int:
        """Launch indices of the order for the whole batch, those without a tile included. Where groups divide the rows,
        the most there can be."""
        outputs = problem.groups if problem.ragged == "k" else problem.batch
        return self.order.launched(*self.tiles(problem)) * outputs

    def fits(self, problem: Problem, gpu: Gpu) -> Fit:
        """Whether this config is legal for `problem` on `gpu`: true, or false with the reason."""
        family = families.family(self.kernel)
        if problem.ozaki:
            return Fit(f"precision is {problem.precision}, whose int8 products have configs that are chosen for them")
        if problem.ragged and not family.grouped:
            return Fit(f"the {family.name} kernel multiplies no groups")
        if problem.b_dtype in PACKED and "b" in self.repack:
            return Fit(f"repack copies B; {problem.b_dtype} is packed along K, and its rows are not copied")
        reason = family.reason(self, problem.repacked(self.repack), gpu)
        reason = reason or self.symmetry_reason(problem) or self._groups_reason(problem)
        return Fit(reason or self._order_reason(problem))

    def shared_bytes(self, problem: Problem, gpu: Gpu) -> int:
        """Shared memory of one CTA in bytes: an upper bound of what the compiler allocates on a GPU."""
        return families.family(self.kernel).shared_bytes(self, problem, gpu)

    def symmetry_reason(self, problem: Problem) -> str:
        """Why the order is not one for a symmetric product, or not for another; or "".

        A symmetric product is computed in a triangular order of the aspect of the tiles, and no other product is.
        """
        if not problem.symmetric:
            return "" if self.order.everywhere else f"order is {self.order}; it does not visit all tiles of an output"
        try:
            wanted = orders.Triangular(8, aspect=(self.block_m, self.block_n))
        except ValueError as error:  # too long
            return f"blocks {self.block_m}x{self.block_n}: {error}"
        if not isinstance(self.order, orders.Triangular) or self.order.aspect != wanted.aspect:
            return f"order is {self.order}; a symmetric product in these tiles needs one such as {wanted}"
        return ""

    def _groups_reason(self, problem: Problem) -> str:
        """Why the order is not one for groups, or not for a product without; or ""."""
        if not problem.ragged:
            has_groups = isinstance(self.order, orders.Grouped)
            return f"order is {self.order}; the product has no groups" if has_groups else ""
        if not isinstance(self.order, orders.Grouped):
            return f"order is {self.order}; a product of groups needs one such as groups/swizzle-merge:8"
        if self.order.joined and problem.ragged == "k":
            return f"order is {self.order}; where groups divide K each has all tiles, and none can be joined"
        return ""

    def _order_reason(self, problem: Problem) -> str:
        tiles = self.tiles(problem)
        if isinstance(self.order, orders.Table) and self.order.grid != tiles:
            return f"{self.order} does not fit the grid of {tiles[0]} x {tiles[1]} tiles"
        programs = self.programs(problem) * self.split_k
        return f"{programs} programs exceed the grid limit of 2**31 - 1" if programs >= 2**31 else ""

    def to_json(self) -> str:
        """One line of JSON, without `persistent` where the family leaves no choice.

        Raises ValueError for a `Table` order, which has no spelling.
        """
        if isinstance(self.order, orders.Table):
            raise ValueError(f"Config: order {self.order} is a table of tiles and has no spelling in JSON")
        values = {f.name: getattr(self, f.name) for f in fields(self)} | {"order": str(self.order)}
        if families.family(self.kernel).persistent is not None:
            del values["persistent"]
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> "Config":
        """The inverse of `to_json`. Raises ValueError, naming the field, for text that is no config.

        >>> tritonmm.Config.from_json('{"kernel": "hopper", "split_k": 4}').split_k
        4
        """
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
        chosen = families.family(self.kernel).persistent is None
        persistent = " persistent" if self.persistent and chosen else ""
        persistent += f" cluster:{self.cluster}" if self.cluster else ""
        persistent += f" repack:{self.repack}" if self.repack else ""
        blocks = f"{self.block_m}x{self.block_n}x{self.block_k}"
        return f"{self.kernel} {blocks} stages:{self.num_stages} warps:{self.num_warps}{split}{persistent} {self.order}"
