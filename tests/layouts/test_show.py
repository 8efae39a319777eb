"""What people see of layouts: the terminal's tables, the command, the pictures, the transpose's results."""

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from tritonmm.autotune.studies.bank_conflicts import __main__ as measuring
from tritonmm.cli import main
from tritonmm.layouts import Swizzle, mma_atoms, owners
from tritonmm.layouts.show import SwizzledTile, lines
from tritonmm.plots import layouts as pictures
from tritonmm.plots import read_csv
from tritonmm.plots import transpose as bars

ATOM = "SM80_16x8x16_F16F16F16F16_TN"


def call(*args):
    return CliRunner().invoke(main, [str(arg) for arg in args])


def numbers(text):
    return [int(word) for word in text.split() if word.isdecimal()]


def test_layout_prints_the_banks_and_conflicts_of_a_swizzle():
    result = call("layout", "swizzle<3,3,3>", "--tile", "8x64", "--dtype", "f16")
    assert result.exit_code == 0, result.output
    first, head, *table = result.stdout.splitlines()
    assert first == "Swizzle<3,3,3> on 8 x 64 elements of 16 bits, row-major"
    assert numbers(head) == list(range(0, 64, 8))
    for row in range(8):
        assert numbers(table[row]) == [row, *(4 * (chunk ^ row) for chunk in range(8))]
    assert "period: 512 elements, 8 rows; unchanged rows: 0" in table
    column = next(line for line in table if line.startswith("a column read"))
    assert column.endswith("16 bytes a thread: plain 1 phase, 8-way; swizzled 1 phase, free of conflicts")


def test_a_large_tile_is_cut_and_says_so():
    shown = lines(SwizzledTile(Swizzle(5, 0, 7), 64, 128, 32))
    assert "... 64 x 128 in all" in shown
    assert max(map(len, shown)) < 130
    assert any("32-way; swizzled 1 phase, free" in line for line in shown)


def test_a_swizzle_larger_than_its_tile_is_told():
    """Element 4 of a tile of 5 moves by 1, out of it."""
    assert any(line.startswith("it reaches element 5:") for line in lines(SwizzledTile(Swizzle(1, 0, 2), 1, 5, 16)))
    assert not any(line.startswith("it reaches") for line in lines(SwizzledTile(Swizzle(1, 0, 2), 1, 8, 16)))


def test_layout_prints_who_holds_what_of_an_atom():
    result = call("layout", ATOM)
    assert result.exit_code == 0, result.output
    shown = result.stdout.splitlines()
    assert shown[0] == f"{ATOM}: 16 x 8 x 16, f16 = f16 * f16 + f16, 32 threads"
    for letter, (tv, shape) in mma_atoms.atom(ATOM).operands().items():
        at = next(i for i, line in enumerate(shown) if line.startswith(f"{letter} ("))
        assert shown[at].endswith(str(tv))
        threads, values = owners(tv, shape)
        for row in range(shape[0]):
            expected = [f"{t}.{v}" for t, v in zip(threads[row], values[row], strict=True)]
            assert shown[at + 2 + row].split() == [str(row), *expected]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["SM80"], "unknown atom 'SM80'"),
        (["swizzle<3,3,2>"], "|s| is 2; it must be >= b"),
        (["swizzle<3,3>"], "as in swizzle<3,3,3>"),
        (["swizzle<3,3,3>", "--tile", "8"], "'8' is not a tile"),
        (["swizzle<3,3,3>", "--tile", "8x9"], "a row of 9 elements is no multiple of 8"),
        (["swizzle<3,3,3>", "--dtype", "f7"], "f7"),
        ([ATOM, "--tile", "4x4"], "it goes with a swizzle"),
    ],
    ids=" ".join,
)
def test_a_users_error_is_one_line(args, says):
    result = call("layout", *args)
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def cells(axes):
    (mesh,) = (each for each in axes.collections if each.get_gid() == "cells")
    return np.asarray(mesh.get_array()).reshape(mesh.get_coordinates().shape[0] - 1, -1)


@pytest.mark.parametrize(
    ("rows", "cols", "bits", "swizzle"), [(8, 64, 16, (3, 3, 3)), (64, 128, 32, (5, 0, 7))], ids=str
)
def test_a_tile_is_coloured_by_bank(rows, cols, bits, swizzle):
    tile = SwizzledTile(Swizzle(*swizzle), rows, cols, bits)
    figure = pictures.figure_of_tile(tile)
    for axes, swizzled in zip(figure.axes, (False, True), strict=False):
        np.testing.assert_array_equal(cells(axes), tile.banks(swizzled))
        drawn = [text.get_text() for text in axes.texts if text.get_text().isdecimal()]
        assert drawn == ([str(bank) for bank in tile.banks(swizzled).flat] if rows == 8 else [])


@pytest.mark.parametrize("name", [ATOM, "SM80_16x8x8_F32TF32TF32F32_TN", "SM90_64x256x16_F32BF16BF16_SS"])
def test_fragments_are_coloured_by_thread(name):
    atom = mma_atoms.atom(name)
    figure = pictures.figure_of_atom(atom)
    for axes, (letter, (tv, shape)) in zip(figure.axes, atom.operands().items(), strict=True):
        threads = owners(tv, shape)[0]
        threads = threads.T if letter == "B" else threads
        drawn = cells(axes)
        np.testing.assert_array_equal(drawn, threads[:, : drawn.shape[1]])
        assert drawn.shape[1] == min(threads.shape[1], pictures.MOST_COLUMNS)
        assert sum(text.get_text().startswith("T") for text in axes.texts) == drawn.size


def test_text_stays_in_its_cell():
    figure = pictures.figure_of_atom(mma_atoms.atom(ATOM))
    renderer = FigureCanvasAgg(figure).get_renderer()
    for axes in figure.axes:
        cell = axes.get_window_extent().width / cells(axes).shape[1]
        assert all(text.get_window_extent(renderer).width < cell for text in axes.texts)


def test_layout_draws_what_it_printed(tmp_path):
    for name in ("swizzle<1,3,3>", "SM90_64x16x16_F32F16F16_SS"):
        result = call("layout", name, "--out", tmp_path / "drawn")
        assert result.exit_code == 0, result.output
        assert result.stdout.splitlines()[-2:] == [str(tmp_path / "drawn.png"), str(tmp_path / "drawn.svg")]
        assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")


def test_a_tile_too_large_to_draw_is_refused():
    with pytest.raises(ValueError, match="more than the 65536"):
        pictures.figure_of_tile(SwizzledTile(Swizzle(5, 0, 10), 1024, 1024, 32))


def test_predicted_conflicts_of_the_benchmark():
    """8192 x 8192 floats are read in 2**21 phases; a plain tile takes 8 turns for each with vectors, 32 without."""
    found = {(row.layout, row.vector): row for row in (measuring.predicted(t, 8192, 8192) for t in measuring.tiles(4))}
    assert found["plain", 4].predicted_conflicts == 7 * 2**21
    assert found["plain", 1].predicted_conflicts == 31 * 2**21
    for layout in ("padded", "swizzled"):
        for vector in (4, 1):
            assert (found[layout, vector].predicted_conflicts, found[layout, vector].read_ways) == (0, 1)


def test_results_of_the_transpose_are_drawn_in_their_order(tmp_path):
    rows = [
        measuring.Row("plain", 4, 8, 7, 200.0, 130.0, 0.65, 2684.4),
        measuring.Row("swizzled", 4, 1, 0, 135.0, 130.0, 0.963, 3977.0),
        measuring.Row("torch", None, None, None, 150.0, 130.0, 0.867, 3579.1),
    ]
    measuring.write_csv(tmp_path / "t.csv", rows, ["# gpu: Test GPU", "# shape: 8192x8192 fp32"])
    frame, about = read_csv(tmp_path / "t.csv")
    assert about["gpu"] == "Test GPU"
    figure = bars.figure(frame, about)
    drawn = [bar for bar in figure.axes[0].patches if bar.get_width()]
    assert [bar.get_width() for bar in drawn] == [0.65, 0.963, 0.867]
    assert len({to_hex(bar.get_facecolor()) for bar in drawn}) == 3
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["plain, vectors of 4: 8-way", "swizzled, vectors of 4: free", "torch's own"]
    with pytest.raises(ValueError, match="no times"):
        bars.figure(
            pd.DataFrame([{"layout": "plain", "vector": 4, "read_ways": 8, "of_copy": None, "gb_per_s": None}]), {}
        )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_benchmark_needs_a_gpu():
    result = CliRunner().invoke(measuring.main, [])
    assert result.exit_code == 1
    assert "needs a GPU" in result.output


@pytest.mark.gpu
def test_the_benchmark_measures_every_row(tmp_path):
    result = CliRunner().invoke(measuring.main, ["--size", "512", "--csv", str(tmp_path / "t.csv")])
    assert result.exit_code == 0, result.output
    frame, _ = read_csv(tmp_path / "t.csv")
    assert list(frame.layout) == ["plain", "padded", "swizzled"] * 2 + ["torch"]
    assert (frame.of_copy > 0).all()
    bars.figure(frame, {})
