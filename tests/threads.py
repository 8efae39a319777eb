"""Work that several threads do at once."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager


def at_once(count: int, work: Callable[[int], object]) -> None:
    """work(0) .. work(count - 1) in threads that wait for each other to start; raises what one of them raised."""
    start = threading.Barrier(count)

    def run(i: int) -> None:
        start.wait()
        work(i)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count)))


def most_inside(lock: Callable[[], AbstractContextManager]) -> int:
    """How many of eight threads were inside of what `lock` returns at the same time, at most."""
    inside, most = [], []

    def hold(_):
        with lock():
            inside.append(1)
            most.append(len(inside))
            inside.pop()

    at_once(8, hold)
    assert len(most) == 8
    return max(most)
