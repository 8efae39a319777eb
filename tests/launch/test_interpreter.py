"""Without a GPU: the interpreter keeps a program's number in globals, and is used by one thread at a time."""

import os
import sys
import threading

import pytest
import torch
from threads import at_once

from tritonmm.config import Config
from tritonmm.launch import interpreter
from tritonmm.torch_ops.dense import matmul

pytestmark = pytest.mark.skipif(not interpreter.INTERPRETED, reason="kernels are compiled here")

CONFIGS = {
    "tile": Config(block_m=16, block_n=16, block_k=16, num_warps=4),
    "skinny": Config("skinny", 16, 32, 32, 2, 4, split_k=2),
    "copied": Config("persistent", 64, 64, 32, 2, 4, persistent=True, repack="ab"),
}


@pytest.fixture
def eager_switches():
    """Threads take turns often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("name", CONFIGS)
def test_eight_threads_multiply_right(name, eager_switches):
    width = 41 if name == "copied" else 40

    def multiply(i):
        random = torch.Generator().manual_seed(i)
        a = torch.randint(-4, 5, (17 + i, width), generator=random).bfloat16()
        b = torch.randint(-4, 5, (width, width + 8 * (i % 2)), generator=random).bfloat16()
        expected = (a.double() @ b.double()).bfloat16()
        assert torch.equal(matmul(a, b, config=CONFIGS[name]), expected), f"thread {i}"

    at_once(8, multiply)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # in a process of several threads: that is the point
def test_a_child_of_a_fork_can_launch():
    """Forked while another thread launches: the child must not wait for a thread that it does not have."""
    launching = threading.Event()

    def launch():
        with interpreter.exclusive():
            launching.set()
            matmul(torch.zeros(64, 64), torch.zeros(64, 64), config=CONFIGS["tile"])

    thread = threading.Thread(target=launch)
    thread.start()
    launching.wait()
    if child := os.fork():
        thread.join()
        assert os.waitpid(child, 0)[1] == 0
    else:
        os._exit(not interpreter.exclusive().acquire(timeout=0))
