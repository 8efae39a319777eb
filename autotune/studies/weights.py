"""Products with 8- and 4-bit weights and bf16 activations, compared with torch's of bf16, by the number of rows.

    python -m tritonmm.autotune.studies.weights weights.csv --regime burst
    python -m tritonmm.autotune.studies.weights some.csv --rows 1,16 --shapes 4096x4096 --kinds int4-group
    python -m tritonmm.autotune.studies.weights six.csv --rows 64 --configs 6    # estimates beside times

Both sides are timed in pairs in one process, as `tritonmm bench` does, and take turns with several weights, so that no
launch finds its own in L2. torch multiplies by the dequantized weights in bf16.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import torch

from tritonmm import families
from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import space
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.measure import REGIMES, paired_launches, set_count
from tritonmm.autotune.measuring.precompile import precompile_all
from tritonmm.autotune.measuring.verify import Check
from tritonmm.autotune.studies.csv_rows import Output, write_each
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.nn.weights import dequantized, quantized
from tritonmm.plan import plan_for
from tritonmm.problem import Problem
from tritonmm.selection import choose, timed
from tritonmm.torch_ops.quantized import packed_words

ROWS = (1, 2, 8, 16, 32, 64, 128, 193, 256, 512, 1024, 2048, 4096, 8192)

SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336), (28672, 4096), (8192, 28672), (28672, 8192))
"""n and k."""

KINDS = {
    "int8-row": ("bf16-int8-row", "int8"),
    "fp8-row": ("bf16-fp8-row", "fp8"),
    "int8-group": ("bf16-int8", "int8"),
    "fp8-group": ("bf16-fp8", "fp8"),
    "int8p-group": ("bf16-int8p", "int8p"),
    "int8p-row": ("bf16-int8p-row", "int8p"),
    "int4-group": ("bf16-int4", "int4"),
}
"""The dtype of `Problem.dense`, and the codes of `nn.weights`. A scale is that of a row or of 128 elements of it."""


@dataclass(frozen=True)
class Row:
    """One product. torch_us, ours_us: medians; ratio: the median of the rounds' ratios, torch's time by ours.
    terabytes_per_s: the least bytes that we must move, by our time. sets: different weights, activations and outputs.

    error: the largest of sampled elements, relative to the library's bound, against float64 of the dequantized weights
    (`autotune.measuring.verify`); inf for a wrong product of integers. estimate_us: the time model's for the config.
    lost: why there are no times, or "".
    """

    m: int
    n: int
    k: int
    weights: str
    torch_us: float | None = None
    ours_us: float | None = None
    ratio: float | None = None
    terabytes_per_s: float | None = None
    sets: int | None = None
    error: float | None = None
    estimate_us: float | None = None
    config: str = ""
    lost: str = ""


Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Codes (n, k), as kernels read them; scales (groups, n); the dequantized weights, (n, k) in bf16."""


def problem_of(m: int, n: int, k: int, kind: str) -> Problem:
    """The product of such weights, as `weight_only_linear` computes it."""
    return space.problem(m, n, k, dtype=KINDS[kind][0], layout="nt")


def made(problem: Problem, kind: str, device: torch.device) -> Weights:
    """Normal weights, quantized as `quantize_` does it."""
    weight = torch.randn(problem.n, problem.k, dtype=torch.bfloat16, device=device)
    group = problem.group if problem.scales == "group" else None
    codes, scale = quantized(weight, KINDS[kind][1], group)
    dense = dequantized(codes, scale, torch.bfloat16, problem.k)
    return packed_words(codes) if problem.b_dtype == "int8p" else codes, scale.reshape(problem.n, -1).t(), dense


def sets_of(problem: Problem, weights: Sequence[Weights]) -> tuple[list, list]:
    """Operands of ours, and of torch's product, for each of the weights: other activations and outputs for each."""
    ours, torchs = [], []
    for codes, scale, dense in weights:
        x = torch.randn(problem.m, problem.k, dtype=torch.bfloat16, device=codes.device)
        out = torch.empty(problem.m, problem.n, dtype=torch.bfloat16, device=codes.device)
        ours.append((x, codes.t(), out, scale))
        torchs.append((x, dense.t(), out))
    return ours, torchs


def launch_of(plan: Callable) -> Callable:
    """launch(a, b, out, scale) of a plan."""
    return lambda a, b, out, scale: plan(a, b, out, scales=(None, scale))


def torch_mm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.mm(a, b, out=out)


def measured(problem: Problem, kind: str, config: Config, weights: Sequence[Weights], regime: str, gpu: Gpu) -> Row:
    """Checks the config and times both sides."""
    p, device = problem, weights[0][0].device
    plan = plan_for(p, config, device)
    error = Check(p, device).error_ratio(plan)
    torch.cuda.empty_cache()  # the check's float64 matrices
    ours, torchs = sets_of(p, weights[: set_count(p, gpu)])
    found = paired_launches((launch_of(plan), ours), (torch_mm, torchs), REGIMES[regime])
    rate = round(p.compulsory_bytes / found.times.time_us / 1e6, 3)
    estimate_us = round(families.family(config.kernel).estimate(config, p, gpu).us, 2)
    return Row(p.m, p.n, p.k, kind, *found.row, rate, len(ours), round(error, 4), estimate_us, str(config))


def all_measured(
    rows: Sequence[int], shapes: Sequence[tuple[int, int]], kinds: Sequence[str], most: int, regime: str, gpu: Gpu,
    device: torch.device,
) -> Iterator[Row]:  # fmt: skip
    """A row for each product and each of its at most `most` configs, those that fail with the reason."""
    tried: dict[Problem, Sequence[Config] | str] = {}
    for n, k in shapes:
        for kind in kinds:
            for m in rows:
                problem = problem_of(m, n, k, kind)
                try:
                    tried[problem] = configs_of(problem, gpu, most)
                except ValueError as error:  # no config is legal: fp8 on a GPU without it
                    tried[problem] = _line(error)
    pairs = ((problem, configs) for problem, configs in tried.items() if not isinstance(configs, str))
    precompile_all([(problem, config) for problem, configs in pairs for config in configs], gpu)
    for n, k in shapes:
        for kind in kinds:
            weights: list[Weights] = []
            for m in rows:
                problem = problem_of(m, n, k, kind)
                configs = tried[problem]
                if isinstance(configs, str):
                    yield Row(m, n, k, kind, lost=configs)
                    continue
                for config in configs:
                    try:
                        while len(weights) < set_count(problem, gpu):
                            weights.append(made(problem, kind, device))
                        row = measured(problem, kind, config, weights, regime, gpu)
                    except (RuntimeError, ValueError) as error:  # memory is short, or a kernel fails
                        row = Row(m, n, k, kind, config=str(config), lost=_line(error))
                    yield row
                    torch.cuda.empty_cache()


def configs_of(problem: Problem, gpu: Gpu, most: int) -> Sequence[Config]:
    """The chosen config if `most` is 1, else the `most` configs of the least estimates, the least first."""
    return (choose(problem, gpu),) if most == 1 else tuple(itertools.islice(timed(problem, gpu), most))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200].replace("#", "no. ")


class Listed(click.ParamType):
    """A list of values that `parse` makes of words; it raises ValueError or KeyError."""

    name = "list"

    def __init__(self, parse: Callable[[str], object], known: str):
        self.parse, self.known = parse, known

    def convert(self, value, param, ctx):
        if not isinstance(value, str):
            return value
        try:
            return tuple(map(self.parse, value.split(",")))
        except (KeyError, ValueError):
            self.fail(f"{value!r}: must be a list of {self.known}", param, ctx)


def _size(text: str) -> int:
    if (found := int(text)) < 1:
        raise ValueError(text)
    return found


def _shape(text: str) -> tuple[int, int]:
    n, k = map(_size, text.split("x"))
    return n, k


def _kind(text: str) -> str:
    return text if KINDS[text] else ""


@click.command()
@click.argument("path", type=Output())
@click.option("--rows", type=Listed(_size, "numbers above 0"), default=ROWS, help="Rows of activations.")
@click.option("--shapes", type=Listed(_shape, "n x k, as in 14336x4096"), default=SHAPES, help="Of the weights.")
@click.option("--kinds", type=Listed(_kind, f"any of {', '.join(KINDS)}"), default=tuple(KINDS), help="Of the weights.")
@click.option("--configs", "most", type=click.IntRange(1), default=1, help="Of each product; 1: the chosen one.")
@click.option("--regime", type=click.Choice(sorted(REGIMES)), default="burst", show_default=True)
def main(path: Path, rows: Sequence[int], shapes: Sequence, kinds: Sequence[str], most: int, regime: str) -> None:
    """Time products with quantized weights and torch's, and write PATH."""
    if not torch.cuda.is_available():
        raise click.ClickException("times need a GPU, and torch sees none")
    gpu, device = gpus.of_device(0), torch.device("cuda", 0)
    about = Environment.here(torch.cuda.get_device_name(0)).about() | {"regime": regime}
    what = "chosen configs" if most == 1 else f"{most} configs of the least estimates"
    about["about"] = f"bf16 activations; torch multiplies by the dequantized weights in bf16; {what}"
    write_each(path, all_measured(rows, shapes, kinds, most, regime, gpu, device), about)


if __name__ == "__main__":
    main()
