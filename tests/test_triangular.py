"""The laws of triangular orders: each tile that meets the lower triangle once, and no other."""

import itertools
import math

import numpy as np
import pytest

import tritonmm
from tritonmm import Config, Problem, orders
from tritonmm.orders import SwizzleMerge, Triangular

ASPECTS = [(1, 1), (2, 1), (1, 2), (3, 2), (2, 3), (4, 3), (3, 4), (5, 3), (8, 1), (1, 8)]
FACTORS = [(1,), (2,), (3,), (7,), (3, 2), (2, 2, 2), (2**31 - 1,)]


def grids(aspect, largest=40):
    """The grids of square matrices, in units of which a tile has `aspect`, and the tiles that meet the triangle."""
    height, width = aspect
    for size in range(1, largest):
        m, n = math.ceil(size / height), math.ceil(size / width)
        rows, cols = np.mgrid[:m, :n]
        yield m, n, np.argwhere(cols * width < np.minimum((rows + 1) * height, size))


@pytest.mark.parametrize("aspect", ASPECTS, ids=str)
@pytest.mark.parametrize("factors", FACTORS, ids=str)
def test_each_tile_of_the_triangle_once_and_none_above(factors, aspect):
    order = Triangular(*factors, aspect=aspect)
    for m, n, expected in grids(aspect):
        tiles = order.visit(m, n)
        assert order.launched(m, n) == len(tiles) == len(expected), f"{order} on {m} x {n}"
        found = tiles[np.lexsort((tiles[:, 1], tiles[:, 0]))]
        np.testing.assert_array_equal(found, expected, err_msg=f"{order} on {m} x {n}")


def test_square_tiles_are_half_and_the_diagonal():
    for tiles in (1, 2, 17, 512, 65_535):
        assert Triangular(8).launched(tiles, tiles) == tiles * (tiles + 1) // 2


@pytest.mark.parametrize("factors", [(4,), (4, 3)], ids=str)
def test_a_group_begins_as_swizzle_merge_does(factors):
    """The columns that all rows of a group have, in the order of a group of as many columns."""
    order, (m, first) = Triangular(*factors), (3, factors[0])
    start = m * first
    begin = order._above(start)
    height, shared = first, start + 1
    found = order.visit(40, 40)[begin : begin + height * shared]
    np.testing.assert_array_equal(found - (start, 0), SwizzleMerge(*factors).visit(height, shared))


def test_tile_agrees_with_visit():
    for order in (Triangular(3), Triangular(2, 2, aspect=(2, 1))):
        m, n = 6, 6 * order.aspect[0] // order.aspect[1]
        assert [list(order.tile(i, m, n)) for i in range(order.launched(m, n))] == order.visit(m, n).tolist()
        with pytest.raises(IndexError, match="outside 0"):
            order.tile(order.launched(m, n), m, n)


@pytest.mark.parametrize("order", [Triangular(*f, aspect=a) for f, a in itertools.product(FACTORS, ASPECTS)], ids=str)
def test_spellings(order):
    assert orders.parse(str(order)) == order
    assert eval(repr(order), {"Triangular": Triangular}) == order
    assert hash(orders.parse(str(order))) == hash(order)


def test_an_aspect_is_a_ratio():
    assert Triangular(4, aspect=(256, 128)) == Triangular(4, aspect=(2, 1)) == orders.parse("triangular:4@4x2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("triangular", "takes one or more factors"),
        ("triangular:0", "not a positive integer"),
        ("triangular:4@n", "takes an aspect, as in triangular:8@2x1"),
        ("triangular:4@9x1", "no side of the ratio can be above 8"),
        ("triangular:4@0x1", "not a positive integer"),
        ("swizzle-merge:4@2x1", "takes an axis, as in swizzle-merge:8@n"),
        ("hilbert@2x1", "takes neither factors"),
    ],
)
def test_wrong_spellings(text, said):
    with pytest.raises(ValueError, match=said):
        orders.parse(text)


@pytest.mark.parametrize(("aspect", "grid"), [((1, 1), (3, 4)), ((1, 1), (4, 3)), ((2, 1), (3, 7)), ((2, 1), (4, 5))])
def test_grids_of_no_square_matrix(aspect, grid):
    order = Triangular(2, aspect=aspect)
    with pytest.raises(ValueError, match=r"must be that of a square matrix, as \d+x\d+ is") as raised:
        order.launched(*grid)
    rows, cols = map(int, str(raised.value).split()[-2].split("x"))
    assert (rows, cols) in [(m, n) for m, n, _ in grids(aspect)]


def test_no_kernel_takes_it_for_a_whole_output():
    config = Config("tile", order=Triangular(4))
    fit = config.fits(Problem.dense(512, 512, 64), tritonmm.gpu.spec("h200"))
    assert fit.reason == "order is triangular:4; it does not visit all tiles of an output"
    assert Config.from_json(config.to_json()) == config
