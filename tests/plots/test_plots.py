import subprocess
import sys
import xml.etree.ElementTree

import matplotlib
import numpy as np
import pandas as pd
import pytest
from swept import ABOUT, H200, K, N, counted, lines, texts, trial, write

from tritonmm import families, orders
from tritonmm.autotune.measuring.trial import COLUMNS
from tritonmm.config import Config
from tritonmm.orders import Hilbert, RowMajor, Serpentine, SplitMerge, SwizzleMerge
from tritonmm.plots import __main__ as figures
from tritonmm.plots import comparison, factors, model, read_csv, rows, speedup, style, visit
from tritonmm.problem import Problem

TILE_ORDERS = ("row-major", "hilbert", "swizzle-merge:2", "swizzle-merge:3", "swizzle-merge:8", "swizzle-merge:4,2")
TILE_ORDERS += ("swizzle-merge:2@n", "split-merge:4", "serpentine:2")


@pytest.fixture(scope="module")
def results() -> pd.DataFrame:
    """Two M, every order, two configs: that of block_m = 64 is the slower one."""
    noise = np.random.default_rng(0).uniform(0, 0.01, 100)
    grid = [(m, order, block_m) for m in (1000, 2048) for order in TILE_ORDERS for block_m in (64, 128)]
    found = [trial(*each, noise[i] + (each[2] == 64)) for i, each in enumerate(grid)]
    failed = found[0] | {"status": "failed", "time_us": None, "tflops": None, "message": "out of memory, no. 2"}
    return pd.DataFrame([*found, failed], columns=list(COLUMNS))


def numbers(axes) -> dict:
    """(m, n) -> the number drawn there."""
    places = ((text.get_position(), text.get_text()) for text in axes.texts if text.get_text().isdecimal())
    return {(int(y), int(x)): int(text) for (x, y), text in places}


def red_tiles(axes) -> set:
    red = [each for each in axes.collections if each.get_gid() == "overflow"]
    for each in red:
        assert {tuple(colour) for colour in each.get_facecolor()} == {matplotlib.colors.to_rgba(style.RED)}
    corners = [path.vertices.min(axis=0) for each in red for path in each.get_paths()]
    return {(int(y), int(x)) for x, y in corners}


def assert_written(paths, stem):
    assert paths == [stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".svg")]
    pixels = matplotlib.image.imread(paths[0])
    assert min(pixels.shape[:2]) >= 300, f"{paths[0]} has {pixels.shape[:2]} pixels"
    assert pixels[..., :3].std() > 0.05, f"{paths[0]} is nearly blank"
    drawn = list(xml.etree.ElementTree.parse(paths[1]).getroot().iter("{http://www.w3.org/2000/svg}path"))
    assert len(drawn) > 20


DRAW = {"factors": factors.draw, "comparison": comparison.draw}


@pytest.mark.parametrize("name", DRAW)
def test_a_results_file_becomes_png_and_svg(name, results, tmp_path):
    frame, about = read_csv(write(tmp_path / "sweep.csv", results))
    assert_written(DRAW[name](frame, about, tmp_path / "made" / f"{name}.png"), tmp_path / "made" / name)


def test_the_exact_figures_are_drawn(tmp_path):
    paths = figures.exact(tmp_path)
    names = ("visit_order", "orders_gallery", "swizzle_banks", "mma_fragments")
    assert len(paths) == 2 * len(names)
    for i, name in enumerate(names):
        assert_written(paths[2 * i : 2 * i + 2], tmp_path / name)


def test_an_order_is_no_suffix(tmp_path):
    paths = visit.draw([RowMajor()], 2, 2, tmp_path / "order-0.5")
    assert [path.name for path in paths] == ["order-0.5.png", "order-0.5.svg"]


@pytest.mark.parametrize("tiles", [(7, 6), (3, 5), (1, 1)], ids=str)
@pytest.mark.parametrize("along", ["m", "n"])
@pytest.mark.parametrize("factor", [1, 3, 4])
def test_overflow_is_red_and_outside_exactly_as_often_as_split_merge_overflows(factor, along, tiles):
    order = SplitMerge(factor, along=along)
    overflow = order.launched(*tiles) - tiles[0] * tiles[1]
    split, whole = visit.figure([order, SwizzleMerge(factor, along=along)], *tiles).axes[:2]
    red = red_tiles(split)
    assert len(red) == overflow
    assert not [(m, n) for m, n in red if m < tiles[0] and n < tiles[1]]
    assert red_tiles(whole) == set()
    title = split.texts[-1].get_text()
    launched = "1 program" if order.launched(*tiles) == 1 else f"{order.launched(*tiles)} programs"
    assert title == launched + (f", {overflow} idle (red)" if overflow else "")


@pytest.mark.parametrize("along", ["m", "n"])
@pytest.mark.parametrize("factor", [2, 3, 4, 16])
def test_overflow_programs_stand_where_the_split_puts_them(factor, along):
    """On a grid that the factor divides nothing overflows, and the map says where each program belongs."""
    m, n = (7, 6) if along == "m" else (6, 7)
    rounded = -(-7 // factor) * factor
    order = SplitMerge(factor, along=along)
    whole = order.visit(*((rounded, n) if along == "m" else (m, rounded)))
    assert visit.places(order, m, n).tolist() == whole.tolist()


@pytest.mark.parametrize(
    "order", [*map(orders.parse, TILE_ORDERS), SplitMerge(3, along="n"), Serpentine(3), orders.Morton()], ids=str
)
@pytest.mark.parametrize("tiles", [(7, 6), (1, 9)], ids=str)
def test_the_number_in_each_tile_is_its_launch_index(order, tiles):
    drawn = numbers(visit.figure([order], *tiles).axes[0])
    assert len(drawn) == order.launched(*tiles)
    for i in range(order.launched(*tiles)):
        tile = order.tile(i, *tiles)
        if tile is not None:
            assert drawn[tile] == i, f"{order} on {tiles}: tile {tile} shows {drawn[tile]}, its index is {i}"


def test_colour_follows_the_launch_index():
    axes = visit.figure([Hilbert()], 6, 9).axes[0]
    expected = np.empty((6, 9))
    expected[tuple(Hilbert().visit(6, 9).T)] = np.arange(54)
    (mesh,) = (each for each in axes.collections if each.get_array() is not None)
    assert np.array_equal(np.asarray(mesh.get_array()).reshape(6, 9), expected)


def test_numbers_give_way_to_the_path_on_large_grids():
    axes = visit.figure([Hilbert()], 40, 40).axes[0]
    assert not numbers(axes)
    segments = [each for each in axes.collections if isinstance(each, matplotlib.collections.LineCollection)]
    steps = np.concatenate([each.get_segments() for each in segments if len(each.get_segments())])
    assert len(steps) == 40 * 40 - 1
    ends = {tuple(map(tuple, np.floor(step[:, ::-1]).astype(int))) for step in steps}
    walked = Hilbert().visit(40, 40)
    assert ends == {(tuple(a), tuple(b)) for a, b in zip(walked[:-1].tolist(), walked[1:].tolist(), strict=True)}


def test_panels_have_equal_tiles_and_do_not_overlap():
    sheet = visit.figure([SplitMerge(16), RowMajor(), SplitMerge(4, along="n"), Hilbert(), RowMajor()], 3, 5)
    boxes = [axes.get_position() for axes in sheet.axes]
    width, height = sheet.get_size_inches()
    tiles = [(axes.get_xlim()[1], axes.get_ylim()[0]) for axes in sheet.axes]
    sides = [(box.width * width / x, box.height * height / y) for box, (x, y) in zip(boxes, tiles, strict=True)]
    assert np.allclose(sides, sides[0][0])
    for i, box in enumerate(boxes):
        assert not [j for j in range(i) if box.overlaps(boxes[j])]
        assert box.x0 > 0
        assert box.y0 > 0
        assert box.x1 < 1
        assert box.y1 < 1


@pytest.mark.parametrize(
    ("given", "tiles", "says"),
    [
        ([], (4, 4), "no order"),
        ([RowMajor()], (0, 4), "0 x 4 tiles"),
        ([SplitMerge(2**30)], (3, 3), "split-merge:1073741824 launches 3221225472 programs"),
    ],
    ids=["no order", "empty grid", "too many programs"],
)
def test_what_cannot_be_visited_is_refused(given, tiles, says):
    with pytest.raises(ValueError, match=says):
        visit.figure(given, *tiles)


def swept(results, m, block_m=128):
    """What a line should show: row-major as factor 1, then the single factors along m."""
    factor = {"row-major": 1, "swizzle-merge:2": 2, "swizzle-merge:3": 3, "swizzle-merge:8": 8}
    part = results[(results.m == m) & (results.block_m == block_m) & (results.status == "ok")]
    return part[part.order.isin(factor)].assign(factor=lambda each: each.order.map(factor)).sort_values("factor")


def panel(sheet, row: int, column: int):
    """The axes of a sheet over factors with a column for each of the two M."""
    return sheet.axes[2 * row + column]


def test_the_sheet_has_the_times_of_the_file_and_the_traffic_of_the_model(results, tmp_path):
    """What a file without counters says of the traffic is not drawn: it may be of another model."""
    stale = results.assign(dram_read_bytes=1, l2_read_bytes=1, hit_rate=0.5)
    sheet = factors.figure(*read_csv(write(tmp_path / "sweep.csv", stale)))
    assert len(sheet.axes) == 2 * 4
    assert "no counters: the traffic is predicted" in texts(sheet).replace("\n", " ")
    for column, m in enumerate((1000, 2048)):
        expected = swept(results, m)
        for row, (name, unit) in enumerate([("hit_rate", 1), ("dram_read_bytes", 1e6), ("l2_read_bytes", 1e6)]):
            drawn = lines(panel(sheet, row, column))
            assert "measured" not in drawn
            assert drawn["predicted"].get_xdata().tolist() == [1, 2, 3, 8]
            assert drawn["predicted"].get_ydata() == pytest.approx((expected[name] / unit).tolist(), rel=1e-12)
        drawn = lines(panel(sheet, 3, column))
        assert drawn["measured"].get_ydata() == pytest.approx(expected.tflops.tolist(), rel=1e-12)
        assert drawn["torch"].get_ydata() == pytest.approx((2 * m * N * K / expected.torch_us / 1e6).tolist())
        configs = [Config(block_m=128, order=orders.parse(order)) for order in expected.order]
        seconds = [1e-6 * families.family("tile").estimate(config, Problem(m, N, K), H200).us for config in configs]
        assert drawn["predicted"].get_ydata() == pytest.approx([2e-12 * m * N * K / s for s in seconds])
        for said, best in (("measured", expected.tflops.argmax()), ("predicted", np.argmin(seconds))):
            assert drawn[f"fastest {said}"].get_xdata()[0] == [1, 2, 3, 8][best]
    assert [tick.get_text() for tick in panel(sheet, 3, 0).get_xticklabels()] == ["1", "2", "3", "8"]
    assert "M ragged" in panel(sheet, 0, 0).get_title(loc="left")
    assert "M ragged" not in panel(sheet, 0, 1).get_title(loc="left")


def test_counters_are_measured_traffic(results):
    frame = pd.DataFrame([counted(row, 1.5, 0.75) for row in results.to_dict("records")])
    sheet = factors.figure(frame, ABOUT)
    assert "no counters" not in texts(sheet)
    for row, (name, scale) in enumerate([("hit_rate", 0.5), ("dram_read_bytes", 1.5e-6), ("l2_read_bytes", 0.75e-6)]):
        drawn = lines(panel(sheet, row, 0))
        assert drawn["measured"].get_ydata() == pytest.approx((scale * swept(results, 1000)[name]).tolist())
        assert drawn["predicted"].get_ydata()[0] != pytest.approx(drawn["measured"].get_ydata()[0])


def test_a_gpu_that_the_model_does_not_know_shows_what_was_measured(results):
    sheet = factors.figure(results, ABOUT | {"gpu": "NVIDIA L4"})
    assert len(sheet.axes) == 2
    assert "predicted" not in lines(sheet.axes[0])
    assert "the model does not know this GPU" in texts(sheet).replace("\n", " ")
    with pytest.raises(ValueError, match="NVIDIA L4"):
        factors.figure(results.assign(source="model"), ABOUT | {"gpu": "NVIDIA L4"})


def test_times_of_the_model_are_no_measurement(results):
    sheet = factors.figure(results.assign(source="model"), ABOUT)
    assert not [axes for axes in sheet.axes if "measured" in lines(axes)]


def test_a_sheet_keeps_to_few_problems_with_both_kinds_of_m():
    frame = pd.DataFrame([trial(m, f"swizzle-merge:{f}", 128) for m in range(1000, 1008) for f in (1, 2)])
    whole = pd.DataFrame([trial(m, f"swizzle-merge:{f}", 128) for m in (256, 384, 512) for f in (1, 2)])
    sheet = factors.figure(pd.concat([frame, whole]), ABOUT)
    titles = [axes.get_title(loc="left").splitlines()[0] for axes in sheet.axes[: factors.MOST_PROBLEMS]]
    assert titles == ["M = 384", "M = 512", "M = 1006", "M = 1007"]
    assert "4 of the file's 11 problems" in texts(sheet)


@pytest.mark.parametrize("lacking", ["no column", "no value"])
def test_without_torch_there_is_no_reference(lacking, results):
    frame = results.drop(columns="torch_us") if lacking == "no column" else results.assign(torch_us=float("nan"))
    sheet = factors.figure(frame, ABOUT)
    assert "torch" not in lines(panel(sheet, 3, 0))
    assert "torch" not in [text.get_text() for text in sheet.legends[0].get_texts()]


def test_a_line_keeps_one_config_and_names_it(results):
    """A config that was not run at every factor is passed over even where it is the fastest."""
    incomplete = (results.m == 2048) & (results.block_m == 128) & (results.order == "swizzle-merge:8")
    sheet = factors.figure(results[~incomplete], ABOUT)
    expected = swept(results, 2048, block_m=64).tflops.tolist()
    assert lines(panel(sheet, 3, 1))["measured"].get_ydata() == pytest.approx(expected)
    assert "M = 1000: tile 128x128x64, 3 stages, 8 warps." in texts(sheet)
    assert "M = 2048: tile 64x128x64, 3 stages, 8 warps." in texts(sheet)


def test_without_a_common_config_each_factor_has_its_fastest(results):
    mixed = results[(results.block_m == 128) == (results.order == "swizzle-merge:8")]
    sheet = factors.figure(mixed, ABOUT)
    assert "Config: each factor's fastest config." in texts(sheet)
    y = lines(panel(sheet, 3, 0))["measured"].get_ydata()
    assert y[3] == pytest.approx(swept(results, 1000).tflops.iloc[3])
    assert y[0] == pytest.approx(swept(results, 1000, block_m=64).tflops.iloc[0])


def compared(frame) -> pd.DataFrame:
    return comparison.best(model.with_predictions(rows.ok(frame, "time_us"), ABOUT))


def test_the_comparison_is_relative_to_the_best_single_factor(results):
    table = compared(results)
    names = ["grouped", "grouped@n", "hilbert", "row-major", "serpentine", "split-merge", "two-level"]
    for m in (1000, 2048):
        part = table[table.label == f"M = {m}"].set_index("family")
        assert sorted(part.index) == names
        own = results[(results.m == m) & (results.status == "ok") & (results.block_m == 128)].set_index("order")
        single = own.loc[["swizzle-merge:2", "swizzle-merge:3", "swizzle-merge:8"]].sort_values("time_us").iloc[0]
        assert part.loc["grouped"][["order", "tried", "time", "dram"]].tolist() == [single.name, 3, 1, 1]
        for family, order in (("hilbert", "hilbert"), ("two-level", "swizzle-merge:4,2")):
            found = part.loc[family]
            assert (found.order, found.tried, found.counted) == (order, 1, False)
            assert found.time == pytest.approx(own.loc[order].time_us / single.time_us)
            assert found.dram == pytest.approx(own.loc[order].dram_read_bytes / single.dram_read_bytes)
    sheet = comparison.figure(results, ABOUT)
    for axes, column in zip(sheet.axes, ["time", "dram"], strict=True):
        for label, line in lines(axes).items():
            part = table[(table.label == label) & (table.family != "grouped")]
            assert line.get_xdata().tolist() == pytest.approx(part[column].tolist())
            named = [sheet.axes[0].get_yticklabels()[round(y)].get_text() for y in line.get_ydata()]
            assert named == [f"{row.family} ({row.tried})" for row in part.itertuples()]


def test_a_comparison_prefers_counted_bytes_and_shows_predicted_ones_hollow(results):
    """The bytes of one problem are all counted or all predicted: a ratio of both would be of neither."""
    frame = pd.DataFrame([counted(row, 1.5) if row["m"] == 1000 else row for row in results.to_dict("records")])
    assert compared(frame).groupby("label").counted.all().to_dict() == {"M = 1000": True, "M = 2048": False}
    axes = comparison.figure(frame, ABOUT).axes[1]
    assert {label: line.get_markerfacecolor() == "white" for label, line in lines(axes).items()} == {
        "M = 1000": False,
        "M = 2048": True,
    }
    gap = frame.assign(
        counted_dram_read_bytes=frame.counted_dram_read_bytes.where((frame.order != "hilbert") & (frame.m == 1000))
    )
    assert not compared(gap).counted.any()


def test_a_comparison_of_a_gpu_without_a_model_is_of_time_alone(results):
    assert len(comparison.figure(results, ABOUT | {"gpu": "NVIDIA L4"}).axes) == 1


def test_a_comparison_says_how_many_problems_it_leaves_out(results):
    without = results[(results.m != 1000) | ~results.order.str.fullmatch(r"swizzle-merge:\d")]
    assert "Of the results 1 problem had nothing to compare" in texts(comparison.figure(without, ABOUT))
    with pytest.raises(ValueError, match="no problem has an ok row of swizzle-merge with one factor"):
        comparison.figure(without[without.m == 1000], ABOUT)


def test_factor_one_is_row_major(results):
    renamed = results.assign(order=results.order.replace("row-major", "swizzle-merge:1"))
    before, after = (compared(frame).drop(columns="order") for frame in (results, renamed))
    pd.testing.assert_frame_equal(before, after)
    assert lines(panel(factors.figure(renamed, ABOUT), 3, 0))["measured"].get_xdata().tolist() == [1, 2, 3, 8]


@pytest.mark.parametrize(
    ("source", "says"), [("gpu", "measured"), ("model", "predicted by the model")], ids=["gpu", "model"]
)
def test_titles_name_the_gpu_and_where_the_times_come_from(source, says, results):
    frame = results.assign(source=source)
    for figure in (factors.figure, comparison.figure):
        assert f"NVIDIA H200, {says}" in texts(figure(frame, ABOUT)).splitlines()[0]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda frame: frame.drop(columns=["tflops", "order"]), "no results of a sweep: they lack order"),
        (lambda frame: frame.drop(columns="tflops"), "no column tflops"),
        (lambda frame: frame.iloc[:0], "no rows"),
        (lambda frame: frame.assign(status="failed"), "no row has status ok; the statuses are failed"),
        (lambda frame: frame.assign(tflops=float("nan")), "no row of status ok has a value in each of time_us, tflops"),
        (lambda frame: frame.assign(source=["gpu", *["model"] * (len(frame) - 1)]), "mix the sources gpu, model"),
        (lambda frame: frame[frame.order == "hilbert"], "no row has an order with a swizzle factor"),
        (lambda frame: frame.assign(order="zigzag"), "unknown order 'zigzag'"),
    ],
    ids=["columns", "times", "rows", "ok", "values", "sources", "factors", "order"],
)
def test_results_that_cannot_be_drawn_say_why(spoil, says, results):
    with pytest.raises(ValueError, match=says):
        factors.figure(spoil(results), ABOUT)


def test_results_of_no_gpu_are_refused(results):
    with pytest.raises(ValueError, match="# gpu:"):
        factors.figure(results, {})


def test_a_file_is_read_with_its_comment_lines(results, tmp_path):
    about = ABOUT | {"commit": "none", "note": "a: b # c"}
    frame, found = read_csv(write(tmp_path / "sweep.csv", results, about))
    assert found == about
    assert list(frame) == list(COLUMNS)
    assert frame.order.tolist() == results.order.tolist()
    assert frame.time_us[:-1].tolist() == pytest.approx(results.time_us[:-1].tolist(), rel=1e-12)


def test_times_of_a_contest_are_captioned_as_such(results, tmp_path):
    """Its file still says how the sweep before it was timed, and at which commit it was counted."""
    times = "NVIDIA H200, Triton 3.6.0, today, commit c2: 13 rounds"
    about = ABOUT | {"regime": "sustained", "commit": "c1", "times": times}
    said = rows.caption(*read_csv(write(tmp_path / "sweep.csv", results, about)))[1]
    assert "; 13 rounds (commit c2); " in said
    assert "sustained" not in said
    assert "commit c1" in said


@pytest.mark.parametrize("text", ["", "# gpu: h200\n"], ids=["empty", "comments only"])
def test_a_file_without_a_header_is_refused(text, tmp_path):
    (tmp_path / "empty.csv").write_text(text)
    with pytest.raises(ValueError, match=r"empty\.csv has no header"):
        read_csv(tmp_path / "empty.csv")


def test_drawing_twice_writes_the_same_bytes(results, tmp_path):
    for name in ("a", "b"):
        visit.draw([SplitMerge(4), SwizzleMerge(4)], 7, 6, tmp_path / name / "visit")
        factors.draw(results, ABOUT, tmp_path / name / "factors")
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
        assert b"dc:date" not in path.read_bytes()


def test_nothing_global_is_left_behind(results, tmp_path):
    with matplotlib.rc_context({"font.size": 31}):
        before = dict(matplotlib.rcParams)
        comparison.draw(results, ABOUT, tmp_path / "comparison")
        with pytest.raises(ValueError, match="no order"):
            visit.draw([], 1, 1, tmp_path / "visit")
        assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(("package", "loads"), [("tritonmm", "matplotlib"), ("tritonmm.plots", "matplotlib.pyplot")])
def test_importing_does_not_load(package, loads):
    code = f"import sys, {package}; print({loads!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_differences_within_the_noise_look_small(results):
    close = results.assign(time_us=100 + 0.01 * results.index)
    left, right = comparison.figure(close, ABOUT).axes[0].get_xlim()
    assert left <= 0.96
    assert right >= 1.04


def test_results_without_the_later_columns_are_those_of_whole_tiles(results):
    older = results.drop(columns=list(rows.LATER))
    for (label, group, config), (same_label, same, same_config) in zip(
        rows.by_factor(rows.ok(older)), rows.by_factor(rows.ok(results)), strict=True
    ):
        assert (label, config, group.order.tolist()) == (same_label, same_config, same.order.tolist())


def test_grouped_products_are_problems_of_their_own(results):
    plain = results[results.order.str.fullmatch(r"swizzle-merge:\d+")]
    grouped = plain.assign(ragged="m", groups=4.0, order="groups/" + plain.order, persistent=True)
    drawn = rows.ok(pd.concat([plain, grouped]))
    found = rows.by_factor(drawn)
    assert [label for label, *_ in found] == [
        "M = 1000", "M = 1000, 4 groups of m", "M = 2048", "M = 2048, 4 groups of m",
    ]  # fmt: skip
    assert found[0][1].factor.tolist() == found[1][1].factor.tolist()
    problem = model.problem_of(next(found[1][1].itertuples()))
    assert (problem.m, problem.ragged, problem.groups) == (1000, "m", 4)
    assert "4 groups of m" in rows.caption(rows.ok(grouped), ABOUT)[1]
    assert model.with_predictions(rows.ok(grouped), ABOUT).predicted_us.min() > 0


def test_configs_that_differ_in_how_they_split_are_not_one_line(results):
    tail = results[(results.block_m == 128) & (results.order == "swizzle-merge:8")].assign(split_tail=4, time_us=0.1)
    _, group, config = rows.by_factor(rows.ok(pd.concat([results, tail])))[0]
    assert "split" not in config
    assert group.time_us.min() > 0.1
    assert rows.config_text(rows.ok(tail).iloc[0]).endswith(", split-tail 4")


def test_the_speed_up_figure_draws_a_dot_a_gemm_and_the_geometric_mean(tmp_path):
    drawn = speedup.figure({"bf16": {"square": [1.0, 4.0], "decode": [0.5]}}, "one GPU")
    (axes,) = drawn.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["square", "decode"]
    assert [list(line.get_xdata()) for line in axes.lines[:2]] == [[1.0, 4.0], [0.5]]
    assert [bar.get_x() + bar.get_width() for bar in axes.patches] == [pytest.approx(2.0), pytest.approx(0.5)]
    assert [text.get_text() for text in axes.texts] == ["2.00", "0.50"]
    low, high = axes.get_xlim()
    assert low < 0.5 < 4.0 < high
    with pytest.raises(ValueError, match="'bf16' has a family without"):
        speedup.figure({"bf16": {"square": []}}, "one GPU")


def test_speed_ups_are_read_from_a_bench_file(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("# gpu: X\nfamily,regime,ratio\nsquare,burst,1.5\nsquare,sustained,1.1\nodd,burst,\n")
    assert speedup.ratios(path) == {"square": [1.5]}
    path.write_text("# gpu: X\nm,n\n1,2\n")
    with pytest.raises(ValueError, match="no column family, regime, ratio"):
        speedup.ratios(path)
