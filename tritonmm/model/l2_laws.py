"""What every form of the L2 model knows: its constants, what a launch wants of L2, and what L2 remembers."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.problem import Problem


@dataclass(frozen=True, slots=True)
class Constants:
    """What is fitted; every number has a meaning of its own.

    capacity: bytes that L2 holds for all SMs, as a share of its size. Each half keeps a copy of what its SMs read,
        so it is about a half.
    spread: how gradually L2 forgets, as a share of the capacity: what was touched (1 - spread) of it ago is there
        for sure, (1 + spread) ago gone for sure. A hashed cache with approximate replacement is no step.
    stagger: over which share of a tile's time the programs of a plain launch begin, in their order: a program begins
        when another has ended. Those of a wave that begin last are still at a panel when the next wave comes to it.
    drift: standard deviation of the lag of a persistent program after one tile, as a share of the time of a tile of
        `DRIFT_TILE` elements. The lag is a random walk over tiles; programs that share a panel walk like their mean.
    partner: sharers of a tile's other panel at which half of the requests merge that could: with fewer, the
        programs that want this panel wait for the other one at different times.
    merged: share of the requests by different TPCs of a `GROUP` of SMs that merge while the programs are together.
    apart: steps after which persistent programs are too far apart for that, by a factor of e.
    scattered: share of the requests by different TPCs that merge in a plain launch.
    """

    capacity: float
    spread: float
    stagger: float
    drift: float
    partner: float
    merged: float
    apart: float
    scattered: float


GROUP = 12
"""SMs, of consecutive programs, whose requests may merge. Of 4 to 33 it is the number with which the fitted points come
out best; on an H200 6 SMs are a CPC, and 16 or 18 a GPC."""

DRIFT_TILE = 128 * 256
"""Elements of the tile whose time `Constants.drift` counts in: programs part by as much time whatever their tile is."""

STEP = 64
"""Elements of K in the step that `Constants.apart` counts: that of the measured configs."""

# Bytes of a partial sum: products are summed in fp32.
PARTIAL_BYTES = 4

# Registers of a thread, read off what ptxas made of the tile kernel for sm_90: 117 with 32 accumulators, 184 with 64,
# 249 with 128, and never more than 255.
REGISTERS_PER_ACCUMULATOR = 2
OTHER_REGISTERS = 55
MOST_REGISTERS = 255


class Panels(NamedTuple):
    """What all programs of a launch want of one operand, in bytes a unit of K.

    asked: all of it; paired: what both SMs of a TPC want; nearby: summed over waves and groups of `GROUP` SMs, each
    panel of a group once; distinct: summed over waves, each panel of a wave once.
    """

    asked: float
    paired: float
    nearby: float
    distinct: float

    @property
    def sharers(self) -> float:
        """Programs of a wave that want the same panel, on average."""
        return self.asked / self.distinct

    @property
    def tpcs(self) -> float:
        """TPCs of a wave that want the same panel, on average."""
        return (self.asked - self.paired) / self.distinct

    @property
    def groups(self) -> float:
        """Groups of `GROUP` SMs of a wave that want the same panel, on average."""
        return self.nearby / self.distinct


class Counts(NamedTuple):
    """A launch in lockstep: `missed` bytes are fetched from device memory by `waves` waves."""

    a: Panels
    b: Panels
    missed: float
    waves: float


class DieCounts(NamedTuple):
    """Bytes of a launch on a GPU of several dies: `asked` of their L2s, `missed` by these, and `read` from memory."""

    asked: float
    missed: float
    read: float


def sum_bytes(problem: Problem, config: Config) -> int:
    """Bytes of an element that a program writes."""
    return PARTIAL_BYTES if config.split_k > 1 else problem.out_element_bytes


def scaled(exact: float, asked: float, paired: float, nearby: float, distinct: float) -> Panels:
    """What a sample found, scaled to the bytes that all programs ask for, which are known."""
    return Panels(exact, paired * exact / asked, nearby * exact / asked, distinct * exact / asked)


def held_bytes(gpu: Gpu, constants: Constants) -> float:
    """Bytes that L2 holds of what all SMs read. 1 / capacity is how many copies a line has in an L2 of two parts;
    every further part is taken to add as many as the second, and an L2 of one part holds all of its size."""
    return gpu.l2_bytes / (1 + (gpu.l2_partitions - 1) * (1 / constants.capacity - 1))


def written_share(gpu: Gpu, constants: Constants) -> float:
    """Room that a written byte takes, as a share of what a byte takes that SMs read: it is in one part of L2 alone."""
    return held_bytes(gpu, constants) / gpu.l2_bytes if gpu.l2_bytes else 1.0


def survives(touched, held: float, constants: Constants):
    """The share of lines that are still in L2 after `touched` bytes, of an L2 that holds `held`."""
    if not held:
        return np.zeros(np.shape(touched))
    return np.clip(0.5 + (1 - touched / held) / (2 * constants.spread), 0, 1)


def staggered(config: Config, constants: Constants) -> float:
    """The share of a tile's time over which the programs of a wave begin: persistent ones begin together."""
    return 0.0 if config.persistent else constants.stagger


def time_beyond(distance: float) -> float:
    """The mean share of its time that a random walk is further than `distance` from its start, on either side.

    distance: in standard deviations of the walk at its end. After the share u of its time it is further away with a
    probability of erfc(distance / sqrt(2 u)), and this is the integral over u from 0 to 1.
    """
    squared = distance * distance
    far = (1 + squared) * math.erfc(distance * math.sqrt(0.5))
    return far - distance * math.sqrt(2 / math.pi) * math.exp(-squared / 2)


def programs_per_sm(problem: Problem, config: Config, gpu: Gpu) -> int:
    """Programs that one SM holds: by shared memory, registers and warps, and one when persistent."""
    if config.persistent:
        return 1
    threads = config.num_warps * (32 if gpu.is_nvidia else 64)
    accumulators = config.block_m * config.block_n // threads
    registers = threads * min(REGISTERS_PER_ACCUMULATOR * accumulators + OTHER_REGISTERS, MOST_REGISTERS)
    file = 65_536 if gpu.is_nvidia else 131_072
    return max(1, min(gpu.shared_bytes // config.shared_bytes(problem, gpu), file // registers, 2048 // threads))


def concurrent(problem: Problem, config: Config, gpu: Gpu) -> int:
    """Programs that run at the same time: a wave, or the whole launch where that is less."""
    launched = config.order.launched(*config.tiles(problem)) * problem.batch * config.split_k
    return min(gpu.sms // config.ctas * programs_per_sm(problem, config, gpu), launched)
