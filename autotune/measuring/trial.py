"""A trial: one problem computed with one config, and the outcome."""

import json
from dataclasses import asdict, astuple, dataclass, fields

from tritonmm.config import Config
from tritonmm.problem import Epilogue, Problem

STATUSES = ("ok", "illegal", "wrong", "failed", "hung", "crashed")


@dataclass(frozen=True, slots=True)
class Counted:
    """Hardware counters of one GEMM that began with cold caches, summed over its kernels.

    us: microseconds, at the clock that the GPU had.
    kernels: kernels that were counted, including copies of operands.
    dram_read_bytes, dram_write_bytes: traffic between device memory and L2. Data that is still in L2 at the end was not
        written, so writes may be fewer bytes than C has.
    l2_read_bytes: bytes that the SMs requested from L2.
    fabric_bytes: bytes exchanged between the halves of L2.
    lookups, hits, misses: 32-byte sectors read in L2, for the SMs and for the other half.
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
        """hits / lookups; None without lookups."""
        return self.hits / self.lookups if self.lookups else None


COUNTED = tuple(f"counted_{field.name}" for field in fields(Counted))
"""The columns of `Counted`."""

COLUMNS = (
    *("m", "n", "k", "batch", "layout", "dtype"),
    *("kernel", "block_m", "block_n", "block_k", "num_stages", "num_warps", "split_k", "persistent", "order"),
    *("source", "status", "time_us", "torch_us", "tflops"),
    *("dram_read_bytes", "dram_write_bytes", "l2_read_bytes", "hit_rate", "traffic_source"),
    *("error_ratio", "message", "split_tail", "cluster", "repack"),
    *(*COUNTED, "counted_hit_rate"),
    *("ragged", "groups"),
)
"""The columns of a results file. Unknown values are empty cells."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One problem computed with one config.

    source: where the times come from, "gpu" or "model".
    regime: how they were measured, a name in `measure.REGIMES`; "none" for the model.
    status: "ok", not checked if `error_ratio` is None; "illegal", `Config.fits` said no and `message` says why;
        "wrong", the check found an `error_ratio` above 1; "failed", an exception, in `message`; "hung", its process was
        killed after the time limit; "crashed", its process died or its CUDA context was lost.
    time_us, torch_us: median microseconds of one GEMM, None if not measured.
    dram_read_bytes, dram_write_bytes, l2_read_bytes, hit_rate: traffic predicted by `traffic_source`.
    counted: traffic counted by the hardware, None if not counted.
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
        """10^12 floating-point operations per second."""
        return self.problem.flops / self.time_us / 1e6 if self.time_us else None

    def row(self) -> dict[str, object]:
        """The trial by the names of `COLUMNS`."""
        problem, config = self.problem, self.config
        known = {name: getattr(config, name, None) for name in COLUMNS}
        known |= {name: getattr(problem, name) for name in ("m", "n", "k", "batch", "layout")}
        known |= {"ragged": problem.ragged or None, "groups": problem.groups or None}
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
        """The inverse of `to_json`. Raises ValueError or TypeError for other text."""
        known = json.loads(text)
        given = {"problem": problem_of(known["problem"]), "config": Config.from_json(known["config"])}
        counted = Counted(**known["counted"]) if known["counted"] else None
        return cls(**known | given | {"counted": counted})


def problem_json(problem: Problem) -> str:
    """The problem as one line of JSON."""
    return json.dumps(asdict(problem))


def problem_of(text: str) -> Problem:
    """The inverse of `problem_json`."""
    found = json.loads(text)
    return Problem(**found | {"epilogue": Epilogue(**found["epilogue"])})
