"""The order in which tests run."""

from collections.abc import Callable


def long_first(items: list, is_long: Callable, workers: int) -> list:
    """The tests in an order in which no worker waits for another at the end: those that take long come first.

    xdist gives each worker as many tests, one after the other, and lets those that are done steal from the ends.
    """
    long, rest = [item for item in items if is_long(item)], [item for item in items if not is_long(item)]
    found = []
    for worker in range(workers):
        first = long[worker::workers]
        others = max(0, (len(items) - len(found)) // (workers - worker) - len(first))
        found += first + rest[:others]
        del rest[:others]
    return found + rest
