"""The tile order that is chosen for tiles of a shape: the group size that minimizes the operand bytes per wave."""

import math

from tritonmm.gpu import Gpu
from tritonmm.orders import SwizzleMerge
from tritonmm.problem import Problem

WHOLE = 1.5
"""How much longer than best a group of tiles may be that is all of the output's shorter side, along which neighbours
share no less than along the other: see `group_order`."""


def group_order(problem: Problem, gpu: Gpu, block_m: int, block_n: int) -> SwizzleMerge:
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
