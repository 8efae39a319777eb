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
        with torch.cuda.stream(stream), capture.relaxed():
            return make()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()
