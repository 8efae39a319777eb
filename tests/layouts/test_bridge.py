"""The bridge to Gluon: what crosses it is the same map, by Triton's own linear layouts where it has them."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import triton
from triton._C import libtriton
from triton.experimental.gluon import language as gl

import tritonmm
from tritonmm.device import gluon_compat as gluon_api
from tritonmm.layouts import (
    Layout,
    Swizzle,
    Swizzled,
    blocked,
    composition,
    from_triton,
    mma_atoms,
    partition,
    to_triton,
    warp_conflicts,
)

RELEASE = tuple(map(int, triton.__version__.split(".")[:2]))
shared_linear = pytest.mark.skipif(RELEASE < (3, 9), reason="this Triton has no linear layout of shared ones")


@pytest.fixture(scope="module")
def builder():
    """Triton's own calculus: it needs a module to be in, and neither a kernel nor a GPU."""
    context = libtriton.ir.context()
    libtriton.ir.load_dialects(context)
    libtriton.nvidia.load_dialects(context)
    builder = libtriton.gluon_ir.GluonOpBuilder(context)
    module = builder.create_module()
    function = builder.get_or_insert_function(module, "f", builder.get_function_ty([], []), "public", False)
    module.push_back(function)
    builder.set_insertion_point_to_start(function.add_entry_block())
    yield builder  # noqa: PT022 - which needs `context` and `module` alive


def places(bases, count):
    """What the bits of 0 .. count - 1 add up to by XOR, from the bit's coordinate: an array (count, 2)."""
    numbers = np.arange(count)[:, None]
    total = np.zeros((count, 2), int)
    for i, basis in enumerate(bases):
        total ^= (numbers >> i & 1) * np.array(basis)
    return total


def assert_is(tile, layout, shape, builder):
    """Element (row, column) lies at tile(row, column), says Triton's linear layout of `layout`."""
    linear = builder.to_linear_layout(layout._to_ir(builder), list(shape))
    rows, cols = places(linear.offset_bases, shape[0] * shape[1]).T
    np.testing.assert_array_equal(tile(rows, cols), np.arange(len(rows)), f"{tile} against {layout} of {shape}")


SHAPES = [(8, 8), (8, 64), (16, 16), (64, 32), (4, 128)]


@shared_linear
def test_swizzled_shared_layouts_are_tritons(builder):
    for vec, per_phase, max_phase in itertools.product((1, 2, 8), (1, 2, 4), (1, 2, 8)):
        for order, shape in itertools.product(([1, 0], [0, 1]), SHAPES):
            if vec > shape[order[0]]:
                continue
            layout = gl.SwizzledSharedLayout(vec, per_phase, max_phase, order)
            assert_is(from_triton(layout, shape), layout, shape, builder)


NVMMA = [
    (width, bits, rows, cols)
    for width, bits, rows, cols in itertools.product((0, 32, 64, 128), (8, 16, 32), (8, 64, 256), (32, 64, 128, 256))
    if cols * bits // 8 >= width and rows * cols <= 2**14
]


@shared_linear
@pytest.mark.parametrize("transposed", [False, True])
def test_nvmma_shared_layouts_are_tritons(transposed, builder):
    for width, bits, rows, cols in NVMMA:
        shape = (cols, rows) if transposed else (rows, cols)
        layout = gl.NVMMASharedLayout(width, bits, 2, transposed)
        assert_is(from_triton(layout, shape), layout, shape, builder)


def test_nvmma_layouts_cross_back():
    for width, bits, rows, cols in NVMMA:
        for transposed, shape in ((False, (rows, cols)), (True, (cols, rows))):
            tile = from_triton(gl.NVMMASharedLayout(width, bits, 2, transposed), shape)
            back = to_triton(tile, bits)
            np.testing.assert_array_equal(from_triton(back, shape).offsets(), tile.offsets())
            assert (back.swizzle_byte_width, back.element_bitwidth) == (width, bits)


def test_nvmma_of_128_bytes_is_the_swizzle_of_every_book():
    assert to_triton(composition(Swizzle(3, 3, 3), Layout.row_major(8, 64)), 16).swizzle_byte_width == 128
    assert to_triton(composition(Swizzle(2, 3, 3), Layout.row_major(8, 32)), 16).swizzle_byte_width == 64
    assert to_triton(composition(Swizzle(1, 3, 3), Layout.row_major(8, 16)), 16).swizzle_byte_width == 32


@pytest.mark.parametrize(
    "tile",
    [
        Layout.row_major(16, 64),
        Layout((16, 64)),
        composition(Swizzle(3, 3, 3), Layout.row_major(16, 64)),
        composition(Swizzle(3, 3, 3), Layout((64, 16))),
        composition(Swizzle(3, 2, 6), Layout.row_major(64, 64)),
        composition(Swizzle(1, 3, 3), Layout.row_major(16, 16)),
        composition(Swizzle(5, 0, 5), Layout.row_major(32, 32)),
        Layout((16, 64), (68, 1)),
        Layout((64, 16), (1, 68)),
        Layout(((4, 16), 64), ((64, 260), 1)),
        Layout((16, (32, 2)), (66, (1, 33))),
    ],
    ids=str,
)
def test_to_triton_and_back_is_the_same_map(tile):
    shape = tile.offsets().shape
    back = from_triton(to_triton(tile), shape)
    np.testing.assert_array_equal(back.offsets(), tile.offsets())


def test_padded_layouts_are_what_their_definition_says():
    """Element i of the compact tile lies at i + sum of i // interval * padding."""
    for order, pairs in itertools.product(([1, 0], [0, 1]), ([[64, 4]], [[256, 4]], [[32, 1]], [[64, 2], [256, 8]])):
        layout = gl.PaddedSharedLayout.with_identity_for(pairs, [32, 64], order)
        number = Layout.row_major(32, 64).offsets() if order == [1, 0] else Layout((32, 64)).offsets()
        expected = number + sum(number // interval * padding for interval, padding in pairs)
        tile = from_triton(layout, (32, 64))
        np.testing.assert_array_equal(tile.offsets(), expected)
        assert to_triton(tile) == layout


@pytest.mark.parametrize(
    ("tile", "bits", "says"),
    [
        (composition(Swizzle(3, 3, 3), Layout.row_major(16, 16)), None, "does not move elements within their row"),
        (composition(Swizzle(2, 3, -3), Layout.row_major(16, 64)), None, "does not move elements within their row"),
        (Swizzled(Swizzle(3, 3, 3), Layout((16, 64), (72, 1))), None, "padded and swizzled"),
        (Layout((16, 64), (67, 1)), None, "no padding gives it"),
        (Layout((16, 64), (128, 2)), None, "no padding gives it"),
        (Layout.row_major(12, 64), None, "must be a power of two"),
        (Layout(64), None, "has 1 modes"),
        (composition(Swizzle(3, 2, 3), Layout.row_major(16, 64)), 16, "no layout that TMA writes"),
    ],
    ids=str,
)
def test_what_gluon_cannot_say_is_refused(tile, bits, says):
    with pytest.raises(ValueError, match=says):
        to_triton(tile, bits)


def test_other_layouts_do_not_cross():
    with pytest.raises(ValueError, match="is no SwizzledSharedLayout"):
        from_triton(gl.BlockedLayout([1, 1], [4, 8], [1, 1], [1, 0]), (4, 8))
    with pytest.raises(ValueError, match="only tiles of rows x columns"):
        from_triton(gl.SwizzledSharedLayout(1, 1, 1, [0]), (4,))
    with pytest.raises(ValueError, match="swizzling 128 bytes takes 8 to 256 rows"):
        from_triton(gl.NVMMASharedLayout(128, 16, 2), (8, 32))


def assert_holds(tv, layout, shape, builder, exact=True):
    """Thread t's value v is where Triton's linear layout of `layout` has it; not `exact`: as one of t's values."""
    linear = builder.to_linear_layout(layout._to_ir(builder), list(shape))
    threads, values = (mode.size for mode in tv)
    lanes = places([*linear.lane_bases, *linear.warp_bases], threads)
    registers = places(linear.reg_bases, values)
    rows, cols = np.moveaxis(lanes[:, None] ^ registers[None, :], -1, 0)
    found, expected = tv.offsets(), rows + shape[0] * cols
    if not exact:
        found, expected = np.sort(found, axis=1), np.sort(expected, axis=1)
    np.testing.assert_array_equal(found, expected, f"{tv} against {layout}")


@pytest.mark.parametrize("atom", list(mma_atoms.ATOMS.values()), ids=lambda atom: atom.name)
def test_mma_atoms_are_tritons(atom, builder):
    mma = gl.NVMMADistributedLayout([2, 0], [1, 1], [16, 8])
    word = 1 if "TF32" in atom.name else 2
    assert_holds(atom.c, mma, (16, 8), builder)
    assert_holds(atom.a, gl.DotOperandLayout(0, mma, word), (16, atom.k), builder)
    b = gl.DotOperandLayout(1, mma, word)
    columns_first = composition(Layout((8, atom.k), (atom.k, 1)), atom.b)  # Triton's B is k x n
    assert_holds(columns_first, b, (atom.k, 8), builder)


@pytest.mark.skipif(gluon_api.inline_asm is None, reason="this Triton multiplies fp64 in blocks of 16 x 8 x 16 itself")
@pytest.mark.parametrize("warps", [(1, 1), (4, 2), (2, 4), (8, 1)])
@pytest.mark.parametrize("tile", [(128, 64), (128, 128)])
def test_blocks_of_fp64_are_those_that_gluon_holds(tile, warps, builder):
    """Each register of an instruction holds its element of a block, by PTX's fragments, and each block has its sums."""
    rows, cols = tile
    mma = gl.NVMMADistributedLayout([2, 0], list(warps), [16, 8])
    held = {}
    for name, layout, shape in (
        ("a", gl.DotOperandLayout(0, mma, 1), (rows, 16)),
        ("b", gl.DotOperandLayout(1, mma, 1), (16, cols)),
        ("c", mma, tile),
    ):
        linear = builder.to_linear_layout(layout._to_ir(builder), list(shape))
        lanes = places([*linear.lane_bases, *linear.warp_bases], 32 * warps[0] * warps[1])
        registers = places(linear.reg_bases, 1 << len(linear.reg_bases))
        held[name] = lanes[:, None] ^ registers[None, :]
    count = {name: where.shape[1] for name, where in held.items()}
    assert count["c"] == gluon_api._mma_f64_constraints.fn(tile, mma).count("=d")
    assert sum(count.values()) == gluon_api._mma_f64_constraints.fn(tile, mma).replace("=d", "").count("d") + count["c"]
    names = {name: tuple(f"{name}{i}" for i in range(size)) for name, size in count.items()}
    text = gluon_api._mma_f64.fn((names["c"],), (names["a"], names["b"], names["c"]))
    lane = np.arange(held["c"].shape[0]) % 32
    group, member = lane // 4, lane % 4
    written = set()
    for line in text.splitlines():
        d, a, b, c = ([(r[0], int(r[1:])) for r in part.split(", ")] for part in re.findall(r"\{(.*?)\}", line))
        assert c == d
        assert (len(a), len(b), len(c)) == (8, 4, 4)
        first = {}
        for operand, fragment in (
            (a, lambda i: (group + 8 * (i % 2), member + 4 * (i // 2))),
            (b, lambda i: (member + 4 * i, group)),
            (c, lambda i: (group + 8 * (i // 2), 2 * member + i % 2)),
        ):
            name = operand[0][0]
            found = np.stack([held[name][:, i] for _, i in operand], 1)
            origin = found - np.stack([np.stack(fragment(i), -1) for i in range(len(operand))], 1)
            assert (origin == origin[:, :1]).all()  # of a thread; and of a warp:
            by_warp = origin[:, 0].reshape(-1, 32, 2)
            assert (by_warp == by_warp[:, :1]).all()
            first[name] = by_warp[:, 0]
        np.testing.assert_array_equal(first["c"], np.stack([first["a"][:, 0], first["b"][:, 1]], -1))
        assert not first["a"][:, 1].any()
        assert not first["b"][:, 0].any()
        written |= {tuple(x) for x in first["c"].tolist()}
    assert len(written) == rows // 16 * (cols // 8)


@pytest.mark.parametrize("n", [8, 64, 256])
def test_wgmma_accumulators_are_tritons(n, builder):
    layout = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, n, 16])
    assert_holds(mma_atoms.wgmma_accumulator(n), layout, (64, n), builder)


BLOCKED = [
    # (shape, size_per_thread, threads_per_warp, warps, order)
    ((16, 64), (1, 8), (4, 8), (4, 1), (1, 0)),
    ((64, 64), (1, 4), (2, 16), (4, 1), (1, 0)),
    ((64, 64), (4, 1), (8, 4), (2, 2), (0, 1)),
    ((128, 128), (16, 4), (8, 4), (1, 4), (0, 1)),
    ((32, 32), (1, 1), (1, 32), (4, 1), (1, 0)),
]


@pytest.mark.parametrize("case", BLOCKED, ids=str)
def test_blocked_layouts_are_tritons(case, builder):
    shape, *parts = case
    layout = gl.BlockedLayout(*map(list, parts))
    assert_holds(blocked(*case), layout, shape, builder, exact=False)


CONFLICTING = [Swizzle(*each) for each in ((1, 3, 3), (3, 3, 3), (3, 2, 6), (5, 0, 6), (2, 4, 5), (3, 2, 5), (4, 1, 6))]


@pytest.mark.parametrize("case", BLOCKED, ids=str)
def test_conflicts_are_those_that_gluon_counts(case, builder):
    """Gluon counts the turns beyond the first of each phase, and its phases are alike.

    Swizzles of parts of a word are left out: Gluon's count then misses what `test_brute_force_agrees` finds.
    """
    shape, *parts = case
    register = gl.BlockedLayout(*map(list, parts))
    checked = 0
    for elem_bytes, swizzle in itertools.product((1, 2, 4), (None, *CONFLICTING)):
        if swizzle and elem_bytes << swizzle.m < 4:
            continue
        tile = Layout.row_major(*shape)
        try:
            tile = composition(swizzle, tile) if swizzle else tile
            shared = to_triton(tile)
        except ValueError:
            continue
        checked += 1
        dealt = partition(tile, blocked(*case), shape)
        ways = {way for each in warp_conflicts(dealt, elem_bytes) for way in each.ways}
        counted = builder.get_shared_bank_conflicts(
            register._to_ir(builder), shared._to_ir(builder), list(shape), 8 * elem_bytes
        )
        assert ways == {counted + 1}, f"{elem_bytes} bytes, {tile}"
    assert checked >= 8


def test_importing_layouts_needs_numpy_only():
    # The package's own __init__ is left out: what it imports is its affair.
    code = (
        "import sys, types\n"
        "package = sys.modules['tritonmm'] = types.ModuleType('tritonmm')\n"
        f"package.__path__ = [{str(Path(tritonmm.__file__).parent)!r}]\n"
        "import tritonmm.layouts\n"
        "print(sorted({'torch', 'triton', 'matplotlib', 'rich', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
