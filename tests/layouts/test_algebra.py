"""The algebra of layouts: each operation obeys the law that defines it, at every coordinate, or refuses."""

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tritonmm.layouts import (
    Layout,
    coalesce,
    complement,
    composition,
    left_inverse,
    logical_divide,
    right_inverse,
    tiled_divide,
    zipped_divide,
)
from tritonmm.layouts.layout import flatten

EXTENTS = st.sampled_from([1, 2, 2, 3, 4, 4, 6, 8])
ANY_STRIDE = st.integers(0, 24)
LIKELY_STRIDE = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 48])


def nested(leaves):
    return st.recursive(leaves, lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple), max_leaves=5)


@st.composite
def layouts(draw, strides=ANY_STRIDE):
    shape = draw(nested(EXTENTS))
    assume(math.prod(flatten(shape)) <= 1024)

    def stride(shape):
        return draw(strides) if isinstance(shape, int) else tuple(map(stride, shape))

    return Layout(shape, stride(shape))


@st.composite
def compact(draw):
    """A layout whose offsets are 0 .. size - 1 in some order of its leaves."""
    extents = draw(st.lists(EXTENTS, min_size=1, max_size=4))
    order = draw(st.permutations(range(len(extents))))
    strides, reached = [0] * len(extents), 1
    for i in order:
        strides[i] = reached
        reached *= extents[i]
    return Layout(tuple(extents), tuple(strides))


def numbers(layout):
    return np.arange(layout.size)


def coordinates(shape):
    """Every coordinate of the shape's nesting, in the order of their numbers."""
    if isinstance(shape, int):
        return list(range(shape))
    last_fastest = itertools.product(*(coordinates(each) for each in reversed(shape)))
    return [tuple(reversed(coord)) for coord in last_fastest]


def refines(shape, coarse):
    if isinstance(coarse, int):
        return math.prod(flatten(shape)) == coarse
    return len(shape) == len(coarse) and all(map(refines, shape, coarse))


def assert_law(found, expected, what):
    wrong = np.flatnonzero(np.asarray(found) != np.asarray(expected))
    assert len(wrong) == 0, f"{what}: at {wrong[0]} it is {found[wrong[0]]}, not {expected[wrong[0]]}"


def test_offset_is_the_inner_product_of_coordinate_and_stride():
    layout = Layout(((2, 2), 4), ((1, 8), 2))
    assert layout((1, 0), 3) == layout(1, 3) == layout(13) == 7
    assert (layout.size, layout.cosize, len(layout), str(layout)) == (16, 16, 2, "((2,2),4):((1,8),2)")
    assert Layout(6, 5)(4) == 20


@given(layouts())
def test_every_form_of_a_coordinate_has_one_offset(layout):
    assert_law(layout(numbers(layout)), [layout(coord) for coord in coordinates(layout.shape)], layout)
    table = layout.offsets()
    for coord in np.ndindex(table.shape):
        assert layout(*map(int, coord)) == table[coord]


@given(layouts())
def test_cosize_is_one_past_the_last_offset(layout):
    assert layout.cosize == layout(numbers(layout)).max() + 1


def test_compact_strides():
    assert Layout((2, (3, 4))) == Layout((2, (3, 4)), (1, (2, 6)))
    assert Layout.row_major(8, 64) == Layout((8, 64), (64, 1))
    assert_law(Layout((3, (2, 2)))(np.arange(12)), np.arange(12), "compact")


@pytest.mark.parametrize(
    ("shape", "stride", "says"),
    [
        ((2, 3), (1,), "have different nestings"),
        ((2, 3), ((1, 2), 3), "have different nestings"),
        ((2, 0), (1, 2), "shape has 0"),
        ((2, 3), (1, -1), "stride has -1"),
        ((), (), "shape has ()"),
        ((2, "3"), (1, 2), "shape has '3'"),
    ],
)
def test_what_is_no_layout_is_refused(shape, stride, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        Layout(shape, stride)


@pytest.mark.parametrize(
    ("shape", "says"), [((8, "x"), "shape has 'x'"), ((8, 0), "shape has 0"), ((), "shape has ()")]
)
def test_what_is_no_row_major_shape_is_refused(shape, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        Layout.row_major(*shape)


def test_a_coordinate_of_another_nesting_is_refused():
    with pytest.raises(ValueError, match=r"does not fit the shape \(2,3\)"):
        Layout((2, 3))(1, 1, 1)


@given(layouts())
def test_coalesce_keeps_the_map_and_is_least(layout):
    flat = coalesce(layout)
    assert_law(flat(numbers(layout)), layout(numbers(layout)), flat)
    leaves = flat.leaves()
    assert len(leaves) == 1 or all(extent > 1 for extent, _ in leaves)
    assert all(extent * stride != after for (extent, stride), (_, after) in itertools.pairwise(leaves))


@settings(max_examples=200)
@given(layouts(), layouts(LIKELY_STRIDE))
def test_composition_law_at_every_coordinate(a, b):
    try:
        c = composition(a, b)
    except ValueError:
        return
    assert_law(c(numbers(b)), a(b(numbers(b))), f"{a} o {b}")
    assert refines(c.shape, b.shape), f"{c} does not refine {b}"


def test_composition_law_of_every_small_pair():
    """Every leaf after every layout of two small modes: the law holds or it is refused, and most are not."""
    found = refused = 0
    for shape in itertools.product((1, 2, 3, 4, 6), repeat=2):
        for stride in ((1, shape[0]), (shape[1], 1), (2, 9), (0, 5), (5, 0)):
            a = Layout(shape, stride)
            for b in (Layout(extent, step) for extent in range(1, 9) for step in range(7)):
                try:
                    c = composition(a, b)
                except ValueError:
                    refused += 1
                    continue
                found += 1
                assert_law(c(numbers(b)), a(b(numbers(b))), f"{a} o {b}")
    assert found > 2 * refused > 0


@given(compact(), compact())
def test_composition_of_powers_of_two_is_always_there(a, b):
    assume(all(extent & (extent - 1) == 0 for extent in flatten((a.shape, b.shape))))
    assert_law(composition(a, b)(numbers(b)), a(b(numbers(b))), f"{a} o {b}")


@given(compact(), compact(), compact())
def test_composition_is_associative(a, b, c):
    assume(a.size >= b.size >= c.size)
    try:
        left, right = composition(composition(a, b), c), composition(a, composition(b, c))
    except ValueError:
        return
    assert_law(left(numbers(c)), right(numbers(c)), f"{a} o {b} o {c}")


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        # The examples of CuTe's documentation of the algebra.
        (Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1)), Layout(((2, 2), 3), ((24, 2), 8))),
        (Layout(20, 2), Layout((5, 4), (4, 1)), Layout((5, 4), (8, 2))),
        (Layout((10, 2), (16, 4)), Layout((5, 4), (1, 5)), Layout((5, (2, 2)), (16, (80, 4)))),
    ],
    ids=str,
)
def test_composition_by_hand(a, b, expected):
    assert composition(a, b) == expected


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (Layout((4, 6, 8), (2, 3, 5)), Layout(6, 3)),  # 3 steps end inside of the extent 4
        (Layout((4, 3), (1, 7)), Layout((2, 2), (1, 3))),  # 1 + 3 carries though neither leaf does
        (Layout((2, 2), (1, 3)), Layout((2, 2), (1, 1))),  # 1 + 1 carries: the sum of modes is not enough
    ],
    ids=str,
)
def test_composition_that_is_no_layout_is_refused(a, b):
    with pytest.raises(ValueError, match="is no layout"):
        composition(a, b)


def test_composition_by_mode():
    a = Layout((12, (4, 8)), (59, (13, 1)))
    assert composition(a, (3, 8)) == Layout((3, (4, 2)), (59, (13, 1)))
    assert composition(a, (Layout(3, 4),)) == Layout((3, (4, 8)), (236, (13, 1)))


@given(layouts(LIKELY_STRIDE), st.integers(1, 300))
def test_complement_covers_the_rest_once(layout, bound):
    try:
        rest = complement(layout, bound)
    except ValueError:
        offsets = np.sort(layout(numbers(layout)))
        # What is refused overlaps, or interleaves so that its gaps are no layout.
        steps = sorted((step, extent) for extent, step in layout.leaves() if extent > 1)
        assert any(outer[0] % (inner[0] * inner[1]) for inner, outer in itertools.pairwise(steps)), offsets
        return
    assume(all(step > 0 or extent == 1 for extent, step in layout.leaves()))
    both = Layout.of(layout, rest)
    covered = np.sort(both(np.arange(both.size)))
    assert_law(covered[: min(bound, both.size)], np.arange(min(bound, both.size)), f"{layout} and {rest}")
    assert both.size >= bound
    assert (np.diff(rest(numbers(rest))) > 0).all(), f"{rest} does not ascend"


def test_complement_by_hand():
    assert complement(Layout(4, 2), 24) == Layout((2, 3), (1, 8))
    assert complement(Layout((2, 4), (1, 6)), 24) == Layout(3, 2)
    assert complement(Layout(4, 1), 24) == Layout(6, 4)
    with pytest.raises(ValueError, match="overlaps itself at stride 3"):
        complement(Layout((2, 2), (2, 3)), 12)


@given(layouts())
def test_right_inverse_law(layout):
    inverse = right_inverse(layout)
    assert_law(layout(inverse(numbers(inverse))), numbers(inverse), f"{layout} after {inverse}")


@given(compact())
def test_compact_layouts_have_whole_inverses(layout):
    right, left = right_inverse(layout), left_inverse(layout)
    assert right.size == layout.size
    assert_law(left(layout(numbers(layout))), numbers(layout), f"{left} after {layout}")
    assert_law(layout(right(numbers(layout))), numbers(layout), f"{layout} after {right}")


@given(layouts(LIKELY_STRIDE))
def test_left_inverse_law(layout):
    try:
        inverse = left_inverse(layout)
    except ValueError:
        return
    assert_law(inverse(layout(numbers(layout))), numbers(layout), f"{inverse} after {layout}")


def test_left_inverse_of_what_is_not_injective_is_refused():
    with pytest.raises(ValueError, match="several coordinates to one offset"):
        left_inverse(Layout((4, 2), (1, 0)))


@given(compact(), st.sampled_from([1, 2, 3, 4, 6]), st.sampled_from([1, 2, 3]))
def test_logical_divide_law(layout, extent, stride):
    tiler = Layout(extent, stride)
    try:
        divided = logical_divide(layout, tiler)
    except ValueError:
        return
    rest = complement(tiler, layout.size)
    for j in range(rest.size):
        expected = layout(tiler(numbers(tiler)) + rest(j))
        assert_law(divided(numbers(tiler), j), expected, f"{layout} by {tiler}, tile {j}")


def test_divides_by_mode():
    tile = Layout.row_major(16, 32)
    divided = logical_divide(tile, (4, 8))
    assert divided == Layout(((4, 4), (8, 4)), ((32, 128), (1, 8)))
    zipped = zipped_divide(tile, (4, 8))
    assert zipped == Layout(((4, 8), (4, 4)), ((32, 1), (128, 8)))
    assert tiled_divide(tile, (4, 8)) == Layout(((4, 8), 4, 4), ((32, 1), 128, 8))
    for m, n, i, j in itertools.product(range(4), range(8), range(4), range(4)):
        assert zipped((m, n), (i, j)) == tile(4 * i + m, 8 * j + n)
    assert zipped_divide(Layout((16, 32, 5)), (4, 8)).shape == ((4, 8), (4, 4, 5))
    assert logical_divide(Layout(10), 4).shape == (4, 3), "the last tile reaches past the end"
