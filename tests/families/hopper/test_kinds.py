"""The Hopper kernel for operands of 1 and 4 bytes: every tile at its edges, scales, layouts and runs, on a GPU."""

from dataclasses import replace

import pytest
import torch
from compile_cases import HOPPER_KINDS
from promises import EVERYTHING, assert_right

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.autotune.measuring import space
from tritonmm.config import Config
from tritonmm.dtypes import DTYPES
from tritonmm.moduli import MODULI
from tritonmm.plan import plan_for
from tritonmm.problem import KINDS, Problem
from tritonmm.selection import choose
from tritonmm.torch_ops.dense import matmul
from tritonmm.torch_ops.quantized import int_mm, scaled_mm, weight_only_linear

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or gpus.default().capability != 90, reason="the hopper kernel needs sm_90"
    ),
]
TILES = [(kind, blocks) for kind, tiles in HOPPER_KINDS.items() for blocks in sorted(tiles)]


def config(kind, blocks, order="swizzle-merge:3", split_k=1):
    block_m, block_n, k_bytes, *rest = blocks
    block_k = k_bytes // DTYPES[KINDS[kind]["dtype"]].itemsize
    return Config("hopper", block_m, block_n, block_k, *rest, split_k, 1, True, orders.parse(order))


def assert_right_once_aligned(problem, config, device):
    assert_right(problem, replace(config, repack=problem.unaligned), device)


@pytest.mark.parametrize(("kind", "blocks"), TILES, ids=str)
def test_every_tile_at_its_edges(kind, blocks, device):
    block_m, block_n, *_ = blocks
    one = config(kind, blocks)
    for m in (1, block_m - 1, block_m + 1, 3 * block_m + 17):
        for n in (16, block_n - 16, block_n + 16):
            for k in (16, one.block_k, one.block_k + 16, 9 * one.block_k - 16):
                assert_right_once_aligned(space.problem(m, n, k, dtype=kind, layout="nt"), one, device)


@pytest.mark.parametrize("blocks", sorted(HOPPER_KINDS["int8"]), ids=str)
def test_residues_of_every_tile(blocks, device):
    """Every element of many tiles: a consumer's pieces are written one right after the other."""
    m, n, k, moduli = 3000, 2064, 528, 15
    a = torch.randint(-128, 128, (moduli, m, k), device=device, dtype=torch.int8)
    b = torch.randint(-128, 128, (moduli, n, k), device=device, dtype=torch.int8).mT
    out = torch.empty(moduli, m, n, device=device, dtype=torch.int8)
    problem = Problem(m, n, k, moduli, "int8", layout="nt", moduli=moduli)
    plan_for(problem, config("int8", blocks), device)(a, b, out)
    for i, modulus in enumerate(MODULI[:moduli]):
        exact = a[i].double() @ b[i].double()
        assert not ((out[i].double() - exact) % modulus).any(), modulus


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("kind", ["int8", "tf32", "fp8", "fp8-row-ieee", "fp8-block"])
def test_every_layout_and_alignment(kind, layout, device):
    tiles = sorted(blocks for blocks in HOPPER_KINDS[kind] if blocks[0] == 128)
    for m, n, k in ((1000, 1296, 336), (264, 136, 64), (1001, 519, 1033)):
        problem = space.problem(m, n, k, layout=layout, dtype=kind)
        repacked = problem.repacked(problem.unaligned)
        fitting = [one for one in (config(kind, blocks) for blocks in tiles) if one.fits(repacked, gpus.default())]
        assert_right_once_aligned(problem, fitting[-1], device)
        assert_right_once_aligned(problem, replace(choose(problem, gpus.default()), repack=""), device)


def test_tf32_is_rounded_while_it_is_loaded(device):
    """What tensor cores cut off instead makes sums of positive operands too small, by 7 in 10,000 in the mean."""
    from tritonmm.families.hopper.launch import ROUNDS

    if not ROUNDS:
        pytest.skip("this Triton has no tensor maps that round")
    a, b = torch.rand(300, 1000, device=device), torch.rand(400, 1000, device=device).t()
    exact = a.double() @ b.double()
    for rows in (a, a[:200], a[:41]):  # whole blocks, and boxes
        found = matmul(rows, b, precision="tf32", config=config("tf32", (64, 128, 128, 8, 4), "row-major"))
        assert (found / exact[: len(rows)] - 1).mean().abs() < 1e-4


@pytest.mark.parametrize("scales", ["tensor", "row", "1x128*128x128", "128x128*1x128", "1x128*1x128"])
@pytest.mark.parametrize("blocks", [(128, 256, 4), (256, 128, 4), (128, 128, 6), (64, 128, 6)], ids=str)
def test_promoted_sums_with_scales_of_every_kind(blocks, scales, device):
    """Consumers with two parts and with one; sizes that cut a part, leave one out, end within a group, and whose rows
    tiles of 64 share evenly."""
    one = Config("hopper", *blocks[:2], 128, blocks[2], 8, persistent=True, order=orders.parse("swizzle-merge:3"))
    for m, n, k in ((1000, 1296, 1040), (257, 144, 128), (60, 400, 16), (513, 272, 4096), (80, 400, 272)):
        asked = replace(space.problem(m, n, k, dtype="fp8-ieee"), scales=scales)
        if one.fits(asked, gpus.default()):
            assert_right_once_aligned(asked, one, device)
            assert_right_once_aligned(asked, replace(one, split_tail=min(4, -(-k // 128))), device)
        else:  # scales of columns are held in registers too
            assert scales in ("128x128*1x128", "1x128*1x128")
            assert blocks[0] * blocks[1] > 128 * 128


def test_promoted_sums_do_not_depend_on_the_tile(device):
    """Whole tiles add the same 128 products in the same order, whichever part of whichever consumer they are in."""
    for kind in ("fp8-ieee", "fp8-row-ieee", "fp8-block"):
        problem = space.problem(1000, 1296, 4112, dtype=kind)
        a, b, out = space.operands(problem, device)
        space.fill(a)
        space.fill(b)
        scales = space.scales(problem, device)
        found = [
            plan_for(problem, config("fp8", blocks), device)(a, b, out, scales=scales).clone()
            for blocks in sorted(HOPPER_KINDS["fp8-block"])
        ]
        assert all(torch.equal(x, found[0]) for x in found)


@pytest.mark.parametrize(("kind", "blocks"), TILES, ids=str)
def test_small_integers_are_exact_and_runs_are_bitwise_equal(kind, blocks, device):
    problem = space.problem(1500, 1424, 1040, dtype=kind, layout="nt")
    a, b, out = space.operands(problem, device)
    scales = None
    if problem.scales:
        scales = tuple(torch.ones(shape, device=device) for shape in problem.scale_shapes)
    plan = plan_for(problem, config(kind, blocks), device)
    for x in (a, b):
        x.copy_(torch.randint(-4, 5, x.shape, device=device))
    plan(a, b, out.fill_(77), scales=scales)
    assert torch.equal(out, (a.double() @ b.double()).to(out.dtype))
    space.fill(a)
    space.fill(b)
    first = plan(a, b, out, scales=scales).clone()
    for run in range(50):
        assert torch.equal(plan(a, b, out.fill_(77), scales=scales), first), f"run {run} differs"


@pytest.mark.parametrize("spelling", ["column-major", "split-merge:3", "swizzle-merge:3,2@n", "hilbert"])
@pytest.mark.parametrize("kind", ["int8", "fp8-block"])
def test_orders_and_split_tiles(kind, spelling, device):
    blocks = max(blocks for blocks in HOPPER_KINDS[kind] if blocks[0] == 128)
    problem = space.problem(1000, 1296, 1296, dtype=kind, layout="nt")
    assert_right_once_aligned(problem, config(kind, blocks, spelling), device)
    for split in (2, 5):
        one = config(kind, (128, 128, *blocks[2:]), spelling, split)
        assert_right_once_aligned(problem, one, device)
        assert_right_once_aligned(problem, replace(one, split_k=1, split_tail=split), device)


@pytest.mark.parametrize("n", [528, 521])
@pytest.mark.parametrize("out_dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("dtypes", ["fp8e4m3 fp8e4m3", "fp8e5m2 fp8e4m3", "fp8e5m2 fp8e5m2", "int8 int8"])
def test_epilogue_adds_before_it_rounds(dtypes, out_dtype, n, device):
    dtype_a, dtype_b = (DTYPES[name] for name in dtypes.split())
    a = torch.randint(-4, 5, (300, 144), device=device).to(dtype_a)
    b = torch.randint(-4, 5, (n, 144), device=device).to(dtype_b).t()
    bias = torch.randint(-9, 10, (n,), device=device).bfloat16()
    c = torch.randint(-9, 10, (300, 1), device=device).to(DTYPES[out_dtype])
    scales = torch.full((300, 1), 0.5, device=device), torch.full((1, n), 4.0, device=device)
    out = torch.full((300, n), float("nan"), device=device, dtype=DTYPES[out_dtype])
    problem = Problem.of(a, b, out, "fast", EVERYTHING, "row")  # of int8 there is no fast sum, and none is asked for
    one = Config("hopper", 128, 128, 128, 4, 8, persistent=True)
    plan_for(problem, one, device)(a, b, out, alpha=0.5, beta=-2.0, c=c, bias=bias, scales=scales)
    assert torch.equal(out, (a.double() @ b.double() + bias - 2 * c.double()).to(out.dtype))


def test_accurate_sums_of_fp8_are_closer_than_fast_ones(device):
    a, b = (torch.rand(512, 16384, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones(1, device=device)
    expected = a.double() @ b.double().t()

    def error(found):
        return float(((found.double() - expected).abs() / expected).max())

    accurate, fast = (
        error(scaled_mm(a, b.t(), one, one, out_dtype=torch.float32, use_fast_accum=fast)) for fast in (False, True)
    )
    torchs = torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.float32, use_fast_accum=False)
    assert accurate < fast / 4
    assert accurate <= error(torchs)


def test_as_torch(device):
    """torch's own private functions have the same results, up to the rounding of their sums."""
    a, b = (
        torch.randint(-128, 128, (512, 1024), device=device).char(),
        torch.randint(-128, 128, (768, 1024), device=device),
    )
    b = b.char().t()
    assert torch.equal(int_mm(a, b), torch._int_mm(a, b))
    a, b = (torch.randn(size, 1024, device=device).to(torch.float8_e4m3fn) for size in (512, 768))
    b = b.t()
    bias = torch.randn(768, device=device).bfloat16()
    for scale_a, scale_b in (
        (torch.rand(1, device=device)[0], torch.rand(1, device=device)[0]),
        (torch.rand(512, 1, device=device), torch.rand(1, 768, device=device)),
    ):
        found = scaled_mm(a, b, scale_a, scale_b, bias, out_dtype=torch.bfloat16)
        expected = torch._scaled_mm(a, b, scale_a, scale_b, bias, out_dtype=torch.bfloat16)
        torch.testing.assert_close(found, expected, rtol=2**-7, atol=2**-3)


@pytest.mark.parametrize("rows", [1, 16, 64, 300])
def test_weights_of_a_byte(rows, device):
    x = torch.randint(-4, 5, (rows, 4096), device=device).bfloat16()
    for dtype in (torch.int8, torch.float8_e4m3fn):
        weight = torch.randint(-4, 5, (1280, 4096), device=device).to(dtype)
        scale = torch.randint(-2, 3, (1280, 32), device=device).float().exp2()
        dense = weight.double() * scale.repeat_interleave(128, 1)
        expected = (x.double() @ dense.t()).bfloat16()
        for _ in range(20):
            assert torch.equal(weight_only_linear(x, weight, scale), expected)
