"""Allocations that last are made by another thread, as the pool of a caller is that of its thread."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tritonmm.launch import pools

CUDA = torch.device("cuda", 1)


@pytest.fixture
def entered(monkeypatch):
    """What is entered of torch.cuda, in turn."""
    found = []

    @contextlib.contextmanager
    def enter(x):
        found.append(x)
        yield

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "device", enter)
    monkeypatch.setattr(torch.cuda, "stream", enter)
    return found


def test_another_thread_allocates_on_the_callers_stream(entered):
    assert pools.outside(threading.get_ident, CUDA) != threading.get_ident()
    assert entered == [CUDA, "stream of cuda:1"]  # a stream first would make a context on the thread's own device
    with pytest.raises(torch.OutOfMemoryError):
        pools.outside(lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("none left")), CUDA)


def test_the_caller_allocates_on_the_cpu_and_when_no_thread_starts(entered, monkeypatch):
    assert pools.outside(threading.get_ident, torch.device("cpu")) == threading.get_ident()

    def refuses(self, run):
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuses)
    assert pools.outside(threading.get_ident, CUDA) == threading.get_ident()
