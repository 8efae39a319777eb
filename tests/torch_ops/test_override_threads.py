"""enable, disable and use while other threads multiply: no error, right results, and torch's kernels at the end."""

import subprocess
import sys
import threading

import pytest
import torch
from threads import at_once

TOGGLES = 20_000


def multiply_until(stop, a, expected):
    """Products and sums, checked bit by bit; what is said of the first that is wrong."""
    c, out = torch.ones_like(a), torch.empty_like(a)
    count = 0
    while not stop.is_set() or not count:
        for name, found in (
            ("mm", torch.mm(a, a)),
            ("mm.out", torch.mm(a, a, out=out)),
            ("addmm", torch.addmm(c, a, a, beta=0)),
            ("addmm_", c.addmm_(a, a, beta=0)),
        ):
            assert torch.equal(found, expected), f"{name} is wrong after {count} rounds: {found} is not {expected}"
        count += 1


def toggle(override, times):
    """Every way to change the policy, for so many changes."""
    for _ in range(times // 10):
        override.enable("always")
        override.disable()
        override.enable("faster")
        override.enable("always")
        with override.use("faster"), override.use("always"):
            override.disable()
        with override.use("always"):
            pass


def assert_torchs(override, a):
    """No policy is on: an integer's product, which would be counted as a route, is not looked at."""
    assert all(switch.routes is None for switch in override._switches)
    assert torch.equal(torch.mm(a, a), (a[:, :, None] * a).sum(1))


@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # torch's own, of a new thread
def test_toggling_while_threads_multiply(override, device):
    """Three threads multiply doubles, which are torch's, and one what is tritonmm's: the interpreter has one thread."""
    stop = threading.Event()
    doubles = torch.randint(-4, 5, (6, 6), device=device).double()
    expected = (doubles[:, :, None] * doubles).sum(1)

    def work(i):
        if i:
            a, right = (doubles.float(), expected.float()) if i == 1 else (doubles, expected)
            return multiply_until(stop, a, right)
        try:
            toggle(override, TOGGLES)
        finally:
            stop.set()

    at_once(5, work)
    assert_torchs(override, doubles)


def test_threads_that_enter_and_leave(override, device):
    a = torch.randint(-4, 5, (6, 6), device=device).double()
    expected = (a[:, :, None] * a).sum(1)

    def enter(_):
        for _ in range(100):
            with override.use("always"), override.use("faster"):
                assert torch.equal(a @ a, expected)

    at_once(4, enter)
    assert_torchs(override, a)


FIRST = """
import threading, warnings
import torch
from tritonmm.torch_ops import override

warnings.simplefilter("ignore")
torch.set_num_threads(1)
THREADS, ROUNDS = 8, 200
a = torch.arange(36.0).view(6, 6).double()
expected = (a[:, :, None] * a).sum(1)
run, wait, wrong = threading.Event(), threading.Barrier(THREADS + 1), []

def multiply():
    for _ in range(ROUNDS):
        wait.wait()
        while run.is_set():
            c = torch.empty_like(a)
            stacked = torch.bmm(a[None], a[None])
            for found in (torch.mm(a, a), torch.addmm(a, a, a, beta=0), stacked[0], torch.mm(a, a, out=c)):
                if not torch.equal(found, expected):
                    wrong.append(found)
        wait.wait()

threads = [threading.Thread(target=multiply) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for _ in range(ROUNDS):
    run.set()
    wait.wait()
    first = override.Override("CPU")
    first.enable("faster")
    first.disable()
    run.clear()
    wait.wait()
    override._REGISTERED.pop()._destroy()  # nobody multiplies: the next enable is the first again
for thread in threads:
    thread.join()
assert not wrong, wrong[0]
"""


def test_the_first_enable_while_threads_multiply():
    """By torch's functions, in a process of its own."""
    ran = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True)
    assert ran.returncode == 0, f"exit code {ran.returncode}\n{ran.stderr}"


@pytest.mark.gpu
def test_8_threads_toggle_20000_times_on_a_gpu(override, device):
    doubles = torch.randint(-4, 5, (64, 64), device=device).double()
    expected = doubles.cpu() @ doubles.cpu()

    def work(i):
        dtype = (torch.bfloat16, torch.float16, torch.float32, torch.float64)[i % 4]
        a, right = doubles.to(dtype), expected.to(device, dtype)
        c, wrong = torch.empty_like(a), torch.zeros((), device=device, dtype=torch.bool)
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            for _ in range(250):
                for change in (
                    lambda: override.enable("always"), override.disable,
                    lambda: override.enable("faster"), override.disable,
                ):  # fmt: skip
                    change()
                    wrong |= (torch.mm(a, a) != right).any() | (c.addmm_(a, a, beta=0) != right).any()
                with override.use("always"):
                    wrong |= (torch.mm(a, a) != right).any()
                    with override.use("faster"):
                        wrong |= (torch.addmm(c, a, a, beta=0) != right).any()
                    wrong |= (torch.mm(a, a, out=c) != right).any()
                override.disable()
                override.enable("always")
            assert not wrong.item(), f"a product of {dtype} is wrong"

    at_once(8, work)
    override.disable()
    assert all(switch.routes is None for switch in override._switches)
    assert torch.equal(doubles @ doubles, expected.to(device))
