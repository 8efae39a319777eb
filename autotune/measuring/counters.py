"""Hardware counters of a GEMM, read by NVIDIA's profiler: DRAM and L2 bytes, lookups and hits.

1. `ncu` runs one child process, `ncu_child`, which launches every (problem, config) while profiling is on.
2. After each of them the child launches a marker: an empty kernel with the trial's number as its grid.
3. In the profiler's output, the kernels between two markers belong to one trial, however many a GEMM launches. Kernels
without a following marker belong to an unfinished trial.

The profiler empties the caches before a kernel and before each further pass over it. So the operands of each kernel
come from device memory. It also serialises kernels: a GEMM of several kernels is counted as if each began with cold
caches.
"""

import contextlib
import csv
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.trial import Counted, Trial, problem_json
from tritonmm.autotune.tuner.store import Store
from tritonmm.config import Config
from tritonmm.problem import Problem

METRICS = {
    "gpu__time_duration.sum": ("ns", "nsecond"),
    "dram__bytes_read.sum": ("byte",),
    "dram__bytes_write.sum": ("byte",),
    "lts__t_sectors_srcunit_tex_op_read.sum": ("sector",),
    "lts__t_sectors_srcunit_ltcfabric.sum": ("sector",),
    "lts__t_sectors_op_read.sum": ("sector",),
    "lts__t_sectors_op_read_lookup_hit.sum": ("sector",),
    "lts__t_sectors_op_read_lookup_miss.sum": ("sector",),
}
"""The profiler's metrics, each with the names of its unit in different releases."""

SECTOR = 32
"""Bytes of a sector, the unit in which L2 is read."""

MARKER = "trial_marker"
"""The kernel that ends a trial. Its grid has as many programs as the trial's number, counted from 1."""

SECONDS = 60.0
"""Time limit of a trial, compilation included, in seconds."""

RESTARTS = 3
"""Trials that may end the child process before counting stops."""

PLACES = ("/usr/local/cuda/bin",)
"""Folders that are searched for the profiler besides PATH."""

Warn = Callable[[str], object]


class CountersError(RuntimeError):
    """Nothing can be counted here; the message says why."""


def count(
    pairs: Sequence[tuple[Problem, Config]], *, seconds: float = SECONDS, warn: Warn = warnings.warn
) -> list[Counted | None]:
    """The hardware counters of each (problem, config), in the order of `pairs`, on the first visible GPU.

    seconds: time limit of a trial.
    warn: called with the reason for each trial that was not counted. Its result is None.

    A trial is not counted if it raised, took too long, ended the process, or has impossible values; the others are
    counted anyway. ncu runs about 25 kernels a second, and each trial needs at least two.

    Raises CountersError if there is no profiler or it may not read counters, and ValueError for a `Table` order, which
    has no spelling.
    """
    found: list[Counted | None] = [None] * len(pairs)
    spelled = [(problem_json(problem), config.to_json()) for problem, config in pairs]
    ncu = profiler() if pairs else ""
    first = deaths = 0
    while first < len(pairs):
        session = _profile(ncu, spelled, first, seconds)
        trials = _trials(session.output)
        unseen = session.finished and not trials and not session.failed
        if session.begun is None or unseen:
            if any(found):
                warn(f"counting stopped before {_name(pairs[first])}: {session.complaint}")
                break
            raise CountersError(session.complaint)
        for index, kernels in trials.items():
            try:
                found[index] = _counted(kernels)
            except ValueError as error:
                warn(f"not counted: {_name(pairs[index])}: {error}")
        for index, message in session.failed.items():
            warn(f"not counted: {_name(pairs[index])}: {message}")
        past = len(pairs) if session.finished else session.begun
        if lost := set(range(first, past)) - set(trials) - set(session.failed):
            warn(f"not counted: {_name(pairs[min(lost)])} and {len(lost) - 1} more: ncu's output ends before them")
        if session.finished:
            break
        deaths += 1
        warn(f"counting stopped in {_name(pairs[session.begun])}: {session.complaint}")
        first = session.begun + 1
        if deaths > RESTARTS and first < len(pairs):
            warn(f"the {len(pairs) - first} trials after it are not counted: too many have stopped the process")
            break
    return found


def join(trials: Sequence[Trial], store: Store, environment: Environment, *, warn: Warn = warnings.warn) -> list[Trial]:
    """The trials, each ok one joined with its counters. New counters are added to the store.

    Only trials without counters are counted. Warns and raises as `count` does.
    """
    asked = list(dict.fromkeys((t.problem, t.config) for t in trials if t.status == "ok" and t.counted is None))
    new = {pair: counted for pair, counted in zip(asked, count(asked, warn=warn), strict=True) if counted}
    for (problem, config), counted in new.items():
        store.add_counted(problem, config, environment, counted)
    return [replace(t, counted=new.get((t.problem, t.config), t.counted)) if t.status == "ok" else t for t in trials]


@dataclass(frozen=True, slots=True)
class _Session:
    """One run of the profiler.

    output: what it printed.
    begun: the last trial that was begun, None if none was.
    failed: messages of the trials that raised.
    finished: whether the child reached its end.
    complaint: why it did not, if known.
    """

    output: str
    begun: int | None
    failed: dict[int, str]
    finished: bool
    complaint: str


def profiler() -> str:
    """Path of NVIDIA's profiler ncu. Raises CountersError if it is not found."""
    found = shutil.which("ncu", path=os.pathsep.join((os.environ.get("PATH", os.defpath), *PLACES)))
    if found is None:
        raise CountersError("counters are read by NVIDIA's profiler ncu, which was not found; put it on PATH")
    return found


def _profile(ncu: str, spelled: Sequence[tuple[str, str]], first: int, seconds: float) -> _Session:
    """Runs the trials from index `first` on under the profiler."""
    with tempfile.TemporaryDirectory(prefix="tritonmm-counters-") as name:
        folder = Path(name)
        asked, log, output, errors = (folder / part for part in ("asked.json", "log", "output", "errors"))
        asked.write_text(json.dumps({"first": first, "seconds": seconds, "trials": spelled[first:]}))
        log.touch()
        command = [
            *(ncu, "--csv", "--print-units", "base", "--metrics", ",".join(METRICS), "--profile-from-start", "off"),
            *("--clock-control", "none", "--cache-control", "all", "--replay-mode", "kernel"),
            *(sys.executable, "-m", "tritonmm.autotune.measuring.ncu_child", str(asked), str(log)),
        ]
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                command,
                **{"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err},
                env=os.environ | {"LC_ALL": "C"},  # prints 1,234.5 and not 1.234,5
                start_new_session=True,
            )
            try:
                # The child ends itself when a trial takes too long. This limit is for a profiler that does not notice.
                hung = not _ended(process, log, 2 * seconds)
            finally:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        text, said, events = (p.read_text(encoding="utf-8", errors="replace") for p in (output, errors, log))
    if "ERR_NVGPUCTRPERM" in text + said:
        raise CountersError(
            "the driver lets only administrators read counters (ERR_NVGPUCTRPERM); run as root, or load the nvidia"
            " module with NVreg_RestrictProfilingToAdminUsers=0"
        )
    reason = f"nothing happened for {2 * seconds:g} seconds" if hung else _complaint(text, said)
    begun, failed, finished = None, {}, False
    for line in events.splitlines():
        event, _, rest = line.partition(" ")
        if event == "begin":
            begun = int(rest)
        elif event == "failed":
            index, _, message = rest.partition(" ")
            failed[int(index)] = message
        finished |= event == "finished"
    return _Session(text, begun, failed, finished, reason or f"ncu ended with {process.returncode} and gave no reason")


def _ended(process: subprocess.Popen, log: Path, seconds: float) -> bool:
    """Waits for the process. False if it neither ends nor writes to its log for `seconds`."""
    written = log.stat().st_size
    while True:
        try:
            process.wait(seconds)
            return True
        except subprocess.TimeoutExpired:
            size = log.stat().st_size
            if size == written:
                return False
            written = size


def _complaint(output: str, errors: str) -> str:
    """The reason of a failure, if the profiler or the child printed one."""
    if "Timeout (" in errors:  # printed by faulthandler in the child
        return "it took too long, like a kernel that hangs"
    lines = [line.strip() for line in (*errors.splitlines(), *output.splitlines())]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    said = raised[-1:] or [line for line in lines if line.startswith(("==ERROR==", "==WARNING=="))]
    return said[0][:300] if said else ""


def _name(pair: tuple[Problem, Config]) -> str:
    problem, config = pair
    return f"{config} on {problem}"


@dataclass(frozen=True, slots=True)
class _Kernel:
    """One profiled kernel. values: by metric, the printed number and its unit."""

    name: str
    grid: str
    values: dict[str, tuple[str, str]]


def _kernels(output: str) -> list[_Kernel]:
    """The kernels in the profiler's output, in launch order. Truncated lines are ignored.

    The output is CSV with a line for each kernel and metric, between lines that begin with "==" and the child's own
    output. Raises CountersError for CSV with other columns.
    """
    kernels: dict[tuple[str, str], _Kernel] = {}
    header: list[str] = []
    whole = (line for line in output.splitlines(keepends=True) if line.endswith("\n") and line.startswith('"'))
    for row in csv.reader(whole):
        if row[0] == "ID":
            header = row
            wanted = {"Process ID", "Kernel Name", "Grid Size", "Metric Name", "Metric Unit", "Metric Value"}
            if lacking := wanted - set(header):
                raise CountersError(f"ncu printed no {', '.join(sorted(lacking))}; try another release of ncu")
        elif header and len(row) == len(header):
            cells = dict(zip(header, row, strict=True))
            key = cells["Process ID"], cells["ID"]
            kernel = kernels.setdefault(key, _Kernel(cells["Kernel Name"], cells["Grid Size"], {}))
            kernel.values[cells["Metric Name"]] = cells["Metric Value"], cells["Metric Unit"]
    return list(kernels.values())


def _trials(output: str) -> dict[int, list[_Kernel]]:
    """By trial index, the kernels between the previous marker and the trial's own."""
    found: dict[int, list[_Kernel]] = {}
    since: list[_Kernel] = []
    for kernel in _kernels(output):
        if kernel.name.startswith(MARKER):
            found[_programs(kernel.grid) - 1] = since
            since = []
        else:
            since.append(kernel)
    return found


def _programs(grid: str) -> int:
    """The first extent of a marker's grid, as in "(1234, 1, 1)"."""
    extent = re.match(r"\((\d[\d,]*?),\s*1,\s*1\)", grid)
    if not extent:
        raise CountersError(f"ncu printed {grid!r} for the grid of {MARKER}; it must be like (1, 1, 1)")
    return int(extent[1].replace(",", ""))


def _counted(kernels: Sequence[_Kernel]) -> Counted:
    """The sums over one GEMM's kernels. Raises ValueError that names an impossible value."""
    if not kernels:
        raise ValueError("the profiler saw no kernel of it")
    sums = {metric: math.fsum(_values(metric, kernels)) for metric in METRICS}
    sectors = {metric: round(value) for metric, value in sums.items() if metric.startswith("lts__")}
    counted = Counted(
        us=sums["gpu__time_duration.sum"] / 1e3,
        kernels=len(kernels),
        dram_read_bytes=round(sums["dram__bytes_read.sum"]),
        dram_write_bytes=round(sums["dram__bytes_write.sum"]),
        l2_read_bytes=sectors["lts__t_sectors_srcunit_tex_op_read.sum"] * SECTOR,
        fabric_bytes=sectors["lts__t_sectors_srcunit_ltcfabric.sum"] * SECTOR,
        lookups=sectors["lts__t_sectors_op_read.sum"],
        hits=sectors["lts__t_sectors_op_read_lookup_hit.sum"],
        misses=sectors["lts__t_sectors_op_read_lookup_miss.sum"],
    )
    if not counted.us:
        raise ValueError("gpu__time_duration.sum is 0; a kernel takes time")
    if counted.hits > counted.lookups:
        rate = f"{counted.hit_rate:.1%}" if counted.lookups else f"{counted.hits} of 0 lookups"
        raise ValueError(f"the hit rate is {rate}; it must be within 0% and 100%")
    return counted


def _values(metric: str, kernels: Sequence[_Kernel]) -> Iterator[float]:
    for kernel in kernels:
        if metric not in kernel.values:
            raise ValueError(f"{metric} of {kernel.name} is missing")
        text, unit = kernel.values[metric]
        try:
            value = float(text.replace(",", ""))
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{metric} of {kernel.name} is {text!r}; it must be a number of at least 0")
        if unit not in METRICS[metric]:
            raise ValueError(f"{metric} of {kernel.name} is in {unit!r}; it must be in {METRICS[metric][0]}")
        yield value
