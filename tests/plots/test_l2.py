"""The figures of the L2 study: the model against counters, split-merge against swizzle-merge, several files as one."""

import gzip

import pandas as pd
import pytest
from click.testing import CliRunner
from swept import ABOUT, counted, lines, texts, trial, write

from tritonmm.cli import main
from tritonmm.orders import SplitMerge
from tritonmm.plots import __main__ as figures
from tritonmm.plots import families, model, overflow, rows, validation

ORDERS = ("row-major", "swizzle-merge:4", "swizzle-merge:4,2", "hilbert", "split-merge:4")


def assert_drawn(draw, frame, path):
    written = draw(frame, ABOUT, path / "figure")
    assert [each.suffix for each in written] == [".png", ".svg"]
    assert all(each.stat().st_size > 1000 for each in written)


@pytest.mark.parametrize("with_counters", [True, False], ids=["counters", "times alone"])
def test_the_command_draws_what_the_file_has_and_names_the_rest(with_counters, tmp_path):
    found = [trial(1000, order, 128) for order in ORDERS]
    frame = pd.DataFrame([counted(row) if with_counters else row for row in found])
    done = CliRunner().invoke(main, ["plot", str(write(tmp_path / "s.csv", frame)), "--out", str(tmp_path / "made")])
    assert done.exit_code == 0, done.output
    drawn = {"factors", "comparison", "overflow"} | ({"validation"} if with_counters else set())
    assert {path.name for path in (tmp_path / "made").iterdir()} == {
        f"s-{n}.{e}" for n in drawn for e in ("png", "svg")
    }
    assert ("no validation figure: the results have no column counted_" in done.output) == (not with_counters)


def test_validation_compares_todays_model_with_the_counters(tmp_path):
    """The bytes that the file has of the model are not read: they may be of an older one."""
    found = [counted(trial(m, order, 128), 0.8, 1.25) for m in (1000, 2048) for order in ORDERS]
    frame = pd.DataFrame(found).assign(dram_read_bytes=1, l2_read_bytes=1)
    uncounted = pd.DataFrame([trial(m, "morton", 128) for m in (1000, 2048)])
    both = pd.concat([frame, uncounted], ignore_index=True)
    sheet = validation.figure(both, ABOUT)
    assert "10 configs of 2 shapes" in texts(sheet)
    for axes, name, scale, error in zip(sheet.axes, validation.PANELS, (0.8, 1.25), ("25.0%", "20.0%"), strict=True):
        drawn = lines(axes)
        assert set(drawn) == {f"{families.family(order)}, tile 128x128" for order in ORDERS}
        points = [tuple(point) for line in drawn.values() for point in line.get_xydata()]
        expected = [(row[f"counted_{name}"] / 1e6, row[f"counted_{name}"] / scale / 1e6) for row in found]
        assert sorted(points) == [pytest.approx(each) for each in sorted(expected)]
        assert f"median {error}, p95 {error}" in axes.get_title(loc="left")
    assert_drawn(validation.draw, both, tmp_path)


def test_p95_is_the_error_that_one_in_twenty_exceeds():
    drawn = pd.DataFrame({"counted_x": [1.0] * 101, "predicted_x": [1 - i / 1000 for i in range(101)]})
    error = validation.errors(drawn, "x")
    assert (error.median(), error.quantile(0.95)) == pytest.approx((0.05, 0.095))


@pytest.mark.parametrize(
    ("found", "about", "says"),
    [
        (trial(1000, "hilbert", 128), ABOUT, "no column counted_dram_read_bytes"),
        (counted(trial(1000, "hilbert", 128), float("nan")), ABOUT, "no row of status ok has a value in each"),
        (counted(trial(1000, "hilbert", 128)), ABOUT | {"gpu": "NVIDIA L4"}, "does not know NVIDIA L4"),
    ],
    ids=["no counters", "nothing counted", "unknown GPU"],
)
def test_nothing_to_validate_says_why(found, about, says):
    with pytest.raises(ValueError, match=says):
        validation.figure(pd.DataFrame([found]), about)


def test_overflow_pairs_what_differs_in_the_orders_kind_alone(tmp_path):
    found = [trial(m, order, 128) for m in (1000, 1024, 1100) for order in ("split-merge:4", "swizzle-merge:4")]
    walks = [row | {"kernel": "hopper", "persistent": True, "time_us": 2.0} for row in found]
    walks[0]["time_us"] = 2.5
    alone = [trial(1100, "split-merge:8", 128), trial(1100, "swizzle-merge:2", 128)]
    other = trial(1100, "swizzle-merge:8", 128) | {"num_stages": 4}
    frame = pd.DataFrame([*found, *alone, other, *walks])
    table = overflow.pairs(rows.ok(frame))
    grids = {(tiles_m, 16) for tiles_m in (8, 9)}  # 1000 and 1024 rows are the same grid
    assert set(zip(table.tiles_m, table.tiles_n, strict=True)) == grids
    assert table.persistent.tolist() == [True] * 3 + [False] * 3
    for row in table.itertuples():
        assert row.order == "split-merge:4"
        assert row.launched == SplitMerge(4).launched(row.tiles_m, row.tiles_n)
        assert row.surplus == pytest.approx(row.launched / (row.tiles_m * row.tiles_n) - 1)
    assert sorted(table[table.persistent].time) == [1.0, 1.0, 1.25]
    sheet = overflow.figure(frame, ABOUT)
    (dots,) = (each for each in sheet.axes[1].collections if each.get_gid() == "time")
    assert dots.get_offsets()[:, 0].tolist() == table.time.tolist()
    assert [bar.get_width() for bar in sheet.axes[0].patches] == table.surplus.tolist()
    assert "2 pairs on 1 grid on" in texts(sheet)
    assert_drawn(overflow.draw, frame, tmp_path)


def test_overflow_without_a_pair_is_refused():
    with pytest.raises(ValueError, match="both split-merge and swizzle-merge"):
        overflow.figure(pd.DataFrame([trial(1000, "split-merge:4", 128), trial(1000, "swizzle-merge:8", 128)]), ABOUT)


@pytest.mark.parametrize(
    ("of_each", "kept"),
    [("row", [100, 100, 200, 200, 200]), ("problem", [100, 100, 200]), ("config", [100, 100, 200, 200])],
)
def test_files_measured_in_different_ways_do_not_mix(of_each, kept):
    """Of the problem that both have, the second file adds its rows, nothing, or its other config."""

    def file(which, found):
        return pd.DataFrame(found).assign(torch_us=which), ABOUT | {"commit": f"c{which}"}

    first = file(100, [trial(1000, "hilbert", 128), trial(1000, "morton", 128)])
    second = file(200, [trial(1000, "row-major", 128), trial(1000, "row-major", 64), trial(2048, "row-major", 128)])
    frame, about = figures.together(first, second, of_each=of_each)
    assert frame.torch_us.tolist() == kept
    assert about == ABOUT | {"commit": "c100 and c200"}


@pytest.mark.parametrize(
    ("order", "family"),
    [
        *(("swizzle-merge:8", "grouped"), ("swizzle-merge:1", "row-major"), ("row-major", "row-major")),
        *(("swizzle-merge:16,8", "two-level"), ("serpentine:8@n", "serpentine@n"), ("split-merge:8", "split-merge")),
        *(("hilbert", "hilbert"), ("morton", "morton"), ("column-major", "column-major")),
    ],
)
def test_families_are_named_and_coloured(order, family):
    assert families.family(order) == family
    assert families.colour(family).startswith("#")


@pytest.mark.parametrize(
    ("named", "spec"), [("NVIDIA H200", "h200"), ("h100", "h100"), ("NVIDIA GeForce RTX 4090", "rtx4090"), ("L4", None)]
)
def test_the_gpu_of_a_file_is_found_by_its_name(named, spec):
    found = model.gpu_of({"gpu": named})
    assert (found.name if found else None) == spec


def test_a_row_is_its_config_again():
    row = trial(1000, "swizzle-merge:4,2@n", 64) | {"cluster": "m", "repack": "ab", "split_tail": 2.0}
    (found,) = rows.ok(pd.DataFrame([row])).itertuples()
    config = model.config_of(found)
    assert (str(config.order), config.block_m, config.split_tail) == ("swizzle-merge:4,2@n", 64, 2)
    assert (config.cluster, config.repack, config.persistent) == ("m", "ab", False)
    problem = model.problem_of(found)
    assert (problem.m, problem.n, problem.k, problem.layout, problem.dtype) == (1000, 2048, 1024, "nn", "bf16")


def test_a_gzipped_sweep_is_drawn_like_the_text(tmp_path):
    sweep = write(tmp_path / "s.csv", pd.DataFrame([trial(4096, f"swizzle-merge:{f}", 128) for f in (1, 8)]))
    packed = tmp_path / "s.csv.gz"
    packed.write_bytes(gzip.compress(sweep.read_bytes()))
    drawn = [CliRunner().invoke(main, ["plot", str(path), "--out", str(tmp_path / "made")]) for path in (sweep, packed)]
    assert drawn[0].exit_code == drawn[1].exit_code == 0
    assert drawn[0].stdout == drawn[1].stdout
