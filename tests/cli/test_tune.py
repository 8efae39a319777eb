"""`tritonmm tune`: what survives the end of the command, and what it says."""

import json
import os
import signal
import sqlite3
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import faults
import pytest
from click.testing import CliRunner
from runs import Runs

from tritonmm.autotune.measuring import space
from tritonmm.autotune.measuring.trial import Trial
from tritonmm.autotune.tuner import report
from tritonmm.autotune.tuner.store import Store
from tritonmm.cli import main
from tritonmm.cli import tune as command
from tritonmm.config import Config

CONFIGS = 20
SIZES = (100, 200, 300)
RUNGS = (("short", CONFIGS), ("burst", 4))


class Tuner(Runs):
    """Runs of the command on one store, in processes of their own, with `faults.Faulty` for a GPU."""

    def __init__(self, folder: Path):
        pytest.importorskip("distributed")
        self.store, self.log = folder / "s.sqlite", folder / "log"
        self.table = folder / "log.table"
        program = "import faults; faults.main()"  # a file would be imported by each process of Dask
        tests = str(Path(faults.__file__).parent)
        env = os.environ | {
            "PYTHONPATH": tests, "FAULTS_LOG": str(self.log), "FAULTS_CONFIGS": str(CONFIGS), "COLUMNS": "200",
        }  # fmt: skip
        sizes = ",".join(map(str, SIZES))
        command = [sys.executable, "-c", program, "tune", "--m", sizes, "--n", "256", "--k", "128"]
        super().__init__([*command, "--search", "exhaustive", "--store", self.store, "--json"], env, 120)

    def ran(self) -> list[tuple[str, ...]]:
        """The trials that ran, (m, number, regime), in that order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [tuple(line.split()[:3]) for line in lines]

    def kept(self) -> int:
        with closing(sqlite3.connect(self.store)) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            return db.execute("SELECT count(*) FROM trials").fetchone()[0]

    def processes(self) -> list[str]:
        """What still runs of it, told by its environment."""
        mark = f"FAULTS_LOG={self.log}\0".encode()
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and mark in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
            except OSError:
                pass  # it has ended, or is another user's
        return found


@pytest.fixture
def tuner(tmp_path):
    return Tuner(tmp_path)


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


ALL = len(SIZES) * sum(count for _, count in RUNGS)


def test_a_killed_coordinator_loses_what_ran_and_nothing_else(tuner):
    first = tuner.start()
    until(lambda: len(tuner.ran()) >= 30)
    first.kill()
    first.communicate()
    until(lambda: not tuner.processes(), 30)
    ran, kept = tuner.ran(), tuner.kept()
    assert 0 < kept < ALL
    assert len(ran) - kept <= 3  # one that ran, and what was on its way

    code, out, err = tuner.finish(tuner.start())
    assert code == 0, err
    assert json.loads(out)["ok"] == tuner.kept() == ALL
    again = Counter(tuner.ran())
    assert len(again) == ALL
    assert sum(again.values()) - ALL <= len(ran) - kept
    assert max(again.values()) <= 2


def test_ctrl_c_says_how_to_go_on(tuner):
    process = tuner.start()
    until(lambda: len(tuner.ran()) >= 20)
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = tuner.finish(process)
    said = err.strip().splitlines()
    assert (code, out) == (130, ""), err
    assert "Traceback" not in err
    assert f"{tuner.kept()} trials are in {tuner.store}, and this goes on: tritonmm tune --m 100,200" in said[-1]
    until(lambda: not tuner.processes(), 30)


def test_two_tuners_share_a_store(tuner):
    both = [tuner.start(), tuner.start()]
    for code, out, err in map(tuner.finish, both):
        assert code == 0, err
        assert json.loads(out)["ok"] == ALL
    assert tuner.kept() == ALL
    assert max(Counter(tuner.ran()).values()) == 1


def test_winners_are_published_and_trials_exported(tuner, tmp_path):
    code, out, err = tuner.finish(tuner.start("--csv", tmp_path / "t.csv"))
    assert code == 0, err
    outcome = json.loads(out)
    assert outcome["measured"] == ALL
    assert outcome["measured_a_minute"] == pytest.approx(ALL / outcome["minutes"])
    # The lower its number, the faster a config: 10 us and its number, beside 25.
    assert json.loads(tuner.table.read_text()) == [[m, 1, 11.0, 25.0] for m in SIZES]
    assert outcome["table"] == str(tuner.table)
    assert [found["over_torch"] for found in outcome["problems"]] == [25 / 11] * len(SIZES)
    rows = [line for line in (tmp_path / "t.csv").read_text().splitlines() if not line.startswith("#")]
    assert len(rows) == 1 + ALL
    assert rows[0].endswith(",regime")


def test_a_csv_that_cannot_be_written_loses_no_trials(tuner):
    code, _, err = tuner.finish(tuner.start("--csv", "/dev/full"))
    assert code == 2
    assert f"No space left on device; {ALL} trials are in {tuner.store}" in err
    assert tuner.kept() == ALL
    assert tuner.table.exists()


def call(*args):
    return CliRunner().invoke(main, ["tune", *map(str, args)])


def fails(*_, **__):
    raise AssertionError("something was started")


def test_what_is_no_terminal_gets_a_line_now_and_then(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(report.time, "monotonic", lambda: now[0])
    problem = space.problem(100, 256, 128)
    with report.Tuning(100) as progress:
        for number in range(50):
            now[0] += 0.5
            trial = Trial(problem, Config(), "gpu", "quick", "ok", "", time_us=10.0 + number % 7, torch_us=20.0)
            progress.count(trial, new=True)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"{done} of 100 trials, 2.0/s, {left} min left, best 2.00x torch at {problem}"
        for done, left in ((20, 1), (40, 0))
    ]


def test_a_dry_run_starts_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "_workers", fails)
    result = call("--m", "100,2049", "--n", "4096", "--k", "4096", "--dry-run", "--store", tmp_path / "s.sqlite")
    assert result.exit_code == 0, result.output
    first, second, last = result.stdout.splitlines()
    assert first.startswith("100x4096x4096 nn bf16")
    assert "96 quick, then 16 short, then 4 burst of " in second
    assert "at most 232 trials of 2 problems, about 1 min on 1 x" in last
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_groups_says_the_number_of_tokens_that_is_measured():
    result = call(
        "--m", "5001,5100,512", "--n", "1536", "--k", "2048", "--layout", "nt", "--groups", "128", "--dry-run"
    )
    assert result.exit_code == 0, result.output
    first, second, last = result.stdout.splitlines()
    assert first.startswith("5120x1536x2048 nt bf16 128 groups of m")
    assert second.startswith("512x1536x2048 nt bf16 128 groups of m")
    assert "of 2 problems" in last


def test_groups_are_tuned_from_their_suite_to_the_table(tmp_path):
    """Their problems reach the workers and the store as they are."""
    tuner = Tuner(tmp_path)
    entries = [
        {"family": "moe", "m": m, "n": 64, "k": 96, "batch": 1, "layout": "nt", "dtype": "bf16"}
        | {"ragged": "m", "groups": 3, "sizes": sizes}
        for m, sizes in ((100, "even"), (101, "zipf"), (100, "one-hot"))
    ]
    (tmp_path / "moe.json").write_text(json.dumps(entries))
    tuner.command = [*tuner.command[:4], "--suite", tmp_path / "moe.json", *tuner.command[-5:]]
    code, out, err = tuner.finish(tuner.start())
    assert code == 0, err
    assert "groups have random sizes" in err
    (found,) = json.loads(out)["problems"]
    assert found["problem"] == "104x64x96 nt bf16 3 groups of m"
    assert json.loads(tuner.table.read_text()) == [[104, 1, 11.0, 25.0]]


def test_a_dry_run_counts_what_fits_the_budget():
    def minutes(*budget):
        return json.loads(call("--dry-run", "--json", *budget).stdout)["minutes"]

    assert minutes("--budget", "25") <= 25 < minutes()


def test_a_dry_run_says_for_which_products_nothing_is_legal():
    sizes = ["--m", "64,2147483647", "--n", "2147483647", "--k", "64"]
    possible, impossible, _ = call("--dry-run", *sizes).stdout.splitlines()
    assert "configs, from" in possible
    assert impossible.endswith(" nothing is legal")
    found = json.loads(call("--dry-run", "--json", *sizes).stdout)
    assert [bool(each["first"]) for each in found["problems"]] == [True, False]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--suite", "nowhere.json"], "no such file"),
        (["--m", "5"], "--m, --n and --k go together"),
        (["--m", "5", "--n", "5", "--k", "5", "--suite", "public"], "--suite"),
        (["--layout", "nn"], "it goes with --m"),
        (["--search", "magic"], "magic"),
        (["--budget", "0"], "0"),
        (["--scheduler", "tcp://127.0.0.1:9", "--gpus", "2"], "--gpus"),
    ],
    ids=lambda x: " ".join(x[:3]) if isinstance(x, list) else "",
)
def test_a_users_error_is_one_line(args, says):
    pytest.importorskip("distributed")
    result = call(*args)
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_without_a_gpu_it_says_what_it_needs(monkeypatch, tmp_path):
    pytest.importorskip("distributed")
    monkeypatch.setattr(command, "_visible", list)
    result = call("--store", tmp_path / "s.sqlite")
    assert result.exit_code == 2
    assert "needs a GPU, or --scheduler" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "missing"), [([], "distributed"), ([], "cryptography"), (["--parquet", "t"], "pyarrow")], ids=str
)
def test_a_missing_extra_is_named(monkeypatch, args, missing):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found(name))
    result = call(*args)
    assert result.exit_code == 2
    assert f"needs {missing}: pip install" in result.stderr


@pytest.mark.parametrize(
    ("given", "address", "warned"),
    [
        ("10.0.0.1:8786", "tls://10.0.0.1:8786", False),
        ("tls://10.0.0.1:8786", "tls://10.0.0.1:8786", False),
        ("tcp://10.0.0.1:8786", "tcp://10.0.0.1:8786", True),
    ],
    ids=["no-scheme", "tls", "tcp"],
)
def test_a_scheduler_is_encrypted_unless_it_is_said_to_be_plain(monkeypatch, tmp_path, given, address, warned):
    pytest.importorskip("distributed")
    from tritonmm.autotune.tuner import cluster

    def remote(asked):
        raise OSError(f"asked {asked}")

    monkeypatch.setattr(cluster, "remote", remote)
    result = call("--scheduler", given, "--store", tmp_path / "s.sqlite")
    *before, last = result.stderr.strip().splitlines()
    assert (result.exit_code, last) == (2, f"tritonmm: asked {address}")
    assert before == [f"tritonmm: {given} is not encrypted: whoever can reach it can run code as you"] * warned


def test_a_scheduler_without_certificates_for_it_is_one_line(tmp_path):
    pytest.importorskip("distributed")
    result = call("--scheduler", "tls://127.0.0.1:9", "--store", tmp_path / "s.sqlite")
    assert result.exit_code == 2
    assert result.stderr.startswith("tritonmm: tls://127.0.0.1:9: TLS needs certificates")
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_read_only_store_is_said_before_anything_starts(monkeypatch, tmp_path):
    pytest.importorskip("distributed")
    Store(tmp_path / "s.sqlite").close()
    real = sqlite3.connect

    def read_only(path, uri=False, **options):
        return real(path if uri else f"file:{path}?mode=ro", uri=True, **options)

    class Workers:
        __enter__ = fails
        __exit__ = fails

    monkeypatch.setattr(sqlite3, "connect", read_only)
    monkeypatch.setattr(command, "_workers", lambda *_: (Workers(), None))
    result = call("--store", tmp_path / "s.sqlite")
    assert result.exit_code == 2
    assert "s.sqlite: cannot be written: attempt to write a readonly database" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
