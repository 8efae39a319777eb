"""Whether a config computes the product: C against a float64 reference, in a poisoned output."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from tritonmm import gpu as gpus
from tritonmm.autotune import space
from tritonmm.config import Config
from tritonmm.plan import bind
from tritonmm.problem import DTYPES, Problem

Launch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]
"""out = a @ b, called as launch(a, b, out)."""

BUDGET = 2**34
"""Float64 multiply-adds that a reference may cost: about a millisecond on an H200."""

EDGE = 16
"""Rows at each end of the output, and columns, that are always among those compared."""

GUARD = 4096
"""Poisoned elements before and behind the output; a multiple of 16 bytes, so that the output stays aligned."""

TWO_SMS = replace(gpus.spec("h200"), sms=2)
"""The GPU to bind reduced problems for: on two SMs, each persistent program walks several of the few tiles."""


class Check:
    """The operands of one problem and the reference for it, to compare any number of launches with.

    Inputs are standard normal numbers, rounded to the problem's dtype. Before a launch the output and
    GUARD elements on both sides of it are NaN. After it, no element of the whole output may be NaN
    and every element of the guards must be. Values are compared with a float64 product of the
    rounded inputs: all of them where that costs at most `budget` multiply-adds, else whole rows and
    whole columns, EDGE at each end and as many others at random as the budget allows.

    An element passes within `u |C| + s + g (|A| |B|)`: half a unit in the last place of the output
    (u, and s among subnormals), and for the sums g = 2 sqrt(K) 2^-24, the growth of K fp32
    roundings. tf32 adds 2^-9 to g, since hardware may cut each input to 10 bits after the leading 1.
    """

    def __init__(self, problem: Problem, device: torch.device, budget: int = BUDGET, seed: int = 0):
        generator = torch.Generator(device).manual_seed(seed)
        self.problem = problem
        self.a, self.b, out = space.operands(problem, device)
        self.a.normal_(generator=generator)
        self.b.normal_(generator=generator)
        self.buffer = torch.empty(GUARD + out.numel() + GUARD, dtype=out.dtype, device=device)
        self.out = self.buffer[GUARD : GUARD + out.numel()].view(out.shape)
        rows, cols = self._sample(budget, torch.Generator().manual_seed(seed))
        # Each part: the compared rows or columns of C, their reference, their bound.
        rows = rows.to(device)
        self.parts = [(-2, rows, *self._reference(self.a.index_select(-2, rows), self.b))]
        if cols is not None:
            cols = cols.to(device)
            self.parts.append((-1, cols, *self._reference(self.a, self.b.index_select(-1, cols))))

    def error_ratio(self, launch: Launch) -> float:
        """The largest error of `launch` relative to its bound: at most 1 passes, NaN counts as infinite."""
        self.buffer.fill_(math.nan)
        launch(self.a, self.b, self.out)
        guards = self.buffer[:GUARD].isnan().all() & self.buffer[-GUARD:].isnan().all()
        if not guards or self.out.isnan().any():
            return math.inf
        worst = 0.0
        for dim, index, reference, bound in self.parts:
            if reference.numel():
                error = self.out.index_select(dim, index).double().sub_(reference).abs_()
                ratio = torch.where(error == 0, 0.0, error / bound).max()
                worst = max(worst, float(ratio.nan_to_num(nan=math.inf)))
        return worst

    def _reference(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = a.double(), b.double()
        reference = a @ b
        out = torch.finfo(DTYPES[self.problem.out_dtype])
        unit = out.eps / 2
        growth = 2 * math.sqrt(self.problem.k) * 2**-24
        if self.problem.precision == "tf32":
            growth += 2**-9
        bound = (a.abs_() @ b.abs_()).mul_(growth)
        return reference, bound.add_(reference.abs(), alpha=unit).add_(out.smallest_normal * unit)

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


def _edges_and_some(size: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """EDGE indices at each end of range(size), and random ones up to `count` in all; ascending."""
    ends = torch.cat((torch.arange(min(EDGE, size)), torch.arange(max(size - EDGE, 0), size)))
    some = torch.randperm(size, generator=generator)[: max(count - len(ends), 0)]
    return torch.cat((ends, some)).unique()


def reduced(problem: Problem, config: Config) -> Problem:
    """A small problem that treats `config` as `problem` does, for the interpreter.

    At most 3 x 2 tiles and 2 steps of K, the last of each as ragged as the original's; a batch of at
    most 2.
    """

    def shrunk(size: int, block: int, most: int) -> int:
        tiles = min(-(-size // block), most)
        return tiles * block - (-size % block)

    return space.problem(
        shrunk(problem.m, config.block_m, 3),
        shrunk(problem.n, config.block_n, 2),
        shrunk(problem.k, config.block_k, 2),
        batch=min(problem.batch, 2),
        dtype="tf32" if problem.precision == "tf32" else problem.dtype,
        layout=problem.layout,
    )


def interpreted(problem: Problem, config: Config) -> float:
    """The error ratio of `config` on the CPU, in Triton's interpreter. `problem` should be a `reduced` one."""
    check = Check(problem, torch.device("cpu"))
    return check.error_ratio(bind(problem, config, TWO_SMS, check.a.device))
