"""Host time of one call, compared with torch's. `python -m tritonmm.autotune.studies.host_time --csv host.csv`

Small GEMMs are called back to back, so that the host is the bottleneck. A time is the mean over many calls between
synchronisations (which are not timed), and the least of several such means counts. torch is timed in three states:
before tritonmm registers kernels for its operators, which lasts until the process ends; with them; and after `disable`.
Before each timing, the result and the launching library are checked.
"""

import gc
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

import click
import torch
import triton

import tritonmm
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.studies.csv_rows import Output, write_csv

SIZE = 128
"""m, n and k. The GPU computes this GEMM faster than any host can call it."""

CALLS = 2000
"""Calls in one mean."""

QUEUE = 500
"""Calls between two synchronisations. The driver queues 1024 launches before it makes the host wait."""

REPEATS = 20
"""Means in one time; the least counts."""


class Case(NamedTuple):
    """One function, called through torch and directly on the same operands. exact: the result in float64."""

    name: str
    torch: Callable[[], torch.Tensor]
    direct: Callable[[], torch.Tensor]
    exact: torch.Tensor


@dataclass(frozen=True, slots=True)
class Row:
    """Microseconds of a call of one function.

    torch_us: torch's, before tritonmm registers anything. direct_us: tritonmm's own function.
    use_us: torch's under `use("always")`. disabled_us: torch's after that.
    """

    function: str
    torch_us: float
    direct_us: float
    use_us: float
    disabled_us: float


HEADER = f"{'function':<14}" + "".join(f"{field.name.removesuffix('_us') + ' us':>14}" for field in fields(Row)[1:])


def line(row: Row) -> str:
    """One line of the table."""
    return f"{row.function:<14}" + "".join(f"{us:>14.2f}" for us in list(asdict(row).values())[1:])


def cases(device: torch.device, size: int = SIZE, dtype: torch.dtype = torch.bfloat16) -> list[Case]:
    """The functions, on operands without gradients, as in a forward pass."""
    a, b, c, stack = (torch.randn(*shape, device=device).to(dtype) for shape in (*((size, size),) * 3, (4, size, size)))
    bias, out = b[0].clone(), torch.empty_like(c)
    a64, b64, c64, stack64, bias64 = (x.double() for x in (a, b, c, stack, bias))
    linear = torch.nn.functional.linear
    return [
        Case("mm", lambda: torch.mm(a, b), lambda: tritonmm.mm(a, b), a64 @ b64),
        Case("mm out=", lambda: torch.mm(a, b, out=out), lambda: tritonmm.mm(a, b, out=out), a64 @ b64),
        Case("bmm", lambda: torch.bmm(stack, stack), lambda: tritonmm.bmm(stack, stack), stack64 @ stack64),
        Case("linear", lambda: linear(a, b), lambda: tritonmm.linear(a, b), a64 @ b64.t()),
        Case("linear + bias", lambda: linear(a, b, bias), lambda: tritonmm.linear(a, b, bias), a64 @ b64.t() + bias64),
        Case("addmm", lambda: torch.addmm(c, a, b), lambda: tritonmm.addmm(c, a, b), c64 + a64 @ b64),
        Case("mv", lambda: torch.mv(a, bias), lambda: tritonmm.mv(a, bias), a64 @ bias64),
        Case("matmul 3-D", lambda: torch.matmul(stack, b), lambda: tritonmm.matmul(stack, b), stack64 @ b64),
    ]


class Host(NamedTuple):
    """What the times depend on; tests replace it.

    use: `tritonmm.use`.
    synchronize: waits for the GPU.
    clock: time in nanoseconds.
    launches: Triton kernels that a call launches.
    """

    use: Callable[[str], AbstractContextManager]
    synchronize: Callable[[], None]
    clock: Callable[[], int]
    launches: Callable[[Callable[[], torch.Tensor]], int]


def launches(call: Callable[[], torch.Tensor]) -> int:
    """Kernels that Triton launches in a call, counted by its launch hook."""
    found = 0

    def count(_) -> None:
        nonlocal found
        found += 1

    triton.knobs.runtime.launch_enter_hook.add(count)
    try:
        call()
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(count)
    return found


GPU = Host(tritonmm.use, torch.cuda.synchronize, time.perf_counter_ns, launches)


class Way(NamedTuple):
    """A way to call a case. ours: whether tritonmm must compute it."""

    call: Callable[[], torch.Tensor]
    scope: Callable[[], AbstractContextManager]
    ours: bool


def measure(cases: Sequence[Case], host: Host, calls: int = CALLS, repeats: int = REPEATS) -> Iterator[Row]:
    """A row for each case. Raises RuntimeError for a wrong result, and if the wrong library computes it."""

    def timed(case: Case, *ways: Way) -> list[float]:
        for way in ways:
            _check(case, way, host)
        rounds = []
        for _ in range(repeats):  # alternating, so that all ways run at the same clocks
            rounds.append([])
            for way in ways:
                with way.scope():
                    rounds[-1].append(mean_us(way.call, calls, host))
        return [round(min(times), 3) for times in zip(*rounds, strict=True)]

    before = [timed(case, Way(case.torch, nullcontext, False), Way(case.direct, nullcontext, True)) for case in cases]
    for case, (torch_us, direct_us) in zip(cases, before, strict=True):
        use, disabled = Way(case.torch, lambda: host.use("always"), True), Way(case.torch, nullcontext, False)
        yield Row(case.name, torch_us, direct_us, *timed(case, use, disabled))


def _check(case: Case, way: Way, host: Host) -> None:
    with way.scope():
        way.call()
        error = (way.call().double() - case.exact).abs().max().item()
        launched = host.launches(way.call)
    if not error <= case.exact.abs().max().item() * 2**-7:
        raise RuntimeError(f"{case.name}: the result is wrong by {error:.3g}")
    if bool(launched) != way.ours:
        raise RuntimeError(f"{case.name}: {'tritonmm' if way.ours else 'torch'} was to compute it, and did not")


def mean_us(call: Callable[[], torch.Tensor], calls: int, host: Host) -> float:
    """Mean microseconds of a call over `calls` calls, with at most `QUEUE` of them in flight."""
    total = 0
    collecting = gc.isenabled()
    gc.disable()
    try:
        for first in range(0, calls, QUEUE):
            count = min(QUEUE, calls - first)
            host.synchronize()
            start = host.clock()
            for _ in range(count):
                call()
            total += host.clock() - start
        host.synchronize()
    finally:
        if collecting:
            gc.enable()
    return total / calls / 1e3


def processor() -> str:
    """Name of this machine's CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


@click.command()
@click.option("--calls", type=click.IntRange(1), default=CALLS, show_default=True, help="Calls in one mean.")
@click.option("--repeats", type=click.IntRange(1), default=REPEATS, show_default=True, help="Times; the least counts.")
@click.option("--csv", "csv_path", type=Output(), help="Write here.")
def main(calls: int, repeats: int, csv_path: Path | None) -> None:
    """Measure what a call costs the host: torch's, tritonmm's, torch's under use("always"), and after it."""
    if not torch.cuda.is_available():
        raise click.ClickException("this measures launches and needs a GPU")
    click.echo(HEADER)
    rows = []
    for row in measure(cases(torch.device("cuda", torch.cuda.current_device())), GPU, calls, repeats):
        rows.append(row)
        click.echo(line(row))
    if csv_path:
        comments = [
            *Environment.here(torch.cuda.get_device_name()).comments(),
            f"# cpu: {processor()}",
            f"# python: {platform.python_version()}",
            f"# shape: {SIZE}x{SIZE}x{SIZE} bf16",
            f"# calls: {calls}, the least of {repeats} means",
        ]
        write_csv(csv_path, rows, comments)
        click.echo(csv_path)


if __name__ == "__main__":
    main()
