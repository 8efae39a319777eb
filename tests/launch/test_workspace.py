"""Memory of launches: who may share flags, and who must not."""

import weakref

import pytest
import torch

import tritonmm
from tritonmm import orders
from tritonmm.config import Config
from tritonmm.launch import order_table, workspace


class Streams:
    """What `workspace` asks of torch.cuda, for one thread."""

    def __init__(self, monkeypatch):
        self.stream, self.capturing, self.done = 1, False, False
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(torch.cuda, "Event", lambda: self)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: self.stream, raising=False)
        self.flags = workspace._Flags(torch.device("cpu"))

    def record(self):
        assert not self.capturing

    def query(self):
        return self.done

    def take(self, count, stream=1, capturing=False):
        self.stream, self.capturing = stream, capturing
        found = self.flags.take(count)
        assert not found.count_nonzero()
        return set(range(found.data_ptr(), found.data_ptr() + 4 * count, 4)), found


def test_streams_keep_flags_of_their_own(monkeypatch):
    streams = Streams(monkeypatch)
    first, _ = streams.take(100, stream=1)
    second, _ = streams.take(100, stream=2)
    assert not first & second
    assert streams.take(100, stream=1)[0] == first
    assert len(streams.take(5000, stream=1)[0]) == 5000


def test_a_stream_shares_flags_in_one_capture(monkeypatch):
    streams = Streams(monkeypatch)
    streams.take(1)
    streams.done = True

    def take(count, captured):
        monkeypatch.setattr(workspace.capture, "of_stream", lambda stream: captured)
        return streams.take(count, capturing=True)[0]

    first = take(100, (7, 1))
    assert take(100, (7, 1)) == first
    assert take(60, (7, 1)) < first
    others = [take(100, captured) for captured in ((7, 2), (8, 1), None, None)]
    more = take(200, (7, 1))
    assert take(100, (7, 1)) < more
    assert len(set().union(first, more, *others)) == 100 + 200 + 4 * 100


def test_captured_launches_share_no_flags_if_nobody_knows_their_capture(monkeypatch):
    monkeypatch.setattr(workspace.capture, "of_stream", lambda stream: None)
    streams = Streams(monkeypatch)

    def in_reserve(x):
        reserve = streams.flags.reserve
        return reserve is not None and 0 <= x.data_ptr() - reserve.flags.data_ptr() < 4 * workspace.RESERVE

    assert not in_reserve(streams.take(100, capturing=True)[1])  # there is none yet: cleared in the graph
    assert not in_reserve(streams.take(100)[1])
    assert not in_reserve(streams.take(100, capturing=True)[1])  # nobody knows whether it is cleared
    streams.done = True
    taken = set()
    for count in (100, 1, 1000):
        mine, found = streams.take(count, capturing=True)
        assert in_reserve(found)
        assert found.data_ptr() % 16 == 0
        assert not mine & taken
        taken |= mine
    streams.capturing = False
    with workspace.borrowed(workspace.Reserve(torch.device("cpu"))):
        assert not in_reserve(streams.take(1000, capturing=True)[1])
    assert in_reserve(streams.take(100, capturing=True)[1])
    assert not in_reserve(streams.take(workspace.RESERVE, capturing=True)[1])  # too little is left


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # torch's compiler's own
@pytest.mark.parametrize("config", [
    Config("skinny", 16, 64, 64, 3, 4, 2), Config("tile", 32, 32, 64, 3, 4, order=orders.Hilbert()),
], ids=["flags", "table"])  # fmt: skip
def test_nothing_stays_in_the_pool_of_inductors_cuda_graphs(config, monkeypatch, device):
    """Inductor raises if memory of the pool is still in use after a run. The first run makes flags and tables."""
    monkeypatch.setattr(workspace, "_DEVICES", {})
    monkeypatch.setattr(order_table, "_TABLES", weakref.WeakValueDictionary())
    torch.compiler.reset()
    a, b = (torch.randint(-4, 5, (256, 256), device=device).bfloat16() for _ in range(2))
    run = torch.compile(lambda: tritonmm.mm(a, b, config=config) + 1, mode="reduce-overhead")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        assert torch.equal(run(), (a.float() @ b.float()).bfloat16() + 1)
