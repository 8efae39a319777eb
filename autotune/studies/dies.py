"""Traffic of orders on GPUs of several dies, simulated, and compared with hit rates that others have published.

    python -m tritonmm.autotune.studies.dies --csv autotune/results/dies-simulated.csv

It needs no GPU and runs nothing. No GPU of several dies has been measured for this library.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from tritonmm import gpu as gpus
from tritonmm.autotune.studies.csv_rows import Output, write_csv
from tritonmm.config import Config
from tritonmm.gpu import MIB, Gpu
from tritonmm.model import l2_simulator
from tritonmm.model.l2 import Traffic
from tritonmm.orders import Dies, Order, RowMajor, SwizzleMerge, Table
from tritonmm.problem import Problem

MI300X = gpus.spec("mi300x")

MI355X = gpus.spec("mi355x")
"""For the caches alone: 8 dies of 32 compute units and 4 MiB of L2, and 256 MB behind them (AMD CDNA 4 white paper)."""

TWO_DIES = replace(gpus.spec("b200"), name="two dies", l2_partitions=1, dies=2)
"""As if a B200 assigned programs to its two dies round robin, each with half of the L2 for itself and nothing behind
them. How a B200 assigns them is not documented."""

PUBLISHED = (
    (9216, RowMajor(), 0.55, 0.95),
    (9216, Dies(8, SwizzleMerge(7), chunk=216), 0.79, 0.24),
    (9216, Dies(8, SwizzleMerge(5), chunk=25), 0.75, 0.93),
    (14592, RowMajor(), 0.36, 0.76),
    (14592, Dies(8, SwizzleMerge(8), chunk=542), 0.79, 0.07),
    (14592, Dies(8, SwizzleMerge(8), chunk=64), 0.78, 0.55),
)
"""Size of a square product of bf16, order, and hit rates of the L2s and of the cache behind them on an MI355X, in tiles
of 192 x 256 x 64. Source: HipKittens, arXiv 2511.08083, table 4. There, the last round of an order of dies stays in
the inner order."""

ON_MI300X = Config("tile", 128, 128, 32, num_stages=3, num_warps=8)
ON_TWO_DIES = Config("tile", 128, 256, 64, num_stages=4, num_warps=8)
"""The configs whose orders are compared."""

SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (9000, 9000, 9000), (16384, 16384, 4096), (4096, 28672, 8192))

FACTORS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 20, 24, 32)


@dataclass(frozen=True)
class Row:
    """What one order moves. way: which orders it is the best of. us: the least time that the bytes need behind the L2s,
    by the peak bandwidths. Hit rates are between 0 and 1."""

    gpu: str
    m: int
    n: int
    k: int
    tile: str
    way: str
    order: str
    us: float
    l2_hit: float
    llc_hit: float
    l2_read_gb: float
    missed_gb: float
    dram_read_gb: float
    published_l2_hit: float | str = ""
    published_llc_hit: float | str = ""

    @classmethod
    def of(cls, way: str, problem: Problem, config: Config, gpu: Gpu, name: str = "") -> "Row":
        found = l2_simulator.simulate(problem, config, gpu)
        return cls(
            gpu.name, problem.m, problem.n, problem.k, f"{config.block_m}x{config.block_n}x{config.block_k}", way,
            name or str(config.order), round(least_us(found, gpu), 1), round(found.hit_rate, 3),
            round(found.llc_hit_rate, 3) if gpu.llc_bytes else 0.0, round(found.l2_read_bytes / 1e9, 3),
            round(found.missed_bytes / 1e9, 3), round(found.dram_read_bytes / 1e9, 3),
        )  # fmt: skip


def least_us(found: Traffic, gpu: Gpu) -> float:
    """Microseconds that the reads of memory, or those behind the L2s, take at the peak bandwidths."""
    behind = found.missed_bytes / gpu.llc_bandwidth if gpu.llc_bytes else 0.0
    return 1e6 * max(behind, found.dram_read_bytes / gpu.bandwidth)


def published() -> Iterator[Row]:
    """The published orders, simulated."""
    for size, order, l2_hit, llc_hit in PUBLISHED:
        config = Config("tile", 192, 256, 64, num_stages=2, num_warps=8, order=order)
        row = Row.of("published", Problem(size, size, size), config, MI355X)
        yield replace(row, published_l2_hit=l2_hit, published_llc_hit=llc_hit)


def rectangles(dies_m: int, dies_n: int, factor: int, tiles_m: int, tiles_n: int) -> Table | None:
    """Each die has one rectangle of the output; None where they do not divide it."""
    if tiles_m % dies_m or tiles_n % dies_n:
        return None
    height, width = tiles_m // dies_m, tiles_n // dies_n
    inside = SwizzleMerge(factor).visit(height, width)
    corners = [(x * height, y * width) for x, y in np.ndindex(dies_m, dies_n)]
    return Table((inside[:, None] + np.array(corners)).reshape(-1, 2))  # die after die, for each place


def ways(gpu: Gpu, config: Config, problem: Problem) -> dict[str, list[Order]]:
    """The orders that are compared, by what they are."""
    wave, tiles, dies = gpu.sms // gpu.dies, config.tiles(problem), gpu.dies
    groups: list[Order] = [SwizzleMerge(f, along=along) for f, along in itertools.product(FACTORS, "mn")]
    few = [order for order in groups if 3 <= order.factors[0] <= 16]
    cut = [rectangles(d, dies // d, f, *tiles) for d in (1, 2, 4, 8) if dies % d == 0 for f in FACTORS]
    return {
        "row-major": [RowMajor()],
        "groups of 8": [SwizzleMerge(8)],
        "groups": groups,
        "dies, one range each": [Dies(dies, order) for order in few],
        "dies, ranges of a wave": [
            Dies(dies, order, chunk=-(-wave // order.factors[0]) * order.factors[0]) for order in few
        ],
        "dies, small rectangles": [
            Dies(dies, SwizzleMerge(f, g), chunk=f * g) for f in (4, 6, 8, 10) for g in (4, 6, 8, 10)
        ],
        "dies, one rectangle each": [order for order in cut if order is not None],
    }


def compared(gpu: Gpu, config: Config) -> Iterator[Row]:
    """For each shape the best order of each way, by `Row.us`."""
    for shape in SHAPES:
        problem = Problem(*shape)
        for way, orders in ways(gpu, config, problem).items():
            rows = [
                Row.of(way, problem, config.ordered(order), gpu, way if isinstance(order, Table) else "")
                for order in orders
            ]
            if rows:
                yield min(rows, key=lambda row: (row.us, row.missed_gb, row.order))


@click.command()
@click.option("--csv", "path", type=Output(), help="Write the rows there, too.")
def main(path: Path | None) -> None:
    """Print what orders move on GPUs of several dies, simulated."""
    rows = [*published(), *compared(MI300X, ON_MI300X), *compared(TWO_DIES, ON_TWO_DIES)]
    for row in rows:
        click.echo(
            f"{row.gpu:9} {row.m}x{row.n}x{row.k:<6} {row.way:25} {row.order:28} {row.us:8.1f} us  L2 {row.l2_hit:.1%}"
            f" hit, {row.missed_gb:.2f} GB missed, {row.llc_hit:.1%} hit behind, {row.dram_read_gb:.2f} GB from memory"
            + (f"  (published {row.published_l2_hit}, {row.published_llc_hit})" if row.published_l2_hit else "")
        )
    if path:
        comments = (
            "# SIMULATED: nothing in this file was run or measured on a GPU, but for the columns published_*",
            "# published: HipKittens, arXiv 2511.08083, table 4, on an MI355X",
            "# command: python -m tritonmm.autotune.studies.dies",
            f"# gpus: mi355x and mi300x have 8 dies of 4 MiB of L2 each and {MI300X.llc_bytes // MIB} MiB behind them;"
            f" two dies have {TWO_DIES.l2_bytes // 2 // MIB} MiB each and nothing behind",
        )
        write_csv(path, rows, comments)


if __name__ == "__main__":
    main()
