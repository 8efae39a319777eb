"""What `proved` says: never 1 where the bound of the error does not hold, and 1 for ordinary data."""

import itertools
import math
from fractions import Fraction

import ozaki_reference as reference
import pytest
import torch

from tritonmm.moduli import DEFAULT_MODULI, FEWEST_MODULI, MODULI, MOST_K
from tritonmm.ozaki import panels
from tritonmm.ozaki.decide import Verdict, decide
from tritonmm.ozaki.planes import Planes
from tritonmm.ozaki.rule import MOST, rule
from tritonmm.ozaki.scaling import scaling
from tritonmm.torch_ops import ozaki_product
from tritonmm.torch_ops.ozaki import ozaki_mm

pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")  # NumPy's, of infinity and NaN

FP64, FP32 = torch.float64, torch.float32
SEEDS = range(0, 320, 3 if torch.cuda.is_available() else 23)
"""Products of adversarial kinds. The interpreter is slow."""

NAMES = {FP64: "fp64", FP32: "fp32"}


def proved(a, b, moduli):
    """The verdict, and the product."""
    verdict = torch.full((1,), -1, dtype=torch.int32, device=a.device)
    found = ozaki_mm(a, b, moduli=moduli, proved=verdict)
    assert verdict.item() in (0, 1)
    return bool(verdict.item()), found


def excess(a, b, found):
    """The largest error over what is allowed, in fractions."""
    bits = {FP64: 53, FP32: 24}[a.dtype]
    k = a.shape[1]
    worst = 0.0
    rows, cols = ([[Fraction(x) for x in line] for line in lines.double().tolist()] for lines in (a, b.mT))
    for (i, row), (j, col) in itertools.product(enumerate(rows), enumerate(cols)):
        exact = sum(x * y for x, y in zip(row, col, strict=True))
        size = sum(abs(x * y) for x, y in zip(row, col, strict=True))
        error = abs(Fraction(found[i, j].item()) - exact)
        if error:
            allowed = (min(2 * math.sqrt(k), k / 2) + 1) * Fraction(2) ** -bits * size
            worst = max(worst, float(error / allowed) if allowed else math.inf)
    return worst


def verdict_by_the_formulas(a, b, moduli):
    """The same decision, with counts of scaled elements in fractions."""
    k, q = a.shape[1], math.sqrt(math.prod(MODULI[:moduli]) / 2)
    first = 2.0 ** (math.floor(math.log2(scaling(moduli).bound / math.sqrt(k))) - 3)
    least, changes = [], 0
    for lines in (a, b.mT):
        scaled = []
        for line in lines.double().tolist():
            exact = [Fraction(x) for x in line]
            if any(exact):
                factor = Fraction(2) ** reference.scale_of(exact, moduli)
                scaled.append([abs(x) * factor for x in exact])
        changes += any(x.denominator > 1 for line in scaled for x in line)
        least.append([min((sum(x >= first * 2**i for x in line) for line in scaled), default=k) for i in range(3)])
    weights = (1, 1, 2)
    total = sum(
        weights[i] * weights[j] * max(0, least[0][i] + least[1][j] - k)
        for i, j in itertools.product(range(3), repeat=2)
    )
    error = changes * math.sqrt(k) * q / 2 + (k / 4 if changes == 2 else 0)
    allowed = min(2 * math.sqrt(k), k / 2) * {FP64: 2.0**-53, FP32: 2.0**-24}[a.dtype] * first**2 * total
    return math.inf if not error else allowed / error


def operands(seed, dtype):
    """A random product of some adversarial kind."""
    draw = torch.Generator().manual_seed(seed)
    k = (1, 2, 7, 40, 300)[seed % 5]

    def one(kind):
        x = torch.randn(3, k, generator=draw, dtype=FP64)
        if kind == 1:
            x = torch.rand(3, k, generator=draw, dtype=FP64)
        elif kind == 2:
            x = x * torch.exp2(8 * torch.randn(3, k, generator=draw, dtype=FP64))
        elif kind == 3:
            x[1] = 0
        elif kind == 4:
            x = x * (torch.rand(3, k, generator=draw) < 0.5)
        elif kind == 5:
            x[:, 0] *= 2.0**40
        elif kind == 6:
            x = torch.randint(-9, 9, (3, k), generator=draw).to(FP64)
        elif kind == 7:
            x[:, k // 2 :] *= -1e-3
        return x.to(dtype)

    a, b = one(seed // 5 % 8), one(seed // 40 % 8)
    if seed % 3 == 0 and k > 1:  # large elements of A meet zeros of B
        b = b * (a[:1].abs() < a[:1].abs().max())
    return a, b.mT


@pytest.mark.parametrize("dtype", [FP64, FP32], ids=["fp64", "fp32"])
def test_what_is_proved_is_within_the_bound(dtype, device):
    verdicts = []
    for seed in SEEDS:
        a, b = operands(seed, dtype)
        moduli = DEFAULT_MODULI[NAMES[dtype]] + seed % 2
        said, found = proved(a.to(device), b.to(device), moduli)
        margin = verdict_by_the_formulas(a, b, moduli)
        if not 0.99 < margin < 1.01:
            assert said == (margin > 1), f"seed {seed}, {moduli} moduli: margin {margin}"
        if said:
            assert excess(a, b, found) <= 1, f"seed {seed}, {moduli} moduli"
        verdicts.append(said)
    assert 2 < sum(verdicts) < len(verdicts) - 2


@pytest.mark.parametrize("dtype", [FP64, FP32], ids=["fp64", "fp32"])
def test_verdicts(dtype, device):
    moduli = DEFAULT_MODULI[NAMES[dtype]]
    a, b = torch.randn(6, 300, dtype=dtype, device=device), torch.randn(300, 5, dtype=dtype, device=device)

    def says(a, b, moduli=moduli):
        return proved(a, b, moduli)[0]

    assert torch.equal(proved(a, b, moduli)[1], ozaki_mm(a, b, moduli=moduli))
    assert says(a, b)
    assert says(torch.rand_like(a), torch.rand_like(b))
    assert says(a * torch.exp2(torch.linspace(-60, 60, 6, device=device).round())[:, None].to(dtype), b)
    assert not says(a, b, moduli - 2)
    integers = torch.randint(-8, 8, (6, 300), device=device).to(dtype)
    assert says(integers, integers.mT, 6)
    assert says(a[:, :0], b[:0])
    zeros = a.clone()
    zeros[3] = 0
    assert says(zeros, b)
    assert says(torch.zeros_like(a), b)
    outlier = a.clone()
    outlier[3, 5] *= 2.0**40
    assert not says(outlier, b)
    for special in (float("inf"), float("nan")):
        zeros[3, 5] = special
        assert not says(zeros, b)
        assert not says(b.mT, zeros.mT)
    tiny = torch.zeros_like(a)
    tiny[:, 0], tiny[:, 1] = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    assert not says(tiny, b)  # the small element vanishes, which is a change


def test_the_verdict_is_that_of_all_panels_and_matrices(monkeypatch, device):
    a, b = torch.randn(2, 20, 200, dtype=FP64, device=device), torch.randn(2, 200, 12, dtype=FP64, device=device)
    monkeypatch.setattr(panels, "FEWEST", 16)
    monkeypatch.setattr(panels, "WORKSPACE", 100_000)
    assert len(list(panels.panels(20, 12, 200, 2, 15))) == 4
    assert proved(a, b, 15)[0]
    for at in ((0, 0), (1, 19)):
        wrong = a.clone()
        wrong[(*at, 7)] *= 2.0**40
        assert not proved(wrong, b, 15)[0]


def test_as_many_blocks_that_change_as_there_can_be(device):
    """Their count reaches the sign of what is counted."""
    k, blocks = MOST_K, 4096
    packed = k | k << 17 | k << 34
    verdicts = []
    for changes in (0, 1, blocks - 1, blocks):
        counts = torch.tensor([[(packed + (changes << 51) + 2**63) % 2**64 - 2**63]], device=device)
        zeros = torch.zeros(1, 1, dtype=torch.int32, device=device)
        lines = Planes(counts, zeros, zeros, counts)
        verdict = torch.empty(1, dtype=torch.int32, device=device)
        decide(lines, lines, k, FP64, 12, Verdict(verdict), True)
        verdicts.append(verdict.item())
    assert verdicts == [1, 0, 0, 0]


def test_nothing_is_proved_for_a_long_k(monkeypatch, device):
    a, b = torch.ones(2, 20, dtype=FP64, device=device), torch.ones(20, 2, dtype=FP64, device=device)
    assert proved(a, b, 15)[0]
    monkeypatch.setattr(ozaki_product, "MOST_K", 19)
    verdict, found = proved(a, b, 15)
    assert not verdict
    assert found.eq(20).all()
    assert ozaki_mm(a, b, moduli="safe").eq(20).all()


@pytest.mark.parametrize("moduli", range(FEWEST_MODULI, len(MODULI) + 1))
def test_constants(moduli):
    bound = scaling(moduli).bound
    for k, dtype in itertools.product((1, 2, 3, 100, 4096, MOST_K), ("fp32", "fp64")):
        threshold, one, both = rule(k, dtype, moduli)
        assert math.frexp(threshold)[0] == 0.5
        assert 8 * threshold <= bound / math.sqrt(k) * (1 + 1e-9) < 16 * threshold
        assert 0 < one <= both <= MOST
        assert 16 * k < MOST


def test_errors(device):
    a = torch.randn(4, 4, dtype=FP64, device=device)
    for wrong in (torch.ones(2, dtype=torch.int32, device=device), torch.ones(1, device=device)):
        with pytest.raises(RuntimeError, match=r"proved is .*; it must be one torch\.int32"):
            ozaki_mm(a, a, moduli=15, proved=wrong)
