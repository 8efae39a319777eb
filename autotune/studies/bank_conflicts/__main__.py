r"""A transpose compared with a copy: what bank conflicts cost.

    python -m tritonmm.autotune.studies.bank_conflicts --csv transpose.csv

Each row is one shared-memory layout with one width of memory access, timed in pairs with torch's copy of the same
bytes. torch's own transpose is timed too. Each row has the conflicts that `tritonmm.layouts` predicts. Check their
count with NVIDIA's profiler:

    ncu --clock-control none --kernel-name regex:transpose_kernel --csv --metrics \
l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum,l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum,\
l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum,gpu__time_duration.sum \
python -m tritonmm.autotune.studies.bank_conflicts --once
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch

from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.measure import REGIMES, GraphReplay, paired
from tritonmm.autotune.studies.bank_conflicts.launch import LAYOUTS, TransposeTile, launch
from tritonmm.autotune.studies.csv_rows import Output, write_csv

SIZE = 8192


@dataclass(frozen=True, slots=True)
class Row:
    """One layout and access width.

    layout: a name in `LAYOUTS`, or "torch".
    vector: elements that one access loads or stores.
    read_ways: passes that a phase needs to read the tile.
    predicted_conflicts: passes beyond the first of each phase, for all reads and writes of a launch.
    time_us, copy_us: microseconds of the transpose and of the copy.
    of_copy: the median of copy_us / time_us, round by round: the fraction of the copy's bandwidth that is reached.
    """

    layout: str
    vector: int | None
    read_ways: int | None
    predicted_conflicts: int | None
    time_us: float | None = None
    copy_us: float | None = None
    of_copy: float | None = None
    gb_per_s: float | None = None


def tiles(elem_bytes: int) -> Iterator[TransposeTile]:
    """Every layout, with 16-byte vectors and with single elements."""
    for vector in (16 // elem_bytes, 1):
        for layout in LAYOUTS:
            yield TransposeTile(layout, elem_bytes, vector, vector)


def predicted(tile: TransposeTile, m: int, n: int) -> Row:
    """The row of a tile without times, for an m x n matrix that the tile divides."""
    writes, reads = tile.conflicts()
    rows, cols = tile.shape
    conflicts = sum(each.extra for each in (*writes, *reads)) * (m // rows) * (n // cols)
    return Row(tile.layout, tile.store_vector, max(each.worst for each in reads), conflicts)


def measure(size: int, regime: str) -> Iterator[Row]:
    """A row for each tile, then torch's; fp32. Raises RuntimeError for a result that is not the transpose."""
    x = torch.randn(size, size, device="cuda")
    out, copied = torch.empty_like(x), torch.empty_like(x)
    moved = 2 * x.numel() * x.element_size()
    copy = GraphReplay(lambda x, out: out.copy_(x), [(x, copied)])

    def timed(row: Row, transpose) -> Row:
        out.fill_(float("nan"))
        transpose(x, out)
        if not torch.equal(out, x.T):
            raise RuntimeError(f"{row.layout}, vectors of {row.vector}: the result is not the transpose")
        replay = GraphReplay(transpose, [(x, out)])
        found = paired(replay, copy, REGIMES[regime])
        replay.free()
        times = found.times
        measured = {
            "time_us": round(times.time_us, 2),
            "copy_us": round(times.torch_us, 2),
            "of_copy": round(found.ratio, 4),
            "gb_per_s": round(moved / times.time_us / 1e3, 1),
        }
        return Row(**asdict(row) | measured)

    for tile in tiles(x.element_size()):
        yield timed(predicted(tile, size, size), lambda x, out, tile=tile: launch(x, out, tile))
    yield timed(Row("torch", None, None, None), lambda x, out: out.copy_(x.T))


def line(row: Row) -> str:
    """One line of the table."""
    known = (row.vector, row.read_ways, row.predicted_conflicts)
    vector, ways, conflicts = ("-" if each is None else each for each in known)
    text = f"{row.layout:<9} {vector:>6} {ways:>9} {conflicts:>19}"
    if row.time_us is not None:
        text += f" {row.time_us:>10.1f} {row.gb_per_s:>8.0f} {row.of_copy:>8.3f}"
    return text


HEADER = "layout    vector read ways predicted conflicts    time us     GB/s  of copy"


@click.command()
@click.option("--size", default=SIZE, show_default=True, help="Rows and columns of the fp32 matrix, a multiple of 64.")
@click.option("--regime", type=click.Choice(sorted(REGIMES)), default="burst", show_default=True)
@click.option("--csv", "csv_path", type=Output(), help="Write the rows here.")
@click.option("--once", is_flag=True, help="Run each kernel once, for a profiler, and print what is predicted.")
def main(size: int, regime: str, csv_path: Path | None, once: bool) -> None:
    """Measure the transpose through plain, padded and swizzled shared memory, compared with a copy."""
    if not torch.cuda.is_available():
        raise click.ClickException("this measures and needs a GPU; `tritonmm layout` shows conflicts without one")
    if size < 64 or size % 64:
        raise click.UsageError(f"--size is {size}; it must be a multiple of 64")
    click.echo(HEADER)
    rows = []
    if once:
        x = torch.randn(size, size, device="cuda")
        out = torch.empty_like(x)
        for tile in tiles(x.element_size()):
            launch(x, out, tile)
            rows.append(predicted(tile, size, size))
            click.echo(line(rows[-1]))
        torch.cuda.synchronize()
    else:
        for row in measure(size, regime):
            rows.append(row)
            click.echo(line(row))
    if csv_path:
        environment = Environment.here(torch.cuda.get_device_name())
        comments = [*environment.comments(), f"# regime: {'none' if once else regime}", f"# shape: {size}x{size} fp32"]
        write_csv(csv_path, rows, comments)
        click.echo(csv_path)


if __name__ == "__main__":
    main()
