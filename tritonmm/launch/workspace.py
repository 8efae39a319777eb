"""Workspace and flags of launches whose programs cooperate on a tile; `device/split_k.py` has the protocol.

The workspace needs no initialisation. torch allocates it on the current stream, and inside a capture in the graph's
pool. Flags must be zero before their first launch, and every launch resets their counts, but launches that overlap in
time must not share them:

- Launches of one stream do not overlap, or wait for the previous launch before they use flags. So each stream has its
  own flags, which it clears itself.
- A graph may be replayed on any stream. So the launches of a capture share flags that no other launch gets, taken from
  a reserve. If the reserve is used up, or not known to be cleared yet, each launch clears its own flags in the graph.
"""

import contextlib
from collections.abc import Hashable, Iterator
from contextvars import ContextVar

import torch

from tritonmm import forks
from tritonmm.launch import capture, pools

RESERVE = 1 << 18
"""Flags kept for captured launches, 1 MiB a device: 1,900 graphs whose SM-assigned launches need 136 flags each."""


class Reserve:
    """Flags of one device, the current one: captures take theirs for ever, while there are enough.

    kept: other tensors that captured launches read, by address.
    """

    def __init__(self, device: torch.device):
        self.flags = _lasting_zeros(RESERVE, device)
        self.cleared = torch.cuda.Event()
        self.cleared.record()
        self.lock = forks.lock()
        self.settled = False
        self.taken = 0
        self.captures: dict[Hashable, torch.Tensor] = {}
        self.kept: dict[int, torch.Tensor] = {}

    def take(self, count: int, captured: Hashable = None) -> torch.Tensor | None:
        """`count` flags, the same for the same capture by a stream; of their own where it is None, not known."""
        count = -(-count // 4) * 4  # the next one's address is a multiple of 16 too: kernels are compiled for that
        with self.lock:
            # A replay may come on a stream that is not behind the one that clears the flags, and this one cannot
            # wait for it without a node in the graph. Synchronising would break a capture, of another thread too.
            if not self.settled:
                with capture.relaxed():
                    self.settled = self.cleared.query()
            if not self.settled:
                return None
            found = self.captures.get(captured)
            if found is None or len(found) < count:
                if self.taken + count > RESERVE:
                    return None
                self.taken += count
                found = self.flags[self.taken - count : self.taken]
                if captured is not None:
                    self.captures[captured] = found
            return found


class _Flags:
    """The flags of one device, which is the current one."""

    def __init__(self, device: torch.device):
        self.device = device
        self.lock = forks.lock()
        self.streams: dict[int, torch.Tensor] = {}
        self.reserve: Reserve | None = None

    def take(self, count: int) -> torch.Tensor:
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        if torch.cuda.is_current_stream_capturing():
            reserve = _BORROWED.get() or self.reserve
            found = reserve.take(count, capture.of_stream(stream)) if reserve else None
            return _zeros(count, self.device) if found is None else found
        flags = self.streams.get(stream)
        if flags is None or len(flags) < count:
            with capture.relaxed():
                with self.lock:
                    self.reserve = self.reserve or Reserve(self.device)
                flags = self.streams[stream] = _lasting_zeros(max(count, 1024), self.device)
        return flags


@contextlib.contextmanager
def borrowed(reserve: Reserve) -> Iterator[None]:
    """What is captured meanwhile, by this thread and for the reserve's device, takes its flags from the reserve, which
    also keeps the tensors that it reads.

    It must be kept as long as the graph. It is for whoever captures and drops many: the device's own is never refilled.
    """
    token = _BORROWED.set(reserve)
    try:
        yield
    finally:
        _BORROWED.reset(token)


def _zeros(count: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)


def _lasting_zeros(count: int, device: torch.device) -> torch.Tensor:
    return pools.outside(lambda: _zeros(count, device), device)


_BORROWED: ContextVar[Reserve | None] = ContextVar("tritonmm_reserve", default=None)
_DEVICES: dict[torch.device, _Flags] = {}
_KEPT: dict[int, torch.Tensor] = {}
_LOCK = forks.lock()


def flags(count: int, device: torch.device) -> torch.Tensor:
    """At least `count` int32 flags, for one launch on the current stream of `device`, which is the current device."""
    if device.type != "cuda":
        return _zeros(count, device)
    found = _DEVICES.get(device)
    if found is None:
        with _LOCK:
            found = _DEVICES.setdefault(device, _Flags(device))
    return found.take(count)


def split_k(
    slots: int, tiles: int, elements: int, workers: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Workspace and flags of one launch on the current stream of `device`, as `device/split_k.py` lays them out.

    slots: tiles of partial sums that are kept; elements: of each of them. tiles: those that have flags; workers: the
    warpgroups that own a part of each tile, and have a flag for it.
    """
    return sums(slots * elements, device), flags(tiles * workers, device)


def keep(x: torch.Tensor) -> None:
    """Keeps x, which a captured launch reads: in the reserve that is borrowed, else until the process ends."""
    reserve = _BORROWED.get()
    (_KEPT if reserve is None else reserve.kept)[x.data_ptr()] = x


def sums(count: int, device: torch.device) -> torch.Tensor:
    """`count` fp32 numbers of any value, for one launch on the current stream of `device`."""
    return torch.empty(count, dtype=torch.float32, device=device)
