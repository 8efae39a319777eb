"""A trial: one problem done in one way, and what came of it."""

import json
from dataclasses import asdict, dataclass

from tritonmm.config import Config
from tritonmm.problem import Problem

STATUSES = ("ok", "illegal", "wrong", "failed")

COLUMNS = (
    *("m", "n", "k", "batch", "layout", "dtype"),
    *("kernel", "block_m", "block_n", "block_k", "num_stages", "num_warps", "split_k", "persistent", "order"),
    *("source", "status", "time_us", "torch_us", "tflops"),
    *("dram_read_bytes", "dram_write_bytes", "l2_read_bytes", "hit_rate", "traffic_source"),
    *("error_ratio", "message", "split_tail", "cluster", "relayout"),
)
"""The columns of a results file; what is not known is an empty cell."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One problem done in one way.

    source: where the times come from, "gpu" or "model"; regime: how they were measured, "burst" or
        "sustained", and "none" for the model.
    status: "ok"; "illegal", `Config.fits` said no and `message` says why; "wrong", the check found
        an `error_ratio` above 1; "failed", an exception, in `message`.
    time_us, torch_us: medians of one product's time in microseconds, None where there is none.
    dram_read_bytes, dram_write_bytes, l2_read_bytes, hit_rate: traffic, from `traffic_source`.
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
        known |= {"dtype": problem.kind, "order": str(config.order)}
        return known


def problem_json(problem: Problem) -> str:
    """One line of JSON that names the problem."""
    return json.dumps(asdict(problem))
