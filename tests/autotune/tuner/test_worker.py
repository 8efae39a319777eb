"""What a measuring worker holds while it measures: a lock that only tuners of the same user can hold."""

import fcntl
import os
import tempfile
import threading

import pytest
from threads import most_inside

from tritonmm.autotune.tuner import worker


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The user's cache, and a folder for temporary files that other users write to."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    return tmp_path / "cache" / "tritonmm" / "locks"


def ends(function) -> bool:
    """Whether the function returns, in a thread of its own that may hang."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(5)
    return not thread.is_alive()


def measure():
    with worker._alone():
        pass


def test_another_users_lock_is_not_waited_for(cache):
    with open(os.path.join(tempfile.gettempdir(), "tritonmm-gpu-0.lock"), "w") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        assert ends(measure)


def test_tuners_of_one_user_take_turns(cache):
    assert most_inside(worker._alone) == 1
    (lock,) = cache.iterdir()
    assert (cache.stat().st_mode & 0o777, lock.stat().st_mode & 0o777) == (0o700, 0o600)
    with worker._alone(), lock.open() as ours, pytest.raises(BlockingIOError):
        fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("mode", [0o777, 0o750], ids=oct)
def test_a_folder_that_others_enter_holds_no_locks(cache, mode):
    cache.mkdir(parents=True)
    cache.chmod(mode)
    assert ends(measure)
    assert list(cache.iterdir()) == []
