"""How time depends on stages, block_k and the epilogue. `python -m tritonmm.autotune.studies.pipeline --csv
pipeline.csv`

Three studies, all timed in pairs with torch, as `bench` does:

    tile       plain Triton with cp.async prefetch: stages x block_k of a 128 x 128 tile, one program a tile
    hopper     TMA producer warp and pipeline: stages x block_k of a 128 x 256 tile, persistent
    epilogue   the hopper tile stored by TMA, row by row from shared memory ("staged"), or directly from registers,
               where wgmma leaves each thread two adjacent elements of a row
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click
import torch

from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import measure, space, verify
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.measure import REGIMES, GraphReplay
from tritonmm.autotune.studies.csv_rows import Output, write_csv
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.orders import SwizzleMerge
from tritonmm.plan import bind
from tritonmm.problem import Problem

SHAPES = ((4096, 4096, 1024), (8192, 8192, 8192))
"""m, n and k of each study."""

STORES = ("tma", "staged", "direct")
"""Epilogues, in the spelling of `Tiling.store`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One variant of a study on one shape.

    store: the epilogue; "" if the study does not vary it.
    status: "ok", "illegal" or "wrong"; the last two have their reason in `message` and no times.
    ratio: the median of torch's time over ours, round by round.
    """

    study: str
    m: int
    n: int
    k: int
    block_k: int
    num_stages: int
    store: str = ""
    status: str = "ok"
    time_us: float | None = None
    torch_us: float | None = None
    ratio: float | None = None
    tflops: float | None = None
    message: str = ""


def variants() -> Iterator[tuple[str, Config, str]]:
    """(study, config, store) of each row of a shape."""
    order = SwizzleMerge(16)
    for block_k in (32, 64, 128):
        for stages in (1, 2, 3, 4, 5, 6):
            yield "tile", Config("tile", 128, 128, block_k, stages, 8, order=order), ""
    for block_k in (64, 128):
        for stages in (2, 3, 4):
            yield "hopper", Config("hopper", 128, 256, block_k, stages, 8, persistent=True, order=order), ""
    for store in STORES:
        yield "epilogue", Config("hopper", 128, 256, 64, 4, 8, persistent=True, order=order), store


def plan_of(problem: Problem, config: Config, store: str, gpu: Gpu, device: torch.device):
    """The plan of the config with the epilogue `store`. Raises ValueError if the config does not fit."""
    plan = bind(problem, config, gpu, device)
    if store:  # configs have no such field: TMA stores, where possible, are as fast as the others
        object.__setattr__(plan, "tiling", replace(plan.tiling, store=store))
    return plan


def study(shape: tuple[int, int, int], regime: str) -> Iterator[Row]:
    """The rows of one shape, bf16, NN, on the current device."""
    device = torch.device("cuda", torch.cuda.current_device())
    gpu = gpus.of_device(device.index)
    problem = space.problem(*shape, layout="nn")
    check = verify.Check(problem, device)
    sets = [space.operands(problem, device) for _ in range(measure.set_count(problem, gpu))]
    for a, b, _ in sets:
        a.normal_()
        b.normal_()
    torchs = GraphReplay(lambda a, b, out: torch.mm(a, b, out=out), sets)
    for name, config, store in variants():
        row = Row(name, *shape, config.block_k, config.num_stages, store)
        fit = config.fits(problem, gpu)
        if not fit:
            yield replace(row, status="illegal", message=fit.reason)
            continue
        plan = plan_of(problem, config, store, gpu, device)
        ratio = check.error_ratio(plan)
        if not ratio <= 1:
            yield replace(row, status="wrong", message=f"{ratio:.2f} of the error bound")
            continue
        replay = GraphReplay(plan, sets)
        found = measure.paired(replay, torchs, REGIMES[regime])
        replay.free()
        times = found.times
        yield replace(
            row,
            time_us=round(times.time_us, 2),
            torch_us=round(times.torch_us, 2),
            ratio=round(found.ratio, 4),
            tflops=round(problem.flops / times.time_us / 1e6, 1),
        )
    torchs.free()


def line(row: Row) -> str:
    """One line of the table."""
    shape = f"{row.m}x{row.n}x{row.k}"
    text = f"{row.study:<9} {shape:<15} {row.block_k:>7} {row.num_stages:>6}  {row.store:<6}"
    if row.time_us is None:
        return f"{text} {row.status}: {row.message}"
    return f"{text} {row.time_us:>9.1f} {row.tflops:>7.0f} {row.ratio:>7.3f}"


HEADER = "study     shape           block_k stages  store    time us  TFLOPS torch/ours"


@click.command()
@click.option("--regime", type=click.Choice(sorted(REGIMES)), default="burst", show_default=True)
@click.option("--csv", "csv_path", type=Output(), help="Write the rows here.")
def main(regime: str, csv_path: Path | None) -> None:
    """Measure pipelines and epilogues on 4096 x 4096 x 1024 and 8192 x 8192 x 8192."""
    if not torch.cuda.is_available():
        raise click.ClickException("this measures, and needs a GPU")
    click.echo(HEADER)
    rows = []
    for shape in SHAPES:
        for row in study(shape, regime):
            rows.append(row)
            click.echo(line(row))
    if csv_path:
        comments = [*Environment.here(torch.cuda.get_device_name()).comments(), f"# regime: {regime}"]
        write_csv(csv_path, rows, comments)
        click.echo(csv_path)


if __name__ == "__main__":
    main()
