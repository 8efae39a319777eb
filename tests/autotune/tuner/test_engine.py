"""The engine: whatever trials do to their processes, each becomes a row, and the rest go on."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import faults
import pytest
from click.testing import CliRunner

pytest.importorskip("distributed")

import dask
import distributed

from tritonmm import gpu
from tritonmm.autotune.measuring import space
from tritonmm.autotune.tuner import cluster
from tritonmm.autotune.tuner import store as stores
from tritonmm.autotune.tuner.engine import Engine, EngineError, Limits, _Job
from tritonmm.autotune.tuner.leases import Leases
from tritonmm.autotune.tuner.search import Rung, Search
from tritonmm.autotune.tuner.store import Store, StoreError
from tritonmm.autotune.tuner.worker import Setup
from tritonmm.cli import main
from tritonmm.config import Config

PROBLEMS = [space.problem(m, 256, 128) for m in (100, 200, 300, 400)]
FAULTY = Setup("faults:Faulty", "")
QUICK = (Rung("quick", None),)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Two measuring workers and one that compiles, whose children can import `faults`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(faults.__file__).parent))
        patch.setenv("FAULTS_LOG", str(tmp_path_factory.mktemp("log") / "log"))
        with cluster.local(["0", "1"], 1) as client:
            yield client


@pytest.fixture
def log(client):
    """The trials that ran since the test began, as lines "m number regime pid"."""
    path = Path(os.environ["FAULTS_LOG"])
    path.write_text("")
    return lambda: [line.split() for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.sqlite"


def run(client, path, searches, setup=FAULTY, limits=None, meanwhile=lambda engine: None, **options):
    """What the engine yields."""
    with Store(path) as store, Leases(store) as claims:
        engine = Engine(client, store, claims, setup, limits)
        found = []
        for each in engine.run(searches, **options):
            found.append(each)
            meanwhile(engine)
        return found


def searches(*configs, problems=PROBLEMS, rungs=QUICK):
    return [Search(problem, configs, rungs) for problem in problems]


def statuses(found):
    return Counter(trial.status for trial, _ in found)


GOOD = [faults.config(number) for number in range(1, 6)]


def test_a_run_does_not_go_on_with_what_an_earlier_one_left_undone(client, path):
    """Nor does it hold the leases on that."""
    slow = [faults.config(number, slow=True) for number in range(1, 200)]
    with Store(path) as store, Leases(store) as claims:
        engine = Engine(client, store, claims, FAULTY)
        (left,), fast = searches(*slow, problems=PROBLEMS[:1]), searches(*GOOD, problems=PROBLEMS[2:])
        first = list(engine.run([left], deadline=time.monotonic() + 1.0))
        assert 0 < len(first) < len(slow)
        assert not left.over
        second = list(engine.run(fast))
        assert {trial.problem for trial, _ in second} == {search.problem for search in fast}
        assert all(search.over for search in fast)
        with Leases(store) as others:
            assert len(others.take([engine._item(_Job(left), config).lease for config in slow])) == len(slow)


def test_everything_listens_on_the_loopback_only_and_encrypted(client):
    info = client.scheduler_info(n_workers=-1)
    addresses = [info["address"], *info["workers"], *(found["nanny"] for found in info["workers"].values())]
    assert all(address.startswith("tls://127.0.0.1:") for address in addresses), addresses


@pytest.mark.parametrize("server", ["scheduler", "worker", "nanny"])
def test_who_has_not_the_certificate_cannot_connect(client, server):
    """Dask runs what it is sent: a plain client, and one with a certificate of its own, are other users."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    worker, found = next(iter(workers.items()))
    address = {"scheduler": client.scheduler.address, "worker": worker, "nanny": found["nanny"]}[server]

    async def connect(address, security):
        comm = await distributed.comm.connect(address, timeout=1, **security.get_connection_args("client"))
        await comm.close()

    client.sync(connect, address, client.security)
    with pytest.raises(OSError):  # noqa: PT011
        client.sync(connect, address.replace("tls://", "tcp://"), distributed.Security())
    with pytest.raises(OSError, match="certificate"):
        client.sync(connect, address, distributed.Security.temporary())


@pytest.fixture
def certified(client):
    """The cluster's certificate, where Dask's configuration has that of the user's own cluster."""
    names = "ca-file", "client.cert", "client.key"
    found = client.security.tls_ca_file, client.security.tls_client_cert, client.security.tls_client_key
    with dask.config.set({f"distributed.comm.tls.{name}": text for name, text in zip(names, found, strict=True)}):
        yield


def written_address(file):
    """What the scheduler has written, or None while it has not."""
    try:
        return json.loads(file.read_text())["address"]
    except (FileNotFoundError, json.JSONDecodeError):
        return None


@pytest.fixture
def plain(client, tmp_path):
    """A scheduler and a worker of the user's, without encryption, in processes: the scheduler's, and its address."""
    file = tmp_path / "scheduler.json"
    options = ["--scheduler-file", str(file), "--host", "127.0.0.1", "--no-dashboard"]
    started = []
    for name, more in (("scheduler", ["--port", "0"]), ("worker", ["--name", "gpu-0", "--resources", "gpu=1"])):
        command = [sys.executable, "-c", f"from distributed.cli.dask_{name} import main; main()", *options, *more]
        started.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        while not (address := written_address(file)):
            assert started[0].poll() is None
    yield started[0], address
    for process in started:
        process.kill()
        process.wait()


def test_a_lost_scheduler_is_one_line(plain, path, monkeypatch, capfd):
    scheduler, address = plain
    slow = [faults.config(number, slow=True) for number in range(1, 41)]
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 1)
    with cluster.remote(address) as client:
        client.wait_for_workers(1)
        with pytest.raises(EngineError, match=f"the scheduler at {address} is gone"):
            run(client, path, searches(*slow, problems=PROBLEMS[:1]), meanwhile=lambda engine: scheduler.kill())
    assert capfd.readouterr().err == ""
    with Store(path) as store:
        assert len(store) > 0


def test_every_trial_runs_once_and_a_problem_stays_with_a_worker(client, path, log):
    found = run(client, path, searches(*GOOD))
    assert all(new and trial.status == "ok" for trial, new in found)
    asked = [(m, number) for m, number, *_ in log()]
    assert len(asked) == len(set(asked)) == len(found) == len(PROBLEMS) * len(GOOD)
    workers = {(m, pid) for m, _, _, pid in log()}
    assert len(workers) == len(PROBLEMS)
    assert len({pid for _, pid in workers}) == 2


def test_hunts_end_with_the_best(client, path, log):
    searched = searches(*reversed(GOOD), rungs=(Rung("quick", 4), Rung("burst", 2)))
    run(client, path, searched)
    for search in searched:
        # The first has the highest number, and four of five were tried.
        assert (search.over, search.best.config, search.best.regime) == (True, GOOD[1], "burst")
    assert Counter(regime for _, _, regime, _ in log()) == {"quick": 16, "burst": 8}


def test_what_the_store_has_is_not_run(client, path, log):
    first = run(client, path, searches(*GOOD[:3]))
    asked = log()
    second = run(client, path, searches(*GOOD))
    assert len(log()) - len(asked) == len(PROBLEMS) * 2
    assert Counter(t for t, new in second if not new) == Counter(t for t, _ in first)


@pytest.mark.parametrize(
    ("stages", "status", "says"),
    [
        (faults.HANGS, "hung", "killed after 1 s"),
        (faults.CRASHES, "crashed", "killed by SIGABRT: "),
        (faults.RAISES, "failed", "RuntimeError: no such kernel"),
        (faults.LOSES_GPU, "crashed", "illegal memory access"),
        (faults.WRONG, "wrong", "outside of its error bound"),
        (faults.KILLS_WORKER, "crashed", "2 workers died while they ran it"),
    ],
    ids=["hangs", "crashes", "raises", "loses-gpu", "wrong", "kills-worker"],
)
def test_a_bad_trial_is_a_row_and_the_others_go_on(client, path, log, stages, status, says):
    bad = faults.config(9, stages)
    found = run(client, path, searches(*GOOD[:2], bad, *GOOD[2:], problems=PROBLEMS[:1]), limits=Limits(60, 1))
    assert statuses(found) == {"ok": len(GOOD), status: 1}
    (row,) = (trial for trial, _ in found if trial.config == bad)
    assert says in row.message
    with Store(path) as store:
        assert len(store) == len(found)


def test_a_config_that_killed_twice_is_not_tried_again(client, path, log):
    bad = faults.config(9, faults.CRASHES)
    found = [trial for trial, _ in run(client, path, searches(bad, problems=PROBLEMS[:2]))]
    found += [trial for trial, _ in run(client, path, searches(bad))]
    assert Counter(trial.status for trial in found) == {"crashed": 4, "failed": 2}
    assert all("not tried" in trial.message for trial in found if trial.status == "failed")
    assert len(log()) == 2


def test_a_killed_worker_costs_nothing_but_time(client, path, log):
    slow = [faults.config(number, slow=True) for number in range(1, 41)]
    killed = []

    def kill(engine):
        if not killed:
            address = engine.lanes[0].address
            killed.append(client.run(os.getpid, workers=[address])[address])
            os.kill(killed[0], signal.SIGKILL)

    found = run(client, path, searches(*slow, problems=PROBLEMS[:2]), meanwhile=kill)
    assert killed
    assert statuses(found) == {"ok": 80}
    assert len(log()) < 80 + 2 * 32  # what was in the tasks of the one


@pytest.mark.parametrize(
    ("stages", "status", "says"),
    [
        (faults.HANGS, "hung", "compiling: killed after 1 s"),
        (faults.CRASHES, "crashed", "compiling: killed by SIGABRT: "),
        (faults.RAISES, "failed", "compiling: RuntimeError: no such kernel"),
    ],
    ids=["hangs", "crashes", "raises"],
)
def test_a_bad_compilation_is_a_row_and_is_not_run(client, path, log, stages, status, says):
    bad = faults.config(9, stages)
    compiled = Setup("faults:Faulty", "faults:compile")
    found = run(client, path, searches(bad, *GOOD, problems=PROBLEMS[:1]), compiled, Limits(1, 60))
    assert statuses(found) == {"ok": len(GOOD), status: 1}
    (row,) = (trial for trial, _ in found if trial.config == bad)
    assert row.message.startswith(says)
    steps = [(number, what) for _, number, what, _ in log()]
    assert ("9", "quick") not in steps
    for config in GOOD:
        number = str(config.order.factors[0])
        assert steps.index((number, "compile")) < steps.index((number, "quick"))


def test_past_its_deadline_nothing_is_begun(client, path, log):
    searched = searches(*GOOD)
    assert run(client, path, searched, deadline=time.monotonic()) == []
    assert not any(search.over for search in searched)


def test_a_search_whose_last_trials_end_past_the_deadline_is_over(client, path, log):
    class Begun:
        """A deadline that is over once another trial runs."""

        def __init__(self):
            self.before = len(log())

        def __le__(self, now):
            return len(log()) > self.before

    (searched,) = searches(GOOD[0], problems=PROBLEMS[:1])
    ((trial, new),) = run(client, path, [searched], deadline=Begun())
    assert new
    assert searched.over
    assert searched.best == trial
    (unfinished,) = searches(GOOD[0], problems=PROBLEMS[1:2], rungs=(Rung("quick", None), Rung("short", 1)))
    assert len(run(client, path, [unfinished], deadline=Begun())) == 1
    assert [regime for _, _, regime, _ in log()] == ["quick", "quick"]
    assert not unfinished.over


def test_what_another_tuner_runs_is_waited_for(client, path, log):
    theirs, ours = PROBLEMS[:2]
    with Store(path) as store, Leases(store) as claims:
        with Leases(store) as others:
            other = Engine(client, store, others, FAULTY).run(searches(*GOOD, problems=[theirs]))
            first, _ = next(other)  # it has claimed all of them
            mine = Engine(client, store, claims, FAULTY).run(searches(*GOOD, problems=[theirs, ours]))
            found = [next(mine) for _ in range(1 + len(GOOD))]
            assert found[0] == (first, False)
            assert {(trial.problem, new) for trial, new in found[1:]} == {(ours, True)}
            other.close()
        rest = list(mine)
        assert {(trial.problem, new) for trial, new in rest} == {(theirs, True)}
        assert len(rest) == len(GOOD) - 1


def test_workers_that_differ_are_refused(client, path):
    with pytest.raises(EngineError, match="gpu-0 and gpu-1 differ"):
        run(client, path, [], Setup("faults:unlike", ""))


def test_a_source_that_cannot_be_made_says_why(client, path):
    with pytest.raises(EngineError, match="worker gpu-0 does not measure: exited with 1: ImportError: not here"):
        run(client, path, [], Setup("faults:unimportable", ""))


def test_the_users_cluster_is_asked(client, path, certified):
    result = CliRunner().invoke(main, ["tune", "--scheduler", client.scheduler.address, "--store", str(path)])
    assert result.exit_code == 2
    assert "tritonmm: worker gpu-0 does not measure: exited with 1: RuntimeError: " in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_full_disk_is_said_and_damages_nothing(client, path, monkeypatch):
    class Full(sqlite3.Connection):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.execute("PRAGMA max_page_count = 60")

    real = sqlite3.connect
    with monkeypatch.context() as patch:
        patch.setattr(stores.sqlite3, "connect", lambda *args, **options: real(*args, factory=Full, **options))
        with pytest.raises(StoreError, match=r"s\.sqlite.*database or disk is full"):
            run(client, path, searches(*(faults.config(number) for number in range(1, 500))))
    with Store(path) as store:
        assert 0 < len(store) < 500


@pytest.mark.parametrize("sizes", [8, pytest.param(40, marks=pytest.mark.gate)])
def test_thousands_of_trials_are_stored(client, path, sizes):
    """Many times as many as a task has, with more problems than workers."""
    problems = [space.problem(m, 256, 128) for m in range(1, sizes + 1)]
    configs = [faults.config(number) for number in range(1, 251)]
    searched = searches(*configs, problems=problems)
    found = run(client, path, searched, deadline=time.monotonic() + 900)
    assert all(search.over for search in searched)
    assert statuses(found) == {"ok": 250 * sizes}


@pytest.mark.gpu
def test_on_a_gpu_hangs_lost_contexts_and_spent_memory_are_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(faults.__file__).parent))
    problem = space.problem(500, 512, 512)
    good = space.candidates(problem, gpu.default())[:6]
    base = Config("tile", 64, 64, 32, 3, 4)
    bad = {
        replace(base, num_stages=faults.HANGS): ("hung", "killed after 20 s"),
        replace(base, num_stages=faults.LOSES_GPU): ("crashed", ""),
        replace(base, num_stages=faults.RAISES): ("failed", "OutOfMemoryError"),
    }
    searched = searches(*good[:3], *bad, *good[3:], problems=[problem])
    with cluster.local(["0"], 2) as client:
        setup = replace(Setup(), source="faults:FaultyGpu")
        found = run(client, tmp_path / "s.sqlite", searched, setup, Limits(60, 20))
    rows = {trial.config: trial for trial, _ in found}
    for config, (status, says) in bad.items():
        assert (rows[config].status, says in rows[config].message) == (status, True), rows[config]
    assert all(rows[config].status == "ok" and rows[config].torch_us > 0 for config in good)


@pytest.mark.gpu
def test_on_a_gpu_what_is_compiled_ahead_is_measured(tmp_path):
    problem = space.problem(1000, 1024, 1024)
    searched = [Search(problem, space.candidates(problem, gpu.default())[:16], (Rung("quick", 16), Rung("burst", 2)))]
    with cluster.local(["0"], 4) as client:
        found = run(client, tmp_path / "s.sqlite", searched, Setup())
    assert statuses(found) == {"ok": 18}
    assert searched[0].best.torch_us > 0
