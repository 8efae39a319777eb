"""The exact kernel computes the product: every tile at its edges, every layout, order and epilogue, on a GPU."""

from dataclasses import replace

import pytest
import torch
from compile_cases import SLICED
from promises import (
    EVERYTHING,
    assert_adds_before_it_rounds,
    assert_exact_and_repeatable,
    assert_repeatable,
    assert_right,
    assert_right_if_it_fits,
    assert_writes_views_and_nothing_else,
)

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.autotune.measuring import space
from tritonmm.config import Config
from tritonmm.dtypes import DTYPES
from tritonmm.families.exact.rules import HAS_FP64
from tritonmm.problem import Problem
from tritonmm.torch_ops.dense import matmul

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or gpus.default().capability != 90, reason="fp64 is sliced on sm_90 only"
    ),
]
DTYPES_HERE = ["fp32", "fp64"] if HAS_FP64 else ["fp32"]
TILES = [pytest.param(dtype, x, id=f"{dtype}-{x}") for dtype in DTYPES_HERE for x in sorted(SLICED[dtype])]


def config(blocks, order="swizzle-merge:3"):
    return Config("exact", *blocks, order=orders.parse(order))


@pytest.mark.parametrize(("dtype", "blocks"), TILES)
def test_every_tile_at_its_edges(dtype, blocks, device):
    block_m, block_n, block_k, *_ = blocks
    for m in (1, block_m - 1, block_m, 3 * block_m + 17):
        for n in (4, block_n - 4, block_n, block_n + 1, 2 * block_n + 8):
            for k in (4, block_k - 1, block_k, block_k + 4, 9 * block_k - 4):
                assert_right_if_it_fits(space.problem(m, n, k, layout="nt", dtype=dtype), config(blocks), device)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(("dtype", "blocks"), TILES)
def test_every_layout(dtype, blocks, layout, device):
    for m, n, k in ((1000, 520, 328), (999, 521, 333), (998, 522, 334), (260, 132, 4100)):
        assert_right_if_it_fits(space.problem(m, n, k, layout=layout, dtype=dtype), config(blocks), device)


@pytest.mark.parametrize(
    "spelling", ["row-major", "column-major", "split-merge:3", "swizzle-merge:3,2@n", "serpentine:2", "hilbert"]
)
@pytest.mark.parametrize(("dtype", "blocks"), TILES)
def test_every_order_gives_the_same_bits(dtype, blocks, spelling, device):
    a = torch.randn(3, 700, 200, device=device, dtype=DTYPES[dtype])
    b = torch.randn(3, 200, 904, device=device, dtype=DTYPES[dtype])
    found = matmul(a, b, config=config(blocks, spelling))
    assert torch.equal(found, matmul(a, b, config=config(blocks, "row-major")))
    assert_right_if_it_fits(
        space.problem(700, 904, 200, batch=3, dtype=dtype, layout="nn"), config(blocks, spelling), device
    )


@pytest.mark.parametrize(("dtype", "blocks"), TILES)
def test_small_integers_are_exact_and_runs_are_bitwise_equal(dtype, blocks, device):
    assert_exact_and_repeatable(1500, 1400, 1032, config(blocks), device, DTYPES[dtype])


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("split_k", [2, 3, 8])
@pytest.mark.parametrize("blocks", sorted(x for x in SLICED["fp32"] if x[3] > 2))
def test_parts_of_k_meet(blocks, split_k, layout, device):
    """Parts of different lengths, whole and ragged steps; results are bitwise the same however the parts arrive."""
    split = replace(config(blocks), split_k=split_k)
    for m, n, k in ((1000, 520, 328), (132, 260, 4100), (4, 4, split_k * blocks[2])):
        assert_right(space.problem(m, n, k, layout=layout, dtype="fp32", batch=2), split, device)
    for m, n, k in ((130, 260, 4094), (999, 521, 333), (1, 4, split_k * blocks[2])):
        assert_right_if_it_fits(space.problem(m, n, k, layout=layout, dtype="fp32", batch=2), split, device)
    a = torch.randint(-4, 5, (300, 1032), device=device).float()
    b = torch.randint(-4, 5, (1032, 400), device=device).float()
    assert torch.equal(matmul(a, b, config=split).double(), a.double() @ b.double())
    a, b = torch.randn_like(a), torch.randn_like(b)
    assert_repeatable(lambda: matmul(a, b, config=split))  # also: the flags are left as they were found


@pytest.mark.parametrize("k", [0, 136])
@pytest.mark.parametrize("n", [520, 521])
@pytest.mark.parametrize(("dtype", "blocks"), TILES)
def test_epilogue_adds_before_it_rounds(dtype, blocks, n, k, device):
    def integers(*shape):
        return torch.randint(-9, 10, shape, device=device).to(DTYPES[dtype])

    a, b, c, bias = integers(2, 300, k), integers(2, k, n), integers(300, 1).expand(2, 300, n), integers(n)
    problem = Problem.of(a, b, a.new_empty(2, 300, n), epilogue=EVERYTHING)
    if not config(blocks).fits(problem, gpus.of_device(device.index)):
        pytest.skip("copies of single elements are too many for this tile, and Config.fits says so")
    assert_adds_before_it_rounds(a, b, c, bias, config(blocks), DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES_HERE)
def test_views_of_any_strides(dtype, device):
    """Operands that start anywhere, with lines of any length, contiguous in no dimension or the same in all batches."""
    x = torch.randn(4, 300, 700, device=device, dtype=DTYPES[dtype])
    b = torch.randn(130, 260, device=device, dtype=DTYPES[dtype])
    small = config(min(SLICED[dtype]))
    for name, a in {
        "from the third column": x[1, :, 3:133],
        "every other row": x[2, ::2, :130],
        "every other column": x[2, :, :260:2],
        "one row": x[3, :1, 5:135],
        "broadcast batch": x[:1, :, :130].expand(4, 300, 130),
        "transposed": x[0, :130].t()[1:290],
    }.items():
        right = b.expand(4, 130, 260) if a.dim() == 3 else b
        assert torch.equal(matmul(a, right, config=small), matmul(a.contiguous(), right, config=small)), name


@pytest.mark.parametrize("dtype", DTYPES_HERE)
def test_output_views(dtype, device):
    a = torch.randn(300, 72, device=device, dtype=DTYPES[dtype])
    b = torch.randn(72, 264, device=device, dtype=DTYPES[dtype])
    assert_writes_views_and_nothing_else(a, b, config(min(SLICED[dtype])))
