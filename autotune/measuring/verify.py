"""Checks whether a config computes the right result: against float64, with guarded memory, and exactly on integers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import space
from tritonmm.config import Config
from tritonmm.dtypes import DTYPES, FP8
from tritonmm.plan import bind
from tritonmm.problem import Problem

Launch = Callable[..., object]
"""out = a @ b, called as launch(a, b, out), with scales=(of a, of b) if the problem has any."""

Scales = tuple[torch.Tensor | None, torch.Tensor]

BUDGET = 2**34
"""The most float64 multiply-adds of a reference; they take about a millisecond on an H200."""

BORDER = 16
"""Rows at each end of the output, and columns, that are always compared."""

GUARD = 4096
"""Poisoned elements before and after the output; a multiple of 16 bytes, so that the output stays aligned."""

UNPAIRED = 128
"""The most terms of a sum in the exact check that have no opposite term. Such sums are exact in every output dtype."""

PROBED = 2**24
"""Elements of the output that are converted to float64 at a time."""

TWO_SMS = replace(gpus.spec("h200"), sms=2)
"""The GPU that reduced problems are bound for. With two SMs, each persistent program computes several of the few
tiles."""


class Check:
    """The operands and the reference of one problem, to check any number of launches.

    Inputs are standard normal numbers rounded to the problem's dtypes, or random int8. Before a launch, the output and
    GUARD elements on both sides are filled with NaN (-2^31 for int32). After it, every guard element must still be
    poisoned and no output element may be.

    Values are compared with a float64 product of the rounded inputs. If that costs at most `budget` multiply-adds, all
    values are compared; else whole rows and columns: BORDER at each end, and random others as the budget allows.

    An element passes within `u |C| + s + g (|A| |B|)`. u is half a unit in the last place of the output, s the same
    among subnormals. g = 2 sqrt(K) 2^-24 covers K fp32 roundings; for fp64 it is 2 sqrt(K) 2^-52, because the reference
    is no more precise. Sums of int8 are exact. `_cut` adds what tensor cores drop of inputs and sums; scales add a few
    roundings.

    This bound does not detect a few lost terms in a long sum. So a second launch with integers must be exact in the
    whole output, see `Integers`.
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
        # Each part: dimension, compared rows or columns of C, their reference, their bound.
        rows = rows.to(device)
        a, b = scaled(problem, self.a, self.b, self.scales)
        self.parts = [(-2, rows, *self._reference(a.index_select(-2, rows), b))]
        if cols is not None:
            cols = cols.to(device)
            self.parts.append((-1, cols, *self._reference(a, b.index_select(-1, cols))))
        del a, b  # float64, and large
        self.integers = Integers(problem, device, generator)

    def error_ratio(self, launch: Launch) -> float:
        """The largest error of `launch` relative to its bound; at most 1 passes. Infinite for NaN or a wrong
        integer."""
        if not self._fills(launch, self.a, self.b, self.scales):
            return math.inf
        worst = self._worst()
        if worst > 1:
            return worst
        integers = self.integers
        filled = self._fills(launch, integers.a, integers.b, integers.scales)
        return worst if filled and integers.are_exact(self.out) else math.inf

    def _fills(self, launch: Launch, a: torch.Tensor, b: torch.Tensor, scales: Scales | None) -> bool:
        """Launches into the poisoned output. True if all of the output and nothing around it was written."""
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
        """The rows of C to compare, and the columns if these rows are not all of C."""
        p = self.problem
        # |A| |B| costs as much as the reference. For a short K, comparing C dominates: hence the minimum of 256.
        cost = 2 * p.batch * max(p.k, 256)
        if cost * p.m * p.n <= budget:
            return torch.arange(p.m), None
        rows = budget // (2 * cost * p.n)
        cols = budget // (2 * cost * p.m)
        return _ends_and_others(p.m, rows, generator), _ends_and_others(p.n, cols, generator)


class Integers:
    """Operands with an exact result in every precision, whatever the order of the sums.

    Each element times its scale is 1 or -1: scales are 1 or 1/4, and stored elements are their inverses. The elements
        of K are paired at random, except for at most `UNPAIRED`, and the two terms of a pair cancel. So no element of C
        exceeds `UNPAIRED`. Partial sums grow like sqrt(K). For K up to a million they stay below 2^13, up to which fp8
        sums on tensor cores are exact. Every term matters to every element of C: without one term it is off by 1,
        without 128 terms by 11 in the root mean square. Where B is A transposed nothing can be paired: elements of K
        are 0 except for `UNPAIRED`.

    All of C is compared by three float64 products with a vector: C @ probe must equal A @ (B @ probe). All numbers are
        integers below 2^53, and the probe holds random odd numbers up to 2^13. One wrong element in a row is always
        found; several wrong elements cancel in about one row of some thousand.
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
        paired = max(0, problem.k - UNPAIRED + 1) // 2
        shuffled = torch.randperm(problem.k, generator=generator, device=device)
        if problem.symmetric == "gram":
            a[..., shuffled[UNPAIRED:]] = 0
            b = a.mT
        else:
            one, other = shuffled[: 2 * paired].view(2, paired)
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
        """True if `out` is exactly the product of these operands."""
        lines = out.flatten(0, -2).split(max(1, PROBED // max(1, out.shape[-1])))
        return torch.equal(torch.cat([part.double() @ self.probe for part in lines]), self.expected.flatten(0, -2))


def _powers(scales):
    """Scales of 1 and 1/4 with the strides of `scales`; None for None."""
    return None if scales is None else torch.where(scales < 1, 0.25, 1.0)


def scaled(
    problem: Problem, a: torch.Tensor, b: torch.Tensor, scales: Scales | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The operands times their scales, in float64, which is exact."""
    a, b = a.double(), b.double()
    if scales:
        scale_a, scale_b = scales
        group = problem.group if problem.block_scaled else problem.k
        rows = a.shape[0] if problem.scales == "tensor" else problem.rows_per_scale
        cols = b.shape[1] if problem.scales == "tensor" else problem.cols_per_scale
        if scale_a is not None:
            a.mul_(_spread(scale_a, a.shape, rows, group))
        b.mul_(_spread(scale_b, b.shape, group, cols))
    return a, b


def _cut(problem: Problem) -> float:
    """What tensor cores drop of inputs and sums, relative to |A| |B|.

    tf32: each input may be cut to 10 bits after the leading 1. "x3" precisions drop the product of the two remainders.
        fp8: terms are cut to 13 bits after the leading 1 of the largest among them and the running sum. The running sum
        is carried from 32 terms to the next, to the end of K, or of 128 terms with two-level accumulation.
    Others: a running sum may be cut by 2^-23 of itself at every 16 terms, or 8 of tf32. That counts only where all
        terms have one sign, as on the diagonal of A by A transposed.
    """
    p = problem
    if p.dtype in FP8:
        carried = min(p.k, 128) if p.promotes else p.k
        return 2**-10 + 2 * math.sqrt(carried / 32) * 2**-13
    cut = {"tf32": 2**-9, "tf32x3": 2**-19, "bf16x3": 2**-14}.get(p.precision, 0.0)
    on_tensor_cores = p.element_bytes == 2 or p.precision != "ieee"
    return cut + (math.ceil(p.k / (32 // p.element_bytes)) * 2**-23 if p.symmetric and on_tensor_cores else 0.0)


def _spread(scales: torch.Tensor, shape: torch.Size, rows: int, cols: int) -> torch.Tensor:
    """Each scale repeated over `rows` rows and `cols` columns, cut to `shape`; float64."""
    wide = scales.double().repeat_interleave(max(rows, 1), 0).repeat_interleave(max(cols, 1), 1)
    return wide[: shape[0], : shape[1]]


def _ends_and_others(size: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """BORDER indices at each end of range(size), and random ones up to `count` in all; ascending."""
    ends = torch.cat((torch.arange(min(BORDER, size)), torch.arange(max(size - BORDER, 0), size)))
    some = torch.randperm(size, generator=generator)[: max(count - len(ends), 0)]
    return torch.cat((ends, some)).unique()


def reduced(problem: Problem, config: Config) -> Problem:
    """A small problem for the interpreter that exercises `config` as `problem` does.

    It has at most 3 x 2 tiles and 2 steps of K in each part of a split. The last tile and step are as ragged as the
    original's, and as many parts have one step more. The batch is at most 2.
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
