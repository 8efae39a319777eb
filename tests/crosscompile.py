"""Compiles kernels for GPUs that are not here, and reads what became of them.

Triton compiles to PTX, cubin and hsaco with its wheel alone; all it asks of a driver is which
target to compile for. Run as a program this file is the compile gate: of the families of
`compile_cases` that it is given, or of all, it prints a line a kernel and exits with 1 if one
spills, waits after every wgmma or needs more shared memory than `Config.fits` says. It runs in
processes of its own, since the rest of the tests interpret kernels.

    python crosscompile.py [FAMILY | FAMILY:PART/PARTS ...]    # FAMILY:0/3 is the first third of its kernels
"""

import contextlib
import io
import itertools
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import triton
from compile_cases import FAMILIES, share
from compile_ozaki import SPILLS, OzakiCase
from compile_rows import Attention
from random_products import Product
from triton.runtime import driver

from tritonmm import gpu as gpus
from tritonmm.autotune.measuring.precompile import Elsewhere
from tritonmm.autotune.studies.bank_conflicts import launch as transposes
from tritonmm.config import Config
from tritonmm.device import ordered_mma
from tritonmm.device.groups import group_table_kernel
from tritonmm.dtypes import DTYPES
from tritonmm.families.exact import rules as sliced
from tritonmm.families.grouped.rules import CONSUMERS, subtiles, widths
from tritonmm.families.hopper.kernel import gemm
from tritonmm.families.hopper.rules import consumer_grid
from tritonmm.families.hopper.sm_affinity import affinity
from tritonmm.families.mixed_input import rules as weights_rules
from tritonmm.families.mixed_input.rules import fixup, programs
from tritonmm.launch import quantize_rows
from tritonmm.launch.groups import GroupTable
from tritonmm.launch.repack import RESIDENT
from tritonmm.plan import bind
from tritonmm.problem import Problem

LOGS: dict[str, str] = {}
"""What ptxas said of each kernel; a kernel that is compiled twice comes from Triton's cache, with no log."""

SKINNY_SPILLS = 120
"""Bytes that the skinny kernel may store and load for want of registers. Without a batch four kernels do so with Triton
3.9: 120 bytes in tiles of 64 x 128 x 128 with int8 weights and scales of rows, 24 with scales of groups, and 8 and 16
bytes for one row. They were measured and chosen like that. With offsets of 64 bits none of them would."""


SM120_SPILLS = 64
"""The same of all kernels for sm_120: 56 bytes in tiles of 64 x 128 x 64 that mask K, with Triton 3.9. None has run."""

SM89_SPILLS = 8
"""The same of all kernels for sm_89: int4 of groups in tiles of 16 x 32 x 32, with Triton 3.6. None has run."""

ATTENTION_SPILLS = {80: 8}
"""The same of attention, by compute capability: with 4 heads of 128 and Triton 3.9. It has not run there."""

PACKED_SPILLS = 8
"""The same of the skinny kernel for packed int8 on GPUs of AMD: one row on an mi300x, with Triton 3.6. It has not run
there."""

ASSIST_SPILLS = 12
"""The same of the mixed-input kernel for packed int8 with scales of rows where programs assist each other and a tile
has all rows, with Triton 3.9. They are stored and loaded outside of the loop over K."""

RANDOM_SPILLS = 1024
"""The same of what is chosen for random products: such kernels are slower than they could be, but right. One that
spills more is of a tile for which its GPU has far too few registers."""


@dataclass(frozen=True)
class Compiled:
    registers: int
    spilled_bytes: int
    shared_bytes: int
    warnings: str
    assembly: str
    hash: str = ""
    starts_early: bool = False  # launched with PDL, while the grid before it may still run


def compile_for(gpu: gpus.Gpu, problem: Problem, config: Config, c_dtype: str = "") -> Compiled:
    """What the plan of (problem, config) launches, compiled for `gpu`. c_dtype: of C, by default the output's."""
    driver.set_active(Elsewhere(gpu))
    a, b, out = operands(problem)
    plan, given = bind(problem, config, gpu, torch.device("meta")), {}
    if problem.ragged:  # a kernel of its own makes the table of groups
        plan, given = plan.inner, {"groups": torch.empty(1024, dtype=torch.int32, device="meta")}
    c = out.to(DTYPES[c_dtype or problem.out_dtype]) if problem.epilogue.c else None
    bias_shape = (problem.groups, problem.n) if problem.ragged else (problem.n,)
    bias = out.new_empty(bias_shape) if problem.epilogue.bias else None
    scales = None
    if problem.scales:
        scales = tuple(shape and torch.empty(shape, device="meta") for shape in problem.scale_shapes)
    return compile_kernel(gpu, plan.kernel, *plan.arguments(a, b, out, c=c, bias=bias, scales=scales, **given))


def compile_kernel(gpu: gpus.Gpu, jitted, arguments: tuple, options: dict) -> Compiled:
    """What a launch with these arguments would run, compiled for `gpu`."""
    driver.set_active(Elsewhere(gpu))
    with contextlib.redirect_stdout(io.StringIO()) as log, triton.knobs.nvidia.scope():
        triton.knobs.nvidia.dump_ptxas_log = True
        kernel = jitted.warmup(*arguments, grid=(1,), **options)
    if not gpu.is_nvidia:
        return read_amd(kernel)
    found = read_nvidia(kernel, LOGS.setdefault(kernel.hash, log.getvalue()))
    return replace(found, starts_early=options.get("launch_pdl", False))


def product_kernels(gpu: gpus.Gpu, product: Product, config: Config) -> Iterator[tuple[Compiled, int]]:
    """What the plan of a random product launches, in turn, and the bytes of shared memory that the rules count for
    each. For copies and the table of groups they count none: what the GPU has is the limit."""
    driver.set_active(Elsewhere(gpu))
    plan = bind(product.problem, config, gpu, torch.device("meta"))
    launched = list(plan.kernels(product.a, product.b, product.out, **product.epilogue))
    for kernel, arguments, options in launched:
        is_last = kernel is launched[-1][0]
        counted = config.shared_bytes(product.problem.repacked(config.repack), gpu) if is_last else gpu.shared_bytes
        yield compile_kernel(gpu, kernel, arguments, options), counted


def operands(problem: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tensors of the problem's shapes, dtypes and layout without memory."""

    def empty(rows, cols, letter, dtype, ragged=""):
        batch = problem.groups if ragged and problem.ragged == ragged else problem.batch
        shape = (batch, cols, rows) if letter == "t" else (batch, rows, cols)
        x = torch.empty(shape, dtype=DTYPES[dtype], device="meta")
        return x.mT if letter == "t" else x

    a = empty(problem.m, problem.k, problem.layout[0], problem.dtype)
    b = empty(problem.b_rows, problem.n, problem.layout[1], problem.b_dtype, "m")
    return a, b, empty(problem.m, problem.n, "n", problem.out_dtype, "k")


def read_nvidia(kernel, log: str) -> Compiled:
    registers = int(re.search(r"Used (\d+) registers", log)[1])
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill", log)))
    warnings = "\n".join(line for line in log.splitlines() if "C75" in line)
    return Compiled(registers, spilled, kernel.metadata.shared, warnings, kernel.asm["ptx"], kernel.hash)


def read_amd(kernel) -> Compiled:
    assembly = kernel.asm["amdgcn"]
    count = {key: int(re.search(rf"\.{key}:\s+(\d+)", assembly)[1]) for key in ("vgpr_count", "vgpr_spill_count")}
    spilled = 4 * count["vgpr_spill_count"]
    return Compiled(count["vgpr_count"], spilled, kernel.metadata.shared, "", assembly, kernel.hash)


def skinny_fault(compiled: Compiled, config: Config, problem: Problem, gpu: gpus.Gpu) -> str:
    """What is wrong with a skinny kernel's loads, or "": weights come 16 bytes at a time, and run ahead where asked."""
    if not gpu.is_nvidia or problem.alignment < 16:
        return ""
    narrow = min(config.block_m, config.block_n)
    ahead = narrow > 1 or config.num_stages > 1
    wide = r"cp\.async\.cg\.shared\.global \[ .* \], \[ .* \], 0x10" if ahead else r"ld\.global\.v4\.b32"
    if not re.search(wide, compiled.assembly):
        return f"no 16-byte {'copies' if ahead else 'loads'} of the weights"
    return meeting_fault(compiled, config.split_k > 1)


def meeting_fault(compiled: Compiled, splits: bool) -> str:
    """What is wrong with how the parts of split tiles meet, or ""."""
    if splits:
        stored, counted, gathered = compiled.assembly.partition("atom.global.gpu.acq_rel.add.u32")
        if not counted or "st.global" in stored[stored.rfind("bar.sync") :] or "ld.global.cg" not in gathered:
            return "parts meet without a barrier, a released count or loads past L1, one after the other"
    return ""


def sliced_fault(compiled: Compiled, config: Config, problem: Problem) -> str:
    """What is wrong with how the exact kernel's operands move, or ""."""
    if "fma.rn.f32" not in compiled.assembly and not re.search(r"mma\.sync\S*\.f64", compiled.assembly):
        return "multiplies neither by fma nor on tensor cores"
    if problem.dtype == "fp32" and not re.search(r"ld\.shared\.v4", compiled.assembly):
        return "no reads of 16 bytes from shared memory"
    copied = {
        int(size, 16) for size in re.findall(r"cp\.async\.c[ag]\S* \[ .* \], \[ .* \], 0x(\w+)", compiled.assembly)
    }
    expected = sliced.vector(problem) * problem.element_bytes
    if copied != {expected}:
        return f"copies of {copied} bytes, expected {expected}"
    return meeting_fault(compiled, config.split_k > 1)


def weights_fault(compiled: Compiled, config: Config, problem: Problem, gpu: gpus.Gpu) -> str:
    """What is wrong with how weights are streamed, or "": they come by TMA and are multiplied from registers."""
    if not re.search(r"wgmma\.mma_async[^;]*\}, \{%r", compiled.assembly):
        return "does not multiply weights that are in registers"
    waits = compiled.assembly.count("griddepcontrol.wait")
    if waits != config.num_warps // 4 + 1:
        return f"{waits} of its partitions wait for the previous grid"
    rounded = weights_rules.rounds_first(problem)
    bytes_, narrow = (16, r"b16|b32|v2\.b32") if rounded else (8, "b16")
    stores = re.findall(rf"st\.global\.({narrow})\b", compiled.assembly)
    if stores and problem.n % (bytes_ // 2) == 0 and problem.out_alignment >= bytes_:
        return f"{len(stores)} stores of {', '.join(sorted(set(stores)))}; the output's alignment allows {bytes_} bytes"
    if rounded and "stmatrix" not in compiled.assembly:
        return "no stmatrix"
    ordered = weights_rules.ordered_mma(config, problem)
    if ordered and (why := ordered_mma_fault(compiled.assembly, config.num_warps // 4)):
        return why
    tiles = config.order.launched(*config.tiles(problem))
    how = fixup(config, programs(config, problem, gpu, tiles), tiles)
    events = re.findall(r"\bbar\.sync|\bfence\.acq_rel\.gpu|\bst\.global|\.gpu\.relaxed\.add", compiled.assembly)
    says = " ".join(events).count("bar.sync fence.acq_rel.gpu .gpu.relaxed.add")
    if how == "assist" and says != config.num_warps // 4:
        return "assistants do not say with a barrier, a fence and a count in turn that their sums are there"
    return meeting_fault(compiled, how != "")


def groups_fault(ptx: str, config: Config, problem: Problem) -> str:
    """What is wrong with how the grouped kernel for Hopper multiplies and moves groups, or "".

    There is an accumulator for each number of rows. What groups divide has a tensor map of rank 4, anything else of 3.
    """
    of_m = problem.ragged == "m"
    tiles = [width for _, width in widths(config.block_m)] if of_m else [config.block_m]
    widest = 128 if problem.dtype == "int8" else 256
    consumers = CONSUMERS[config.block_n]
    expected = {min(rows, widest) for width in tiles for rows in subtiles(width, consumers)}
    multiplied = set(map(int, re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k", ptx)))
    if multiplied != expected:
        return f"wgmma of {sorted(multiplied)} columns, expected {sorted(expected)}"
    waits = ptx.count("griddepcontrol.wait")
    if waits != consumers + 2:  # the producer and the scheduler
        return f"{waits} of its partitions wait for the previous grid"
    for what, instruction, rank in (("loads", r"shared::\w+\.global", 3), ("stores", r"global\.shared::cta", 4)):
        rank = rank if of_m else 7 - rank
        if (found := set(re.findall(rf"cp\.async\.bulk\.tensor\.(\d)d\.{instruction}", ptx))) != {str(rank)}:
            return f"TMA {what} of ranks {sorted(found)}, expected {rank}"
    return ""


def start_fault(compiled: Compiled) -> str:
    """What is wrong with how a kernel starts while the grid before it may still run, or "": it must wait for the end of
    that grid before it touches memory, and before the next grid may start. `device/pdl.py` says why.

    A kernel of several partitions must have a wait in each, which the checks of the families count.
    """
    if not compiled.starts_early:
        return ""
    before, *after = compiled.assembly.split("griddepcontrol.wait")
    if not after:
        return "does not wait for the previous grid"
    touched = re.search(r"\b(?:ld|st|atom|red|cp|prefetch)\.[\w.:]*global\S*|griddepcontrol\.\S*", before)
    return f"{touched[0]} before the previous grid has ended" if touched else ""


def common_fault(compiled: Compiled, gpu: gpus.Gpu, counted: int, spills: int = 0) -> str:
    """What is wrong with the start, the registers or the shared memory of a kernel, whatever it computes, or "".

    counted: bytes of shared memory that the rules count; they refuse configs by it, so a kernel must not need more.
    spills: bytes that it may store and load for want of registers.
    """
    if why := start_fault(compiled):
        return why
    if compiled.spilled_bytes > spills:
        return f"spills {compiled.spilled_bytes} bytes"
    if compiled.warnings:
        return compiled.warnings
    if compiled.shared_bytes > gpu.shared_bytes:
        return f"needs {compiled.shared_bytes} bytes of shared memory and Config.fits let it pass"
    if compiled.shared_bytes > counted:
        return f"needs {compiled.shared_bytes} bytes of shared memory, and {counted} are counted"
    return ""


def allowed_spills(config: Config, problem: Problem, gpu: gpus.Gpu) -> int:
    """Bytes that a kernel may store and load for want of registers."""
    is_packed = problem.b_dtype == "int8p"
    if config.kernel == "skinny" and gpu.is_nvidia:
        return SKINNY_SPILLS
    if config.kernel == "skinny" and is_packed:
        return PACKED_SPILLS
    if is_packed and problem.scales == "row" and config.split_tail > 1 and problem.m <= config.block_m:
        return ASSIST_SPILLS
    return {89: SM89_SPILLS, 120: SM120_SPILLS}.get(gpu.capability, 0)


def fault(compiled: Compiled, config: Config, problem: Problem, gpu: gpus.Gpu) -> str:
    """What is wrong with a compiled kernel, or ""."""
    counted = gpu.shared_bytes if config.repack else config.shared_bytes(problem, gpu)
    if why := common_fault(compiled, gpu, counted, allowed_spills(config, problem, gpu)):
        return why
    if config.repack:
        return repack_fault(compiled, config, problem, gpu)
    if config.kernel == "skinny":
        return skinny_fault(compiled, config, problem, gpu)
    if config.kernel == "exact":
        return sliced_fault(compiled, config, problem)
    if config.kernel == "mixed_input":
        return weights_fault(compiled, config, problem, gpu)
    if config.kernel == "grouped":
        return groups_fault(compiled.assembly, config, problem)
    on_wgmma = problem.dtype not in ("fp32", "fp64") or problem.precision != "ieee"
    uses_wgmma = gpu.capability == 90 and on_wgmma and config.block_m >= 64 and config.num_warps >= 4
    if uses_wgmma and "wgmma.mma_async" not in compiled.assembly:
        return "does not use wgmma"
    if config.kernel == "persistent" and gpu.capability in (100, 103):
        specialized = config.order.name != "split-merge"
        for there, instruction in ((True, "tcgen05.mma"), (specialized, "setmaxnreg")):
            if there != (instruction in compiled.assembly):
                return f"{'no' if there else 'unwanted'} {instruction}"
    if config.kernel == "hopper":
        waits = compiled.assembly.count("griddepcontrol.wait")
        claim_warps = int(bool(affinity(config, problem, gpu)))
        if waits != config.num_warps // 4 + 1 + claim_warps:
            return f"{waits} of its partitions wait for the previous grid"
        consumers = math.prod(consumer_grid(config))
        if problem.block_scaled and consumers > 1 and (why := ordered_mma_fault(compiled.assembly, consumers)):
            return why
    if config.kernel in ("hopper", "persistent"):
        by_tma = "tma" if problem.out_alignment == 16 else ""
        store = bind(problem, config, gpu, torch.device("meta")).tiling.store if config.kernel == "hopper" else by_tma
        if store == "rows" and not re.search(r"st\.global\S*\.v4\.b32", compiled.assembly):
            return "no st.global of 16 bytes"
        stores = store == "tma"
        for there, instruction in ((True, r"shared::\w+\.global"), (stores, r"global\.shared::cta")):
            if there != bool(re.search(rf"cp\.async\.bulk\.tensor\.3d\.{instruction}", compiled.assembly)):
                return f"{'no' if there else 'unwanted'} cp.async.bulk.tensor.3d.{instruction}"
    return cluster_fault(compiled.assembly, config) if config.cluster else ""


def ordered_mma_fault(ptx: str, consumers: int) -> str:
    """What is wrong with how consumers order their wgmma, or "": each waits as often as the one before it arrives, and
    the first once more than others: it takes the turn that is left over."""
    turns = []
    for i in range(consumers):
        barrier = ordered_mma.barrier_of(i)
        uses = re.findall(rf"bar\S*\s+{barrier}\b[^;]*", ptx)
        waits, passes = (uses.count(f"bar.{what} {barrier}, 256") for what in ("sync", "arrive"))
        if not waits == passes == len(uses) / 2 > 0:
            return f"consumer {i} uses its barrier as {uses}"
        turns.append(waits)
    return "" if {turns[0] - 1} == set(turns[1:]) else f"consumers take {turns} turns"


def skip_fault(ptx: str) -> str:
    """What is wrong with how a launch of the Hopper kernel is skipped, or "": the first that each partition reads, once
    it has waited for the previous grid, is whether it is skipped."""
    _, *partitions = ptx.split("griddepcontrol.wait")
    for i, partition in enumerate(partitions):
        read = re.match(r"[^;]*ld\.global\.b32 \{ (%r\d+) \}", partition[partition.find("ld.global") :])
        if not read or not re.search(rf"setp\.\w+\.[bsu]32\s+%p\d+, {read[1]}, 0;", partition):
            return f"partition {i} does not read first whether it is skipped"
    return ""


def repack_fault(compiled: Compiled, config: Config, problem: Problem, gpu: gpus.Gpu) -> str:
    """What is wrong with the kernel of a copy, or ""."""
    if not gpu.is_nvidia:
        return ""
    first = "ab".index(config.repack[0])
    if problem.layout[first] not in ("s", problem.repacked(config.repack).layout[first]):  # transposed
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

    `device/cluster.py` names the kernel's parameters in PTX: nothing else would notice if they were others.
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


def compiled(gpu: gpus.Gpu, *what) -> tuple[Compiled, str]:
    """A case of `compile_cases`, and what is wrong with it."""
    driver.set_active(Elsewhere(gpu))  # launch options depend on it
    if isinstance(what[0], Problem):
        problem, config = what
        found = compile_for(gpu, problem, config)
        return found, fault(found, config, problem, gpu)
    if isinstance(what[0], Product):
        each = list(product_kernels(gpu, *what))
        wrong = [common_fault(found, gpu, counted, RANDOM_SPILLS) for found, counted in each]
        return each[-1][0], next(filter(None, wrong), "")
    if isinstance(what[0], GroupTable):
        offs = torch.empty(what[0].groups, dtype=torch.int32, device="meta")
        found = compile_kernel(gpu, group_table_kernel, *what[0].launch(offs, what[0].empty(offs.device)))
        return found, common_fault(found, gpu, gpu.shared_bytes)
    if isinstance(what[0], torch.dtype):
        x = torch.empty(8, 5000, dtype=what[0], device="meta")
        given = x, torch.empty_like(x, dtype=torch.float8_e4m3fn), x.new_empty(8, 1, dtype=torch.float32)
        step = quantize_rows.step(*given)
        found = compile_kernel(gpu, step.kernel, step.arguments, step.options)
        return found, common_fault(found, gpu, gpu.shared_bytes)
    if isinstance(what[0], Attention):
        each = [compile_kernel(gpu, step.kernel, step.arguments, step.options) for step in what[0].steps()]
        spills = ATTENTION_SPILLS.get(gpu.capability, 0)
        wrong = [common_fault(found, gpu, gpu.shared_bytes, spills) for found in each]
        return each[-1], next(filter(None, wrong), "")
    if isinstance(what[0], OzakiCase):
        steps = list(what[0].steps(gpu))
        each = [compile_kernel(gpu, kernel, *launch) for kernel, _, *launch in steps]
        wrong = [common_fault(found, gpu, gpu.shared_bytes, SPILLS.get(gpu.capability, 0)) for found in each]
        wrong += [skip_fault(found.assembly) for found, step in zip(each, steps, strict=True) if step.kernel is gemm]
        return each[-1], next(filter(None, wrong), "")
    (tile,) = what
    x = torch.empty(4096, 4096, dtype=transposes.INTEGERS[tile.elem_bytes], device="meta")
    found = compile_kernel(gpu, transposes.transpose_kernel, *transposes.arguments_of(x, x, tile))
    return found, transpose_fault(found, tile)


def cases(asked: str) -> list[tuple]:
    """The cases of FAMILY or FAMILY:PART/PARTS."""
    family, _, part = asked.partition(":")
    return share(family, *map(int, part.split("/"))) if part else share(family)


def main(families) -> int:
    faults = 0
    with tempfile.TemporaryDirectory() as os.environ["TRITON_CACHE_DIR"]:  # nothing an earlier compiler made is there
        for gpu, *what in itertools.chain.from_iterable(map(cases, families or FAMILIES)):
            found, why = compiled(gpu, *what)
            faults += bool(why)
            print(
                f"{gpu.arch:7} {' '.join(map(str, what)):100} {found.registers:4} registers"
                f" {found.shared_bytes:7} bytes shared  {why or 'ok'}",
                flush=True,
            )
    print(f"triton {triton.__version__}: {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
