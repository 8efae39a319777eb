"""What invariant accumulation costs, and how many different results of one row each way of multiplying gives.

    python -m tritonmm.autotune.studies.invariant --csv cost.csv --bits bits.csv
    python -m tritonmm.autotune.studies.invariant --cublas-workspace --csv cost-16-8.csv --bits bits-16-8.csv

Four ways are timed against each other in rounds of random order: torch, the config that `select` chooses freely, the
one that it chooses with invariant accumulation, and one tile of 128x128x64 for all shapes, as libraries for
batch-invariant inference use. With --cublas-workspace torch is set up as its documentation of deterministic results
asks.
"""

import itertools
import math
import os
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click
import torch

from tritonmm import gpu as gpus
from tritonmm.autotune.bench import suite
from tritonmm.autotune.measuring import space
from tritonmm.autotune.measuring.environment import Environment, comments_of
from tritonmm.autotune.measuring.measure import GraphReplay
from tritonmm.autotune.measuring.precompile import precompile_all
from tritonmm.autotune.measuring.sources import bound_launch, operand_sets, torch_product, torch_replay
from tritonmm.autotune.studies.contest import contest
from tritonmm.autotune.studies.csv_rows import Output, write_csv
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model.chunks import chunk_k
from tritonmm.orders import SwizzleMerge
from tritonmm.plan import plan_for
from tritonmm.problem import Problem
from tritonmm.selection import choose

FIXED = Config("tile", 128, 128, 64, num_stages=3, num_warps=8, order=SwizzleMerge(8))
"""The one tile for all shapes."""

WORKSPACES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}
"""What leaves cuBLAS hardly any memory to split K with."""

LAYERS = ((4096, 4096), (14336, 4096), (4096, 14336), (7168, 2048), (1280, 8192))
"""Columns and K of the layers whose first row is compared."""

ROWS = (1, 2, 3, 4, 7, 8, 16, 17, 33, 64, 100, 128, 129, 200, 256, 257, 512, 1000, 2048, 4096)
"""Rows of the products that it is compared in."""


@dataclass(frozen=True)
class Cost:
    """Microseconds of one GEMM each way, and our configs."""

    family: str
    m: int
    n: int
    k: int
    batch: int
    layout: str
    dtype: str
    torch_us: float | None
    free_us: float
    invariant_us: float
    fixed_us: float
    free: str
    invariant: str


@dataclass(frozen=True)
class Bits:
    """How many different results the first row has in products of `ROWS` rows."""

    n: int
    k: int
    dtype: str
    torch: int
    free: int
    invariant: int
    fixed: int


def ways(problem: Problem, gpu: Gpu) -> dict[str, tuple[Problem, Config]]:
    """What is asked of us each way, and our config."""
    invariant = replace(problem, accumulation="invariant")
    return {
        "free": (problem, choose(problem, gpu)),
        "invariant": (invariant, choose(invariant, gpu)),
        "fixed": (problem, FIXED),
    }


def cost(entry: suite.Entry, gpu: Gpu, rounds: int) -> Cost:
    """Times one GEMM of a suite each way. Two ways that launch the same config are timed once."""
    problem = entry.problem()
    device = torch.device("cuda", torch.cuda.current_device())
    sets, keywords = operand_sets(problem, device, gpu), space.keywords(problem, device)
    asked = ways(problem, gpu)
    torchs, _ = torch_replay(problem, sets, keywords)
    arms = {
        (chunk_k(of), config): GraphReplay(bound_launch(of, config, device, keywords), sets)
        for of, config in dict.fromkeys(asked.values())
    }
    try:
        times = contest({**arms, **({"torch": torchs} if torchs else {})}, rounds, seconds=0.001)
    finally:
        for arm in (*arms.values(), *((torchs,) if torchs else ())):
            arm.free()
    us = {f"{way}_us": round(times[chunk_k(of), config], 3) for way, (of, config) in asked.items()}
    torch_us = round(times["torch"], 3) if torchs else None
    shape = entry.family, problem.m, problem.n, problem.k, problem.batch, problem.layout, problem.kind
    return Cost(*shape, torch_us, **us, free=str(asked["free"][1]), invariant=str(asked["invariant"][1]))


def bits(n: int, k: int, dtype: str, gpu: Gpu) -> Bits:
    """Multiplies the first rows of one matrix each way."""
    largest = space.problem(max(ROWS), n, k, dtype=dtype)
    device = torch.device("cuda", torch.cuda.current_device())
    generator = torch.Generator(device).manual_seed(0)
    a, b, out = space.operands(largest, device)
    space.fill(a, generator)
    space.fill(b, generator)
    found = defaultdict(set)
    for rows in ROWS:
        problem = Problem.of(a[:rows], b, out[:rows], largest.precision)
        for way, (of, config) in ways(problem, gpu).items():
            plan_for(of, config, device)(a[:rows], b, out[:rows])
            found[way].add(out[0].cpu().view(torch.uint8).numpy().tobytes())
        torch_product(problem)(a[:rows], b, out[:rows])
        found["torch"].add(out[0].cpu().view(torch.uint8).numpy().tobytes())
    return Bits(n, k, dtype, **{way: len(results) for way, results in found.items()})


def summary(costs: list[Cost]) -> Iterator[str]:
    """Geometric means for each family of shapes: how much faster invariant accumulation is than each other way."""
    yield f"{'family':<10} {'of free':>8} {'of torch':>9} {'of fixed':>9}"
    for family, of_family in itertools.groupby(costs, key=lambda row: row.family):
        rows = list(of_family)
        means = [
            statistics.geometric_mean(x / y for x, y in pairs) if pairs else math.nan
            for pairs in (
                [(row.free_us, row.invariant_us) for row in rows],
                [(row.torch_us, row.invariant_us) for row in rows if row.torch_us],
                [(row.fixed_us, row.invariant_us) for row in rows],
            )
        ]
        yield f"{family:<10} {means[0]:8.3f} {means[1]:9.3f} {means[2]:9.3f}"


@click.command()
@click.option("--suite", "asked", default="public", show_default=True, help="A suite's name or file.")
@click.option("--rounds", type=click.IntRange(1), default=11, show_default=True, help="Replays of each way.")
@click.option("--cublas-workspace", is_flag=True, help="Leave torch hardly any workspace.")
@click.option("--csv", "path", type=Output(), help="Write the times, a row for each GEMM.")
@click.option("--bits", "bits_path", type=Output(), help="Write the numbers of different results.")
def main(asked: str, rounds: int, cublas_workspace: bool, path: Path | None, bits_path: Path | None) -> None:
    """Time invariant accumulation, and count the different results of one row."""
    if not torch.cuda.is_available():
        raise click.ClickException("times need a GPU, and torch sees none")
    if cublas_workspace:
        os.environ |= WORKSPACES  # torch reads them when it first calls cuBLAS
    try:
        entries = suite.load(asked)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    gpu = gpus.of_device(0)
    about = Environment.here(torch.cuda.get_device_name(0)).about()
    settings = " ".join(f"{name}={value}" for name, value in WORKSPACES.items()) if cublas_workspace else "default"
    about |= {"suite": Path(asked).name, "cublas workspace": settings}
    about["regime"] = f"burst, medians of {rounds} rounds of all ways in random order"
    comments = comments_of(about)
    if path:
        precompile_all([pair for entry in entries for pair in ways(entry.problem(), gpu).values()], gpu)
        costs = []
        for entry in entries:
            costs.append(cost(entry, gpu, rounds))
            click.echo(costs[-1])
        write_csv(path, costs, comments)
        click.echo("\n".join(summary(costs)))
    if bits_path:
        layers = [(n, k, dtype) for dtype in ("bf16", "fp16", "tf32") for n, k in LAYERS]
        compared = (space.problem(rows, n, k, dtype=dtype) for n, k, dtype in layers for rows in ROWS)
        precompile_all([pair for problem in compared for pair in ways(problem, gpu).values()], gpu)
        counted = []
        for layer in layers:
            counted.append(bits(*layer, gpu))
            click.echo(counted[-1])
        write_csv(bits_path, counted, comments)


if __name__ == "__main__":
    main()
