"""The mixed-input kernel is right: every tile at its edges, shares, scales, epilogues and runs, on a GPU."""

import math
from dataclasses import replace

import pytest
import torch
from compile_int4 import PACKED
from compile_weights import HALVED, ROUNDS, WEIGHTS
from promises import (
    EVERYTHING,
    assert_adds_before_it_rounds,
    assert_repeatable,
    assert_right,
    assert_right_if_it_fits,
)

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.autotune.measuring import space
from tritonmm.config import Config
from tritonmm.nn import int4, int8
from tritonmm.plan import plan_for
from tritonmm.problem import Epilogue, Problem
from tritonmm.selection import timed
from tritonmm.torch_ops.quantized import packed_words

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or gpus.default().capability != 90, reason="the mixed-input kernel needs sm_90"
    ),
]
LIKE_OTHERS = {
    (8, 128, 256, 2, 8), (40, 128, 128, 7, 8), (40, 256, 128, 4, 8), (48, 128, 128, 7, 8),
    (80, 128, 128, 5, 8), (80, 256, 128, 3, 8), (96, 256, 128, 3, 8), (136, 128, 128, 4, 8), (144, 128, 128, 4, 8),
}  # fmt: skip
TILES = pytest.mark.parametrize("blocks", sorted(WEIGHTS - LIKE_OTHERS), ids=str)


PACKED_TILES = pytest.mark.parametrize("packed", sorted(PACKED), ids=str)


def config(blocks, order="row-major", split_k=0):
    """Persistent, or with so many programs a tile."""
    return Config("mixed_input", *blocks, split_k or 1, persistent=not split_k, order=orders.parse(order))


def dense(m, n, k, b_dtype="int8", scales="row", **fields):
    return Problem.dense(m, n, k, layout="nt", b_dtype=b_dtype, scales=scales, **fields)


@pytest.mark.parametrize("scales", ["", "row", "group"])
@TILES
def test_every_tile_at_its_edges(blocks, scales, device):
    block_m, block_n, block_k, *_ = blocks
    for m in (1, block_m - 1, block_m, 3 * block_m + 17):
        for n in (1, block_n - 1, block_n, 2 * block_n + 8):
            for k in (16, block_k, block_k + 16, 9 * block_k - 16):
                assert_right_if_it_fits(dense(m, n, k, scales=scales), config(blocks), device)


@pytest.mark.parametrize("k", [16, 64, 144, 256, 4096 - 16])
@TILES
def test_two_groups_in_a_step(blocks, k, device):
    for group in (64, 128):
        problem = replace(dense(20, 1000, k, scales="group"), group=group)
        assert_right_if_it_fits(problem, config(blocks), device)


@pytest.mark.parametrize("b_dtype", ["int8", "fp8e4m3"])
@pytest.mark.parametrize("group", [64, 128])
@TILES
def test_scales_of_groups_of_any_magnitude(blocks, group, b_dtype, device):
    """Also 0, negative ones and subnormal numbers, each beside any other, and beside weights that are not 0."""
    m, n, k = 50, 1000, 2048
    problem = replace(dense(m, n, k, b_dtype, "group", out_dtype="fp32"), group=group)
    if not (fit := config(blocks).fits(problem, gpus.of_device(device.index))):
        pytest.skip(fit.reason)
    a, b, out = space.operands(problem, device)
    space.fill(a)
    space.fill(b)
    shape = problem.scale_shapes[1]
    exponents = torch.tensor([-130.0, -100, -30, -9, -1, 0, 1, 20], device=device)
    scale = exponents[torch.randint(len(exponents), shape, device=device)].exp2() * torch.empty(
        shape, device=device
    ).uniform_(1, 2)
    scale *= torch.randint(-1, 2, shape, device=device)
    plan_for(problem, config(blocks), device)(a, b, out.fill_(torch.nan), scales=(None, scale))
    scaled = b.double() * scale.double().repeat_interleave(group, 0)
    error = (out.double() - a.double() @ scaled).abs()
    bound = 2 * math.sqrt(k) * 2**-24 * (a.double().abs() @ scaled.abs()) + 2**-24 * out.double().abs()
    assert (error <= bound + 2.0**-100).all()


@pytest.mark.parametrize("b_dtype", ["int8", "fp8e4m3", "fp8e5m2"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@TILES
def test_every_dtype(blocks, dtype, b_dtype, device):
    for scales in ("row", "group"):
        for out_dtype in (dtype, "fp32"):
            problem = dense(50, 1000, 1024, b_dtype, scales, dtype=dtype, out_dtype=out_dtype)
            assert_right_if_it_fits(problem, config(blocks), device)


@pytest.mark.parametrize("split_k", [0, 1, 2, 3, 8])
@TILES
def test_shares_that_cut_tiles_anywhere(blocks, split_k, device):
    for m, n, k in ((50, 4096, 4096), (16, 3000, 2064), (64, 28672, 2048), (33, 1000, 8208), (7, 130, 16384)):
        for scales in ("row", "group"):
            assert_right_if_it_fits(dense(m, n, k, scales=scales), config(blocks, split_k=split_k), device)


@pytest.mark.parametrize("split_k", [2, 3, 4, 7])
@pytest.mark.parametrize("rows", [72, 128, 136, 144, 160, 192, 200, 208])
def test_programs_that_add_up_a_tile_write_all_of_its_rows_and_no_others(rows, split_k, device):
    """Pieces have 8 to 64 columns. Some lie beyond the rows of activations, and not every program has a piece of each
    subtile."""
    stages = 6 if rows == 72 else 3
    for m in (rows - 7, rows, rows + 1, 2 * rows - 5, 2 * rows):
        for b_dtype, scales in (("int8", "group"), ("int8p", "group"), ("fp8e4m3", "row"), ("int4", "group")):
            problem = dense(m, 264, 4096, b_dtype, scales)
            assert_right_if_it_fits(problem, config((rows, 128, 128, stages, 8), split_k=split_k), device)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@PACKED_TILES
def test_int4_at_edges(packed, dtype, device):
    block_m, block_n, block_k, *_ = packed
    for m in (1, block_m, 2 * block_m + 9):
        for n in (1, block_n, 2 * block_n + 8):
            for k in (32, block_k, 9 * block_k - 32):
                for scales in ("", "row"):
                    problem = dense(m, n, k, "int4", scales, dtype=dtype)
                    assert_right_if_it_fits(problem, config(packed), device)
    for k in (20, 200, 1000):
        assert_right_if_it_fits(dense(block_m, 1000, k, "int4", dtype=dtype), config(packed), device)


@pytest.mark.parametrize("split_k", [0, 1, 2, 8])
@PACKED_TILES
def test_int4_in_shares(packed, split_k, device):
    for m, n, k in ((16, 4096, 4096), (64, 3000, 2048), (33, 1000, 8192), (7, 130, 16384)):
        for group in (32, 64, 128):
            for scales in ("group", "group-zero"):
                problem = replace(dense(m, n, k, "int4", scales), group=group)
                assert_right_if_it_fits(problem, config(packed, split_k=split_k), device)
    problem = replace(dense(20, 1000, 4096, "int4", "group", dtype="fp16", out_dtype="fp32"), group=64)
    for block_k in (64, 128):
        blocks = packed[0], packed[1], block_k, 3, packed[4]
        assert_right_if_it_fits(problem, config(blocks, split_k=split_k), device)


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize(
    ("b_dtype", "scales"),
    [("int4", "group"), ("int4", "group-zero"), ("int8", "group"), ("int8p", "group"), ("fp8e4m3", "group")],
)
def test_what_is_chosen_for_short_groups(b_dtype, scales, group, device):
    for m in (1, 16, 24, 48, 100, 193, 400):
        for n, k in ((4096, 4096), (1000, 2080)):
            problem = replace(dense(m, n, k, b_dtype, scales), group=group)
            chosen, *_ = timed(problem, gpus.of_device(device.index), "mixed_input")
            assert_right(problem, chosen, device)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(
    "blocks",
    [(16, 128, 128, 7, 8), (16, 128, 256, 7, 8), (16, 64, 256, 5, 4), (256, 128, 128, 2, 8), (64, 192, 128, 6, 12)],
    ids=str,
)
def test_every_code_has_its_value_in_every_place(blocks, dtype, device):
    codes = torch.arange(16, device=device)[:, None].repeat(1, 256)
    problem = dense(256, 16, 256, "int4", "row", dtype=dtype)
    a, b, out = space.operands(problem, device)
    a.copy_(torch.eye(256, device=device))
    b.copy_(int4.pack(codes).t())
    plan_for(problem, config(blocks), device)(a, b, out, scales=(None, torch.ones(1, 16, device=device)))
    assert torch.equal(out.long(), codes.t() - 8)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(
    "blocks",
    [(16, 128, 128, 7, 8), (16, 128, 256, 3, 8), (16, 64, 256, 5, 4), (32, 128, 256, 6, 8), (128, 128, 128, 5, 8),
     (256, 128, 128, 2, 8), (256, 128, 64, 5, 8), (64, 192, 128, 6, 12), (128, 256, 128, 4, 8), (72, 256, 128, 6, 8)],
    ids=str,
)  # fmt: skip
def test_every_zero_point_has_its_rows_and_group(blocks, dtype, device):
    """With scales of 1 everything is exact, rescaled sums as well."""
    for m, n, k, group in ((blocks[0] + 3, 1000, 1024, 128), (20, 264, 384, 64), (7, 1000, 96, 32)):
        problem = replace(dense(m, n, k, "int4", "group-zero", dtype=dtype, out_dtype="fp32"), group=group)
        if not config(blocks).fits(problem, gpus.of_device(device.index)):
            continue
        a, b, out = space.operands(problem, device)
        a.copy_(torch.randint(-2, 3, a.shape, device=device))
        codes = torch.randint(16, (n, k), device=device)
        b.copy_(int4.pack(codes).t())
        zero = torch.randint(16, (k // group, n), device=device)
        scale = int4.with_zero_points(torch.ones(zero.shape, device=device), zero).view(torch.float32)
        plan_for(problem, config(blocks), device)(a, b, out.fill_(torch.nan), scales=(None, scale))
        expected = a.double() @ (codes.t() - zero.repeat_interleave(group, 0)).double()
        assert torch.equal(out.double(), expected)


@pytest.mark.parametrize("accumulation", ["any", "invariant"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("scales", ["row", "group"])
def test_int4_has_the_bits_of_int8(scales, dtype, accumulation, device):
    """With the same weights and scales, in every tile that both may have."""
    for m, blocks in ((16, (16, 128, 128, 4, 8)), (100, (128, 128, 128, 4, 8)), (150, (160, 128, 128, 3, 8))):
        problem = dense(m, 1000, 2048, "int8", scales, dtype=dtype, accumulation=accumulation)
        packed = dense(m, 1000, 2048, "int4", scales, dtype=dtype, accumulation=accumulation)
        chosen = replace(config(blocks), persistent=False)
        if not chosen.fits(problem, gpus.of_device(device.index)):
            continue
        a, b, out = space.operands(problem, device)
        a.normal_()
        b.random_(-8, 8)
        scale = space.scales(problem, device)
        expected = plan_for(problem, chosen, device)(a, b, out, scales=scale).clone()
        codes = int4.pack(b.t() + int4.ZERO).t()
        assert torch.equal(plan_for(packed, chosen, device)(a, codes, out.fill_(torch.nan), scales=scale), expected)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@TILES
def test_packed_int8_at_edges(blocks, dtype, device):
    block_m, block_n, block_k, *_ = blocks
    for m in (1, block_m, 2 * block_m + 9):
        for n in (1, block_n, 2 * block_n + 8):
            for k in (16, block_k, 9 * block_k - 16):
                for scales in ("", "row", "group"):
                    assert_right_if_it_fits(dense(m, n, k, "int8p", scales, dtype=dtype), config(blocks), device)
    for k in (20, 200, 1000):  # rows are filled up
        assert_right_if_it_fits(dense(block_m, 1000, k, "int8p", dtype=dtype), config(blocks), device)


@pytest.mark.parametrize("split_k", [0, 1, 3, 8])
@TILES
def test_packed_int8_has_the_bits_of_int8(blocks, split_k, device):
    """With the same weights and scales, in every tile, also where programs share one."""
    for m, n, k, scales, dtype in (
        (50, 4096, 2048, "row", "bf16"), (700, 1000, 2048, "group", "bf16"), (33, 1000, 2064, "row", "fp16"),
        (300, 3000, 1024, "group", "fp16"),
    ):  # fmt: skip
        problem, packed = (dense(m, n, k, b_dtype, scales, dtype=dtype) for b_dtype in ("int8", "int8p"))
        chosen = config(blocks, split_k=split_k)
        if not chosen.fits(problem, gpus.of_device(device.index)):
            continue
        a, b, out = space.operands(problem, device)
        space.fill(a)
        space.fill(b)
        scale = space.scales(problem, device)
        expected = plan_for(problem, chosen, device)(a, b, out, scales=scale).clone()
        codes = packed_words(int8.pack(b.t())).t()
        assert torch.equal(plan_for(packed, chosen, device)(a, codes, out.fill_(torch.nan), scales=scale), expected)


@pytest.mark.parametrize("blocks", ROUNDS, ids=str)
def test_whole_tiles_come_in_rounds_before_shares(blocks, device):
    """Two and a half rounds, with and without groups, three, and two tiles more and less."""
    sms = gpus.of_device(device.index).sms
    for lines in (5 * sms // 4, 3 * sms // 2, (3 * sms + 2) // 2, (3 * sms - 2) // 2):  # of two tiles
        for k in (16, 656, 2048):
            for scales in ("row", "group"):
                problem = dense(blocks[0] + 9, lines * blocks[1] - 8, k, scales=scales)
                assert_right_if_it_fits(problem, config(blocks, "swizzle-merge:2"), device)
    problem = dense(blocks[0] + 9, (2 * sms + 1) * blocks[1], 1040)
    plan = plan_for(problem, config(blocks), device)
    assert plan.spec.in_rounds == (blocks[0] < 256)
    a, b, out = space.operands(problem, device)
    a.normal_()
    b.random_(-128, 128)
    scales = space.scales(problem, device)
    assert_repeatable(lambda: plan(a, b, torch.empty_like(out), scales=scales))


@pytest.mark.parametrize(
    ("blocks", "b_dtype"), [*((blocks, "int8") for blocks in HALVED), (HALVED[0], "int4")], ids=str
)
def test_two_programs_share_a_tile_of_the_last_round(blocks, b_dtype, device):
    """Each has a half, or programs without a tile assist the others; in the only round, and after another one."""
    gpu = gpus.of_device(device.index)
    sms = gpu.sms
    chosen = replace(config(blocks, "swizzle-merge:2"), split_tail=2)
    two = blocks[0] + 9  # rows of tiles
    fixups = set()
    for m, columns in (
        (blocks[0] - 7, 1), (two, sms // 8), (two, 3 * sms // 4), (blocks[0] - 7, 2 * sms // 3),
        (blocks[0] - 63, sms - 5), (two, 7 * sms // 8), (two, sms - 1),
    ):  # fmt: skip
        for k in (272, 656, 2048):
            for scales in ("row", "group"):
                problem = dense(m, columns * blocks[1] - 8, k, b_dtype, scales)
                assert_right_if_it_fits(problem, chosen, device)
                if chosen.fits(problem, gpu):
                    fixups.add(plan_for(problem, chosen, device).spec.fixup)
    assists = blocks == HALVED[0]
    assert fixups == ({"exchange", "assist"} if assists else {"exchange"})
    for columns in (3 * sms // 4, *([7 * sms // 8] if assists else [])):
        problem = dense(two, columns * blocks[1] - 8, 2048)
        plan = plan_for(problem, chosen, device)
        assert plan.spec.splits_tail
        assert plan.spec.in_rounds
        a, b, out = space.operands(problem, device)
        a.normal_()
        b.random_(-128, 128)
        scales = space.scales(problem, device)
        assert_repeatable(lambda plan=plan, a=a, b=b, out=out, s=scales: plan(a, b, torch.empty_like(out), scales=s))


@pytest.mark.parametrize("b_dtype", ["int8", "int8p", "fp8e4m3", "int4"])
def test_assistants_with_odd_columns_and_idle_indices(b_dtype, device):
    """Outputs that are written an element at a time, and an order with indices that have no tile."""
    sms = gpus.of_device(device.index).sms
    for order, m, columns in (("row-major", 250, sms - 20), ("split-merge:2", 600, (sms - 12) // 4)):
        chosen = replace(config((256, 128, 64, 5, 8), order), split_tail=2)
        for n in (columns * 128 - 1, columns * 128 - 4):
            for scales in ("row", "group")[b_dtype == "int4" :]:
                problem = dense(m, n, 1040, b_dtype, scales)
                assert plan_for(problem, chosen, device).spec.fixup == "assist"
                assert_right(problem, chosen, device)


@TILES
def test_fewer_rows_than_a_block(blocks, device):
    for m in range(1, blocks[0], 13):
        assert_right_if_it_fits(dense(m, 2 * blocks[1] + 8, 656), config(blocks), device)


def test_whole_tiles_ask_for_no_memory_to_meet_in(device):
    blocks, sms = (16, 256, 128, 5, 8), gpus.of_device(device.index).sms
    for n, whole in ((2 * 256 * sms, config(blocks)), (300 * sms, config(blocks, split_k=1))):
        problem = dense(16, n, 512)
        assert plan_for(problem, whole, device).workspace()[0].numel() == 0
        assert_right(problem, whole, device)


def test_meetings_leave_flags_as_others_need_them(device):
    """Of either kind, one after the other, and beside each other on two streams."""
    problem = dense(40, 1000, 4096, scales="")
    a, b, out = space.operands(problem, device)
    a.copy_(torch.randint(-2, 3, a.shape, device=device))
    b.copy_(torch.randint(-2, 3, b.shape, device=device))
    expected = (a.double() @ b.double()).to(out.dtype)
    configs = [config((64, 128, 128, 6, 8), split_k=split) for split in (2, 0, 3, 8, 0, 5)]
    configs.insert(3, replace(config((256, 128, 64, 4, 8)), split_tail=2))
    plans = [plan_for(problem, each, device) for each in configs]
    assert {plan.spec.fixup for plan in plans} == {"reduce-scatter", "last-arriver", "exchange"}
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    found = []
    for run in range(40):
        with torch.cuda.stream(streams[run % 2]):
            found += [plan(a, b, torch.full_like(out, torch.nan)) for plan in plans]
    torch.cuda.synchronize()
    assert all(torch.equal(x, expected) for x in found)


def test_assistants_beside_other_meetings(device):
    """On two streams that take turns, each with flags of its own, used by programs that meet in every way."""
    sms = gpus.of_device(device.index).sms
    halved = replace(config((256, 128, 64, 5, 8)), split_tail=2)
    plans, tensors, expected = [], [], []
    for m, n, each in (
        (200, (sms - 30) * 128, halved), (40, 1000, config((64, 128, 128, 6, 8))), (200, 3000, halved),
        (40, 1000, config((64, 128, 128, 6, 8), split_k=3)),
    ):  # fmt: skip
        problem = dense(m, n, 4096)
        plans.append(plan_for(problem, each, device))
        a, b, out = space.operands(problem, device)
        tensors.append((a.normal_(), b.random_(-128, 128), out, space.scales(problem, device)))
        a, b, out, scales = tensors[-1]
        expected.append(plans[-1](a, b, out, scales=scales).clone())
    assert [plan.spec.fixup for plan in plans] == ["assist", "last-arriver", "exchange", "reduce-scatter"]
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    found = []
    for run in range(40):
        with torch.cuda.stream(streams[run % 2]):
            for plan, (a, b, out, scales) in zip(plans, tensors, strict=True):
                found.append(plan(a, b, torch.full_like(out, torch.nan), scales=scales))
    torch.cuda.synchronize()
    assert all(torch.equal(x, y) for x, y in zip(found, expected * 40, strict=True))


@pytest.mark.parametrize("n", [520, 521, 522, 524])
@pytest.mark.parametrize(
    "blocks",
    [(16, 128, 128, 4, 8), (72, 128, 128, 6, 8), (128, 128, 128, 4, 8), (64, 192, 128, 4, 12), (200, 128, 128, 3, 8),
     (256, 128, 64, 5, 8), (128, 256, 128, 3, 8)],
    ids=str,
)  # fmt: skip
def test_alpha_and_bias_without_c(blocks, n, device):
    """Sums are rounded before they change layout: n allows stores of 16, 2, 4 and 8 bytes."""
    whole = replace(config(blocks), persistent=False)
    m, k = blocks[0] + 3, 528
    a, bias = (torch.randint(-4, 5, shape, device=device).bfloat16() for shape in ((m, k), (n,)))
    b = torch.randint(-4, 5, (n, k), dtype=torch.int8, device=device).t()
    out = torch.full((m, n), torch.nan, dtype=torch.bfloat16, device=device)
    plan = plan_for(Problem.of(a, b, out, epilogue=Epilogue(scaled=True, bias=True)), whole, device)
    assert plan.spec.rounds_first
    plan(a, b, out, alpha=0.5, bias=bias)
    assert torch.equal(out, (0.5 * (a.double() @ b.double()) + bias.double()).to(out.dtype))


@pytest.mark.parametrize("b_dtype", ["int8", "fp8e4m3", "fp8e5m2"])
def test_tiles_that_convert_at_once_have_the_bits_of_others(b_dtype, device):
    """With scales of rows; also for rows of 0 and of -0, and with a NaN and an infinity."""
    problem = dense(50, 1000, 2064, b_dtype)
    a, b, out = space.operands(problem, device)
    space.fill(a)
    space.fill(b)
    a[3], a[4] = 0.0, -0.0
    a[7, 5], a[8, 6] = torch.nan, torch.inf
    scales = space.scales(problem, device)
    found = {}
    for blocks in sorted(WEIGHTS):
        if (each := replace(config(blocks), persistent=False)).fits(problem, gpus.of_device(device.index)):
            plan = plan_for(problem, each, device)
            bits = plan(a, b, torch.full_like(out, torch.nan), scales=scales).view(torch.int16)
            found.setdefault(plan.spec.at_once, []).append(bits)
    first = found[False][0]
    assert len(found[True]) > 5
    assert all(torch.equal(bits, first) for bits in found[False] + found[True])


@pytest.mark.parametrize(
    "spelling", ["column-major", "split-merge:3", "swizzle-merge:3,2@n", "serpentine:2", "hilbert"]
)
@TILES
def test_every_order(blocks, spelling, device):
    assert_right(dense(3 * blocks[0] + 1, 5 * blocks[1] + 8, 656), config(blocks, spelling), device)


@pytest.mark.parametrize("split_k", [0, 3])
@pytest.mark.parametrize("n", [520, 521])
@TILES
def test_epilogue_adds_before_it_rounds(blocks, n, split_k, device):
    if not (
        fit := config(blocks, split_k=split_k).fits(dense(20, n, 528, scales="", epilogue=EVERYTHING), gpus.default())
    ):
        pytest.skip(fit.reason)
    a, c, bias = (torch.randint(-4, 5, shape, device=device).bfloat16() for shape in ((20, 528), (20, n), (n,)))
    b = torch.randint(-4, 5, (n, 528), dtype=torch.int8, device=device).t()
    assert_adds_before_it_rounds(a, b, c, bias, config(blocks, split_k=split_k), torch.bfloat16)


@pytest.mark.parametrize("split_k", [0, 4])
@TILES
def test_small_integers_are_exact_and_runs_are_bitwise_equal(blocks, split_k, device):
    problem = dense(40, 3000, 4096, scales="")
    if not (fit := config(blocks, split_k=split_k).fits(problem, gpus.of_device(device.index))):
        pytest.skip(fit.reason)
    a, b, out = space.operands(problem, device)
    a.copy_(torch.randint(-2, 3, a.shape, device=device))
    b.copy_(torch.randint(-2, 3, b.shape, device=device))
    plan = plan_for(problem, config(blocks, split_k=split_k), device)
    assert torch.equal(plan(a, b, out).double(), (a.double() @ b.double()).to(out.dtype).double())
    a.normal_()
    assert_repeatable(lambda: plan(a, b, torch.empty_like(out)))


@TILES
def test_operands_and_outputs_within_others(blocks, device):
    problem = dense(24, 260, 528, scales="")
    wide = space.operands(replace(problem, m=30, n=300, k=1024), device)
    a, b, out = wide[0].normal_()[3:27, 16:544], wide[1].random_(-128, 128)[16:544, 7:267], wide[2][5:29, 2:262]
    found = Problem.of(a, b, out)
    before = wide[2].fill_(7).clone()
    plan_for(found, config(blocks), device)(a, b, out)
    expected = (a.double() @ b.double()).float()
    torch.testing.assert_close(out.float(), expected, rtol=2**-7, atol=1e-1)
    before[5:29, 2:262] = out
    assert torch.equal(wide[2], before), "wrote outside of the output"
