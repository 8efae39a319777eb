"""How a product is done: the kernel and its parameters, and the one statement of what is legal."""

import json
from dataclasses import dataclass, field, fields

from tritonmm import orders
from tritonmm.families.exact import rules as sliced
from tritonmm.families.hopper import rules as hopper
from tritonmm.families.mixed_input import rules as weights
from tritonmm.gpu import Gpu
from tritonmm.problem import HALF, Problem


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
    block_m, block_n, block_k: the tile of the output, and the depth of one step along K. The skinny kernel streams the
        operand of the taller of block_m and block_n, B where they are equal; the other block holds the few rows or
        columns, and 1 means that they are multiplied on CUDA cores. The weights kernel streams B.
    num_stages: steps along K in flight; num_warps: warps of a program.
    split_k: programs that share each tile's K.
    split_tail: programs that share the K of each tile of the last, partial wave.
    persistent: one program an SM walks the tiles, instead of one a tile; the weights kernel's share all steps equally.
    order: the sequence in which tiles are visited.
    relayout: the operands, "a", "b" or "ab", that are first copied into aligned rows, for TMA to address them; "" none.
    cluster: "m" or "n": a program is two CTAs, on two SMs, that divide the tile along that axis and share the other
        operand by multicast. The blocks are those of both together, a 256x256 of "m" being two of 128x256; stages and
        warps are those of each. "": a program is one CTA.
    """

    kernel: str = "tile"
    block_m: int = 128
    block_n: int = 128
    block_k: int = 64
    num_stages: int = 3
    num_warps: int = 8
    split_k: int = 1
    split_tail: int = 1
    persistent: bool = False
    order: orders.Order = field(default_factory=lambda: orders.SwizzleMerge(8))
    cluster: str = ""
    relayout: str = ""

    def __post_init__(self):
        for name in ("block_m", "block_n", "block_k", "num_stages", "num_warps", "split_k", "split_tail"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"Config: {name} is {value!r}; it must be an integer >= 1")
        if not isinstance(self.kernel, str) or self.kernel not in KERNELS:
            raise ValueError(f"Config: kernel is {self.kernel!r}; it must be one of {', '.join(KERNELS)}")
        if not isinstance(self.persistent, bool):
            raise ValueError(f"Config: persistent is {self.persistent!r}; it must be True or False")
        if not isinstance(self.order, orders.Order):
            raise ValueError(f"Config: order is {self.order!r}; it must be an Order, such as orders.parse('hilbert')")
        if self.cluster not in ("", "m", "n"):
            raise ValueError(f"Config: cluster is {self.cluster!r}; it must be '', 'm' or 'n'")
        if self.relayout not in ("", "a", "b", "ab"):
            raise ValueError(f"Config: relayout is {self.relayout!r}; it must be '', 'a', 'b' or 'ab'")

    @property
    def ctas(self) -> int:
        """CTAs of a program, each on an SM of its own."""
        return 2 if self.cluster else 1

    @property
    def cta_tile(self) -> tuple[int, int]:
        """Rows and columns of the tile that one CTA computes."""
        return self.block_m // (2 if self.cluster == "m" else 1), self.block_n // (2 if self.cluster == "n" else 1)

    def tiles(self, problem: Problem) -> tuple[int, int]:
        """Rows and columns of output tiles."""
        return -(-problem.m // self.block_m), -(-problem.n // self.block_n)

    def step_bytes(self, problem: Problem) -> int:
        """Bytes of the operands that a CTA multiplies in one step of K."""
        block_m, block_n = self.cta_tile
        return (block_m * problem.element_bytes + block_n * problem.b_element_bytes) * self.block_k

    def split_tiles(self, problem: Problem, gpu: Gpu) -> tuple[int, int]:
        """How many tiles, the last ones of the order, are shared by several programs, and by how many."""
        tiles = self.order.launched(*self.tiles(problem)) * problem.batch
        if self.split_k > 1:
            return tiles, self.split_k
        return (tiles % gpu.sms, self.split_tail) if self.split_tail > 1 else (0, 1)

    def fits(self, problem: Problem, gpu: Gpu) -> Fit:
        """Whether this config can compute `problem` on `gpu`; false with a reason where it cannot."""
        kernel_reason = KERNELS[self.kernel](self, problem.relaid(self.relayout), gpu)
        return Fit(kernel_reason or hopper.cluster_reason(self, problem) or _order_reason(self, problem, gpu))

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
        split += f" split-tail:{self.split_tail}" if self.split_tail > 1 else ""
        persistent = " persistent" if self.persistent else ""
        persistent += f" cluster:{self.cluster}" if self.cluster else ""
        persistent += f" relayout:{self.relayout}" if self.relayout else ""
        blocks = f"{self.block_m}x{self.block_n}x{self.block_k}"
        return f"{self.kernel} {blocks} stages:{self.num_stages} warps:{self.num_warps}{split}{persistent} {self.order}"


def _shared_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    shared, most = shared_bytes(config, problem), gpu.shared_bytes
    return f"{shared} bytes of shared memory exceed the {most} of {gpu.name}" if shared > most else ""


def _order_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    tiles = config.tiles(problem)
    if isinstance(config.order, orders.Table) and config.order.grid != tiles:
        return f"{config.order} does not fit the grid of {tiles[0]} x {tiles[1]} tiles"
    launched = config.order.launched(*tiles) * problem.batch
    if (programs := launched * config.split_k) >= 2**31:
        return f"{programs} programs exceed the grid limit of 2**31 - 1"
    return weights.share_reason(config, problem, gpu, launched) if config.kernel == "weights" else ""


def _tile_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """The portable kernel: any shape, any strides; blocks are powers of two that the GPU can hold."""
    if reason := _power_of_two_reason(config):
        return reason
    if min(config.block_m, config.block_n, config.block_k) < 16:
        return f"blocks {config.block_m}x{config.block_n}x{config.block_k}: tl.dot needs at least 16 in each"
    if config.split_k != 1 or config.split_tail != 1:
        return f"split_k, split_tail are {config.split_k}, {config.split_tail}; the tile kernel does not split K"
    if reason := _dot_reason(config, problem, gpu):
        return reason
    if reason := _shared_reason(config, problem, gpu):
        return reason
    registers = config.block_m * config.block_n // (config.num_warps * (32 if gpu.is_nvidia else 64))
    if registers > _accumulator_limit(config, problem, gpu):
        return (
            f"{registers} accumulator registers a thread leave no room for the operands; more warps or a smaller tile"
        )
    loaded = (config.block_m + config.block_n) * config.block_k // (config.num_warps * (32 if gpu.is_nvidia else 64))
    if 1 in (problem.element_bytes, problem.b_element_bytes) and problem.alignment < 4 and loaded > 40:
        return f"{loaded} bytes a thread, loaded one by one, and their addresses leave no room for others"
    return ""


def _sliced_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    return _power_of_two_reason(config) or sliced.reason(config, problem, gpu) or _shared_reason(config, problem, gpu)


def _weights_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    return weights.reason(config, problem, gpu) or _tma_reason(config, problem) or _shared_reason(config, problem, gpu)


def _hopper_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    return (
        hopper.operands_reason(problem, gpu)
        or _operands_reason(problem, gpu)
        or _tma_reason(config, problem)
        or hopper.reason(config, problem, gpu)
        or _shared_reason(config, problem, gpu)
    )


def _power_of_two_reason(config: Config) -> str:
    for name in ("block_m", "block_n", "block_k", "num_warps"):
        value = getattr(config, name)
        if value & (value - 1):
            return f"{name} is {value}; Triton needs a power of two"
    return f"num_warps is {config.num_warps}; at most 16" if config.num_warps > 16 else ""


def _dot_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """What tl.dot asks of dtypes, and of the depth of a step."""
    p = problem
    if p.precision == "tf32x3" and not gpu.is_nvidia:
        return f"precision is tf32x3; {gpu.name} has none, bf16x3 it has"
    if p.element_bytes == 1 and config.block_k < 32:
        return f"block_k is {config.block_k}; tl.dot needs at least 32 of {p.dtype}"
    if p.grouped and p.group % config.block_k:
        return f"block_k is {config.block_k}; it must divide the {p.group} elements of K that share a scale"
    if p.promotes and config.block_k > 128:
        return f"block_k is {config.block_k}; sums of fp8 are added in fp32 every 128 elements of K, or more often"
    return _operands_reason(problem, gpu)


def _operands_reason(problem: Problem, gpu: Gpu) -> str:
    p = problem
    if "fp8e4m3" in (p.dtype, p.b_dtype) and gpu.is_nvidia and gpu.capability < 89:
        return f"dtype is {p.dtype}, {p.b_dtype}; fp8e4m3 needs sm_89, {gpu.name} is {gpu.arch}"
    return f"batch is {p.batch}; scales are those of one product" if p.scales and p.batch > 1 else ""


def _accumulator_limit(config: Config, problem: Problem, gpu: Gpu) -> int:
    """Sums a thread may hold before others spill, seen by compiling for each target."""
    on_cuda_cores = ("ieee", "tf32") if gpu.capability >= 100 else ("ieee",)
    if problem.dtype == "fp32" and problem.precision in on_cuda_cores:
        return 32  # FMA on operands in registers
    if problem.precision.endswith("x3"):
        if problem.alignment < 16:  # the parts of operands are in registers, and an address for each
            return 16 if gpu.capability >= 90 else 8
        return 64 if problem.precision == "bf16x3" and gpu.capability >= 90 else 32
    if problem.dtype == "fp64":
        if gpu.capability >= 100:
            return 8  # FMA, of two registers each
        return 32 if problem.alignment == 16 and config.num_warps <= 8 else 16
    if problem.b_dtype == "int8" and gpu.is_nvidia and gpu.capability != 90:
        return 32  # bytes are put in order, or converted, in registers
    wgmma = problem.element_bytes == problem.b_element_bytes <= 2 and not problem.promotes
    return 128 if gpu.capability == 90 and wgmma else 64  # wgmma reads shared memory


def _persistent_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """TMA in plain Triton: what TMA can address, and tiles whose accumulator leaves room for the epilogue."""
    if gpu.capability not in (90, 100):
        return f"the persistent kernel needs sm_90 or sm_100; {gpu.name} is {gpu.arch}"
    if problem.dtype not in HALF or problem.b_dtype not in HALF:
        return f"dtypes are {problem.dtype} and {problem.b_dtype}; the persistent kernel multiplies bf16 and fp16"
    if reason := _tma_reason(config, problem):
        return reason
    if config.split_k != 1 or config.split_tail != 1:
        return f"split_k, split_tail are {config.split_k}, {config.split_tail}; the persistent kernel does not split K"
    heights = (64, 128, 256) if gpu.capability == 90 and config.num_warps == 4 else (128, 256)
    for name, legal in (
        ("num_warps", (4, 8)),
        ("block_m", heights),  # halves of lower tiles are moved through shared memory to be written
        ("block_n", (64, 128, 256)),
        ("block_k", (32, 64, 128)),
    ):
        if getattr(config, name) not in legal:
            return f"{name} is {getattr(config, name)}; it must be one of {', '.join(map(str, legal))}"
    if config.num_stages < 2:
        return f"num_stages is {config.num_stages}; loads are in flight from 2"
    registers = config.block_m * config.block_n // (32 * config.num_warps)
    masked = problem.out_alignment < 16
    if registers > (64 if masked and (problem.epilogue.c or config.num_warps == 4) else 128):
        return f"{registers} accumulator registers a thread leave no room for the others; more warps or a smaller tile"
    return _shared_reason(config, problem, gpu)


def _skinny_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """The skinny kernel: any shape, any strides; a narrow block of 1 on CUDA cores, or one that tensor cores take."""
    if reason := _power_of_two_reason(config):
        return reason
    for name, legal in (("split_tail", 1), ("persistent", False)):
        if getattr(config, name) != legal:
            return (
                f"{name} is {getattr(config, name)}; the skinny kernel has programs of one tile, and splits all or none"
            )
    if problem.sum_dtype != "fp32" or problem.element_bytes == 1:
        return f"dtype is {problem.dtype}; the skinny kernel multiplies bf16, fp16 and fp32, and B of 1 byte"
    if problem.scales and (problem.scales not in ("row", "1x1") or streams_a(config)):
        return f"scales are {problem.scales}; the skinny kernel takes those of each row of the weights, if B is those"
    narrow, wide = sorted((config.block_m, config.block_n))
    if problem.grouped and narrow == 1 and config.block_k < 16:
        return f"block_k is {config.block_k}; on CUDA cores 16 weights share a load of their scale"
    if reason := (_operands_reason(problem, gpu) if narrow == 1 else _dot_reason(config, problem, gpu)):
        return reason
    steps = max(1, -(-problem.k // config.block_k))
    if config.split_k > steps:
        return f"split_k is {config.split_k}; there are {steps} steps of K"
    threads = config.num_warps * (32 if gpu.is_nvidia else 64)
    if narrow == 1:
        elements = wide * config.block_k
        if not threads <= elements <= 64 * threads:
            return f"{wide}x{config.block_k} weights a step for {threads} threads: each sums 1 to 64 on its own"
    else:
        if min(narrow, config.block_k) < 16:
            return (
                f"blocks {config.block_m}x{config.block_n}x{config.block_k}: the narrower of the first two must be 1,"
                " or all at least 16, as tensor cores need it"
            )
        registers = narrow * wide // threads
        limit = _accumulator_limit(config, problem, gpu)
        if config.split_k > 1:  # the sums of other parts; operands that are loaded element by element need addresses
            limit = min(limit, 64 if problem.alignment >= 4 else 32)
        if registers > limit:
            return f"{registers} accumulator registers a thread leave no room for others; more warps or a smaller tile"
    return _shared_reason(config, problem, gpu)


def streams_a(config: Config) -> bool:
    """Whether the skinny kernel streams A and keeps B small, instead of the reverse: the taller block is streamed."""
    return config.block_m > config.block_n


def _tma_reason(config: Config, problem: Problem) -> str:
    """What all kernels ask that load by TMA."""
    if "s" in problem.layout:
        return f"layout is {problem.layout}; TMA needs a contiguous dimension in each operand"
    for name, alignment in (("a", problem.a_alignment), ("b", problem.b_alignment)):
        if alignment < 16:
            return f"{name} is aligned to {alignment} bytes; TMA needs addresses and strides of multiples of 16"
    if not problem.k:
        return "k is 0; TMA describes no empty operand"
    walks = config.persistent or config.kernel == "weights"
    return "" if walks else f"persistent is False; the {config.kernel} kernel walks its tiles"


def output_pieces(config: Config, problem: Problem) -> int:
    """Pieces, along the columns, in which the persistent kernel writes a tile.

    A thread has 128 bytes of a piece, or so few elements that the addresses it needs, in C and in an output that TMA
    cannot store, stay in registers.
    """
    if problem.out_alignment < 16:
        elements = 8 if problem.epilogue.c else 16
    else:
        elements = (64 if problem.epilogue.c else 128) // problem.out_element_bytes
    return max(1, config.block_m * config.block_n // (32 * config.num_warps * elements))


def _persistent_shared(config: Config, problem: Problem) -> int:
    ring = config.num_stages * config.step_bytes(problem)
    piece = config.block_m * config.block_n // output_pieces(config, problem)
    out = piece * problem.out_element_bytes
    if problem.epilogue.c:  # C changes layout through shared memory of its own; it may be fp32
        out = (out if problem.out_alignment == 16 else 0) + piece * 4
    return ring + out + 1024  # barriers and alignment


def shared_bytes(config: Config, problem: Problem) -> int:
    """Shared memory of one CTA, in bytes."""
    if config.kernel == "hopper":
        return hopper.shared_bytes(config, problem)
    if config.kernel == "persistent":
        return _persistent_shared(config, problem)
    if config.kernel == "weights":
        return weights.shared_bytes(config, problem)
    epilogue = config.block_m * config.block_n * problem.out_element_bytes  # it reuses the stages
    return max(config.num_stages * config.step_bytes(problem), epilogue) + 1024  # barriers and alignment


KERNELS = {
    "tile": _tile_reason,
    "persistent": _persistent_reason,
    "hopper": _hopper_reason,
    "skinny": _skinny_reason,
    "sliced": _sliced_reason,
    "weights": _weights_reason,
}
"""Kernel families by name, each with the rule that says why a config is not legal ("" if it is)."""
