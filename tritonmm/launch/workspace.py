"""Memory in which the parts of a split tile meet: fp32 sums, and flags that are left as they were found.

The sums are torch's to keep: allocated on the current stream, and inside a capture in the graph's
own pool. The flags must be zero once and are clean after every launch, but two launches that
overlap in time must not share them. Launches of one stream do not overlap, so a stream keeps its
flags, which it clears itself; a captured launch may be replayed anywhere, so each takes flags of its
own for ever, from a reserve, and where that is spent, or not known to be cleared, clears them in the graph.
"""

import threading

import torch

from tritonmm.launch import capture

RESERVE = 1 << 18
"""Flags kept for captured launches, 1 MiB a device: a hundred splits of 2,600 captured launches."""


class _Flags:
    """The flags of one device, which is the current one."""

    def __init__(self, device: torch.device):
        self.device = device
        self.lock = threading.Lock()
        self.streams: dict[int, torch.Tensor] = {}
        self.reserve: torch.Tensor | None = None
        self.cleared = torch.cuda.Event()
        self.settled = False
        self.taken = 0

    def take(self, count: int) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            return self._take_for_ever(count)
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        flags = self.streams.get(stream)
        if flags is None or len(flags) < count:
            with capture.relaxed():
                self._make_reserve()
                flags = self.streams[stream] = self._zeros(max(count, 1024))
        return flags

    def _make_reserve(self) -> None:
        """On the current stream, which is not capturing."""
        with self.lock:
            if self.reserve is None:
                self.reserve = self._zeros(RESERVE)
                self.cleared.record()

    def _take_for_ever(self, count: int) -> torch.Tensor:
        count = -(-count // 4) * 4  # the next one's address is a multiple of 16 too: kernels are compiled for that
        with self.lock:
            # A replay may come on a stream that is not behind the one that clears the reserve, and this one cannot
            # wait for it without a node in the graph. Synchronising would break a capture, of another thread too.
            if self.reserve is not None and not self.settled:
                with capture.relaxed():
                    self.settled = self.cleared.query()
            if not self.settled or self.taken + count > RESERVE:
                return self._zeros(count)
            self.taken += count
            return self.reserve[self.taken - count : self.taken]

    def _zeros(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.int32, device=self.device)


_DEVICES: dict[torch.device, _Flags] = {}
_LOCK = threading.Lock()


def flags(count: int, device: torch.device) -> torch.Tensor:
    """At least `count` int32 flags, for one launch on the current stream of `device`, which is the current device."""
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32, device=device)
    found = _DEVICES.get(device)
    if found is None:
        with _LOCK:
            found = _DEVICES.setdefault(device, _Flags(device))
    return found.take(count)


def sums(count: int, device: torch.device) -> torch.Tensor:
    """`count` fp32 numbers of any value, for one launch on the current stream of `device`."""
    return torch.empty(count, dtype=torch.float32, device=device)
