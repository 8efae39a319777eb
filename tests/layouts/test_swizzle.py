"""Swizzles: what they are, when they are refused, which rows stay, and which parameters cure a tile."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonmm.layouts import Layout, Swizzle, composition

VALID = [
    (b, m, s) for b, m, s in itertools.product(range(5), range(4), range(-5, 6)) if abs(s) >= b and b + m + abs(s) <= 11
]
"""Every swizzle that moves bits below 2**11."""


def test_every_valid_swizzle_permutes_its_period_and_is_its_own_inverse():
    for b, m, s in VALID:
        swizzle = Swizzle(b, m, s)
        offsets = np.arange(4 * swizzle.period)
        moved = swizzle(offsets)
        name = str(swizzle)
        np.testing.assert_array_equal(swizzle(moved), offsets, name)
        blocks = moved.reshape(4, -1)
        np.testing.assert_array_equal(np.sort(blocks, axis=1), offsets.reshape(4, -1), name)
        # The period: it repeats, and no divisor of it does.
        np.testing.assert_array_equal(blocks - blocks[:1], (np.arange(4) * swizzle.period)[:, None] + 0 * blocks, name)
        half = swizzle.period // 2
        assert not half or (moved[half : 2 * half] != moved[:half] + half).any(), name


def test_bits_are_xored_one_by_one():
    """The definition in the module's diagram, bit by bit, on ints and arrays alike."""
    for b, m, s in VALID[::7]:
        swizzle = Swizzle(b, m, s)
        low_y, low_z = (m + s, m) if s >= 0 else (m, m - s)
        for offset in range(0, 2**11, 37):
            bits = [offset >> i & 1 for i in range(12)]
            for i in range(b):
                bits[low_z + i] ^= offset >> low_y + i & 1
            expected = sum(bit << i for i, bit in enumerate(bits))
            assert swizzle(offset) == expected == swizzle(np.array([offset]))[0], f"{swizzle}({offset})"


@given(st.integers(0, 2**40), st.sampled_from(VALID))
def test_involution_on_large_offsets(offset, parameters):
    swizzle = Swizzle(*parameters)
    assert swizzle(swizzle(offset)) == offset
    assert swizzle(offset) >> 11 == offset >> 11
    assert swizzle(offset) & swizzle.source == offset & swizzle.source


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ((-1, 0, 3), "b is -1; it must be >= 0"),
        ((2, -1, 3), "m is -1; it must be >= 0"),
        ((3, 3, 2), "|s| is 2; it must be >= b"),
        ((3, 3, -2), "|s| is 2; it must be >= b"),
        ((3, 1.5, 3), "m is 1.5; it must be an integer"),
    ],
)
def test_invalid_parameters_are_refused(parameters, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        Swizzle(*parameters)


def test_negative_shift_moves_the_low_field_up():
    swizzle = Swizzle(2, 1, -3)
    assert (swizzle.source, swizzle.target) == (0b000110, 0b110000)
    assert swizzle(0b000110) == 0b110110


@pytest.mark.parametrize("text", ["swizzle<3,4,3>", "Swizzle<3, 4, 3>", " SWIZZLE < 3 ,4,3 > "])
def test_spelling(text):
    assert Swizzle.parse(text) == Swizzle(3, 4, 3)
    assert Swizzle.parse(str(Swizzle(2, 0, -4))) == Swizzle(2, 0, -4)


@pytest.mark.parametrize("text", ["swizzle<3,4>", "3,4,3", "swizzle<3,3,2>", "swizzle<a,b,c>", ""])
def test_what_is_no_swizzle_is_refused(text):
    with pytest.raises(ValueError, match=r"swizzle|Swizzle"):
        Swizzle.parse(text)


class TestRowsOf16:
    """The study of a (32,16):(16,1) tile in `docs/layouts.md`: what B and S do to the rows."""

    def test_every_bit_of_the_row_moves_columns(self):
        swizzle = Swizzle(4, 0, 4)
        assert swizzle.row_period(16) == 16
        assert swizzle.unswizzled_rows(32, 16) == [0, 16]
        for row, col in np.ndindex(32, 16):
            assert swizzle(16 * row + col) == 16 * row + (col ^ row % 16)

    def test_a_narrower_mask_repeats_sooner(self):
        assert Swizzle(3, 0, 4).row_period(16) == 8
        assert Swizzle(3, 0, 4).unswizzled_rows(32, 16) == [0, 8, 16, 24]

    def test_a_shorter_shift_takes_a_column_bit_into_the_mask(self):
        """The rule for both halves: the source is row % 4 * 2 + column // 8, so the right half never stays."""
        swizzle = Swizzle(3, 0, 3)
        assert swizzle.row_period(16) == 4
        assert swizzle.unswizzled_rows(32, 16, range(8)) == [0, 4, 8, 12, 16, 20, 24, 28]
        assert swizzle.unswizzled_rows(32, 16, range(8, 16)) == []
        for row, col in np.ndindex(32, 16):
            assert swizzle(16 * row + col) == 16 * row + (col ^ row % 4 * 2 + col // 8)

    def test_a_longer_shift_moves_rows_in_pairs(self):
        swizzle = Swizzle(4, 0, 5)
        assert swizzle.row_period(16) == 32
        assert swizzle.unswizzled_rows(64, 16) == [0, 1, 32, 33]
        rows = Layout.row_major(32, 16).offsets()
        moved = swizzle(rows) - rows[:, :1]
        np.testing.assert_array_equal(moved[::2], moved[1::2])


def test_row_period_is_where_the_pattern_repeats():
    for (b, m, s), row in itertools.product(VALID[::5], (1, 6, 16, 24, 64)):
        swizzle = Swizzle(b, m, s)
        period = swizzle.row_period(row)
        offsets = np.arange(2 * period * row).reshape(2, period, row)
        moved = swizzle(offsets) - offsets
        np.testing.assert_array_equal(moved[0], moved[1], f"{swizzle} on rows of {row}")


@given(st.sampled_from(VALID), st.integers(0, 5), st.integers(0, 5))
def test_swizzle_after_a_layout(parameters, rows, cols):
    swizzle, tile = Swizzle(*parameters), Layout.row_major(1 << rows, 1 << cols)
    swizzled = composition(swizzle, tile)
    np.testing.assert_array_equal(swizzled.offsets(), swizzle(tile.offsets()))
    assert swizzled(1 % 2**rows, 0) == swizzle(tile(1 % 2**rows, 0))
    assert (swizzled.size, swizzled.shape) == (tile.size, tile.shape)
    assert swizzled.cosize == swizzled.offsets().max() + 1
    columns_first = Layout((1 << cols, 1 << rows), (1 << rows, 1))
    np.testing.assert_array_equal(composition(swizzled, columns_first).offsets(), swizzled.offsets().T)


@pytest.mark.parametrize(
    ("row_elems", "elem_bits", "vector_elems", "expected"),
    [
        (64, 16, 8, (3, 3, 3)),  # 8 x 64 of half, 16 bytes a thread
        (128, 32, 1, (5, 0, 7)),  # 32 x 128 of float
        (128, 32, 4, (3, 2, 5)),  # the same, vectorised
        (16, 16, 8, (3, 3, 3)),  # a row shorter than a phase
        (32, 16, 8, (3, 3, 3)),
        (256, 8, 16, (3, 4, 4)),
    ],
    ids=str,
)
def test_for_tile(row_elems, elem_bits, vector_elems, expected):
    assert Swizzle.for_tile(row_elems, elem_bits, vector_elems) == Swizzle(*expected)


def test_for_tile_knows_short_rows_and_the_simple_rule_does_not():
    """S = log2(row) - M is below B where a row is shorter than 128 bytes, and is then refused."""
    m, b, s = 3, 6 - 3, 4 - 3
    with pytest.raises(ValueError, match="must be >= b"):
        Swizzle(b, m, s)
    assert Swizzle.for_tile(16, 16, 8) == Swizzle(b, m, b)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((48, 16, 8), "row_elems is 48; it must be a power of two"),
        ((64, 12, 8), "elem_bits is 12"),
        ((64, 16, 16), "at most 128 bits"),
        ((4, 16, 8), "at most the row of 4"),
    ],
)
def test_for_tile_refuses(arguments, says):
    with pytest.raises(ValueError, match=says):
        Swizzle.for_tile(*arguments)


def chunk_formula(y, x, nx, elem, chunk):
    """Swizzled x of element [y][x] of `array[][nx]`, rows of nx * elem bytes, in chunks: as its author gives it."""
    swizzle_size = nx * elem
    i_chunk = (y * nx + x) * elem // chunk
    y_chunk = i_chunk // (swizzle_size // chunk)
    x_chunk = i_chunk % (swizzle_size // chunk)
    return (y_chunk ^ x_chunk) * chunk // elem % nx + x % (chunk // elem)


@pytest.mark.parametrize("row_bytes", [32, 64, 128, 256])
@pytest.mark.parametrize("elem", [1, 2, 4])
@pytest.mark.parametrize("chunk", [4, 8, 16])
def test_the_chunk_formula_is_a_swizzle(row_bytes, elem, chunk):
    nx = row_bytes // elem
    y, x = np.mgrid[: 2 * nx, :nx]
    swizzle = Swizzle.for_chunks(row_bytes, chunk, elem)
    np.testing.assert_array_equal(swizzle(y * nx + x), y * nx + chunk_formula(y, x, nx, elem, chunk))


def test_the_transpose_of_32_x_32_floats_is_a_swizzle():
    y, x = np.mgrid[:32, :32]
    np.testing.assert_array_equal(Swizzle(5, 0, 5)(32 * y + x), 32 * y + (x ^ y) % 32)
    assert Swizzle.for_chunks(128, 4, 4) == Swizzle.for_tile(32, 32) == Swizzle(5, 0, 5)


def test_for_chunks_refuses_a_chunk_longer_than_its_row():
    with pytest.raises(ValueError, match="does not hold"):
        Swizzle.for_chunks(32, 64, 4)
