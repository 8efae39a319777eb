"""What quick tuning gained: ratios to torch before, with the fitted constants, and with the table."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tritonmm.autotune.measuring.trial import Trial
from tritonmm.autotune.tuner.search import Rung, Search
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model.record import Record
from tritonmm.problem import Problem
from tritonmm.selection import estimated

RUNG = Rung("short", None)
"""How all are timed: in one regime, each together with torch."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A GEMM and what is chosen for it: by the constants that ship, by the fitted ones, and by the table."""

    problem: Problem
    before: Config
    fitted: Config
    table: Config

    @property
    def search(self) -> Search:
        """Times the three; those that were timed in that regime are in the store."""
        return Search(self.problem, list(dict.fromkeys((self.before, self.fitted, self.table))), (RUNG,))


def compared(searches: Sequence[Search], gpu: Gpu, start: Record, record: Record) -> list[Compared]:
    """What is compared of finished searches."""
    shipped, fitted = (replace(gpu, constants=each) for each in (start, record))
    return [
        Compared(s.problem, estimated(s.problem, shipped).config, estimated(s.problem, fitted).config, s.best.config)
        for s in searches
        if s.over and s.best
    ]


def means(asked: Sequence[Compared], trials: Sequence[Trial]) -> dict[str, float | int | None]:
    """The number of GEMMs of which all three were timed with torch, and geometric means of torch's time over theirs."""
    ratios = {(t.problem, t.config): t.torch_us / t.time_us for t in trials if t.time_us and t.torch_us}
    known = [
        [ratios[each.problem, config] for config in (each.before, each.fitted, each.table)]
        for each in asked
        if all((each.problem, config) in ratios for config in (each.before, each.fitted, each.table))
    ]
    columns = zip(*known, strict=True) if known else [[]] * 3
    found = [statistics.geometric_mean(column) if column else None for column in map(list, columns)]
    return {"gemms": len(known), **dict(zip(("before", "fitted", "table"), found, strict=True))}
