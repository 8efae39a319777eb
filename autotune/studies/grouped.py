"""Grouped GEMMs compared with torch's grouped_mm, with one dense GEMM of as many FLOPs, and with the bytes they move.

    python -m tritonmm.autotune.studies.grouped grouped.csv --regime burst
    python -m tritonmm.autotune.studies.grouped --traffic grouped-traffic.csv

The two sides are timed in pairs in one process, as `tritonmm bench` does, and ours is paired with the dense GEMM again.
--traffic counts the bytes that some products move in several orders, and writes them beside the model's.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import torch

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.autotune.measuring import counters, space
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.group_sizes import TYPICAL, group_sizes, sizes_of
from tritonmm.autotune.measuring.measure import REGIMES, GraphReplay, Paired, paired, set_count
from tritonmm.autotune.measuring.precompile import precompile_all
from tritonmm.autotune.measuring.sources import bound_launch, operand_sets, torch_replay
from tritonmm.autotune.studies.csv_rows import Output, megabytes, write_each
from tritonmm.gpu import Gpu
from tritonmm.model import l2
from tritonmm.model.groups import sized
from tritonmm.problem import KINDS, Problem
from tritonmm.torch_ops.grouped_product import chosen
from tritonmm.torch_ops.scaled_grouped import scaled_grouped_mm

FORWARD = (
    ((8, 16384, 28672, 4096), ("even", "zipf", "random")),
    ((64, 16384, 2816, 2048), ("even", "zipf", "random")),
    ((128, 16384, 1536, 2048), ("even", "zipf", "random")),
    ((128, 1024, 1536, 2048), ("even", "zipf", "random")),
    ((256, 8192, 4096, 7168), ("even", "zipf", "random")),
    ((8, 256, 14336, 4096), ("even", "zipf", "random")),
    ((32, 16384, 5760, 2880), ("random",)),
    ((128, 32768, 768, 2048), ("random",)),
    ((32, 32768, 4096, 7168), ("random",)),
    ((8, 8192, 4096, 14336), ("zipf",)),
    ((128, 4096, 1536, 2048), ("empties", "one-hot")),
)
"""Groups, rows of all groups, N and K, and distributions of sizes: the layers of experts of several models."""

SCALED = FORWARD[1:3] + FORWARD[4:7]
"""The same, which are timed in fp8 with scales of rows, too: `scaled_grouped_mm` and torch._scaled_grouped_mm."""

BACKWARD = FORWARD[:3] + FORWARD[6:9]
"""The same, of which both gradients are timed."""

USABLE = 0.875
"""Share of the bandwidth of device memory that a product could reach at most: what a copy reaches."""

TRAFFIC = ((8, 8192, 4096, 4096), (64, 16384, 2816, 2048), (128, 8192, 1536, 2048), (32, 16384, 5760, 2880))
"""Groups, rows, N and K of the products whose traffic is counted."""

ORDERS = (
    "groups/swizzle-merge:1", "groups/swizzle-merge:4", "groups/swizzle-merge:16", "groups/column-major",
    "largest-groups/swizzle-merge:4", "joined-groups/swizzle-merge:2", "joined-groups/swizzle-merge:16",
    "joined-largest-groups/swizzle-merge:8",
)  # fmt: skip
"""Orders in which it is counted."""


@dataclass(frozen=True)
class Row:
    """One product. Times are medians in microseconds, ratios those of pairs: times of torch's grouped_mm and of the
    dense GEMM by ours. bytes_us: of the bytes that must be moved, at `USABLE` of the bandwidth. share: of the longer of
    the dense GEMM's and the bytes' time by ours. Empty where torch refuses."""

    what: str
    groups: int
    total: int
    n: int
    k: int
    sizes: str
    torch_us: float | None
    ours_us: float
    ratio: float | None
    dense_us: float
    dense_ratio: float
    bytes_us: float
    share: float
    config: str


@dataclass(frozen=True)
class Bytes:
    """Megabytes that one product moves, counted and predicted."""

    problem: str
    config: str
    dram_read: float
    dram_read_model: float
    dram_written: float
    dram_written_model: float
    l2_read: float
    l2_read_model: float


def cases() -> Iterator[tuple[str, Problem, str]]:
    """All that is timed in bf16: what it is, the problem, and the distribution of its sizes."""
    for (groups, total, n, k), names in FORWARD:
        for name in names:
            yield "forward", space.problem(total, n, k, layout="nt", ragged="m", groups=groups), name
    for (groups, total, n, k), _ in BACKWARD:
        yield "gradient of tokens", space.problem(total, k, n, layout="nn", ragged="m", groups=groups), TYPICAL
        yield "gradient of weights", space.problem(n, k, total, layout="tn", ragged="k", groups=groups), TYPICAL


def moved_bytes(problem: Problem, sizes: list[int]) -> int:
    """Bytes that must be read and written: matrices of empty groups are not read."""
    if problem.ragged == "k":
        return problem.compulsory_bytes
    return problem.compulsory_bytes - problem.operand_bytes("b") // problem.groups * sizes.count(0)


def timed(what: str, problem: Problem, name: str, regime: str, device: torch.device, gpu: Gpu) -> Row:
    """Times ours paired with torch's, and with the dense GEMM."""
    p, sizes, config = problem, sizes_of(problem, name), chosen(problem, gpu)
    keywords = space.keywords(p, device, sizes)
    sets = operand_sets(p, device, gpu, sizes)
    ours = GraphReplay(bound_launch(p, config, device, keywords), sets)
    torchs, refusal = torch_replay(p, sets, keywords)
    of_one = [(a, b[0], out) if p.ragged == "m" else (a, b, out[0]) for a, b, out in sets]
    dense = GraphReplay(lambda a, b, out: torch.mm(a, b, out=out), of_one)
    sides = [side for side in (ours, torchs, dense) if side]
    try:
        found, beside = paired(ours, torchs, REGIMES[regime]), paired(ours, dense, REGIMES[regime])
    finally:
        for side in sides:
            side.free()
    if refusal:
        click.echo(refusal, err=True)
    return _row(what, p, name, found, beside, moved_bytes(p, sizes), str(config), gpu)


def timed_scaled(shape: tuple[int, int, int, int], name: str, regime: str, device: torch.device, gpu: Gpu) -> Row:
    """Times a forward product of fp8 with scales of rows; the dense GEMM is torch._scaled_mm."""
    groups, total, n, k = shape
    ends = itertools.accumulate(group_sizes(name, total, groups))
    offs = torch.tensor(list(ends), dtype=torch.int32, device=device)
    of_rows, of_cols = torch.rand(total, device=device) + 0.5, torch.rand(groups, n, device=device) + 0.5
    problem = Problem.dense(total, n, k, layout="nt", ragged="m", groups=groups, **KINDS["fp8-row"])
    sets = []
    for _ in range(set_count(problem, gpu)):
        a, b, out = space.operands(problem, device)
        sets.append((space.fill(a), space.fill(b), out))
    given = of_rows, of_cols, offs
    options = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
    launches = (
        lambda a, b, out: scaled_grouped_mm(a, b, *given, **options),
        lambda a, b, out: torch._scaled_grouped_mm(a, b, *given, **options),
        lambda a, b, out: torch._scaled_mm(a, b[0], of_rows[:, None], of_cols[:1], out=out, **options),
    )
    ours, torchs, dense = (GraphReplay(launch, sets) for launch in launches)
    try:
        found, beside = paired(ours, torchs, REGIMES[regime]), paired(ours, dense, REGIMES[regime])
    finally:
        for side in (ours, torchs, dense):
            side.free()
    config = str(chosen(problem, gpu))
    return _row(
        "forward, fp8", problem, name, found, beside, moved_bytes(problem, sizes_of(problem, name)), config, gpu
    )


def _row(
    what: str, problem: Problem, name: str, found: Paired, beside: Paired, moved: int, config: str, gpu: Gpu
) -> Row:
    p, us = problem, found.times.time_us
    bytes_us = 1e6 * moved / (USABLE * gpu.bandwidth)
    assert beside.ratio is not None
    assert beside.times.torch_us is not None
    total, n, k = (p.m, p.n, p.k) if p.ragged == "m" else (p.k, p.m, p.n)
    return Row(
        what, p.groups, total, n, k, name,
        found.times.torch_us and round(found.times.torch_us, 2), round(us, 2), found.ratio and round(found.ratio, 4),
        round(beside.times.torch_us, 2), round(beside.ratio, 4), round(bytes_us, 2),
        round(max(beside.ratio, bytes_us / us), 4), config,
    )  # fmt: skip


def traffic(gpu: Gpu) -> Iterator[Bytes]:
    """Counts products of random sizes in several orders."""
    pairs = []
    for groups, total, n, k in TRAFFIC:
        problem = space.problem(total, n, k, layout="nt", ragged="m", groups=groups)
        base = chosen(problem, gpu)
        pairs += [(problem, base.ordered(orders.parse(order))) for order in ORDERS]
    precompile_all(pairs, gpu)
    for (problem, config), found in zip(pairs, counters.count(pairs), strict=True):
        if found is not None:
            total = problem.m
            model = l2.of(sized(problem, group_sizes(TYPICAL, total, problem.groups)), config, gpu)
            yield Bytes(str(problem), str(config), *megabytes(found, model))


@click.command()
@click.argument("path", type=Output())
@click.option("--regime", type=click.Choice(sorted(REGIMES)), default="burst", show_default=True)
@click.option("--traffic", "counts", is_flag=True, help="Count bytes instead of timing.")
def main(path: Path, regime: str, counts: bool) -> None:
    """Time grouped products and torch's and write PATH, or count the bytes that they move."""
    if not torch.cuda.is_available():
        raise click.ClickException("times need a GPU, and torch sees none")
    gpu, device = gpus.of_device(0), torch.device("cuda", 0)
    about = Environment.here(torch.cuda.get_device_name(0)).about()
    about["regime"] = "counters of one launch, caches cold" if counts else regime
    if counts:
        found: Iterator[Row] | Iterator[Bytes] = traffic(gpu)
    else:
        asked = list(cases())
        precompile_all([(problem, chosen(problem, gpu)) for _, problem, _ in asked], gpu)
        scaled = ((shape, name) for shape, names in SCALED for name in names)
        found = itertools.chain(
            (timed(*case, regime, device, gpu) for case in asked),
            (timed_scaled(*case, regime, device, gpu) for case in scaled),
        )
    write_each(path, found, about)


if __name__ == "__main__":
    main()
