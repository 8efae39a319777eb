"""Times two implementations ("ours" and torch's) in pairs in one process, so that both run at the same clocks and
power."""

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
"""The most sets of operands that are allocated."""

GRAPH_SECONDS = 0.001
"""Duration of one captured graph, in seconds."""

PRECISE = 0.002
"""Relative standard error of the median ratio at which measuring stops."""


@dataclass(frozen=True, slots=True)
class Regime:
    """The load that the GPU has while it is measured. It changes times by up to a fifth, because power is limited.

    rest: idle seconds before each replay.
    replay: seconds of one replay.
    fewest, most: limits of the number of rounds; a round replays each side once.
    warm: seconds of work before the first round.
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
"""burst: after a rest, at the highest clock. sustained: back to back, at the power limit.

quick, short: distinguish configs that differ by more than a few percent, in a tenth or a third of a second.
"""


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds of one GEMM; torch_us is None if torch was not measured."""

    time_us: float
    torch_us: float | None = None


@dataclass(frozen=True, slots=True)
class Paired:
    """Times of both sides, in seconds of one GEMM for each round, and the median SM clock during their runs.

    ours_mhz, torch_mhz: None if the clock cannot be read.
    refusal: why torch cannot compute the GEMM, or "". If it cannot, only ours was measured.
    """

    ours: tuple[float, ...]
    torchs: tuple[float, ...]
    ours_mhz: float | None = None
    torch_mhz: float | None = None
    refusal: str = ""

    @property
    def times(self) -> Times:
        """The median time of each side."""
        torch_us = statistics.median(self.torchs) * 1e6 if self.torchs else None
        return Times(statistics.median(self.ours) * 1e6, torch_us)

    @property
    def ratios(self) -> list[float]:
        """torch's time over ours for each round, above 1 if ours is faster; empty if torch was not measured."""
        return [torchs / ours for ours, torchs in zip(self.ours, self.torchs, strict=True)] if self.torchs else []

    @property
    def ratio(self) -> float | None:
        """The median of the rounds' ratios. Disturbances that affect both sides of a round cancel."""
        return statistics.median(self.ratios) if self.torchs else None

    @property
    def row(self) -> tuple[float, float, float]:
        """Microseconds of torch and of ours, and the ratio, rounded for a results file: where both were measured."""
        times, ratio = self.times, self.ratio
        assert times.torch_us is not None
        assert ratio is not None
        return round(times.torch_us, 2), round(times.time_us, 2), round(ratio, 4)

    @property
    def error(self) -> float:
        """Relative standard error of `ratio`, or of our time if there is no ratio."""
        values = self.ratios or self.ours
        return standard_error(values) / statistics.median(values)


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the median of `values`; infinite for fewer than two.

    It is derived from the values that bound the median with 90% confidence (McKean and Schrader, 1984): the second and
    the sixth of seven. Unlike the standard deviation it ignores one disturbed round, and unlike the median absolute
    deviation it sees values that alternate between two levels.
    """
    count = len(values)
    if count < 2:
        return math.inf
    normal = 1.645  # 90% of a normal distribution are within this many standard deviations
    beyond = max(0, round((count - 1) / 2 - normal * math.sqrt(count) / 2))
    ascending = sorted(values)
    return (ascending[-1 - beyond] - ascending[beyond]) / (2 * normal)


Meanwhile = Callable[[], object]

Replay = Callable[[float, Meanwhile], float]
"""replay(seconds, meanwhile) runs one side for about `seconds` and returns the seconds of one GEMM.

`meanwhile` is called while the GPU works.
"""


def paired_launches(
    ours: tuple[Callable, Sequence[tuple[torch.Tensor, ...]]],
    torchs: tuple[Callable, Sequence[tuple[torch.Tensor, ...]]],
    regime: Regime,
) -> Paired:
    """`paired` of two `GraphReplay`s, whose memory is free afterwards. ours, torchs: their launch and sets."""
    sides = GraphReplay(*ours), GraphReplay(*torchs)
    try:
        return paired(*sides, regime)
    finally:
        for side in sides:
            side.free()


def paired(
    ours: Replay,
    torchs: Replay | None,
    regime: Regime,
    *,
    clock: Callable[[], float | None] = lambda: None,
    rest: Callable[[float], None] = time.sleep,
) -> Paired:
    """Times both sides round by round, until their ratio's error is below `PRECISE` or the regime's rounds are used up.

    torchs: None if torch cannot compute the GEMM; then ours is measured alone, to the same precision.
    clock: returns the SM clock in MHz; read during each replay.
    rest: waits, in seconds.

    The order within a round is random, and reversed in the next round, so that neither side profits from being first.
    Raises ValueError for a time that is not finite and positive.
    """
    sides = (ours, torchs) if torchs else (ours,)
    for _ in range(math.ceil(regime.warm / (len(sides) * regime.replay))):
        for replay in sides:
            replay(regime.replay, _nothing)
    shuffle = random.Random(0)
    times = {replay: [] for replay in (ours, torchs)}
    clocks = {replay: [] for replay in (ours, torchs)}

    def found() -> Paired:
        return Paired(tuple(times[ours]), tuple(times[torchs]), _median(clocks[ours]), _median(clocks[torchs]))

    order = sides
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


def set_count(problem: Problem, gpu: Gpu, sizes: Sequence[int] = ()) -> int:
    """Number of operand sets to rotate through, so that a launch finds none of its data in L2.

    sizes: of the problem's groups. The matrices of empty groups are not read.

    Together they are twice as large as the L2, but there are at most MOST_SETS, too few for GEMMs of a few KB.
    """
    moved = problem.compulsory_bytes
    if problem.ragged == "m":
        moved -= problem.operand_bytes("b") // problem.groups * list(sizes).count(0)
    return min(max(1, math.ceil(2 * gpu.l2_bytes / max(1, moved))), MOST_SETS)


def launch_count(seconds: float, sets: int) -> int:
    """Number of launches of `seconds` each that fill GRAPH_SECONDS. A multiple of `sets`, so that all sets are used
    equally."""
    return sets * max(1, math.ceil(GRAPH_SECONDS / (seconds * sets)))


class GraphReplay:
    """Launches captured in one CUDA graph of at least GRAPH_SECONDS. Calling it replays the graph; it is a `Replay`.

    launch: called with the tensors of a set. It must enqueue on the current stream and must not synchronise.
    sets: tuples of tensors to rotate through, such as (a, b, out).
    """

    def __init__(self, launch: Callable, sets: Sequence[tuple[torch.Tensor, ...]]):
        self.sets = sets  # kept alive, because the graph holds only their addresses
        self.flags = workspace.Reserve(sets[0][0].device)
        # Compile, load and allocate workspaces before the capture, on a side stream as capture uses one.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for operands in sets:
                launch(*operands)
            stream.synchronize()
            probe = sets[:32]
            start, end = _event(), _event()
            # The GPU spins about 0.1 ms for each launch, so that the host enqueues all of them before the first starts.
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
        # The GPU spins while the host enqueues (0.1 ms and 0.5 us for each kernel), so that no such wait is timed.
        torch.cuda._sleep(200_000 + 1_000 * self.launches)
        start.record()
        for _ in range(replays):
            self.graph.replay()
        end.record()
        meanwhile()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / (replays * self.launches)

    def free(self) -> None:
        """Frees the graph and its memory."""
        torch.cuda.synchronize()
        self.graph.reset()
        self.sets, self.flags = (), None


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
