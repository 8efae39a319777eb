"""Compiles kernels for GPUs that are not here, and reads what became of them.

Triton compiles to PTX, cubin and hsaco with its wheel alone; all it asks of a driver is which
target to compile for. Run as a program this file is the compile gate: it prints a line a kernel and
exits with 1 if one spills, waits after every wgmma or needs more shared memory than
`Config.fits` says. It runs in a process of its own, since the rest of the tests interpret kernels.
"""

import contextlib
import io
import math
import os
import re
import sys
import tempfile
from dataclasses import dataclass, replace

import torch
import triton
from triton.runtime import driver

from tritonmm import gpu as gpus
from tritonmm import orders, skinny, sliced
from tritonmm.autotune.precompile import Elsewhere
from tritonmm.config import HAS_CLUSTERS, Config, consumer_grid, shared_bytes
from tritonmm.launch import transpose as transposes
from tritonmm.launch.relayout import RESIDENT
from tritonmm.plan import bind
from tritonmm.problem import DTYPES, KINDS, Epilogue, Problem
from tritonmm.select import choose

LOGS: dict[str, str] = {}
"""What ptxas said of each kernel; a kernel that is compiled twice comes from Triton's cache, with no log."""


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
    plan = bind(problem, config, gpu, torch.device("meta"))
    c = out if problem.epilogue.c else None
    bias = out[0, 0] if problem.epilogue.bias else None
    scales = None
    if problem.scales:
        scales = tuple(shape and torch.empty(shape, device="meta") for shape in problem.scale_shapes)
    return compile_kernel(gpu, plan.kernel, *plan.arguments(a, b, out, c=c, bias=bias, scales=scales))


def compile_kernel(gpu: gpus.Gpu, jitted, arguments: tuple, options: dict) -> Compiled:
    """What a launch with these arguments would run, compiled for `gpu`."""
    driver.set_active(Elsewhere(gpu))
    with contextlib.redirect_stdout(io.StringIO()) as log, triton.knobs.nvidia.scope():
        triton.knobs.nvidia.dump_ptxas_log = True
        kernel = jitted.warmup(*arguments, grid=(1,), **options)
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
    b = empty(problem.k, problem.n, problem.layout[1], problem.b_dtype)
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
        for dtype in ("bf16", "fp16", "fp32"):
            for m, n, k, layout in (
                (4096, 4096, 4096, "nn"),
                (1000, 4096, 1000, "nt"),
                (17, 333, 77, "tn"),
                (1, 4096, 1, "tt"),
            ):
                precision = "tf32" if dtype == "fp32" and layout == "nn" else "ieee"
                problem = Problem.dense(m, n, k, dtype=dtype, layout=layout, precision=precision)
                yield gpu, problem, choose(problem, gpu)
    h200 = gpus.spec("h200")
    problem = Problem(m=4000, n=4096, k=4096)
    for order in ("row-major", "split-merge:8", "swizzle-merge:16,8@n", "serpentine:8", "hilbert"):
        yield h200, problem, Config(block_n=256, persistent=True, order=orders.parse(order))


HOPPER = {
    # (block_m, block_n, block_k, num_stages, num_warps)
    (128, 256, 64, 4, 8), (256, 128, 64, 4, 8), (128, 128, 64, 6, 8), (128, 128, 128, 3, 8), (192, 128, 64, 5, 12),
    (128, 64, 64, 8, 8), (128, 64, 128, 4, 8), (64, 256, 64, 5, 8), (64, 128, 64, 8, 8), (64, 128, 128, 4, 4),
    (64, 64, 64, 8, 4), (64, 64, 128, 6, 4), (192, 256, 64, 3, 12), (256, 192, 64, 3, 8), (192, 192, 64, 4, 12),
    (128, 192, 64, 5, 8), (128, 384, 64, 3, 8), (384, 128, 64, 3, 12), (64, 192, 64, 6, 4),
}  # fmt: skip


HOPPER_KINDS = {
    # what of other dtypes than bf16 and fp16 is multiplied: (block_m, block_n, bytes of K, num_stages, num_warps)
    "int8": {(128, 256, 128, 4, 8), (192, 256, 128, 3, 12), (256, 192, 128, 3, 8), (64, 64, 128, 8, 4)},
    "tf32": {(128, 256, 128, 4, 8), (192, 256, 128, 3, 12), (64, 128, 128, 8, 8)},
    "fp8": {(128, 256, 128, 4, 8), (256, 192, 128, 3, 8), (64, 64, 128, 8, 4)},
    "fp8-row": {(128, 256, 128, 4, 8), (192, 256, 128, 3, 12)},
    "fp8-e5m2": {(128, 256, 128, 4, 8)},
    "fp8-ieee": {(128, 256, 128, 4, 8), (256, 128, 128, 4, 8)},
    "fp8-row-ieee": {
        (128, 256, 128, 4, 8), (256, 128, 128, 4, 8), (128, 128, 128, 6, 8), (192, 128, 128, 5, 12), (64, 64, 128, 8, 4)
    },
    "fp8-block": {
        (128, 256, 128, 4, 8), (256, 128, 128, 4, 8), (128, 128, 128, 6, 8), (192, 128, 128, 5, 12),
        (64, 128, 128, 8, 8), (64, 64, 128, 8, 4),
    },
}  # fmt: skip


CLUSTERS = {
    # (block_m, block_n, block_k, num_stages, num_warps, cluster), the blocks of both CTAs together
    (256, 256, 64, 4, 8, "m"), (256, 256, 64, 4, 8, "n"), (256, 128, 64, 6, 8, "m"), (128, 256, 64, 5, 8, "m"),
    (256, 128, 64, 4, 8, "n"), (128, 128, 64, 8, 4, "m"), (384, 128, 64, 5, 12, "m"), (384, 128, 64, 3, 12, "n"),
    (128, 384, 64, 4, 12, "n"),
}  # fmt: skip


def hopper_case(
    blocks=(128, 256, 64, 4, 8), cluster="", n=4096, order="swizzle-merge:8", split_k=1, split_tail=1, **fields
):
    """(gpu, problem, config) of a typical product by the Hopper kernel."""
    out_alignment = 16 if n % 8 == 0 else 4 if fields.get("dtype") == "int8" else 2
    problem = Problem(m=4000, n=n, k=4096, out_alignment=out_alignment, **fields)
    config = Config("hopper", *blocks, split_k, split_tail, True, orders.parse(order), cluster)
    return gpus.spec("h200"), problem, config


def hopper_cases():
    """Every tile, then every layout, dtype, epilogue and order of the largest, of the Hopper kernel."""
    case = hopper_case
    for blocks in sorted(HOPPER):
        for layout in ("nn", "nt"):
            yield case(blocks, layout=layout)
    for blocks in ((128, 256, 64, 4, 8), (256, 128, 64, 4, 8), (192, 128, 64, 5, 12), (64, 256, 64, 5, 8)):
        for layout in ("tn", "tt"):
            yield case(blocks, layout=layout)
    everything = Epilogue(scaled=True, bias=True, c=True)
    yield case(dtype="fp16")
    yield case(out_dtype="fp32")
    yield case(epilogue=everything)
    yield case((256, 128, 64, 4, 8), epilogue=everything)
    for blocks in ((192, 256, 64, 3, 12), (256, 192, 64, 3, 8)):
        for more in ({"epilogue": Epilogue(scaled=True, bias=True)}, {"out_dtype": "fp32"}, {"order": "hilbert"}):
            yield case(blocks, layout="nt", **more)
    yield case(n=1023, layout="nt")
    yield case(n=1023, layout="nt", out_dtype="fp32")
    yield case(n=1023, layout="nt", epilogue=everything)
    for blocks in sorted(HOPPER):
        gpu, problem, config = case(blocks, split_k=4)
        if config.fits(problem, gpu):  # not tiles of two strips
            yield gpu, problem, config
    yield case(split_tail=8)
    yield case(split_tail=8, n=1023, layout="nt")
    yield case(split_tail=8, epilogue=everything)
    yield case(split_tail=8, n=1023, layout="nt", epilogue=everything)
    yield case(batch=3)
    for order in ("row-major", "column-major", "split-merge:8", "swizzle-merge:16,8@n", "serpentine:8", "hilbert"):
        yield case(order=order)


def kind_cases():
    """The Hopper kernel's tiles for operands of 1 and 4 bytes, with their scales; the tile kernel's on every target."""
    case = hopper_case
    for kind, tiles in HOPPER_KINDS.items():
        fields = {"layout": "nt"} | KINDS[kind]
        size = DTYPES[fields["dtype"]].itemsize
        for block_m, block_n, k_bytes, *rest in sorted(tiles):
            yield case((block_m, block_n, k_bytes // size, *rest), **fields)
    int8, fp8 = {"layout": "nt", "dtype": "int8"}, {"layout": "nt", "dtype": "fp8e4m3"}
    everything = Epilogue(scaled=True, bias=True, c=True)
    yield case((128, 256, 128, 4, 8), n=1023, **int8)
    yield case((128, 128, 128, 6, 8), split_k=4, **int8)
    yield case((128, 256, 128, 4, 8), scales="row", out_dtype="bf16", epilogue=Epilogue(bias=True), **int8)
    yield case((128, 256, 128, 4, 8), scales="row", precision="fast", out_dtype="fp32", epilogue=everything, **fp8)
    yield case((128, 256, 128, 4, 8), scales="tensor", precision="fast", n=1023, **fp8)
    for scales in ("128x1", "1x1"):
        yield case((128, 128, 128, 6, 8), scales=scales, epilogue=Epilogue(bias=True), **fp8)
    yield case((128, 128, 128, 6, 8), scales="1x128", n=1023, split_k=4, **fp8)
    for blocks in ((128, 256, 128, 4, 8), (256, 128, 128, 4, 8)):
        for scales in ("tensor", "row", "1x128"):
            yield case(blocks, scales=scales, split_tail=4, out_dtype="fp32", epilogue=Epilogue(bias=True), **fp8)
    yield case((128, 128, 128, 6, 8), scales="tensor", n=1023, out_dtype="fp32", epilogue=Epilogue(bias=True), **fp8)
    yield case((128, 256, 32, 4, 8), layout="nt", dtype="fp32", precision="tf32", epilogue=everything)
    for gpu in map(gpus.spec, ("a100", "h200", "b200", "mi300x")):
        for kind in ("fp64", "tf32x3", "bf16x3", "int8", "fp8", "fp8-block", "bf16-int8"):
            for m, n, k, layout in ((4096, 4096, 4096, "nt"), (1001, 4095, 1001, "nn")):
                problem = Problem.dense(m, n, k, layout=layout, **KINDS[kind])
                with contextlib.suppress(ValueError):  # no fp8e4m3 on the oldest, no tf32x3 on AMD
                    yield gpu, problem, unrelaid(choose(problem, gpu, "tile"), problem, gpu)


def unrelaid(config: Config, problem: Problem, gpu: gpus.Gpu) -> Config:
    """The config that reads operands where they lie, if it can."""
    there = replace(config, relayout="")
    return there if there.fits(problem, gpu) else config


def cluster_cases():
    """The Hopper kernel's clusters: every tile in every layout, and the rest for the two largest."""
    everything = Epilogue(scaled=True, bias=True, c=True)
    for *blocks, cluster in sorted(CLUSTERS):
        for layout in ("nn", "nt", "tn", "tt"):
            yield hopper_case(blocks, cluster, layout=layout)
        yield hopper_case(blocks, cluster, epilogue=everything)
        yield hopper_case(blocks, cluster, n=1023, layout="nt")
        gpu, problem, config = hopper_case(blocks, cluster, n=1023, layout="nt", epilogue=everything)
        if config.fits(problem, gpu):  # not the tallest, and not with three consumers
            yield gpu, problem, config
    for cluster in ("m", "n"):
        for more in (
            {"dtype": "fp16"}, {"out_dtype": "fp32"}, {"batch": 3}, {"order": "split-merge:8"}, {"order": "hilbert"}
        ):  # fmt: skip
            yield hopper_case((256, 256, 64, 4, 8), cluster, **more)


PERSISTENT = {
    (128, 256, 64, 3, 8), (128, 256, 64, 4, 8), (256, 128, 64, 3, 8), (128, 128, 64, 4, 8), (128, 128, 64, 3, 4),
    (128, 64, 64, 4, 4), (256, 64, 32, 4, 8), (128, 128, 128, 2, 8), (64, 128, 64, 4, 4), (64, 256, 64, 4, 4),
    (64, 64, 128, 3, 4),
}  # fmt: skip


def persistent_cases():
    """Every tile of the persistent kernel, then layouts, dtypes, epilogues and orders, on both of its targets."""
    for gpu in map(gpus.spec, ("h200", "b200")):

        def case(blocks=(128, 256, 64, 3, 8), n=4096, order="swizzle-merge:8", gpu=gpu, **fields):
            block_m, block_n, block_k, num_stages, num_warps = blocks
            problem = Problem(m=4000, n=n, k=4096, out_alignment=16 if n % 8 == 0 else 2, **fields)
            config = Config(
                "persistent", block_m, block_n, block_k, num_stages, num_warps,
                persistent=True, order=orders.parse(order),
            )  # fmt: skip
            return gpu, problem, config

        for blocks in sorted(PERSISTENT):
            if blocks[0] > 64 or gpu.capability == 90:
                yield case(blocks)
        for layout in ("nt", "tn", "tt"):
            yield case(layout=layout)
        everything = Epilogue(scaled=True, bias=True, c=True)
        yield case(dtype="fp16", batch=3)
        yield case(out_dtype="fp32")
        yield case(epilogue=everything)
        yield case(out_dtype="fp32", epilogue=everything)
        yield case(n=1023, layout="nt")
        yield case(n=1023, layout="nt", out_dtype="fp32")
        yield case((128, 128, 64, 4, 8), n=1023, layout="nt", epilogue=everything)
        for order in ("row-major", "split-merge:8", "swizzle-merge:16,8@n", "hilbert"):
            yield case(order=order)


def relayout_cases():
    """Copies of operands, all that the gate compiles of such plans: what multiplies them is among the others."""
    for gpu in map(gpus.spec, ("a100", "h200", "b200", "mi300x")):
        for k, relayout, fields in (
            (4095, "ab", {}),
            (4095, "a", {"layout": "tt"}),
            (65, "a", {"dtype": "fp32"}),
            (4095, "b", {"layout": "ns"}),
            (4095, "b", {"dtype": "int8"}),
        ):
            problem = Problem(m=4095, n=4095, k=k, a_alignment=2, b_alignment=2, **fields)
            yield (
                gpu,
                problem.relaid("ab".replace(relayout, "")),
                Config(block_m=64, block_n=64, block_k=32, relayout=relayout),
            )


def skinny_cases():
    """The candidates for typical decode steps on every target, then layouts, dtypes and epilogues."""
    for gpu in map(gpus.spec, ("a100", "h200", "b200", "mi300x")):
        for m, n, k in ((1, 4096, 4096), (4096, 1, 4096), (16, 4096, 4096), (64, 28672, 4096)):
            problem = Problem.dense(m, n, k, layout="nt")
            for config in skinny.configs(problem, gpu):
                yield gpu, problem, config
        for m in (1, 16, 24, 64):
            problem = Problem.dense(m, 4096, 4096, layout="nt", **KINDS["bf16-int8"] | {"scales": "row"})
            for config in skinny.configs(problem, gpu):
                yield gpu, problem, config
    h200 = gpus.spec("h200")
    for m in (1, 16, 24, 64):
        for kind in ("bf16-int8", "bf16-fp8"):
            problem = Problem.dense(m, 4096, 4096, layout="nt", **KINDS[kind])
            for config in skinny.configs(problem, h200):
                yield h200, problem, config
    for m in (1, 7, 100, 200):
        everything = Epilogue(scaled=True, bias=True, c=True)
        for fields in (
            {"layout": "nn"}, {"layout": "tn"}, {"layout": "tt"}, {"dtype": "fp16", "batch": 3}, {"dtype": "fp32"},
            {"dtype": "fp32", "precision": "tf32"}, {"epilogue": everything}, {"out_dtype": "fp32"},
        ):  # fmt: skip
            problem = Problem.dense(m, 4096, 4096, **{"layout": "nt"} | fields)
            yield h200, problem, choose(problem, h200, "skinny")
        for kind in ("bf16-int8", "bf16-fp8"):
            for scales in ("row", "1x1"):
                problem = Problem.dense(m, 4096, 4096, layout="nt", **KINDS[kind] | {"scales": scales})
                yield h200, problem, choose(problem, h200, "skinny")
        problem = Problem.dense(m, 4097, 4095, layout="nt", epilogue=everything)
        yield h200, problem, choose(problem, h200, "skinny")


def skinny_fault(compiled: Compiled, config: Config, problem: Problem, gpu: gpus.Gpu) -> str:
    """What is wrong with a skinny kernel's loads, or "": weights come 16 bytes at a time, and run ahead where asked."""
    if not gpu.is_nvidia or problem.alignment < 16:
        return ""
    narrow = min(config.block_m, config.block_n)
    ahead = narrow > 1 or config.num_stages > 1
    wide = r"cp\.async\.cg\.shared\.global \[ .* \], \[ .* \], 0x10" if ahead else r"ld\.global\.v4\.b32"
    if not re.search(wide, compiled.assembly):
        return f"no 16-byte {'copies' if ahead else 'loads'} of the weights"
    if config.split_k > 1:
        stored, counted, gathered = compiled.assembly.partition("atom.global.gpu.acq_rel.add.u32")
        if not counted or "st.global" in stored[stored.rfind("bar.sync") :] or "ld.global.cg" not in gathered:
            return "parts meet without a barrier, a released count or loads past L1, one after the other"
    return ""


SLICED = {
    # (block_m, block_n, block_k, num_stages, num_warps)
    "fp32": {(128, 128, 32, 2, 8), (64, 64, 16, 3, 4)},
    "fp64": {(128, 64, 32, 4, 8), (64, 64, 16, 3, 4), (64, 32, 16, 4, 4)},
}


def sliced_cases():
    """Every tile of the sliced kernel: aligned in each way that its operands may lie, then ragged with all there is."""
    everything = Epilogue(scaled=True, bias=True, c=True)
    h200 = gpus.spec("h200")
    for dtype, tiles in SLICED.items():
        for blocks in sorted(tiles):
            config = Config("sliced", *blocks)
            for n, layout in ((4096, "nn"), (4096, "nt"), (4096, "tn"), (4095, "nt")):
                yield h200, Problem.dense(4000, n, 4096, dtype=dtype, layout=layout), config
            for size, layout in ((1001, "nt"), (1001, "tn"), (1002, "nt"), (1002, "nn"), (1001, "ss")):
                fields = {"dtype": dtype, "layout": layout, "batch": 3, "epilogue": everything}
                problem = Problem.dense(4 * size, size, size, **fields)
                if config.fits(problem, h200):  # not the largest
                    yield h200, problem, config


def sliced_fault(compiled: Compiled, problem: Problem) -> str:
    """What is wrong with how the sliced kernel's operands move, or ""."""
    if "fma.rn.f32" not in compiled.assembly and not re.search(r"mma\.sync\S*\.f64", compiled.assembly):
        return "multiplies neither by fma nor on tensor cores"
    if problem.dtype == "fp32" and not re.search(r"ld\.shared\.v4", compiled.assembly):
        return "no reads of 16 bytes from shared memory"
    copied = {
        int(size, 16) for size in re.findall(r"cp\.async\.c[ag]\S* \[ .* \], \[ .* \], 0x(\w+)", compiled.assembly)
    }
    expected = sliced.vector(problem) * problem.element_bytes
    return "" if copied == {expected} else f"copies of {copied} bytes, expected {expected}"


def fault(compiled: Compiled, config: Config, problem: Problem, gpu: gpus.Gpu) -> str:
    """What is wrong with a compiled kernel, or ""."""
    if compiled.spilled_bytes:
        return f"spills {compiled.spilled_bytes} bytes"
    if compiled.warnings:
        return compiled.warnings
    if compiled.shared_bytes > gpu.shared_bytes:
        return f"needs {compiled.shared_bytes} bytes of shared memory and Config.fits let it pass"
    if config.relayout:
        return relayout_fault(compiled, config, problem, gpu)
    if config.kernel == "skinny":
        return skinny_fault(compiled, config, problem, gpu)
    if config.kernel == "sliced":
        return sliced_fault(compiled, problem)
    on_wgmma = problem.dtype not in ("fp32", "fp64") or problem.precision != "ieee"
    uses_wgmma = gpu.capability == 90 and on_wgmma and config.block_m >= 64 and config.num_warps >= 4
    if uses_wgmma and "wgmma.mma_async" not in compiled.assembly:
        return "does not use wgmma"
    if config.kernel == "persistent" and gpu.capability == 100:
        specialized = config.order.name != "split-merge"
        for there, instruction in ((True, "tcgen05.mma"), (specialized, "setmaxnreg")):
            if there != (instruction in compiled.assembly):
                return f"{'no' if there else 'unwanted'} {instruction}"
    if config.kernel == "hopper":
        waits = compiled.assembly.count("griddepcontrol.wait")
        if waits != config.num_warps // 4 + 1:
            return f"{waits} of its partitions wait for the previous grid"
    if config.kernel in ("hopper", "persistent"):
        if compiled.shared_bytes > shared_bytes(config, problem):
            return f"needs more shared memory than the {shared_bytes(config, problem)} that are counted"
        stores = problem.out_alignment == 16
        for there, instruction in ((True, r"shared::\w+\.global"), (stores, r"global\.shared::cta")):
            if there != bool(re.search(rf"cp\.async\.bulk\.tensor\.3d\.{instruction}", compiled.assembly)):
                return f"{'no' if there else 'unwanted'} cp.async.bulk.tensor.3d.{instruction}"
    return cluster_fault(compiled.assembly, config) if config.cluster else ""


def relayout_fault(compiled: Compiled, config: Config, problem: Problem, gpu: gpus.Gpu) -> str:
    """What is wrong with the kernel of a copy, or ""."""
    if not gpu.is_nvidia:
        return ""
    first = "ab".index(config.relayout[0])
    if problem.layout[first] not in ("s", problem.relaid(config.relayout).layout[first]):  # transposed
        return "" if re.search(r"st\.global\S*\.v4\.b32", compiled.assembly) else "no st.global of 16 bytes"
    if problem.k > 1024 and compiled.registers * 32 * RESIDENT > 65_536:  # short lines, many to a tile, may take more
        return f"an SM does not hold {RESIDENT} programs of {compiled.registers} registers a thread"
    gathered = "s" in problem.layout
    for instruction in (r"ld\.global\S*\.b64", r"st\.global\S*\.b64"):
        if gathered == bool(re.search(instruction, compiled.assembly)):
            return f"{'unwanted' if gathered else 'no'} {instruction}"
    return ""


def cluster_fault(ptx: str, config: Config) -> str:
    """What is wrong with a cluster's PTX, or "".

    `kernels/cluster.py` names the kernel's parameters in PTX: nothing else would notice if they were others.
    """
    maps = re.findall(r"\.param \.align 64 \.b8 (gemm_param_\d+)\[128\]", ptx)
    if maps[:2] != ["gemm_param_0", "gemm_param_7"]:
        return f"the tensor maps of A and B are {maps[:2]}"
    shared = maps[config.cluster == "m"]
    if (used := re.findall(r"mov\.b64 map, (\w+);", ptx)) != [shared]:
        return f"the shared operand's tensor map is {shared}, and its halves are loaded by {used}"
    consumers = math.prod(consumer_grid(config))
    lines = config.block_n if config.cluster == "m" else config.block_m
    for count, what, instruction in (
        ({1}, "clusters of two", r"\.reqnctapercluster 2"),
        ({lines // 128}, "multicasts", r"cp\.async\.bulk\.tensor\.3d\.shared::cluster[\w.:]*\.multicast::cluster"),
        ({2 * consumers}, "releases in both CTAs", r"mbarrier\.arrive\.shared::cluster\.b64"),
        ({3, 4}, "cluster barriers, none in a loop", r"barrier\.cluster\.arrive"),
    ):
        if (found := len(re.findall(instruction, ptx))) not in count:
            return f"{found} {what}, expected {' or '.join(map(str, sorted(count)))}"
    return ""


def transpose_cases():
    """(gpu, tile): every layout of shared memory, size of elements and kind of access, and other targets."""
    for elem_bytes in (1, 2, 4):
        widest = 16 // elem_bytes
        for layout in transposes.LAYOUTS:
            for vectors in ((widest, widest), (1, widest), (1, 1)):
                yield gpus.spec("h200"), transposes.TransposeTile(layout, elem_bytes, *vectors)
        for gpu in ("a100", "b200"):
            yield gpus.spec(gpu), transposes.TransposeTile("swizzled", elem_bytes, widest, widest)


def transpose_fault(compiled: Compiled, tile: transposes.TransposeTile) -> str:
    """What is wrong with a compiled transpose, or "": its reads must be those whose conflicts are predicted."""
    if compiled.spilled_bytes:
        return f"spills {compiled.spilled_bytes} bytes"
    expected = len(tile.conflicts()[1]) // tile.num_warps
    found = len(re.findall(r"ld\.shared\S*\.b", compiled.assembly))
    if tile.layout != "padded" and found != expected:  # Triton reads half words of some padded tiles one by one
        return f"{found} reads of shared memory, expected {expected}"
    for vector, direction in ((tile.load_vector, "ld"), (tile.store_vector, "st")):
        if vector * tile.elem_bytes == 16 and not re.search(rf"{direction}\.global\S*\.v4\.b32", compiled.assembly):
            return f"no {direction}.global of 16 bytes"
    return ""


def main() -> int:
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()  # nothing an earlier compiler made is looked at
    faults = 0
    clusters = cluster_cases() if HAS_CLUSTERS else ()
    hopper = *hopper_cases(), *kind_cases(), *clusters
    triton_only = *cases(), *relayout_cases(), *persistent_cases(), *skinny_cases()
    for gpu, problem, config in (*triton_only, *hopper, *sliced_cases()):
        compiled = compile_for(gpu, problem, config)
        why = fault(compiled, config, problem, gpu)
        faults += bool(why)
        print(
            f"{gpu.arch:7} {problem!s:28} {config!s:72} {compiled.registers:4} registers"
            f" {compiled.shared_bytes:7} bytes shared  {why or 'ok'}",
            flush=True,
        )
    for gpu, tile in transpose_cases():
        x = torch.empty(4096, 4096, dtype=transposes.INTEGERS[tile.elem_bytes], device="meta")
        compiled = compile_kernel(gpu, transposes.transpose_kernel, *transposes.arguments_of(x, x, tile))
        why = transpose_fault(compiled, tile)
        faults += bool(why)
        print(
            f"{gpu.arch:7} {tile!s:90} {compiled.registers:4} registers {compiled.shared_bytes:7} bytes shared "
            f" {why or 'ok'}",
            flush=True,
        )
    print(f"triton {triton.__version__}: {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
