"""Leases on trials, so that two tuners on one store do not measure the same trial at once.

A lease is a row in the table "claims" of the store. It ends when its owner releases it, when it was not refreshed for
`LEASE` seconds, or, on the owner's host, when the owner's process is gone. A lease that is lost too early costs only
time: a trial is measured twice, and the store keeps the first result.
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
"""Seconds after which a lease ends if it is not refreshed."""

_TABLE = """
CREATE TABLE IF NOT EXISTS claims (
    trial TEXT PRIMARY KEY, owner TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, expires REAL NOT NULL
)
"""


class Leases:
    """The leases of one tuner on the trials of `store`. Use it in a `with`, which releases them at the end.

    A trial is named by a text that must be the same in every tuner. Raises StoreError if the file cannot be written.
    """

    def __init__(self, store: Store):
        self._path = store.path
        self._owner = (uuid.uuid4().hex, socket.gethostname(), os.getpid())
        try:
            self._db = sqlite3.connect(store.path.absolute(), timeout=30, isolation_level=None)
            self._db.execute(_TABLE)
            self._db.execute("DELETE FROM claims WHERE expires < ?", (time.time(),))
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: cannot be written: {error}") from error

    def __enter__(self) -> "Leases":
        return self

    def __exit__(self, *_) -> None:
        with suppress(sqlite3.Error):  # leases expire anyway
            self._db.execute("DELETE FROM claims WHERE owner = ?", self._owner[:1])
        self._db.close()

    def take(self, trials: Sequence[str]) -> set[str]:
        """Leases the free trials among `trials`, and returns them."""
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
        """Extends all leases by `LEASE`. Call it several times in that period."""
        with self._writing():
            self._db.execute("UPDATE claims SET expires = ? WHERE owner = ?", (time.time() + LEASE, self._owner[0]))

    def release(self, trials: Sequence[str]) -> None:
        """Releases leases."""
        with self._writing():
            self._db.executemany(
                "DELETE FROM claims WHERE trial = ? AND owner = ?", [(trial, self._owner[0]) for trial in trials]
            )

    def _is_free(self, row: tuple | None, now: float) -> bool:
        if row is None:
            return True
        owner, host, pid, expires = row
        if not isinstance(pid, int) or not isinstance(expires, float):
            return True  # the file was damaged
        return owner == self._owner[0] or expires < now or (host == self._owner[1] and not _runs(pid))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):  # SQLite may have rolled back already
                self._db.execute("ROLLBACK")
            raise StoreError(f"{self._path}: cannot be written: {error}") from error


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # another user's process
    return True
