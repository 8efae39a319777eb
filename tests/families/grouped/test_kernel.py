"""The grouped kernel for Hopper computes each group's product and nothing else: every tile, any sizes, on a GPU."""

import itertools

import pytest
import torch
from grouped_cases import OFFSETS, int32
from grouped_products import (
    LAYOUTS,
    ON_HOPPER,
    TILES,
    Exact,
    assert_same,
    config,
    integers,
    multiply,
    normal,
    random_offsets,
    stored,
)

from tritonmm.autotune.measuring import space
from tritonmm.autotune.measuring.verify import Check
from tritonmm.plan import plan_for
from tritonmm.problem import Problem

pytestmark = ON_HOPPER

SIZES = range(301)
"""Of one group after the other: every number of rows of a tile, in one tile and in the several of a group."""

ORDERS = ["groups/row-major", "groups/column-major", "groups/swizzle-merge:3", "largest-groups/swizzle-merge:2,2@n",
          "joined-groups/serpentine:2", "joined-largest-groups/swizzle-merge:4"]  # fmt: skip


def problem(ragged, layout, sizes, n, other, rest=5, dtype="bf16"):
    """A problem of groups of these sizes, and `rest` rows or elements of K of none. other: K, or M if K is divided."""
    total = sum(sizes) + rest
    m, k = (total, other) if ragged == "m" else (other, total)
    return space.problem(m, n, k, dtype=dtype, layout=layout, ragged=ragged, groups=len(sizes))


def assert_right(asked, one, sizes, device):
    """Within its bound of float64, and exact on integers; nothing around the output is written."""
    ratio = Check(asked, device, sizes=list(sizes)).error_ratio(plan_for(asked, one, device))
    assert ratio <= 1, f"{one} on {asked}: error {ratio} times its bound"


@pytest.mark.parametrize(("ragged", "layout"), LAYOUTS)
@pytest.mark.parametrize("blocks", TILES, ids=str)
def test_every_size_of_a_group(blocks, ragged, layout, device):
    assert_right(problem(ragged, layout, SIZES, 136, 72), config(blocks), SIZES, device)


@pytest.mark.parametrize(("ragged", "layout"), LAYOUTS)
@pytest.mark.parametrize("blocks", TILES, ids=str)
def test_every_tile_at_its_edges(blocks, ragged, layout, device):
    block_m, block_n, block_k, *_ = blocks
    one = block_m if ragged == "m" else block_k
    sizes = [0, 1, one - 1, one, one + 1, 0, 2 * one, 3 * one + 17, 2]
    of_other = (8, block_k, block_k + 8, 9 * block_k - 8) if ragged == "m" else (8, block_m, block_m + 8)
    for n, other in itertools.product((8, block_n - 8, block_n, block_n + 8, 3 * block_n), of_other):
        assert_right(problem(ragged, layout, sizes, n, other), config(blocks), sizes, device)


@pytest.mark.parametrize(
    ("ragged", "layout", "dtype"),
    [("m", "nn", "fp16"), ("m", "nt", "bf16-fp32"), ("k", "tn", "fp16"), ("k", "tn", "fp16-fp32")],
)
@pytest.mark.parametrize("blocks", [(256, 128, 64, 4), (128, 256, 64, 3), (64, 128, 64, 7)], ids=str)
def test_every_dtype(blocks, ragged, layout, dtype, device):
    sizes = [7, 300, 0, 129, 1, 64, 511]
    assert_right(problem(ragged, layout, sizes, 392, 264, dtype=dtype), config(blocks), sizes, device)


@pytest.mark.parametrize(
    ("ragged", "layout", "spelling"),
    [*(("m", "nt", each) for each in ORDERS), *(("k", "tn", each) for each in ORDERS if "joined" not in each)],
)
def test_every_order_gives_the_same_bits(ragged, layout, spelling, device):
    blocks = (64, 128, 64, 8)
    a, b, offs = normal(ragged, layout, [100, 0, 300, 17, 650, 1, 64], 776, 136, device)
    found = multiply(config(blocks, spelling), a, b, offs)
    assert_same(found, multiply(config(blocks, "groups/row-major"), a, b, offs))


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("out_dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", OFFSETS)
@pytest.mark.parametrize(("ragged", "layout"), [("m", "nt"), ("k", "tn")])
def test_any_offsets_are_clamped(ragged, layout, name, out_dtype, bias, device):
    offs, total = OFFSETS[name]
    size = (264, 72) if ragged == "m" else (72, 264)
    product = Exact(ragged, len(offs), total, size, torch.bfloat16, layout, device, bias)
    for blocks in ((128, 256, 64, 3), (64, 128, 64, 6)):
        product.check(config(blocks, "largest-groups/swizzle-merge:2"), int32([offs], device), out_dtype=out_dtype)


FUZZED = (
    # what groups divide, layout, blocks and stages, order, dtype, whether there is a bias
    ("m", "nt", (256, 128, 64, 4), "groups/swizzle-merge:3", torch.bfloat16, False),
    ("m", "nn", (128, 256, 64, 4), "joined-largest-groups/serpentine:2", torch.float16, True),
    ("m", "nt", (64, 128, 64, 8), "largest-groups/row-major", torch.bfloat16, True),
    ("k", "tn", (128, 128, 64, 6), "largest-groups/swizzle-merge:2", torch.float16, False),
)


@pytest.mark.parametrize("seed", range(len(FUZZED)))
def test_random_offsets(seed, device):
    ragged, layout, blocks, order, dtype, bias = FUZZED[seed]
    groups, total = 12, 700
    size = (136, 72) if ragged == "m" else (136, 264)
    product = Exact(ragged, groups, total, size, dtype, layout, device, bias)
    product.check(config(blocks, order), int32(random_offsets(seed, 1250, groups, total), device))


@pytest.mark.parametrize("blocks", [(128, 128, 64, 6), (64, 256, 64, 4)], ids=str)
@pytest.mark.parametrize("total", [0, 1, 900, 4096])
def test_as_many_groups_as_there_may_be(total, blocks, device):
    """Most of them are empty where there are fewer rows, and the rows of many are in one tile's range."""
    groups, n, k = 4096, 72, 16
    a, b = integers((total, k), torch.bfloat16, device), integers((groups, n, k), torch.bfloat16, device).mT
    sizes = torch.zeros(groups, dtype=torch.int32, device=device)
    sizes.index_add_(0, torch.randint(groups, (total,), device=device), sizes.new_ones(total))
    group = torch.arange(groups, device=device).repeat_interleave(sizes)
    for order in ("groups/row-major", "joined-largest-groups/swizzle-merge:3"):
        found = multiply(config(blocks, order), a, b, sizes.cumsum(0).int())
        expected = torch.bmm(a.double().unsqueeze(1), b[group].double()).squeeze(1)
        assert torch.equal(found, expected.bfloat16())


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_empty_groups_of_k_are_zero_or_their_bias(bias, device):
    a, b, offs = normal("k", "tn", [0, 0, 0], 136, 72, device, rest=9)
    added = integers((3, 136), torch.bfloat16, device) if bias else None
    found = multiply(config((128, 128, 64, 6)), a, b, offs, bias=added)
    assert torch.equal(found, (added if bias else a.new_zeros(3, 136)).unsqueeze(1).expand(3, 72, 136))


@pytest.mark.parametrize("layout", ["nt", "nn"])
@pytest.mark.parametrize("blocks", TILES, ids=str)
def test_no_row_sees_its_neighbours(blocks, layout, device):
    """NaN in the rows and the matrices of every other group, in rows of none, and around A."""
    sizes = [33, 1, 7, 128, 0, 15, 64, 300, 257, 31, 48, 2]
    k, n = 88, 264  # not a multiple of block_k
    a, b, offs = normal("m", layout, sizes, n, k, device)
    inside = torch.arange(len(a), device=device)
    group = torch.searchsorted(offs.long(), inside, right=True)
    whole = torch.full((len(a) + 600, k + 40), float("nan"), device=device).bfloat16()
    view = whole[300:-300, 16 : 16 + k]
    view.copy_(torch.where((group % 2 == 0).unsqueeze(1) & (group < len(sizes)).unsqueeze(1), a, float("nan")))
    matrices = b.clone(memory_format=torch.preserve_format)
    matrices[1::2] = float("nan")
    found, expected = multiply(config(blocks), view, matrices, offs), multiply(config(blocks), a, b, offs)
    clean = (group % 2 == 0) & (group < len(sizes))
    assert torch.equal(found[clean], expected[clean])
    assert not expected[clean].isnan().any()
    assert found[~clean].isnan().all()


@pytest.mark.parametrize("blocks", TILES, ids=str)
def test_no_group_of_k_sees_its_neighbours(blocks, device):
    sizes = [33, 1, 7, 128, 0, 15, 64, 300, 257, 31, 48, 2, 5]
    a, b, offs = normal("k", "tn", sizes, 264, 136, device)
    expected = multiply(config(blocks), a, b, offs)
    assert not expected.isnan().any()
    group = torch.searchsorted(offs.long(), torch.arange(len(b), device=device), right=True)
    odd = (group % 2 == 1) | (group >= len(sizes))
    for operand in ("a", "b", "ab"):
        x, y = a.clone(memory_format=torch.preserve_format), b.clone()
        if "a" in operand:
            x[:, odd] = float("nan")
        if "b" in operand:
            y[odd] = float("inf")
        found = multiply(config(blocks), x, y, offs)
        assert torch.equal(found[0::2], expected[0::2])
        assert not found[1::2].isfinite().any()


@pytest.mark.parametrize(("ragged", "layout"), LAYOUTS)
def test_views_that_tma_can_address(ragged, layout, device):
    a, b, offs = normal(ragged, layout, [70, 0, 1, 200, 33], 264, 136, device)
    expected = multiply(config(), a, b, offs)

    def padded(x):
        """The same, with its lines apart, among NaN."""
        lines = x.mT if x.stride(-1) != 1 else x
        whole = torch.full((*lines.shape[:-2], lines.shape[-2] + 9, lines.shape[-1] + 24), float("nan"), device=device)
        view = whole.to(x.dtype)[..., 3:-6, 8:-16].copy_(lines)
        return view if lines is x else view.mT

    assert_same(multiply(config(), padded(a), padded(b), offs), expected)
    if ragged == "m":
        twice = stored(b.repeat_interleave(2, 0), layout[1])
        assert_same(multiply(config(), a, twice[::2], offs), expected)
        one = b[:1].expand(5, -1, -1)
        assert_same(multiply(config(), a, one, offs), multiply(config(), a, stored(one, layout[1]), offs))


@pytest.mark.parametrize(("ragged", "layout"), LAYOUTS)
def test_output_views(ragged, layout, device):
    a, b, offs = normal(ragged, layout, [70, 0, 1, 200, 33], 264, 136, device, rest=0)
    expected = multiply(config(), a, b, offs)
    board = torch.full((*expected.shape[:-2], expected.shape[-2] + 7, 264 + 40), float("nan"), device=device).bfloat16()
    out = board[..., 3:-4, 16:-24]
    asked = Problem.of(a, b, out, ragged=ragged)
    plan_for(asked, config(), device)(a, b, out, offs=offs)
    assert torch.equal(out, expected)
    assert board.isnan().sum() == board.numel() - out.numel()
