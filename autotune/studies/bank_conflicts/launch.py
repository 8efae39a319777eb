"""Launches the transpose, chooses its shared layout, and counts the layout's bank conflicts.

To store vectors along the rows of the output, a warp reads columns of the tile from shared memory: 32 words of 4 bytes
at once, which are 128 bytes down a few columns. With V output elements in a vector, value j of thread t is in row V * t
+ j. If the row length is a power of two, all these rows are in the same banks. So row group t (the "phase") has to
move:

    plain       not at all: a read has as many ways as threads in one column
    padded      by one chunk more than the group before: a chunk of padding after every V rows
    swizzled    to chunk ^ phase

A chunk is the widest vector, and at least one 4-byte word, so that vectors are written whole.
"""

import functools
from dataclasses import dataclass

import torch
from triton.experimental.gluon import language as gl

from tritonmm.autotune.studies.bank_conflicts.kernel import transpose_kernel
from tritonmm.launch import FUSION
from tritonmm.layouts import (
    Conflicts,
    Layout,
    Swizzle,
    Swizzled,
    blocked,
    composition,
    partition,
    to_triton,
    warp_conflicts,
)

LAYOUTS = ("plain", "padded", "swizzled")
VECTOR_BYTES = 16
"""Bytes of the widest access of one thread."""

PHASE_BYTES = 128
"""Bytes that shared memory serves at once."""

_SHAPES = {1: (128, 128), 2: (128, 64), 4: (64, 64)}
"""Rows and columns of a 16 KiB tile, by the bytes of an element."""

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}
"""The integer dtype of each element size."""


@dataclass(frozen=True, slots=True)
class TransposeTile:
    """A tile of the transpose: its shared layout, and the accesses of its threads.

    layout: a name in `LAYOUTS`.
    elem_bytes: 1, 2 or 4.
    load_vector, store_vector: elements that a thread loads from the input, and stores to the output, at once.
    """

    layout: str
    elem_bytes: int
    load_vector: int
    store_vector: int

    def __post_init__(self):
        if self.layout not in LAYOUTS:
            raise ValueError(f"transpose: layout is {self.layout!r}; it must be one of {', '.join(LAYOUTS)}")
        if self.elem_bytes not in _SHAPES:
            raise NotImplementedError(f"transpose: elements have {self.elem_bytes} bytes; they must have 1, 2 or 4")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return _SHAPES[self.elem_bytes]

    @property
    def chunk(self) -> int:
        """Elements that stay together in shared memory."""
        return max(self.load_vector, self.store_vector, 4 // self.elem_bytes)

    @property
    def phases(self) -> int:
        """Threads of a warp that read the same column."""
        return PHASE_BYTES // (self.chunk * self.elem_bytes)

    @property
    def shared(self) -> Layout | Swizzled:
        """The offset of each (row, column) in shared memory, in elements."""
        rows, cols = self.shape
        group = self.store_vector * cols
        if self.layout == "padded":
            grouped = (self.store_vector, rows // self.store_vector)
            return Layout((grouped, cols), ((cols, group + self.chunk), 1))
        plain = Layout.row_major(rows, cols)
        if self.layout == "plain":
            return plain
        m = self.chunk.bit_length() - 1
        return composition(Swizzle(self.phases.bit_length() - 1, m, group.bit_length() - 1 - m), plain)

    @property
    def num_warps(self) -> int:
        """4, or more for scalars smaller than a word, of which a thread would otherwise hold too many."""
        rows, cols = self.shape
        scalars = 4 // min(4, self.elem_bytes * min(self.load_vector, self.store_vector))
        readers = rows // (self.phases * self.store_vector) * (cols // self._read_cols)
        return min(4 * scalars, readers)

    @property
    def _read_cols(self) -> int:
        """Columns that a warp reads at once: one word for each of 32 / phases threads."""
        return 32 // self.phases * max(1, 4 // self.elem_bytes)

    @property
    def load(self) -> tuple[tuple[int, int], ...]:
        """size_per_thread, threads_per_warp, warps and order with which the tile is loaded and written to shared
        memory."""
        lanes = min(32, self.shape[1] // self.load_vector)
        return (1, self.load_vector), (32 // lanes, lanes), (self.num_warps, 1), (1, 0)

    @property
    def store(self) -> tuple[tuple[int, int], ...]:
        """The same for reading and storing: a thread has one word of each of `store_vector` rows."""
        word = max(1, 4 // self.elem_bytes)
        across = min(self.num_warps, self.shape[1] // self._read_cols)
        warps = self.num_warps // across, across
        return (self.store_vector, word), (self.phases, 32 // self.phases), warps, (0, 1)

    def conflicts(self) -> tuple[list[Conflicts], list[Conflicts]]:
        """The conflicts of each instruction of each warp: of those that write the tile, and of those that read it."""
        return tuple(
            warp_conflicts(partition(self.shared, blocked(self.shape, *access), self.shape), self.elem_bytes)
            for access in (self.load, self.store)
        )

    def constants(self) -> dict:
        """The kernel's constexpr arguments."""
        return {
            "ROWS": self.shape[0], "COLS": self.shape[1],
            "LOAD_VECTOR": self.load_vector, "STORE_VECTOR": self.store_vector,
            "LOAD": gl.BlockedLayout(*map(list, self.load)), "STORE": gl.BlockedLayout(*map(list, self.store)),
            "SHARED": to_triton(self.shared), "num_warps": self.num_warps,
        }  # fmt: skip


def transpose(x: torch.Tensor, *, layout: str = "swizzled", out: torch.Tensor | None = None) -> torch.Tensor:
    """The transpose of x as a new contiguous tensor, or in `out`.

    x: (m, n), on a GPU, of any dtype of 1, 2 or 4 bytes and any strides. Rows are moved in vectors if their length,
        stride and address are multiples of 16 bytes; the same holds for out.
    layout: shared layout of a tile, "plain", "padded" or "swizzled". It does not change the result.
    out: (n, m), of x's dtype and device.

    Raises NotImplementedError for other dtypes; RuntimeError for tensors that are not 2-D or not on a GPU, for an out
    that does not fit, and if a gradient would be lost.
    """
    if x.dim() != 2 or not x.is_cuda:
        raise RuntimeError(f"transpose: x must be a matrix on a GPU; it has {x.dim()} dimensions and is on {x.device}")
    if torch.is_grad_enabled() and (x.requires_grad or (out is not None and out.requires_grad)):
        raise RuntimeError("transpose does not support automatic differentiation, but a tensor requires grad")
    m, n = x.shape
    x = x.resolve_conj().resolve_neg()
    if out is None:
        out = torch.empty(n, m, dtype=x.dtype, device=x.device)
    elif out.shape != (n, m) or out.dtype != x.dtype or out.device != x.device:
        raise RuntimeError(
            f"transpose: out must be {n}x{m} of {x.dtype} on {x.device}; it is {'x'.join(map(str, out.shape))} of"
            f" {out.dtype} on {out.device}"
        )
    elif out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() or out.is_conj() or out.is_neg():
        return out.copy_(transpose(x, layout=layout))
    if any(size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise RuntimeError("transpose: several elements of out share one memory location; clone() it first")
    tile = tile_for(x, out, layout)
    torch.autograd.graph.increment_version(out)
    if x.numel():
        with torch.cuda.device(x.device):
            launch(x, out, tile)
    return out


def tile_for(x: torch.Tensor, out: torch.Tensor, layout: str) -> TransposeTile:
    """The tile with the widest vectors that both tensors allow."""
    return TransposeTile(layout, x.element_size(), _vector(x), _vector(out))


def launch(x: torch.Tensor, out: torch.Tensor, tile: TransposeTile) -> None:
    """out = x.mT with such tiles, on the current stream of the current device."""
    arguments, options = arguments_of(x, out, tile)
    rows, cols = tile.shape
    transpose_kernel[(-(-x.shape[0] // rows) * -(-x.shape[1] // cols),)](*arguments, **options)


def arguments_of(x: torch.Tensor, out: torch.Tensor, tile: TransposeTile) -> tuple[tuple, dict]:
    """The kernel's arguments, and its constants and options by name."""
    view = INTEGERS[tile.elem_bytes]
    spans = *x.stride(), *out.stride()
    arguments = x.view(view), out.view(view), *x.shape, *spans
    return arguments, {**_constants(tile), "WIDE": max(spans) * sum(tile.shape) >= 2**31}


@functools.lru_cache(maxsize=256)
def _constants(tile: TransposeTile) -> dict:
    return tile.constants() | FUSION


def _vector(x: torch.Tensor) -> int:
    """Elements of a row that can be accessed at once."""
    if x.stride(1) != 1 or x.data_ptr() % VECTOR_BYTES:
        return 1
    bits = VECTOR_BYTES | x.stride(0) * x.element_size() | x.shape[1] * x.element_size()
    return (bits & -bits) // x.element_size()
