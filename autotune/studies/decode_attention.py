"""Attention of one new token of each sequence, compared with torch's ways to compute it: times and errors.

    python -m tritonmm.autotune.studies.decode_attention attention.csv

Caches are filled from the front, as a static cache is while a model decodes. Both sides are timed in pairs in one
process, as `tritonmm bench` does, with so many caches in turn that none is found in L2.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import torch
from torch.nn.functional import scaled_dot_product_attention

from tritonmm import gpu as gpus
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.measure import REGIMES, paired_launches
from tritonmm.autotune.serving import attention
from tritonmm.autotune.studies.csv_rows import Output, write_each
from tritonmm.nn import decode_attention

Tensor = torch.Tensor

CASES = (
    (1, 1024, 580), (4, 1024, 580), (16, 1024, 580), (64, 1024, 580), (16, 1024, 1024), (1, 8192, 8000),
    (16, 8192, 8000), (16, 8192, 580), (1, 131_072, 100_000),
)  # fmt: skip
"""Sequences, the length of the cache, and the keys that each sequence sees. `--cases` keeps the first of them."""

HEADS, GROUPS, DIM = 32, 8, 128
"""Query heads, key heads, and elements of a head, as Llama 3 8B has them."""

UNIT = 2.0**-8
"""The rounding of bf16."""


@dataclass(frozen=True)
class Row:
    """One case against one way of torch. Times are medians in microseconds, the ratio that of pairs: torch's time by
    ours. us_of_bytes: what reading the keys and values that are seen takes at the memory's bandwidth. error: the
    largest, relative to a bound of 3 roundings of |weights| @ |value|."""

    batch: int
    length: int
    seen: int
    torch: str
    torch_us: float
    ours_us: float
    ratio: float
    us_of_bytes: float
    error: float


def ways(seen: int) -> Iterator[tuple[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]]]:
    """Names, and attend(query, key, value, mask) of torch. The last one takes no mask: it knows `seen` on the host."""

    def two_gemms(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return attention.decode(query[:, :, None], key, value, mask[:, None, None])[:, 0]

    def sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, seen: int) -> Tensor:
        key, value = key[:, :, :seen], value[:, :, :seen]
        return scaled_dot_product_attention(query[:, :, None], key, value, enable_gqa=True)[:, :, 0]

    yield "two GEMMs, torch.compile", torch.compile(two_gemms, dynamic=False)
    yield "sdpa of what is seen", partial(sdpa, seen=seen)


def operands(batch: int, length: int, seen: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random query, key and value in bf16, and the mask of a cache that is filled so far."""
    shapes = (batch, HEADS, DIM), (batch, GROUPS, length, DIM), (batch, GROUPS, length, DIM)
    query, key, value = (torch.randn(shape, device=device, dtype=torch.bfloat16) for shape in shapes)
    return query, key, value, (torch.arange(length, device=device) < seen).expand(batch, -1).contiguous()


def timed(case: tuple[int, int, int], regime: str, gpu: gpus.Gpu, device: torch.device) -> Iterator[Row]:
    """A row for each way of torch."""
    batch, length, seen = case
    moved = 2 * batch * GROUPS * seen * DIM * 2
    sets = [operands(batch, length, seen, device) for _ in range(math.ceil(2 * gpu.l2_bytes / moved))]
    worst = round(error(decode_attention, *sets[0]), 3)
    for name, attend in ways(seen):
        found = paired_launches((decode_attention, sets), (attend, sets), REGIMES[regime])
        yield Row(*case, name, *found.row, round(moved / gpu.bandwidth * 1e6, 2), worst)


def error(attend: Callable, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> float:
    """The largest error of a way, relative to a bound of 3 roundings of |weights| @ |value|, of one sequence."""
    found = attend(query, key, value, mask)[0].double()
    key, value = (x[0].double().repeat_interleave(query.shape[1] // key.shape[1], 0) for x in (key, value))
    scores = (query[0].double()[:, None] @ key.mT * query.shape[2] ** -0.5).masked_fill(~mask[0], -torch.inf)
    weights = torch.softmax(scores, -1)
    exact, bound = (weights @ value)[:, 0], 3 * UNIT * (weights @ value.abs())[:, 0]
    return ((found - exact).abs() / bound).max().item()


@click.command()
@click.argument("path", type=Output())
@click.option("--regime", type=click.Choice(sorted(REGIMES)), default="burst", show_default=True)
@click.option(
    "--cases", type=click.IntRange(1, len(CASES)), default=len(CASES), help="Measure only the first cases, this many."
)
def main(path: Path, regime: str, cases: int) -> None:
    """Time attention while decoding, ours and torch's, measure errors, and write PATH."""
    if not torch.cuda.is_available():
        raise click.ClickException("times need a GPU, and torch sees none")
    device = torch.device("cuda", 0)
    about = Environment.here(torch.cuda.get_device_name(0)).about() | {"regime": regime}
    gpu = gpus.of_device(0)
    write_each(path, (row for case in CASES[:cases] for row in timed(case, regime, gpu, device)), about)


if __name__ == "__main__":
    main()
