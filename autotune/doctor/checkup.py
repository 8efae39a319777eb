"""Checks whether this machine can run tritonmm: versions, GPUs, permissions, folders, known problems."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import triton

from tritonmm import gpu as gpus
from tritonmm import tuned
from tritonmm.autotune.measuring import counters
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.tuner.store import StoreError, is_current_store
from tritonmm.gpu import Gpu
from tritonmm.model import constants, constants_file
from tritonmm.plan import INTERPRETED
from tritonmm.torch_ops.product import fp32_precision
from tritonmm.tuned import table

OLDEST = {"torch": (2, 11), "triton": (3, 6)}
"""Oldest supported versions, as in pyproject.toml."""

NEWEST_TRITON = (3, 9)
"""Newest Triton that the tests run with."""

COMPILED = ("sm_80", "sm_90", "sm_100", "gfx942")
"""GPUs for which the tests compile every kernel."""

RUN = ("sm_90",)
"""GPUs on which the kernels have run."""

MIN_FREE_BYTES = 2**30
"""Free disk space that a tuning session's kernels and trials need."""

NEEDED = {"plot": ("matplotlib", "pandas"), "tune": ("dask", "distributed"), "parquet": ("pyarrow",)}
"""The modules of each extra."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    trouble: what is wrong and how to fix it, or "".
    wrong: whether it must be fixed.
    """

    name: str
    value: str
    trouble: str = ""
    wrong: bool = False


def findings(store: Path) -> Iterator[Finding]:
    """All findings about this process and machine.

    store: path of the store of sweeps.

    Writes nothing, and creates a CUDA context only to read the properties of GPUs.
    """
    found = torch.cuda.is_available()
    here = Environment.here(torch.cuda.get_device_name() if found else "")
    yield Finding("tritonmm", here.tritonmm + (f" at {here.commit}" if here.commit else ""))
    yield Finding("python", platform.python_version())
    yield from _versions(here)
    yield Finding("cuda", here.cuda or "none")
    yield _driver(here, found)
    yield from _gpus() if found else [_no_gpu()]
    gpu = gpus.default()
    compared = "compared" if gpu.verified else "not compared"
    yield Finding("models", f"{gpu.name}: {compared} with counters of such a GPU")
    yield _constants(gpu)
    yield _precision()
    yield _profiler(found)
    yield from _extras()
    yield _store(store)
    yield from _tables(gpu)
    yield _place("triton cache", Path(triton.knobs.cache.dir))


def _versions(here: Environment) -> Iterator[Finding]:
    for name, version in (("torch", here.torch), ("triton", here.triton)):
        trouble, wrong = "", numbers(version) < OLDEST[name]
        if wrong:
            trouble = f"too old; tritonmm needs {name} >= {'.'.join(map(str, OLDEST[name]))}"
        elif name == "triton" and numbers(version) > NEWEST_TRITON:
            trouble = f"newer than {'.'.join(map(str, NEWEST_TRITON))}, the newest that tritonmm is tested with"
        elif name == "triton" and (pinned := _pinned()) not in ("", version):
            trouble = f"torch {here.torch} was made for triton {pinned}: torch.compile may fail; tritonmm works"
        yield Finding(name, version, trouble, wrong)


def numbers(version: str) -> tuple[int, int]:
    """The first two numbers of a version such as "2.13.0+cpu"."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


def _pinned() -> str:
    """The Triton version that torch requires, or "" if it requires none, like torch's CPU builds."""
    for requirement in importlib.metadata.requires("torch") or ():
        if match := re.match(r"triton\s*==\s*([\w.]+)", requirement):
            return match[1]
    return ""


def _driver(here: Environment, found: bool) -> Finding:
    trouble = ""
    if here.driver and not found:
        trouble = "there is a driver, but torch sees no GPU: " + (
            "CUDA_VISIBLE_DEVICES hides it, or the driver is too old for torch" if here.cuda else "it is a CPU build"
        )
    return Finding("driver", here.driver or "none", trouble, bool(trouble))


def _gpus() -> Iterator[Finding]:
    for index in range(torch.cuda.device_count()):
        gpu, name = gpus.of_device(index), torch.cuda.get_device_name(index)
        memory = torch.cuda.get_device_properties(index).total_memory / 2**30
        value = f"{name}, {gpu.arch}, {gpu.sms} SMs, {gpu.l2_bytes / 2**20:.0f} MiB of L2, {memory:.0f} GiB"
        trouble, wrong = "", False
        if INTERPRETED:
            trouble, wrong = "TRITON_INTERPRET is set: kernels run on the CPU, far slower; unset it", True
        elif gpu.arch not in COMPILED:
            trouble = f"the tests compile kernels for {', '.join(COMPILED)}, not for {gpu.arch}; try --self-test"
        elif gpu.arch not in RUN:
            trouble = f"kernels have run on {', '.join(RUN)} only; try --self-test"
        yield Finding(f"gpu {index}", value, trouble, wrong)


def _no_gpu() -> Finding:
    value = f"none: kernels run in Triton's interpreter, times are modelled for {gpus.default().name}"
    numpy = importlib.metadata.version("numpy")
    if numbers(triton.__version__) < (3, 9) and numbers(numpy) >= (2, 4):
        trouble = f"before 3.9, Triton's interpreter needs NumPy < 2.4; this is {numpy}: pip install 'numpy<2.4'"
        return Finding("gpu", value, trouble, True)
    return Finding("gpu", value)


def _precision() -> Finding:
    precision = fp32_precision()
    trouble = "torch is set to tf32 (10 bits of mantissa), and tritonmm follows" if precision == "tf32" else ""
    return Finding("fp32", f"{precision} matmuls", trouble)


def _profiler(found: bool) -> Finding:
    try:
        ncu = counters.profiler()
    except counters.CountersError:
        return Finding("ncu", "none", "not on PATH; sweep --counters needs it" if found else "")
    try:
        parameters = Path("/proc/driver/nvidia/params").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Finding("ncu", ncu)
    trouble = ""
    if re.search(r"RmProfilingAdminOnly:\s*1", parameters) and os.geteuid():
        trouble = "the driver lets only administrators read counters: run as root, or load nvidia with"
        trouble += " NVreg_RestrictProfilingToAdminUsers=0"
    return Finding("ncu", ncu, trouble)


def _extras() -> Iterator[Finding]:
    for extra, modules in NEEDED.items():
        if lacking := [name for name in modules if importlib.util.find_spec(name) is None]:
            yield Finding(f"[{extra}]", f"without {', '.join(lacking)}", f"pip install 'tritonmm[{extra}]' to have it")


def _place(name: str, path: Path, value: str = "") -> Finding:
    """Whether the file or folder at `path` can be created and written."""
    nearest = next((each for each in (path, *path.absolute().parents) if each.exists()), path)
    trouble = ""
    if nearest != path and not nearest.is_dir():
        trouble = f"{nearest} is not a folder"
    elif not os.access(nearest, os.W_OK):
        trouble = f"{nearest} cannot be written"
    elif (free := shutil.disk_usage(nearest).free) < MIN_FREE_BYTES:
        trouble = f"only {free / 2**20:.0f} MiB are free there"
    return Finding(name, value or str(path), trouble, bool(trouble))


def _store(path: Path) -> Finding:
    """Whether the trials at `path` can be read, and others added."""
    found = _place("sweep store", path)
    try:
        is_current_store(path)
    except StoreError as error:
        return Finding(found.name, found.value, str(error), True)
    return found


def _constants(gpu: Gpu) -> Finding:
    """Which fitted constants the models read."""
    base = constants.shipped(gpu)
    try:
        found = constants_file.read(constants_file.path(gpu), gpu, base)
    except constants.ConstantsError as error:
        return Finding("constants", base.source, f"not used: {error}", True)
    return Finding("constants", (found or base).source)


def _tables(gpu: Gpu) -> Iterator[Finding]:
    path = tuned.user_path(gpu)
    try:
        rows, wrong = table.read(path, gpu)
    except tuned.TableError as error:
        yield Finding("tuned table", str(path), f"not used: {error}", True)
        return
    found = _place("tuned table", path, f"{path}, {len(rows)} rows")
    if wrong and not found.trouble:
        found = Finding(found.name, found.value, f"{len(wrong)} rows are not used, {wrong[0]}", True)
    yield found
