"""What `tritonmm demo` runs: GEMMs, a sweep and its figures, with ragged sizes.

It is part of `cli` and may import all packages; only `cli.demo` imports it.
"""

import json
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

import tritonmm
from tritonmm.autotune.measuring import space
from tritonmm.autotune.measuring.sources import Source
from tritonmm.autotune.tuner import report
from tritonmm.autotune.tuner.store import Store, write_csv
from tritonmm.autotune.tuner.sweep import sweep
from tritonmm.config import Config
from tritonmm.dtypes import DTYPES
from tritonmm.orders import Hilbert, Serpentine, SplitMerge, SwizzleMerge
from tritonmm.plots import comparison, factors, read_csv, visit

FACTORS = (1, 4, 8, 12, 16, 24)


def run(source: Source, out: Path, as_json: bool = False) -> int:
    """Prints the demo and writes its files to the folder `out`. Returns the command's exit code.

    as_json: print the demo on stderr and its outcome on stdout.
    """
    console = Console(highlight=False, soft_wrap=True, stderr=as_json)
    measured = source.source == "gpu"
    where = f"on {source.environment.gpu}" if measured else "in Triton's interpreter, on the CPU"
    console.print(f"[bold]1. GEMMs with ragged sizes[/], {where}: tritonmm.matmul(a, b)")
    largest = _multiply(console, measured)

    console.print("\n[bold]2. The tile order[/]: 19 rows of tiles in groups of 8")
    orders = (SplitMerge(8), SwizzleMerge(8))
    for order in orders:
        launched = order.launched(19, 16)
        console.print(f"   {order!s:16} {launched} programs for {19 * 16} tiles: {launched - 19 * 16} idle")

    sizes = (4100, 8200)
    console.print(f"\n[bold]3. A sweep over swizzle factors[/], M = {', '.join(map(str, sizes))}, N = 8192, K = 4096")
    report.announce(source)
    problems = [space.problem(m, 8192, 4096) for m in sizes]
    others = (SplitMerge(8), Serpentine(8), SwizzleMerge(16, 8), Hilbert())
    # On a GPU, the config of matmul itself without splits; in the interpreter, the portable kernel.
    tile = tritonmm.select(sizes[-1], 8192, 4096, layout="nt") if measured else Config("tile", 128, 256, 64, 3, 8)
    configs = [replace(tile, split_k=1, split_tail=1, order=order) for order in (*map(SwizzleMerge, FACTORS), *others)]
    trials = []
    with Store(out / "sweep.sqlite") as store, report.Progress(len(problems) * len(configs)) as progress:
        for trial, new in sweep(problems, configs, store, source):
            trials.append(trial)
            progress.count(trial, new)
    csv = out / "sweep.csv"
    write_csv(csv, trials, source.environment)
    outcome = report.outcome(trials, source, out / "sweep.sqlite", csv)
    if not as_json:
        report.show(outcome)

    console.print("\n[bold]4. Figures[/], each as PNG and SVG")
    frame, about = read_csv(csv)
    figures: list[str] = []
    for what, drawn in (
        ("which tile each program computes", visit.draw([SplitMerge(4), SwizzleMerge(4)], 7, 6, out / "visit_order")),
        ("L2 traffic and speed over the swizzle factor", factors.draw(frame, about, out / "factors")),
        ("other orders compared with the best factor", comparison.draw(frame, about, out / "comparison")),
    ):
        console.print(f"   {drawn[0]}: {what}")
        figures += map(str, drawn)
    if as_json:
        print(json.dumps(outcome | {"largest_error": largest, "figures": figures}, indent=2))
    return 1 if outcome["wrong"] or outcome["failed"] or largest > 1 else 0


def _multiply(console: Console, measured: bool) -> float:
    """Multiplies, prints errors against float64, and returns the largest error relative to its bound."""
    device = "cuda" if measured else "cpu"
    scale = 4 if measured else 1
    largest = 0.0
    for m, n, k, dtype in ((1000, 513, 777, "bf16"), (257, 1001, 300, "fp16"), (129, 200, 333, "fp32")):
        m, n, k = m * scale + 1, n * scale, k * scale
        a = torch.randn(m, k, device=device).to(DTYPES[dtype])
        b = torch.randn(k, n, device=device).to(a.dtype)
        found = tritonmm.matmul(a, b).double()
        expected = a.double() @ b.double()
        error = (found - expected).abs()
        allowed = expected.abs() * torch.finfo(a.dtype).eps / 2 + 2 * k**0.5 * 2**-24 * (
            a.double().abs() @ b.double().abs()
        )
        ratio = (error / allowed).max().item()
        largest = max(largest, ratio)
        relative = (error.norm() / expected.norm()).item()
        console.print(
            f"   {m}x{k} @ {k}x{n} {dtype}: relative error {relative:.1e}, {ratio:.2f} of what rounding allows"
        )
        if measured:
            console.print(f"   [dim]{tritonmm.select(m, n, k, dtype=dtype)}[/]")
    return largest
