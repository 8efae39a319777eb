"""The GPU skips a product that is refused: no launch after the verdict writes anything, whichever panel is refused.

Most tests do not launch the native product, which would write all of the result, so that they see what was written
before it.
"""

import functools

import pytest
import torch

from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.launch import Plan
from tritonmm.ozaki import panels
from tritonmm.plan import bind
from tritonmm.torch_ops import ozaki_product
from tritonmm.torch_ops.ozaki import ozaki_mm

FP64, FP32 = torch.float64, torch.float32

UNWRITTEN = -12345.0
"""Fills a result before it is computed."""

UNWRITTEN_RESIDUE = -128
"""Fills planes of residues. Only the plane of modulus 256 may have it, so a product that was computed has others."""


@pytest.fixture
def no_native(monkeypatch):
    """No native product is launched."""
    launch = Plan.__call__

    def multiplied(plan, a, b, out, **options):
        if plan.problem.moduli:
            return launch(plan, a, b, out, **options)
        assert options["skip"] is not None
        return out

    monkeypatch.setattr(Plan, "__call__", multiplied)


@pytest.fixture
def planes(no_native, monkeypatch):
    """No native product is launched. Returns the planes of all products; each is filled before it is computed."""
    launch, found = Plan.__call__, []

    def multiplied(plan, a, b, out, **options):
        if plan.problem.moduli:
            out.fill_(UNWRITTEN_RESIDUE)
            found.append(out)
        return launch(plan, a, b, out, **options)

    monkeypatch.setattr(Plan, "__call__", multiplied)
    return found


def written(planes):
    """Of each of these planes, whether it was written at all."""
    return [not x.eq(UNWRITTEN_RESIDUE).all() for x in planes]


def with_outlier(x, line=-1):
    """x with an element that makes small ones of its row vanish: products with it are refused."""
    x = x.clone()
    x[..., line, 3] *= 2.0**40
    return x


def unwritten(a, b):
    """Memory for a @ b."""
    return torch.full((*a.shape[:-1], b.shape[-1]), UNWRITTEN, dtype=a.dtype, device=a.device)


def verdict_of(a, b, out, **addends):
    """Multiplies into out; whether the product was proved."""
    proved = torch.full((1,), -1, dtype=torch.int32, device=a.device)
    ozaki_mm(a, b, moduli="safe", out=out, proved=proved, **addends)
    return proved.item()


def exact(a, b, **addends):
    """The product without a verdict."""
    return ozaki_mm(a, b, moduli={FP64: 15, FP32: 8}[a.dtype], **addends)


def test_a_refused_product_writes_nothing(normal, planes):
    a, b, addends = normal(5, 20), normal(20, 6), {"c": normal(5, 6), "bias": normal(6), "alpha": 2.0}
    expected = exact(a, b, **addends)
    for left, proved in ((a, 1), (with_outlier(a), 0), (a, 1)):
        planes.clear()
        out = unwritten(a, b)
        assert verdict_of(left, b, out, **addends) == proved
        assert written(planes) == [bool(proved)]
        assert torch.equal(out, expected) if proved else out.eq(UNWRITTEN).all()


def test_parts_of_k_are_neither_multiplied_nor_added(normal, planes, monkeypatch):
    monkeypatch.setattr(panels, "LONGEST_PART", 256)
    a, b = normal(5, 300), normal(300, 6)
    for left, proved in ((with_outlier(a), 0), (a, 1)):
        planes.clear()
        out = unwritten(a, b)
        assert verdict_of(left, b, out) == proved
        assert written(planes) == [bool(proved)] * 2
        assert torch.equal(out, exact(a, b)) if proved else out.eq(UNWRITTEN).all()


@pytest.mark.parametrize("refused", [0, 1, 2, 4, 5, 6] if torch.cuda.is_available() else [0, 2, 5])
def test_no_panel_from_the_refused_one_on_is_written(refused, device, planes, monkeypatch):
    """Eight panels, of 16 x 16 elements of a batch of two."""
    monkeypatch.setattr(panels, "FEWEST", 16)
    monkeypatch.setattr(panels, "WORKSPACE", 1)
    a, b = torch.randn(2, 32, 30, device=device), torch.randn(2, 30, 32, device=device)
    expected = exact(a, b)
    out = unwritten(a, b)
    assert verdict_of(a, b, out) == 1
    assert torch.equal(out, expected)
    left, right = a.clone(), b.clone()
    batch, row, col = refused // 4, refused // 2 % 2, refused % 2
    if col:  # all panels of these columns would be refused; this is the first one
        right[batch] = with_outlier(b[batch].mT, 16 * col + 5).mT
    else:
        left[batch] = with_outlier(a[batch], 16 * row + 5)
    planes.clear()
    out = unwritten(a, b)
    assert verdict_of(left, right, out) == 0
    assert written(planes) == [i < refused for i in range(8)]
    found = [matrix[i : i + 16, j : j + 16] for matrix in out for i in (0, 16) for j in (0, 16)]
    before = [matrix[i : i + 16, j : j + 16] for matrix in expected for i in (0, 16) for j in (0, 16)]
    for i in range(8):
        assert torch.equal(found[i], before[i]) if i < refused else found[i].eq(UNWRITTEN).all(), f"panel {i}"


def test_a_product_that_is_only_judged_is_computed(normal, planes):
    """With a number of moduli and `proved`, nothing is computed natively."""
    a, b = with_outlier(normal(5, 20)), normal(20, 6)
    proved = torch.full((1,), -1, dtype=torch.int32, device=a.device)
    assert torch.equal(ozaki_mm(a, b, moduli=8, proved=proved), ozaki_mm(a, b, moduli=8))
    assert proved.item() == 0
    assert written(planes) == [True, True]


CONFIGS = {
    "chosen": None,
    "split K": Config("hopper", 128, 128, 128, 6, 8, split_k=2, persistent=True),
    "split tail": Config("hopper", 128, 256, 128, 4, 8, split_tail=4, persistent=True),
    "three consumers": Config("hopper", 192, 256, 128, 3, 12, persistent=True),
}


@pytest.fixture(params=CONFIGS)
def operands(request, device, monkeypatch):
    """a, a with an outlier, and b, for products of planes by the Hopper kernel with a config."""
    if gpus.of_device(device.index).capability != 90:
        pytest.skip("the hopper kernel needs sm_90")
    config, chosen = CONFIGS[request.param], ozaki_product._plan_of_products

    @functools.cache
    def plan_of(m, n, k, batch, moduli, device):
        if config is None:
            plan = chosen(m, n, k, batch, moduli, device)
        else:
            plan = bind(panels.products_of(m, n, k, batch, moduli), config, gpus.of_device(device.index), device)
        assert plan.config.kernel == "hopper", plan
        assert plan.skippable, plan
        return plan

    monkeypatch.setattr(ozaki_product, "_plan_of_products", plan_of)
    a, b = torch.randn(1000, 1024, device=device), torch.randn(1024, 1100, device=device)
    return a, with_outlier(a), b


@pytest.mark.gpu
@pytest.mark.parametrize("fill", [False, True], ids=["result", "planes"])
def test_hopper_products_in_turns(fill, operands, request):
    """Of one plan, whose launches are repeated. Split tiles leave their flags to the next launch."""
    planes = request.getfixturevalue("planes" if fill else "no_native")
    a, refused, b = operands
    expected = exact(a, b)
    for i, proved in enumerate((0, 0, 1, 0, 1, 1, 0, 1)):
        out = unwritten(a, b)
        assert verdict_of(a if proved else refused, b, out) == proved, i
        assert torch.equal(out, expected) if proved else out.eq(UNWRITTEN).all(), i
        if fill:
            assert written(planes[-1:]) == [bool(proved)], i


@pytest.mark.gpu
def test_a_graph_of_hopper_products_decides_in_each_replay(operands, no_native):
    a, refused, b = operands
    expected = exact(a, b)
    x, out, proved = a.clone(), unwritten(a, b), torch.zeros(1, dtype=torch.int32, device=a.device)
    ozaki_mm(x, b, moduli="safe", out=out, proved=proved)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ozaki_mm(x, b, moduli="safe", out=out, proved=proved)
    for i, holds in enumerate((0, 1, 0, 0, 1, 1)):
        x.copy_(a if holds else refused)
        out.fill_(UNWRITTEN)
        graph.replay()
        assert proved.item() == holds, i
        assert torch.equal(out, expected) if holds else out.eq(UNWRITTEN).all(), i


@pytest.mark.gpu
def test_a_graph_has_the_native_product_of_what_it_refuses(operands):
    a, refused, b = operands
    expected = ozaki_mm(refused, b, moduli="safe"), exact(a, b)
    assert not torch.equal(expected[0], exact(refused, b))
    x, out = refused.clone(), unwritten(a, b)
    ozaki_mm(x, b, moduli="safe", out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ozaki_mm(x, b, moduli="safe", out=out)
    for i, holds in enumerate((0, 1, 0, 0, 1, 1)):
        x.copy_(a if holds else refused)
        out.fill_(UNWRITTEN)
        graph.replay()
        assert torch.equal(out, expected[holds]), i
