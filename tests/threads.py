"""Work that several threads do at once."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def at_once(count: int, work: Callable[[int], object]) -> None:
    """work(0) .. work(count - 1) in threads that wait for each other to start; raises what one of them raised."""
    start = threading.Barrier(count)

    def run(i: int) -> None:
        start.wait()
        work(i)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count)))
