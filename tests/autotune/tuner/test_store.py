"""The store of trials: what survives, what is refused, and the CSV that comes out."""

import csv
import dataclasses
import hashlib
import io
import math
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from trials import CONFIG, HERE, PROBLEM, found, trial

from tritonmm import orders
from tritonmm.autotune.measuring import space
from tritonmm.autotune.measuring.trial import COLUMNS, Counted, Trial, problem_json, problem_of
from tritonmm.autotune.tuner import store as store_module
from tritonmm.autotune.tuner.store import APPLICATION, SCHEMA, Store, StoreError, write_csv, write_parquet
from tritonmm.config import Config
from tritonmm.problem import Epilogue, Problem

HEADER = (
    "m,n,k,batch,layout,dtype,kernel,block_m,block_n,block_k,num_stages,num_warps,split_k,persistent,order,source,"
    "status,time_us,torch_us,tflops,dram_read_bytes,dram_write_bytes,l2_read_bytes,hit_rate,traffic_source,"
    "error_ratio,message,split_tail,cluster,repack,"
    "counted_us,counted_kernels,counted_dram_read_bytes,counted_dram_write_bytes,counted_l2_read_bytes,"
    "counted_fabric_bytes,counted_lookups,counted_hits,counted_misses,counted_hit_rate,ragged,groups"
)
COUNTED = Counted(
    us=51.25, kernels=2, dram_read_bytes=2**40, dram_write_bytes=7, l2_read_bytes=2**41, fabric_bytes=2**39,
    lookups=2**37, hits=2**36, misses=2**36,
)  # fmt: skip


def digest(path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "kept",
    [
        trial(),
        trial(source="model", regime="none", torch_us=None),
        Trial(PROBLEM, CONFIG, "gpu", "burst", "illegal", "2026-11-20T10:00:00+00:00", message="too big"),
        trial(status="wrong", time_us=None, torch_us=None, error_ratio=math.inf),
        trial(counted=COUNTED),
    ],
    ids=["ok", "model", "illegal", "poison", "counted"],
)
def test_a_trial_comes_back_as_it_was(tmp_path, kept):
    with Store(tmp_path / "s.sqlite") as store:
        store.add(kept, HERE)
    with Store(tmp_path / "s.sqlite") as store:
        assert found(store, kept) == kept


@pytest.mark.parametrize(
    ("other", "environment"),
    [
        (trial(problem=space.problem(1001, 4096, 4096)), HERE),
        (trial(problem=space.problem(1000, 4096, 4096, layout="nn")), HERE),
        (trial(config=Config(order=orders.SwizzleMerge(16, 8))), HERE),
        (trial(source="model"), HERE),
        (trial(regime="sustained"), HERE),
        (trial(), dataclasses.replace(HERE, triton="3.6")),
        (trial(), dataclasses.replace(HERE, code="abcdef")),
    ],
    ids=["m", "layout", "order", "source", "regime", "triton", "edited"],
)
def test_whatever_decides_a_time_is_part_of_the_key(tmp_path, other, environment):
    with Store(tmp_path / "s.sqlite") as store:
        store.add(trial(), HERE)
        assert found(store, other, environment) is None


def test_the_date_and_the_commit_are_no_part_of_the_key(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        store.add(trial(), HERE)
        assert found(store, trial(), dataclasses.replace(HERE, date="2027-01-01", commit="abc+1234")) == trial()


def test_a_trial_survives_json():
    inexact = trial(error_ratio=math.inf, problem=Problem.dense(7, 8, 9, epilogue=Epilogue(bias=True)))
    assert Trial.from_json(inexact.to_json()) == inexact
    assert Trial.from_json(trial(counted=COUNTED).to_json()) == trial(counted=COUNTED)


def test_the_first_measurement_stays(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        store.add(trial(), HERE)
        store.add(trial(time_us=1.0), HERE)
        assert len(store) == 1
        assert found(store, trial()).time_us == 50.0


def test_counters_join_a_trial_that_is_there_and_no_other(tmp_path):
    other = trial(config=Config())
    with Store(tmp_path / "s.sqlite") as store:
        for kept in (trial(), trial(regime="sustained"), other):
            store.add(kept, HERE)
        store.add_counted(PROBLEM, CONFIG, HERE, COUNTED)
    with Store(tmp_path / "s.sqlite") as store:
        assert found(store, trial()) == trial(counted=COUNTED)
        assert found(store, trial(regime="sustained")).counted == COUNTED, "counters do not depend on the regime"
        assert found(store, other) == other
        assert len(store) == 3


def test_what_was_counted_first_stays(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        store.add(trial(), HERE)
        store.add_counted(PROBLEM, CONFIG, HERE, COUNTED)
        store.add_counted(PROBLEM, CONFIG, HERE, dataclasses.replace(COUNTED, us=1.0))
        assert found(store, trial()).counted == COUNTED


def test_counters_of_another_environment_are_not_joined(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        store.add(trial(), HERE)
        store.add_counted(PROBLEM, CONFIG, dataclasses.replace(HERE, code="def"), COUNTED)
        assert found(store, trial()).counted is None


SCHEMA_1 = """
CREATE TABLE environments (fingerprint TEXT PRIMARY KEY, description TEXT NOT NULL);
CREATE TABLE trials (
    problem TEXT NOT NULL, config TEXT NOT NULL, environment TEXT NOT NULL REFERENCES environments (fingerprint),
    source TEXT NOT NULL, regime TEXT NOT NULL,
    status, measured, time_us, torch_us, dram_read_bytes, dram_write_bytes, l2_read_bytes, hit_rate, traffic_source,
    error_ratio, message,
    UNIQUE (problem, config, environment, source, regime)
);
PRAGMA application_id = 0x746D6D31;
PRAGMA user_version = 1;
"""
"""The tables as the first release made them."""


def of_schema_1(path) -> list[Trial]:
    """A store of the first schema, and the trials in it."""
    trials = [trial(), trial(regime="sustained", time_us=60.0), trial(status="wrong", time_us=None, torch_us=None)]
    trials[2] = dataclasses.replace(trials[2], problem=space.problem(7, 8, 9), message="so wrong")
    with closing(sqlite3.connect(path)) as db:
        db.executescript(SCHEMA_1)
        description = '{"gpu": "H200"}'
        db.execute("INSERT INTO environments VALUES (?, ?)", (HERE.fingerprint(), description))
        for t in trials:
            key = problem_json(t.problem), t.config.to_json(), HERE.fingerprint(), t.source, t.regime
            values = (
                *(t.status, t.measured, t.time_us, t.torch_us, t.dram_read_bytes, t.dram_write_bytes, t.l2_read_bytes),
                *(t.hit_rate, t.traffic_source, t.error_ratio, t.message),
            )
            db.execute(f"INSERT INTO trials VALUES ({', '.join('?' * 16)})", (*key, *values))
        db.commit()
    return trials


def rows_of(path, table) -> list:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()


def test_an_older_store_is_migrated_in_place_and_loses_nothing(tmp_path):
    path = tmp_path / "s.sqlite"
    trials = of_schema_1(path)
    before = {table: rows_of(path, table) for table in ("environments", "trials")}
    with Store(path) as store:
        assert [found(store, t) for t in trials] == trials
        store.add_counted(PROBLEM, CONFIG, HERE, COUNTED)
        store.add(trial(config=Config()), HERE)
    with Store(path) as store:
        assert found(store, trials[0]) == dataclasses.replace(trials[0], counted=COUNTED)
        assert found(store, trial(config=Config())) == trial(config=Config())
    assert {table: rows_of(path, table)[: len(rows)] for table, rows in before.items()} == before
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA,)


def test_two_processes_may_migrate_a_file_at_once(tmp_path, monkeypatch):
    path = tmp_path / "s.sqlite"
    trials = of_schema_1(path)
    looked = store_module.is_current_store

    def meanwhile(asked):
        current = looked(asked)
        monkeypatch.setattr(store_module, "is_current_store", looked)
        Store(asked).close()  # the other process migrates between our look and our migration
        return current

    monkeypatch.setattr(store_module, "is_current_store", meanwhile)
    with Store(path) as store:
        assert [found(store, t) for t in trials] == trials


def test_a_problem_comes_back_from_its_spelling():
    asked = dataclasses.replace(space.problem(7, 8, 9, layout="tn", batch=2), epilogue=Epilogue(bias=True))
    assert problem_of(problem_json(asked)) == asked
    grouped = space.problem(7, 8, 9, ragged="k", groups=3)
    assert problem_of(problem_json(grouped)) == grouped


def test_two_processes_may_share_a_file(tmp_path):
    with Store(tmp_path / "s.sqlite") as one, Store(tmp_path / "s.sqlite") as two:
        one.add(trial(), HERE)
        two.add(trial(regime="sustained"), HERE)
        assert len(one) == len(two) == 2


def test_missing_folders_are_made(tmp_path):
    with Store(tmp_path / "new" / "folder" / "s.sqlite") as store:
        assert len(store) == 0


def test_an_empty_file_becomes_a_store(tmp_path):
    (tmp_path / "s.sqlite").touch()
    with Store(tmp_path / "s.sqlite") as store:
        store.add(trial(), HERE)
        assert len(store) == 1


def test_a_store_marks_itself(tmp_path):
    Store(tmp_path / "s.sqlite").close()
    with closing(sqlite3.connect(tmp_path / "s.sqlite")) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION,)
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_table_order_cannot_be_stored(tmp_path):
    table = Config(order=orders.Table([[0, 0]]))
    with Store(tmp_path / "s.sqlite") as store, pytest.raises(ValueError, match="table"):
        store.find(PROBLEM, table, HERE, "gpu", "burst")


def not_a_database(path):
    path.write_text("m,n,k\n1,2,3\n" * 100)


def of_another_program(path):
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE trials (problem TEXT)")
        db.commit()


def of_another_program_versioned(path):
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA}")
        db.commit()


def of_a_newer_tritonmm(path):
    Store(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
        db.commit()


def damaged(path):
    with Store(path) as store:
        for m in range(1, 300):
            store.add(trial(problem=space.problem(m, 16, 16)), HERE)
    pages = path.read_bytes()
    middle = len(pages) // 8192 * 4096
    path.write_bytes(pages[:middle] + b"\xa5" * 8192 + pages[middle + 8192 :])


def cut_off(path):
    with Store(path) as store:
        for m in range(1, 100):
            store.add(trial(problem=space.problem(m, 16, 16)), HERE)
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (not_a_database, "not a readable SQLite file"),
        (of_another_program, "another program"),
        (of_another_program_versioned, "another program"),
        (of_a_newer_tritonmm, f"newer tritonmm \\(schema {SCHEMA + 1}"),
        (damaged, "damaged|not a readable SQLite file"),
        (cut_off, "damaged|not a readable SQLite file"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_file_that_is_no_store_is_refused_untouched(tmp_path, spoil, says):
    path = tmp_path / "trials.sqlite"
    spoil(path)
    before = digest(path)
    with pytest.raises(StoreError, match=says) as error:
        Store(path)
    assert str(path) in str(error.value)
    assert digest(path) == before


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(StoreError, match="a folder"):
        Store(tmp_path)


def test_a_closed_store_says_which_file_could_not_be_written(tmp_path):
    store = Store(tmp_path / "s.sqlite")
    store.close()
    with pytest.raises(StoreError, match=r"s\.sqlite.*could not be written"):
        store.add(trial(), HERE)


def lines_of(path) -> tuple[list[str], list[dict[str, str]]]:
    lines = path.read_text().splitlines(keepends=True)
    comments = [line.strip() for line in lines if line.startswith("#")]
    assert lines[len(comments)].strip() == HEADER
    return comments, list(csv.DictReader(io.StringIO("".join(lines[len(comments) :]))))


def test_csv_begins_with_the_environment(tmp_path):
    write_csv(tmp_path / "r.csv", [trial()], dataclasses.replace(HERE, driver=""))
    comments, _ = lines_of(tmp_path / "r.csv")
    assert comments == [
        "# gpu: H200",
        "# driver: none",
        "# cuda: 13.0",
        "# torch: 2.15",
        "# triton: 3.9",
        "# tritonmm: 0.1",
        "# commit: abc",
        "# date: 2026-11-20",
        "# code: none",
        "# source: gpu",
        "# regime: burst",
    ]


def test_csv_dates_are_the_trials_own(tmp_path):
    later = trial(measured="2026-11-23T10:00:00+00:00", problem=space.problem(7, 8, 9))
    write_csv(tmp_path / "r.csv", [later, trial()], dataclasses.replace(HERE, date="2027-01-01"))
    comments, _ = lines_of(tmp_path / "r.csv")
    assert "# date: 2026-11-20 to 2026-11-23" in comments


def test_csv_rows(tmp_path):
    tf32 = trial(problem=space.problem(7, 8, 9, dtype="tf32", layout="tn", batch=2))
    illegal = Trial(PROBLEM, CONFIG, "gpu", "burst", "illegal", "2026-11-20T10:00:00+00:00", message='so, "no" #1')
    write_csv(tmp_path / "r.csv", [trial(), tf32, illegal], HERE)
    _, rows = lines_of(tmp_path / "r.csv")
    assert {name: rows[0][name] for name in ("m", "n", "k", "batch", "layout", "dtype", "order", "persistent")} == {
        "m": "1000", "n": "4096", "k": "4096", "batch": "1", "layout": "nt", "dtype": "bf16",
        "order": "swizzle-merge:16,8@n", "persistent": "False",
    }  # fmt: skip
    assert (rows[0]["time_us"], rows[0]["torch_us"], rows[0]["dram_read_bytes"]) == ("50.0", "55.5", str(2**40))
    assert float(rows[0]["tflops"]) == pytest.approx(2 * 1000 * 4096 * 4096 / 50e-6 / 1e12)
    assert (rows[1]["dtype"], rows[1]["layout"], rows[1]["batch"]) == ("tf32", "tn", "2")
    assert (rows[2]["status"], rows[2]["time_us"], rows[2]["hit_rate"], rows[2]["tflops"]) == ("illegal", "", "", "")
    assert rows[2]["message"] == 'so, "no" no. 1'


def test_csv_has_model_and_counters_side_by_side(tmp_path):
    write_csv(tmp_path / "r.csv", [trial(counted=COUNTED), trial()], HERE)
    _, (counted, uncounted) = lines_of(tmp_path / "r.csv")
    assert (counted["traffic_source"], counted["dram_read_bytes"], counted["hit_rate"]) == ("model", str(2**40), "0.5")
    values = {f"counted_{name}": str(value) for name, value in dataclasses.asdict(COUNTED).items()}
    assert {name: counted[name] for name in values} == values
    assert counted["counted_hit_rate"] == "0.5"
    assert {value for name, value in uncounted.items() if name.startswith("counted_")} == {""}


def test_csv_of_two_sources_is_refused_and_the_old_one_stays(tmp_path):
    write_csv(tmp_path / "r.csv", [trial()], HERE)
    before = digest(tmp_path / "r.csv")
    with pytest.raises(ValueError, match="gpu, model"):
        write_csv(tmp_path / "r.csv", [trial(), trial(source="model")], HERE)
    assert digest(tmp_path / "r.csv") == before


def test_csv_of_several_regimes_has_a_column_of_them(tmp_path):
    trials = [trial(), trial(regime="sustained")]
    with pytest.raises(ValueError, match="burst, sustained"):
        write_csv(tmp_path / "r.csv", trials, HERE)
    write_csv(tmp_path / "r.csv", trials, HERE, (*COLUMNS, "regime"))
    *comments, header, first, second = (tmp_path / "r.csv").read_text().splitlines()
    assert comments[-1] == "# regime: burst, sustained"
    assert (header, first.split(",")[-1], second.split(",")[-1]) == (HEADER + ",regime", "burst", "sustained")


def test_parquet_has_what_csv_has(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_parquet(tmp_path / "r.parquet", [trial(), trial(regime="sustained", torch_us=None)], HERE)
    table = parquet.read_table(tmp_path / "r.parquet")
    assert table.column_names == [*COLUMNS, "regime"]
    assert table.column("torch_us").to_pylist() == [55.5, None]
    assert table.schema.metadata[b"gpu"] == b"H200"
    assert [path.name for path in tmp_path.iterdir()] == ["r.parquet"]


def test_a_failed_export_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    write_csv(tmp_path / "r.csv", [trial()], HERE)
    before = digest(tmp_path / "r.csv")

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Trial, "row", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_csv(tmp_path / "r.csv", [trial()], HERE)
    assert digest(tmp_path / "r.csv") == before
    assert [path.name for path in tmp_path.iterdir()] == ["r.csv"]


@pytest.mark.parametrize("column", ["time_us", "torch_us"])
@pytest.mark.parametrize("value", [0, -5.0, float("-inf")])
def test_times_that_cannot_be_are_damage(column, value, tmp_path):
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        store.add(trial(), HERE)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"UPDATE trials SET {column} = ?", (value,))
        db.commit()
    with Store(path) as store, pytest.raises(StoreError, match=f"damaged: .* for {column}"):
        found(store, trial())


def test_an_infinite_time_is_none(tmp_path):
    """Earlier versions wrote it where the model has no estimate."""
    with Store(tmp_path / "s.sqlite") as store:
        store.add(trial(time_us=float("inf")), HERE)
        assert found(store, trial()).time_us is None


def test_what_is_no_file_is_no_store(tmp_path, monkeypatch):
    with pytest.raises(StoreError, match="/dev/null is not a regular file"):
        Store("/dev/null")
    monkeypatch.chdir(tmp_path)
    with Store(":memory:") as store:
        store.add(trial(), HERE)
    with Store(":memory:") as store:
        assert len(store) == 1


@pytest.mark.parametrize("refused", ["s.sqlite", ""])
def test_a_store_that_cannot_be_written_is_named(refused, tmp_path, monkeypatch):
    """The file, or its folder."""
    with Store(tmp_path / "s.sqlite") as store:
        store.add(trial(), HERE)
    access = os.access
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path / refused and access(path, mode))
    with pytest.raises(StoreError, match=f"{re.escape(str(tmp_path / refused))} cannot be written"):
        Store(tmp_path / "s.sqlite")
