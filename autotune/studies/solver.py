"""Linear systems and Gaussian processes in fp64 and fp32, with and without exact products: times, errors, and verdicts.

    python -m tritonmm.autotune.studies.solver solver.csv --regime burst

The Cholesky factorisation and the triangular solves are recursive, in plain torch: most of their arithmetic is in
torch.addmm. One side runs them as they are, the other inside `tritonmm.use(fp64="ozaki:safe", fp32="ozaki:safe")`. Both
are timed in turns in one process. torch.linalg.cholesky and torch.cholesky_solve of the whole matrix are timed as well.
"""

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import click
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tritonmm
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.measure import REGIMES, Regime, paired
from tritonmm.autotune.studies.csv_rows import Output, write_each
from tritonmm.autotune.studies.ozaki import DTYPES, native_fp32
from tritonmm.launch import Plan
from tritonmm.moduli import SAFE

Tensor = torch.Tensor

LEAF = 1024
"""The largest diagonal block, which torch.linalg factors."""

SOLVED = (8192, 16384)
"""Sizes of the linear systems."""

COLUMNS = 64
"""Right-hand sides of a system."""

POINTS = (8192, 16384)
"""Observations of the Gaussian processes."""

INPUTS, OUTPUTS, PREDICTED = 8, 16, 4096
"""Dimensions of a point, functions that are observed at the points, and points at which they are predicted."""

NOISE = 0.1
"""Standard deviation of the observations."""

LENGTHS = (0.5, 2.0)
"""Length scales of the kernel; points are normal. With the shorter one most elements of the kernel are nearly 0."""

LIBRARY_ROUNDS = 5
"""Rounds of torch.linalg, of which the median is taken."""


@dataclass(frozen=True)
class Row:
    """One system or process. length: the kernel's length scale. torch_ms, ours_ms: medians, without and with exact
    products; ratio: the median of the rounds' ratios; linalg_ms: the same by torch.linalg.

    residual: ||A x - b|| / (||A|| ||x||) in Frobenius norms. difference: the largest of the answers' elements, relative
    to the largest answer. Log likelihoods are sums over the functions, of a process.

    products: calls of torch's matmuls in one run. exact: those that were computed by exact products. refused: those
    that began so, and were computed again natively. native: the others. exact_flops: the share of the products' flops
    that `exact` has. lost: why there are no times, or "".
    """

    what: str
    dtype: str
    n: int
    length: float | None
    torch_ms: float | None = None
    ours_ms: float | None = None
    ratio: float | None = None
    linalg_ms: float | None = None
    torch_residual: float | None = None
    ours_residual: float | None = None
    difference: float | None = None
    torch_log_likelihood: float | None = None
    ours_log_likelihood: float | None = None
    products: int | None = None
    exact: int | None = None
    refused: int | None = None
    native: int | None = None
    exact_flops: float | None = None
    lost: str = ""


def cholesky_(a: Tensor, leaf: int = LEAF) -> Tensor:
    """Factors a symmetric positive definite matrix in place: its lower triangle becomes L with A = L @ L.mT.

    The upper triangle is not meaningful afterwards. Raises torch.linalg.LinAlgError as torch.linalg.cholesky does.
    """
    n = a.shape[0]
    if n <= leaf:
        return a.copy_(torch.linalg.cholesky(a))
    half = n // 2
    upper, lower, corner = a[:half, :half], a[half:, :half], a[half:, half:]
    cholesky_(upper, leaf)
    solve_right_(upper, lower, leaf)
    corner.addmm_(lower, lower.mT, alpha=-1)
    cholesky_(corner, leaf)
    return a


def solve_right_(factor: Tensor, b: Tensor, leaf: int = LEAF) -> Tensor:
    """Replaces b by X with X @ L.mT = b, for the lower triangle L of `factor`."""
    n = factor.shape[0]
    if n <= leaf:
        return b.copy_(torch.linalg.solve_triangular(factor.mT, b, upper=True, left=False))
    half = n // 2
    left, right = b[:, :half], b[:, half:]
    solve_right_(factor[:half, :half], left, leaf)
    right.addmm_(left, factor[half:, :half].mT, alpha=-1)
    solve_right_(factor[half:, half:], right, leaf)
    return b


def solve_left_(factor: Tensor, b: Tensor, leaf: int = LEAF) -> Tensor:
    """Replaces b by X with L @ X = b, for the lower triangle L of `factor`."""
    n = factor.shape[0]
    if n <= leaf:
        return b.copy_(torch.linalg.solve_triangular(factor, b, upper=False))
    half = n // 2
    top, bottom = b[:half], b[half:]
    solve_left_(factor[:half, :half], top, leaf)
    bottom.addmm_(factor[half:, :half], top, alpha=-1)
    solve_left_(factor[half:, half:], bottom, leaf)
    return b


def solve_left_transposed_(factor: Tensor, b: Tensor, leaf: int = LEAF) -> Tensor:
    """Replaces b by X with L.mT @ X = b, for the lower triangle L of `factor`."""
    n = factor.shape[0]
    if n <= leaf:
        return b.copy_(torch.linalg.solve_triangular(factor.mT, b, upper=True))
    half = n // 2
    top, bottom = b[:half], b[half:]
    solve_left_transposed_(factor[half:, half:], bottom, leaf)
    top.addmm_(factor[half:, :half].mT, bottom, alpha=-1)
    solve_left_transposed_(factor[:half, :half], top, leaf)
    return b


class Answer(NamedTuple):
    """x of A @ x = b; of a process also what it predicts, and the log likelihood of all its observations."""

    x: Tensor
    predicted: Tensor | None = None
    log_likelihood: Tensor | None = None


class System(NamedTuple):
    """A linear system with a symmetric positive definite matrix; the kernel of the predicted points, of a process."""

    a: Tensor
    b: Tensor
    kernel: Tensor | None = None


def solve(system: System, leaf: int = LEAF) -> Answer:
    """The answer by the recursive factorisation."""
    factor = cholesky_(system.a.clone(), leaf)
    half = solve_left_(factor, system.b.clone(), leaf)
    return answer(system, factor, half, solve_left_transposed_(factor, half.clone(), leaf))


def library(system: System) -> Answer:
    """The answer by torch.linalg's factorisation of the whole matrix."""
    factor = torch.linalg.cholesky(system.a)
    half = torch.linalg.solve_triangular(factor, system.b, upper=False) if system.kernel is not None else system.b
    return answer(system, factor, half, torch.cholesky_solve(system.b, factor))


def answer(system: System, factor: Tensor, half: Tensor, x: Tensor) -> Answer:
    """half: X of L @ X = b, which has the squares of the likelihood."""
    if system.kernel is None:
        return Answer(x)
    n, functions = system.b.shape
    determinants = functions * (factor.diagonal().log().sum() + n / 2 * math.log(2 * math.pi))
    return Answer(x, system.kernel @ x, -half.square().sum() / 2 - determinants)


def random_system(n: int, dtype: torch.dtype, device: torch.device) -> System:
    """A well-conditioned one: G @ G.mT / n + 1 for a normal G."""
    g = torch.randn(n, n, dtype=dtype, device=device)
    a = torch.mm(g, g.mT).div_(n)
    a.diagonal().add_(1)
    return System(a, torch.randn(n, COLUMNS, dtype=dtype, device=device))


def process(n: int, length: float, dtype: torch.dtype, device: torch.device) -> System:
    """A Gaussian process with a squared exponential kernel: functions are sines of random directions, plus noise."""
    x, new = (torch.randn(rows, INPUTS, dtype=dtype, device=device) for rows in (n, PREDICTED))
    y = torch.sin(x @ torch.randn(INPUTS, OUTPUTS, dtype=dtype, device=device))
    y.add_(torch.randn_like(y), alpha=NOISE)
    a = kernel(x, x, length)
    a.diagonal().add_(NOISE**2)
    return System(a, y, kernel(new, x, length))


def kernel(x: Tensor, y: Tensor, length: float) -> Tensor:
    """exp(-|x - y|**2 / (2 * length**2)) of all pairs of rows."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square_().div_(-2 * length**2).exp_()


def residual(system: System, x: Tensor) -> float:
    """||A x - b|| / (||A|| ||x||), computed in fp64."""
    a, b, x = (part.double() for part in (system.a, system.b, x))
    return ((a @ x - b).norm() / (a.norm() * x.norm())).item()


@dataclass
class Counts:
    """Products of torch that ran, their flops, and the verdict and the flops of those that began as exact products."""

    products: int = 0
    flops: int = 0
    verdicts: list[tuple[Tensor, int]] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """The columns of `Row`. Waits for the GPU."""
        proved = [flops for verdict, flops in self.verdicts if verdict.item()]
        begun = len(self.verdicts)
        return {
            "products": self.products, "exact": len(proved), "refused": begun - len(proved),
            "native": self.products - begun, "exact_flops": round(sum(proved) / max(1, self.flops), 4),
        }  # fmt: skip


PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "addmm_": 1, "baddbmm": 1, "baddbmm_": 1}
"""aten's products, and which argument is A; B is the next one."""


class _Products(TorchDispatchMode):
    def __init__(self, counts: Counts):
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        namespace, _, name = func._schema.name.partition("::")
        if namespace == "aten" and name in PRODUCTS:
            a, b = args[PRODUCTS[name] : PRODUCTS[name] + 2]
            self.counts.products += 1
            self.counts.flops += flops_of(a, b)
        return func(*args, **(kwargs or {}))


def flops_of(a: Tensor, b: Tensor) -> int:
    """Flops of a @ b."""
    return 2 * a.numel() * b.shape[-1]


@contextlib.contextmanager
def counted() -> Iterator[Counts]:
    """Counts the products that run inside. The verdict about an exact product is what its native product is launched
    with; int8 products of planes are launched with one as well, and are not counted."""
    counts, launch = Counts(), Plan.__call__

    def observed(plan: Plan, a: Tensor, b: Tensor, out: Tensor, **options: Any) -> Tensor:
        skip = options.get("skip")
        if skip is not None and not plan.problem.moduli:
            counts.verdicts.append((skip.clone(), flops_of(a, b)))
        return launch(plan, a, b, out, **options)

    with mock.patch.object(Plan, "__call__", observed), _Products(counts):
        yield counts


def exact() -> contextlib.AbstractContextManager:
    """Inside, torch's products of fp64 and fp32 are exact where that should be faster."""
    return tritonmm.use(fp64=SAFE, fp32=SAFE)


def measured(row: dict[str, Any], system: System, regime: Regime) -> Row:
    """The row of a system; `row` has what it is. A first run of each side gives its answer, and compiles."""
    torchs = solve(system)
    with exact():
        ours = solve(system)
        with counted() as counts:
            solve(system)
    pair = paired(_replay(system, exact), _replay(system, contextlib.nullcontext), regime)
    assert pair.times.torch_us is not None  # both sides were timed
    assert pair.ratio is not None
    difference = max(_relative(x, y) for x, y in zip(ours[:2], torchs[:2], strict=True) if x is not None)
    likelihoods = [None if x.log_likelihood is None else x.log_likelihood.item() for x in (torchs, ours)]
    return Row(
        **row, torch_ms=round(pair.times.torch_us / 1e3, 3), ours_ms=round(pair.times.time_us / 1e3, 3),
        ratio=round(pair.ratio, 4), linalg_ms=round(1e3 * statistics.median(_library_times(system)), 3),
        torch_residual=residual(system, torchs.x), ours_residual=residual(system, ours.x), difference=difference,
        torch_log_likelihood=likelihoods[0], ours_log_likelihood=likelihoods[1], **counts.row(),
    )  # fmt: skip


def _relative(x: Tensor, y: Tensor) -> float:
    return ((x - y).abs().max() / y.abs().max()).item()


def _replay(system: System, context: Callable[[], contextlib.AbstractContextManager]) -> Callable[..., float]:
    """One solution, as `measure.paired` runs it."""

    def replay(seconds: float, meanwhile: Callable[[], object]) -> float:
        with context():
            found = _seconds(lambda: solve(system))
        meanwhile()
        return found

    return replay


def _library_times(system: System) -> list[float]:
    library(system)
    return [_seconds(lambda: library(system)) for _ in range(LIBRARY_ROUNDS)]


def _seconds(run: Callable[[], object]) -> float:
    """Seconds on the GPU, from the first launch to the end of the last one. The host waits inside, as users' code
    does."""
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3


Case = tuple[dict[str, Any], Callable[[], System]]


def cases(device: torch.device) -> Iterator[Case]:
    """What is measured: the first columns of each row, and its system."""
    for name, dtype in DTYPES.items():
        for n in SOLVED:
            row = {"what": "solve", "dtype": name, "n": n, "length": None}
            yield row, lambda n=n, dtype=dtype: random_system(n, dtype, device)
        for n in POINTS:
            for length in LENGTHS:
                row = {"what": "gaussian process", "dtype": name, "n": n, "length": length}
                yield row, lambda n=n, length=length, dtype=dtype: process(n, length, dtype, device)


def all_measured(most: int, regime: str, device: torch.device) -> Iterator[Row]:
    """The rows of all systems of up to `most` unknowns."""
    for row, make in cases(device):
        if row["n"] > most:
            continue
        torch.manual_seed(0)
        try:
            yield measured(row, make(), REGIMES[regime])
        except (torch.OutOfMemoryError, torch.linalg.LinAlgError) as error:
            yield Row(**row, lost=" ".join(str(error).split())[:200].replace("#", "no. "))
        torch.cuda.empty_cache()


@click.command()
@click.argument("path", type=Output())
@click.option("--regime", type=click.Choice(sorted(REGIMES)), default="burst", show_default=True)
@click.option("--n", "most", type=int, default=max(SOLVED + POINTS), show_default=True, help="The largest size.")
def main(path: Path, regime: str, most: int) -> None:
    """Solve systems with and without exact products, and write PATH."""
    if not torch.cuda.is_available():
        raise click.ClickException("times need a GPU, and torch sees none")
    device = torch.device("cuda", 0)
    about = Environment.here(torch.cuda.get_device_name(0)).about() | {"regime": regime}
    with native_fp32():
        write_each(path, all_measured(most, regime, device), about)


if __name__ == "__main__":
    main()
