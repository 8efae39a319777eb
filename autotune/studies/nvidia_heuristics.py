"""The first choices of NVIDIA's matmul heuristics, and the configs of our kernels that are nearest to them.

    pip install nvidia-matmul-heuristics

The library chooses for kernels that are not ours. It is asked in three ways, each time for one config, the first by its
model of performance:

* triton: for Triton, whose kernels it takes to load by cp.async and multiply by mma.sync;
* cutlass3: for CUTLASS 3, whose kernels load by TMA and multiply by wgmma, as our hopper kernel does;
* cutlass3-fp16: the same, asked for fp16: of 16-bit operands it has profiles of real GPUs for those alone.

`mapped` keeps of a choice what our kernels have, by these rules:

* The kernel is hopper, with the legal tile whose rows and columns are nearest to theirs, if neither differs by more
  than a factor of two: their 128x80 is our 128x64. Else it is tile, or skinny, which splits K, where they split it.
  Nearest is the least sum of |log2| of both ratios; of equally near ones, the nearest step along K.
* Stages are theirs if legal, else what `select` uses for that tile, else as many as fit. In the tile kernel warps are
  as many as they have; hopper's are consumers, and as many as `select` uses.
* K of all tiles is split in as many parts as theirs, where the kernel can split that tile.
* Their row-major order of CTAs with swizzle f is swizzle-merge:f, their column-major one swizzle-merge:f@n. Clusters,
  which the sweeps lack, are not formed, but their tiles stay neighbours: f is multiplied by the cluster's height.
* Operands that TMA cannot address are first copied, in the hopper kernel.
"""

import functools
import importlib
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tritonmm.config import Config
from tritonmm.families.hopper import model as hopper
from tritonmm.families.tile import model as tile
from tritonmm.gpu import Gpu
from tritonmm.orders import SwizzleMerge
from tritonmm.problem import HALF, Problem

WAYS = {"triton": ("TRITON", ""), "cutlass3": ("CUTLASS3", ""), "cutlass3-fp16": ("CUTLASS3", "fp16")}
"""The library's name of what it chooses for, and the dtype it is asked for if not the problem's."""

PRECISIONS = {"bf16": "TST", "fp16": "HSH"}
"""Its names of the dtypes of operands, sums and output."""

GPUS = {"h200": "H200_SXM", "h100": "H100_SXM", "a100": "A100_SXM_80GB", "b200": "B200"}

HOPPER = tuple(itertools.product((256, 192, 128, 64), (256, 192, 128, 64, 32), (64, 128)))
POWERS = tuple(itertools.product((256, 128, 64, 32, 16), (256, 128, 64, 32, 16), (16, 32, 64, 128)))
"""Blocks that are tried; `Config.fits` decides."""


def first_choice(way: str, problem: Problem, gpu: Gpu):
    """The library's `GemmConfig` for a problem, of `WAYS`.

    Raises ModuleNotFoundError without the library, ValueError for a GPU or a product that it is not asked about.
    """
    if problem.dtype not in HALF or problem.b_dtype != problem.dtype or problem.out_dtype != problem.dtype:
        raise ValueError(
            f"{problem}: the heuristics are asked about products of bf16 and fp16, and outputs of the same"
        )
    target, dtype = WAYS[way]
    library, heuristics = _heuristics(target, gpu.name)
    # The letters are as CUTLASS asks it, those of BLAS: "T" is an operand with contiguous rows.
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
    """A choice of the heuristics in words like those of a config."""
    along = "@n" if found.cta_order else ""
    return (
        f"{found.cta_tile_m}x{found.cta_tile_n}x{found.cta_tile_k} stages:{found.stages} split-k:{found.split_k}"
        f" swizzle:{found.swizzle_factor}{along} cluster:{found.cluster_m}x{found.cluster_n}"
    )


def mapped(found, problem: Problem, gpu: Gpu) -> Config:
    """The legal config that is nearest to a `GemmConfig`, by the rules above. Raises ValueError where none is legal."""
    factor = found.swizzle_factor * (found.cluster_n if found.cta_order else found.cluster_m)
    order = SwizzleMerge(max(1, factor), along="n" if found.cta_order else "m")
    for config in _nearest(found, problem):
        config = replace(config, order=order)
        if config.fits(problem, gpu):
            return config
    raise ValueError(f"{problem}: no config is legal near {spelled(found)}")


def _nearest(found, problem: Problem) -> Iterator[Config]:
    """Configs to try, the nearest first."""
    theirs = found.cta_tile_m, found.cta_tile_n, found.cta_tile_k
    warps = found.cta_tile_m * found.cta_tile_n // (found.warp_tile_m * found.warp_tile_n)
    usual = {("hopper", t.blocks): t for t in hopper.tiles(problem)} | {
        ("tile", t.blocks): t for t in tile.tiles(problem)
    }

    def distance(blocks: tuple[int, int, int]) -> tuple[float, float]:
        rows, cols, depth = (abs(math.log2(one / other)) for one, other in zip(blocks, theirs, strict=True))
        return rows + cols, depth

    def tried(kernel: str, blocks: tuple[int, int, int], splits: Iterable[int]) -> Iterator[Config]:
        known = usual.get((kernel, blocks))
        known_warps, known_stages = ((known.num_warps,), (known.num_stages,)) if known else ((), ())
        of_warps = (*known_warps, 8, 4, 12) if kernel == "hopper" else (warps, *known_warps, 4, 8)
        of_stages = (found.stages, *known_stages, *range(found.stages - 1, 0, -1))
        walks, repack = (True, problem.unaligned) if kernel == "hopper" else (False, "")
        for split, num_warps, num_stages in itertools.product(splits, of_warps, of_stages):
            yield Config(kernel, *blocks, num_stages, num_warps, split, persistent=walks, repack=repack)

    for blocks in sorted(HOPPER, key=distance):
        if all(max(pair) <= 2 * min(pair) for pair in zip(blocks[:2], theirs, strict=False)):
            yield from tried("hopper", blocks, dict.fromkeys((found.split_k, 1)))
    if found.split_k > 1:
        for blocks in sorted(POWERS, key=distance):
            yield from tried("skinny", blocks, (found.split_k,))
    for blocks in sorted(POWERS, key=distance):
        yield from tried("tile", blocks, (1,))
