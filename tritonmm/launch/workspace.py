"""Memory in which the parts of a split tile meet: fp32 sums, and flags that are left as they were found.

The sums are torch's to keep: allocated on the current stream, and inside a capture in the graph's
own pool. The flags must be zero once and are clean after every launch, but two launches that
overlap in time must not share them. Launches of one stream do not overlap, so a stream keeps its
flags; a captured launch may be replayed anywhere, so each takes flags of its own for ever, from a
reserve, and where that is spent clears them in the graph.
"""

import threading

import torch

RESERVE = 1 << 18
"""Flags kept for captured launches, 1 MiB a device: a hundred splits of 2,600 captured launches."""


class _Flags:
    """The flags of one device."""

    def __init__(self):
        self.lock = threading.Lock()
        self.streams: dict[int, torch.Tensor] = {}
        self.reserve: torch.Tensor | None = None
        self.taken = 0

    def take(self, count: int, device: torch.device) -> torch.Tensor:
        with self.lock:
            if torch.cuda.is_current_stream_capturing():
                if self.reserve is None or self.taken + count > len(self.reserve):
                    return torch.zeros(count, dtype=torch.int32, device=device)
                self.taken += count
                return self.reserve[self.taken - count : self.taken]
            if self.reserve is None:
                self.reserve = torch.zeros(RESERVE, dtype=torch.int32, device=device)
                torch.cuda.synchronize(device)  # once: other streams will find it cleared
            stream = torch.cuda.current_stream(device).cuda_stream
            flags = self.streams.get(stream)
            if flags is None or len(flags) < count:
                flags = torch.zeros(max(count, 1024), dtype=torch.int32, device=device)
                self.streams[stream] = flags
            return flags


_DEVICES: dict[torch.device, _Flags] = {}
_LOCK = threading.Lock()


def flags(count: int, device: torch.device) -> torch.Tensor:
    """At least `count` int32 flags, for one launch on the current stream of `device`."""
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32, device=device)
    with _LOCK:
        found = _DEVICES.setdefault(device, _Flags())
    return found.take(count, device)
