"""Which grids of the Hopper kernel assign their tiles to SMs. `claim.py` says how.

A grid that starts before the previous one has ended runs on the SMs that become free first. So of 68 to 131 programs
many share a GPC while others are idle, and what a GPC receives from L2 is limited. Nor do programs with neighbouring
tiles, which ask for the same rows at the same time, run on the SMs of one TPC, whose requests are merged.
"""

import functools

from tritonmm.config import Config
from tritonmm.families.hopper.rules import shared_bytes
from tritonmm.gpu import Gpu
from tritonmm.orders import Order
from tritonmm.problem import Problem

FEWEST = 1 / 3
"""Fraction of the SMs: tiles are assigned if there are more. Up to half of the SMs they take from 9.5% less to 2% more
time at K = 4096; below this fraction up to 4% more, for most numbers of tiles (autotune/results/h200-seats.csv)."""

SPREAD = 0.93
"""Fraction of the SMs up to which tiles that all share an operand are spread over TPCs and GPCs. With more tiles hardly
any SM is idle, so there is nothing to choose."""

SYSTEM_BYTES = 1024
"""Bytes of an SM's shared memory that the system reserves for each program (CUDA C++ Programming Guide: compute
capability 9.0)."""

SHALLOWEST = 2048
"""Bytes of a row of K from which on tiles are assigned. The next grid then starts 1 us later: with 1536 bytes,
64x5120x768 takes 4.96 us instead of 4.82, with 1024 4.6 instead of 3.9 (H200)."""


def affinity(config: Config, problem: Problem, gpu: Gpu) -> str:
    """How the tiles of a hopper config are assigned to SMs: "singles", "pairs", or "" where they are not.

    Only where there is at most one tile for each SM, of one consumer: with more, products take longer than what is
    gained (autotune/results/h200-placed.csv). With three rows of tiles or more, assigned tiles are up to 20% slower;
    the reason is not known.
    """
    whole = config.split_k == config.split_tail == 1 and not config.cluster
    if config.num_warps > 4 or not whole or problem.batch > 1:
        return ""
    if problem.epilogue.c or problem.promotes or problem.symmetric:  # C may be the output, and a tile be written twice
        return ""
    if config.block_m > 64 and config.block_k * problem.element_bytes > 128:
        return ""  # the producer has no registers left beside rows in boxes of two panels
    tiles = config.tiles(problem)
    share = config.order.launched(*tiles) / gpu.sms
    if not FEWEST < share <= 1 or problem.k * problem.element_bytes < SHALLOWEST:
        return ""
    if 2 * (shared_bytes(config, problem, gpu) + SYSTEM_BYTES) <= gpu.shared_bytes + SYSTEM_BYTES:
        return ""  # two programs fit an SM: some SMs would get two and others none, and wait for their tiles' claims
    if min(tiles) == 1:
        return "singles" if share <= SPREAD else ""
    return "pairs" if min(tiles) == 2 and _begins_with_a_pair(config.order, *tiles) else ""


@functools.lru_cache(maxsize=1024)
def _begins_with_a_pair(order: Order, tiles_m: int, tiles_n: int) -> bool:
    """Whether the first two tiles are neighbours along the shorter side."""
    first, second = (order.tile(i, tiles_m, tiles_n) for i in (0, 1))
    longer = int(tiles_n > tiles_m)
    return first is not None and second is not None and first[longer] == second[longer]
