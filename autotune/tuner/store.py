"""Trials in a SQLite file, one row each, and their export as CSV or Parquet."""

import csv
import dataclasses
import json
import math
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.trial import COLUMNS, COUNTED, STATUSES, Counted, Trial, problem_json
from tritonmm.config import Config
from tritonmm.problem import Problem
from tritonmm.tuned.files import written

SCHEMA = 2
"""Version of the tables, stored as the file's user_version. A change of `Trial` changes the tables. Version 2 added the
table of counters."""

APPLICATION = 0x746D6D31
"""Marks a SQLite file as a store, in its application_id: "tmm1"."""

_NO_RESULTS = ("problem", "config", "source", "regime", "counted")

_RESULTS = tuple(f.name for f in dataclasses.fields(Trial) if f.name not in _NO_RESULTS)

_TYPES = {f"{of}{f.name}": f.type if f.type is str else f.type | int | float
          for cls, of in ((Trial, ""), (Counted, "counted_")) for f in dataclasses.fields(cls)}  # fmt: skip
"""Legal types of a column. SQLite itself accepts any type in any column."""

_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS environments (fingerprint TEXT PRIMARY KEY, description TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS trials (
    problem TEXT NOT NULL,
    config TEXT NOT NULL,
    environment TEXT NOT NULL REFERENCES environments (fingerprint),
    source TEXT NOT NULL,
    regime TEXT NOT NULL,
    {", ".join(_RESULTS)},
    UNIQUE (problem, config, environment, source, regime)
);
CREATE TABLE IF NOT EXISTS counters (
    problem TEXT NOT NULL,
    config TEXT NOT NULL,
    environment TEXT NOT NULL REFERENCES environments (fingerprint),
    {", ".join(f"{name} NOT NULL" for name in COUNTED)},
    UNIQUE (problem, config, environment)
);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {SCHEMA};
COMMIT;
"""


_UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
"""Exceptions for a damaged file. The damage may even be in the text of SQLite's message."""


class StoreError(Exception):
    """A file cannot be used as a store. Nothing in it was changed."""


class Store:
    """The trials in the file at `path`, which is created if it is missing. Use it in a `with`, or close it.

    Each added trial is committed on its own, so the process may end at any moment. Several processes may use one file.
    Counters are kept by problem, config and environment, because they do not depend on the regime. A file of an older
    tritonmm gets the missing tables, in one step.

    Raises StoreError for a file that is not a store, is damaged, or was written by a newer tritonmm.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            is_current = is_current_store(self.path)
            for place in (self.path, self.path.absolute().parent):
                if place.exists() and not os.access(place, os.W_OK):
                    raise StoreError(f"{self.path}: {place} cannot be written (permissions); name another file")
            # As a full path: ":memory:" is the name of a file here.
            self._db = sqlite3.connect(self.path.absolute(), timeout=30, isolation_level=None)
            if not is_current:
                try:
                    # Fails at once if another process is creating the same file; that process sets the mode too.
                    with suppress(sqlite3.OperationalError):
                        self._db.execute("PRAGMA journal_mode = WAL")
                    self._db.executescript(_TABLES)
                except BaseException:
                    self._db.close()
                    raise
            if self._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
                # Do not wait for the disk at each commit, which takes longer than some trials. If the process ends,
                # nothing is lost; if the machine fails, the last trials are.
                self._db.execute("PRAGMA synchronous = NORMAL")
        except (OSError, *_UNREADABLE) as error:
            raise StoreError(f"{self.path}: cannot be used as a store of trials: {error}") from error

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

    def __len__(self) -> int:
        return self._rows("SELECT count(*) FROM trials")[0][0]

    def add(self, trial: Trial, environment: Environment) -> None:
        """Adds a trial. A trial with the same key stays as it is."""
        key = *_key(trial.problem, trial.config), environment.fingerprint(), trial.source, trial.regime
        self._insert("trials", (*key, *(getattr(trial, name) for name in _RESULTS)), environment)
        if trial.counted is not None:
            self.add_counted(trial.problem, trial.config, environment, trial.counted)

    def add_counted(self, problem: Problem, config: Config, environment: Environment, counted: Counted) -> None:
        """Joins counters to the trials of that problem and config. Existing counters stay as they are."""
        key = *_key(problem, config), environment.fingerprint()
        self._insert("counters", (*key, *dataclasses.astuple(counted)), environment)

    def _insert(self, table: str, values: Sequence, environment: Environment) -> None:
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.execute(
                    "INSERT OR IGNORE INTO environments VALUES (?, ?)",
                    (environment.fingerprint(), json.dumps(dataclasses.asdict(environment))),
                )
                self._db.execute(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(values))})", values)
        except _UNREADABLE as error:
            raise StoreError(f"{self.path}: a trial could not be written: {error}") from error

    def find(
        self, problem: Problem, config: Config, environment: Environment, source: str, regime: str
    ) -> Trial | None:
        """The trial with that key, or None. Raises StoreError for a row that is not a trial."""
        rows = self._rows(
            f"SELECT {', '.join(_RESULTS + COUNTED)}"
            " FROM trials LEFT JOIN counters USING (problem, config, environment)"
            " WHERE problem = ? AND config = ? AND environment = ? AND source = ? AND regime = ?",
            (*_key(problem, config), environment.fingerprint(), source, regime),
        )
        if not rows:
            return None
        row = dict(zip(_RESULTS + COUNTED, rows[0], strict=True))
        if row[COUNTED[0]] is None:
            row = {name: row[name] for name in _RESULTS}
        for name, value in row.items():
            if not isinstance(value, _TYPES[name]) or (name == "status" and value not in STATUSES):
                raise StoreError(f"{self.path}: damaged: a trial of {problem} has {value!r:.60} for {name}")
        for name in ("time_us", "torch_us"):
            if row[name] == math.inf:  # earlier versions wrote that where the model has no estimate
                row[name] = None
            if row[name] is not None and not 0 < row[name] < math.inf:
                raise StoreError(f"{self.path}: damaged: a trial of {problem} has {row[name]} for {name}")
        results = {name: row[name] for name in _RESULTS}
        counted = Counted(*(row[name] for name in COUNTED)) if COUNTED[0] in row else None
        return Trial(problem=problem, config=config, source=source, regime=regime, counted=counted, **results)

    def kills(self, environment: Environment) -> dict[Config, int]:
        """Numbers of trials that hung or crashed, by config."""
        rows = self._rows(
            "SELECT config, count(*) FROM trials WHERE environment = ? AND status IN ('hung', 'crashed') GROUP BY 1",
            (environment.fingerprint(),),
        )
        try:
            return {Config.from_json(config): count for config, count in rows}
        except (ValueError, TypeError) as error:
            raise StoreError(f"{self.path}: damaged: a config of a trial: {error}") from error

    def _rows(self, query: str, values: Sequence = ()) -> list[tuple]:
        try:
            return self._db.execute(query, values).fetchall()
        except _UNREADABLE as error:
            raise StoreError(f"{self.path}: cannot be read: {error}") from error


def write_csv(
    path: str | os.PathLike, trials: Sequence[Trial], environment: Environment, columns: Sequence[str] = COLUMNS
) -> None:
    """Writes trials of one environment and source as CSV. `path` is replaced in one step.

    columns: names in `trial.COLUMNS`, or "regime"; without that column all trials must have one regime.

    First come the environment, the source and the regime, as lines `# key: value`, then the header. The date is the day
    of the trials, or "first to last".
    """
    comments = _about(trials, environment, columns)
    with written(path) as file:
        file.writelines(f"# {key}: {value}\n" for key, value in comments.items())
        writer = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        for trial in trials:
            # Readers that skip comments cut a line at "#".
            writer.writerow(trial.row() | {"regime": trial.regime, "message": trial.message.replace("#", "no. ")})


def write_parquet(path: str | os.PathLike, trials: Sequence[Trial], environment: Environment) -> None:
    """Writes trials of one environment and source as Parquet, with their regime. `path` is replaced in one step.

    The comments of a CSV file are the schema's metadata here. Raises ModuleNotFoundError without pyarrow.
    """
    import pyarrow
    import pyarrow.parquet

    columns = (*COLUMNS, "regime")
    rows = [trial.row() | {"regime": trial.regime} for trial in trials]
    table = pyarrow.table({name: [row[name] for row in rows] for name in columns})
    table = table.replace_schema_metadata(_about(trials, environment, columns))
    with written(path, "wb") as file:
        pyarrow.parquet.write_table(table, file)


def _about(trials: Sequence[Trial], environment: Environment, columns: Sequence[str]) -> dict[str, str]:
    days = sorted({trial.measured[:10] for trial in trials}) or [environment.date]
    environment = dataclasses.replace(environment, date=" to ".join(dict.fromkeys((days[0], days[-1]))))
    about = environment.about()
    for name in ("source", "regime"):
        found = sorted({getattr(trial, name) for trial in trials})
        if len(found) > 1 and (name == "source" or name not in columns):
            raise ValueError(f"a results file has one {name}; the trials have {', '.join(found)}")
        about[name] = ", ".join(found) or "none"
    return about


def _key(problem: Problem, config: Config) -> tuple[str, str]:
    return problem_json(problem), config.to_json()


def is_current_store(path: Path) -> bool:
    """True for a store with all tables, False if they can be created, StoreError for any other file. Only reads."""
    if path.is_dir():
        raise StoreError(f"{path} is a folder; a store of trials is a file")
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is not a regular file; a store of trials is one")
    if not path.exists() or not path.stat().st_size:
        return False
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as db:
            application, schema = (db.execute(f"PRAGMA {x}").fetchone()[0] for x in ("application_id", "user_version"))
            tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if application == 0 and schema == 0 and not tables:
                return False  # an empty database
            if application != APPLICATION:
                raise StoreError(f"{path}: a SQLite file of another program; name another file for the trials")
            if schema > SCHEMA:
                raise StoreError(
                    f"{path}: written by a newer tritonmm (schema {schema}, this one knows {SCHEMA});"
                    " update tritonmm or name another file"
                )
            damage = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    except _UNREADABLE as error:
        raise StoreError(f"{path}: not a readable SQLite file ({error}); name another file or move it away") from error
    if damage != "ok":
        damage = " ".join(damage.split())
        raise StoreError(f"{path}: the file is damaged ({damage}); name another file or move it away")
    return schema == SCHEMA
