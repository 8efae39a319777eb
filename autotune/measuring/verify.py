"""Checks whether a config computes the right result: against float64, with guarded memory, and exactly on integers."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import space
from tritonmm.autotune.measuring.group_sizes import sizes_of
from tritonmm.config import Config
from tritonmm.dtypes import DTYPES, FP8
from tritonmm.gpu import Gpu
from tritonmm.nn import int4, int8
from tritonmm.plan import bind
from tritonmm.problem import Problem
from tritonmm.torch_ops.quantized import packed_words

Launch = Callable[..., object]
"""out = a @ b, called as launch(a, b, out), with scales=(of a, of b) if the problem has any, and offs= of groups."""

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

    sizes: of the problem's groups, by default typical ones. Their sum may be less than the total. Output rows of no
        group may have any value. The first and the last row of each group are always compared.
    """

    def __init__(
        self,
        problem: Problem,
        device: torch.device,
        budget: int = BUDGET,
        seed: int = 0,
        sizes: Sequence[int] | None = None,
    ):
        generator = torch.Generator(device).manual_seed(seed)
        self.problem = problem
        self.sizes = sizes_of(problem) if sizes is None else sizes
        self.a, self.b, out = space.operands(problem, device)
        space.fill(self.a, generator)
        space.fill(self.b, generator)
        self.keywords = space.keywords(problem, device, self.sizes)
        self.scales = self.keywords.get("scales")
        self.poison = math.nan if out.is_floating_point() else -(2**31)
        self.buffer = torch.empty(GUARD + out.numel() + GUARD, dtype=out.dtype, device=device)
        self.out = self.buffer[GUARD : GUARD + out.numel()].view(out.shape)
        rows, cols = self._sample(budget, torch.Generator().manual_seed(seed))
        # Each part: dimension, compared rows or columns of C, their reference, their bound.
        rows = rows.to(device)
        a, b = scaled(problem, self.a, self.b, self.scales)
        self.parts = [(-2, rows, *self._reference(a.index_select(-2, rows), b, rows))]
        if cols is not None:
            cols = cols.to(device)
            self.parts.append((-1, cols, *self._reference(a, b.index_select(-1, cols))))
        del a, b  # float64, and large
        self.integers = Integers(problem, device, generator, self.sizes)

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
        return worst if filled and integers.are_exact(self._grouped_rows(self.out)) else math.inf

    def _fills(self, launch: Launch, a: torch.Tensor, b: torch.Tensor, scales: Scales | None) -> bool:
        """Launches into the poisoned output. True if all of the output and nothing around it was written."""
        self.buffer.fill_(self.poison)
        launch(a, b, self.out, **self.keywords | ({"scales": scales} if scales else {}))
        guards = self._poisoned(self.buffer[:GUARD]).all() & self._poisoned(self.buffer[-GUARD:]).all()
        return bool(guards) and not self._poisoned(self._grouped_rows(self.out)).any()

    def _grouped_rows(self, x: torch.Tensor) -> torch.Tensor:
        """The rows of the output, or of what is compared with it, that belong to a group."""
        return x[: sum(self.sizes)] if self.problem.ragged == "m" else x

    def _worst(self) -> float:
        worst = 0.0
        for dim, index, reference, bound in self.parts:
            if reference.numel():
                found = self._grouped_rows(self.out).index_select(dim, index)
                error = found.double().sub_(reference).abs_()
                ratio = torch.where(error == 0, 0.0, error / bound).max()
                worst = max(worst, float(ratio.nan_to_num(nan=math.inf)))
        return worst

    def _poisoned(self, x: torch.Tensor) -> torch.Tensor:
        return x.isnan() if x.is_floating_point() else x == self.poison

    def _reference(
        self, a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The product and the bounds of its errors. rows: those of a, if it has not all of them."""
        p = self.problem
        pairs = list(of_groups(p, self.sizes, a, b, rows))
        reference = joined(p, (x.double() @ y.double() for x, y in pairs))
        magnitude = joined(p, (x.double().abs() @ y.double().abs() for x, y in pairs))
        if p.out_dtype == "int32":
            return reference, magnitude.zero_()
        out = torch.finfo(DTYPES[p.out_dtype])
        unit = out.eps / 2
        root: float | torch.Tensor = math.sqrt(p.k)
        if p.ragged == "k":  # each output has a sum of its own length
            root = torch.tensor(self.sizes, dtype=torch.float64, device=a.device).sqrt_().view(-1, 1, 1)
        growth = 2 * root * (2**-52 if p.dtype == "fp64" else 2**-24) + _cut(p)
        unit_and_scales = unit + (2**-22 if p.scales else 0)
        bound = magnitude.mul_(growth)
        return reference, bound.add_(reference.abs(), alpha=unit_and_scales).add_(out.smallest_normal * unit)

    def _sample(self, budget: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The rows of C to compare, and the columns if these rows are not all of C."""
        p = self.problem
        m = sum(self.sizes) if p.ragged == "m" else p.m
        # |A| |B| costs as much as the reference. For a short K, comparing C dominates: hence the minimum of 256.
        cost = 2 * max(p.batch * p.k, (p.groups if p.ragged == "k" else p.batch) * 256)
        if cost * m * p.n <= budget:
            return torch.arange(m), None
        rows = _ends_and_others(m, budget // (2 * cost * p.n), generator)
        if p.ragged == "m":
            rows = torch.cat((rows, *(torch.tensor((s, e - 1)) for s, e in bounds(self.sizes) if s < e))).unique()
        return rows, _ends_and_others(p.n, budget // (2 * cost * max(1, m)), generator)


class Integers:
    """Operands with an exact result in every precision, whatever the order of the sums.

    Each element times its scale is 1 or -1: scales are 1 or 1/4, and stored elements are their inverses. The elements
        of K, or those of each group of K, are paired at random, except for at most `UNPAIRED`, and the two terms of a
        pair cancel. So no element of C exceeds `UNPAIRED`. Partial sums grow like sqrt(K). For K up to a million they
        stay below 2^13, up to which fp8 sums on tensor cores are exact. Every term matters to every element of C:
        without one term it is off by 1, without 128 terms by 11 in the root mean square. Where B is A transposed
        nothing can be paired: elements of K are 0 except for `UNPAIRED`.

    All of C is compared by three float64 products with a vector: C @ probe must equal A @ (B @ probe). All numbers are
        integers below 2^53, and the probe holds random odd numbers up to 2^13. One wrong element in a row is always
        found; several wrong elements cancel in about one row of some thousand.
    """

    def __init__(self, problem: Problem, device: torch.device, generator: torch.Generator, sizes: Sequence[int] = ()):
        self.a, self.b, _ = space.operands(problem, device)
        scales = space.scales(problem, device)
        self.scales: Scales | None = scales and (_powers(scales[0]), _powers(scales[1]))

        def odd(most: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            """Random odd numbers between -2 most and 2 most."""
            found = torch.randint(-most, most, shape, generator=generator, device=device, dtype=dtype)
            return found.mul_(2).add_(1)

        a, b = (odd(1, shape, torch.int8) for shape in (self.a.shape, (*self.b.shape[:-2], problem.k, problem.n)))
        for start, end in bounds(sizes) if problem.ragged == "k" else [(0, problem.k)]:
            paired = max(0, end - start - UNPAIRED + 1) // 2
            shuffled = start + torch.randperm(end - start, generator=generator, device=device)
            if problem.symmetric == "gram":
                a[..., shuffled[UNPAIRED:]] = 0
                b = a.mT
            else:
                one, other = shuffled[: 2 * paired].view(2, paired)
                a[..., other] = a[..., one]
                b[..., other, :] = -b[..., one, :]
        self.probe = odd(2**12, (problem.n, 1), torch.int16).double()
        pairs = of_groups(problem, sizes, a, b)
        self.expected = joined(problem, (x.double() @ (y.double() @ self.probe) for x, y in pairs))
        if self.scales:
            of_a, of_b = self.scales
            a, b = scaled(problem, a, b, (None if of_a is None else 1 / of_a, 1 / of_b))
        self.a.copy_(a)
        self.b.copy_(packed(problem, b))

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
    """The operands times their scales, in float64, which is exact. Those of groups as they are: they have no scales,
    and `of_groups` takes a few at a time."""
    if problem.ragged:
        return a, b
    a, b = a.double(), values(problem, b).double()
    if scales:
        scale_a, scale_b = scales
        group = problem.group if problem.block_scaled else problem.k
        if problem.scales == "group-zero":
            scale_b, zero = int4.scales_and_zero_points(scale_b.view(torch.int32))
            b.sub_(_spread(zero - 8.0, b.shape, group, 1))
        rows = a.shape[0] if problem.scales == "tensor" else problem.rows_per_scale
        cols = b.shape[1] if problem.scales == "tensor" else problem.cols_per_scale
        if scale_a is not None:
            a.mul_(_spread(scale_a, a.shape, rows, group))
        b.mul_(_spread(scale_b, b.shape, group, cols))
    return a, b


def values(problem: Problem, b: torch.Tensor) -> torch.Tensor:
    """What B holds, (k, n): of packed weights the integers, of int4 from -8 to 7. Values are returned as they are."""
    if b.dtype == torch.int16:
        return int8.unpack(b.mT.view(torch.int8).unflatten(-1, (-1, int8.TOGETHER)), problem.k).mT
    if b.dtype == torch.uint8:
        return int4.unpack(b.mT, problem.k).mT.to(torch.int8) - int4.ZERO
    return b


def packed(problem: Problem, values: torch.Tensor) -> torch.Tensor:
    """B as the problem has it, of what it holds: the inverse of `values`."""
    if problem.b_dtype == "int8p":
        return packed_words(int8.pack(values.mT.char())).mT
    if problem.b_dtype == "int4":
        return int4.pack(values.mT.char() + int4.ZERO).mT
    return values


def bounds(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Where each group begins and ends."""
    return list(itertools.pairwise((0, *itertools.accumulate(sizes))))


def of_groups(
    problem: Problem, sizes: Sequence[int], a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor | None = None
) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """The operands of each group's product, or those of the whole product.

    rows: the rows of a, ascending, if it has not all of them.
    """
    if problem.ragged == "m":
        ends = list(itertools.accumulate(sizes))
        if rows is not None:
            ends = torch.searchsorted(rows, torch.tensor(ends, device=rows.device)).tolist()
        for matrix, (start, end) in zip(b, itertools.pairwise((0, *ends)), strict=True):
            yield a[start:end], matrix
    elif problem.ragged == "k":
        yield from ((a[:, start:end], b[start:end]) for start, end in bounds(sizes))
    else:
        yield a, b


def joined(problem: Problem, products: Iterable[torch.Tensor]) -> torch.Tensor:
    """The output of the groups' products."""
    if not problem.ragged:
        (whole,) = products
        return whole
    return torch.stack(list(products)) if problem.ragged == "k" else torch.cat(list(products))


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
    original's, and as many parts have one step more. The batch is at most 2. At most 4 groups share 3 rows of tiles, or
    3 steps of K.
    """

    def shrunk(size: int, block: int, most: int) -> int:
        tiles = min(-(-size // block), most)
        return tiles * block - (-size % block)

    parts = max(config.split_k, config.split_tail)
    more = -(-problem.k // config.block_k) % parts
    return space.problem(
        shrunk(problem.m, config.block_m, 3),
        shrunk(problem.n, config.block_n, 2),
        shrunk(problem.k, config.block_k, 3 if problem.ragged == "k" else 2 * parts + more),
        batch=min(problem.batch, 2),
        dtype=problem.kind,
        layout=problem.layout,
        ragged=problem.ragged,
        groups=min(problem.groups, 4),
    )


def interpreted(problem: Problem, config: Config, gpu: Gpu = TWO_SMS) -> float:
    """The error ratio of `config` on the CPU, in Triton's interpreter, as on `gpu`. `problem` should be a `reduced`
    one."""
    check = Check(problem, torch.device("cpu"), sizes=_uneven(problem))
    return check.error_ratio(bind(problem, config, gpu, check.a.device))


def _uneven(problem: Problem) -> list[int]:
    """Sizes of groups with what kernels may get wrong: an empty group, one of 1, a long one, and a rest of no group."""
    total = {"": 0, "m": problem.m, "k": problem.k}[problem.ragged]
    third = total // 3
    ends = [third, third, min(third + 1, total), max(third + 1, total - 1)]
    return [end - start for start, end in itertools.pairwise((0, *ends[4 - problem.groups :]))] if total else []
