"""Compiles kernels for GPUs that are not here, and reads what became of them.

Triton compiles to PTX, cubin and hsaco with its wheel alone; all it asks of a driver is which
target to compile for. Run as a program this file is the compile gate: it prints a line a kernel and
exits with 1 if one spills, waits after every wgmma or needs more shared memory than
`Config.fits` says. It runs in a process of its own, since the rest of the tests interpret kernels.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
from dataclasses import dataclass

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.config import Config
from tritonmm.kernels.tile import tile_kernel
from tritonmm.plan import bind
from tritonmm.problem import DTYPES, Problem
from tritonmm.select import choose

LOGS: dict[str, str] = {}
"""What ptxas said of each kernel; a kernel that is compiled twice comes from Triton's cache, with no log."""


class Elsewhere:
    """A driver for a GPU of another machine: it can be compiled for, not launched on."""

    def __init__(self, gpu: gpus.Gpu):
        self.device = gpu.name  # Triton remembers a device's target
        self.target = (
            GPUTarget("cuda", gpu.capability, 32) if gpu.is_nvidia else GPUTarget("hip", gpu.arch.split(":")[0], 64)
        )

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return self.device

    def get_current_stream(self, device):
        return 0


@dataclass(frozen=True)
class Compiled:
    registers: int
    spilled_bytes: int
    shared_bytes: int
    warnings: str
    assembly: str


def compile_for(gpu: gpus.Gpu, problem: Problem, config: Config) -> Compiled:
    """What the plan of (problem, config) launches, compiled for `gpu`."""
    driver.set_active(Elsewhere(gpu))
    a, b, out = operands(problem)
    arguments, options = bind(problem, config, gpu, torch.device("meta")).arguments(a, b, out)
    with contextlib.redirect_stdout(io.StringIO()) as log, triton.knobs.nvidia.scope():
        triton.knobs.nvidia.dump_ptxas_log = True
        kernel = tile_kernel.warmup(*arguments, grid=(1,), **options)
    if not gpu.is_nvidia:
        return read_amd(kernel)
    return read_nvidia(kernel, LOGS.setdefault(kernel.hash, log.getvalue()))


def operands(problem: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tensors of the problem's shapes, dtypes and layout without memory."""

    def empty(rows, cols, letter, dtype):
        shape = (problem.batch, cols, rows) if letter == "t" else (problem.batch, rows, cols)
        x = torch.empty(shape, dtype=DTYPES[dtype], device="meta")
        return x.mT if letter == "t" else x

    a = empty(problem.m, problem.k, problem.layout[0], problem.dtype)
    b = empty(problem.k, problem.n, problem.layout[1], problem.dtype)
    return a, b, empty(problem.m, problem.n, "n", problem.out_dtype)


def read_nvidia(kernel, log: str) -> Compiled:
    registers = int(re.search(r"Used (\d+) registers", log)[1])
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill", log)))
    warnings = "\n".join(line for line in log.splitlines() if "C75" in line)
    return Compiled(registers, spilled, kernel.metadata.shared, warnings, kernel.asm["ptx"])


def read_amd(kernel) -> Compiled:
    assembly = kernel.asm["amdgcn"]
    count = {key: int(re.search(rf"\.{key}:\s+(\d+)", assembly)[1]) for key in ("vgpr_count", "vgpr_spill_count")}
    return Compiled(count["vgpr_count"], 4 * count["vgpr_spill_count"], kernel.metadata.shared, "", assembly)


def cases():
    """(gpu, problem, config): what `select` chooses for typical problems, for each target."""
    for gpu in map(gpus.spec, ("a100", "h200", "b200", "mi300x")):
        for dtype in DTYPES:
            for m, n, k, layout in (
                (4096, 4096, 4096, "nn"),
                (1000, 4096, 1000, "nt"),
                (17, 333, 77, "tn"),
                (1, 4096, 1, "tt"),
            ):
                precision = "tf32" if dtype == "fp32" and layout == "nn" else "ieee"
                problem = Problem(m=m, n=n, k=k, dtype=dtype, layout=layout, precision=precision)
                yield gpu, problem, choose(problem, gpu)
    h200 = gpus.spec("h200")
    problem = Problem(m=4000, n=4096, k=4096)
    for order in ("row-major", "split-merge:8", "swizzle-merge:16,8@n", "serpentine:8", "hilbert"):
        yield h200, problem, Config(block_n=256, persistent=True, order=orders.parse(order))


def fault(compiled: Compiled, config: Config, problem: Problem, gpu: gpus.Gpu) -> str:
    """What is wrong with a compiled kernel, or ""."""
    if compiled.spilled_bytes:
        return f"spills {compiled.spilled_bytes} bytes"
    if compiled.warnings:
        return compiled.warnings
    if compiled.shared_bytes > gpu.shared_bytes:
        return f"needs {compiled.shared_bytes} bytes of shared memory and Config.fits let it pass"
    if gpu.capability == 90 and problem.dtype != "fp32" and config.block_m >= 64 and config.num_warps >= 4:
        return "" if "wgmma.mma_async" in compiled.assembly else "does not use wgmma"
    return ""


def main() -> int:
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()  # nothing an earlier compiler made is looked at
    faults = 0
    for gpu, problem, config in cases():
        compiled = compile_for(gpu, problem, config)
        why = fault(compiled, config, problem, gpu)
        faults += bool(why)
        print(
            f"{gpu.arch:7} {problem!s:28} {config!s:62} {compiled.registers:4} registers"
            f" {compiled.shared_bytes:7} bytes shared  {why or 'ok'}",
            flush=True,
        )
    print(f"triton {triton.__version__}: {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
