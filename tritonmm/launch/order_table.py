"""Device tables of the tile orders that have no closed form. `device.order.tile_at` reads them.

Plans with the same order, grid of tiles and device share one int32 table. It is freed with the last plan; torch's
allocator then waits for the launches of all streams that read it. A CUDA graph keeps only the table's address. So a
captured launch keeps its table until the process ends: 4 bytes a tile (32 KiB for 16384 x 16384 in tiles of 128 x 256)
for each order and grid, however many graphs use it. Code that captures and drops many graphs can lend a reserve
instead, see `workspace.borrowed`.
"""

import ctypes
from weakref import WeakValueDictionary

import torch

from tritonmm import forks
from tritonmm.launch import capture, context, pools, workspace
from tritonmm.orders import Order

NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: the stream does not synchronise with the legacy default stream."""


def of(order: Order, tiles: tuple[int, int], device: torch.device) -> torch.Tensor:
    """The table of `order` for a grid of (tiles_m, tiles_n) tiles on `device`, ready for launches on any stream.

    A new table is copied on a separate stream in relaxed capture mode, and the host waits for that copy alone. So a
    table can be made while this or another thread captures a graph, and it does not become part of the graph.
    """
    key = order, tiles, device
    with _LOCK:
        table = _TABLES.get(key)
        if table is None:
            host = torch.from_numpy(order.linear(*tiles))
            table = _TABLES[key] = pools.outside(lambda: _uploaded(host, device), device)
        return table


def retain(table: torch.Tensor) -> None:
    """Keeps the memory of `table` alive for a launch on the current stream of the table's device."""
    if capture.underway(table.device):
        workspace.keep(table)
    elif table.device.type == "cuda":
        table.record_stream(torch.cuda.current_stream(table.device))


def _uploaded(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """host on `device`, copied on the upload stream of that device. Call it in relaxed capture mode."""
    if device.type != "cuda":
        return host.to(device)
    with torch.cuda.device(device):
        if device not in _STREAMS:
            _STREAMS[device] = _stream(device)
        with torch.cuda.stream(_STREAMS[device]):
            return host.to(device)


def _stream(device: torch.device) -> torch.cuda.Stream:
    """A new stream of the current device. torch's pool is not used, because it may return the stream that is being
    captured."""
    context.bind(device.index)
    handle = ctypes.c_void_p()
    create = getattr(context.driver(), "cuStreamCreate", None)
    if create is None or create(ctypes.byref(handle), NON_BLOCKING):
        return torch.cuda.Stream(device)
    return torch.cuda.ExternalStream(handle.value, device)


_TABLES: WeakValueDictionary[tuple[Order, tuple[int, int], torch.device], torch.Tensor] = WeakValueDictionary()
_STREAMS: dict[torch.device, torch.cuda.Stream] = {}
_LOCK = forks.lock()
