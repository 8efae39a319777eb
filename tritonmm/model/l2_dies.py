"""The counts of a launch on a GPU of several dies, each of which has an L2 of its own.

The hardware assigns programs to the dies round robin: program i runs on die i % dies. So each die goes through its own
programs in waves, and its L2 is an LRU of what they read. What it misses comes from the cache behind all L2s, if there
is one, and else from memory. The waves that all dies run at the same time are one wave for that cache.

No GPU of several dies was measured for this library. docs/orders.md compares the simulator with the hit rates that
HipKittens publishes for an AMD MI355X.
"""

from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model import l2_waves
from tritonmm.model.l2_laws import Constants, DieCounts, concurrent
from tritonmm.orders import SplitMerge, SwizzleMerge
from tritonmm.problem import Problem

SAMPLED = 2
"""Dies that stand for all of them, evenly spaced."""

MOST_WAVES = 96
"""Waves that are looked at, all of them, of launches of no more. Of longer ones a sample is, which misses what a cache
remembers of many waves before; all of them would take seconds."""


def sampled(problem: Problem, config: Config, gpu: Gpu, constants: Constants) -> DieCounts:
    """The counts of a launch from some of its dies, and from some of their waves.

    Split-merge counts as swizzle-merge: its idle programs read nothing.
    """
    if isinstance(config.order, SplitMerge):
        config = config.ordered(SwizzleMerge(*config.order.factors, along=config.order.along))
    programs = concurrent(problem, config, gpu)
    k = problem.k / config.split_k
    asked = missed = 0.0
    for die in range(0, min(gpu.dies, programs), -(-gpu.dies // SAMPLED)):
        found = l2_waves.of_cache(
            problem, config, -(-programs // gpu.dies), gpu.l2_bytes / gpu.dies, constants, MOST_WAVES, gpu.dies, die
        )
        asked += (found.a.asked + found.b.asked) * k
        missed += found.missed
    share = missed / asked if asked else 1.0
    tiles_m, tiles_n = config.tiles(problem)
    total = config.programs(problem) * config.split_k * k
    total *= problem.m / tiles_m * problem.element_bytes + problem.n / tiles_n * problem.b_element_bytes
    return DieCounts(total, share * total, _read(problem, config, programs, gpu, constants, share * total))


def _read(problem: Problem, config: Config, programs: int, gpu: Gpu, constants: Constants, missed: float) -> float:
    """Bytes read from memory, where the L2s miss `missed`. All of it once, if the cache behind them holds it."""
    distinct, outputs = problem.distinct_operand_bytes, problem.batch * problem.m * problem.n
    if distinct + outputs * problem.out_element_bytes < gpu.llc_bytes * (1 - constants.spread):
        return distinct
    if not gpu.llc_bytes:
        return missed
    return l2_waves.of_cache(problem, config, programs, gpu.llc_bytes, constants, MOST_WAVES).missed
