"""How a product is done: the kernel and its parameters, and the one statement of what is legal."""

import json
from dataclasses import dataclass, field, fields

from tritonmm import orders
from tritonmm.gpu import Gpu
from tritonmm.problem import Problem


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer of `Config.fits`: true, or false with the reason."""

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True)
class Config:
    """A kernel family and its parameters.

    kernel: the family, a name of `KERNELS`.
    block_m, block_n, block_k: the tile of the output, and the depth of one step along K.
    num_stages: steps along K in flight; num_warps: warps of a program.
    split_k: programs that share one tile's K.
    persistent: one program an SM walks the tiles, instead of one program a tile.
    order: the sequence in which tiles are visited.
    """

    kernel: str = "tile"
    block_m: int = 128
    block_n: int = 128
    block_k: int = 64
    num_stages: int = 3
    num_warps: int = 8
    split_k: int = 1
    persistent: bool = False
    order: orders.Order = field(default_factory=lambda: orders.SwizzleMerge(8))

    def __post_init__(self):
        for name in ("block_m", "block_n", "block_k", "num_stages", "num_warps", "split_k"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"Config: {name} is {value!r}; it must be an integer >= 1")
        if self.kernel not in KERNELS:
            raise ValueError(f"Config: kernel is {self.kernel!r}; it must be one of {', '.join(KERNELS)}")
        if not isinstance(self.persistent, bool):
            raise ValueError(f"Config: persistent is {self.persistent!r}; it must be True or False")
        if not isinstance(self.order, orders.Order):
            raise ValueError(f"Config: order is {self.order!r}; it must be an Order, such as orders.parse('hilbert')")

    def tiles(self, problem: Problem) -> tuple[int, int]:
        """Rows and columns of output tiles."""
        return -(-problem.m // self.block_m), -(-problem.n // self.block_n)

    def fits(self, problem: Problem, gpu: Gpu) -> Fit:
        """Whether this config can compute `problem` on `gpu`; false with a reason where it cannot."""
        return Fit(KERNELS[self.kernel](self, problem, gpu) or _order_reason(self, problem))

    def to_json(self) -> str:
        """One line of JSON. Raises ValueError for a `Table` order, which has no spelling."""
        if isinstance(self.order, orders.Table):
            raise ValueError(f"Config: order {self.order} is a table of tiles and has no spelling in JSON")
        return json.dumps({f.name: getattr(self, f.name) for f in fields(self)} | {"order": str(self.order)})

    @classmethod
    def from_json(cls, text: str) -> "Config":
        """The inverse of `to_json`. Raises ValueError that says which field is wrong."""
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError(f"Config: expected a JSON object, got {type(found).__name__}")
        unknown = set(found) - {f.name for f in fields(cls)}
        if unknown:
            raise ValueError(f"Config: unknown field {sorted(unknown)[0]!r}")
        if "order" in found:
            found["order"] = orders.parse(found["order"])
        return cls(**found)

    def __str__(self) -> str:
        split = f" split-k:{self.split_k}" if self.split_k > 1 else ""
        persistent = " persistent" if self.persistent else ""
        blocks = f"{self.block_m}x{self.block_n}x{self.block_k}"
        return f"{self.kernel} {blocks} stages:{self.num_stages} warps:{self.num_warps}{split}{persistent} {self.order}"


def _order_reason(config: Config, problem: Problem) -> str:
    tiles = config.tiles(problem)
    if isinstance(config.order, orders.Table) and config.order.grid != tiles:
        return f"{config.order} does not fit the grid of {tiles[0]} x {tiles[1]} tiles"
    programs = config.order.launched(*tiles) * problem.batch
    return "" if programs < 2**31 else f"{programs} programs exceed the grid limit of 2**31 - 1"


def _tile_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """The portable kernel: any shape, any strides; blocks are powers of two that the GPU can hold."""
    for name in ("block_m", "block_n", "block_k", "num_warps"):
        value = getattr(config, name)
        if value & (value - 1):
            return f"{name} is {value}; Triton needs a power of two"
    if min(config.block_m, config.block_n, config.block_k) < 16:
        return f"blocks {config.block_m}x{config.block_n}x{config.block_k}: tl.dot needs at least 16 in each"
    if config.num_warps > 16:
        return f"num_warps is {config.num_warps}; at most 16"
    if config.split_k != 1:
        return f"split_k is {config.split_k}; the tile kernel does not split K"
    shared = shared_bytes(config, problem)
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory exceed the {gpu.shared_bytes} of {gpu.name}"
    registers = config.block_m * config.block_n // (config.num_warps * (32 if gpu.is_nvidia else 64))
    if registers > _accumulator_limit(problem, gpu):
        return (
            f"{registers} accumulator registers a thread leave no room for the operands; more warps or a smaller tile"
        )
    return ""


def _accumulator_limit(problem: Problem, gpu: Gpu) -> int:
    """Accumulator registers a thread may have before others spill, seen by compiling for each target."""
    if problem.dtype == "fp32" and (problem.precision == "ieee" or gpu.capability >= 100):
        return 32  # FMA on operands in registers
    return 128 if gpu.capability == 90 and problem.element_bytes == 2 else 64  # wgmma reads shared memory


def shared_bytes(config: Config, problem: Problem) -> int:
    """Shared memory that the stages of one program take, in bytes; the epilogue reuses it."""
    step = (config.block_m + config.block_n) * config.block_k * problem.element_bytes
    epilogue = config.block_m * config.block_n * problem.out_element_bytes
    return max(config.num_stages * step, epilogue) + 1024  # barriers and alignment


KERNELS = {"tile": _tile_reason}
"""Kernel families by name, each with the rule that says why a config is not legal ("" if it is)."""
