"""The command: what it prints, writes and exits with."""

import json
import os
import re
import shlex
import subprocess
import sys

import click
import pandas as pd
import pytest
from click.testing import CliRunner
from swept import trial

import tritonmm
from tritonmm import orders, user_files
from tritonmm.autotune.measuring import sources
from tritonmm.autotune.measuring.trial import COLUMNS
from tritonmm.cli import main
from tritonmm.plan import INTERPRETED
from tritonmm.problem import KINDS

interpreted = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled for the GPU")

TOO_LARGE = ["--m", "2147483647", "--n", "2147483647", "--k", "64", "--dtype", "fp64"]

SMALL = [
    "sweep", "--m", "100,128", "--n", "64", "--k", "64", "--blocks", "32x32x32", "--stages", "2", "--warps", "4",
    "--factors", "1,2", "--gpu", "h200",
]  # fmt: skip


def call(*args):
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture
def store(tmp_path):
    return tmp_path / "s.sqlite"


@interpreted
def test_sweep_fills_the_store_and_the_csv(tmp_path, store):
    result = call(*SMALL, "--orders", "swizzle-merge:2,2,hilbert", "--store", store, "--csv", tmp_path / "r.csv")
    assert result.exit_code == 0, result.output
    lines = (tmp_path / "r.csv").read_text().splitlines()
    assert "# source: model" in lines
    header = next(line for line in lines if not line.startswith("#"))
    rows = lines[lines.index(header) + 1 :]
    assert header == ",".join(COLUMNS)
    assert len(rows) == 2 * 4
    assert all(",model,ok," in row for row in rows)
    assert "8 trials: 8 ok" in result.stdout
    assert str(store) in result.stdout
    assert str(tmp_path / "r.csv") in result.stdout


@interpreted
def test_a_csv_takes_the_place_of_no_store(tmp_path, store):
    assert "--store and --csv both are" in call(*SMALL, "--store", store, "--csv", store).stderr
    call(*SMALL, "--store", store)
    before = store.read_bytes()
    found = call(*SMALL, "--store", tmp_path / "other.sqlite", "--csv", store)
    assert (found.exit_code, store.read_bytes()) == (2, before)
    assert "is a SQLite file, such as a store of trials" in found.stderr
    assert "it is empty; it must name a file" in call(*SMALL, "--store", store, "--csv", "").stderr


@interpreted
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
def test_a_csv_that_cannot_be_written_loses_no_outcome(store):
    found = call(*SMALL, "--store", store, "--csv", "/dev/full")
    assert found.exit_code == 2
    assert "4 trials: 4 ok" in found.stdout
    assert f"/dev/full: No space left on device; the trials are in {store}" in found.stderr


@interpreted
def test_modelled_times_are_announced_as_such(store):
    result = call(*SMALL, "--store", store)
    assert "predicted by the model" in " ".join(result.stderr.split())
    assert "predicted by the model" in result.stdout
    assert "unverified" not in result.output


@interpreted
def test_modelled_times_of_other_gpus_are_said_to_be_unverified(store):
    args = [*SMALL[:-1], "a100", "--store", store]
    result = call(*args)
    assert "unverified" in result.stderr
    assert "unverified" in result.stdout
    assert json.loads(call(*args, "--json").stdout)["verified"] is False


@interpreted
@pytest.mark.parametrize("regime", ["sustained", "burst"])
def test_modelled_times_have_no_regime(regime, store):
    result = call(*SMALL, "--store", store, "--regime", regime)
    assert result.exit_code == 2
    assert "--regime: a regime needs a GPU" in result.stderr
    assert not store.exists()


@interpreted
def test_json_is_all_of_stdout_and_names_the_best(store):
    result = call(*SMALL, "--store", store, "--json")
    outcome = json.loads(result.stdout)
    assert (outcome["source"], outcome["trials"], outcome["ok"]) == ("model", 4, 4)
    assert [best["m"] for best in outcome["best"]] == [100, 128]
    for best in outcome["best"]:
        assert best["time_us"] > 0
        assert best["over_factor_1"] >= 1
        assert best["over_torch"] is None


@interpreted
def test_sweeping_again_continues(store, monkeypatch):
    assert call(*SMALL, "--store", store).exit_code == 0

    def never(self, problem, config):
        raise AssertionError("measured again")

    monkeypatch.setattr(sources.ModelSource, "error_ratio", never)
    again = call(*SMALL, "--store", store, "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["ok"] == 4


@interpreted
@pytest.mark.parametrize("ragged", ["m", "k"])
def test_sweep_predicts_groups_in_orders_over_them(ragged, store):
    result = call(
        *SMALL, "--groups", 5, "--ragged", ragged, "--orders", "largest-groups/row-major", "--store", store, "--json"
    )
    assert result.exit_code == 0, result.output
    outcome = json.loads(result.stdout)
    assert (outcome["trials"], outcome["ok"]) == (6, 6)
    for best in outcome["best"]:
        assert f"5 groups of {ragged}" in best["problem"]
        assert "groups/" in best["config"]
        assert "persistent" in best["config"]


@interpreted
def test_groups_that_are_asked_for_plain_are_illegal(store):
    result = call(*SMALL, "--groups", 5, "--plain", "--store", store)
    assert result.exit_code == 1
    assert "persistent is False; only the device knows how many tiles groups have" in result.stderr


@interpreted
def test_wrong_trials_exit_with_1(store, monkeypatch):
    monkeypatch.setattr(sources.ModelSource, "error_ratio", lambda self, problem, config: 7.0)
    result = call(*SMALL, "--store", store)
    assert result.exit_code == 1
    assert "4 trials: 4 wrong" in result.stdout
    assert "the first wrong: tile 32x32x32" in result.stdout


@interpreted
def test_where_nothing_is_legal_it_says_why(store):
    result = call(*SMALL, "--blocks", "48x32x32", "--store", store)
    assert result.exit_code == 1, result.output
    assert "the first illegal: tile 48x32x32" in result.stdout
    assert "best config" not in result.stdout
    said = "tritonmm: no config is legal, 4 of 4 because: block_m is 48; Triton needs a power of two"
    assert said in result.stderr.splitlines()


@interpreted
def test_the_commonest_reason_is_said(store):
    result = call(*SMALL, "--blocks", "32x32x8,32x48x32,96x48x32,64x48x32", "--store", store)
    assert result.exit_code == 1
    assert "8 of 16 because: block_n is 48; Triton needs a power of two" in result.stderr


@interpreted
def test_what_is_not_checked_is_said(store, tmp_path):
    hopper = [*SMALL, "--n", 256, "--kernel", "hopper", "--persistent", "--blocks", "128x256x64", "--warps", 8]
    result = call(*hopper, "--store", store, "--csv", tmp_path / "r.csv")
    assert result.exit_code == 0, result.output
    assert "4 trials: 4 ok; 4 not checked" in result.stdout
    assert "not checked: the hopper kernel does not run in Triton's interpreter" in (tmp_path / "r.csv").read_text()


@interpreted
def test_illegal_trials_are_no_failure(store):
    result = call(*SMALL, "--blocks", "32x32x32,48x32x32", "--store", store)
    assert result.exit_code == 0, result.output
    assert "8 trials: 4 ok, 4 illegal" in result.stdout


@interpreted
def test_an_interruption_says_how_to_continue(store, monkeypatch):
    real = sources.ModelSource.times
    calls = []

    def interrupted(self, problem, config):
        calls.append(config)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, problem, config)

    monkeypatch.setattr(sources.ModelSource, "times", interrupted)
    result = call(*SMALL, "--store", store)
    assert result.exit_code == 130
    assert f"2 of 4 trials are in {store}" in result.stderr
    assert "continues" in result.stderr


@interpreted
def test_repeated_configs_are_swept_once(store):
    result = call(*SMALL, "--orders", "swizzle-merge:2", "--blocks", "32x32x32,32x32x32", "--store", store, "--json")
    assert json.loads(result.stdout)["trials"] == 4


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["sweep", "--m", "0"], "'0' is not a whole number above 0"),
        (["sweep", "--m", "1,,2"], "'' is not a whole number above 0"),
        (["sweep", "--blocks", "128x128"], "as in 128x256x64"),
        (["sweep", "--orders", "zigzag"], "unknown order 'zigzag'"),
        (["sweep", "--gpu", "voodoo"], "unknown GPU 'voodoo'"),
        (["sweep", "--dtype", "fp7"], "fp7"),
        (["sweep", "--bogus"], "--bogus"),
        (["order", "zigzag"], "unknown order 'zigzag'"),
        (["order", "hilbert", "--grid", "8"], "as in 8x5"),
        (["nothing"], "nothing"),
        (["order", "hilbert", "--grid", "99999x99999"], "at most 1048576 are shown"),
        (["order", "split-merge:2147483647"], "at most 1048576 are shown"),
        (["order", "hilbert", "--grid", "2x2", "--png", "/dev/null/x.png"], "/dev/null"),
        (["explain", "1", "1", "99999999999999999999"], "below 2**31"),
        (["explain", "1", "1", "1", "--precision", "ozaki"], "precision is 'ozaki'; for bf16 it must be one of ieee"),
        (["order", "triangular:3", "--grid", "8x5"], "must be that of a square matrix, as 8x8 is"),
        (["explain", "8", "8", "8", "--groups", "8", "--batch", "2"], "Problem: batch is 2; with groups it must be 1"),
        (["layout", "swizzle<3,3,3>", "--tile", "8"], "'8' is not a tile; it must be rows x columns of elements"),
        (["layout", "swizzle<3,3>"], "spelled swizzle<b,m,s>"),
        (["layout", "SM80_16x8x16_F32BF16BF16F32_TN", "--json"], "it goes with a swizzle"),
        (["order", "hilbert", "--png", "."], "'.' is a folder"),
        (["order", "hilbert", "--grid", "2000x100", "--png", "x"], "at most 65536 can be drawn"),
        (["plot", "/dev/null"], "/dev/null"),
        (["plot", orders.__file__], "__init__.py is not a table"),
        (["plot", sys.executable], "is not UTF-8 text"),
        (["demo", "--out", "/dev/null/x"], "/dev/null"),
        (["bench", "--suite", "/dev/null"], "not a readable JSON file"),
        (["bench", "--shape", "8x8x8", "--suite", "dtypes"], "--suite: --shape is measured instead"),
        (["bench", "--shape", "8x8x8", "--family", "square"], "--family: --shape is measured instead"),
        (["bench", "--config", "tile"], "'tile' is not JSON"),
        (["tune", "--budget", "nan"], "'nan' is not a number of minutes above 0"),
        (["tune", "--budget", "inf"], "'inf' is not a number of minutes above 0"),
        (["tune", "--budget", "-3"], "'-3' is not a number of minutes above 0"),
        (["tune", "--budget", "0"], "'0' is not a number of minutes above 0"),
        (["tune", "--budget", "soon"], "'soon' is not a number of minutes above 0"),
        (["order", "hilbert", "--png", "foo.pdf"], "foo.pdf: figures are written as PNG and SVG"),
        (["tune", "--suite", "nowhere"], "no such file"),
        (["tune", "--m", "8", "--n", "8", "--k", "8", "--ragged", "k"], "--ragged: it goes with --groups"),
        (["tune", "--groups", "8"], "--groups: it goes with --m"),
        (["tune", "--m", "8", "--n", "8", "--k", "8", "--groups", "4097"], "there must be 1 to 4096"),
        pytest.param([*SMALL, "--ragged", "k"], "--ragged: it goes with --groups", marks=interpreted),
        (["tune", *TOO_LARGE, "--dry-run"], "2**63 bytes or more"),
        pytest.param(["sweep", *TOO_LARGE], "2**63 bytes or more", marks=interpreted),
        (["tune", "--scheduler", "10.0.0.1"], "'10.0.0.1' is not the address of a scheduler"),
        (["tune", "--scheduler", "tcp://10.0.0.1:65536"], "is not the address of a scheduler"),
        pytest.param([*SMALL, "--kernel", "zigzag"], "'zigzag'", marks=interpreted),
        pytest.param([*SMALL, "--store", "/"], "a folder", marks=interpreted),
    ],
    ids=lambda x: " ".join(x[:3]) if isinstance(x, list) else "",
)
def test_a_users_error_is_one_line_and_exits_with_2(args, says):
    result = call(*args)
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("tritonmm: ")
    assert result.stdout == ""


@pytest.mark.parametrize("spelling", ["swizzle-merge:3", "split-merge:3", "hilbert", "dies:3,2/swizzle-merge:3"])
def test_order_prints_when_each_tile_is_visited(spelling):
    result = call("order", spelling, "--grid", "8x5")
    assert result.exit_code == 0
    *rows, summary = result.stdout.splitlines()
    printed = [[int(i) for i in row.split()] for row in rows]
    assert [len(row) for row in printed] == [5] * 8
    order = orders.parse(spelling)
    for m, row in enumerate(printed):
        for n, i in enumerate(row):
            assert order.tile(i, 8, 5) == (m, n), f"program {i}"
    assert f"{order.launched(8, 5)} programs, {order.launched(8, 5) - 40} of them idle" in summary


def test_version_and_help():
    assert call("--version").stdout.startswith("tritonmm")
    listed = call("--help").stdout
    assert all(command in listed for command in ("sweep", "order", "doctor"))


def python(*args):
    """A fresh Python, in which nobody has asked for Triton's interpreter yet."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, *map(str, args)], env=env, capture_output=True, text=True, timeout=120)


def test_python_m_is_the_command():
    done = python("-m", "tritonmm", "--version")
    assert (done.returncode, done.stdout) == (0, f"tritonmm, version {tritonmm.__version__}\n")
    done = python("-m", "tritonmm", "explain", "0", "1", "1")
    assert (done.returncode, done.stderr) == (2, "tritonmm: Invalid value for 'M': '0' is not a whole number above 0\n")


@interpreted
def test_names_of_files_have_any_characters_and_programs_their_own_output(tmp_path, store):
    """A program's output is encoded as it would be without `tritonmm run`."""
    env = os.environ | {"PYTHONIOENCODING": "ascii:strict"}

    def tritonmm(*args):
        command = [sys.executable, "-m", "tritonmm", *map(str, args)]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)

    swept = tritonmm(*SMALL, "--store", store, "--csv", tmp_path / "n\u00e4me.csv")
    assert (swept.returncode, "n\\xe4me.csv" in swept.stdout.replace("\n", "")) == (0, True), swept.stderr
    (tmp_path / "p.py").write_text("print(chr(0xE4))")
    assert "UnicodeEncodeError" in tritonmm("run", tmp_path / "p.py").stderr


def test_warnings_are_one_line_without_a_place_in_the_code(tmp_path):
    h200 = tritonmm.gpu.spec("h200")
    (tmp_path / user_files.name(h200)).write_text("no table")
    env = os.environ | {"TRITONMM_TABLES": str(tmp_path)}
    command = [sys.executable, "-m", "tritonmm", "explain", "2049", "8192", "3584", "--gpu", "h200"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert re.fullmatch(r"tritonmm: tuned table not used: .*\n", done.stderr)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    found = call("doctor")
    assert (found.exit_code, found.stderr) == (2, "tritonmm: platformdirs is not installed; tritonmm needs it\n")


def test_help_waits_for_nothing_slow():
    code = (
        "import sys; from click.testing import CliRunner; from tritonmm.cli import main\n"
        "for args in ([], *([name] for name in main.commands)):\n"
        "    assert CliRunner().invoke(main, [*args, '--help']).exit_code == 0\n"
        "assert CliRunner().invoke(main, ['--version']).exit_code == 0\n"
        "print(sorted({'torch', 'triton', 'numpy', 'rich'} & set(sys.modules)))"
    )
    done = python("-c", code)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize("name", main.commands)
def test_help_says_each_default_once_and_has_no_holes(name):
    for option in main.commands[name].params:
        if isinstance(option, click.Option):
            said = option.get_help_record(click.Context(main.commands[name], show_default=True))
            assert said is None or said[1].count("[default:") <= 1, said
    assert not re.search(r"\S {2,}\S", call(name, "--help").stdout.partition("Options:")[0])


@pytest.mark.parametrize("name", ["explain", "bench", "sweep", "tune"])
def test_help_names_common_dtypes(name):
    (option,) = (each for each in main.commands[name].params if each.name == "dtype")
    *named, rest = option.help.rpartition(": ")[2].split(", ")
    assert rest == "...; a wrong name lists all."
    assert len(named) > 5
    assert set(named) <= set(KINDS)


def test_help_names_orders_of_groups():
    assert "groups/ORDER" in call("order", "--help").stdout


def test_help_fits_a_screen():
    lines = call("--help").stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", main.commands)
def test_every_command_has_examples_that_parse(name):
    command = main.commands[name]
    examples = [line.strip() for line in command.epilog.splitlines() if line.strip().startswith("tritonmm ")]
    assert 1 <= len(examples) <= 3
    for example in examples:
        tritonmm, own, *args = shlex.split(example)
        assert (tritonmm, own) == ("tritonmm", name)
        if name != "plot":  # whose file has to be there
            command.make_context(name, args)


@interpreted
def test_demo_as_json(tmp_path, monkeypatch):
    monkeypatch.setattr("tritonmm.cli.tour.FACTORS", (1, 8))
    result = call("demo", "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["trials"], found["ok"]) == (12, 12)
    assert 0 < found["largest_error"] <= 1
    assert {file.name for file in tmp_path.iterdir()} == {
        "sweep.sqlite", "sweep.csv",
        *(f"{name}.{kind}" for name in ("visit_order", "factors", "comparison") for kind in ("png", "svg")),
    }  # fmt: skip
    assert all(os.path.exists(path) for path in found["figures"])
    assert "over the swizzle factor" in result.stderr


@pytest.mark.parametrize("spelling", ["swizzle-merge:3", "split-merge:3", "dies:2/hilbert"])
def test_order_as_json(spelling, tmp_path):
    found = json.loads(call("order", spelling, "--grid", "4x3", "--json").stdout)
    order = orders.parse(spelling)
    assert found["tiles"] == [list(t) if (t := order.tile(i, 4, 3)) else None for i in range(order.launched(4, 3))]
    assert (found["launched"], found["overflow"]) == (order.launched(4, 3), order.launched(4, 3) - 12)


@pytest.mark.parametrize(("m", "tuned"), [(2049, True), (2050, False)])
def test_explain_as_json_says_what_the_text_says(m, tuned):
    """The table that ships for the H200 has the one product and not the other."""
    args = "explain", m, "8192", "3584", "--layout", "nt", "--gpu", "h200"
    found = json.loads(call(*args, "--json").stdout)
    text = call(*args).stdout
    assert (found["gpu"], found["problem"]["m"], found["is_measured"]) == ("h200", m, tuned)
    assert str(tritonmm.Config.from_json(json.dumps(found["config"]))) in text
    assert f"{found['us']:.1f} us" in text


def test_explain_estimates_exact_int8_products_for_a_named_gpu():
    args = "explain", 4096, 4096, 4096, "--dtype", "fp64", "--gpu", "rtx4090", "--precision"
    text = call(*args, "ozaki").stdout
    assert "15 exact int8 products" in text
    assert "predicted (unverified on this GPU)" in text
    found = json.loads(call(*args, "ozaki:14", "--json").stdout)
    assert (found["problem"]["precision"], found["gpu"]) == ("ozaki:14", "rtx4090")


def test_layout_as_json():
    found = json.loads(call("layout", "swizzle<3,3,3>", "--json").stdout)
    assert found["ways"] == {"column": {"plain": 8, "swizzled": 1}, "row": {"plain": 1, "swizzled": 1}}


def test_plot_as_json(tmp_path):
    pd.DataFrame([trial(1000, "hilbert", 128)]).to_csv(tmp_path / "x.csv")
    result = call("plot", tmp_path / "x.csv", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["files"], list(found["left_out"])) == ([], ["factors", "comparison", "validation", "overflow"])


def test_plot_says_once_what_no_figure_can_do_without(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    result = call("plot", tmp_path / "x.csv")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"tritonmm: {tmp_path / 'x.csv'}: no results of a sweep: they lack m, n, k")
    assert len(result.stderr.splitlines()) == 1


def test_the_command_asks_for_the_interpreter_itself(store):
    done = python("-m", "tritonmm", *SMALL, "--store", store, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] == 4
