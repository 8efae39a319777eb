"""The device side of every order is the host side, index by index."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tritonmm import orders
from tritonmm.device.order import tile_at

SPELLED = [
    "row-major", "column-major", "split-merge:1", "split-merge:4", "split-merge:7@n",
    "swizzle-merge:1", "swizzle-merge:4", "swizzle-merge:5@n", "swizzle-merge:4,3", "swizzle-merge:8,2@n",
    "swizzle-merge:6,4,2", "swizzle-merge:2147483647", "swizzle-merge:2147483647,2147483647@n",
    "serpentine:1", "serpentine:3", "serpentine:4@n", "serpentine:2147483647", "morton", "hilbert",
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
    assert {type(orders.parse(spelling)) for spelling in SPELLED} == set(orders._ORDERS)


@pytest.mark.parametrize("spelling", SPELLED)
def test_device_is_host(spelling, device):
    order = orders.parse(spelling)
    for m, n in GRIDS:
        np.testing.assert_array_equal(visit_on_device(order, m, n, device), order.visit(m, n), err_msg=f"{m} x {n}")


def test_device_reads_a_users_table(device):
    rng = np.random.default_rng(1)
    table = orders.Table(rng.permutation(np.argwhere(np.ones((7, 9)))))
    np.testing.assert_array_equal(visit_on_device(table, 7, 9, device), table.visit(7, 9))
