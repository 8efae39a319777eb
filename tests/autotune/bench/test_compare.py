"""The bench: every outcome is a row, rows are kept as they come, and the means are what they say."""

import csv
import json
import math
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tritonmm import gpu, orders
from tritonmm.autotune.bench import compare as benching
from tritonmm.autotune.bench.compare import COLUMNS, Row, bench, geomean, means
from tritonmm.autotune.bench.suite import Entry
from tritonmm.autotune.measuring import precompile, results_file, sources
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.measure import Paired
from tritonmm.autotune.measuring.results_file import ResultsFile
from tritonmm.autotune.tuner.sweep import DeviceLostError
from tritonmm.cli import main
from tritonmm.config import Config
from tritonmm.selection import choose
from tritonmm.torch_ops.grouped_product import chosen

ENTRIES = (
    Entry("square", 256, 256, 256, 1, "nn", "bf16"),
    Entry("square", 512, 512, 512, 1, "nt", "bf16"),
    Entry("decode", 1, 256, 512, 1, "nt", "fp16"),
)
BOTH = ("burst", "sustained")
CONFIG = Config(block_m=64, block_n=64, num_warps=4)
RESULTS = Path(benching.__file__).parents[1] / "results"


def rounds(ours_us, torch_us, **clocks):
    return Paired((ours_us * 1e-6,) * 7, (torch_us * 1e-6,) * 7, **clocks)


class Scripted:
    """Rivals that answer from functions and write down what they were asked."""

    gpu = gpu.spec("h200")
    environment = Environment("H200", "b", "c", "d", "e", "f", "g", "2026-11-21")

    def __init__(self, error_ratio=lambda problem: 0.5, paired=lambda problem, regime: rounds(10, 15), in_use=""):
        self.answers = error_ratio, paired
        self.nvml = SimpleNamespace(celsius=lambda: 55, watts=lambda: 690.5, in_use=lambda: in_use)
        self.asked, self.compiled = [], []
        self.lost = False

    def error_ratio(self, problem, config, sizes):
        self.asked.append(("check", problem.m))
        return self.answers[0](problem)

    def paired(self, problem, config, regime, sizes):
        self.asked.append((regime.name, problem.m))
        return self.answers[1](problem, regime.name)

    def alive(self):
        return not self.lost


def benched(rivals, entries=ENTRIES, regimes=BOTH, chosen=lambda problem, gpu: CONFIG):
    return list(bench(entries, regimes, rivals, chosen))


def row(ratio, family="square", regime="burst", m=64):
    return Row(Entry(family, m, 64, 64, 1, "nn", "bf16"), regime, config=CONFIG, paired=rounds(10, 10 * ratio))


def test_each_entry_is_checked_once_and_then_timed_in_each_regime():
    rivals = Scripted()
    found = benched(rivals)
    kinds = ("check", "burst", "sustained")
    assert rivals.asked == [(kind, entry.m) for entry in ENTRIES for kind in kinds]
    assert [(r.entry, r.regime, r.status) for r in found] == [(e, g, "ok") for e in ENTRIES for g in BOTH]
    assert all(r.paired.ratio == pytest.approx(1.5) for r in found)
    assert {(r.error_ratio, r.celsius, r.watts) for r in found} == {(0.5, 55, 690.5)}


@pytest.mark.parametrize("error_ratio", [1.01, math.inf, math.nan], ids=str)
def test_a_wrong_result_is_not_timed(error_ratio):
    rivals = Scripted(error_ratio=lambda problem: error_ratio if problem.m == 512 else 0.5)
    wrong = [r for r in benched(rivals) if r.status != "ok"]
    assert [(r.entry.m, r.regime, r.status, r.paired) for r in wrong] == [(512, g, "wrong", None) for g in BOTH]
    assert ("burst", 512) not in rivals.asked
    assert ("burst", 1) in rivals.asked
    for r in wrong:
        assert "times its bound" in r.message
        assert r.cells()["ratio"] is None
        assert json.loads(json.dumps(r.cells(), allow_nan=False)) == r.cells()


@pytest.mark.parametrize("where", ["check", "choose", "burst"])
def test_an_exception_is_a_row_and_the_rest_is_measured(where):
    def broken(problem):
        if problem.m == 256:
            raise torch.OutOfMemoryError("CUDA out of memory.\n Tried to allocate 7 GiB")

    def chosen(problem, gpu):
        if where == "choose":
            broken(problem)
        return CONFIG

    def error_ratio(problem):
        if where == "check":
            broken(problem)
        return 0.5

    def paired(problem, regime):
        if where == regime:
            broken(problem)
        return rounds(10, 10)

    found = benched(Scripted(error_ratio, paired), chosen=chosen)
    failed = [r for r in found if r.status == "failed"]
    assert [r.entry.m for r in failed] == [256] * (1 if where == "burst" else 2)
    assert {r.message for r in failed} == {"OutOfMemoryError: CUDA out of memory. Tried to allocate 7 GiB"}
    assert sum(r.status == "ok" for r in found) == 6 - len(failed)


def test_what_torch_refuses_is_timed_alone_and_in_no_mean():
    refusal = "torch refused: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED\n when calling `cublasLtMatmul`"

    def paired(problem, regime):
        return Paired((1e-5,) * 7, (), refusal=refusal) if problem.m == 512 else rounds(10, 15)

    found = benched(Scripted(paired=paired))
    refused = [r for r in found if r.entry.m == 512]
    assert [r.status for r in found] == ["ok"] * 6
    for r in refused:
        cells = r.cells()
        assert (cells["torch_us"], cells["ratio"], cells["ratio_error"]) == (None, None, None)
        assert (cells["ours_us"], cells["rounds"]) == (10, 7)
        assert cells["message"] == " ".join(refusal.split())
        assert "CUBLAS_STATUS_NOT_SUPPORTED" in str(r)
        assert json.loads(json.dumps(cells, allow_nan=False)) == cells
    assert [mean.count for mean in means(found) if mean.family == "all"] == [2, 2]


def test_an_illegal_config_is_a_row_with_the_reason():
    rivals = Scripted()
    found = benched(rivals, chosen=lambda problem, gpu: Config(block_m=48))
    assert {r.status for r in found} == {"illegal"}
    assert "block_m is 48" in found[0].message
    assert rivals.asked == []


def test_a_lost_device_ends_the_bench_after_its_rows():
    rivals = Scripted()

    def faulty(problem, regime):
        if problem.m == 512:
            rivals.lost = True
            raise RuntimeError("illegal memory access")
        return rounds(10, 10)

    rivals.answers = rivals.answers[0], faulty
    stream = bench(ENTRIES, BOTH, rivals, lambda *_: CONFIG)
    assert [next(stream).status for _ in range(4)] == ["ok", "ok", "failed", "failed"]
    with pytest.raises(DeviceLostError, match="512x512x512"):
        next(stream)
    assert ("check", 1) not in rivals.asked


@pytest.mark.parametrize(
    ("clocks", "warned"),
    [
        ({"torch_mhz": 1700.0, "ours_mhz": 1710.0}, False),
        ({"torch_mhz": 1700.0, "ours_mhz": 1800.0}, True),
        ({"torch_mhz": 1800.0, "ours_mhz": 1700.0}, True),
        ({"torch_mhz": 1800.0, "ours_mhz": None}, False),
    ],
    ids=["equal", "ours higher", "torch higher", "unknown"],
)
def test_clocks_that_differ_are_said(clocks, warned):
    found = benched(Scripted(paired=lambda problem, regime: rounds(10, 10, **clocks)))
    assert all(r.status == "ok" for r in found)
    assert all(("clocks differ" in r.message) == warned for r in found)
    assert all(("clocks differ" in str(r)) == warned for r in found)


def test_means_are_by_regime_and_family_and_of_all_entries():
    rows = [row(2.0), row(0.5, m=65), row(4.0, "decode"), row(3.0, regime="sustained")]
    found = {(mean.regime, mean.family): mean for mean in means(rows)}
    assert list(found) == [("burst", "square"), ("burst", "decode"), ("burst", "all"), ("sustained", "square")]
    assert found["burst", "square"].geomean == pytest.approx(1)
    assert (found["burst", "square"].count, found["burst", "square"].worst) == (2, rows[1])
    assert found["burst", "all"].geomean == pytest.approx(4 ** (1 / 3))
    assert "worst 0.500 at 65x64x64 nn bf16" in str(found["burst", "square"])


def test_rows_without_a_ratio_are_in_no_mean():
    failed = Row(ENTRIES[2], "burst", status="failed", message="no")
    assert [(mean.family, mean.count) for mean in means([row(2.0), failed])] == [("square", 1)]
    assert means([failed]) == []


@given(st.lists(st.floats(0.01, 100), min_size=1))
def test_the_geometric_mean_of_inverses_is_the_inverse(ratios):
    assert geomean(ratios) * geomean([1 / ratio for ratio in ratios]) == pytest.approx(1)
    assert min(ratios) * (1 - 1e-9) <= geomean(ratios) <= max(ratios) * (1 + 1e-9)


@pytest.mark.parametrize("ratios", [[], [1.0, 0.0], [-1.0]], ids=["none", "zero", "negative"])
def test_no_geometric_mean_of_what_is_not_above_0(ratios):
    with pytest.raises(ValueError, match="above 0"):
        geomean(ratios)


def read(path):
    """(comments, rows) of a results file."""
    lines = path.read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    return comments, list(csv.DictReader(lines[len(comments) :]))


def test_the_columns_that_others_read_come_first():
    head = "family,m,n,k,batch,layout,dtype,regime,torch_us,ours_us,ratio,config"
    assert ",".join(COLUMNS).startswith(head + ",")


def test_the_columns_of_older_files_come_first_and_in_their_order():
    """Of files from before there were groups."""
    _, columns, _ = results_file.read(RESULTS / "h200-bench-triton-3.6.0.csv")
    assert tuple(columns) == COLUMNS[: len(columns)]


GROUPED = (
    Entry("dw", 96, 64, 300, 1, "tn", "bf16", "k", 5, "empties"),
    Entry("forward", 300, 64, 96, 1, "nt", "bf16", "m", 5, "zipf:3"),
    Entry("forward", 300, 64, 96, 1, "nt", "bf16", "m", 5),
)


def test_groups_are_checked_and_timed_in_the_sizes_of_their_entry():
    asked = []

    class Sized(Scripted):
        def error_ratio(self, problem, config, sizes):
            asked.append(("check", sizes))
            return 0.5

        def paired(self, problem, config, regime, sizes):
            asked.append((regime.name, sizes))
            return rounds(10, 15)

    config = Config(block_m=64, block_n=64, num_warps=4, persistent=True, order=orders.parse("groups/row-major"))
    found = benched(Sized(), GROUPED, ("burst",), lambda *_: config)
    assert [r.status for r in found] == ["ok"] * 3, found[0].message
    sizes = ("empties", "zipf:3", "random")
    assert asked == [(what, each) for each in sizes for what in ("check", "burst")]
    cells = [tuple(r.cells()[name] for name in ("ragged", "groups", "sizes")) for r in found]
    assert cells == [("k", 5, "empties"), ("m", 5, "zipf:3"), ("m", 5, "random")]
    assert "300x64x96 nt bf16 5 groups of m zipf:3" in str(found[1])
    assert [name for mean in means(found) if (name := mean.family) != "all"] == ["dw", "forward"]


def test_a_row_is_in_the_file_before_the_next_is_measured(tmp_path):
    path = tmp_path / "folder" / "r.csv"
    with ResultsFile(path, ["# gpu: H200"], COLUMNS) as results:
        assert read(path) == (["# gpu: H200"], [])
        for i, r in enumerate(bench(ENTRIES, BOTH, Scripted(), lambda *_: CONFIG), 1):
            results.add(r.row())
            assert len(read(path)[1]) == i
    comments, rows = read(path)
    assert comments == ["# gpu: H200"]
    assert [(r["family"], r["m"], r["regime"], r["ratio"]) for r in rows[:2]] == [
        ("square", "256", "burst", "1.5"),
        ("square", "256", "sustained", "1.5"),
    ]
    assert (rows[0]["torch_us"], rows[0]["ours_us"], rows[0]["status"]) == ("15.0", "10.0", "ok")


def test_rows_may_go_into_a_pipe(tmp_path):
    pipe, lines = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: lines.extend(pipe.read_text().splitlines()))
    reader.start()
    with ResultsFile(pipe, ["# gpu: H200"], COLUMNS) as results:
        results.add(Row(ENTRIES[0], "burst").row())
    reader.join()
    assert (lines[0], len(lines)) == ("# gpu: H200", 3)


def test_a_config_from_the_file_can_be_asked_for_again(tmp_path):
    config = Config(block_m=64, order=orders.SwizzleMerge(16, 8))
    with ResultsFile(tmp_path / "r.csv", [], COLUMNS) as results:
        results.add(Row(ENTRIES[0], "burst", config=config).row())
    assert Config.from_json(read(tmp_path / "r.csv")[1][0]["config"]) == config


def test_a_message_cannot_break_a_line_or_start_a_comment(tmp_path):
    with ResultsFile(tmp_path / "r.csv", [], COLUMNS) as results:
        results.add(Row(ENTRIES[0], "burst", status="failed", message="bug #7, at 'x'").row())
    assert "#" not in (tmp_path / "r.csv").read_text()
    assert read(tmp_path / "r.csv")[1][0]["message"] == "bug no. 7, at 'x'"


@pytest.fixture
def measured(monkeypatch):
    """Have the command measure with the rivals that it is called with."""

    def use(rivals):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(sources, "GpuSource", lambda: rivals)
        monkeypatch.setattr(precompile, "precompile_all", lambda pairs, gpu: rivals.compiled.extend(pairs))
        monkeypatch.setattr("tritonmm.selection.choose", lambda problem, gpu: CONFIG)
        return rivals

    return use


def call(*args):
    return CliRunner().invoke(main, ["bench", *map(str, args)])


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps([{name: getattr(e, name) for name in Entry.__slots__} for e in ENTRIES]))
    return path


def test_the_command_prints_rows_and_means_and_writes_the_file(measured, suite, tmp_path):
    rivals = measured(Scripted())
    result = call("--suite", suite, "--csv", tmp_path / "r.csv")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == benching.HEADER
    assert len(lines) == 1 + 6 + 1 + 6
    assert lines[1].split()[:7] == ["square", "256x256x256", "nn", "bf16", "burst", "15.0", "10.0"]
    assert str(CONFIG) in lines[1]
    assert "all       burst       1.500  of   3, worst 1.500 at" in result.stdout
    assert rivals.compiled == [(entry.problem(), CONFIG) for entry in ENTRIES]
    comments, rows = read(tmp_path / "r.csv")
    assert {"# gpu: H200", "# source: gpu", f"# suite: {suite}", "# gpu in use: no"} <= set(comments)
    assert len(rows) == 6


def test_without_a_suite_the_public_one_is_measured(measured):
    rivals = measured(Scripted())
    assert call("--regime", "sustained", "--family", "square,deep-k").exit_code == 0
    assert len(rivals.asked) == 2 * (5 + 4)
    assert {kind for kind, _ in rivals.asked} == {"check", "sustained"}


def test_one_shape_and_a_forced_config(measured, monkeypatch):
    measured(Scripted())
    forced = Config(block_m=32, block_n=32, num_warps=4)
    result = call(
        *("--shape", "64x128x256", "--layout", "tn", "--dtype", "fp16", "--batch", 2, "--regime", "burst"),
        *("--config", forced.to_json(), "--json"),
    )
    outcome = json.loads(result.stdout)
    (found,) = outcome["rows"]
    shape = {"m": 64, "n": 128, "k": 256, "batch": 2, "layout": "tn", "dtype": "fp16"}
    assert found.items() >= shape.items()
    assert Config.from_json(found["config"]) == forced
    assert outcome["means"][0]["geomean"] == pytest.approx(1.5)
    assert outcome["environment"]["gpu"] == "H200"


def test_groups_are_computed_as_grouped_mm_would(measured, monkeypatch, tmp_path):
    """With the config of their class of tokens."""
    rivals, asked = measured(Scripted()), []
    config = Config(block_m=64, block_n=64, num_warps=4, persistent=True, order=orders.parse("groups/row-major"))
    monkeypatch.setattr("tritonmm.selection.choose", lambda problem, *_: asked.append(problem) or config)
    shape = ("--shape", "5001x64x96", "--layout", "nt", "--groups", 8, "--sizes", "zipf:3", "--regime", "burst")
    result = call(*shape, "--csv", tmp_path / "r.csv")
    assert result.exit_code == 0, result.output
    ((problem, compiled),) = rivals.compiled
    assert (problem.m, problem.ragged, problem.groups, compiled) == (5001, "m", 8, config)
    assert {each.m for each in asked} == {5120}
    ((row),) = read(tmp_path / "r.csv")[1]
    assert (row["ragged"], row["groups"], row["sizes"]) == ("m", "8", "zipf:3")


def test_a_wrong_result_exits_with_1(measured, suite):
    measured(Scripted(error_ratio=lambda problem: 3.0 if problem.m == 1 else 0.5))
    result = call("--suite", suite)
    assert result.exit_code == 1
    assert result.stdout.count("wrong: ") == 2
    assert "all" not in [line.split()[0] for line in result.stdout.splitlines() if line]


def test_a_lost_device_exits_with_1_and_keeps_the_rows(measured, suite, tmp_path):
    rivals = measured(Scripted())

    def faulty(problem, regime):
        rivals.lost = True
        raise RuntimeError("illegal memory access")

    rivals.answers = rivals.answers[0], faulty
    result = call("--suite", suite, "--csv", tmp_path / "r.csv")
    assert result.exit_code == 1
    assert "context is lost" in result.stderr
    assert [r["status"] for r in read(tmp_path / "r.csv")[1]] == ["failed", "failed"]


def test_an_interruption_keeps_the_rows_and_the_means(measured, suite, tmp_path):
    def interrupted(problem, regime):
        if problem.m == 512:
            raise KeyboardInterrupt
        return rounds(10, 20)

    measured(Scripted(paired=interrupted))
    result = call("--suite", suite, "--csv", tmp_path / "r.csv")
    assert result.exit_code == 130
    assert "interrupted after 2 of 6 rows" in result.stderr
    assert len(read(tmp_path / "r.csv")[1]) == 2
    assert "2.000  of   1" in result.stdout


def test_a_card_in_use_is_said(measured, suite, tmp_path):
    measured(Scripted(in_use="it is 93% busy"))
    result = call("--suite", suite, "--csv", tmp_path / "r.csv")
    assert result.exit_code == 0
    assert "not idle" in result.stderr
    assert "93% busy" in result.stderr
    assert "# gpu in use: it is 93% busy" in read(tmp_path / "r.csv")[0]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--suite", "nowhere"], "shipped are dtypes, grouped, grouped-mm, mixed210, mixed420, public"),
        (["--family", "cube"], "'cube' is not in the suite"),
        (["--shape", "64x64"], "as in 4096x4096x4096"),
        (["--shape", "64x0x64"], "'0' is not a whole number above 0"),
        (["--dtype", "fp16"], "--dtype: it goes with --shape"),
        (["--batch", "2"], "--batch: it goes with --shape"),
        (["--groups", "8"], "--groups: it goes with --shape"),
        (["--shape", "64x64x64", "--sizes", "even"], "--sizes: it goes with --groups"),
        (["--shape", "64x64x64", "--ragged", "k"], "--ragged: it goes with --groups"),
        (["--shape", "64x64x64", "--groups", "8", "--sizes", "odd"], "sizes is 'odd'; it must be one of"),
        (["--shape", "64x64x64", "--groups", "8", "--batch", "2"], "batch is 2"),
        (["--shape", "64x64x64", "--groups", "8", "--dtype", "fp8"], "which has scales"),
        (["--config", "{}x"], "Extra data"),
        (["--config", '{"block_m": 0}'], "block_m is 0"),
        (["--regime", "idle"], "idle"),
        (["--shape", "64x64x64", "--csv", "/dev/null/r.csv"], "/dev/null"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_a_users_error_is_one_line_and_exits_with_2(measured, args, says):
    rivals = measured(Scripted())
    result = call(*args)
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""
    assert rivals.asked == []


def test_without_a_gpu_there_is_nothing_to_measure(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = call("--shape", "64x64x64")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
    assert "needs a GPU" in result.stderr
    assert "tritonmm sweep" in result.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
def test_on_a_gpu_a_product_is_checked_and_timed(dtype):
    rivals = sources.GpuSource()
    for r in bench([Entry("ragged", 500, 256, 512, 2, "nt", dtype)], BOTH, rivals, choose):
        assert (r.status, r.error_ratio <= 1) == ("ok", True), r.message
        assert 0 < r.paired.times.time_us < 1e4
        assert 0.01 < r.paired.ratio < 100


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", ["random", "empties", "one-hot"])
@pytest.mark.parametrize("shape", [(500, 256, 512, 1, "nt", "m"), (256, 512, 500, 1, "tn", "k")], ids=str)
def test_on_a_gpu_groups_are_checked_and_timed(shape, sizes):
    *dims, ragged = shape
    for r in bench([Entry("moe", *dims, "bf16", ragged, 8, sizes)], ("burst",), sources.GpuSource(), chosen):
        assert (r.status, r.error_ratio <= 1) == ("ok", True), r.message
        assert 0.01 < r.paired.ratio < 100


@pytest.mark.gpu
def test_on_a_gpu_what_torch_multiplies_in_a_loop_leaves_the_process_whole():
    entries = [Entry("moe", 500, 256, 512, 1, "nt", dtype, "m", 8, "random") for dtype in ("fp16", "bf16")]
    loop, fast = bench(entries, ("burst",), sources.GpuSource(), chosen)
    assert (loop.status, loop.paired.ratio) == ("ok", None)
    assert loop.message.startswith("torch refused")
    assert (fast.status, "refused" in fast.message) == ("ok", False)
    assert fast.paired.ratio > 0
