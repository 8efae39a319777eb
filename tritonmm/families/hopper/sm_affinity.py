"""Which grids of the Hopper kernel deal their tiles by SM; `claim.py` says how, and why."""

import functools

from tritonmm.config import Config
from tritonmm.families.hopper.rules import shared_bytes
from tritonmm.gpu import Gpu
from tritonmm.orders import Order
from tritonmm.problem import Problem

FEWEST = 1 / 3
"""The share of the SMs that more tiles must have. Between it and half of them dealt tiles take 2% longer or up to 9.5%
less, with K of 4096; with fewer, up to 4% longer for most numbers of tiles and 11% less for 36 and 38
(autotune/results/h200-seats.csv)."""

SPREAD = 0.93
"""The share of the SMs up to which tiles that all share an operand are dealt over all TPCs and GPCs. With more there is
hardly an SM that could be left idle."""

SYSTEM_BYTES = 1024
"""Of an SM's shared memory, what the system takes for each program."""

SHALLOWEST = 2048
"""Bytes of a line of K from which on tiles are dealt. The next grid starts 1 us later than it could: with 1536 bytes
64x5120x768 takes 4.96 us so and 4.82 without, with 1024 4.6 and 3.9."""


def seats(config: Config, problem: Problem, gpu: Gpu) -> str:
    """How the tiles are dealt: "singles", "pairs", or "" where programs take those of their numbers, as they come.

    Only where there is one tile for each SM at most, of one consumer: with more the products take longer than what is
    gained (autotune/results/h200-placed.csv). In three rows or more dealt tiles are slower than those that come
    anywhere, by up to 20%; why is not known.
    """
    whole = config.split_k == config.split_tail == 1 and not config.cluster
    if config.kernel != "hopper" or config.num_warps > 4 or not whole or problem.batch > 1:
        return ""
    if problem.epilogue.c or problem.promotes:  # C may be the output, and a tile may be written twice
        return ""
    if config.block_m > 64 and config.block_k * problem.element_bytes > 128:
        return ""  # the loader has no registers for a seat beside rows in boxes of two panels
    if 2 * (shared_bytes(config, problem) + SYSTEM_BYTES) <= gpu.shared_bytes + SYSTEM_BYTES:
        return ""  # two programs fit an SM: some SMs would get two and others none, and wait for their tiles' claims
    tiles = config.tiles(problem)
    share = config.order.launched(*tiles) / gpu.sms
    if not FEWEST < share <= 1 or problem.k * problem.element_bytes < SHALLOWEST:
        return ""
    if min(tiles) == 1:
        return "singles" if share <= SPREAD else ""
    return "pairs" if min(tiles) == 2 and _begins_with_a_pair(config.order, *tiles) else ""


@functools.lru_cache(maxsize=1024)
def _begins_with_a_pair(order: Order, tiles_m: int, tiles_n: int) -> bool:
    """Whether the first two tiles share the line of the longer side."""
    first, second = (order.tile(i, tiles_m, tiles_n) for i in (0, 1))
    longer = int(tiles_n > tiles_m)
    return first is not None and second is not None and first[longer] == second[longer]
