"""The CUDA context of the calling thread.

Encoding a tensor map needs a current context. torch makes one current when a thread first makes a runtime call that
needs it. A new thread that only takes memory from torch's cache makes no such call.
"""

import ctypes
import functools


def bind(index: int) -> None:
    """Makes the primary context of device `index` current in this thread, if the thread has none."""
    cuda = driver()
    if cuda is None:
        return
    context = ctypes.c_void_p()
    if cuda.cuCtxGetCurrent(ctypes.byref(context)) or context.value:  # CUDA is not initialised, or there is a context
        return
    if not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), index):
        cuda.cuCtxSetCurrent(context)


@functools.cache
def driver() -> ctypes.CDLL | None:
    """The CUDA driver library; None if it is not installed."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
