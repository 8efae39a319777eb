"""A trial: one problem done in one way, and what came of it."""

import json
from dataclasses import asdict, astuple, dataclass, fields

from tritonmm.config import Config
from tritonmm.problem import Epilogue, Problem

STATUSES = ("ok", "illegal", "wrong", "failed", "hung", "crashed")


@dataclass(frozen=True, slots=True)
class Counted:
    """What the GPU's counters saw of one product that began with cold caches, summed over its kernels.

    us: microseconds, at whatever clock the GPU had; kernels: how many were counted, copies of operands among them.
    dram_read_bytes, dram_write_bytes: between device memory and L2. What is still in L2 at the end has not been
        written, so writes may be fewer than C has bytes.
    l2_read_bytes: what the SMs asked L2 for; fabric_bytes: what the halves of L2 asked of each other.
    lookups, hits, misses: sectors of 32 bytes that were read in L2, for the SMs and for its other half.
    """

    us: float
    kernels: int
    dram_read_bytes: int
    dram_write_bytes: int
    l2_read_bytes: int
    fabric_bytes: int
    lookups: int
    hits: int
    misses: int

    @property
    def hit_rate(self) -> float | None:
        """The part of the lookups that hit; None where nothing was read."""
        return self.hits / self.lookups if self.lookups else None


COUNTED = tuple(f"counted_{field.name}" for field in fields(Counted))
"""The fields of `Counted` as columns."""

COLUMNS = (
    *("m", "n", "k", "batch", "layout", "dtype"),
    *("kernel", "block_m", "block_n", "block_k", "num_stages", "num_warps", "split_k", "persistent", "order"),
    *("source", "status", "time_us", "torch_us", "tflops"),
    *("dram_read_bytes", "dram_write_bytes", "l2_read_bytes", "hit_rate", "traffic_source"),
    *("error_ratio", "message", "split_tail", "cluster", "repack"),
    *(*COUNTED, "counted_hit_rate"),
)
"""The columns of a results file; what is not known is an empty cell."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One problem done in one way.

    source: where the times come from, "gpu" or "model"; regime: how they were measured, "burst" or
        "sustained", and "none" for the model.
    status: "ok"; "illegal", `Config.fits` said no and `message` says why; "wrong", the check found
        an `error_ratio` above 1; "failed", an exception, in `message`; "hung", it took longer than allowed
        and its process was killed; "crashed", its process died, or its GPU's context was lost.
    time_us, torch_us: medians of one product's time in microseconds, None where there is none.
    dram_read_bytes, dram_write_bytes, l2_read_bytes, hit_rate: traffic, predicted by `traffic_source`.
    counted: the traffic that the hardware counted, None where it was not.
    measured: when, in UTC, ISO 8601.
    """

    problem: Problem
    config: Config
    source: str
    regime: str
    status: str
    measured: str
    time_us: float | None = None
    torch_us: float | None = None
    dram_read_bytes: int | None = None
    dram_write_bytes: int | None = None
    l2_read_bytes: int | None = None
    hit_rate: float | None = None
    traffic_source: str = ""
    error_ratio: float | None = None
    message: str = ""
    counted: Counted | None = None

    @property
    def tflops(self) -> float | None:
        """10^12 floating-point operations a second."""
        return self.problem.flops / self.time_us / 1e6 if self.time_us else None

    def row(self) -> dict[str, object]:
        """The trial by the names of `COLUMNS`."""
        problem, config = self.problem, self.config
        known = {name: getattr(config, name, None) for name in COLUMNS}
        known |= {name: getattr(problem, name) for name in ("m", "n", "k", "batch", "layout")}
        known |= {name: getattr(self, name) for name in COLUMNS if hasattr(self, name)}
        if self.counted is not None:
            known |= dict(zip(COUNTED, astuple(self.counted), strict=True), counted_hit_rate=self.counted.hit_rate)
        known |= {"dtype": problem.kind, "order": str(config.order)}
        return known

    def to_json(self) -> str:
        """One line of JSON. Raises ValueError for a `Table` order."""
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        known |= {"problem": problem_json(self.problem), "config": self.config.to_json()}
        known["counted"] = asdict(self.counted) if self.counted else None
        return json.dumps(known)

    @classmethod
    def from_json(cls, text: str) -> "Trial":
        """The inverse of `to_json`. Raises ValueError or TypeError for what is no trial."""
        known = json.loads(text)
        given = {"problem": problem_of(known["problem"]), "config": Config.from_json(known["config"])}
        counted = Counted(**known["counted"]) if known["counted"] else None
        return cls(**known | given | {"counted": counted})


def problem_json(problem: Problem) -> str:
    """One line of JSON that names the problem."""
    return json.dumps(asdict(problem))


def problem_of(text: str) -> Problem:
    """The inverse of `problem_json`."""
    found = json.loads(text)
    return Problem(**found | {"epilogue": Epilogue(**found["epilogue"])})
