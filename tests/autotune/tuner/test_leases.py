"""Leases: no two tuners run the same trial at once, and nothing stays claimed by those that are gone."""

import os
import sqlite3
import subprocess
import sys

import pytest

from tritonmm.autotune.tuner import leases
from tritonmm.autotune.tuner.leases import LEASE, Leases
from tritonmm.autotune.tuner.store import Store, StoreError


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        yield store


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(leases.time, "time", lambda: now[0])
    return now


def test_what_one_has_another_does_not_get(store):
    with Leases(store) as one, Leases(store) as two:
        assert one.take(["a", "b"]) == {"a", "b"}
        assert two.take(["b", "c"]) == {"c"}
        assert one.take(["a", "c"]) == {"a"}


def test_what_is_released_is_free(store):
    with Leases(store) as two:
        with Leases(store) as one:
            one.take(["a", "b", "c"])
            one.release(["a"])
            assert two.take(["a", "b"]) == {"a"}
        assert two.take(["b", "c"]) == {"b", "c"}


def test_nobody_releases_what_is_anothers(store):
    with Leases(store) as one, Leases(store) as two, Leases(store) as three:
        one.take(["a"])
        two.release(["a"])
        assert three.take(["a"]) == set()


def test_a_claim_runs_out_unless_it_is_refreshed(store, clock):
    with Leases(store) as one, Leases(store) as two:
        one.take(["a"])
        clock[0] += LEASE - 1
        one.refresh()
        clock[0] += LEASE - 1
        assert two.take(["a"]) == set()
        clock[0] += 2
        assert two.take(["a"]) == {"a"}


def test_the_dead_of_this_host_claim_nothing(store):
    code = (
        "import os, sys\n"
        "from tritonmm.autotune.tuner.leases import Leases\n"
        "from tritonmm.autotune.tuner.store import Store\n"
        "Leases(Store(sys.argv[1])).take(['a'])\n"
        "os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, store.path], timeout=120).returncode == 9
    with Leases(store) as mine:
        assert mine.take(["a"]) == {"a"}


def test_another_hosts_numbers_say_nothing_of_its_processes(store, monkeypatch):
    monkeypatch.setattr(leases.socket, "gethostname", lambda: "elsewhere")
    other = Leases(store)
    other.take(["a"])
    monkeypatch.setattr(leases.socket, "gethostname", lambda: "here")
    monkeypatch.setattr(leases, "_runs", lambda pid: pid != os.getpid())
    with Leases(store) as mine:
        assert mine.take(["a"]) == set()


def test_a_file_that_cannot_be_written_is_said_at_once(store, monkeypatch):
    real = sqlite3.connect

    def read_only(path, **options):
        return real(f"file:{path}?mode=ro", uri=True, **options)

    monkeypatch.setattr(leases.sqlite3, "connect", read_only)
    with pytest.raises(StoreError, match=r"s\.sqlite: cannot be written: .*readonly"):
        Leases(store)
