"""Who is running which trial of a store, so that two tuners on one file do not measure the same twice at once.

A claim is a row beside the trials. It ends when its owner releases it, when it is not refreshed for `LEASE` seconds,
or, on the owner's own host, when there is no process of that number. Losing a claim too early costs a second
measurement, of which the store keeps the first: never more than time.
"""

import os
import socket
import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from tritonmm.autotune.tuner.store import Store, StoreError

LEASE = 60.0
"""Seconds after which a claim that is not refreshed is void."""

_TABLE = """
CREATE TABLE IF NOT EXISTS claims (
    trial TEXT PRIMARY KEY, owner TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, expires REAL NOT NULL
)
"""


class Claims:
    """The claims of one tuner on the trials of `store`. Use it in a `with`: it releases them all.

    A trial is named by any text that every tuner makes the same of it. Raises StoreError where the file cannot be
    written.
    """

    def __init__(self, store: Store):
        self._path = store.path
        self._owner = (uuid.uuid4().hex, socket.gethostname(), os.getpid())
        try:
            self._db = sqlite3.connect(store.path, timeout=30, isolation_level=None)
            self._db.execute(_TABLE)
            self._db.execute("DELETE FROM claims WHERE expires < ?", (time.time(),))
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: cannot be written: {error}") from error

    def __enter__(self) -> "Claims":
        return self

    def __exit__(self, *_) -> None:
        with suppress(sqlite3.Error):  # they run out by themselves
            self._db.execute("DELETE FROM claims WHERE owner = ?", self._owner[:1])
        self._db.close()

    def take(self, trials: Sequence[str]) -> set[str]:
        """Claims those of `trials` that nobody else has, and returns them."""
        now = time.time()
        taken = set()
        with self._writing():
            for trial in trials:
                row = self._db.execute("SELECT owner, host, pid, expires FROM claims WHERE trial = ?", (trial,))
                if self._is_free(row.fetchone(), now):
                    self._db.execute(
                        "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?)", (trial, *self._owner, now + LEASE)
                    )
                    taken.add(trial)
        return taken

    def refresh(self) -> None:
        """Keeps all that were taken for another `LEASE`; call it several times in one."""
        with self._writing():
            self._db.execute("UPDATE claims SET expires = ? WHERE owner = ?", (time.time() + LEASE, self._owner[0]))

    def release(self, trials: Sequence[str]) -> None:
        """Gives back what was taken."""
        with self._writing():
            self._db.executemany(
                "DELETE FROM claims WHERE trial = ? AND owner = ?", [(trial, self._owner[0]) for trial in trials]
            )

    def _is_free(self, row: tuple | None, now: float) -> bool:
        if row is None:
            return True
        owner, host, pid, expires = row
        if not isinstance(pid, int) or not isinstance(expires, float):
            return True  # of a file that something else has written to
        return owner == self._owner[0] or expires < now or (host == self._owner[1] and not _runs(pid))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                self._db.execute("ROLLBACK")
            raise StoreError(f"{self._path}: cannot be written: {error}") from error


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # another user's
    return True
