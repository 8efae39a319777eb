"""The laws of orders of dies: each tile once, no idle program, and for each die ranges of the inner order."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonmm import Config, Problem, families, gpu, orders
from tritonmm.autotune.measuring import space
from tritonmm.orders import ColumnMajor, Dies, Grouped, Hilbert, Morton, RowMajor, Serpentine, SplitMerge, SwizzleMerge

INNER = [RowMajor(), ColumnMajor(), SwizzleMerge(3), SwizzleMerge(4, 3, along="n"), Serpentine(4), Morton(), Hilbert()]
GRIDS = [(1, 1), (1, 9), (9, 1), (8, 8), (7, 5), (5, 12), (13, 11), (17, 19)]
CASES = list(itertools.product((1, 2, 3, 7, 8), (None, 1, 2, 5, 16, 2**31 - 1)))

inner_orders = st.one_of(
    st.sampled_from([RowMajor(), ColumnMajor(), Morton(), Hilbert()]),
    st.builds(Serpentine, st.integers(1, 64), along=st.sampled_from("mn")),
    st.builds(SwizzleMerge, st.integers(1, 64), st.integers(1, 64), along=st.sampled_from("mn")),
)
any_dies = st.builds(Dies, st.integers(1, 20), inner_orders, chunk=st.none() | st.integers(1, 500))


def places(order: Dies, tiles_m: int, tiles_n: int) -> np.ndarray:
    """The places of the launch indices in the inner order."""
    place = {tile: i for i, tile in enumerate(map(tuple, order.inner.visit(tiles_m, tiles_n).tolist()))}
    return np.array([place[tile] for tile in map(tuple, order.visit(tiles_m, tiles_n).tolist())])


def by_definition(dies: int, chunk: int, tiles: int) -> list[int]:
    """The places as the docstring says: each round is cut into ranges, and the dies take one each, in turn."""
    found: list[int] = []
    for start in range(0, tiles, dies * chunk):
        of_round = list(range(start, min(start + dies * chunk, tiles)))
        sizes = [len(of_round[die::dies]) for die in range(dies)]  # programs of the round on each die
        ranges, begin = [], 0
        for size in sizes:
            ranges.append(of_round[begin : begin + size])
            begin += size
        found += [ranges[i % dies][i // dies] for i in range(len(of_round))]
    return found


@pytest.mark.parametrize("inner", INNER, ids=str)
@pytest.mark.parametrize(("dies", "chunk"), CASES)
def test_each_tile_exactly_once_and_no_idle_program(dies, chunk, inner):
    order = Dies(dies, inner, chunk=chunk)
    for m, n in GRIDS:
        tiles = order.visit(m, n)
        assert order.launched(m, n) == m * n == len(tiles), f"{order} on {m} x {n}"
        linear = tiles[:, 0] * n + tiles[:, 1]
        assert (tiles >= 0).all(), f"{order} on {m} x {n}"
        assert (np.sort(linear) == np.arange(m * n)).all(), f"{order} on {m} x {n} is no bijection: {tiles.tolist()}"
        assert (tiles < (m, n)).all(), f"{order} on {m} x {n}"


@given(any_dies, st.integers(1, 150), st.integers(1, 150))
def test_random_grids_are_visited_once(order, m, n):
    tiles = order.visit(m, n)
    assert (np.sort(tiles[:, 0] * n + tiles[:, 1]) == np.arange(m * n)).all()


@pytest.mark.parametrize("dies", [1, 2, 3, 8])
def test_without_a_chunk_each_die_has_one_range_and_sizes_differ_by_one_at_most(dies):
    order = Dies(dies, SwizzleMerge(3))
    for m, n in GRIDS:
        place = places(order, m, n)
        sizes, end = [], 0
        for die in range(dies):
            of_die = place[die::dies]
            assert (of_die == end + np.arange(len(of_die))).all(), f"die {die} of {order} on {m} x {n}: {of_die}"
            end += len(of_die)
            sizes.append(len(of_die))
        assert max(sizes) - min(sizes) <= 1, f"{order} on {m} x {n}: {sizes}"


@pytest.mark.parametrize(("dies", "chunk"), CASES)
def test_places_are_those_of_the_definition(dies, chunk):
    order = Dies(dies, RowMajor(), chunk=chunk)
    for m, n in GRIDS:
        expected = by_definition(dies, chunk or m * n, m * n)
        assert places(order, m, n).tolist() == expected, f"{order} on {m} x {n}"


def test_one_die_and_chunks_of_one_are_the_inner_order():
    for inner, (m, n) in itertools.product(INNER, GRIDS):
        np.testing.assert_array_equal(Dies(1, inner).visit(m, n), inner.visit(m, n))
        np.testing.assert_array_equal(Dies(8, inner, chunk=1).visit(m, n), inner.visit(m, n))


def test_a_chunk_of_all_tiles_of_a_die_is_one_range():
    for m, n in GRIDS:
        np.testing.assert_array_equal(
            Dies(8, Hilbert(), chunk=-(-m * n // 8)).visit(m, n), Dies(8, Hilbert()).visit(m, n)
        )


@pytest.mark.parametrize("order", [Dies(3, Serpentine(2)), Dies(8, Hilbert(), chunk=4)], ids=str)
def test_tile_agrees_with_visit(order):
    assert [list(order.tile(i, 7, 5)) for i in range(35)] == order.visit(7, 5).tolist()
    with pytest.raises(IndexError, match="35"):
        order.tile(35, 7, 5)


def test_empty_grids_launch_nothing():
    for m, n in ((0, 5), (5, 0), (0, 0)):
        assert Dies(8, RowMajor()).launched(m, n) == 0
        assert Dies(8, RowMajor(), chunk=4).visit(m, n).shape == (0, 2)


@given(any_dies)
def test_spellings(order):
    assert orders.parse(str(order)) == order
    assert eval(repr(order), vars(orders)) == order
    assert hash(orders.parse(str(order))) == hash(order)


def test_a_spelling_is_dies_chunk_and_inner_order():
    assert orders.parse("dies:8/swizzle-merge:4@n") == Dies(8, SwizzleMerge(4, along="n"))
    assert str(Dies(8, SwizzleMerge(8, 8), chunk=64)) == "dies:8,64/swizzle-merge:8,8"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Dies(0, RowMajor()), "number of dies 0 is not a positive integer"),
        (lambda: Dies(2.5, RowMajor()), "number of dies 2.5 is not"),
        (lambda: Dies(8, RowMajor(), chunk=0), "chunk 0 is not a positive integer"),
        (lambda: Dies(8, SplitMerge(4)), "split-merge:4; it must be one of row-major"),
        (lambda: Dies(8, Dies(2, RowMajor())), "dies:2/row-major; it must be one of row-major"),
        (lambda: Dies(8, Grouped(RowMajor())), "groups/row-major; it must be one of row-major"),
        (lambda: Grouped(Dies(8, RowMajor())), "dies:8/row-major; it must be one of row-major"),
        (lambda: orders.parse("dies/hilbert"), "as in dies:8/... or dies:8,64/..."),
        (lambda: orders.parse("dies:8,4,2/hilbert"), "as in dies:8/... or dies:8,64/..."),
        (lambda: orders.parse("dies:0/hilbert"), "number of dies 0"),
        (lambda: orders.parse("dies:8,0/hilbert"), "chunk 0"),
        (lambda: orders.parse("dies:8/split-merge:4"), "split-merge:4; it must be one of"),
        (lambda: orders.parse("dies:8"), "unknown order 'dies:8'"),
        (lambda: orders.parse("chiplets:8/hilbert"), "or dies:8"),
    ],
)
def test_errors_say_what_would_be_right(make, said):
    with pytest.raises(ValueError, match=said):
        make()


FIELDS = {"exact": {"dtype": "fp32"}, "mixed_input": {"b_dtype": "int8"}, "skinny": {"m": 16}}
FIELDS |= {"grouped": {"ragged": "m", "groups": 4}}
"""What is not as usual in a problem for which a family's default config is legal."""


@pytest.mark.parametrize("name", families.names())
def test_only_the_portable_kernel_takes_it_and_others_say_why(name):
    problem = Problem(**{"m": 256, "n": 256, "k": 256, "layout": "nt"} | FIELDS.get(name, {}))
    config = Config(name)
    assert config.fits(problem, gpu.spec("h200"))
    reason = config.ordered(Dies(8, RowMajor())).fits(problem, gpu.spec("h200")).reason
    expected = (
        "" if name == "tile" else f"order is dies:8/row-major; the {name} kernel does not divide tiles among dies: "
    )
    assert reason[: len(expected) or None] == expected


def test_it_is_no_order_of_groups_or_triangles():
    config, h200 = Config("tile", order=Dies(8, RowMajor()), persistent=True), gpu.spec("h200")
    symmetric = Problem(256, 256, 256, layout="nt", symmetric="gram")
    assert "needs one such as triangular:8" in config.fits(symmetric, h200).reason
    assert "needs one such as groups/" in config.fits(Problem(256, 256, 256, ragged="m", groups=4), h200).reason


def test_a_config_round_trips_through_json():
    config = Config("tile", order=Dies(8, SwizzleMerge(4, along="n"), chunk=16))
    assert Config.from_json(config.to_json()) == config


def test_a_search_varies_the_groups_that_dies_have():
    found = space.candidates(space.problem(3000, 5000, 2048), gpu.spec("mi300x"))
    of_dies = {config.order for config in found if isinstance(config.order, Dies)}
    assert {order.dies for order in of_dies} == {8}
    assert {type(order.inner) for order in of_dies} == {SwizzleMerge, Serpentine}
    assert len(of_dies) > 3
