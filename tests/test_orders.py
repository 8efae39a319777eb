"""The laws of tile orders, proved on every small grid and sampled on large ones."""

import copy
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonmm import orders
from tritonmm.orders import (
    ColumnMajor,
    Hilbert,
    Morton,
    RowMajor,
    Serpentine,
    SplitMerge,
    SwizzleMerge,
    Table,
    spelling,
)

GRIDS = list(itertools.product(range(1, 25), repeat=2))
FACTORS = range(1, 13)
PAIRS = list(itertools.product(range(1, 6), repeat=2))

NO_OVERFLOW = [
    RowMajor(),
    ColumnMajor(),
    Morton(),
    Hilbert(),
    *(order(f, along=along) for order in (SwizzleMerge, Serpentine) for f in FACTORS for along in "mn"),
    *(SwizzleMerge(*pair, along=along) for pair in PAIRS for along in "mn"),
    SwizzleMerge(4, 3, 2),
    SwizzleMerge(7, 5, 3, 2, along="n"),
]
ALL = [*NO_OVERFLOW, *(SplitMerge(f, along=along) for f in FACTORS for along in "mn")]


def test_every_order_that_has_a_spelling_is_proved_here():
    assert {type(order) for order in ALL} | {orders.Triangular} == set(spelling.ORDERS)  # which has a file of its own


def issue_3942(i, m, n, factor):
    """The formula of NVIDIA/Fuser issue #3942, as it stands there, for M x N tiles."""
    group = i // (n * factor)
    pos = i - group * (n * factor)
    height = m - (m // factor) * factor if group == m // factor else factor
    return factor * group + pos % height, pos // height


def recursion(m, n, factors):
    """The definition of a list of factors in DESIGN's words: T(M, N, [f, *rest]) of T(N, h, rest), axes swapped."""
    if not factors:
        return [(row, col) for row in range(m) for col in range(n)]
    first, *rest = factors
    tiles = []
    for start in range(0, m, first):
        tiles += [(start + row, col) for col, row in recursion(n, min(first, m - start), rest)]
    return tiles


@pytest.mark.parametrize("order", NO_OVERFLOW, ids=str)
def test_each_tile_exactly_once_and_no_overflow(order):
    for m, n in GRIDS:
        tiles = order.visit(m, n)
        assert order.launched(m, n) == m * n == len(tiles), f"{order} on {m} x {n}"
        linear = tiles[:, 0] * n + tiles[:, 1]
        assert (np.sort(linear) == np.arange(m * n)).all(), f"{order} on {m} x {n} is no bijection: {tiles.tolist()}"
        assert (tiles >= 0).all(), f"{order} on {m} x {n}"
        assert (tiles < (m, n)).all(), f"{order} on {m} x {n}"


@pytest.mark.parametrize("along", "mn")
@pytest.mark.parametrize("factor", FACTORS)
def test_split_merge_overflows_by_exactly_its_surplus(factor, along):
    order = SplitMerge(factor, along=along)
    for m, n in GRIDS:
        cut, other = (m, n) if along == "m" else (n, m)
        launched = -(-cut // factor) * factor * other
        tiles = order.visit(m, n)
        idle = (tiles == -1).all(axis=1)
        real = tiles[~idle]
        assert order.launched(m, n) == launched == len(tiles), f"{order} on {m} x {n}"
        assert idle.sum() == launched - m * n, f"{order} on {m} x {n}"
        assert (np.sort(real[:, 0] * n + real[:, 1]) == np.arange(m * n)).all(), f"{order} on {m} x {n}"


@pytest.mark.parametrize("factor", FACTORS)
def test_split_merge_without_its_overflow_is_swizzle_merge(factor):
    for m, n in GRIDS:
        tiles = SplitMerge(factor).visit(m, n)
        np.testing.assert_array_equal(tiles[tiles[:, 0] >= 0], SwizzleMerge(factor).visit(m, n))


@pytest.mark.parametrize("factor", FACTORS)
def test_swizzle_merge_is_the_formula_of_issue_3942(factor):
    for m, n in GRIDS:
        expected = [issue_3942(i, m, n, factor) for i in range(m * n)]
        found = SwizzleMerge(factor).visit(m, n).tolist()
        assert found == [list(tile) for tile in expected], f"factor {factor} on {m} x {n}"


@pytest.mark.parametrize("factors", [(3,), *PAIRS, (4, 3, 2), (5, 2, 3), (2, 2, 2, 2)], ids=str)
def test_list_of_factors_is_its_recursion(factors):
    for m, n in GRIDS[::5]:
        found = list(map(tuple, SwizzleMerge(*factors).visit(m, n).tolist()))
        assert found == recursion(m, n, factors), f"{factors} on {m} x {n}"


@pytest.mark.parametrize("order", ALL, ids=str)
def test_tile_agrees_with_visit(order):
    for m, n in ((1, 1), (5, 7), (24, 3)):
        for i, (row, col) in enumerate(order.visit(m, n).tolist()):
            assert order.tile(i, m, n) == (None if row < 0 else (row, col)), f"{order} on {m} x {n} at {i}"


@pytest.mark.parametrize("order", [SwizzleMerge(3), SwizzleMerge(4, 3), Serpentine(4), SplitMerge(5)], ids=str)
def test_along_n_is_along_m_on_the_transposed_grid(order):
    along_n = type(order)(*order.factors, along="n")
    for m, n in GRIDS[::7]:
        np.testing.assert_array_equal(along_n.visit(m, n), order.visit(n, m)[:, ::-1])


def test_factor_extremes_are_the_major_orders():
    for m, n in GRIDS[::7]:
        np.testing.assert_array_equal(SwizzleMerge(1).visit(m, n), RowMajor().visit(m, n))
        np.testing.assert_array_equal(SwizzleMerge(m).visit(m, n), ColumnMajor().visit(m, n))
        np.testing.assert_array_equal(SwizzleMerge(2**31 - 1).visit(m, n), ColumnMajor().visit(m, n))


def test_serpentine_reverses_every_other_group():
    forward, serpentine = SwizzleMerge(3).visit(8, 5), Serpentine(3).visit(8, 5)
    np.testing.assert_array_equal(serpentine[:15], forward[:15])
    np.testing.assert_array_equal(serpentine[15:30], forward[15:30][::-1])
    np.testing.assert_array_equal(serpentine[30:], forward[30:])


@pytest.mark.parametrize("side", [2, 4, 8, 16, 32, 64])
def test_hilbert_neighbours_are_adjacent_on_power_of_two_squares(side):
    steps = np.abs(np.diff(Hilbert().visit(side, side), axis=0)).sum(axis=1)
    assert (steps == 1).all()


def test_morton_interleaves_bits():
    tiles = Morton().visit(16, 16)
    for i, (row, col) in enumerate(tiles.tolist()):
        interleaved = sum(((col >> b) & 1) << (2 * b) | ((row >> b) & 1) << (2 * b + 1) for b in range(4))
        assert interleaved == i, f"({row}, {col}) at {i}"


@pytest.mark.parametrize("order", ALL, ids=str)
def test_parse_is_the_inverse_of_str(order):
    assert orders.parse(str(order)) == order
    assert hash(orders.parse(str(order))) == hash(order)


@pytest.mark.parametrize("order", ALL, ids=str)
def test_repr_is_the_constructor(order):
    assert eval(repr(order), vars(orders)) == order


def test_empty_grids_launch_nothing():
    for order in ALL:
        for m, n in ((0, 5), (5, 0), (0, 0)):
            assert order.launched(m, n) == 0
            assert order.visit(m, n).shape == (0, 2)


tiles = st.integers(1, 4096)
factor = st.integers(1, 64)
any_order = st.one_of(
    st.sampled_from([RowMajor(), ColumnMajor(), Morton(), Hilbert()]),
    st.builds(SplitMerge, factor, along=st.sampled_from("mn")),
    st.builds(Serpentine, factor, along=st.sampled_from("mn")),
    st.builds(
        lambda f, along: SwizzleMerge(*f, along=along), st.lists(factor, min_size=1, max_size=4), st.sampled_from("mn")
    ),
)


@given(any_order, tiles, tiles, st.data())
def test_large_ragged_grids_stay_injective_and_inside(order, m, n, data):
    launched = order.launched(m, n)
    sample = data.draw(st.lists(st.integers(0, launched - 1), min_size=min(2, launched), max_size=40, unique=True))
    found = [tile for tile in (order.tile(i, m, n) for i in sample) if tile is not None]
    assert len(set(found)) == len(found)
    assert all(0 <= row < m and 0 <= col < n for row, col in found)
    if launched == m * n:
        assert len(found) == len(sample)


@given(st.integers(1, 200), st.integers(1, 200), any_order)
def test_whole_large_grids_are_visited_once(m, n, order):
    visited = order.visit(m, n)
    visited = visited[visited[:, 0] >= 0]
    assert (np.sort(visited[:, 0] * n + visited[:, 1]) == np.arange(m * n)).all()


def test_table_takes_any_permutation():
    rng = np.random.default_rng(0)
    tiles = rng.permutation(np.argwhere(np.ones((6, 5))))
    table = Table(tiles)
    np.testing.assert_array_equal(table.visit(6, 5), tiles)
    assert table.tile(7, 6, 5) == tuple(tiles[7])
    assert table == Table(tiles.tolist())
    assert hash(table) == hash(Table(tiles.tolist()))
    assert table != Table(tiles[::-1])
    for again in (pickle.loads(pickle.dumps(table)), copy.copy(table), copy.deepcopy(table)):
        assert again == table
        assert hash(again) == hash(table)
        assert not again.tiles.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            again.tiles[0] = 0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SwizzleMerge(0), "factor 0"),
        (lambda: SwizzleMerge(4, -2), "factor -2"),
        (lambda: SplitMerge(2.5), "factor 2.5"),
        (lambda: Serpentine(True), "factor True"),
        (lambda: SwizzleMerge(2**31), "factor 2147483648"),
        (lambda: SwizzleMerge(), "no factor"),
        (lambda: SwizzleMerge(4, along="k"), "'k'"),
        (lambda: Table([(0, 0), (0, 0)]), r"2 tiles given, but they span a grid of 1 x 1"),
        (lambda: Table([(0, 0), (0, 1), (1, 1), (0, 1)]), r"\(0, 1\) occurs 2 times"),
        (lambda: Table([(0, 0), (0, -1)]), r"\(0, -1\)"),
        (lambda: Table([(0.5, 0)]), "float64"),
        (lambda: Table([]), "shape"),
        (lambda: Table([(0, 0)]).visit(2, 2), "2 x 2"),
        (lambda: orders.parse("zigzag"), "'zigzag'"),
        (lambda: orders.parse("swizzle-merge"), "'swizzle-merge'"),
        (lambda: orders.parse("swizzle-merge:0"), "factor 0"),
        (lambda: orders.parse("split-merge:4,4"), "'split-merge:4,4'"),
        (lambda: orders.parse("hilbert:4"), "'hilbert:4'"),
        (lambda: orders.parse("swizzle-merge:4@k"), "'swizzle-merge:4@k'"),
        (lambda: orders.parse(None), "None"),
    ],
)
def test_errors_name_the_value(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize("i", [-1, 20, 10**12])
def test_tile_outside_of_the_launch_is_an_index_error(i):
    with pytest.raises(IndexError, match=str(i)):
        SwizzleMerge(2).tile(i, 4, 5)
