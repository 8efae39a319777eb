"""Grouped products of a plan, into guarded memory; and what they must be for any offsets, of small integers."""

import itertools
import math
import random
from functools import cached_property

import pytest
import torch
from grouped_cases import int32

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.autotune.measuring.verify import GUARD
from tritonmm.config import Config
from tritonmm.dtypes import DTYPES, any_name, default_output
from tritonmm.plan import plan_for
from tritonmm.problem import Epilogue, Problem

INT32 = -(2**31), 2**31 - 1

ON_HOPPER = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or gpus.default().capability != 90, reason="the grouped kernel needs sm_90"
    ),
]

TILES = [(256, 192, 64, 3, 12), (256, 128, 64, 4), (128, 256, 64, 4), (128, 192, 64, 4, 12), (128, 128, 64, 6),
         (64, 256, 64, 4), (64, 128, 64, 8)]  # fmt: skip
"""Blocks and stages, and warps where they are not 8, of every tile for operands of 16 bits."""

LAYOUTS = [("m", "nt"), ("m", "nn"), ("k", "tn")]
"""What groups divide, and the layout."""


def config(blocks=(128, 256, 64, 4), order="groups/swizzle-merge:3") -> Config:
    """Of the grouped kernel for Hopper."""
    return Config("grouped", *blocks, order=orders.parse(order))


def poison_of(dtype: torch.dtype) -> float:
    return math.nan if dtype.is_floating_point else INT32[0]


def is_poison(x: torch.Tensor) -> torch.Tensor:
    return x.isnan() if x.is_floating_point() else x == INT32[0]


class Product:
    """The plan of a grouped product, and a poisoned output among poisoned memory.

    a, b: (total, k) and (groups, k, n) where groups divide rows, else (m, total) and (total, n). scales: of rows and
    columns, as plans take them. out_dtype: as `Problem` has it.
    """

    def __init__(
        self, config: Config, a, b, groups: int, bias=None, scales=None, out_dtype="", precision="ieee",
        accumulation="any",
    ):  # fmt: skip
        ragged = "m" if b.dim() == 3 else "k"
        shape = (a.shape[0], b.shape[2]) if ragged == "m" else (groups, a.shape[0], b.shape[1])
        default = "bf16" if scales else default_output(any_name(a.dtype))
        dtype = DTYPES[out_dtype or default]
        self.board = torch.empty(GUARD + math.prod(shape) + GUARD, dtype=dtype, device=a.device)
        self.out = self.board[GUARD:-GUARD].view(shape)
        self.given = {"bias": bias, "scales": scales}
        epilogue = Epilogue(bias=bias is not None)
        kind = "row" if scales else ""
        self.problem = Problem.of(
            a, b, self.out, precision, epilogue, kind, accumulation=accumulation, ragged=ragged
        )  # fmt: skip
        self.plan = plan_for(self.problem, config, a.device)

    def __call__(self, a, b, offs) -> torch.Tensor:
        """The output of these operands, of the same shapes and strides; it is overwritten by the next call."""
        self.board.fill_(poison_of(self.board.dtype))
        return self.plan(a, b, self.out, offs=offs, **self.given)

    def guards_are_written(self) -> torch.Tensor:
        """On the device, whether anything before or behind the output was written."""
        return ~(is_poison(self.board[:GUARD]).all() & is_poison(self.board[-GUARD:]).all())


def multiply(config: Config, a, b, offs, **options) -> torch.Tensor:
    """The grouped product by a config. Nothing else was written: neither memory around the output, nor rows that belong
    to no group, which are poisoned in the result."""
    product = Product(config, a, b, len(offs), **options)
    out = product(a, b, offs)
    assert not product.guards_are_written(), f"{config} on {product.problem} writes around its output"
    if b.dim() == 3:
        outside = out[int(ends_of(offs, len(a))[-1]) :]
        assert is_poison(outside).all(), f"{config} on {product.problem} writes rows of no group"
    return out


def ends_of(offs: torch.Tensor, total: int) -> torch.Tensor:
    """Where each group ends, of offsets that may be anything."""
    return offs.long().clamp(0, total).cummax(-1).values


def integers(shape, dtype: torch.dtype, device, most: int = 4) -> torch.Tensor:
    return torch.randint(-most, most + 1, shape, device=device).to(dtype)


class Exact:
    """Operands of small integers, and their grouped product for any offsets, rounded once from its exact value.

    size: rows and columns and elements of K that are not divided, in the sequence m, n, k. The products of all rows
    with all matrices, or of each beginning of K, are computed once.
    """

    def __init__(self, ragged: str, groups: int, total: int, size: tuple[int, int], dtype, layout, device, bias=False):
        self.groups, self.total = groups, total

        def stored(letter: str, *shape: int):
            return integers((*shape[:-2], shape[-1], shape[-2]) if letter == "t" else shape, dtype, device)

        if ragged == "m":
            (n, k) = size
            a, b = stored(layout[0], total, k), stored(layout[1], groups, k, n)
        else:
            (m, n) = size
            a, b = stored(layout[0], m, total), stored(layout[1], total, n)
        self.a = a.mT if layout[0] == "t" else a
        self.b = b.mT if layout[1] == "t" else b
        self.bias = integers((groups, n), dtype, device, 9) if bias else None

    @cached_property
    def rows(self) -> torch.Tensor:
        """(total, groups, n): each row of A by each matrix of B, plus its bias."""
        every = torch.einsum("tk,gkn->tgn", self.a.double(), self.b.double())
        return every if self.bias is None else every + self.bias.double()

    @cached_property
    def beginnings(self) -> torch.Tensor:
        """(total + 1, m, n): the sums of the first elements of K."""
        each = self.a.double().t().unsqueeze(-1) * self.b.double().unsqueeze(1)
        return torch.cat((torch.zeros_like(each[:1]), each)).cumsum(0)

    def wrong(self, out: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        """Where an output is not the product of its group, or, in rows of no group, where it is no longer poisoned. On
        the device."""
        ends = ends_of(offs, self.total)
        if self.b.dim() == 3:
            row = torch.arange(self.total, device=out.device)
            group = torch.searchsorted(ends, row, right=True)
            expected = self.rows[row, group.clamp(max=self.groups - 1)].to(out.dtype)
            return torch.where((group < self.groups).unsqueeze(1), out != expected, ~is_poison(out))
        starts = torch.cat((ends.new_zeros(1), ends[:-1]))
        expected = self.beginnings[ends] - self.beginnings[starts]
        if self.bias is not None:
            expected += self.bias.double().unsqueeze(1)
        return out != expected.to(out.dtype)

    def check(self, config: Config, offs: torch.Tensor, **options) -> None:
        """The product by a config, for (count, groups) offsets one after the other. They are compared at the end."""
        product = Product(config, self.a, self.b, self.groups, bias=self.bias, **options)
        wrong = [
            self.wrong(product(self.a, self.b, each), each).any() | product.guards_are_written() for each in offs
        ]  # fmt: skip
        failed = torch.stack(wrong).nonzero().flatten().tolist()
        if failed:
            first = offs[failed[0]]
            at = self.wrong(product(self.a, self.b, first), first).nonzero()[:3].tolist()
            raise AssertionError(
                f"{config} on {product.problem}: {len(failed)} of {len(offs)} are wrong, the first of them"
                f" {first.tolist()}, now at {at}"
            )


def random_offsets(seed: int, count: int, groups: int, total: int) -> list[list[int]]:
    """Offsets of all kinds: of typical and tiny groups, of sizes near those of tiles, all in one group, and wild."""
    draw = random.Random(seed)

    def ends(sizes):
        found, end = [], 0
        for size in sizes:
            end = min(end + size, total)
            found.append(end)
        return found

    def near_tiles():
        return [max(0, draw.choice((16, 32, 48, 64, 128, 256)) + draw.randint(-1, 1)) for _ in range(groups)]

    kinds = (
        lambda: sorted(draw.randint(0, total) for _ in range(groups)),
        lambda: [*sorted(draw.randint(0, total) for _ in range(groups - 1)), total],
        lambda: ends(draw.choice((0, 0, 1, 2, 3)) for _ in range(groups)),
        lambda: ends(near_tiles()),
        lambda: ends(draw.randrange(2 * total // groups) for _ in range(groups)),
        lambda: ends([1] * groups),
        lambda: [0] * groups,
        lambda: [total * (g >= draw.randrange(groups)) for g in range(groups)],
        lambda: [draw.randint(-total, 2 * total) for _ in range(groups)],
        lambda: [draw.choice((draw.randint(*INT32), draw.randint(0, total))) for _ in range(groups)],
    )
    return [draw.choice(kinds)() for _ in range(count)]


def normal(ragged, layout, sizes, n, other, device, rest=5, dtype=torch.bfloat16):
    """Operands of random numbers, and offsets."""
    total = sum(sizes) + rest
    shape_a, shape_b = ((total, other), (len(sizes), other, n)) if ragged == "m" else ((other, total), (total, n))
    a, b = (torch.randn(shape, device=device).to(dtype) for shape in (shape_a, shape_b))
    return stored(a, layout[0]), stored(b, layout[1]), int32(list(itertools.accumulate(sizes)), device)


def stored(x, letter):
    """x, densely, in memory of its own."""
    return x.mT.contiguous().mT if letter == "t" else x.contiguous()


def assert_same(found, expected):
    """The same bits, and NaN in the same places."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
