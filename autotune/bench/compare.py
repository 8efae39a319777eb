"""tritonmm compared with torch on a suite: each GEMM is checked once, then timed in each regime."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Protocol

from tritonmm.autotune.bench.suite import Entry
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.measure import REGIMES, Paired, Regime
from tritonmm.autotune.measuring.nvml import Nvml
from tritonmm.autotune.tuner.sweep import DeviceLostError
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.problem import Problem

CLOCKS_DIFFER = 0.02
"""Relative difference between the SM clocks of torch's and our runs above which a row has a warning."""

COLUMNS = (
    *("family", "m", "n", "k", "batch", "layout", "dtype", "regime", "torch_us", "ours_us", "ratio", "config"),
    *("status", "error_ratio", "rounds", "ratio_error", "torch_mhz", "ours_mhz", "celsius", "watts", "message"),
    *("ragged", "groups", "sizes"),
)
"""Columns of a results file. Unknown values are empty cells."""


class PairedSource(Protocol):
    """What `bench` needs of `sources.GpuSource`."""

    gpu: Gpu
    nvml: Nvml
    environment: Environment

    def error_ratio(self, problem: Problem, config: Config, sizes: str) -> float: ...

    def paired(self, problem: Problem, config: Config, regime: Regime, sizes: str) -> Paired: ...

    def alive(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Row:
    """The outcome of one entry in one regime.

    status: "ok"; "illegal", `Config.fits` said no; "wrong", the check found an `error_ratio` above 1; "failed", an
        exception. `message` says why; on an ok row it is a warning.
    config: None if none could be chosen.
    paired: the times, if the status is ok. If torch refuses the GEMM, only tritonmm's, and `message` says so.
    celsius, watts: the GPU's temperature and power right after the last round.
    """

    entry: Entry
    regime: str
    status: str = "ok"
    config: Config | None = None
    paired: Paired | None = None
    error_ratio: float | None = None
    celsius: float | None = None
    watts: float | None = None
    message: str = ""

    def cells(self) -> dict[str, object]:
        """The row by the names of `COLUMNS`, in JSON values."""
        known = asdict(self.entry) | {name: getattr(self, name) for name in COLUMNS if hasattr(self, name)}
        known["config"] = self.config.to_json() if self.config else None
        known["groups"] = self.entry.groups or None
        if self.error_ratio is not None and not math.isfinite(self.error_ratio):
            known["error_ratio"] = None  # infinite for a NaN in the output or a store outside of it
        if self.paired:
            known |= {
                "ours_us": round(self.paired.times.time_us, 3),
                "rounds": len(self.paired.ours),
                "torch_mhz": self.paired.torch_mhz,
                "ours_mhz": self.paired.ours_mhz,
            }
            if self.paired.torchs:
                known |= {
                    "torch_us": round(self.paired.times.torch_us, 3),
                    "ratio": round(self.paired.ratio, 4),
                    "ratio_error": round(self.paired.error, 5),
                }
        return {name: known.get(name) for name in COLUMNS}

    def row(self) -> dict[str, object]:
        """The row as a results file has it."""
        # Readers that skip comments cut a line at "#".
        return self.cells() | {"message": self.message.replace("#", "no. ")}

    def __str__(self) -> str:
        """One line, with the columns of `HEADER`."""
        start = f"{self.entry.family:<9} {self.entry!s:<26} {self.regime:<9}"
        config = str(self.config or "no config")
        if not self.paired:
            return f"{start} {self.status}: {config}: {self.message}"
        times = self.paired.times
        message = f"  ({self.message})" if self.message else ""
        if not self.paired.torchs:
            return f"{start} {'-':>9} {times.time_us:9.1f} {'-':>7}  {config}{message}"
        return f"{start} {times.torch_us:9.1f} {times.time_us:9.1f} {self.paired.ratio:7.3f}  {config}{message}"


HEADER = f"{'family':<9} {'problem':<26} {'regime':<9} {'torch us':>9} {'ours us':>9} {'ratio':>7}  config"


def bench(
    entries: Iterable[Entry],
    regimes: Sequence[str],
    source: PairedSource,
    choose: Callable[[Problem, Gpu], Config],
) -> Iterator[Row]:
    """Yields a row for each entry and regime as soon as it is measured.

    regimes: names in `measure.REGIMES`.
    source: the GPU to measure on.
    choose: returns the config for a problem on a GPU.

    A failure becomes the entry's rows. Raises DeviceLostError after the rows of an entry that broke the CUDA context.
    """
    for entry in entries:
        row = _checked(entry, source, choose)
        failed = row.status == "failed"
        for regime in regimes:
            timed = replace(row, regime=regime)
            if row.status == "ok":
                timed = _timed(timed, source)
                failed |= timed.status == "failed"
            yield timed
        if failed and not source.alive():
            raise DeviceLostError(f"the GPU's context is lost after {timed.config} on {entry.problem()}")


def _checked(entry: Entry, source: PairedSource, choose: Callable[[Problem, Gpu], Config]) -> Row:
    row = Row(entry, regime="")
    problem = entry.problem()
    try:
        row = replace(row, config=choose(problem, source.gpu))
        fit = row.config.fits(problem, source.gpu)
        if not fit:
            return replace(row, status="illegal", message=fit.reason)
        row = replace(row, error_ratio=float(source.error_ratio(problem, row.config, entry.sizes)))
    except Exception as error:
        return replace(row, status="failed", message=_one_line(error))
    if not row.error_ratio <= 1:
        return replace(row, status="wrong", message=f"the error is {row.error_ratio:.3g} times its bound")
    return row


def _timed(row: Row, source: PairedSource) -> Row:
    try:
        paired = source.paired(row.entry.problem(), row.config, REGIMES[row.regime], row.entry.sizes)
        nvml = source.nvml
        message = _shortened(paired.refusal) or _clock_warning(paired)
        return replace(row, paired=paired, celsius=nvml.celsius(), watts=nvml.watts(), message=message)
    except Exception as error:
        return replace(row, status="failed", message=_one_line(error))


def _clock_warning(paired: Paired) -> str:
    torch_mhz, ours_mhz = paired.torch_mhz, paired.ours_mhz
    if not torch_mhz or not ours_mhz or abs(ours_mhz / torch_mhz - 1) <= CLOCKS_DIFFER:
        return ""
    return f"clocks differ: torch ran at {torch_mhz:.0f} MHz, ours at {ours_mhz:.0f}"


def _one_line(error: Exception) -> str:
    return _shortened(f"{type(error).__name__}: {error}")


def _shortened(text: str) -> str:
    return " ".join(text.split())[:300]


@dataclass(frozen=True, slots=True)
class Mean:
    """The ratios of one family in one regime. Family "all" is every entry, counted once.

    geomean: geometric mean of the ratios. worst: the row with the smallest ratio.
    """

    family: str
    regime: str
    count: int
    geomean: float
    worst: Row

    def __str__(self) -> str:
        worst = f"worst {self.worst.paired.ratio:.3f} at {self.worst.entry}"
        return f"{self.family:<9} {self.regime:<9} {self.geomean:7.3f}  of {self.count:3}, {worst}"

    def cells(self) -> dict[str, object]:
        """The mean in JSON values."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return found | {"worst": self.worst.cells()}


def means(rows: Iterable[Row]) -> list[Mean]:
    """A mean for each regime and family with ratios, in the order in which they first occur, then one for family
    "all"."""
    groups: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if row.paired and row.paired.torchs:
            families = groups.setdefault(row.regime, {})
            families.setdefault(row.entry.family, []).append(row)
    found = []
    for regime, families in groups.items():
        if len(families) > 1:
            families = families | {"all": [row for rows in families.values() for row in rows]}
        for family, members in families.items():
            worst = min(members, key=lambda row: row.paired.ratio)
            ratios = [row.paired.ratio for row in members]
            found.append(Mean(family, regime, len(members), geomean(ratios), worst))
    return found


def geomean(ratios: Sequence[float]) -> float:
    """Geometric mean. Raises ValueError unless all ratios are above 0."""
    if not ratios or min(ratios) <= 0:
        raise ValueError(f"no geometric mean of {list(ratios)!r}: it needs numbers above 0")
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def outcome(rows: Sequence[Row], environment: Environment, in_use: str) -> str:
    """The rows, the means and the environment, as JSON."""
    return json.dumps(
        {
            "environment": asdict(environment),
            "gpu_in_use": in_use,
            "rows": [row.cells() for row in rows],
            "means": [mean.cells() for mean in means(rows)],
        },
        indent=2,
    )
