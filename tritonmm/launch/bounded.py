"""A bound on the entries of many dicts together: what is kept for speed must not grow with a long run."""

from collections import deque
from collections.abc import Hashable
from typing import Any

from tritonmm import forks


class Bounded:
    """Keeps at most `limit` entries in the dicts it is given; the one that was put first leaves first.

    Dicts are read without a lock and without notice, so an entry in use leaves in its turn like any other and is
    made again: once in `limit` new ones.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self.lock = forks.lock()
        self.entries: deque[tuple[dict, Hashable]] = deque()

    def put(self, table: dict, key: Hashable, value: Any) -> None:
        with self.lock:
            if key not in table:
                self.entries.append((table, key))
            table[key] = value
            if len(self.entries) > self.limit:
                oldest, key = self.entries.popleft()
                oldest.pop(key, None)  # in a child that was forked amid a put, it may be missing
