"""The mixed-input kernel multiplies groups of rows by weights of their own and writes nothing else, on a GPU."""

import pytest
import torch
from compile_groups import ROWS_OF_GROUPS
from expert_cases import WEIGHTS, Experts
from grouped_cases import OFFSETS, bounds_of, expected_of, int32, poisoned
from grouped_products import integers, random_offsets

from tritonmm import gpu as gpus
from tritonmm import orders, weight_only_grouped_mm
from tritonmm.config import Config
from tritonmm.families.mixed_input import model as streams
from tritonmm.problem import Problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or gpus.default().capability != 90, reason="the mixed-input kernel needs sm_90"
    ),
]

TILES = [
    (kinds, rows, blocks)
    for table, kinds in ((streams.BLOCKS, WEIGHTS[:4]), (streams.INT4_BLOCKS, WEIGHTS[4:]))
    for rows in ROWS_OF_GROUPS
    for blocks in table[rows]
]
ORDERS = ["groups/row-major", "groups/column-major", "groups/swizzle-merge:3", "largest-groups/swizzle-merge:2@n",
          "joined-groups/serpentine:2", "joined-largest-groups/swizzle-merge:4"]  # fmt: skip


def config(rows, blocks, order="groups/swizzle-merge:3"):
    return Config("mixed_input", rows, *blocks, persistent=True, order=orders.parse(order))


def assert_exact(found, x, experts, offs, bias=None):
    """found is the product rounded once, and rows of no group are not written."""
    end = bounds_of(offs, len(x))[-1][1]
    expected = expected_of(x.double(), experts.dense.mT, offs, None if bias is None else bias.double())
    assert torch.equal(found[:end], expected[:end].to(x.dtype))
    assert found[end:].isnan().all()


@pytest.mark.parametrize(("kinds", "rows", "blocks"), TILES, ids=str)
def test_every_tile_at_its_edges(kinds, rows, blocks, device):
    """Sizes around the rows of a tile, by columns around its columns, and K around its steps."""
    sizes = [0, 1, rows - 1, rows, rows + 1, 0, 2 * rows, 3 * rows + 5, 2]
    ends = torch.tensor(sizes).cumsum(0).tolist()
    legal = 0
    for i, kind in enumerate(kinds):
        for dtype in (torch.bfloat16, torch.float16):
            for n, steps, group in ((8, 1, 128), (blocks[0] - 8, 3, 128), (3 * blocks[0] + 8, 5, None)):
                if group is None and kind == "int4-zero":
                    continue
                k = steps * max(blocks[1], group or 0) - (0 if group else 32)
                experts = Experts(kind, (len(sizes), n, k), group, device)
                x = integers((ends[-1] + 5, k), dtype, device, most=1)
                bias = integers((len(sizes), n), dtype, device) if i % 2 else None
                given = x, experts.weight, experts.scale
                with poisoned():
                    try:
                        found = weight_only_grouped_mm(
                            *given, offs=int32(ends, device), bias=bias, config=config(rows, blocks)
                        )
                    except ValueError as refused:
                        assert "registers" in str(refused) or "scale groups" in str(refused)  # noqa: PT017
                        continue
                legal += 1
                assert_exact(found, x, experts, ends, bias)
    assert legal


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ["int8", "int4-zero"])
def test_every_order_gives_the_same_bits(kind, order, device):
    ends = [100, 100, 400, 417, 1067, 1068, 1132]
    experts = Experts(kind, (len(ends), 776, 256), 128, device, exact=False)
    x = torch.randn(ends[-1], 256, device=device).bfloat16()
    given = x, experts.weight, experts.scale
    expected, found = (
        weight_only_grouped_mm(*given, offs=int32(ends, device), config=config(32, (128, 128, 4, 8), each))
        for each in ("groups/row-major", order)
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", OFFSETS)
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_any_offsets_are_clamped(kind, name, device):
    offs, total = OFFSETS[name]
    experts = Experts(kind, (len(offs), 264, 256), 128, device)
    x = integers((total, 256), torch.bfloat16, device, most=1)
    for rows, blocks in ((8, (128, 256, 4, 8)), (64, (128, 128, 6, 8))):
        with poisoned():
            found = weight_only_grouped_mm(
                x, experts.weight, experts.scale, offs=int32(offs, device), config=config(rows, blocks)
            )
        assert_exact(found, x, experts, offs)


@pytest.mark.parametrize("kind", ["int8", "int4-zero"])
def test_random_offsets(kind, device):
    groups, total = 12, 300
    experts = Experts(kind, (groups, 136, 256), 128, device)
    x = integers((total, 256), torch.bfloat16, device, most=1)
    for ends in random_offsets(0, 100, groups, total):
        with poisoned():
            found = weight_only_grouped_mm(
                x, experts.weight, experts.scale, offs=int32(list(ends), device), config=config(16, (128, 128, 4, 8))
            )
        assert_exact(found, x, experts, list(ends))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_nan_stays_in_its_group(kind, device):
    """Also where a tile multiplies rows of the next group."""
    ends = [5, 5, 12, 15]
    experts = Experts(kind, (4, 136, 256), 128, device)
    x = integers((17, 256), torch.bfloat16, device, most=1)
    expected = expected_of(x.double(), experts.dense.mT, ends).bfloat16()
    x[5:12], x[15:], experts.scale[1] = float("nan"), float("nan"), float("nan")
    found = weight_only_grouped_mm(
        x, experts.weight, experts.scale, offs=int32(ends, device), config=config(16, (128, 128, 4, 8))
    )
    assert found[5:12].isnan().all()
    assert torch.equal(found[:5], expected[:5])
    assert torch.equal(found[12:15], expected[12:15])


def test_it_is_chosen_for_experts():
    from tritonmm.problem import KINDS
    from tritonmm.selection import choose

    problem = Problem.dense(128, 1536, 2048, layout="nt", ragged="m", groups=128, **KINDS["bf16-int8"])
    assert choose(problem, gpus.spec("h200")).kernel == "mixed_input"
