"""Problem -> Config: what was measured to be fastest, or else the legal config with the shortest estimated time."""

import functools
import heapq
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch

from tritonmm import families, tuned
from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.families.family import Family
from tritonmm.gpu import Gpu
from tritonmm.model.groups import of_class, without_sizes
from tritonmm.problem import KINDS, Problem, kind_name

AGREES = 1.02
"""How much longer than the shortest of all the estimate of a neighbour's config may be.

With the sweeps of 660 random GEMMs of an H200 as each other's neighbours it lets 16 replace the estimates' choice. They
gain 1.1% in the mean and lose 3% at worst; with 1.1 it would be 22, which gain nothing (docs/notebook/tuner.md).
"""


ORDERED = 3
"""Configs that are estimated in other orders of tiles, too: the first by their estimates in the order of
`tile_order.group_order`."""


SYMMETRIC_GAIN = 0.95
"""What a symmetric product must be expected to take, of the time of the same product in full, to be chosen where it was
not asked for."""


WHOLE_GAIN = 0.95
"""What a product of A by A transposed must be expected to take in full, of the time of the symmetric product that was
asked for, to be computed so instead."""


class Choice(NamedTuple):
    """A config for a problem.

    us: the microseconds it takes, measured if `is_measured` and estimated if not; origin: why it is this one;
    torch_us: what torch's kernel took where that was measured, too.
    """

    us: float
    config: Config
    origin: str
    is_measured: bool = False
    torch_us: float | None = None


def select(
    m: int,
    n: int,
    k: int,
    *,
    dtype: str | torch.dtype = "bf16",
    layout: str = "nn",
    accumulation: str = "any",
    gpu: Gpu | str | None = None,
) -> Config:
    """The config that `tritonmm.matmul` would use for an m x k by k x n product.

    dtype: a name of `problem.KINDS`, such as "bf16" or "tf32", or a dtype of torch; layout: "nn", "nt", "tn" or "tt";
    accumulation: "any" or "invariant", see `Problem`; gpu: a `Gpu`, a name that `gpu.spec` knows, or None for this
    machine's (the H200 where there is none).
    Deterministic, given the tuned tables.
    Raises ValueError for unknown names or negative sizes.

    >>> tritonmm.select(8192, 8192, 8192, gpu="h200").kernel
    'hopper'
    >>> print(tritonmm.select(256, 256, 65536, layout="nt", gpu="h200", accumulation="invariant"))
    hopper ... split-tail:16 ...
    """
    if not isinstance(gpu, Gpu):
        gpu = gpus.default() if gpu is None else gpus.spec(gpu)
    problem = Problem.dense(m, n, k, layout=layout, accumulation=accumulation, **KINDS[kind_name(dtype)])
    return choose(problem, gpu)


def choose(problem: Problem, gpu: Gpu, kernel: str = "") -> Config:
    """The config of `best`."""
    return best(problem, gpu, kernel).config


def best(problem: Problem, gpu: Gpu, kernel: str = "") -> Choice:
    """The legal config, of any kernel family or of the one that is named, that should be fastest.

    That is the tuned tables' for this problem; where they have none, a neighbour's that has the same grid of tiles here
    and that the estimates do not speak against; and else the one with the shortest estimate. Raises ValueError where no
    config of that family is legal.
    """
    return _remembered(tuned.tables(gpu))(problem, gpu, kernel)


def best_in_class(problem: Problem, gpu: Gpu) -> Choice:
    """`best`, and for a grouped problem the config for the largest total of its class, as `grouped_mm` chooses it.

    The time is then a measured one of that total, or the estimate for the problem itself.
    """
    if not problem.ragged:
        return best(problem, gpu)
    choice = best(of_class(problem), gpu)
    if not choice.config.fits(problem, gpu):
        choice = best(without_sizes(problem), gpu)
    if choice.is_measured:
        return choice
    return choice._replace(us=families.family(choice.config.kernel).estimate(choice.config, problem, gpu).us)


@functools.lru_cache(maxsize=4)
def _remembered(tables: tuned.Tables):
    """`best_by` of those tables, which are forgotten with its answers soon after others have taken their place."""
    return functools.lru_cache(maxsize=4096)(functools.partial(best_by, tables=tables))


def best_by(problem: Problem, gpu: Gpu, kernel: str, tables: tuned.Tables) -> Choice:
    """`best` with other tables than this machine's."""
    for row in tables.exact(problem):
        if kernel in ("", row.config.kernel) and row.config.fits(problem, gpu):
            like = "" if row.problem == problem else f" for {row.problem}"
            origin = f"measured to be fastest{like} on {row.date} with Triton {row.triton}"
            return Choice(row.us, row.config, origin, True, row.torch_us)
    shortest = estimated(problem, gpu, kernel)
    limit = shortest.us * AGREES
    for row in tables.near(problem):
        config = row.config
        if kernel in ("", config.kernel) and _has_same_grid(row, problem) and config.fits(problem, gpu):
            us = families.family(config.kernel).estimate(config, problem, gpu).us
            if us <= limit:
                above = f"its estimate is {us / shortest.us - 1:.1%} above the shortest"
                return Choice(us, config, f"measured to be fastest for {row.problem} nearby, and {above}")
    return shortest


def estimated(problem: Problem, gpu: Gpu, kernel: str = "") -> Choice:
    """`best` without tables: the config with the shortest estimate."""
    shortest = None
    for _, config in itertools.islice(_legal(problem, gpu, kernel), ORDERED):
        if shortest is None:
            shortest = _ordered(config, problem, gpu)
        elif families.family(config.kernel).lower_bound(config, problem, gpu) < shortest[0]:
            shortest = min(shortest, _ordered(config, problem, gpu), key=_us)
    if shortest is None:
        raise ValueError(f"no config for {problem} on {gpu.name}: {_reason(problem, gpu, kernel)}")
    return Choice(*shortest, "the shortest estimate of the configs considered")


def as_gram_if_faster(problem: Problem, gpu: Gpu, kernel: str = "") -> Problem:
    """The problem of A by A transposed, as a symmetric product where that should be faster, else as it is.

    Invariant tf32x3 and bf16x3 stay as they are: they add the products of small and large parts of A and B in an order
    that is not symmetric, so the elements above the diagonal have other bits.
    """
    if problem.fixes_sums and problem.precision.endswith("x3"):
        return problem
    gram = replace(problem, symmetric="gram")
    try:
        return gram if best(gram, gpu, kernel).us < SYMMETRIC_GAIN * best(problem, gpu, kernel).us else problem
    except ValueError:  # no config of one is legal
        return problem


def in_full_if_faster(problem: Problem, gpu: Gpu, kernel: str = "") -> Problem:
    """The problem of a symmetric product of A by A transposed; or, where that should be faster, the same product in
    full: small ones, whose tiles the SMs multiply at once.

    In full it has invariant accumulation, with which elements above the diagonal have the bits of those opposite; else
    parts of K may be added in another order in each tile. For tf32x3 and bf16x3 see `as_gram_if_faster`.
    """
    if problem.precision.endswith("x3"):
        return problem
    whole = replace(problem, symmetric="", accumulation="invariant")
    try:
        is_faster = best(whole, gpu, kernel).us < WHOLE_GAIN * best(problem, gpu, kernel).us
    except ValueError:  # no config of one is legal
        return problem
    return whole if is_faster else problem


def timed(problem: Problem, gpu: Gpu, kernel: str = "") -> dict[Config, float]:
    """All legal configs that are estimated and their microseconds, the shortest estimate first.

    The first `ORDERED` are in their best order of tiles.
    """
    legal = _legal(problem, gpu, kernel)
    first = [_ordered(config, problem, gpu) for _, config in itertools.islice(legal, ORDERED)]
    return {config: us for us, config in heapq.merge(sorted(first, key=_us), legal, key=_us)}


def _legal(problem: Problem, gpu: Gpu, kernel: str) -> Iterator[tuple[float, Config]]:
    """Legal configs with their estimated microseconds, the shortest first.

    Configs are made, and each is estimated, only when no estimate that is still to be yielded is below their bound.
    """
    considered = [
        each
        for each in families.each()
        if (each.grouped or not problem.ragged)
        and (kernel == each.name or not (kernel or each.passed_over(problem, gpu)))
    ]
    # A heap by lower bounds of single configs and of several. Places keep equal ones in the order of the candidates.
    bounded = ((each, *part) for each in considered for part in each.bounded(problem, gpu))
    waiting: list[tuple[float, tuple[int, ...], Family, Config | Iterable[Config]]] = [
        (bound, (i,), each, configs) for i, (each, bound, configs) in enumerate(bounded)
    ]
    heapq.heapify(waiting)
    found: list[tuple[float, tuple[int, ...], Config]] = []
    while waiting or found:
        if waiting and not (found and found[0][0] < waiting[0][0]):
            _, place, family, content = heapq.heappop(waiting)
            if isinstance(content, Config):
                heapq.heappush(found, (family.estimate(content, problem, gpu).us, place, content))
                continue
            for i, config in enumerate(content):
                heapq.heappush(waiting, (family.lower_bound(config, problem, gpu), (*place, i), family, config))
        else:
            us, _, config = heapq.heappop(found)
            if config.fits(problem, gpu):
                yield us, config


def _ordered(config: Config, problem: Problem, gpu: Gpu) -> tuple[float, Config]:
    """A legal config in the order of tiles with the shortest estimate, and that."""
    family = families.family(config.kernel)
    configs = config, *family.orders(config, problem, gpu)
    found = sorted(((family.estimate(each, problem, gpu).us, each) for each in configs), key=_us)
    return next(pair for pair in found if pair[1] is config or pair[1].fits(problem, gpu))


def _has_same_grid(row: tuned.Row, problem: Problem) -> bool:
    """Whether the row's config has as many rows and columns of tiles for the problem as for its own, in a batch of the
    same size. Then it has as many waves, and each tile is split into as many parts, too."""
    tuned_for, config = row.problem, row.config
    return tuned_for.batch == problem.batch and config.tiles(tuned_for) == config.tiles(problem)


def _us(pair: tuple[float, Config]) -> float:
    return pair[0]


def _reason(problem: Problem, gpu: Gpu, kernel: str) -> str:
    """Why no config is legal: what the rules say of the last candidate, or of the default config if there is none."""
    *_, config = Config(kernel), *families.family(kernel).candidates(problem, gpu)
    return config.fits(problem, gpu).reason or "none of its tiles is for such operands"
