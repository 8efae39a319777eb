"""Tensors that outlive the call in which they are made, outside of any memory pool of the caller's.

`torch.compile(mode="reduce-overhead")` runs a step in a pool of its own before it captures it, and raises where the
step leaves anything there. The pool is that of a thread, so another thread allocates.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from tritonmm.launch import capture


def outside(make: Callable[[], torch.Tensor], device: torch.device) -> torch.Tensor:
    """What `make` returns on the current stream of `device`, in another thread and in relaxed capture mode."""
    if device.type != "cuda":
        return make()
    stream = torch.cuda.current_stream(device)

    def run() -> torch.Tensor:
        # The device first: to go back to a stream of the thread's own device, 0, makes a context there.
        with torch.cuda.device(device), capture.relaxed(), torch.cuda.stream(stream):
            return make()

    with ThreadPoolExecutor(1) as thread:
        try:
            made = thread.submit(run)
        except RuntimeError:  # the interpreter ends, and starts no threads
            return run()
        return made.result()
