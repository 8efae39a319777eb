"""Makes calls that CUDA forbids during graph capture, without breaking the capture.

Loading a module and querying an event are "potentially unsafe" calls: in CUDA's default capture mode they fail while
any thread captures, and invalidate its capture. A thread in relaxed mode may make them. torch allocates in relaxed
mode, but only in the thread that captures.
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
    """Inside, this thread's CUDA calls neither fail because of a capture nor break it, unless they touch the captured
    stream."""
    exchange = _exchange()
    mode = ctypes.c_int(RELAXED)
    if exchange is None or exchange(ctypes.byref(mode)):  # CUDA is missing or not initialised
        yield
        return
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))  # restores the mode that the first exchange returned


def underway(device: torch.device) -> bool:
    """True if the current stream of `device` is captured. `device` must be the current device."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def of_stream(stream: int) -> tuple[int, int] | None:
    """An identity of the capture on `stream`, different for every capture. None if the driver cannot tell.

    stream: handle of a stream that is being captured.
    """
    ask = getattr(context.driver(), "cuStreamGetCaptureInfo", None)
    status, identity = ctypes.c_int(), ctypes.c_uint64()
    if ask is None or ask(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(identity)) or not status.value:
        return None
    return identity.value, stream


@functools.cache
def _exchange():
    """The driver function that swaps the calling thread's capture mode; None without a driver."""
    return getattr(context.driver(), "cuThreadExchangeStreamCaptureMode", None)
