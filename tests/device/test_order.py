"""The device side of every order is the host side, index by index."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tritonmm import orders
from tritonmm.device.order import tile_at
from tritonmm.orders import spelling

SPELLED = [
    "row-major", "column-major", "split-merge:1", "split-merge:4", "split-merge:7@n",
    "swizzle-merge:1", "swizzle-merge:4", "swizzle-merge:5@n", "swizzle-merge:4,3", "swizzle-merge:8,2@n",
    "swizzle-merge:6,4,2", "swizzle-merge:2147483647", "swizzle-merge:2147483647,2147483647@n",
    "serpentine:1", "serpentine:3", "serpentine:4@n", "serpentine:2147483647", "morton", "hilbert",
]  # fmt: skip
TRIANGULAR = [
    "triangular:1", "triangular:3", "triangular:4,2", "triangular:2147483647", "triangular:2@2x1", "triangular:3@1x2",
    "triangular:4@3x2", "triangular:2,3@3x4", "triangular:8@8x1",
]  # fmt: skip
DIES = [
    "dies:8/swizzle-merge:4", "dies:8,5/swizzle-merge:3@n", "dies:3,16/swizzle-merge:4,4", "dies:2/row-major",
    "dies:1/column-major", "dies:16,1/serpentine:4", "dies:8,2147483647/serpentine:2@n", "dies:8,7/hilbert",
    "dies:2147483647,2147483647/row-major",
]  # fmt: skip
GRIDS = [(1, 1), (1, 9), (9, 1), (8, 8), (7, 5), (5, 12), (13, 11)]


@triton.jit
def visit_kernel(
    visited, table, factors, launched, tiles_m, tiles_n,
    ORDER: tl.constexpr, ALONG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < launched
    i = tl.where(inside, i, 0)
    m, n = tile_at(i, tiles_m, tiles_n, table, factors, ORDER, ALONG)
    tl.store(visited + 2 * i, m, mask=inside)
    tl.store(visited + 2 * i + 1, n, mask=inside)


def visit_on_device(order, tiles_m, tiles_n, device):
    launched = order.launched(tiles_m, tiles_n)
    visited = torch.full((launched, 2), -9, dtype=torch.int32, device=device)
    table = None if order.closed_form else torch.from_numpy(order.linear(tiles_m, tiles_n)).to(device)
    name, factors, along = (order.name, order.factors, order.along) if order.closed_form else ("table", (), "m")
    visit_kernel[(triton.cdiv(launched, 64),)](visited, table, factors, launched, tiles_m, tiles_n, name, along, 64)
    visited = visited.cpu().numpy()
    visited[(visited[:, 0] >= tiles_m) | (visited[:, 1] >= tiles_n)] = -1
    return visited


def test_every_order_that_has_a_spelling_is_compared():
    assert {type(orders.parse(spelling)) for spelling in (*SPELLED, *TRIANGULAR)} == set(spelling.ORDERS)


@pytest.mark.parametrize("spelling", SPELLED + DIES)
def test_device_is_host(spelling, device):
    order = orders.parse(spelling)
    for m, n in GRIDS:
        np.testing.assert_array_equal(visit_on_device(order, m, n, device), order.visit(m, n), err_msg=f"{m} x {n}")


def test_device_reads_a_users_table(device):
    rng = np.random.default_rng(1)
    table = orders.Table(rng.permutation(np.argwhere(np.ones((7, 9)))))
    np.testing.assert_array_equal(visit_on_device(table, 7, 9, device), table.visit(7, 9))


@triton.jit
def visit_scalar_kernel(
    visited, indices, count, factors, tiles_m, tiles_n, ORDER: tl.constexpr, ALONG: tl.constexpr
):  # fmt: skip
    for j in range(tl.program_id(0), count, tl.num_programs(0)):
        m, n = tile_at(tl.load(indices + j), tiles_m, tiles_n, None, factors, ORDER, ALONG)
        tl.store(visited + 2 * j, m)
        tl.store(visited + 2 * j + 1, n)


def tiles_on_device(order, indices, tiles_m, tiles_n, device):
    visited = torch.full((len(indices), 2), -9, dtype=torch.int32, device=device)
    given = torch.from_numpy(np.asarray(indices, np.int32)).to(device)
    visit_scalar_kernel[(4,)](
        visited, given, len(indices), order.factors, tiles_m, tiles_n, order.name, order.along
    )  # fmt: skip
    return visited.cpu().numpy()


@pytest.mark.parametrize("spelling", ["dies:8/swizzle-merge:7", "dies:8,48/swizzle-merge:9@n", "dies:3,999/row-major"])
def test_device_is_host_on_grids_just_below_int32(spelling, device):
    order = orders.parse(spelling)
    for m, n in ((46_340, 46_341), (2**31 - 1, 1), (7, 306_783_378)):
        launched = order.launched(m, n)
        assert 2**31 - 50_000 < launched < 2**31
        draw = np.random.default_rng(0).integers(0, launched, 40)
        some = np.unique([*range(20), *draw, *range(launched - 20, launched)])
        expected = np.stack(order._map(some, m, n), axis=1)
        np.testing.assert_array_equal(tiles_on_device(order, some, m, n, device), expected, err_msg=f"{m} x {n}")


def square_grid(order, rows):
    height, width = order.aspect
    return rows, -(-rows * height // width)


@pytest.mark.parametrize("spelling", TRIANGULAR)
def test_triangular_device_is_host(spelling, device):
    order = orders.parse(spelling)
    for rows in (1, 2, 5, 12):
        m, n = square_grid(order, rows)
        every = np.arange(order.launched(m, n))
        found = tiles_on_device(order, every, m, n, device)
        np.testing.assert_array_equal(found, order.visit(m, n), err_msg=f"{m} x {n}")


@pytest.mark.parametrize("spelling", ["triangular:8", "triangular:16,4", "triangular:8@2x1", "triangular:8@2x3"])
def test_triangular_device_is_host_where_fp32_has_no_such_integers(spelling, device):
    order = orders.parse(spelling)
    rows = {"1x1": 65_535, "2x1": 46_340, "2x3": 80_000}[order.along]
    m, n = square_grid(order, rows)
    launched = order.launched(m, n)
    assert 2**30 < launched < 2**31
    starts = [order._above(row) for row in (1, 4095, rows // 2, rows // 2 + 1, rows - 8, rows - 1)]
    draw = np.random.default_rng(0).integers(0, launched, 40)
    some = np.unique([0, launched - 1, *draw, *(start + d for start in starts for d in (-1, 0, 1))])
    expected = np.stack(order._map(some, m, n), axis=1)
    np.testing.assert_array_equal(tiles_on_device(order, some, m, n, device), expected)
