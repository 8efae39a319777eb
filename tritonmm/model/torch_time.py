"""How long torch's own kernels take: a model of cuBLAS with the constants that fit its measured times.

cuBLAS has tiles of many shapes and chooses well among them, so it takes about the least that any of its tiles would.
For each tile, and each number of parts in which its sum over K may be split, three things go on at once:

* the busiest SM works off its tiles, step by step of K: a step takes as long as its mma, its loads, or the least that a
  step can take, whichever is longest;
* device memory moves each operand and the output once;
* L2 serves what all tiles read.

They are joined by a p-norm, and a launch comes on top. The constants are `KERNELS`, one record for each kind of
kernels, fitted to an H200; for other GPUs the peak rates and the bandwidth are theirs.

Grouped products have a model of their own, `_grouped_us`: torch computes them with a kernel of CUTLASS, or with a GEMM
for each group.
"""

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tritonmm.gpu import Gpu
from tritonmm.model.groups import average, sizes_of
from tritonmm.model.time import crossing, joined
from tritonmm.problem import Problem

STEP_BYTES = 128
"""Bytes of K of a row of a tile that are multiplied in one step."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """What torch's kernels for one kind of operands reach.

    tiles: which of `TILES` they have. share: of the peak rate; step_us: the least that a step of K takes; tile_us: what
    a tile takes besides its steps, for 10^4 of its elements. sm_bandwidth, l2_bandwidth: bytes/s that one SM receives
    and that all ask of L2; stream: share of the bandwidth of device memory; crossed: what a byte costs an SM more whose
    line begins anywhere in a cache line. launch_us: of one launch; first_us: before the first bytes; split_us: of
    adding up the parts where K is split; partial_bandwidth: bytes/s at which that is done; overlap: p of the p-norm.
    """

    tiles: str
    share: float
    step_us: float
    tile_us: float
    sm_bandwidth: float
    l2_bandwidth: float
    stream: float
    crossed: float
    launch_us: float
    first_us: float
    split_us: float
    partial_bandwidth: float
    overlap: float


_SIDES = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256)

TILES: dict[str, tuple[tuple[int, int], ...]] = {
    "wgmma": tuple(
        sorted({t for x in (64, 128, 192, 256) for y in _SIDES if x * y <= 192 * 256 for t in ((x, y), (y, x))})
    ),
    "mma.sync": ((64, 64), (64, 128), (128, 64), (128, 128), (256, 64), (64, 256), (256, 128), (128, 256)),
    "fma": tuple((x, y) for x in (32, 64, 128, 256) for y in (32, 64, 128, 256) if 1024 <= x * y <= 128 * 256),
}
"""Shapes of tiles, as names of cuBLAS's kernels have them (autotune/results/h200-torch-kernels.csv); widths of wgmma's
are any multiple of 8, of which these are enough."""

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Parts in which a tile's sum over K may be split."""

MOST_SPLIT = 128 * 256
"""Elements of the largest tile that is split."""

KERNELS = {
    "half": Kernels(
        tiles="wgmma",
        share=0.878,
        step_us=0.103,
        tile_us=0.562,
        sm_bandwidth=164e9,
        l2_bandwidth=25.6e12,
        stream=0.883,
        crossed=0.86,
        launch_us=2.71,
        first_us=0.16,
        split_us=3.75,
        partial_bandwidth=9.03e12,
        overlap=2.67,
    ),
    "half unaligned": Kernels(
        tiles="mma.sync",
        share=0.463,
        step_us=0.233,
        tile_us=0.589,
        sm_bandwidth=164e9,
        l2_bandwidth=2.49e12,
        stream=1.05,
        crossed=0.129,
        launch_us=4.87,
        first_us=0.161,
        split_us=2.37,
        partial_bandwidth=17.5e12,
        overlap=1.0,
    ),
    "tf32": Kernels(
        tiles="wgmma",
        share=0.891,
        step_us=0.153,
        tile_us=0.708,
        sm_bandwidth=179e9,
        l2_bandwidth=25.6e12,
        stream=0.883,
        crossed=0.839,
        launch_us=3.82,
        first_us=0.16,
        split_us=3.78,
        partial_bandwidth=9.03e12,
        overlap=1.8,
    ),
    "tf32 tn": Kernels(
        tiles="mma.sync",
        share=0.46,
        step_us=0.103,
        tile_us=0.578,
        sm_bandwidth=164e9,
        l2_bandwidth=25.6e12,
        stream=0.883,
        crossed=0.857,
        launch_us=3.02,
        first_us=0.16,
        split_us=3.47,
        partial_bandwidth=9.03e12,
        overlap=2.53,
    ),
    "tf32 unaligned": Kernels(
        tiles="wgmma",
        share=0.443,
        step_us=0.103,
        tile_us=0.551,
        sm_bandwidth=155e9,
        l2_bandwidth=25.6e12,
        stream=0.883,
        crossed=1.15,
        launch_us=3.55,
        first_us=0.16,
        split_us=3.57,
        partial_bandwidth=9.03e12,
        overlap=0.801,
    ),
    "fp32": Kernels(
        tiles="fma",
        share=0.808,
        step_us=0.226,
        tile_us=0.464,
        sm_bandwidth=500e9,
        l2_bandwidth=25.6e12,
        stream=0.883,
        crossed=0.97,
        launch_us=5.2,
        first_us=0.16,
        split_us=2.62,
        partial_bandwidth=9.03e12,
        overlap=1.14,
    ),
    "int8": Kernels(
        tiles="wgmma",
        share=0.438,
        step_us=0.103,
        tile_us=0.631,
        sm_bandwidth=93e9,
        l2_bandwidth=25.6e12,
        stream=0.883,
        crossed=1.25,
        launch_us=2.96,
        first_us=0.16,
        split_us=8.77,
        partial_bandwidth=9.03e12,
        overlap=1.95,
    ),
    "fp8": Kernels(
        tiles="wgmma",
        share=0.957,
        step_us=0.101,
        tile_us=0.744,
        sm_bandwidth=157e9,
        l2_bandwidth=25.6e12,
        stream=0.883,
        crossed=0.817,
        launch_us=3.13,
        first_us=0.16,
        split_us=3.39,
        partial_bandwidth=9.03e12,
        overlap=2.03,
    ),
    "fp8 blocks": Kernels(
        tiles="wgmma",
        share=0.761,
        step_us=0.103,
        tile_us=0.547,
        sm_bandwidth=164e9,
        l2_bandwidth=25.6e12,
        stream=0.883,
        crossed=0.86,
        launch_us=3.88,
        first_us=0.16,
        split_us=3.75,
        partial_bandwidth=9.03e12,
        overlap=1.96,
    ),
}
"""Fits of `python -m tritonmm.autotune.studies.fit_torch` to the torch columns of autotune/results/h200-*.csv (torch
2.11, cuBLAS 13, single launches on a rested H200), to one half of the products: it prints how far off the other is."""


GROUPED_SHARE = {128: 0.46, 256: 0.76}
"""Share of the peak rate of CUTLASS's grouped kernels, by the side of what two SMs of a cluster multiply at a time,
whether a group fills it or not: two tiles of 64 x 128, or two of 128 x 256."""

GROUPED_SMALL = 128
"""Rows of an average group, or columns, up to which torch takes the small tiles."""

GROUPED_STREAM = 0.9
"""Share of the bandwidth of device memory that they reach."""

GROUPED_LAUNCH_US = 50.0
"""Of two launches, the first of which makes arguments for each group."""

GROUPED_TILE_US = 2.5
"""Of each tile of a group of K besides its steps: it is written before the next is multiplied. Found from four
gradients of weights, of even groups of 1 to 32 steps of K: 5168, 424, 527 and 5987 us (H200, sustained, torch 2.11,
autotune/results/h200-grouped-mm-trials.csv.gz)."""

GROUPED_OVERLAP = 4.0
"""p of the p-norm of computing and reading. These constants fit 17 times of bf16 and groups of rows to 8% (H200, torch
2.11, CUDA graphs): tests/model/test_torch_time.py has them. Groups of K, fp8 and other GPUs were not measured."""

GROUPED_ARCHS = ("sm_90", "sm_100", "sm_103")
"""Where torch has that kernel, for bf16 and fp8. For bf16 elsewhere, and for other dtypes, it copies the offsets to the
host and computes a GEMM for each group. Elsewhere it refuses fp8."""


def kernels_of(problem: Problem) -> str:
    """The kind of kernels that torch has for a problem, a name of `KERNELS`. Of fp64 there is none."""
    p = problem
    aligned = min(p.alignment, p.out_alignment) == 16
    if p.element_bytes == 2:
        return "half" if aligned else "half unaligned"
    if p.precision == "tf32":
        if not aligned:
            return "tf32 unaligned"
        return "tf32 tn" if p.layout == "tn" else "tf32"
    if p.block_scaled:
        return "fp8 blocks"
    return {"fp8e4m3": "fp8", "fp8e5m2": "fp8"}.get(p.dtype, p.dtype)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the model reads of a problem: numbers, or columns of them for many problems.

    a_bytes, b_bytes, out_bytes: of an element; a_crosses, b_crosses: 1 where lines begin anywhere in cache lines, else
    0; rate: peak FLOP/s.
    """

    m: Any
    n: Any
    k: Any
    batch: Any
    a_bytes: Any
    b_bytes: Any
    out_bytes: Any
    a_crosses: Any
    b_crosses: Any
    rate: Any

    @classmethod
    def of(cls, problem: Problem, gpu: Gpu) -> "Sizes":
        p = problem
        a_crosses, b_crosses = map(float, crossing(p, ""))
        return cls(
            m=p.m,
            n=p.n,
            k=p.k,
            batch=p.batch,
            a_bytes=p.element_bytes,
            b_bytes=p.b_element_bytes,
            out_bytes=p.out_element_bytes,
            a_crosses=a_crosses,
            b_crosses=b_crosses,
            rate=gpu.rate(p.dtype, "tf32" if p.precision == "tf32" else "ieee"),
        )


def torch_us(problem: Problem, gpu: Gpu) -> float:
    """Estimated microseconds of torch's own kernel; of fp64 there is no estimate. Takes about 0.1 ms."""
    if problem.ragged:
        return _grouped_us(problem, gpu)
    return float(tiles_us(Sizes.of(problem, gpu), KERNELS[kernels_of(problem)], gpu).min())


def has_grouped_kernel(problem: Problem, gpu: Gpu) -> bool:
    """Whether torch has one kernel for all groups, which reads their sizes on the device."""
    return gpu.arch in GROUPED_ARCHS and (problem.dtype == "bf16" or problem.element_bytes == 1)


def _grouped_us(problem: Problem, gpu: Gpu) -> float:
    """Estimated microseconds of a grouped product of torch, of the known sizes or of those to expect."""
    p = problem
    if not has_grouped_kernel(p, gpu):
        return _one_by_one_us(p, gpu)
    sizes = sizes_of(p)
    used, groups = sum(sizes), sum(size > 0 for size in sizes)
    rows = p.m if p.ragged == "k" else p.m // p.groups
    side = min(GROUPED_SHARE) if min(rows, p.n) <= GROUPED_SMALL else max(GROUPED_SHARE)
    if p.ragged == "m":
        multiplied = sum(map(_rounded(side), sizes)) * _rounded(side)(p.n) * p.k
        moved = used * (p.k * p.element_bytes + p.n * p.out_element_bytes) + groups * p.k * p.n * p.b_element_bytes
    else:
        steps = _rounded(STEP_BYTES // p.element_bytes)
        multiplied = _rounded(side)(p.m) * _rounded(side)(p.n) * sum(map(steps, sizes))
        moved = used * (p.m * p.element_bytes + p.n * p.b_element_bytes) + p.output_bytes
    mma_us = 2e6 * multiplied / (GROUPED_SHARE[side] * gpu.rate(p.dtype))
    if p.ragged == "k":
        tiles = p.groups * -(-p.m // 128) * -(-p.n // side)
        mma_us += GROUPED_TILE_US * tiles / gpu.sms
    memory_us = 1e6 * moved / (GROUPED_STREAM * gpu.bandwidth)
    return GROUPED_LAUNCH_US + joined((mma_us, memory_us), GROUPED_OVERLAP)


def _rounded(unit: int) -> Callable[[int], int]:
    """Rounds up to a multiple of `unit`."""
    return lambda size: -(-size // unit) * unit


def _one_by_one_us(problem: Problem, gpu: Gpu) -> float:
    """Microseconds of a GEMM for each group. What the host takes is left out."""
    counted = Counter(size for size in sizes_of(problem) if size)
    one, column = average(problem), np.array([*counted], dtype=np.float64).reshape(-1, 1)
    dense = Sizes.of(one, gpu)
    sizes = replace(dense, m=column) if problem.ragged == "m" else replace(dense, k=column)
    return float(tiles_us(sizes, KERNELS[kernels_of(one)], gpu).min(axis=-1) @ [*counted.values()]) if counted else 0.0


def tiles_us(sizes: Sizes, kernels: Kernels, gpu: Gpu) -> np.ndarray:
    """Microseconds with each tile and split of those kernels: the last axis. Infinite for splits of more parts than
    there are steps."""
    s, c = sizes, kernels
    tile_m, tile_n, splits = _candidates(c.tiles)
    tiles_m, tiles_n = np.ceil(s.m / tile_m), np.ceil(s.n / tile_n)
    waves = np.ceil(tiles_m * tiles_n * splits * s.batch / gpu.sms)
    block_k = STEP_BYTES / s.a_bytes
    steps = np.maximum(1, np.ceil(s.k / block_k))
    a_cost, b_cost = 1 + c.crossed * s.a_crosses, 1 + c.crossed * s.b_crosses

    mma_us = tile_m * tile_n * (2e6 * block_k * gpu.sms / c.share / s.rate)
    loads_us = (tile_m * a_cost + tile_n * b_cost * (s.b_bytes / s.a_bytes)) * (STEP_BYTES * 1e6 / c.sm_bandwidth)
    step_us = np.maximum(np.maximum(mma_us, loads_us), c.step_us)
    sm_us = waves * (np.ceil(steps / splits) * step_us + tile_m * tile_n * (c.tile_us / 1e4))

    a_bytes, b_bytes = s.batch * s.m * s.k * s.a_bytes, s.batch * s.k * s.n * s.b_bytes
    once_bytes = a_bytes + b_bytes + s.batch * s.m * s.n * s.out_bytes
    memory_us = c.first_us + once_bytes * (1e6 / gpu.bandwidth / c.stream)
    l2_us = c.first_us + (a_bytes * a_cost * tiles_n + b_bytes * b_cost * tiles_m) * (1e6 / c.l2_bandwidth)

    together_us = (sm_us**c.overlap + memory_us**c.overlap + l2_us**c.overlap) ** (1 / c.overlap)
    sums_bytes = 8.0 * s.batch * s.m * s.n * splits  # written and read in fp32
    split_us = (splits > 1) * (c.split_us + sums_bytes * (1e6 / c.partial_bandwidth))
    return np.where(splits > steps, np.inf, c.launch_us + together_us + split_us)


@functools.cache
def _candidates(tiles: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows and columns of each tile, and its split."""
    found = [(m, n, s) for m, n in TILES[tiles] for s in SPLITS if s == 1 or m * n <= MOST_SPLIT]
    m, n, s = np.array(found, dtype=np.float64).T
    return m, n, s
