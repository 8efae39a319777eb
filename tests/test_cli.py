"""The command: what it prints, writes and exits with."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

import tritonmm
from tritonmm import orders
from tritonmm.autotune import sources
from tritonmm.autotune.trial import COLUMNS
from tritonmm.cli import main
from tritonmm.plan import INTERPRETED

interpreted = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled for the GPU")

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
def test_modelled_times_are_announced_as_such(store):
    result = call(*SMALL, "--store", store)
    assert "predicted by the model" in " ".join(result.stderr.split())
    assert "predicted by the model" in result.stdout


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
def test_wrong_trials_exit_with_1(store, monkeypatch):
    monkeypatch.setattr(sources.ModelSource, "error_ratio", lambda self, problem, config: 7.0)
    result = call(*SMALL, "--store", store)
    assert result.exit_code == 1
    assert "4 trials: 4 wrong" in result.stdout
    assert "first that is wrong or failed: tile 32x32x32" in result.stdout


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


@pytest.mark.parametrize("spelling", ["swizzle-merge:3", "split-merge:3", "hilbert"])
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
    assert f"{order.launched(8, 5)} programs, {order.launched(8, 5) - 40} of them overflow" in summary


def test_doctor_names_versions_and_places():
    result = call("doctor")
    assert result.exit_code == 0
    lines = [line.split(maxsplit=1)[0] for line in result.stdout.splitlines()]
    assert {"tritonmm", "torch", "gpu", "sweep"} <= set(lines)
    assert "sweep.sqlite" in result.stdout


def test_version_and_help():
    assert call("--version").stdout.startswith("tritonmm")
    listed = call("--help").stdout
    assert all(command in listed for command in ("sweep", "order", "doctor"))


def python(*args):
    """A fresh Python, in which nobody has asked for Triton's interpreter yet."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, *map(str, args)], env=env, capture_output=True, text=True, timeout=120)


def test_help_waits_for_nothing_slow():
    # The package's own __init__ is left out: what it imports is its affair.
    code = (
        "import sys, types\n"
        "package = sys.modules['tritonmm'] = types.ModuleType('tritonmm')\n"
        f"package.__path__ = [{os.path.dirname(tritonmm.__file__)!r}]\n"
        "import tritonmm.cli\n"
        "print(sorted({'torch', 'triton', 'numpy', 'rich'} & set(sys.modules)))"
    )
    done = python("-c", code)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_command_asks_for_the_interpreter_itself(store):
    done = python("-m", "tritonmm.cli", *SMALL, "--store", store, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] == 4
