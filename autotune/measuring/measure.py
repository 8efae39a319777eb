"""Times of two rivals, measured in pairs in one process so that both meet the same clocks and power."""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tritonmm.gpu import Gpu
from tritonmm.launch import workspace
from tritonmm.problem import Problem

MOST_SETS = 1024

GRAPH_SECONDS = 0.001
"""What one captured graph is made to take."""

PRECISE = 0.002
"""The relative standard error of the median ratio at which no further round is measured."""


@dataclass(frozen=True, slots=True)
class Regime:
    """How a GPU is kept while it is measured. It changes times by a fifth, since power is limited.

    rest: seconds of idleness before each replay; replay: seconds that one replay is made to take;
    fewest, most: rounds, each with a replay of each rival; warm: seconds of work before the first.
    """

    name: str
    rest: float
    replay: float
    fewest: int
    most: int
    warm: float


REGIMES = {
    "burst": Regime("burst", rest=0.08, replay=GRAPH_SECONDS, fewest=7, most=13, warm=0.0),
    "sustained": Regime("sustained", rest=0.0, replay=0.02, fewest=7, most=25, warm=0.5),
    "quick": Regime("quick", rest=0.005, replay=GRAPH_SECONDS, fewest=3, most=3, warm=0.0),
    "short": Regime("short", rest=0.01, replay=GRAPH_SECONDS, fewest=7, most=7, warm=0.0),
}
"""burst: a rested card, at its highest clock; sustained: back to back, at its power limit.

quick, short: to tell configs apart that differ by more than a few percent, in a tenth or a third of a second.
"""


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds of one product; torch_us is None where torch was not measured."""

    time_us: float
    torch_us: float | None = None


@dataclass(frozen=True, slots=True)
class Paired:
    """What two rivals took: seconds of one product, a round each; and the SM clock in MHz while they ran.

    The clocks are None where they cannot be read. refusal: why torch computes no such product, where it does not; then
    only ours was measured.
    """

    ours: tuple[float, ...]
    torchs: tuple[float, ...]
    ours_mhz: float | None = None
    torch_mhz: float | None = None
    refusal: str = ""

    @property
    def times(self) -> Times:
        """The median of each rival."""
        torch_us = statistics.median(self.torchs) * 1e6 if self.torchs else None
        return Times(statistics.median(self.ours) * 1e6, torch_us)

    @property
    def ratios(self) -> list[float]:
        """torch's time over ours, round by round: above 1 ours is faster; none where torch was not measured."""
        return [torchs / ours for ours, torchs in zip(self.ours, self.torchs, strict=True)] if self.torchs else []

    @property
    def ratio(self) -> float | None:
        """The median of the rounds' ratios, which cancels what disturbs both rivals of a round."""
        return statistics.median(self.ratios) if self.torchs else None

    @property
    def error(self) -> float:
        """The standard error of `ratio`, relative to it; of our own time where there is no ratio."""
        values = self.ratios or self.ours
        return standard_error(values) / statistics.median(values)


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the values' median, infinite for fewer than two.

    It is read off the values that bound the median with 90% confidence (McKean and Schrader, 1984):
    of seven values, the second and the sixth. One disturbed round cannot raise it, and values that
    jump between two levels cannot hide from it, as they do from the median absolute deviation.
    """
    count = len(values)
    if count < 2:
        return math.inf
    normal = 1.645  # 90% of the normal distribution lie within so many sigmas
    beyond = max(0, round((count - 1) / 2 - normal * math.sqrt(count) / 2))
    ascending = sorted(values)
    return (ascending[-1 - beyond] - ascending[beyond]) / (2 * normal)


Meanwhile = Callable[[], object]

Replay = Callable[[float, Meanwhile], float]
"""replay(seconds, meanwhile) runs a rival for about `seconds` and returns the seconds that one product took.

`meanwhile` is called while the GPU works.
"""


def paired(
    ours: Replay,
    torchs: Replay | None,
    regime: Regime,
    *,
    clock: Callable[[], float | None] = lambda: None,
    rest: Callable[[float], None] = time.sleep,
) -> Paired:
    """Both rivals' times, a round at a time, until their ratio is `PRECISE` or the regime has no more rounds.

    torchs: None where torch refuses the product; then ours is measured alone, as precisely.

    The order within a round is random, and the next round has the other one, so that running first
    favours nobody. clock: the SM clock in MHz, read during each replay; rest: how to wait, in seconds.
    Raises ValueError for a time that no clock measures.
    """
    rivals = (ours, torchs) if torchs else (ours,)
    for _ in range(math.ceil(regime.warm / (len(rivals) * regime.replay))):
        for replay in rivals:
            replay(regime.replay, _nothing)
    shuffle = random.Random(0)
    times = {replay: [] for replay in (ours, torchs)}
    clocks = {replay: [] for replay in (ours, torchs)}

    def found() -> Paired:
        return Paired(tuple(times[ours]), tuple(times[torchs]), _median(clocks[ours]), _median(clocks[torchs]))

    order = rivals
    for done in range(regime.most):
        if done >= regime.fewest and found().error < PRECISE:
            break
        order = order[::-1] if done % 2 else shuffle.sample(order, len(order))
        for replay in order:
            if regime.rest:
                rest(regime.rest)
            seconds = replay(regime.replay, lambda read=clocks[replay]: read.append(clock()))
            if not (math.isfinite(seconds) and seconds > 0):
                raise ValueError(f"a replay took {seconds!r} seconds; a time is finite and above 0")
            times[replay].append(seconds)
    return found()


def _median(readings: Sequence[float | None]) -> float | None:
    known = [reading for reading in readings if reading is not None]
    return statistics.median(known) if known else None


def _nothing() -> None:
    pass


def set_count(problem: Problem, gpu: Gpu) -> int:
    """Sets of operands to rotate through, so that a launch finds nothing of its own in L2.

    Together they span the L2 twice. Beyond MOST_SETS, for problems of a few KB, the last ones are missing.
    """
    return min(max(1, math.ceil(2 * gpu.l2_bytes / max(1, problem.compulsory_bytes))), MOST_SETS)


def launch_count(seconds: float, sets: int) -> int:
    """Launches of `seconds` each that fill GRAPH_SECONDS, a multiple of `sets` so that each counts the same."""
    return sets * max(1, math.ceil(GRAPH_SECONDS / (seconds * sets)))


class GraphReplay:
    """Launches captured in one CUDA graph of at least GRAPH_SECONDS, which a `Replay` replays back to back.

    launch: called as launch(a, b, out); it must enqueue on the current stream and not synchronise.
    sets: the (a, b, out) to rotate through.
    """

    def __init__(self, launch: Callable, sets: Sequence[tuple[torch.Tensor, ...]]):
        self.sets = sets  # the graph has their addresses only
        self.flags = workspace.Reserve(sets[0][0].device)
        # Compiling, loading and workspaces are done with before the capture, on a stream as it uses one.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for operands in sets:
                launch(*operands)
            stream.synchronize()
            probe = sets[:32]
            start, end = _event(), _event()
            # About 0.1 ms a launch, for the host to enqueue them all before the first one starts.
            torch.cuda._sleep(200_000 * len(probe))
            start.record()
            for operands in probe:
                launch(*operands)
            end.record()
        torch.cuda.synchronize()
        once = max(start.elapsed_time(end) * 1e-3 / len(probe), 1e-6)
        self.launches = launch_count(once, len(sets))
        self.seconds = once * self.launches
        self.graph = torch.cuda.CUDAGraph()
        with workspace.borrowed(self.flags), torch.cuda.graph(self.graph):
            for i in range(self.launches):
                launch(*sets[i % len(sets)])
        self.graph.replay()  # the first replay uploads the graph
        torch.cuda.synchronize()

    def __call__(self, seconds: float, meanwhile: Meanwhile = _nothing) -> float:
        replays = max(1, round(seconds / self.seconds))
        start, end = _event(), _event()
        # The GPU spins while the host enqueues, 0.1 ms and 0.5 us a kernel, so that the events enclose no wait for it.
        torch.cuda._sleep(200_000 + 1_000 * self.launches)
        start.record()
        for _ in range(replays):
            self.graph.replay()
        end.record()
        meanwhile()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / (replays * self.launches)

    def free(self) -> None:
        """Give the graph and its memory back."""
        torch.cuda.synchronize()
        self.graph.reset()
        self.sets, self.flags = (), None


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
