"""One limit for the entries of many dicts, so that caches do not grow during a long run."""

from collections import deque
from collections.abc import Hashable
from typing import Any

from tritonmm import forks


class Bounded:
    """Keeps at most `limit` entries in all dicts that are filled through `put`, and removes the oldest first.

    Dicts are read without a lock, and reads are not recorded. So an entry in use is removed like any other and has to
    be made again, at most once in `limit` new entries.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self.lock = forks.lock()
        self.entries: deque[tuple[dict, Hashable]] = deque()

    def put(self, table: dict, key: Hashable, value: Any) -> None:
        """Sets table[key] and removes the oldest entry of all dicts if there are too many."""
        with self.lock:
            if key not in table:
                self.entries.append((table, key))
            table[key] = value
            if len(self.entries) > self.limit:
                oldest, key = self.entries.popleft()
                oldest.pop(key, None)  # it may be missing in a child process that was forked during a put
