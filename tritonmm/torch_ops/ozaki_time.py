"""The estimated time of a product with precision "ozaki": its passes over memory, and its int8 products.

The int8 products have the estimate of their config. Each other launch moves its bytes at the share of the bandwidth
that copies of operands reach, or takes as long as its fp64 arithmetic; and it takes `LAUNCH_US` besides.
"""

from dataclasses import replace
from typing import NamedTuple

from tritonmm.gpu import Gpu
from tritonmm.model import constants
from tritonmm.model.torch_time import torch_us
from tritonmm.moduli import MOST_K, SAFE
from tritonmm.ozaki.crt import MOST_OF_64_BITS, crt
from tritonmm.ozaki.panels import panels, parts_of, products_of
from tritonmm.ozaki.scaling import CHUNK, FEW_CHUNKS
from tritonmm.problem import Problem
from tritonmm.selection import Choice, best

LAUNCH_US = 8.0
"""Microseconds of a launch besides its bytes: what those take that move hardly any. In a CUDA graph on an H200 scales
took 6.3 to 9.3, and `nonfinite_kernel` 5.3 to 9.8, both 8 in the mean (autotune/results/h200-ozaki-parts.csv). Today's
take 1.5 to 6 alone, but with 8 whole products are estimated best (docs/ozaki.md). On other GPUs it is a guess, and so
it is for a launch that is skipped."""

GAIN = 0.9
"""What a product must be estimated to take, of the time of a native one, to be computed instead of it where either may
be: estimates were up to 10% short (docs/ozaki.md)."""

TORCHS_FP64 = 0.91
"""Of `Gpu.peak`, what torch's fp64 products are taken to reach: 0.87, 0.89 and 0.91 of it at 2048, 4096 and 8192 on an
H200 (docs/ozaki.md)."""

RECONSTRUCT_LAUNCHES = 2

QUANTIZE_FP64 = {"fp64": 12, "fp32": 3}
"""fp64 instructions for an element of an operand, counted in the sources of both kernels that read it."""

EPILOGUE_FP64 = 30
"""fp64 instructions for an element of the output besides those for its residues, counted likewise."""

FP32_EPILOGUE_FP64 = 5
"""All for an element of a product of fp32 whose residues are added up in integers."""

VECTOR_SHARE = 0.5
"""Of `Gpu.peak` in fp64, what CUDA cores reach where it is the rate of tensor cores. Elsewhere it is a caution."""


class Parts(NamedTuple):
    """Microseconds of each part, which follow each other."""

    quantize: float = 0.0
    products: float = 0.0
    reconstruct: float = 0.0


class OzakiTime(NamedTuple):
    """Estimated microseconds, and what they are made of, as `model.time.Time` has them."""

    us: float
    parts: Parts

    @property
    def bound(self) -> str:
        """The part that takes longest."""
        return max(zip(self.parts, Parts._fields, strict=True))[1]

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {us:.1f}" for name, us in zip(Parts._fields, self.parts, strict=True))
        return f"{self.us:.1f} us, bound by {self.bound} ({parts})"


class Estimate(NamedTuple):
    """What is known of a product with precision "ozaki" before it is launched.

    refused_us: microseconds of a product with "ozaki:safe" that is refused, besides those of the native product.
    panels: in how many parts the output is computed. products, choice: the int8 products of the first one, and their
    config.
    """

    time: OzakiTime
    refused_us: float
    panels: int
    products: Problem
    choice: Choice


def estimate(problem: Problem, gpu: Gpu) -> Estimate:
    """The estimate of a problem with precision "ozaki". Raises ValueError if it has no output."""
    p, moduli = problem, problem.ozaki
    quantize = products = reconstruct = 0.0
    known: dict[Problem, Choice] = {}
    first: Problem | None = None
    count = launches = 0
    for panel in panels(p.m, p.n, p.k, p.batch, moduli):
        batch, rows = panel.batch.stop - panel.batch.start, panel.rows.stop - panel.rows.start
        for j, columns in enumerate(panel.columns):
            cols = columns.stop - columns.start
            quantize += quantize_us(batch * (cols if j else rows + cols), p, gpu)
            for i, part in enumerate(parts_of(p.k)):
                inner = products_of(rows, cols, part.stop - part.start, batch, moduli)
                if inner not in known:
                    known[inner] = best(inner, gpu)
                first = first or inner
                products += known[inner].us + (merge_us(batch * rows * cols, p, gpu) if i else 0.0)
                launches += 2 if i else 1
            count += 1
            reconstruct += reconstruct_us(batch * rows * cols, p, gpu)
    if first is None:
        raise ValueError(f"{p} has no output, so nothing is computed")
    if p.precision == SAFE:  # one program decides, none looks for infinities, and a native kernel is skipped
        reconstruct += LAUNCH_US
    parts = Parts(quantize, products, reconstruct)
    refused_us = quantize + LAUNCH_US * (launches + RECONSTRUCT_LAUNCHES * count)  # all but quantizing is skipped
    return Estimate(OzakiTime(sum(parts), parts), refused_us, count, first, known[first])


def gains(problem: Problem, native_us: float, gpu: Gpu) -> bool:
    """Whether a problem with precision "ozaki:safe" should be faster than a native product of so many microseconds.

    For a K above `MOST_K` nothing is proved, so it is not.
    """
    if not problem.flops or problem.k > MOST_K:
        return False
    return estimate(problem, gpu).time.us < GAIN * native_us


def gains_on_torch(problem: Problem, gpu: Gpu) -> bool:
    """Whether a problem with precision "ozaki:safe" should be faster than native products of tritonmm and of torch."""
    native = replace(problem, precision="ieee")
    fp64 = 1e6 * problem.flops / (gpu.peak["fp64"] * TORCHS_FP64)
    torchs = fp64 if problem.dtype == "fp64" else torch_us(native, gpu)
    return gains(problem, min(best(native, gpu).us, torchs), gpu)


def quantize_us(lines: int, problem: Problem, gpu: Gpu) -> float:
    """Microseconds of quantizing so many rows of A and columns of B: each element is read twice, and its residues are
    written."""
    elements = lines * problem.k
    moved = elements * (2 * problem.element_bytes + problem.ozaki)
    launches = 2 if problem.k <= FEW_CHUNKS * CHUNK and problem.precision != SAFE else 3
    return _us(launches, moved, elements * QUANTIZE_FP64[problem.dtype], gpu)


def merge_us(outputs: int, problem: Problem, gpu: Gpu) -> float:
    """Microseconds of adding the residues of a part of K, of so many elements of the output, to those before."""
    return _us(1, 3 * outputs * problem.ozaki, 0, gpu)


def reconstruct_us(outputs: int, problem: Problem, gpu: Gpu) -> float:
    """Microseconds of the reconstruction of so many elements of the output."""
    p = problem
    moved = outputs * (p.ozaki + p.out_element_bytes * (2 if p.epilogue.c else 1))
    in_integers = p.dtype == "fp32" and p.ozaki <= MOST_OF_64_BITS
    fp64 = FP32_EPILOGUE_FP64 if in_integers else p.ozaki * (1 + crt(p.ozaki).digits) + EPILOGUE_FP64
    return _us(RECONSTRUCT_LAUNCHES, moved, outputs * fp64, gpu)


def _us(launches: int, moved: int, instructions: int, gpu: Gpu) -> float:
    shared = constants.of(gpu).shared
    memory = moved / (gpu.bandwidth * shared.repack_share)
    arithmetic = 2 * instructions / (gpu.peak["fp64"] * VECTOR_SHARE)
    return launches * LAUNCH_US + 1e6 * max(memory, arithmetic)
