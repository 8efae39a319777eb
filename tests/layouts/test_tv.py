"""Thread-value layouts: the fragments of the PTX manual, their inverses, and tiles dealt out by composition."""

import itertools

import numpy as np
import pytest

from tritonmm.layouts import (
    Layout,
    Swizzle,
    blocked,
    composition,
    inverse_tv,
    mma_atoms,
    owners,
    partition,
    vector_elems,
    warp_conflicts,
)

F16 = mma_atoms.ATOMS["SM80_16x8x16_F16F16F16F16_TN"]


def fragments(k, word):
    """(row, column) of lane and value for A (m, k), B (n, k) and C (m, n), after the PTX manual's formulas.

    word: elements of an input in a 32-bit register, which hold neighbours along k.
    """

    def a(lane, i):
        group, thread = divmod(lane, 4)
        register, part = divmod(i, word)
        return group + 8 * (register % 2), thread * word + part + 4 * word * (register // 2)

    def b(lane, i):
        group, thread = divmod(lane, 4)
        register, part = divmod(i, word)
        return group, thread * word + part + 4 * word * register

    def c(lane, i):
        group, thread = divmod(lane, 4)
        return group + 8 * (i // 2), thread * 2 + i % 2

    return {"A": a, "B": b, "C": c}


@pytest.mark.parametrize("atom", list(mma_atoms.ATOMS.values()), ids=lambda atom: atom.name)
def test_fragments_are_those_of_the_ptx_manual(atom):
    expected = fragments(atom.k, 1 if "TF32" in atom.name else 2)
    assert set(atom.operands()) == set(expected)
    for letter, (tv, (rows, cols)) in atom.operands().items():
        assert tv.size == rows * cols
        for lane, value in itertools.product(range(32), range(rows * cols // 32)):
            row, col = expected[letter](lane, value)
            assert tv(lane, value) == row + rows * col, f"{letter} of lane {lane}, value {value}"


def test_the_atom_of_half_by_name():
    assert F16.a == Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))
    assert F16.b == Layout(((4, 8), (2, 2)), ((16, 1), (8, 64)))
    assert F16.c == Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))
    assert (F16.m, F16.n, F16.k, F16.threads) == (16, 8, 16, 32)
    assert F16.types == ("F16", "F16", "F16", "F16")
    bf16 = mma_atoms.atom("SM80_16x8x16_F32BF16BF16F32_TN")
    assert bf16.types == ("F32", "BF16", "BF16", "F32")
    assert (bf16.a, bf16.b, bf16.c) == (F16.a, F16.b, F16.c)


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_wgmma_accumulator_is_that_of_the_ptx_manual(n):
    tv = mma_atoms.wgmma_accumulator(n)
    thread, value = np.mgrid[:128, : n // 2]
    warp, lane = thread // 32, thread % 32
    rows = 16 * warp + lane // 4 + 8 * (value // 2 % 2)
    cols = 8 * (value // 4) + lane % 4 * 2 + value % 2
    np.testing.assert_array_equal(tv.offsets(), rows + 64 * cols)


def test_wgmma_atoms_by_name():
    atom = mma_atoms.atom("SM90_64x256x16_F32BF16BF16_SS")
    assert (atom.m, atom.n, atom.k, atom.threads) == (64, 256, 16, 128)
    assert atom.types == ("F32", "BF16", "BF16", "F32")
    assert list(atom.operands()) == ["C"]
    assert mma_atoms.atom("SM90_64x128x32_F32E4M3E5M2_SS_TN").types == ("F32", "E4M3", "E5M2", "F32")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("SM80_16x8x16", "known are SM80_16x8x16_F16F16F16F16_TN"),
        ("SM90_64x256x32_F32BF16BF16_SS", "unknown atom"),
        ("SM90_64x100x16_F32BF16BF16_SS", "n is 100; it must be a multiple of 8"),
        ("SM90_64x264x16_F32BF16BF16_SS", "n is 264"),
    ],
)
def test_unknown_atoms_are_refused(name, says):
    with pytest.raises(ValueError, match=says):
        mma_atoms.atom(name)


def every_operand():
    for atom in (*mma_atoms.ATOMS.values(), mma_atoms.atom("SM90_64x72x16_F32F16F16_SS")):
        for letter, (tv, shape) in atom.operands().items():
            yield pytest.param(tv, shape, id=f"{atom.name}-{letter}")


@pytest.mark.parametrize(("tv", "shape"), list(every_operand()))
def test_inverse_tv_finds_thread_and_value_of_every_coordinate(tv, shape):
    inverse = inverse_tv(tv, shape)
    assert inverse.offsets().shape == shape
    count = tv[0].size
    threads, values = owners(tv, shape)
    for coord in np.ndindex(shape):
        value, thread = divmod(inverse(*coord), count)
        assert tv(thread, value) == coord[0] + shape[0] * coord[1], coord
        assert (threads[coord], values[coord]) == (thread, value)


def test_inverse_tv_refuses_what_is_held_twice_or_not_at_all():
    with pytest.raises(ValueError):  # noqa: PT011
        inverse_tv(Layout((32, 2), (1, 0)), (8, 4))
    with pytest.raises(ValueError, match="each element of a"):
        inverse_tv(Layout((8, 2), (1, 8)), (8, 4))


def test_a_tile_of_4_x_8_dealt_to_8_threads():
    """TV layout and tile composed: thread 5 of 8 holds four values, where the tile's layout puts them."""
    tv = Layout(((2, 4), (2, 2)), ((8, 1), (4, 16)))
    for tile in (Layout.row_major(4, 8), Layout((4, 8)), Layout((4, 8), (9, 1))):
        dealt = composition(tile, tv)
        assert [mode.size for mode in dealt] == [8, 4]
        for thread, value in itertools.product(range(8), range(4)):
            row, col = tv(thread, value) % 4, tv(thread, value) // 4
            assert dealt(thread, value) == tile(row, col), (thread, value)
    assert [composition(Layout.row_major(4, 8), tv)(5, v) for v in range(4)] == [18, 19, 22, 23]


@pytest.mark.parametrize("swizzle", [None, Swizzle(2, 3, 3)], ids=str)
def test_partition_deals_every_element_of_a_tile_once(swizzle):
    tile = Layout.row_major(64, 32)
    tile = composition(swizzle, tile) if swizzle else tile
    dealt = partition(tile, F16.a, (16, 16))
    assert [mode.size for mode in Layout(dealt.shape)] == [32, 64]
    offsets = dealt.offsets()
    np.testing.assert_array_equal(np.sort(offsets.ravel()), np.arange(64 * 32))
    for lane, value, i, j in itertools.product(range(32), range(8), range(4), range(2)):
        row, col = F16.a(lane, value) % 16, F16.a(lane, value) // 16
        assert dealt(lane, (value, (i, j))) == tile(16 * i + row, 16 * j + col)


def test_blocked_counts_values_then_lanes_then_warps_along_its_order():
    tv = blocked((16, 64), (1, 8), (4, 8), (2, 1), (1, 0))
    assert [mode.size for mode in tv] == [64, 16]
    assert [divmod(tv(0, v), 16)[::-1] for v in (0, 7, 8)] == [(0, 0), (0, 7), (8, 0)]
    assert [divmod(tv(t, 0), 16)[::-1] for t in (1, 8, 32)] == [(0, 8), (1, 0), (4, 0)]
    np.testing.assert_array_equal(np.sort(tv.offsets().ravel()), np.arange(16 * 64))
    with pytest.raises(ValueError, match="128 elements along mode 1 do not divide the 64"):
        blocked((16, 64), (1, 8), (2, 16), (1, 1), (1, 0))


@pytest.mark.parametrize(
    ("tile", "expected"),
    [
        (Layout.row_major(16, 64), 8),
        (Layout((16, 64)), 1),
        (Layout((16, 64), (68, 1)), 4),
        (Layout((16, 64), (65, 1)), 1),
        (composition(Swizzle(3, 3, 3), Layout.row_major(16, 64)), 8),
        (composition(Swizzle(3, 1, 5), Layout.row_major(16, 64)), 2),
    ],
    ids=str,
)
def test_vector_elems_is_what_lies_together_aligned_in_every_row(tile, expected):
    rows = blocked((16, 64), (1, 8), (4, 8), (4, 1), (1, 0))
    assert vector_elems(composition(tile, rows), 2) == expected


def test_warp_conflicts_of_fragment_loads():
    """A's fragments read word by word, 8 rows and 4 words at once, from rows of 64 half."""
    tile = Layout.row_major(16, 64)
    plain = warp_conflicts(partition(tile, F16.a, (16, 16)), 2)
    cured = warp_conflicts(partition(composition(Swizzle(3, 3, 3), tile), F16.a, (16, 16)), 2)
    assert {each.ways for each in plain} == {(8,)}
    assert {each.ways for each in cured} == {(1,)}
    assert len(plain) == len(cured) == 4 * 4
