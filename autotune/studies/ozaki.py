"""fp64 and fp32 products by exact int8 products, compared with torch's and with our other ways: times and errors.

    python -m tritonmm.autotune.studies.ozaki ozaki.csv --regime burst

Both sides are timed in pairs in one process, as `tritonmm bench` does. Errors are those of `ERROR_SIDE`**2 elements of
the product that is timed, against sums in a longer number format, in units of u * |A||B|, u = 2**-53 or 2**-24.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np
import torch

from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.measure import REGIMES, paired_launches
from tritonmm.autotune.studies.csv_rows import Output, write_each
from tritonmm.torch_ops.dense import mm
from tritonmm.torch_ops.ozaki import ozaki_mm

SIZES = (
    (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (5000, 3000, 7000), (1024, 1024, 1024),
    (777, 8192, 4096), (16384, 2048, 1024), (1024, 1024, 65536),
)  # fmt: skip
"""m, n and k. `--sizes` keeps the first of them."""

DATA: dict[str, Callable] = {"normal": torch.randn, "uniform": torch.rand}
"""What operands are made of. uniform: from 0 to 1, whose sums grow with K."""

MODULI = {torch.float64: (14, 15, 16), torch.float32: (7, 8)}

DTYPES = {"fp64": torch.float64, "fp32": torch.float32}

OTHERS = {torch.float64: (), torch.float32: ("ieee", "tf32x3", "bf16x3")}
"""Precisions of `mm` that are timed as well."""

ERROR_SIDE = 64


@dataclass(frozen=True)
class Row:
    """One product in one way. way: "N=" and the number of moduli, or the precision of `mm`. Times are medians in
    microseconds, the ratio that of pairs: torch's time by ours. error, torch_error: of the elements compared."""

    dtype: str
    m: int
    n: int
    k: int
    data: str
    way: str
    torch_us: float
    ours_us: float
    ratio: float
    torch_error: float
    error: float


Launch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


def ways(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """Names, and launch(a, b, out)."""

    def exact(a, b, out, moduli):
        ozaki_mm(a, b, moduli=moduli, out=out)

    def other(a, b, out, precision):
        mm(a, b, precision=precision, out=out)

    for moduli in MODULI[dtype]:
        yield f"N={moduli}", partial(exact, moduli=moduli)
    for precision in OTHERS[dtype]:
        yield precision, partial(other, precision=precision)


def torch_mm(a, b, out):
    torch.mm(a, b, out=out)


def timed(
    dtype: torch.dtype, size: tuple[int, int, int], data: str, regime: str, device: torch.device
) -> Iterator[Row]:
    """A row for each way."""
    m, n, k = size
    a, b = (DATA[data](shape, dtype=dtype, device=device) for shape in ((m, k), (k, n)))
    sets = [(a, b, torch.empty(m, n, dtype=dtype, device=device))]
    torch_error = error(torch_mm, a, b)
    for way, launch in ways(dtype):
        found = paired_launches((launch, sets), (torch_mm, sets), REGIMES[regime])
        errors = round(torch_error, 3), round(error(launch, a, b), 3)
        yield Row(str(dtype).removeprefix("torch."), m, n, k, data, way, *found.row, *errors)


def error(launch: Launch, a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest error of the elements of the product in `ERROR_SIDE` of its rows and columns, drawn at random."""
    out = a.new_full((a.shape[0], b.shape[1]), float("nan"))
    launch(a, b, out)
    rows, cols = (torch.randperm(size, device=a.device)[:ERROR_SIDE] for size in out.shape)
    a, b, out = a[rows], b[:, cols], out[rows][:, cols]
    longer = np.longdouble if a.dtype == torch.float64 else np.float64
    left, right = (x.cpu().numpy().astype(longer) for x in (a, b.mT))
    u = torch.finfo(a.dtype).eps / 2
    exact, scale = (np.stack([(x * y).sum(1) for y in z], 1) for x, z in ((left, right), (np.abs(left), np.abs(right))))
    return float((np.abs(out.cpu().numpy().astype(longer) - exact) / (u * scale)).max())


@contextlib.contextmanager
def native_fp32() -> Iterator[None]:
    """Inside, torch multiplies fp32 without tf32."""
    allows, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allows


@click.command()
@click.argument("path", type=Output())
@click.option("--regime", type=click.Choice(sorted(REGIMES)), default="burst", show_default=True)
@click.option(
    "--dtype", "dtypes", type=click.Choice(list(DTYPES)), multiple=True, help="Of the operands.  [default: both]"
)
@click.option(
    "--sizes", type=click.IntRange(1, len(SIZES)), default=len(SIZES), help="Measure only the first sizes, this many."
)
def main(path: Path, regime: str, dtypes: Sequence[str], sizes: int) -> None:
    """Time exact products and torch's, measure errors, and write PATH."""
    if not torch.cuda.is_available():
        raise click.ClickException("times need a GPU, and torch sees none")
    device = torch.device("cuda", 0)
    about = Environment.here(torch.cuda.get_device_name(0)).about() | {"regime": regime}
    cases = (
        (dtype, size, data)
        for dtype in [DTYPES[name] for name in dtypes or DTYPES]
        for size in SIZES[:sizes]
        for data in (DATA if size == (4096, 4096, 4096) else ("normal",))
    )
    with native_fp32():
        write_each(path, (row for case in cases for row in timed(*case, regime, device)), about)


if __name__ == "__main__":
    main()
