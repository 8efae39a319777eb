"""The barriers of a cluster, as `tritonmm/device/cluster.py` argues them, replayed in random interleavings.

The model keeps what the argument is about: mbarriers with their pending arrivals and bytes, loaders, consumer
warps, and messages (bytes and arrivals at either CTA) that land in any order. It checks every claim as it
happens; and each weakened protocol must be caught, so that a silent model cannot pass.
"""

import random
from dataclasses import dataclass

import pytest

CTAS = range(2)
WARPS = range(4)  # consumer warps of a CTA: enough for two consumers of two warps that drift apart
PARTS = "own", "half 0", "half 1"  # what a stage holds: its CTA's own operand, and each loader's half of the shared one


class ClaimError(Exception):
    """A claim of the protocol does not hold."""


@dataclass(frozen=True)
class Protocol:
    stages: int
    count_peer: bool = True  # `empty` waits for both CTAs' warps
    drain: bool = True  # a loader waits for the last releases before it ends


class Barrier:
    def __init__(self, arrivals):
        self.arrivals = self.pending = arrivals
        self.bytes = self.completed = 0

    def arrive(self, expected=0):
        if not self.pending:
            raise ClaimError("an arrival too many in this phase")
        self.bytes += expected
        self.pending -= 1
        self._step()

    def receive(self, count):
        self.bytes -= count
        self._step()

    def _step(self):
        if not self.pending and not self.bytes:
            self.pending = self.arrivals
            self.completed += 1

    def passes(self, parity):
        """Whether the phase of this parity has completed; for a fresh barrier, that before the first has."""
        return self.completed % 2 != parity


class Cluster:
    def __init__(self, protocol, uses, seed):
        self.protocol, self.uses, self.random = protocol, uses, random.Random(seed)
        stages = range(protocol.stages)
        warps = len(WARPS) * (2 if protocol.count_peer else 1)
        self.full = [[Barrier(1) for _ in stages] for _ in CTAS]
        self.empty = [[Barrier(warps) for _ in stages] for _ in CTAS]
        self.data = {}  # (cta, stage, part) -> use
        self.reading = {(cta, stage): 0 for cta in CTAS for stage in stages}
        self.running = {cta: 1 + len(WARPS) for cta in CTAS}
        self.flying = []  # messages: bytes and arrivals on their way to a CTA

    def wait(self, barrier, parity, completed):
        while not barrier.passes(parity):
            yield
        if barrier.completed != completed:
            raise ClaimError(f"lapped: waited for {completed} phases, found {barrier.completed}")

    def loader(self, cta):
        stages = self.protocol.stages
        for use in range(self.uses + stages):
            stage, turn = use % stages, use // stages
            if use < self.uses or self.protocol.drain:
                yield from self.wait(self.empty[cta][stage], turn % 2 ^ 1, turn)
            if use >= self.uses:
                continue
            yield
            self.full[cta][stage].arrive(len(PARTS))
            yield
            self.flying.append(("bytes", cta, stage, use, "own"))
            yield
            self.flying += [("bytes", to, stage, use, f"half {cta}") for to in CTAS]
        self.running[cta] -= 1

    def warp(self, cta):
        stages = self.protocol.stages
        for use in range(self.uses):
            stage = use % stages
            yield from self.wait(self.full[cta][stage], use // stages % 2, use // stages + 1)
            self.reading[cta, stage] += 1
            for part in PARTS:
                if self.data.get((cta, stage, part)) != use:
                    raise ClaimError(f"read {part} of use {self.data.get((cta, stage, part))} for use {use}")
            yield
            if use:
                self.release(cta, use - 1)
                yield
        if self.uses:
            self.release(cta, self.uses - 1)
        self.running[cta] -= 1

    def release(self, cta, use):
        stage = use % self.protocol.stages
        self.reading[cta, stage] -= 1
        targets = CTAS if self.protocol.count_peer else [cta]
        self.flying += [("arrival", to, stage, use) for to in targets]

    def land(self, message):
        kind, cta, stage, use, *part = message
        if not self.running[cta]:
            raise ClaimError(f"{kind} in a CTA that has ended")
        turn = use // self.protocol.stages
        if kind == "arrival":
            if self.empty[cta][stage].completed != turn:
                raise ClaimError(f"the release of use {use} is counted in phase {self.empty[cta][stage].completed}")
            self.empty[cta][stage].arrive()
            return
        if self.reading[cta, stage]:
            raise ClaimError(f"use {use} overwrites a stage that is being read")
        if self.full[cta][stage].completed != turn:
            raise ClaimError(f"bytes of use {use} are counted in phase {self.full[cta][stage].completed}")
        self.data[cta, stage, *part] = use
        self.full[cta][stage].receive(1)

    def run(self):
        agents = [self.loader(cta) for cta in CTAS] + [self.warp(cta) for cta in CTAS for _ in WARPS]
        speeds = [self.random.random() ** 3 + 0.02 for _ in agents]
        delivery = self.random.random() ** 3 + 0.02
        for _ in range(20_000 + 3_000 * self.uses):
            if not agents and not self.flying:
                return
            if self.flying and (not agents or self.random.random() < delivery):
                self.land(self.flying.pop(self.random.randrange(len(self.flying))))
            elif agents:
                (i,) = self.random.choices(range(len(agents)), speeds)
                try:
                    next(agents[i])
                except StopIteration:
                    del agents[i], speeds[i]
        raise ClaimError(f"no end: {len(agents)} agents wait, {len(self.flying)} messages are on their way")


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_no_interleaving_breaks_the_ring(stages):
    for seed in range(100):
        uses = random.Random(seed).randint(0, 12)
        try:
            Cluster(Protocol(stages), uses, seed).run()
        except ClaimError as error:
            pytest.fail(f"{uses} uses of {stages} stages, seed {seed}: {error}")


@pytest.mark.parametrize(
    ("weak", "claim"),
    [
        (Protocol(3, count_peer=False), "overwrites|counted in phase|read half"),
        (Protocol(3, drain=False), "CTA that has ended"),
    ],
    ids=["empty-ignores-the-peer", "no-drain"],
)
def test_a_weaker_protocol_is_caught(weak, claim):
    def replay():
        for seed in range(200):
            Cluster(weak, uses=9, seed=seed).run()

    with pytest.raises(ClaimError, match=claim):
        replay()
