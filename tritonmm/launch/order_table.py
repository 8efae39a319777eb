"""Tables of tile orders in device memory, for orders without a closed form: `device.order.tile_at` reads them.

Plans of the same order and grid of tiles on a device share one table of int32, and it is freed with the last of them:
the allocator then waits for the launches of all streams that have read it. A CUDA graph keeps only the table's
address, so a launch that is captured keeps the table until the process ends. That costs 4 bytes a tile (32 KiB for
16384 x 16384 in tiles of 128 x 256) for each order and grid that any graph of the process has captured, however many
graphs have. Code that captures and drops many graphs lends a reserve for them, see `workspace.borrowed`.
"""

import contextlib
import ctypes
from weakref import WeakValueDictionary

import torch

from tritonmm import forks
from tritonmm.launch import capture, context, workspace
from tritonmm.orders import Order

NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: the stream does not wait for the legacy default stream."""


def of(order: Order, tiles: tuple[int, int], device: torch.device) -> torch.Tensor:
    """The table of `order` for a grid of (tiles_m, tiles_n) tiles, on `device`: complete, for launches on any stream.

    A new table is copied on a stream of its own, in relaxed capture mode. The host waits for that copy and for nothing
    else, so a table may be made while a graph is captured, by this thread or another, and is no part of that graph.
    """
    key = order, tiles, device
    with _LOCK:
        table = _TABLES.get(key)
        if table is None:
            host = torch.from_numpy(order.linear(*tiles))
            with _uploading(device):
                table = _TABLES[key] = host.to(device)
        return table


def retain(table: torch.Tensor) -> None:
    """Keeps the memory of `table` for a launch on the current stream, that of the table's device."""
    if capture.underway(table.device):
        workspace.keep(table)
    elif table.device.type == "cuda":
        table.record_stream(torch.cuda.current_stream(table.device))


@contextlib.contextmanager
def _uploading(device: torch.device):
    """Makes the stream that tables are copied on the current one."""
    if device.type != "cuda":
        yield
        return
    with capture.relaxed(), torch.cuda.device(device):
        if device not in _STREAMS:
            _STREAMS[device] = _stream(device)
        with torch.cuda.stream(_STREAMS[device]):
            yield


def _stream(device: torch.device) -> torch.cuda.Stream:
    """A stream of the current device that nothing else uses: one of torch's pool may be the one that is captured."""
    context.bind(device.index)
    handle = ctypes.c_void_p()
    create = getattr(context.driver(), "cuStreamCreate", None)
    if create is None or create(ctypes.byref(handle), NON_BLOCKING):
        return torch.cuda.Stream(device)
    return torch.cuda.ExternalStream(handle.value, device)


_TABLES: WeakValueDictionary[tuple[Order, tuple[int, int], torch.device], torch.Tensor] = WeakValueDictionary()
_STREAMS: dict[torch.device, torch.cuda.Stream] = {}
_LOCK = forks.lock()
