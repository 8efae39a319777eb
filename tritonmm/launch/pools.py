"""Memory of tensors that outlive the call in which they are made, outside of any memory pool of the caller's.

`torch.compile(mode="reduce-overhead")` runs a graph once in a memory pool before it captures it, and raises
RuntimeError if memory of the pool is still in use afterwards. torch selects the pool by thread, so another allocates.
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
        # The device is set first. The thread's own is 0, and restoring a stream of 0 would create a context there.
        with torch.cuda.device(device), capture.relaxed(), torch.cuda.stream(stream):
            return make()

    with ThreadPoolExecutor(1) as thread:
        try:
            made = thread.submit(run)
        except RuntimeError:  # at the interpreter's exit, where no thread can be started
            return run()
        return made.result()
