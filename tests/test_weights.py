"""The weights kernel computes the product: every tile at its edges, shares, scales, epilogues and runs, on a GPU."""

from dataclasses import replace

import pytest
import torch
from compile_cases import WEIGHTS

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.autotune import space
from tritonmm.autotune.verify import Check
from tritonmm.config import Config
from tritonmm.plan import plan_for
from tritonmm.problem import Epilogue, Problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or gpus.default().capability != 90, reason="the weights kernel needs sm_90"
    ),
]
TILES = pytest.mark.parametrize("blocks", sorted(WEIGHTS), ids=str)


def config(blocks, order="row-major", split_k=1):
    return Config("weights", *blocks, split_k, persistent=True, order=orders.parse(order))


def dense(m, n, k, b_dtype="int8", scales="row", **fields):
    return Problem.dense(m, n, k, layout="nt", b_dtype=b_dtype, scales=scales, **fields)


def assert_right(problem, config, device):
    if config.fits(problem, gpus.of_device(device.index)):  # not steps of 256 where groups of K have scales
        ratio = Check(problem, device).error_ratio(plan_for(problem, config, device))
        assert ratio <= 1, f"{config} on {problem}: error {ratio} times its bound"


@pytest.mark.parametrize("scales", ["", "row", "1x1"])
@TILES
def test_every_tile_at_its_edges(blocks, scales, device):
    block_m, block_n, block_k, *_ = blocks
    for m in (1, block_m - 1, block_m, 3 * block_m + 17):
        for n in (1, block_n - 1, block_n, 2 * block_n + 8):
            for k in (16, block_k, block_k + 16, 9 * block_k - 16):
                assert_right(dense(m, n, k, scales=scales), config(blocks), device)


@pytest.mark.parametrize("b_dtype", ["int8", "fp8e4m3", "fp8e5m2"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@TILES
def test_every_dtype(blocks, dtype, b_dtype, device):
    for scales in ("row", "1x1"):
        for out_dtype in (dtype, "fp32"):
            problem = dense(50, 1000, 1024, b_dtype, scales, dtype=dtype, out_dtype=out_dtype)
            assert_right(problem, config(blocks), device)


@pytest.mark.parametrize("split_k", [1, 2, 3, 8])
@TILES
def test_shares_that_cut_tiles_anywhere(blocks, split_k, device):
    for m, n, k in ((50, 4096, 4096), (16, 3000, 2064), (64, 28672, 2048)):
        for scales in ("row", "1x1"):
            assert_right(dense(m, n, k, scales=scales), config(blocks, split_k=split_k), device)


def test_whole_tiles_ask_for_no_memory_to_meet_in(device):
    problem = dense(16, 2 * 256 * gpus.of_device(device.index).sms, 512)
    plan = plan_for(problem, config((16, 256, 128, 5, 8)), device)
    assert plan.workspace()[0].numel() == 0
    assert Check(problem, device).error_ratio(plan) <= 1


@pytest.mark.parametrize(
    "spelling", ["column-major", "split-merge:3", "swizzle-merge:3,2@n", "serpentine:2", "hilbert"]
)
@TILES
def test_every_order(blocks, spelling, device):
    assert_right(dense(3 * blocks[0] + 1, 5 * blocks[1] + 8, 656), config(blocks, spelling), device)


@pytest.mark.parametrize("n", [520, 521])
@TILES
def test_epilogue_adds_before_it_rounds(blocks, n, device):
    one = config(blocks)
    problem = dense(20, n, 528, scales="", epilogue=Epilogue(scaled=True, bias=True, c=True))
    if not one.fits(problem, gpus.of_device(device.index)):
        pytest.skip("a tile of 192 columns leaves no registers to add C, and Config.fits says so")
    a, b, out = space.operands(problem, device)
    a.copy_(torch.randint(-4, 5, a.shape, device=device))
    b.copy_(torch.randint(-4, 5, b.shape, device=device))
    bias, c = torch.randint(-4, 5, (n,), device=device), torch.randint(-4, 5, out.shape, device=device)
    expected = 0.5 * (a.double() @ b.double()) + bias + 2.0 * c
    plan = plan_for(problem, one, device)
    plan(a, b, out, alpha=0.5, beta=2.0, bias=bias.to(out.dtype), c=c.to(out.dtype))
    assert torch.equal(out, expected.to(out.dtype))


@TILES
def test_small_integers_are_exact_and_runs_are_bitwise_equal(blocks, device):
    problem = dense(40, 3000, 4096, scales="")
    a, b, out = space.operands(problem, device)
    a.copy_(torch.randint(-2, 3, a.shape, device=device))
    b.copy_(torch.randint(-2, 3, b.shape, device=device))
    plan = plan_for(problem, config(blocks), device)
    assert torch.equal(plan(a, b, out).double(), (a.double() @ b.double()).to(out.dtype).double())
    a.normal_()
    first = plan(a, b, out).clone()
    for run in range(50):
        assert torch.equal(plan(a, b, torch.empty_like(out)), first), f"run {run} differs"


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
