"""Problem -> Config: what was measured to be fastest, or else the legal config with the shortest estimated time."""

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch

from tritonmm import gpu as gpus
from tritonmm import tuned
from tritonmm.config import Config
from tritonmm.families.hopper.rules import HAS_CLUSTERS
from tritonmm.families.mixed_input import model as streams
from tritonmm.families.skinny import model as skinny
from tritonmm.gpu import Gpu
from tritonmm.model.estimates import SPLIT_BY, Tile, crossing, estimates, tiles_of
from tritonmm.orders import SwizzleMerge
from tritonmm.problem import KINDS, Problem, kind_name

AGREES = 1.02
"""How much longer than the shortest of all the estimate of a neighbour's config may be.

Of the winners of 360 random products (h200-random60.csv to -random72.csv in autotune/results) it lets 31 replace the
estimates' choice for a neighbour; the 28 times that both were measured they gain 2.2% in the mean and lose 18% at
worst. With 1.05 it would be 62, which gain nothing in the mean.
"""

NARROW, LONG = 64, 512
"""The skinny kernel is considered for outputs of at most NARROW rows or columns by at least LONG of the other."""

WALKING = ("hopper", "persistent")
"""The kernels that walk the tiles, and load by TMA."""

IN_PAIRS = ("hopper", (128, 256, 64))
"""The tile that is also tried in clusters of two, where the lines of both operands cross cache lines: SMs then receive
less than half of what they could, and a cluster asks for a third less. 32 products of 1000^3 take 108 us so, 129 in the
best tiles of one CTA, and torch 116 (H200, autotune/results/h200-pairs.csv). Elsewhere clusters gained too little: a
launch costs 1.25 us more (autotune/results/h200-clusters.csv)."""


WHOLE = 1.5
"""How much longer than best a group of tiles may be that is all of the output's shorter side, along which neighbours
share no less than along the other: see `_order`."""


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
    m: int, n: int, k: int, *, dtype: str | torch.dtype = "bf16", layout: str = "nn", gpu: Gpu | str | None = None
) -> Config:
    """The config that `tritonmm.matmul` would use for an m x k by k x n product.

    dtype: a name of `problem.KINDS`, such as "bf16" or "tf32", or a dtype of torch; layout: "nn", "nt", "tn" or "tt";
    gpu: a `Gpu`, a name that `gpu.spec` knows, or None for this machine's (the H200 where there is none).
    Deterministic, given the tuned tables.
    Raises ValueError for unknown names or negative sizes.
    """
    if not isinstance(gpu, Gpu):
        gpu = gpus.default() if gpu is None else gpus.spec(gpu)
    return choose(Problem.dense(m, n, k, layout=layout, **KINDS[kind_name(dtype)]), gpu)


def choose(problem: Problem, gpu: Gpu, kernel: str = "") -> Config:
    """The config of `best`."""
    return best(problem, gpu, kernel).config


def best(problem: Problem, gpu: Gpu, kernel: str = "") -> Choice:
    """The legal config, of any kernel family or of the one that is named, that should be fastest.

    That is the tuned tables' for this problem; where they have none, a neighbour's that the estimates do not speak
    against; and else the one with the shortest estimate. Raises ValueError where no config of that family is legal.
    """
    return _remembered(tuned.tables(gpu))(problem, gpu, kernel)


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
    for row in tables.near(problem):
        if kernel in ("", row.config.kernel):
            us, config = min(_moved(row, problem, gpu), key=lambda pair: pair[0], default=(math.inf, None))
            if config is not None and us <= shortest.us * AGREES:
                above = f"its estimate is {us / shortest.us - 1:.1%} above the shortest"
                return Choice(us, config, f"measured to be fastest for {row.problem} nearby, and {above}")
    return shortest


def estimated(problem: Problem, gpu: Gpu, kernel: str = "") -> Choice:
    """`best` without tables: the config with the shortest estimate."""
    least, reason = math.inf, ""
    found: Config | None = None
    for config, times in _candidates(problem, gpu, kernel):
        shorter = [pair for pair in times if pair[0] < least]  # first, since to see what is legal takes longer
        if shorter:
            fit = config.fits(problem, gpu)
            reason = fit.reason or reason
            for us, split in _legal(config, shorter, problem, gpu) if fit else ():
                if us < least:
                    least, found = us, split
    if found is None:
        raise ValueError(f"no config for {problem} on {gpu.name}: {reason or _reason(problem, gpu, kernel)}")
    return Choice(least, found, "the shortest estimate of the configs considered")


def _reason(problem: Problem, gpu: Gpu, kernel: str) -> str:
    """Why a kernel has no candidates: what its rules say of any config."""
    fit = Config(kernel, persistent=kernel in WALKING).fits(problem, gpu)
    return fit.reason or "none of its tiles is for such operands"


def passed_over(problem: Problem, gpu: Gpu, kernel: str) -> str:
    """Why a kernel's legal configs are not considered unless it is named, or "" if they are."""
    if kernel == "skinny" and not _is_skinny(problem):
        return f"considered only for at most {NARROW} rows or columns by at least {LONG}, K above 0"
    if kernel == "weights" and not _is_stream(problem, gpu):
        return "considered only on sm_90, for M and K above 0"
    return ""


def timed(problem: Problem, gpu: Gpu, kernel: str = "") -> dict[Config, float]:
    """All legal configs that are estimated and their microseconds, the shortest estimate first."""
    found: list[tuple[float, Config]] = []
    for config, times in _candidates(problem, gpu, kernel):
        if config.fits(problem, gpu):
            found += _legal(config, times, problem, gpu)
    return {config: us for us, config in sorted(found, key=lambda pair: pair[0])}


def _legal(
    config: Config, times: list[tuple[float, int]], problem: Problem, gpu: Gpu
) -> Iterator[tuple[float, Config]]:
    """Those of `times` whose split is legal, where the config without one is."""
    for us, splits in times:
        split = _split(config, splits) if splits > 1 else config
        if splits == 1 or split.fits(problem, gpu):
            yield us, split


def _split(config: Config, parts: int) -> Config:
    """The config with its tiles split in so many parts, all of them or those of the tail."""
    if SPLIT_BY.get(config.kernel) == "split_k":
        return replace(config, split_k=parts)
    return replace(config, split_tail=parts)


def _candidates(problem: Problem, gpu: Gpu, kernel: str) -> Iterator[tuple[Config, list[tuple[float, int]]]]:
    """Configs that are worth it, be they legal or not, each with its estimated microseconds by its split."""
    if kernel == "skinny" or (not kernel and _is_skinny(problem)):
        for us, config in skinny.timed(problem, gpu):
            yield config, [(us, 1)]
    if kernel == "weights" or (not kernel and _is_stream(problem, gpu)):
        for us, config in streams.timed(problem, gpu):
            yield config, [(us, 1)]
    for tile in tiles_of(problem):
        if kernel in ("", tile.kernel):
            order = _order(problem, gpu, *tile.blocks[:2])
            # Copies are for TMA: the others load as narrowly as K is divisible, wherever the lines begin.
            copies = problem.unaligned if tile.kernel in WALKING else ""
            for relayout in ("", copies) if copies else ("",):
                config = _config(tile, order, relayout)
                yield config, estimates(config, tile, problem, gpu)
                if HAS_CLUSTERS and (tile.kernel, tile.blocks) == IN_PAIRS and all(crossing(problem, relayout)):
                    pair = _pair(config, problem, gpu)
                    yield pair, estimates(pair, tile, problem, gpu)


def _moved(row: tuned.Row, problem: Problem, gpu: Gpu) -> Iterator[tuple[float, Config]]:
    """What was tuned for one problem as it is for another nearby, where it is legal and has an estimate, and that.

    The order's factor and what splits K follow the number of tiles.
    """
    config = row.config
    tiles_m, tiles_n = config.tiles(problem)
    if config.kernel == "skinny":
        then_m, then_n = config.tiles(row.problem)
        programs = then_m * then_n * row.problem.batch * config.split_k
        steps = -(-problem.k // config.block_k)
        splits = max(1, min(round(programs / (tiles_m * tiles_n * problem.batch)), steps))
        config = replace(config, split_k=splits)
        if config.fits(problem, gpu):
            yield skinny.estimate_us(config, problem, gpu), config
        return
    if config.kernel == "weights":
        for shared in streams.shares(config, problem, gpu):
            if shared.fits(problem, gpu):
                yield streams.estimate_us(shared, problem, gpu), shared
        return
    blocks = *config.cta_tile, config.block_k
    same = (t for t in tiles_of(problem) if (t.kernel, t.blocks) == (config.kernel, blocks))
    tile = min(same, key=lambda t: t.num_warps != config.num_warps, default=None)
    if isinstance(config.order, SwizzleMerge):
        config = replace(config, order=_order(problem, gpu, config.block_m, config.block_n))
    config = _split(config, 1)
    if tile and config.split_k == 1 and config.fits(problem, gpu):
        yield from _legal(config, estimates(config, tile, problem, gpu), problem, gpu)


def _is_skinny(problem: Problem) -> bool:
    """Whether the skinny kernel is worth an estimate: the output has few rows, or few columns, and is long."""
    if problem.sum_dtype != "fp32" or problem.element_bytes == 1:
        return False
    return problem.k > 0 and min(problem.m, problem.n) <= NARROW and max(problem.m, problem.n) >= LONG


def _is_stream(problem: Problem, gpu: Gpu) -> bool:
    """Whether the weights kernel is worth an estimate: weights of a byte, on Hopper."""
    mixed = problem.element_bytes == 2 and problem.b_element_bytes == 1
    return mixed and gpu.capability == 90 and problem.m > 0 and problem.k > 0


@functools.lru_cache(maxsize=4096)
def _config(tile: Tile, order: SwizzleMerge, relayout: str) -> Config:
    block_m, block_n, block_k = tile.blocks
    return Config(
        kernel=tile.kernel,
        block_m=block_m,
        block_n=block_n,
        block_k=block_k,
        num_stages=tile.num_stages,
        num_warps=tile.num_warps,
        persistent=tile.kernel in WALKING,
        order=order,
        relayout=relayout,
    )


def _pair(config: Config, problem: Problem, gpu: Gpu) -> Config:
    """Two of the config's tiles, one above the other, as one of a cluster of two CTAs that share B."""
    block_m = 2 * config.block_m
    return replace(config, block_m=block_m, cluster="m", order=_order(problem, gpu, block_m, config.block_n))


def _order(problem: Problem, gpu: Gpu, block_m: int, block_n: int) -> SwizzleMerge:
    """Groups of as many tiles as make a wave's operands least, along the side on which programs next to each other
    share what is larger.

    A wave of `sms` tiles, f tall and sms / f wide, reads f * block_m rows of A and sms / f * block_n columns of B.
    Their sum is least where both are equal. The SMs read faster what their neighbours read too. So tiles that are
    taller than wide have neighbours with the same rows: 2160x1408x3904 takes 38.9 us so in tiles of 192 x 64, and 43.5
    along the columns. And the shorter side of the output is grouped whole, if that makes waves little longer than they
    should be: 14240x448x8384 takes 167 us in tiles of 192 x 128 with the four tiles of a row next to each other, and
    189 in groups of nine rows (h200-orders.csv and h200-orders-2.csv in autotune/results).
    """
    tiles_m, tiles_n = max(1, -(-problem.m // block_m)), max(1, -(-problem.n // block_n))
    tall = max(1, round(math.sqrt(gpu.sms * block_n / block_m)))
    wide = max(1, round(math.sqrt(gpu.sms * block_m / block_n)))
    if 1 < tiles_n < tiles_m and tiles_n <= wide * (WHOLE if block_m >= block_n else 1):
        return SwizzleMerge(tiles_n, along="n")
    if tiles_m <= tiles_n and tiles_m <= tall * (WHOLE if block_n >= block_m else 1):
        return SwizzleMerge(tiles_m)
    return SwizzleMerge(min(tiles_n, wide), along="n") if block_m > block_n else SwizzleMerge(min(tiles_m, tall))
