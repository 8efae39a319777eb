"""The configs that are tried: the Cartesian product of a few lists. Legality is decided elsewhere, by `Config.fits`."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tritonmm import families, orders
from tritonmm.autotune.measuring.group_sizes import sizes_of
from tritonmm.config import Config
from tritonmm.dtypes import DTYPES
from tritonmm.gpu import Gpu
from tritonmm.model.groups import average
from tritonmm.nn import int4
from tritonmm.problem import KINDS, Problem, kind_name
from tritonmm.selection import timed
from tritonmm.tuned import shipped

LAYOUTS = ("nn", "nt", "tn", "tt")


@dataclass(frozen=True, slots=True)
class Space:
    """Every combination of the lists, as configs.

    Combinations that `Config.fits` refuses are included: each becomes a trial with the reason, so that a figure can
    explain its gaps.
    """

    blocks: tuple[tuple[int, int, int], ...] = ((128, 256, 64), (128, 128, 64), (64, 128, 64))
    stages: tuple[int, ...] = (3, 4)
    warps: tuple[int, ...] = (4, 8)
    tile_orders: tuple[orders.Order, ...] = tuple(orders.SwizzleMerge(f) for f in (1, 2, 4, 8, 16))
    kernels: tuple[str, ...] = (families.portable(),)
    persistent: tuple[bool, ...] = (False,)

    def __len__(self) -> int:
        lists = (self.kernels, self.blocks, self.stages, self.warps, self.persistent, self.tile_orders)
        return len(list(itertools.product(*lists)))

    def __iter__(self) -> Iterator[Config]:
        """The configs. Those that differ only in their order are adjacent."""
        for kernel, (block_m, block_n, block_k), num_stages, num_warps, persistent, order in itertools.product(
            self.kernels, self.blocks, self.stages, self.warps, self.persistent, self.tile_orders
        ):
            yield Config(
                kernel=kernel,
                block_m=block_m,
                block_n=block_n,
                block_k=block_k,
                num_stages=num_stages,
                num_warps=num_warps,
                persistent=persistent,
                order=order,
            )


def blocks(text: str) -> tuple[int, int, int]:
    """(block_m, block_n, block_k) from a text such as "128x256x64". Raises ValueError."""
    if not re.fullmatch(r"\d+x\d+x\d+", text.strip()):
        raise ValueError(f"blocks {text!r}: must be block_m x block_n x block_k, as in 128x256x64")
    block_m, block_n, block_k = map(int, text.split("x"))
    return block_m, block_n, block_k


def tile_orders(text: str) -> tuple[orders.Order, ...]:
    """Orders from a list such as "row-major,swizzle-merge:16,8,hilbert". Raises ValueError.

    A comma before a digit is part of an order's factors; other commas separate orders.
    """
    return tuple(orders.parse(part) for part in re.split(r",\s*(?!\s*-?\d)", text))


def problem(
    m: int,
    n: int,
    k: int,
    *,
    batch: int = 1,
    dtype: str | torch.dtype = "bf16",
    layout: str = "nt",
    ragged: str = "",
    groups: int = 0,
) -> Problem:
    """The problem of densely stored operands, as `operands` makes them.

    m, n, k, batch: below 2^31.
    dtype: a name in `KINDS`, or a dtype of torch in any spelling.
    layout: one of `LAYOUTS`.
    ragged, groups: as in `Problem`. The dtype of a grouped GEMM must be one without scales.

    Raises ValueError for anything else, and for a matrix of 2^63 bytes or more.
    """
    kind = KINDS[kind_name(dtype)]
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}; it must be one of {', '.join(LAYOUTS)}")
    for name, size in (("m", m), ("n", n), ("k", k), ("batch", batch)):
        if size >= 2**31:
            raise ValueError(f"{name} is {size}; it must be below 2**31")
    if ragged and "scales" in kind:
        raise ValueError(f"dtype is {kind_name(dtype)!r}, which has scales; operands of groups are made without")
    asked = Problem(m=m, n=n, k=k, batch=batch, layout=layout, ragged=ragged, groups=groups, **kind)
    try:
        a, b, out = operands(asked, torch.device("meta"))
    except RuntimeError:  # torch counts bytes in 63 bits
        raise ValueError(f"{asked} has a matrix of 2**63 bytes or more, which no GPU holds") from None
    # `Problem.of` finds the alignment. For a dimension of 1 it may also find another layout.
    return Problem.of(a, b, out, asked.precision, scales=asked.scales, ragged=asked.ragged)


def operands(asked: Problem, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Uninitialised a, b and out of the problem, stored densely: 2-D, or 3-D for a batch. Of groups b is 3-D where they
    divide m, and out where they divide k.

    b is a transposed, in the same memory, where the problem says so.

    Raises ValueError for a layout with "s", because it does not determine how an operand is stored, and for one in
    which b cannot be a transposed.
    """
    if asked.layout not in LAYOUTS:
        raise ValueError(f"layout is {asked.layout!r}; operands are made for {', '.join(LAYOUTS)}")

    batch = (asked.batch,) if asked.batch != 1 else ()

    def stored(letter: str, rows: int, cols: int, dtype: str, matrices: tuple[int, ...] = batch) -> torch.Tensor:
        dims = (rows, cols) if letter == "n" else (cols, rows)
        x = torch.empty(*matrices, *dims, dtype=DTYPES[dtype], device=device)
        return x if letter == "n" else x.mT

    of_groups = {asked.ragged: (asked.groups,)}
    a = stored(asked.layout[0], asked.m, asked.k, asked.dtype)
    is_gram = asked.symmetric == "gram"
    if is_gram and asked.layout not in ("nt", "tn"):
        raise ValueError(f"layout is {asked.layout!r}; a transposed is its own other operand in nt and tn")
    b = a.mT if is_gram else stored(asked.layout[1], asked.b_rows, asked.n, asked.b_dtype, of_groups.get("m", batch))
    out = stored("n", asked.m, asked.n, asked.out_dtype, of_groups.get("k", batch))
    return a, b, out


def keywords(asked: Problem, device: torch.device, sizes: Sequence[int] | None = None) -> dict[str, Any]:
    """What a plan of the problem takes besides a, b and out: its scales, or where its groups end.

    sizes: of the groups, by default typical ones.
    """
    if asked.ragged:
        ends = itertools.accumulate(sizes_of(asked) if sizes is None else sizes)
        return {"offs": torch.tensor(list(ends), dtype=torch.int32, device=device)}
    return {"scales": scales(asked, device)} if asked.scales else {}


def fill(x: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Fills x in place with random values, and returns it: standard normal numbers, or uniform integers for int8 and
    packed weights."""
    if x.dtype in (torch.int8, torch.int16):
        info = torch.iinfo(x.dtype)
        return x.random_(info.min, info.max + 1, generator=generator)
    if x.dtype == torch.uint8:
        return x.random_(0, 256, generator=generator)
    if x.itemsize > 1:
        return x.normal_(generator=generator)
    return x.copy_(torch.empty(x.shape, device=x.device).normal_(generator=generator))


def scales(asked: Problem, device: torch.device) -> tuple[torch.Tensor | None, torch.Tensor] | None:
    """Random scales between 1/2 and 2 for the problem's operands, None if it has none. Strides are as torch requires
    them."""
    if not asked.scales:
        return None
    generator = None if device.type == "meta" else torch.Generator(device).manual_seed(0)

    def random(shape):
        return torch.empty(shape, device=device).uniform_(-1, 1, generator=generator).exp2_()

    of_a, of_b = asked.scale_shapes
    scale_a, scale_b = None if of_a is None else random(of_a[::-1]).t(), random(of_b)
    if asked.scales == "group-zero":
        zero = torch.randint(16, of_b, device=device, generator=generator)
        scale_b = int4.with_zero_points(scale_b.bfloat16(), zero).view(torch.float32)
    return scale_a, scale_b


STAGES = ((0, 1.0), (-1, 1.03), (1, 1.03))
"""Changes of a tile's number of stages that are tried, and the factor on the estimated time of each.

The estimate does not depend on the stages, and they matter little. With few trials, other tiles are worth more, because
estimates of tiles err by 6%.
"""

ORDERS = ((1.0, "", 1.0), (0.5, "", 1.02), (2.0, "", 1.02), (1.0, "serpentine", 1.02))
"""Orders that are tried around the estimated best one: a factor on its group size, another kind of order ("" for the
same), and the factor on the estimated time."""

OTHER_SEQUENCE = 1.02
"""The factor on the estimated time of groups visited in another sequence: largest first or not, and joined."""


def candidates(asked: Problem, gpu: Gpu) -> list[Config]:
    """The legal configs that a search may try for the problem, the most promising first. Deterministic.

    They are the configs that `select` chooses from, and variants of them with one stage more or less and with
    neighbouring orders, unless the family's candidates are complete; the shortest estimate comes first. Directly
    after the first come those that shipped tables have for the problem on GPUs of the same architecture. The user's
    tables are not read, because tuning changes them and an interrupted search continues with the same configs.
    """
    estimates = timed(asked, gpu)
    found = dict(estimates)
    for base, us in estimates.items():
        for config, off in _around(base, asked) if not families.family(base.kernel).complete else ():
            if config not in found and config.fits(asked, gpu):
                found[config] = us * off
    ranked = sorted(found, key=lambda config: found[config])
    measured = [row.config for row in shipped(gpu.arch).exact(asked) if row.config.fits(asked, gpu)]
    return list(dict.fromkeys([*ranked[:1], *measured, *ranked]))


def _around(config: Config, asked: Problem) -> Iterator[tuple[Config, float]]:
    outer = config.order if isinstance(config.order, orders.Grouped | orders.Dies) else None
    base = outer.inner if outer else config.order
    (factor,), along = base.factors, base.along
    tiles = max(1, config.tiles(average(asked) if asked.ragged else asked)[along == "n"])
    for (more, slower), (times, name, off) in itertools.product(STAGES, ORDERS):
        scaled = min(tiles, max(1, round(factor * times)))
        # A serpentine order of one group is the same as swizzle-merge.
        if config.num_stages + more > 0 and not (name and (scaled == tiles or asked.symmetric)):
            order: orders.Order
            if asked.symmetric:
                order = orders.Triangular(scaled, aspect=(config.block_m, config.block_n))
            else:
                order = orders.Serpentine(scaled, along=along) if name else orders.SwizzleMerge(scaled, along=along)
            if outer:
                order = replace(outer, inner=order)
            yield replace(config, num_stages=config.num_stages + more, order=order), slower * off
    if isinstance(config.order, orders.Grouped):
        wider = orders.SwizzleMerge(max(2, factor), along=along)  # joined rows one by one are not another sequence
        yield replace(config, order=replace(config.order, largest_first=not config.order.largest_first)), OTHER_SEQUENCE
        yield replace(config, order=replace(config.order, inner=wider, joined=True)), OTHER_SEQUENCE
