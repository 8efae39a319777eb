"""Calls that CUDA forbids while a graph is captured anywhere in the process, made without harm to the capture.

Loading a module or asking for an event is "potentially unsafe": in CUDA's default capture mode it fails, and
invalidates the capture, of another thread too. A thread in relaxed mode may make such calls; torch allocates like that,
but only in a thread that captures itself.
"""

import contextlib
import ctypes
import functools
from collections.abc import Iterator

import torch

from tritonmm.launch import context

RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED."""


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """This thread's calls neither fail because of a capture nor break it, as long as they do not touch it."""
    exchange = _exchange()
    mode = ctypes.c_int(RELAXED)
    if exchange is None or exchange(ctypes.byref(mode)):  # no CUDA here, or not initialised: there is no capture
        yield
        return
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))  # the former mode


def underway(device: torch.device) -> bool:
    """Whether a graph captures the current stream of `device`, which is the current device."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def of_stream(stream: int) -> tuple[int, int] | None:
    """What tells the capture of that stream, which is capturing, from all others; None where the driver cannot say."""
    ask = getattr(context.driver(), "cuStreamGetCaptureInfo", None)
    status, identity = ctypes.c_int(), ctypes.c_uint64()
    if ask is None or ask(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(identity)) or not status.value:
        return None
    return identity.value, stream


@functools.cache
def _exchange():
    """The driver's function that swaps the calling thread's capture mode, or None without a driver."""
    return getattr(context.driver(), "cuThreadExchangeStreamCaptureMode", None)
