"""The estimated time of a product with precision "ozaki": its passes over memory, and its int8 products.

The int8 products have the estimate of their config. Each other launch moves its bytes at the share of the bandwidth
that copies of operands reach, or takes as long as its fp64 arithmetic. Its constants were not fitted to it.
"""

from typing import NamedTuple

from tritonmm.gpu import Gpu
from tritonmm.model import constants
from tritonmm.ozaki.crt import crt
from tritonmm.ozaki.panels import panels, products_of
from tritonmm.problem import Problem
from tritonmm.selection import Choice, best

QUANTIZE_LAUNCHES = 3
RECONSTRUCT_LAUNCHES = 2

QUANTIZE_FP64 = 12
"""fp64 instructions for an element of an operand, counted in the sources of both kernels that read it."""

EPILOGUE_FP64 = 30
"""fp64 instructions for an element of the output besides those for its residues, counted likewise."""

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

    panels: in how many parts the output is computed. products, choice: the int8 products of the first one, and their
    config.
    """

    time: OzakiTime
    panels: int
    products: Problem
    choice: Choice


def estimate(problem: Problem, gpu: Gpu) -> Estimate:
    """The estimate of a problem with precision "ozaki". Raises ValueError if it has no output."""
    p, moduli = problem, problem.ozaki
    quantize = products = reconstruct = 0.0
    known: dict[Problem, Choice] = {}
    first: Problem | None = None
    count = 0
    for panel in panels(p.m, p.n, p.k, p.batch, moduli):
        batch, rows = panel.batch.stop - panel.batch.start, panel.rows.stop - panel.rows.start
        quantize += quantize_us(batch * rows, p, gpu)
        for columns in panel.columns:
            cols = columns.stop - columns.start
            inner = products_of(rows, cols, p.k, batch, moduli)
            if inner not in known:
                known[inner] = best(inner, gpu)
            first = first or inner
            count += 1
            quantize += quantize_us(batch * cols, p, gpu)
            products += known[inner].us
            reconstruct += reconstruct_us(batch * rows * cols, p, gpu)
    if first is None:
        raise ValueError(f"{p} has no output, so nothing is computed")
    parts = Parts(quantize, products, reconstruct)
    return Estimate(OzakiTime(sum(parts), parts), count, first, known[first])


def quantize_us(lines: int, problem: Problem, gpu: Gpu) -> float:
    """Microseconds of quantizing so many rows of A or columns of B: each element is read twice, and its residues are
    written."""
    elements = lines * problem.k
    moved = elements * (2 * problem.element_bytes + problem.ozaki)
    return _us(QUANTIZE_LAUNCHES, moved, elements * QUANTIZE_FP64, gpu)


def reconstruct_us(outputs: int, problem: Problem, gpu: Gpu) -> float:
    """Microseconds of the reconstruction of so many elements of the output."""
    p = problem
    moved = outputs * (p.ozaki + p.out_element_bytes * (2 if p.epilogue.c else 1))
    return _us(RECONSTRUCT_LAUNCHES, moved, outputs * (p.ozaki * (1 + crt(p.ozaki).digits) + EPILOGUE_FP64), gpu)


def _us(launches: int, moved: int, instructions: int, gpu: Gpu) -> float:
    shared = constants.of(gpu).shared
    memory = moved / (gpu.bandwidth * shared.repack_share)
    arithmetic = 2 * instructions / (gpu.peak["fp64"] * VECTOR_SHARE)
    return launches * shared.launch_us + 1e6 * max(memory, arithmetic)
