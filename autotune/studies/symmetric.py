"""Symmetric products compared with torch: `gram` and mm, `symmetric_mm` and addmm, Muon's iteration and torch's.

    python -m tritonmm.autotune.studies.symmetric gram.csv --regime burst
    python -m tritonmm.autotune.studies.symmetric --traffic gram-traffic.csv

The two sides are timed in pairs in one process, as `tritonmm bench` does. --traffic counts the bytes that some products
move in several orders, and writes them beside the model's.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import torch

from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import counters, space
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.measure import REGIMES, paired_launches
from tritonmm.autotune.measuring.precompile import precompile_all
from tritonmm.autotune.measuring.sources import torch_precision
from tritonmm.autotune.studies.csv_rows import Output, megabytes, write_each
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model import l2
from tritonmm.orders import Triangular
from tritonmm.problem import KINDS, Epilogue, Problem
from tritonmm.selection import choose
from tritonmm.torch_ops.newton_schulz import COEFFICIENTS, EPS, newton_schulz
from tritonmm.torch_ops.symmetric import gram, symmetric_mm

GRAMS = (
    (256, 256), (512, 512), (768, 768), (1024, 1024), (1024, 4096), (1536, 1536), (2048, 2048), (2048, 8192),
    (2048, 16384), (3000, 3000), (3072, 3072), (4096, 4096), (4096, 1024), (4096, 8192), (4096, 11008), (5000, 3000),
    (6144, 6144), (7777, 4096), (8192, 1024), (8192, 8192), (16384, 1024), (16384, 8192),
)  # fmt: skip
"""n and k of the products of A by A transposed, in bf16."""

OTHERS = ((4096, 4096, "fp16"), (4096, 4096, "tf32"), (4096, 4096, "fp32"), (4096, 4096, "fp64"), (8192, 8192, "tf32"))
"""n, k and kinds of others."""

POLYNOMIALS = (1024, 2048, 4096, 8192)
"""Sizes of b * A + c * A @ A."""

ITERATED = ((1, 2048, 2048), (1, 4096, 4096), (1, 4096, 11008), (1, 11008, 4096), (1, 1024, 4096), (8, 1024, 1024))
"""Batches, rows and columns of the matrices that Newton-Schulz iterates, five steps each."""

TRAFFIC = (
    ((128, 256, 64, 4, 8), (8192, 8192)), ((128, 128, 64, 6, 8), (8192, 4096)), ((192, 192, 64, 4, 12), (8192, 8192)),
    ((128, 256, 64, 4, 8), (16384, 4096)),
)  # fmt: skip
"""Tiles of the Hopper kernel, and n and k of the products whose traffic is counted."""

FACTORS = (1, 2, 4, 8, 16, 32)
"""Rows of tiles in the groups of the orders in which it is counted."""


@dataclass(frozen=True)
class Row:
    """Median microseconds of one product, or of one iteration, and the median ratio of torch's time to ours."""

    what: str
    batch: int
    n: int
    k: int
    kind: str
    torch_us: float
    ours_us: float
    ratio: float
    config: str


@dataclass(frozen=True)
class Bytes:
    """Megabytes that one product moves, counted and predicted."""

    n: int
    k: int
    config: str
    dram_read: float
    dram_read_model: float
    dram_written: float
    dram_written_model: float
    l2_read: float
    l2_read_model: float


Case = tuple[str, Problem, Callable, Callable, str]
"""What is computed, the problem that stands for it, ours and torch's as launch(a, out), and our config."""


def cases(gpu: Gpu) -> Iterator[Case]:
    """All that is timed."""
    for n, k, kind in (*((n, k, "bf16") for n, k in GRAMS), *OTHERS):
        problem = Problem.dense(n, n, k, layout="nt", symmetric="gram", **KINDS[kind])
        yield "gram", problem, _gram, _torch_gram, str(choose(problem, gpu))
    for n in POLYNOMIALS:
        epilogue = Epilogue(scaled=True, c=True)
        problem = Problem.dense(n, n, n, layout="nn", symmetric="output", epilogue=epilogue)
        yield "symmetric_mm", problem, _polynomial, _torch_polynomial, str(choose(problem, gpu))
    for batch, m, n in ITERATED:
        problem = Problem.dense(m, m, n, batch=batch, layout="nt", symmetric="gram")
        yield "newton_schulz", problem, _iterate, _torch_iterate, ""


def _gram(a, out):
    gram(a, out=out)


def _torch_gram(a, out):
    torch.mm(a, a.mT, out=out)


def _polynomial(a, out):
    symmetric_mm(a, a, c=a, alpha=COEFFICIENTS[2], beta=COEFFICIENTS[1], symmetric_c=True, out=out)


def _torch_polynomial(a, out):
    torch.addmm(a, a, a, alpha=COEFFICIENTS[2], beta=COEFFICIENTS[1], out=out)


def _iterate(a, out):
    newton_schulz(a)


def _torch_iterate(a, out):
    from torch.optim._muon import _zeropower_via_newtonschulz

    for x in a if a.dim() == 3 else (a,):
        _zeropower_via_newtonschulz(x, COEFFICIENTS, 5, EPS)


def timed(case: Case, regime: str, device: torch.device, gpu: Gpu) -> Row:
    """Times both sides. Operands exceed the L2 together; torch's iteration scales its own in place."""
    what, problem, ours, torchs, config = case
    count = max(1, -(-2 * gpu.l2_bytes // problem.compulsory_bytes)) if what == "gram" else 1
    sets = []
    for _ in range(min(count, 64)):
        a, _, out = space.operands(problem, device)
        space.fill(a)
        if what == "symmetric_mm":
            a = a.add(a.mT).div_(2 * problem.n**0.5)
        sets.append((a, out))
    copies = [(a.clone(), out) for a, out in sets] if what == "newton_schulz" else sets
    with torch_precision(problem), torch.no_grad():
        found = paired_launches((ours, sets), (torchs, copies), REGIMES[regime])
    return Row(what, problem.batch, problem.m, problem.k, problem.kind, *found.row, config)


def traffic(gpu: Gpu) -> Iterator[Bytes]:
    """Counts products in several orders."""
    pairs = []
    for blocks, (n, k) in TRAFFIC:
        problem = Problem.dense(n, n, k, layout="nt", symmetric="gram")
        for factor in FACTORS:
            config = Config("hopper", *blocks, order=Triangular(factor, aspect=blocks[:2]))
            pairs.append((problem, config))
    precompile_all(pairs, gpu)
    for (problem, config), found in zip(pairs, counters.count(pairs), strict=True):
        if found is not None:
            model = l2.of(problem, config, gpu)
            yield Bytes(problem.m, problem.k, str(config), *megabytes(found, model))


@click.command()
@click.argument("path", type=Output())
@click.option("--regime", type=click.Choice(sorted(REGIMES)), default="burst", show_default=True)
@click.option("--traffic", "counts", is_flag=True, help="Count bytes instead of timing.")
def main(path: Path, regime: str, counts: bool) -> None:
    """Time symmetric products and torch's and write PATH, or count the bytes that they move."""
    if not torch.cuda.is_available():
        raise click.ClickException("times need a GPU, and torch sees none")
    gpu, device = gpus.of_device(0), torch.device("cuda", 0)
    about = Environment.here(torch.cuda.get_device_name(0)).about()
    about["regime"] = "counters of one launch, caches cold" if counts else regime
    if counts:
        found: Iterator[Row] | Iterator[Bytes] = traffic(gpu)
    else:
        asked = list(cases(gpu))
        precompile_all([(problem, choose(problem, gpu)) for _, problem, *_ in asked], gpu)
        found = (timed(case, regime, device, gpu) for case in asked)
    write_each(path, found, about)


if __name__ == "__main__":
    main()
