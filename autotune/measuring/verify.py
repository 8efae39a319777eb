"""Whether a config computes the product: C against a float64 reference, in a poisoned output, and exact on integers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import space
from tritonmm.config import Config
from tritonmm.plan import bind
from tritonmm.problem import DTYPES, FP8, Problem

Launch = Callable[..., object]
"""out = a @ b, called as launch(a, b, out), with scales=(of a, of b) if the problem has any."""

Scales = tuple[torch.Tensor | None, torch.Tensor]

BUDGET = 2**34
"""Float64 multiply-adds that a reference may cost: about a millisecond on an H200."""

EDGE = 16
"""Rows at each end of the output, and columns, that are always among those compared."""

GUARD = 4096
"""Poisoned elements before and behind the output; a multiple of 16 bytes, so that the output stays aligned."""

LEFT = 128
"""Terms of a sum of the exact check that no other cancels, at most: such sums are exact in every dtype of outputs."""

PROBED = 2**24
"""Elements of the output that are converted to float64 at a time."""

TWO_SMS = replace(gpus.spec("h200"), sms=2)
"""The GPU to bind reduced problems for: on two SMs, each persistent program walks several of the few tiles."""


class Check:
    """The operands of one problem and the reference for it, to compare any number of launches with.

    Inputs are standard normal numbers, rounded to the problem's dtypes, or random int8. Before a launch the
    output and GUARD elements on both sides of it are NaN, or -2^31. After it, no element of the whole output
    may be that and every element of the guards must be. Values are compared with a float64 product of the
    rounded inputs: all of them where that costs at most `budget` multiply-adds, else whole rows and
    whole columns, EDGE at each end and as many others at random as the budget allows.

    That bound is too coarse to see a few lost terms in a long sum. So a second launch, of integers, must be exact in
    all of the output, see `Integers`.

    An element passes within `u |C| + s + g (|A| |B|)`: half a unit in the last place of the output
    (u, and s among subnormals), and for the sums g = 2 sqrt(K) 2^-24, the growth of K fp32
    roundings; twice that of 2^-53 for fp64, since the reference is no better. Sums of int8 are exact.
    `_cut` adds what tensor cores drop of inputs and sums, scales some roundings.
    """

    def __init__(self, problem: Problem, device: torch.device, budget: int = BUDGET, seed: int = 0):
        generator = torch.Generator(device).manual_seed(seed)
        self.problem = problem
        self.a, self.b, out = space.operands(problem, device)
        space.fill(self.a, generator)
        space.fill(self.b, generator)
        self.scales = space.scales(problem, device)
        self.poison = math.nan if out.is_floating_point() else -(2**31)
        self.buffer = torch.empty(GUARD + out.numel() + GUARD, dtype=out.dtype, device=device)
        self.out = self.buffer[GUARD : GUARD + out.numel()].view(out.shape)
        rows, cols = self._sample(budget, torch.Generator().manual_seed(seed))
        # Each part: the compared rows or columns of C, their reference, their bound.
        rows = rows.to(device)
        a, b = scaled(problem, self.a, self.b, self.scales)
        self.parts = [(-2, rows, *self._reference(a.index_select(-2, rows), b))]
        if cols is not None:
            cols = cols.to(device)
            self.parts.append((-1, cols, *self._reference(a, b.index_select(-1, cols))))
        del a, b  # float64, and large
        self.integers = Integers(problem, device, generator)

    def error_ratio(self, launch: Launch) -> float:
        """The largest error of `launch` relative to its bound: at most 1 passes. NaN or a wrong integer is infinite."""
        if not self._fills(launch, self.a, self.b, self.scales):
            return math.inf
        worst = self._worst()
        if worst > 1:
            return worst
        integers = self.integers
        filled = self._fills(launch, integers.a, integers.b, integers.scales)
        return worst if filled and integers.are_exact(self.out) else math.inf

    def _fills(self, launch: Launch, a: torch.Tensor, b: torch.Tensor, scales: Scales | None) -> bool:
        """Launches into the poisoned output; whether that is written to everywhere, and nothing around it."""
        self.buffer.fill_(self.poison)
        launch(a, b, self.out, **({"scales": scales} if scales else {}))
        guards = self._poisoned(self.buffer[:GUARD]).all() & self._poisoned(self.buffer[-GUARD:]).all()
        return bool(guards) and not self._poisoned(self.out).any()

    def _worst(self) -> float:
        worst = 0.0
        for dim, index, reference, bound in self.parts:
            if reference.numel():
                error = self.out.index_select(dim, index).double().sub_(reference).abs_()
                ratio = torch.where(error == 0, 0.0, error / bound).max()
                worst = max(worst, float(ratio.nan_to_num(nan=math.inf)))
        return worst

    def _poisoned(self, x: torch.Tensor) -> torch.Tensor:
        return x.isnan() if x.is_floating_point() else x == self.poison

    def _reference(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        p = self.problem
        reference = a @ b
        magnitude = a.abs() @ b.abs()
        if p.out_dtype == "int32":
            return reference, magnitude.zero_()
        out = torch.finfo(DTYPES[p.out_dtype])
        unit = out.eps / 2
        growth = 2 * math.sqrt(p.k) * (2**-52 if p.dtype == "fp64" else 2**-24) + _cut(p)
        unit_and_scales = unit + (2**-22 if p.scales else 0)
        bound = magnitude.mul_(growth)
        return reference, bound.add_(reference.abs(), alpha=unit_and_scales).add_(out.smallest_normal * unit)

    def _sample(self, budget: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The rows of C to compare, and the columns where those are not all of it."""
        p = self.problem
        # |A| |B| costs as much as the reference itself, and a short K saves nothing: C has to be compared too.
        cost = 2 * p.batch * max(p.k, 256)
        if cost * p.m * p.n <= budget:
            return torch.arange(p.m), None
        rows = budget // (2 * cost * p.n)
        cols = budget // (2 * cost * p.m)
        return _edges_and_some(p.m, rows, generator), _edges_and_some(p.n, cols, generator)


class Integers:
    """Operands whose product is exact in every kind of product, whatever the order of its sums.

    Each element times its scale is 1 or -1: scales are 1 or 1/4, and stored elements their inverses, integers.
    The elements of K are paired at random, but for at most `LEFT`, and the terms of a pair cancel. So no element of C
    exceeds `LEFT`. Partial sums are random walks of sqrt(K) or so: up to K of a million they stay below 2^13, and fp8
    sums on tensor cores are exact up to that. Every element of C depends on every term: it is off by 1 without one of
    them, and by 11 in the root mean square without 128.

    All of C is compared at the cost of three products with a vector, of integers below 2^53: C @ probe must equal
    A @ (B @ probe). The probe holds random odd numbers up to 2^13: one wrong element of a row is always found, and
    several cancel once in some thousand rows.
    """

    def __init__(self, problem: Problem, device: torch.device, generator: torch.Generator):
        self.a, self.b, _ = space.operands(problem, device)
        scales = space.scales(problem, device)
        self.scales: Scales | None = scales and (_powers(scales[0]), _powers(scales[1]))

        def odd(most: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            """Random odd numbers between -2 most and 2 most."""
            found = torch.randint(-most, most, shape, generator=generator, device=device, dtype=dtype)
            return found.mul_(2).add_(1)

        a, b = (odd(1, x.shape, torch.int8) for x in (self.a, self.b))
        paired = max(0, problem.k - LEFT + 1) // 2
        one, other = torch.randperm(problem.k, generator=generator, device=device)[: 2 * paired].view(2, paired)
        a[..., other] = a[..., one]
        b[..., other, :] = -b[..., one, :]
        self.probe = odd(2**12, (problem.n, 1), torch.int16).double()
        self.expected = a.double() @ (b.double() @ self.probe)
        if self.scales:
            of_a, of_b = self.scales
            a, b = scaled(problem, a, b, (None if of_a is None else 1 / of_a, 1 / of_b))
        self.a.copy_(a)
        self.b.copy_(b)

    def are_exact(self, out: torch.Tensor) -> bool:
        """Whether `out` is the product of these operands."""
        lines = out.flatten(0, -2).split(max(1, PROBED // max(1, out.shape[-1])))
        return torch.equal(torch.cat([part.double() @ self.probe for part in lines]), self.expected.flatten(0, -2))


def _powers(scales):
    """Scales of 1 and 1/4 in the place of others, strides included; None for None."""
    return None if scales is None else torch.where(scales < 1, 0.25, 1.0)


def scaled(
    problem: Problem, a: torch.Tensor, b: torch.Tensor, scales: Scales | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The operands times their scales, in float64, which holds them exactly."""
    a, b = a.double(), b.double()
    if scales:
        scale_a, scale_b = scales
        group = problem.group if problem.grouped else problem.k
        rows = a.shape[0] if problem.scales == "tensor" else problem.rows_per_scale
        cols = b.shape[1] if problem.scales == "tensor" else problem.cols_per_scale
        if scale_a is not None:
            a.mul_(_spread(scale_a, a.shape, rows, group))
        b.mul_(_spread(scale_b, b.shape, group, cols))
    return a, b


def _cut(problem: Problem) -> float:
    """What tensor cores drop of inputs and of sums, relative to |A| |B|.

    Of tf32 each input may be cut to 10 bits after the leading 1, and of "x3" the product of what was cut off twice is
    dropped. Of fp8, terms are cut to 13 bits after the leading 1 of the largest of them and the sum so far, which is
    carried from 32 terms to the next, to the end of K or of 128 terms.
    """
    p = problem
    if p.dtype in FP8:
        carried = min(p.k, 128) if p.promotes else p.k
        return 2**-10 + 2 * math.sqrt(carried / 32) * 2**-13
    return {"tf32": 2**-9, "tf32x3": 2**-19, "bf16x3": 2**-14}.get(p.precision, 0.0)


def _spread(scales: torch.Tensor, shape: torch.Size, rows: int, cols: int) -> torch.Tensor:
    """Scales that each stand for so many rows and columns, one for each element of `shape`."""
    wide = scales.double().repeat_interleave(max(rows, 1), 0).repeat_interleave(max(cols, 1), 1)
    return wide[: shape[0], : shape[1]]


def _edges_and_some(size: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """EDGE indices at each end of range(size), and random ones up to `count` in all; ascending."""
    ends = torch.cat((torch.arange(min(EDGE, size)), torch.arange(max(size - EDGE, 0), size)))
    some = torch.randperm(size, generator=generator)[: max(count - len(ends), 0)]
    return torch.cat((ends, some)).unique()


def reduced(problem: Problem, config: Config) -> Problem:
    """A small problem that treats `config` as `problem` does, for the interpreter.

    At most 3 x 2 tiles, and 2 steps of K in each part of a split, the last of each as ragged as the original's. As many
    parts have a step more as in the original. A batch of at most 2.
    """

    def shrunk(size: int, block: int, most: int) -> int:
        tiles = min(-(-size // block), most)
        return tiles * block - (-size % block)

    parts = max(config.split_k, config.split_tail)
    more = -(-problem.k // config.block_k) % parts
    return space.problem(
        shrunk(problem.m, config.block_m, 3),
        shrunk(problem.n, config.block_n, 2),
        shrunk(problem.k, config.block_k, 2 * parts + more),
        batch=min(problem.batch, 2),
        dtype=problem.kind,
        layout=problem.layout,
    )


def interpreted(problem: Problem, config: Config) -> float:
    """The error ratio of `config` on the CPU, in Triton's interpreter. `problem` should be a `reduced` one."""
    check = Check(problem, torch.device("cpu"))
    return check.error_ratio(bind(problem, config, TWO_SMS, check.a.device))
