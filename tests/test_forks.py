"""A fork while another thread holds a lock of tritonmm: the child computes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FORKS = """
import os, threading, warnings
warnings.simplefilter("ignore")  # of a fork with threads
import torch
import tritonmm
from tritonmm import forks, plan, tuned
from tritonmm.launch import direct, workspace

torch.set_num_threads(1)
a, b = torch.randn(5, 7), torch.randn(7, 3)
tritonmm.mm(a, b)
held, done = threading.Event(), threading.Event()
locks = list(forks._LOCKS)
print(len(locks), "locks")

def hold():
    for lock in locks:
        lock.acquire()
    held.set()
    done.wait()
    for lock in locks:
        lock.release()

holder = threading.Thread(target=hold)
holder.start()
held.wait()
child = os.fork()
if not child:
    with tritonmm.use("always"):
        x = torch.randn(11, 7)  # sizes that need a new plan
        right = torch.allclose(tritonmm.mm(x, b), x @ b, atol=1e-4)
    os._exit(0 if right and all(lock.acquire(blocking=False) for lock in locks) else 1)
_, status = os.waitpid(child, 0)
assert not any(lock.acquire(blocking=False) for lock in locks), "the parent's are held still"
done.set()
holder.join()
print("child:", status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_does_not_wait_for_the_parents_threads():
    env = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True, env=env, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # the child too
        process.communicate()
        pytest.fail("the child hangs")
    assert output.splitlines()[-1] == "child: 0"


def test_every_lock_is_freed():
    package = Path(__file__).parents[1] / "tritonmm"
    made = [path for path in package.rglob("*.py") if "Lock()" in path.read_text(encoding="utf-8")]
    assert made == [package / "forks.py"], "locks are made by the functions of forks"
