"""`tritonmm tune --quick`: what it fits, writes and says, on a GPU that is a model with other constants."""

import json
import os
import sys
from pathlib import Path

import modelled_gpu
import pytest
from click.testing import CliRunner
from modelled_gpu import H100
from runs import Runs

from tritonmm import tuned
from tritonmm.cli import main
from tritonmm.cli import tune as command
from tritonmm.model import constants, constants_file
from tritonmm.tuned import table

SIZES = "1000,4096"


class Quick(Runs):
    """Runs of the command in processes of their own, with `modelled_gpu.Modelled` for a GPU."""

    def __init__(self, folder: Path):
        pytest.importorskip("distributed")
        self.folder = folder
        program = "import modelled_gpu; modelled_gpu.main()"  # a file would be imported by each process of Dask
        tests = str(Path(modelled_gpu.__file__).parent)
        env = os.environ | {"PYTHONPATH": tests, "TRITONMM_TABLES": str(folder / "tables")}
        command = [sys.executable, "-c", program, "tune", "--quick", "--m", SIZES, "--n", "4096", "--k", "2048"]
        super().__init__([*command, "--search", "model", "--store", folder / "s.sqlite"], env, 300)

    @property
    def constants(self) -> Path:
        return self.folder / "tables" / "h100-constants.json"

    def run(self, *options, **env) -> tuple[dict, str]:
        code, out, err = self.finish(self.start("--json", *options, **env))
        assert code == 0, err
        return json.loads(out), err


@pytest.fixture
def quick(tmp_path):
    return Quick(tmp_path)


@pytest.mark.long
def test_it_fits_writes_tunes_and_says_what_was_gained(quick):
    outcome, err = quick.run()
    found = outcome["quick"]
    assert found["after"]["error"] < 0.6 * found["before"]["error"], found
    for name in ("launch", "share of hopper"):
        assert found["scales"][name] == pytest.approx(modelled_gpu.WRONG[name], rel=0.2), found["scales"]
    assert found["l2"].startswith("corrected by "), found["l2"]
    assert found["gains"]["gemms"] == 2
    assert found["gains"]["table"] >= max(found["gains"]["before"], found["gains"]["fitted"])
    assert set(found["seconds"]) == {"sweep", "fit", "compare", "all"}
    assert f"{found['held_out']} GEMMs that were not fitted: choices reach" in err

    record = constants_file.read(quick.constants, H100, constants.shipped(H100))
    assert record.gpu == "Test GPU"
    assert "tritonmm tune --quick" in record.made["quick"]
    assert record.l2.capacity == pytest.approx(modelled_gpu.record().l2.capacity, rel=0.1)
    rows, wrong = table.read(quick.folder / "tables" / "h100.json", H100)
    assert (sorted(row.problem.m for row in rows), wrong) == ([1000, 4096], [])


@pytest.mark.long
def test_without_counters_it_says_so_and_fits_the_rest(quick):
    code, out, err = quick.finish(quick.start(MODELLED_COUNTERS="none", MODELLED_ROUNDS="2"))
    assert code == 0, err
    assert "L2 constants: kept, not counted: no profiler" in err
    record = constants_file.read(quick.constants, H100, constants.shipped(H100))
    assert record.l2 == constants.shipped(H100).l2
    assert record.shared.launch_us > 1.1 * constants.shipped(H100).shared.launch_us
    last = out.splitlines()[-3:]
    assert "geometric mean of 2 GEMMs: with the constants that ship " in last[0]
    assert last[1] == f"constants: {quick.constants}"
    assert " min, of which " in last[2]


@pytest.mark.long
def test_constants_that_are_right_are_kept_and_a_former_file_goes(quick):
    quick.constants.parent.mkdir()
    quick.constants.write_text("{")
    outcome, err = quick.run(MODELLED_AS="shipped", MODELLED_ROUNDS="2")
    assert outcome["quick"]["constants"] is None
    assert outcome["quick"]["gains"]["before"] == outcome["quick"]["gains"]["fitted"]
    assert "constants: those that ship are kept" in err
    assert not quick.constants.exists()


@pytest.mark.long
def test_two_at_once_share_the_sweep_and_leave_a_file_that_reads_and_a_third_goes_on_from_there(quick):
    both = [quick.start("--json", MODELLED_ROUNDS="1") for _ in range(2)]
    outcomes = []
    for code, out, err in map(quick.finish, both):
        assert code == 0, err
        outcomes.append(json.loads(out))
    assert len({json.dumps(outcome["quick"]["scales"]) for outcome in outcomes}) == 1
    assert constants_file.read(quick.constants, H100, constants.shipped(H100)) is not None
    assert list(quick.constants.parent.glob("*.tmp")) == []

    before = quick.constants.read_text()
    again, _ = quick.run(MODELLED_ROUNDS="1")
    assert again["measured"] == 0
    assert quick.constants.read_text() == before
    assert again["quick"]["gains"] == outcomes[0]["quick"]["gains"] == outcomes[1]["quick"]["gains"]


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_measured(quick):
    (quick.folder / "tables").touch()
    code, out, err = quick.finish(quick.start())
    assert code == 2
    assert out == ""
    assert "tables" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert "trials" not in err


def call(*args):
    return CliRunner().invoke(main, ["tune", "--quick", *map(str, args)])


def test_a_dry_run_says_what_comes_first_and_starts_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "_workers", lambda *_: pytest.fail("something was started"))
    result = call("--m", "100", "--n", "4096", "--k", "4096", "--dry-run", "--store", tmp_path / "s.sqlite")
    assert result.exit_code == 0, result.output
    assert "trials to fit constants, and a comparison at the end: about" in result.stdout.splitlines()[0]
    assert list(tmp_path.iterdir()) == []
    found = json.loads(call("--dry-run", "--json").stdout)
    assert 300 <= found["quick"]["trials"] <= 600
    assert found["minutes"] + found["quick"]["minutes"] <= 10.1


def test_the_workers_of_a_scheduler_are_not_this_machine():
    result = call("--scheduler", "tls://127.0.0.1:9")
    assert result.exit_code == 2
    assert "--scheduler: --quick fits and counts on this machine" in result.stderr


def test_the_table_is_beside_the_constants(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITONMM_TABLES", str(tmp_path))
    assert tuned.user_path(H100).parent == constants_file.path(H100).parent == tmp_path
