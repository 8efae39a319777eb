"""Time of a config: a roofline with waves, for ranking configs where nothing was measured.

Three things go on at once, and each alone would take so long:

* the busiest SM works off its tiles (`_sm_seconds`): the mma of every step at the rate that the
  tile's shape allows or the latency of its loads, whichever is longer, and what a tile and a
  program cost besides;
* device memory moves the DRAM bytes of `tritonmm.l2`;
* L2 serves the bytes that the SMs read and takes those they write.

They overlap, but not perfectly: a product that is near two limits is slower than either, so the
three are joined by a p-norm instead of a maximum. The host's launch comes on top.

The copies that `Config.repack` asks for come before the product and overlap with nothing.

The constants below are leads and not fits: round numbers, read off a few runs on an H200
(2026-11-20) and used for every GPU. With them the best tile at 8192^3, 4096^3 and 16384 x 16384 x 4096 in
bf16 comes out between the times of a rested card and of one at its power limit, or close by. Expect
the ranking of configs that differ much to be right, and single times to be off by tens of percent.
"""

import math
from dataclasses import dataclass
from typing import Literal

from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model import l2
from tritonmm.model.l2 import Traffic
from tritonmm.problem import Problem

__all__ = ["Prediction", "predict", "speed_of_light"]

# Share of the datasheet's FLOP/s that power leaves to the mma. At 8192^3 in bf16 an H200 (700 W, 989
# TFLOP/s) reaches 800 TFLOP/s rested and 680 when products run back to back; this share and the
# efficiency of a 128 x 256 tile make the 800.
ACHIEVABLE_RATE = 0.85

# Share of the datasheet's bandwidth: a copy moves 4.3 of the H200's 4.8 TB/s.
ACHIEVABLE_BANDWIDTH = 0.9

# Share of it that copies of operands reach, whose rows have odd lengths: read off the unaligned products of
# autotune/results/h200-random60.csv to -random72.csv.
REPACK_BANDWIDTH = 0.72

# Bytes/s between L2 and one SM while all SMs ask.
L2_BANDWIDTH_PER_SM = 66e9

# Seconds from the request of a step's operands to their arrival, when L2 misses.
LOAD_LATENCY = 0.8e-6

# Seconds an SM needs to begin a program, be it one that retires at once.
PROGRAM_START = 0.5e-6

# Seconds of one launch, from the end of the kernel before.
LAUNCH = 3e-6

# Seconds of one more launch in a stream that is busy.
NEXT_LAUNCH = 2e-6

# The p of the p-norm: the larger, the closer to a maximum. With 4, swizzle-merge:1 is 22% slower than
# swizzle-merge:12 at 16384 x 16384 x 4096; measured are 17%.
OVERLAP = 4

# Seconds by which a second of DRAM transfers slows the mma even where it is hidden: it takes power that the mma lacks.
# A round number that suits the times of factors in autotune/results/h200-l2*.csv, all of them (2026-11-21).
DRAM_POWER = 0.1

# Side of a warp's part of the tile, in elements, at which fetching operands from shared memory takes as
# long as the mma itself.
OPERAND_SIDE = 4

# Warps that keep an SM busy: one on each of its quarters, which have a tensor core each.
BUSY_WARPS = 4

Bound = Literal["tensor cores", "device memory", "l2", "launch"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long a product takes, and why.

    seconds: launch and repack included; bound: the longest of the product's parts; waves: rounds of programs
    that run at the same time, the last one rarely full; traffic: that of the product.
    """

    seconds: float
    bound: Bound
    waves: int
    traffic: Traffic

    def __str__(self) -> str:
        waves = "1 wave" if self.waves == 1 else f"{self.waves} waves"
        return f"{self.seconds * 1e6:.1f} us, bound by {self.bound}, {waves}; {self.traffic}"


def predict(problem: Problem, config: Config, gpu: Gpu) -> Prediction:
    """The predicted time of `problem` done as `config` says on `gpu`. Deterministic.

    It does not ask `config.fits`: a config that cannot run gets a time too. An empty product takes
    none. The time never falls when K grows, and is never below `speed_of_light`.

    Raises ValueError for a `Table` order of another grid.
    """
    traffic = l2.of(problem, config, gpu)
    programs = l2.concurrent(problem, config, gpu)
    if not programs:
        return Prediction(0.0, "launch", 0, traffic)
    tiles_m, tiles_n = config.tiles(problem)
    tiles = tiles_m * tiles_n * problem.batch * config.split_k
    through_l2 = traffic.l2_read_bytes + traffic.dram_write_bytes
    parts: dict[Bound, float] = {
        "tensor cores": _sm_seconds(problem, config, gpu, tiles),
        "device memory": traffic.dram_bytes / (gpu.bandwidth * ACHIEVABLE_BANDWIDTH),
        "l2": through_l2 / (L2_BANDWIDTH_PER_SM * min(gpu.sms, tiles)),
    }
    together = parts | {"launch": LAUNCH}
    bound = max(together, key=lambda part: together[part])
    parts["tensor cores"] += DRAM_POWER * parts["device memory"]
    longest = max(parts.values())
    seconds = longest * sum((part / longest) ** OVERLAP for part in parts.values()) ** (1 / OVERLAP)
    seconds += repack_seconds(problem, config, gpu)
    return Prediction(LAUNCH + seconds, bound, -(-tiles // programs), traffic)


def repack_seconds(problem: Problem, config: Config, gpu: Gpu) -> float:
    """What the copies of `config.repack` add: a launch, and each byte read and written once."""
    if not config.repack:
        return 0.0
    copied = problem.operand_bytes(config.repack)
    return NEXT_LAUNCH + 2 * copied / (gpu.bandwidth * REPACK_BANDWIDTH)


def speed_of_light(problem: Problem, gpu: Gpu) -> float:
    """Seconds that no kernel can beat: all FLOPs at the peak rate, or all compulsory bytes at the peak
    bandwidth, whichever takes longer. Power, launch and tiles are left out. 0 for an empty product."""
    if not problem.m * problem.n * problem.batch:
        return 0.0
    flops = problem.flops / gpu.rate(problem.dtype, problem.precision)
    return max(flops, problem.compulsory_bytes / gpu.bandwidth)


def _efficiency(config: Config, resident: int) -> float:
    """Share of the achievable rate at which an SM multiplies, with `resident` programs on it.

    A warp that computes an s x s part of the tile fetches 2s operands for s^2 products, so its mma
    waits for shared memory by a share that falls as 1/s; and less than a warp for each quarter of
    the SM leaves some of them idle.
    """
    side = math.sqrt(config.block_m * config.block_n / config.num_warps)
    return side / (side + OPERAND_SIDE) * min(1.0, resident * config.num_warps / BUSY_WARPS)


def _sm_seconds(problem: Problem, config: Config, gpu: Gpu, tiles: int) -> float:
    """Time of the SM that gets the most tiles. Ragged tiles cost as much as whole ones."""
    most = -(-tiles // gpu.sms)
    resident = min(l2.programs_per_sm(problem, config, gpu), most)
    rate = gpu.rate(problem.dtype, problem.precision) * ACHIEVABLE_RATE / gpu.sms * _efficiency(config, resident)
    mma = 2 * config.block_m * config.block_n * config.block_k / rate
    # Every stage comes round once in the latency of its load and its own mma.
    step = max(mma, (LOAD_LATENCY + mma) / (config.num_stages * resident))
    steps = -(-problem.k // (config.block_k * config.split_k))
    sum_bytes = l2.PARTIAL_BYTES if config.split_k > 1 else problem.out_element_bytes
    store = config.block_m * config.block_n * sum_bytes / L2_BANDWIDTH_PER_SM
    # The first loads of a program and its stores go on while the other residents multiply.
    tile = steps * step + (LOAD_LATENCY + store) / resident
    if config.persistent:
        return most * tile + PROGRAM_START
    launched = config.order.launched(*config.tiles(problem)) * problem.batch * config.split_k
    return most * tile + -(-launched // gpu.sms) * PROGRAM_START / resident
