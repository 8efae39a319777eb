"""The time of kernels that load operands one element at a time, since their alignment allows no more."""

from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model.record import Shared
from tritonmm.problem import Problem

REGISTERS = 65536
"""Of an SM, for all programs that it runs at once."""

THREAD_REGISTERS = 255
"""The most that a thread can have."""

VALUE_REGISTERS = 2.4
"""Registers of an element of a step, with its address and mask; and of a sum, with what is beside it. Five of six
kernels are within 25% of what ptxas says."""

MOST_VALUES = 128
"""Elements of a step and sums that a thread has registers for; with more it spills."""

MOST_ELEMENTS = 80
"""The same of the elements alone where K is the contiguous dimension of both operands: ptxas then spills a thousand
bytes of kernels that spill nothing in the other layouts."""


def resident(config: Config, gpu: Gpu) -> int:
    """Programs for which an SM has registers."""
    values = (config.block_m + config.block_n) * config.block_k + config.block_m * config.block_n
    most = THREAD_REGISTERS * config.num_warps * (32 if gpu.is_nvidia else 64)
    return max(1, int(REGISTERS / min(values * VALUE_REGISTERS, most)))


def loads_us(config: Config, problem: Problem, gpu: Gpu, programs: int, shared: Shared) -> float:
    """Microseconds of so many programs.

    No copies of 2 bytes run ahead: in each step a program waits for memory, stores to shared memory and waits for its
    threads, one after the other. The programs that an SM runs at once wait at the same time, and load after each other.
    What lies beyond the matrices is not loaded.
    """
    p = problem
    step = (min(config.block_m, p.m) + min(config.block_n, p.n)) * min(config.block_k, p.k)
    a_thread = (config.block_m + config.block_n) * config.block_k / (config.num_warps * (32 if gpu.is_nvidia else 64))
    rounds, most = -(-programs // (gpu.sms * resident(config, gpu))), -(-programs // gpu.sms)  # on one SM
    wait_us = rounds * (shared.element_wait_us + a_thread * shared.element_us)
    return max(1, -(-p.k // (config.block_k * config.split_k))) * (wait_us + most * step / shared.element_rate * 1e6)


def spills(config: Config, layout: str) -> bool:
    """Whether a thread has no registers for the addresses of its elements.

    57x10385x5735 takes 1568 us in tiles of 128 x 64 x 64, which spill, and 179 us in 64 x 64 x 64 (h200-random66.csv).
    """
    threads = 32 * config.num_warps
    elements, sums = (config.block_m + config.block_n) * config.block_k, config.block_m * config.block_n
    return elements + sums > MOST_VALUES * threads or (layout == "nt" and elements > MOST_ELEMENTS * threads)
