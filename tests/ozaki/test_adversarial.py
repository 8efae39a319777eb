"""Products of adversarial operands: within the bound where that is proved, and native bits where it is refused.

On a GPU there are 3,200, in the interpreter a few of each kind.
"""

import itertools
import math

import numpy as np
import pytest
import torch

import tritonmm
from tritonmm.moduli import DEFAULT_MODULI
from tritonmm.problem import Problem
from tritonmm.torch_ops.ozaki import ozaki_mm
from tritonmm.torch_ops.ozaki_product import skippable_plan

pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")  # of infinity and NaN

FP64, FP32 = torch.float64, torch.float32
NAMES = {FP64: "fp64", FP32: "fp32"}
BITS = {FP64: 53, FP32: 24}

KINDS = (
    "normal", "uniform", "spread", "wide", "outlier", "cancelling", "sparse", "subnormal", "huge", "integers",
    "large integers", "zero lines", "special",
)  # fmt: skip
SIZES = (40, 300)
SEEDS = 5
CASES = list(itertools.product(KINDS, KINDS, SIZES, range(SEEDS)))
"""Of each dtype; 1,690."""


def lines(kind: str, draw: torch.Generator, rows: int, k: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of A or columns of B, (rows, k)."""
    info = torch.finfo(dtype)
    x = torch.randn(rows, k, generator=draw, dtype=FP64)
    if kind == "uniform":
        x = torch.rand(rows, k, generator=draw, dtype=FP64)
    elif kind == "spread":
        x = x * torch.exp2(3 * torch.randn(rows, k, generator=draw, dtype=FP64))
    elif kind == "wide":
        x = x * torch.exp2(20 * torch.randn(rows, k, generator=draw, dtype=FP64))
    elif kind == "outlier":
        x[:, torch.randint(k, (1,), generator=draw)] *= 2.0**30
    elif kind == "cancelling":  # of two such lines all products of the second half are those of the first, negative
        half = k // 2
        x[:, half : 2 * half] = x[:, :half]
        x[1::2, half : 2 * half] *= -1
    elif kind == "sparse":
        x = x * (torch.rand(rows, k, generator=draw) < 0.3)
    elif kind == "subnormal":
        x = x * info.smallest_normal / 4
    elif kind == "huge":
        x = x.clamp(-4, 4) * (info.max / 5)
    elif kind == "integers":
        x = torch.randint(-9, 10, (rows, k), generator=draw).to(FP64)
    elif kind == "large integers":
        x = torch.randint(-(2**22), 2**22, (rows, k), generator=draw).to(FP64)
    elif kind == "zero lines":
        x[torch.randint(rows, (1,), generator=draw)] = 0
    elif kind == "special":
        x[0, torch.randint(k, (1,), generator=draw)] = (math.inf, -math.inf, math.nan)[int(draw.initial_seed()) % 3]
    return x.to(dtype)


def operands(case: tuple[str, str, int, int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A, (4, k), and B, (k, 4)."""
    of_a, of_b, k, seed = case
    draw = torch.Generator().manual_seed(CASES.index(case) * 3 + seed)
    return lines(of_a, draw, 4, k, dtype), lines(of_b, draw, 4, k, dtype).mT


def excess(a: torch.Tensor, b: torch.Tensor, found: torch.Tensor) -> float:
    """The largest error over (tau + 1) u |a| |b|, or over half the least subnormal more.

    In 80-bit numbers, whose own error is at most K / 2**11 of u |a| |b|: less than a hundredth of what is allowed.
    """
    k, dtype = a.shape[1], found.dtype
    x, y = (z.double().numpy().astype(np.longdouble) for z in (a, b))
    exact, size = x @ y, abs(x) @ abs(y)
    unit = np.longdouble(2) ** -BITS[dtype]
    allowed = (min(2 * math.sqrt(k), k / 2) + 1) * unit * size
    allowed += np.longdouble(torch.finfo(dtype).smallest_normal) * 2 * unit / 2
    rounded = found.double().numpy().astype(np.longdouble)
    largest = np.longdouble(torch.finfo(dtype).max)
    overflows = np.isinf(rounded) & (abs(exact) + allowed > largest) & (np.sign(exact) == np.sign(rounded))
    error = np.where(overflows, 0, abs(np.where(overflows, 0, rounded) - np.where(overflows, 0, exact)))
    return float((error / allowed).max()) if not np.isnan(error).any() else math.inf


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether all bits are equal, with NaN for NaN."""
    as_bits = {FP64: torch.int64, FP32: torch.int32}[x.dtype]
    return bool(((x.view(as_bits) == y.view(as_bits)) | (x.isnan() & y.isnan())).all())


def examine(case: tuple[str, str, int, int], dtype: torch.dtype, device: torch.device) -> bool:
    """Checks a case, and says whether it is proved."""
    a, b = operands(case, dtype)
    there, other = a.to(device), b.to(device)
    moduli = DEFAULT_MODULI[NAMES[dtype]]
    verdict, again = (torch.full((1,), -1, dtype=torch.int32, device=device) for _ in range(2))
    fixed = ozaki_mm(there, other, moduli=moduli, proved=verdict)
    safe = ozaki_mm(there, other, moduli="safe", proved=again)
    said = bool(verdict.item())
    assert verdict.item() == again.item(), case
    if said:
        assert same(safe, fixed), case
        assert excess(a, b, fixed.cpu()) <= 1, case
    else:
        plan = skippable_plan(Problem.of(there, other, safe), device)
        assert same(safe, tritonmm.mm(there, other, config=plan.config, precision="ieee")), case
    return said


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [FP64, FP32], ids=["fp64", "fp32"])
def test_every_case(dtype, device):
    said = {case: examine(case, dtype, device) for case in CASES}
    assert 2 * len(said) > 3000
    assert sum(said.values()) > 100
    assert sum(not x for x in said.values()) > 100
    for kind in ("normal", "uniform", "integers"):
        assert all(x for case, x in said.items() if case[:3] == (kind, kind, 300)), kind
    assert not any(x for case, x in said.items() if "special" in case or case[0] == case[1] == "wide")


@pytest.mark.parametrize("dtype", [FP64, FP32], ids=["fp64", "fp32"])
def test_some_cases(dtype, device):
    chosen = [
        ("normal", "uniform", 40, 0), ("huge", "subnormal", 40, 1), ("cancelling", "cancelling", 40, 0),
        ("subnormal", "subnormal", 40, 2), ("huge", "integers", 40, 3), ("outlier", "sparse", 40, 1),
        ("special", "normal", 40, 0),
    ]  # fmt: skip
    said = [examine(case, dtype, device) for case in chosen]
    assert said[0]
    assert not said[-1]
    assert not said[-2]
