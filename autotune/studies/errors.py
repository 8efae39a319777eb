"""Errors of GEMMs of every kind, compared with torch's: `python -m tritonmm.autotune.studies.errors`

Operands are standard normal numbers, or their absolute values, whose sums grow and whose roundings do not cancel; int8
is any, or any not below 0. Each is rounded to its dtype first: what is compared is the exact product of what is
multiplied, scales included, so that the rest are the errors of multiplying, adding and rounding.

An output of 2 bytes is mostly its own rounding. Such kinds are computed into fp32 too, where the sums show.

torch multiplies as `bench` has it: for tf32x3 and bf16x3, which torch lacks, in fp32; for 8-bit weights, by weights
that were scaled and rounded to A's dtype before.

Without a GPU the kernels run in Triton's interpreter, which multiplies fp32 as it is: tf32 and its like are fp32 there.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click
import torch

from tritonmm import families
from tritonmm.autotune.measuring import space, verify
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.sources import bound_launch, torch_precision, torch_product
from tritonmm.autotune.studies.csv_rows import Output, write_csv
from tritonmm.dtypes import HALF
from tritonmm.plan import INTERPRETED
from tritonmm.problem import KINDS, Problem
from tritonmm.selection import choose
from tritonmm.torch_ops.product import gpu_of

SHAPE = (1024, 1024, 4096)
OPERANDS = ("normal", "positive")

PARTS = 4
"""Parts that operands are cut into: for K of 4096 they hold 80 bits below a row's, or column's, largest element."""


@dataclass(frozen=True, slots=True)
class Row:
    """A product's errors, and those of torch's, empty where torch refuses it, which `message` then says.

    operands: of `OPERANDS`. largest: of all elements of C, |error| / (|A| |B|); rms: the root mean square of the errors
    over that of C. config: what tritonmm chose.
    """

    kind: str
    output: str
    operands: str
    largest: float
    rms: float
    torch_largest: float | None = None
    torch_rms: float | None = None
    config: str = ""
    message: str = ""


def products(kinds: Iterable[str], m: int, n: int, k: int) -> Iterator[tuple[str, Problem]]:
    """Each kind with its problem, and with that of fp32 output where its own has 2 bytes and no other kind is that."""
    kinds = tuple(kinds)
    for kind in kinds:
        problem = Problem.dense(m, n, k, layout="nt", **KINDS[kind])
        yield kind, problem
        if problem.out_dtype in HALF:
            wide = Problem.dense(m, n, k, layout="nt", **KINDS[kind] | {"out_dtype": "fp32"})
            if wide.kind not in kinds:
                yield kind, wide


def measure(kind: str, problem: Problem, named: str, device: torch.device) -> Row:
    """The row of one product of operands so `named`, on a GPU or, in the interpreter, on the CPU."""
    generator = torch.Generator(device).manual_seed(0)
    a, b, out = space.operands(problem, device)
    for x in (a, b):
        space.fill(x, generator)
        if named == "positive":
            x.copy_(x.double().abs_().clamp_(max=127))  # int8 has no 128
    keywords = space.keywords(problem, device)
    exact_a, exact_b = verify.scaled(problem, a, b, keywords.get("scales"))
    poison = math.nan if out.is_floating_point() else -(2**31)
    config = choose(problem, gpu_of(device), families.portable() if INTERPRETED else "")
    bound_launch(problem, config, device, keywords)(a, b, out.fill_(poison))
    row = Row(kind, problem.out_dtype, named, *errors(out, exact_a, exact_b), config=str(config))
    weights = exact_b.to(a.dtype) if b.itemsize < a.itemsize else b
    try:
        with torch_precision(problem):
            torch_product(problem, **keywords)(a, weights, out.fill_(poison))
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()).partition(". ")[0]
        return replace(row, message=f"torch refused: {reason[:200]}")
    largest, rms = errors(out, exact_a, exact_b)
    return replace(row, torch_largest=largest, torch_rms=rms)


def errors(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[float, float]:
    """`Row.largest` and `Row.rms` of an output, of a and b in float64; NaN where it has one."""
    wrong = difference(out, a, b)
    largest = torch.where(wrong == 0, 0.0, wrong.abs() / (a.abs() @ b.abs())).max()
    return tuple(float(f"{float(x):.4g}") for x in (largest, wrong.norm() / (a @ b).norm()))


def difference(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """out - a @ b, of a and b in float64: to 53 bits, and to 2^-70 K of the product of the lines' largest elements.

    Both are cut into parts of few enough bits that float64 has the products of parts exactly, as Ozaki, Ogita, Oishi
    and Rump do (2012). These are taken from out, the largest first, so that what is left is as small as the error.
    """
    bits = (53 - math.ceil(math.log2(a.shape[1]))) // 2
    parts_a, parts_b = list(_parts(a, bits, 1)), list(_parts(b, bits, 0))
    left = out.double()
    for both in range(PARTS):
        for i in range(both + 1):
            left = left - parts_a[i] @ parts_b[both - i]
    return left


def _parts(x: torch.Tensor, bits: int, dim: int) -> Iterator[torch.Tensor]:
    """Multiples of a power of two for each line along `dim`, of so many bits each, which add up to x."""
    largest = x.abs().amax(dim, keepdim=True)
    unit = torch.where(largest == 0, 1.0, largest / largest.frexp().mantissa)  # a power of two, above the largest
    for _ in range(PARTS):
        unit = unit * 2.0**-bits
        part = (x / unit).round() * unit
        yield part
        x = x - part


def closer(rows: Iterable[Row]) -> Iterator[str]:
    """By how much the products in three parts are closer than those of inputs cut once."""
    rms = {(row.kind, row.operands): row.rms for row in rows}
    for (kind, named), found in rms.items():
        if kind.endswith("x3") and ("tf32", named) in rms and found:
            yield f"{kind} closer than tf32, {named} operands: {rms['tf32', named] / found:.0f} times"


def line(row: Row) -> str:
    """One line of the table."""
    known = (row.largest, row.rms, row.torch_largest, row.torch_rms)
    numbers = " ".join(f"{'-' if each is None else f'{each:.2e}':>9}" for each in known)
    return f"{row.kind:<13} {row.output:<6} {row.operands:<8} {numbers}"


HEADER = "kind          output operands   largest       rms  torch's:       rms"


def _named(_context, _parameter, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in KINDS:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(KINDS)}")
    return names


@click.command()
@click.option("--kinds", default=",".join(KINDS), callback=_named, help="Which, with commas between them; all of them.")
@click.option("--shape", nargs=3, type=click.IntRange(1), default=SHAPE, show_default=True, help="M, N and K.")
@click.option("--csv", "csv_path", type=Output(), help="Write the rows here.")
def main(kinds: tuple[str, ...], shape: tuple[int, int, int], csv_path: Path | None) -> None:
    """Compare products of every kind, and torch's, with exact ones."""
    if not INTERPRETED and not torch.cuda.is_available():
        raise click.ClickException("there is no GPU; with TRITON_INTERPRET=1 small products are computed on the CPU")
    device = torch.device("cpu") if INTERPRETED else torch.device("cuda", torch.cuda.current_device())
    click.echo(HEADER)
    rows = []
    for kind, problem in products(kinds, *shape):
        for named in OPERANDS:
            rows.append(measure(kind, problem, named, device))
            click.echo(line(rows[-1]))
    compared = list(closer(rows))
    for text in compared:
        click.echo(text)
    if csv_path:
        gpu = "none, Triton's interpreter" if INTERPRETED else torch.cuda.get_device_name(device)
        comments = [f"# {text}" for text in ("shape: {}x{}x{} nt".format(*shape), *compared)]
        write_csv(csv_path, rows, [*Environment.here(gpu).comments(), *comments])
        click.echo(csv_path)


if __name__ == "__main__":
    main()
