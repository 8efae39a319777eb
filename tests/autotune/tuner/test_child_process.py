"""A child that hangs or dies costs an answer, and never outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import faults
import pytest

from tritonmm.autotune.tuner.child_process import ChildProcess, CrashedError, HungError


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(faults.__file__).parent))


@pytest.fixture
def child():
    child = ChildProcess("faults:Echo", {"greeting": "hello"})
    yield child
    child.close()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_one_child_answers_everything(child):
    first, second = (child.ask({}, 60) for _ in range(2))
    assert (first["greeting"], first["asked"], second["asked"]) == ("hello", 1, 2)
    assert first["pid"] == second["pid"] != os.getpid()


def test_an_exception_is_an_answer_of_one_line(child):
    assert child.ask({"do": "raise"}, 60) == {"error": "ValueError: no such thing"}
    assert child.ask({}, 60)["asked"] == 2


@pytest.mark.parametrize("how", ["spin", "sleep"])
def test_a_hang_is_killed_and_the_next_question_answered(child, how):
    pid = child.ask({}, 60)["pid"]
    with pytest.raises(HungError, match=r"killed after 0\.1 s"):
        child.ask({"do": how, "seconds": 1000}, 0.1)
    assert not runs(pid)
    assert child.ask({}, 60)["asked"] == 1


@pytest.mark.parametrize(
    ("how", "says"), [("abort", "killed by SIGABRT: .*"), ("exit", "exited with 3")], ids=["abort", "exit"]
)
def test_a_death_is_told_and_the_next_question_answered(child, how, says):
    with pytest.raises(CrashedError, match=says):
        child.ask({"do": how}, 60)
    assert child.ask({}, 60)["asked"] == 1


def test_one_that_died_between_questions_is_told(child):
    os.kill(child.ask({}, 60)["pid"], signal.SIGKILL)
    with pytest.raises(CrashedError, match="killed by SIGKILL"):
        child.ask({}, 60)
    assert child.ask({}, 60)["asked"] == 1


def test_one_that_asks_to_is_replaced(child):
    pid = child.ask({"retire": True}, 60)["pid"]
    assert not runs(pid)
    assert child.ask({}, 60)["asked"] == 1


def test_one_that_cannot_start_says_why():
    with pytest.raises(CrashedError, match=r"exited with 1: ImportError: not here"):
        ChildProcess("faults:unimportable", {}).ask({}, 60)


def test_no_child_outlives_its_parent(tmp_path):
    code = (
        "import threading\n"
        "from tritonmm.autotune.tuner.child_process import ChildProcess\n"
        "child = ChildProcess('faults:Echo', {})\n"
        "print(child.ask({}, 60)['pid'], flush=True)\n"
        "child.ask({'do': 'spin', 'seconds': 1000}, 1000)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with parent:
        pid = int(parent.stdout.readline())
        assert runs(pid)
        parent.kill()
    until(lambda: not runs(pid))
