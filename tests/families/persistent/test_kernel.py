"""The persistent kernel computes the product: at its tiles' edges, from any layout and view, in any order.

It runs in the interpreter too, on small tiles; what the compiler makes of it is tested on a GPU.
"""

import itertools

import pytest
import torch
from bounds import assert_product
from compile_persistent import PERSISTENT
from pairs import all_pairs
from promises import (
    assert_adds_before_it_rounds,
    assert_exact_and_repeatable,
    assert_reads_views_that_tma_can_address,
    assert_right,
    assert_same_bits,
    assert_writes_views_and_nothing_else,
    edges,
)

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.autotune.measuring import space
from tritonmm.config import Config
from tritonmm.dtypes import DTYPES
from tritonmm.problem import Problem
from tritonmm.torch_ops.dense import matmul

pytestmark = pytest.mark.skipif(
    gpus.default().capability not in (90, 100), reason="the persistent kernel needs sm_90 or sm_100"
)

TILES = sorted(blocks for blocks in PERSISTENT if blocks[0] > 64 or gpus.default().capability == 90)
SMALL = (128, 64, 32, 2, 4)
SPELLINGS = ["row-major", "column-major", "split-merge:3", "split-merge:2@n", "swizzle-merge:3", "swizzle-merge:3,2@n",
             "serpentine:2", "hilbert"]  # fmt: skip


def config(blocks=SMALL, order="swizzle-merge:3"):
    block_m, block_n, block_k, num_stages, num_warps = blocks
    return Config(
        "persistent", block_m, block_n, block_k, num_stages, num_warps, persistent=True, order=orders.parse(order)
    )


@pytest.mark.parametrize(("m", "n", "k"), [(1, 9, 8), (127, 63, 24), (128, 64, 32), (129, 72, 40), (257, 130, 104)])
def test_within_the_bound_at_block_edges(m, n, k, device):
    assert_right(space.problem(m, n, k, layout="nt"), config(), device)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_every_layout(layout, dtype, device):
    assert_right(space.problem(136, 72, 40, batch=2, layout=layout, dtype=dtype), config(), device)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_order_gives_the_same_bits(spelling, device):
    a, b = torch.randn(2, 500, 40, device=device).bfloat16(), torch.randn(2, 40, 200, device=device).bfloat16()
    expected = matmul(a, b, config=config(order="row-major"))
    assert_product(expected, a, b)
    assert_same_bits(a, b, expected, config(order=spelling))


def test_a_users_table_gives_the_same_bits(device):
    a, b = torch.randn(300, 40, device=device).bfloat16(), torch.randn(40, 104, device=device).bfloat16()
    tiles = list(itertools.product(range(3), range(2)))
    table = Config("persistent", *SMALL, persistent=True, order=orders.Table(tiles[::-1]))
    assert torch.equal(matmul(a, b, config=table), matmul(a, b, config=config()))


@pytest.mark.parametrize(
    ("c_shape", "out_dtype", "n"),  # rows of 73 are written by masks, and of 72 by TMA
    all_pairs([(2, 150, None), (1, None), (150, 1)], ["bf16", "fp16", "fp32"], [72, 73]),
    ids=str,
)
def test_epilogue_adds_before_it_rounds(c_shape, n, out_dtype, device):
    a = torch.randint(-4, 5, (2, 150, 40), device=device).bfloat16()
    b = torch.randint(-4, 5, (2, n, 40), device=device).bfloat16().mT
    c = torch.randint(-9, 10, [n if size is None else size for size in c_shape], device=device).to(DTYPES[out_dtype])
    bias = torch.randint(-9, 10, (n,), device=device).bfloat16()
    assert_adds_before_it_rounds(a, b, c, bias, config(), DTYPES[out_dtype])


def test_views_that_tma_can_address(device):
    assert_reads_views_that_tma_can_address(72, config(), device)


def test_output_views_are_written_and_nothing_else(device):
    a, b = torch.randn(300, 72, device=device).bfloat16(), torch.randn(72, 104, device=device).bfloat16()
    assert_writes_views_and_nothing_else(a, b, config())


@pytest.mark.parametrize(
    ("fields", "problem", "gpu", "says"),
    [
        ({}, Problem(1, 1, 1), "a100", "needs sm_90, sm_100 or sm_103; a100 is sm_80"),
        ({}, Problem(1, 1, 1, dtype="fp32"), "b200", "dtypes are fp32 and fp32; the persistent kernel multiplies"),
        ({}, Problem(1, 1, 0), "h200", "k is 0"),
        ({"split_k": 2}, Problem(1, 1, 128), "h200", "split_k, split_tail are 2, 1"),
        ({"block_m": 64, "num_warps": 4}, Problem(1, 1, 1), "b200", "block_m is 64; it must be one of 128, 256"),
        ({"block_m": 64}, Problem(1, 1, 1), "h200", "block_m is 64; it must be one of 128, 256"),
        ({"block_n": 512}, Problem(1, 1, 1), "h200", "block_n is 512"),
        ({"num_warps": 16}, Problem(1, 1, 1), "h200", "num_warps is 16"),
        ({"num_stages": 1}, Problem(1, 1, 1), "h200", "num_stages is 1"),
        ({"block_n": 256, "num_warps": 4}, Problem(1, 1, 1), "h200", "256 accumulator registers"),
        ({"block_n": 128, "num_warps": 4}, Problem(1, 1, 1, out_alignment=2), "h200", "128 accumulator registers"),
        ({"block_n": 256, "num_stages": 5}, Problem(1, 1, 1), "b200", "bytes of shared memory exceed the 232448"),
    ],
)
def test_what_does_not_fit_says_why(fields, problem, gpu, says):
    fit = Config(**{"kernel": "persistent", "persistent": True} | fields).fits(problem, gpus.spec(gpu))
    assert not fit
    assert says in fit.reason


@pytest.mark.gpu
@pytest.mark.parametrize("blocks", TILES, ids=str)
def test_every_tile_at_its_edges(blocks, device):
    for m, n, k in edges(*blocks[:3]):
        problem = space.problem(m, n, k, layout="nt")
        if config(blocks).fits(problem, gpus.default()):
            assert_right(problem, config(blocks), device)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_tiles_that_follow_each_other_in_one_program(spelling, layout, device):
    """Several tiles a program, of one and of many steps: the flattened loop's pipeline runs on from one to the next."""
    for k in (8, 64, 136, 1032):
        problem = space.problem(2888, 4168, k, batch=3, layout=layout)
        assert_right(problem, config((128, 128, 64, 4, 8), spelling), device)


@pytest.mark.gpu
@pytest.mark.parametrize("blocks", TILES, ids=str)
def test_small_integers_are_exact_and_runs_are_bitwise_equal(blocks, device):
    assert_exact_and_repeatable(1500, 1400, 1032, config(blocks), device)


@pytest.mark.gpu
def test_overflow_far_outside_of_the_grid_writes_nothing(device):
    """A factor of 2**25 makes tiles whose first row, 2**25 * 128, is 0 in 32 bits."""
    a, b = torch.randn(200, 72, device=device).bfloat16(), torch.randn(72, 64, device=device).bfloat16()
    assert torch.equal(matmul(a, b, config=config(order=f"split-merge:{2**25 + 1}")), matmul(a, b, config=config()))
