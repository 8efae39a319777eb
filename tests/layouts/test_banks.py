"""Bank conflicts: the worked examples by which swizzles are taught, and the rule that says which one cures a tile."""

import itertools

import numpy as np
import pytest

from tritonmm.layouts import Layout, Swizzle, bank_conflicts, composition


def column(tile, rows, col, elem_bytes):
    """Byte addresses of one column, or of the vectors that begin in it."""
    return np.array([tile(row, col) for row in rows]) * elem_bytes


def ways(tile, rows, col, elem_bytes, access_bytes):
    return bank_conflicts(column(tile, rows, col, elem_bytes), access_bytes).ways


def test_threads_of_a_phase():
    consecutive = np.arange(32)
    for access_bytes, phases in ((1, 1), (2, 1), (4, 1), (8, 2), (16, 4)):
        found = bank_conflicts(consecutive * access_bytes, access_bytes)
        assert found.ways == (1,) * phases, access_bytes
        assert (found.worst, found.extra) == (1, 0)
    assert bank_conflicts(np.arange(8) * 16, 16).ways == (1,), "8 threads are a phase of their own"


def test_threads_that_want_one_word_share_it():
    assert bank_conflicts(np.zeros(32, int), 4).ways == (1,)
    assert bank_conflicts(np.arange(32) // 2 * 4, 4).ways == (1,)
    assert bank_conflicts(np.arange(32) * 2, 2).ways == (1,)
    assert bank_conflicts(np.arange(32) % 2 * 128, 4).ways == (2,)


def test_phases_do_not_conflict_with_each_other():
    a_phase_each = np.repeat(np.arange(4) * 128, 8) + np.tile(np.arange(8) * 16, 4)
    assert bank_conflicts(a_phase_each, 16).ways == (1, 1, 1, 1)


@pytest.mark.parametrize("stride", range(1, 65))
def test_ways_of_a_strided_read(stride):
    """32 words at a stride meet 32 / gcd(stride, 32) banks."""
    found = bank_conflicts(np.arange(32) * 4 * stride, 4)
    assert found.worst == np.gcd(stride, 32)
    assert found.extra == found.worst - 1


def test_brute_force_agrees():
    rng = np.random.default_rng(0)
    for access_bytes, _ in itertools.product((1, 2, 4, 8, 16), range(40)):
        addresses = rng.integers(0, 64, 32) * access_bytes
        threads = min(32, 128 // access_bytes)
        expected = []
        for first in range(0, 32, threads):
            banks = {}
            for address in addresses[first : first + threads].tolist():
                for byte in range(address, address + access_bytes):
                    banks.setdefault(byte // 4 % 32, set()).add(byte // 4)
            expected.append(max(map(len, banks.values())))
        assert bank_conflicts(addresses, access_bytes).ways == tuple(expected), addresses


@pytest.mark.parametrize(
    ("addresses", "access_bytes", "says"),
    [
        ([0, 4], 3, "access_bytes is 3; it must be 1, 2, 4, 8 or 16"),
        ([0, 4], 16, "address 4 is not a multiple of the 16 bytes"),
        (range(0, 132, 4), 4, "1 to 32 addresses"),
        ([], 4, "1 to 32 addresses"),
        ([0.5], 4, "integers"),
        ([[0, 4]], 4, "1 to 32 addresses"),
    ],
)
def test_what_is_no_instruction_is_refused(addresses, access_bytes, says):
    with pytest.raises(ValueError, match=says):
        bank_conflicts(list(addresses), access_bytes)


def test_transpose_of_32_x_32_floats():
    """A warp writes rows and reads columns: 32-way plainly, free of conflicts if padded by one float or swizzled."""
    plain = Layout.row_major(32, 32)
    tiles = {"plain": plain, "padded": Layout((32, 32), (33, 1)), "swizzled": composition(Swizzle(5, 0, 5), plain)}
    for name, tile in tiles.items():
        for i in range(32):
            assert ways(tile, range(32), i, 4, 4) == ((32,) if name == "plain" else (1,)), f"{name} column {i}"
            row = np.array([tile(i, col) for col in range(32)]) * 4
            assert bank_conflicts(row, 4).ways == (1,), f"{name} row {i}"


def test_two_columns_of_16_x_32_floats():
    """A warp that reads two columns of 16 conflicts once if swizzled, 16-way if not."""
    plain = Layout.row_major(16, 32)
    for tile, expected in ((plain, 16), (composition(Swizzle(5, 0, 5), plain), 2)):
        addresses = np.concatenate([column(tile, range(16), col, 4) for col in (0, 1)])
        assert bank_conflicts(addresses, 4).ways == (expected,)


def test_a_column_of_32_x_128_floats():
    plain = Layout.row_major(32, 128)
    swizzled = composition(Swizzle(5, 0, 7), plain)
    for col in range(128):
        assert ways(plain, range(32), col, 4, 4) == (32,)
        assert ways(swizzled, range(32), col, 4, 4) == (1,)


def test_a_vectorised_column_of_32_x_128_floats():
    """8 threads make a phase of 16 bytes each: 8-way at worst."""
    plain = Layout.row_major(32, 128)
    swizzled = composition(Swizzle(3, 2, 5), plain)
    for col in range(0, 128, 4):
        assert ways(plain, range(32), col, 4, 16) == (8,) * 4
        assert ways(swizzled, range(32), col, 4, 16) == (1,) * 4


LDMATRIX = [
    # (columns of a tile of 16 rows of fp16, rows read at once, ways, swizzles that cure it, swizzles that do not)
    (16, range(8), 2, [(1, 3, 3), (2, 3, 3), (3, 3, 3)], [(0, 3, 3), (1, 3, 1)]),
    (16, range(0, 16, 4), 4, [(2, 3, 3), (3, 3, 3)], [(1, 3, 3)]),
    (32, range(8), 4, [(2, 3, 3), (3, 3, 3)], [(1, 3, 3)]),
    (64, range(8), 8, [(3, 3, 3)], [(1, 3, 3), (2, 3, 3)]),
]


@pytest.mark.parametrize(("cols", "rows", "plain_ways", "cures", "leaves"), LDMATRIX, ids=str)
def test_ldmatrix_on_half(cols, rows, plain_ways, cures, leaves):
    """ldmatrix reads 8 rows of 16 bytes, a phase."""
    tile = Layout.row_major(16, cols)
    for col in range(0, cols, 8):
        assert ways(tile, rows, col, 2, 16) == (plain_ways,)
        for swizzle in cures:
            assert ways(composition(Swizzle(*swizzle), tile), rows, col, 2, 16) == (1,), swizzle
        for swizzle in leaves:
            assert ways(composition(Swizzle(*swizzle), tile), rows, col, 2, 16) > (1,), swizzle


def tiles_and_vectors():
    for elem_bits, row, vector in itertools.product((8, 16, 32, 64), (8, 16, 32, 64, 128, 256), (1, 2, 4, 8, 16)):
        if vector * elem_bits <= 128 and vector <= row:
            yield elem_bits, row, vector


def test_for_tile_cures_every_column_that_is_read_in_words_or_wider():
    checked = 0
    for elem_bits, row, vector in tiles_and_vectors():
        access_bytes = vector * elem_bits // 8
        # Scalars below 4 bytes: a warp's 32 rows are spread over fewer banks, as many ways as elements a word.
        expected = max(1, 4 // access_bytes)
        swizzled = composition(Swizzle.for_tile(row, elem_bits, vector), Layout.row_major(64, row))
        addresses = swizzled.offsets() * elem_bits // 8
        for first, col in itertools.product((0, 32), range(0, row, vector)):
            found = bank_conflicts(addresses[first : first + 32, col], access_bytes)
            where = f"{elem_bits} bits, rows of {row}, vectors of {vector}, column {col}"
            assert found.worst <= expected, where
            checked += 1
    assert checked > 1000


def test_for_tile_keeps_vectors_whole_and_rows_free():
    for elem_bits, row, vector in tiles_and_vectors():
        swizzle = Swizzle.for_tile(row, elem_bits, vector)
        offsets = swizzle(np.arange(64 * row))
        np.testing.assert_array_equal(
            offsets.reshape(-1, vector) - offsets[::vector, None], [range(vector)] * (64 * row // vector)
        )
        access_bytes = vector * elem_bits // 8
        firsts = offsets[::vector] * elem_bits // 8
        for first in range(0, len(firsts) - 31, 32):
            assert bank_conflicts(firsts[first : first + 32], access_bytes).worst == 1, (elem_bits, row, vector)
