"""Times of two rivals, measured in pairs in one process so that both meet the same clocks and power."""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tritonmm.gpu import Gpu
from tritonmm.problem import Problem

MOST_SETS = 1024


@dataclass(frozen=True, slots=True)
class Regime:
    """How a GPU is kept while it is measured. It changes times by a fifth, since power is limited.

    rest: seconds of idleness before each replay; replay: seconds that one replay is made to take;
    rounds: replays of each rival; warm: seconds of work before the first round.
    """

    name: str
    rest: float
    replay: float
    rounds: int
    warm: float


REGIMES = {
    "burst": Regime("burst", rest=0.08, replay=0.001, rounds=11, warm=0.0),
    "sustained": Regime("sustained", rest=0.0, replay=0.02, rounds=15, warm=0.5),
}
"""burst: a rested card, at its highest clock; sustained: back to back, at its power limit."""


@dataclass(frozen=True, slots=True)
class Times:
    """Median microseconds of one product; torch_us is None where torch was not measured."""

    time_us: float
    torch_us: float | None = None


Replay = Callable[[], float]
"""Runs a rival once and returns the seconds that one product took."""


def paired(ours: Replay, torchs: Replay, regime: Regime, *, rest: Callable[[float], None] = time.sleep) -> Times:
    """The medians of both rivals over the regime's rounds, each round running both in random order.

    rest: how to wait, in seconds.
    """
    for _ in range(math.ceil(regime.warm / (2 * regime.replay))):
        ours()
        torchs()
    shuffle = random.Random(0)
    times = {ours: [], torchs: []}
    for _ in range(regime.rounds):
        for replay in shuffle.sample((ours, torchs), 2):
            if regime.rest:
                rest(regime.rest)
            times[replay].append(replay())
    return Times(median_us(times[ours]), median_us(times[torchs]))


def median_us(seconds: Sequence[float]) -> float:
    """The median of measured seconds, in microseconds. Raises ValueError for what no clock measures."""
    unreal = [s for s in seconds if not (math.isfinite(s) and s > 0)]
    if unreal or not seconds:
        raise ValueError(f"cannot take the median of {list(seconds)!r}: needs times, finite and above 0")
    return statistics.median(seconds) * 1e6


def set_count(problem: Problem, gpu: Gpu) -> int:
    """Sets of operands to rotate through, so that a launch finds nothing of its own in L2.

    Together they span the L2 twice. Beyond MOST_SETS, for problems of a few KB, the last ones are missing.
    """
    return min(max(1, math.ceil(2 * gpu.l2_bytes / max(1, problem.compulsory_bytes))), MOST_SETS)


def launch_count(seconds: float, sets: int, replay: float) -> int:
    """Launches of `seconds` each that fill one replay, a multiple of `sets` so that each counts the same."""
    return sets * max(1, math.ceil(replay / (seconds * sets)))


class GraphReplay:
    """Launches captured in one CUDA graph; a call replays it and returns the GPU's seconds a launch.

    launch: called as launch(a, b, out); it must enqueue on the current stream and not synchronise.
    sets: the (a, b, out) to rotate through. seconds: how long one replay is made to take.
    """

    def __init__(self, launch: Callable, sets: Sequence[tuple[torch.Tensor, ...]], seconds: float):
        # Compiling, loading and workspaces are done with before the capture, on a stream as it uses one.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for operands in sets:
                launch(*operands)
            stream.synchronize()
            start, end = _event(), _event()
            start.record()
            for operands in sets:
                launch(*operands)
            end.record()
        torch.cuda.synchronize()
        # Of short launches this is the host's time, too long: the replay is then shorter than asked.
        once = start.elapsed_time(end) * 1e-3 / len(sets)
        self.launches = launch_count(max(once, 1e-6), len(sets), seconds)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for i in range(self.launches):
                launch(*sets[i % len(sets)])
        self()  # the first replay uploads the graph

    def __call__(self) -> float:
        start, end = _event(), _event()
        # The GPU spins for about 0.1 ms while the host enqueues, so that the events enclose no wait for it.
        torch.cuda._sleep(200_000)
        start.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / self.launches

    def free(self) -> None:
        """Give the graph and its memory back."""
        torch.cuda.synchronize()
        self.graph.reset()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
