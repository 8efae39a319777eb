"""The CUDA context of the calling thread.

torch makes a device's context current in a thread when it first asks the runtime for something that needs one, which a
new thread that only takes memory from torch's cache never does. Encoding a tensor map needs it.
"""

import ctypes
import functools


def bind(index: int) -> None:
    """Makes the primary context of device `index` current in this thread, if it has none."""
    cuda = driver()
    if cuda is None:
        return
    context = ctypes.c_void_p()
    if cuda.cuCtxGetCurrent(ctypes.byref(context)) or context.value:  # no CUDA, or nothing to do
        return
    if not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), index):
        cuda.cuCtxSetCurrent(context)


@functools.cache
def driver() -> ctypes.CDLL | None:
    """The driver's library, or None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
