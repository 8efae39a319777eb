"""The first choices of NVIDIA's matmul heuristics, and the nearest configs of our kernels.

    pip install nvidia-matmul-heuristics

The library chooses for other kernels than ours. It is asked in three ways, each time for the best config by its
performance model:

* triton: for Triton kernels, which the library assumes to load by cp.async and multiply by mma.sync;
* cutlass3: for CUTLASS 3 kernels, which load by TMA and multiply by wgmma, as our hopper kernel does;
* cutlass3-fp16: the same, asked for fp16, the only 16-bit dtype for which the library has profiles of real GPUs.

`mapped` finds our config by these rules:

* The kernel is hopper, with the legal tile that is nearest in rows and columns, if neither differs by more than a
factor of two: 128x80 becomes 128x64. Otherwise it is tile, or skinny (with split-K) if the choice splits K. Distance is
the sum of |log2| of both ratios; ties go to the nearest step along K.
* Stages are the choice's if legal, else what `select` uses for that tile, else as many as fit. Warps are the choice's
in the tile kernel; in the hopper kernel they are what `select` uses.
* K is split into as many parts as in the choice, if the kernel can split that tile.
* A row-major order of CTAs with swizzle f becomes swizzle-merge:f, a column-major one swizzle-merge:f@n. Clusters are
not formed, because the sweeps have none. Their tiles stay neighbours: f is multiplied by the cluster's height.
* In the hopper kernel, operands that TMA cannot address are copied first.
"""

import functools
import importlib
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tritonmm.config import Config
from tritonmm.dtypes import HALF
from tritonmm.families.hopper import model as hopper
from tritonmm.families.tile import model as tile
from tritonmm.gpu import Gpu
from tritonmm.orders import SwizzleMerge
from tritonmm.problem import Problem

WAYS = {"triton": ("TRITON", ""), "cutlass3": ("CUTLASS3", ""), "cutlass3-fp16": ("CUTLASS3", "fp16")}
"""For each way, the library's name of the target, and the dtype that is asked for if not the problem's."""

PRECISIONS = {"bf16": "TST", "fp16": "HSH"}
"""The library's names for the dtypes of operands, sums and output."""

GPUS = {"h200": "H200_SXM", "h100": "H100_SXM", "a100": "A100_SXM_80GB", "b200": "B200"}

HOPPER = tuple(itertools.product((256, 192, 128, 64), (256, 192, 128, 64, 32), (64, 128)))
POWERS = tuple(itertools.product((256, 128, 64, 32, 16), (256, 128, 64, 32, 16), (16, 32, 64, 128)))
"""Blocks that are tried. `Config.fits` decides."""


def first_choice(way: str, problem: Problem, gpu: Gpu):
    """The library's `GemmConfig` for a problem. way: a key of `WAYS`.

    Raises ModuleNotFoundError without the library, and ValueError for an unsupported GPU or problem.
    """
    if problem.dtype not in HALF or problem.b_dtype != problem.dtype or problem.out_dtype != problem.dtype:
        raise ValueError(
            f"{problem}: the heuristics are asked only about bf16 and fp16 GEMMs with an output of the same dtype"
        )
    target, dtype = WAYS[way]
    library, heuristics = _heuristics(target, gpu.name)
    # CUTLASS uses BLAS's letters: "T" is an operand with contiguous rows.
    letters = "".join({"n": "T", "t": "N"}[letter] for letter in problem.layout)
    layout = library.NvMatmulHeuristicsMatmulLayout[f"{letters}_ROW_MAJOR"]
    asked = heuristics.makeNvMatmulHeuristicsProblem(problem.m, problem.n, problem.k, layout, problem.batch)
    found = heuristics.get(asked, 1, PRECISIONS[dtype or problem.dtype])
    if not found:
        raise ValueError(f"{problem}: the heuristics have no choice for {way}")
    return found[0]["kernel"]


@functools.cache
def _heuristics(target: str, gpu: str):
    try:
        library = importlib.import_module("nvMatmulHeuristics")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "nvidia-matmul-heuristics is not installed: pip install nvidia-matmul-heuristics"
        ) from None
    if gpu not in GPUS:
        raise ValueError(f"the heuristics are asked about {', '.join(GPUS)}; the GPU is {gpu}")
    return library, library.NvMatmulHeuristicsInterfaceEx(
        library.NvMatmulHeuristicsTarget[target],
        flags=library.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=library.NvMatmulHeuristicsNvidiaGpu[GPUS[gpu]],
    )


def spelled(found) -> str:
    """A choice of the heuristics, spelled like a config."""
    along = "@n" if found.cta_order else ""
    return (
        f"{found.cta_tile_m}x{found.cta_tile_n}x{found.cta_tile_k} stages:{found.stages} split-k:{found.split_k}"
        f" swizzle:{found.swizzle_factor}{along} cluster:{found.cluster_m}x{found.cluster_n}"
    )


def mapped(found, problem: Problem, gpu: Gpu) -> Config:
    """The nearest legal config to a `GemmConfig`, by the rules above. Raises ValueError if none is legal."""
    factor = found.swizzle_factor * (found.cluster_n if found.cta_order else found.cluster_m)
    order = SwizzleMerge(max(1, factor), along="n" if found.cta_order else "m")
    for config in _nearest(found, problem, gpu):
        config = replace(config, order=order)
        if config.fits(problem, gpu):
            return config
    raise ValueError(f"{problem}: no config is legal near {spelled(found)}")


def _nearest(found, problem: Problem, gpu: Gpu) -> Iterator[Config]:
    """Configs to try, the nearest first."""
    theirs = found.cta_tile_m, found.cta_tile_n, found.cta_tile_k
    warps = found.cta_tile_m * found.cta_tile_n // (found.warp_tile_m * found.warp_tile_n)
    usual = {("hopper", t.blocks): t for t in hopper.MODEL.tiles(problem, gpu)} | {
        ("tile", t.blocks): t for t in tile.MODEL.tiles(problem, gpu)
    }

    def distance(blocks: tuple[int, int, int]) -> tuple[float, float]:
        rows, cols, depth = (abs(math.log2(one / other)) for one, other in zip(blocks, theirs, strict=True))
        return rows + cols, depth

    def tried(kernel: str, blocks: tuple[int, int, int], splits: Iterable[int]) -> Iterator[Config]:
        known = usual.get((kernel, blocks))
        known_warps, known_stages = ((known.num_warps,), (known.num_stages,)) if known else ((), ())
        of_warps = (*known_warps, 8, 4, 12) if kernel == "hopper" else (warps, *known_warps, 4, 8)
        of_stages = (found.stages, *known_stages, *range(found.stages - 1, 0, -1))
        persistent, repack = (True, problem.unaligned) if kernel == "hopper" else (False, "")
        for split, num_warps, num_stages in itertools.product(splits, of_warps, of_stages):
            yield Config(kernel, *blocks, num_stages, num_warps, split, persistent=persistent, repack=repack)

    for blocks in sorted(HOPPER, key=distance):
        if all(max(pair) <= 2 * min(pair) for pair in zip(blocks[:2], theirs, strict=False)):
            yield from tried("hopper", blocks, dict.fromkeys((found.split_k, 1)))
    if found.split_k > 1:
        for blocks in sorted(POWERS, key=distance):
            yield from tried("skinny", blocks, (found.split_k,))
    for blocks in sorted(POWERS, key=distance):
        yield from tried("tile", blocks, (1,))
