"""The short sweep of `tritonmm tune --quick`: few GEMMs and configs that tell the constants of a GPU apart."""

import hashlib
from collections.abc import Collection
from dataclasses import replace

from tritonmm.autotune.bench import suite
from tritonmm.autotune.measuring import space
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.orders import RowMajor, SwizzleMerge
from tritonmm.problem import Problem
from tritonmm.selection import timed

SUITE = "quick"
"""Random GEMMs: `python -m tritonmm.autotune.studies.random_suite --count 48 --seed 31`."""

BEST, SPREAD = 4, 6
"""Configs of each random GEMM: those with the shortest estimates, and others at equal distances in the list of all that
are estimated to take at most `WITHIN` times as long as the shortest."""

WITHIN = 2.0

LARGE = (
    (4096, 8192, 8192), (8192, 8192, 4096), (12288, 8192, 4096), (6160, 8192, 4096),
    (4096, 16384, 2048), (16384, 8192, 2048), (10000, 8192, 4096), (8192, 16384, 4096),
)  # fmt: skip
"""m, n, k of GEMMs whose operands exceed L2: the tile order decides their traffic, which is counted."""

FACTORS = (1, 4, 8, 16)
"""Group sizes in which the best tile of each of them is measured."""


def configs(gpu: Gpu, avoid: Collection[Problem] = ()) -> dict[Problem, list[Config]]:
    """What is measured: the configs of each GEMM. Deterministic.

    avoid: GEMMs that are left out, because what is gained is judged by them.
    """
    found = {problem: in_orders(problem, gpu) for problem in large()}
    found |= {entry.problem(): spread(entry.problem(), gpu) for entry in suite.load(SUITE)}
    return {problem: of_problem for problem, of_problem in found.items() if problem not in avoid and of_problem}


def large() -> list[Problem]:
    """The problems of `LARGE`."""
    return [space.problem(m, n, k) for m, n, k in LARGE]


def spread(problem: Problem, gpu: Gpu) -> list[Config]:
    """Configs of a GEMM that are near in their estimated times, and not all alike."""
    estimates = timed(problem, gpu)
    ranked = [config for config, us in estimates.items() if us <= WITHIN * min(estimates.values())]
    rest = ranked[BEST:]
    return ranked[:BEST] + rest[:: max(1, -(-len(rest) // SPREAD))]


def in_orders(problem: Problem, gpu: Gpu) -> list[Config]:
    """The config with the shortest estimate in groups of several sizes."""
    best = next(iter(timed(problem, gpu)), None)
    if best is None:
        return []
    orders = (replace(best, order=SwizzleMerge(factor) if factor > 1 else RowMajor()) for factor in FACTORS)
    return [config for config in orders if config.fits(problem, gpu)]


def is_held_out(problem: Problem) -> bool:
    """Whether the fit must not see a GEMM: one of four, by a digest of its sizes."""
    p = problem
    return hashlib.sha256(f"{p.batch}x{p.m}x{p.n}x{p.k}".encode()).digest()[0] % 4 == 0
