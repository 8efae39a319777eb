"""Orders over groups visit each tile of each group once, for any sizes, and the device visits them as the host does."""

import itertools
import random

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from grouped_cases import OFFSETS, bounds_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonmm import orders
from tritonmm.device.groups import part_of, tile_of
from tritonmm.launch.groups import GroupTable

INNER = ["row-major", "column-major", "swizzle-merge:1", "swizzle-merge:3", "swizzle-merge:2,2@n", "serpentine:2@n"]
PREFIXES = ["groups", "largest-groups", "joined-groups", "joined-largest-groups"]
ALL = [f"{prefix}/{inner}" for prefix in PREFIXES for inner in INNER]
SIZES = st.lists(st.one_of(st.just(0), st.integers(0, 40)), min_size=1, max_size=9)


@pytest.mark.parametrize("spelling", ALL)
def test_the_spelling_is_parsed(spelling):
    order = orders.parse(spelling)
    assert str(order) == spelling
    assert orders.parse(str(order)) == order
    assert eval(repr(order), vars(orders)) == order


@pytest.mark.parametrize(
    "spelling",
    ["groups/split-merge:2", "groups/hilbert", "groups/groups/row-major", "larger-groups/row-major", "groups/", "/",
     "groups", "largest-joined-groups/row-major"],
)  # fmt: skip
def test_other_spellings_are_refused(spelling):
    with pytest.raises(ValueError, match="order"):
        orders.parse(spelling)


@pytest.mark.parametrize("spelling", ALL)
@given(rows=SIZES, tiles_n=st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_each_tile_of_each_group_is_visited_once(spelling, rows, tiles_n):
    visited = orders.parse(spelling).visit_groups(rows, tiles_n)
    expected = {(g, m, n) for g, high in enumerate(rows) for m in range(high) for n in range(tiles_n)}
    assert len(visited) == len(expected)
    assert set(map(tuple, visited.tolist())) == expected


@pytest.mark.parametrize("spelling", ALL)
def test_one_group_is_a_plain_grid(spelling):
    order = orders.parse(spelling)
    np.testing.assert_array_equal(order.visit_groups([7], 5)[:, 1:], order.visit(7, 5))
    np.testing.assert_array_equal(order.visit(7, 5), order.inner.visit(7, 5))


def test_the_largest_group_comes_first_and_equal_ones_as_in_memory():
    order = orders.parse("largest-groups/row-major")
    assert order.visit_groups([1, 3, 0, 3, 2], 1)[:, 0].tolist() == [1, 1, 1, 3, 3, 3, 4, 4, 0]
    assert order.visit_groups([1, 1], 1, sizes=[5, 9])[:, 0].tolist() == [1, 0]


def test_a_joined_group_of_tiles_reaches_across_groups():
    """Three groups of one row of tiles are one grid of three rows, of which two are visited together."""
    visited = orders.parse("joined-groups/swizzle-merge:2").visit_groups([1, 1, 1], 2)
    assert visited[:, [0, 2]].tolist() == [[0, 0], [1, 0], [0, 1], [1, 1], [2, 0], [2, 1]]


@triton.jit
def visit_kernel(
    visited, table, factors, tiles_m, tiles_n,
    BLOCK_M: tl.constexpr, UNIT: tl.constexpr, ORDER: tl.constexpr, ALONG: tl.constexpr, JOINED: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    at = visited + 5 * i
    if BLOCK_M > 0:
        group, row, end, n = tile_of(i, tiles_n, table, factors, BLOCK_M, UNIT, ORDER, ALONG, JOINED)
        tl.store(at, group)
        tl.store(at + 1, row)
        tl.store(at + 2, end)
        tl.store(at + 3, n)
    else:
        group, start, end, m, n = part_of(i, tiles_m, tiles_n, table, factors, ORDER, ALONG)
        tl.store(at, group)
        tl.store(at + 1, start)
        tl.store(at + 2, end)
        tl.store(at + 3, m)
        tl.store(at + 4, n)


def table_of(order, offs, total, block_m, device):
    """The table on the device, and how many indices the order has."""
    table = GroupTable(len(offs), total, block_m, order.largest_first)
    return table.make(torch.tensor(offs, dtype=torch.int32, device=device))


@pytest.mark.parametrize("name", OFFSETS)
@pytest.mark.parametrize("spelling", ["groups/row-major", *ALL[3::5]])
def test_groups_of_rows_on_the_device_are_those_of_the_host(name, spelling, device):
    offs, total = OFFSETS[name]
    order, block_m, tiles_n = orders.parse(spelling), 8, 3
    starts, ends = np.array(bounds_of(offs, total)).T
    rows = -(-(ends - starts) // block_m)
    expected = order.visit_groups(rows, tiles_n, sizes=ends - starts)
    table = table_of(order, offs, total, block_m, device)
    assert table[0].item() * tiles_n == len(expected)
    visited = torch.full((len(expected), 5), -9, dtype=torch.int32, device=device)
    if len(expected):
        visit_kernel[(len(expected),)](
            visited, table, order.factors, 0, tiles_n, block_m, block_m, order.inner.name, order.along, order.joined
        )
    group, m, n = expected.T
    wanted = np.column_stack((group, starts[group] + m * block_m, ends[group], n))
    np.testing.assert_array_equal(visited.cpu().numpy()[:, :4], wanted)


@pytest.mark.parametrize("spelling", ["groups/row-major", *ALL[3::5]])
@pytest.mark.parametrize(("block_m", "unit"), [(8, 2), (16, 4), (4, 1)])
def test_tiles_of_nearly_equal_height_cover_each_row_of_each_group_once(block_m, unit, spelling, device):
    """There are as few as of full height, and those of a group have the same number of units, or one more."""
    order, tiles_n = orders.parse(spelling), 2
    draw = random.Random(f"{spelling} {block_m}")
    sizes = [0, 1, unit, block_m - 1, block_m, block_m + 1, 3 * block_m + 1, 0]
    sizes += [draw.randrange(4 * block_m) for _ in range(4)]
    draw.shuffle(sizes)
    ends = list(itertools.accumulate(sizes))
    table = table_of(order, ends, ends[-1] + 5, block_m, device)
    tiles = sum(-(-size // block_m) for size in sizes) * tiles_n
    assert table[0].item() * tiles_n == tiles
    visited = torch.full((tiles, 5), -9, dtype=torch.int32, device=device)
    visit_kernel[(tiles,)](
        visited, table, order.factors, 0, tiles_n, block_m, unit, order.inner.name, order.along, order.joined
    )
    found = {(g, n): [] for g in range(len(sizes)) for n in range(tiles_n)}
    for group, row, end, n, _ in visited.tolist():
        found[group, n].append((row, min(end, row + block_m)))
    for (group, n), spans in found.items():
        case = f"group {group} of {sizes}, column {n}: {spans}"
        covered = [row for start, end in sorted(spans) for row in range(start, end)]
        assert covered == list(range(ends[group] - sizes[group], ends[group])), case
        units = [-(-(end - start) // unit) for start, end in spans]
        assert all(0 < count * unit <= block_m for count in units), case
        assert not units or max(units) - min(units) <= 1, case


@pytest.mark.parametrize("name", OFFSETS)
@pytest.mark.parametrize("spelling", ["groups/swizzle-merge:2", "largest-groups/row-major"])
def test_groups_of_k_on_the_device_are_those_of_the_host(name, spelling, device):
    offs, total = OFFSETS[name]
    order, tiles_m, tiles_n = orders.parse(spelling), 2, 3
    starts, ends = np.array(bounds_of(offs, total)).T
    expected = order.visit_groups([tiles_m] * len(offs), tiles_n, sizes=ends - starts)
    table = table_of(order, offs, total, 0, device)
    assert table[0].item() == len(offs)
    visited = torch.full((len(expected), 5), -9, dtype=torch.int32, device=device)
    visit_kernel[(len(expected),)](
        visited, table, order.factors, tiles_m, tiles_n, 0, 0, order.inner.name, order.along, order.joined
    )
    group, m, n = expected.T
    np.testing.assert_array_equal(visited.cpu().numpy(), np.column_stack((group, starts[group], ends[group], m, n)))


def test_groups_of_nearly_all_integers_have_their_tiles(device):
    """A size just below 2**31, to which a tile cannot be added in 32 bits."""
    block_m, total = 1 << 20, 2**31 - 1
    table = GroupTable(3, total, block_m, False).make(torch.tensor([0, total, -1], dtype=torch.int32, device=device))
    assert table[0].item() == 2048
    assert table[4 + 4 * 2047 : 8 + 4 * 2047].tolist() == [1, 0, 0, total]
