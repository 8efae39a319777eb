"""Locks that are free after a fork.

A lock that another thread holds at a fork stays locked in the child, where that thread does not exist. All locks of
tritonmm are made here, and are released in the child.
"""

import os
import threading
import weakref

_FORKS = hasattr(os, "register_at_fork")
_LOCKS: weakref.WeakSet = weakref.WeakSet()


def lock() -> threading.Lock:
    """A new lock that is free in the child of a fork."""
    return _kept(threading.Lock())


def rlock() -> threading.RLock:
    """A new reentrant lock that is free in the child of a fork."""
    return _kept(threading.RLock())


def awaited_rlock() -> threading.RLock:
    """A new reentrant lock that a fork waits for, so that the child never sees half-done work that it protects."""
    made = threading.RLock()
    if _FORKS:
        os.register_at_fork(before=made.acquire, after_in_parent=made.release, after_in_child=made.release)
    return made


def _kept(made):
    _LOCKS.add(made)
    return made


def _free() -> None:
    for each in _LOCKS:
        each._at_fork_reinit()  # as the standard library frees its own


if _FORKS:
    os.register_at_fork(after_in_child=_free)
