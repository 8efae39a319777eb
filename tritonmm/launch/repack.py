"""Launches a GEMM after copying operands into rows that TMA can address.

The copies are torch tensors, allocated on the current stream at each call, and during capture in the graph's own pool.
So launches on different streams never share a copy, and the next call on a stream reuses the memory.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tritonmm.config import Config
from tritonmm.device.repack import repack_kernel
from tritonmm.launch import Plan, interpreter, launch_options, strides
from tritonmm.problem import Problem

CACHE_LINE = 128
"""Bytes of an L2 cache line, and of the widest TMA box row that TMA can swizzle."""

TILE = 256
"""8-byte words in one tile of a copy, or elements if the copy is strided. Each of the 32 threads copies eight."""

NUM_WARPS = 1
"""One warp, because the address arithmetic of a line is repeated in each warp."""

TRANSPOSED_SIDE = 64
"""Rows and columns of a tile that is transposed through shared memory."""

TRANSPOSING_WARPS = 4
"""Warps of a program that transposes."""

RESIDENT = 32
"""Copy programs per SM: the most CTAs that an SM holds. Together they have 64 KB of loads in flight."""


@dataclass(frozen=True, slots=True)
class RepackPlan:
    """A plan that copies the operands in `config.repack`, then calls `inner`, the plan for the copies.

    It is called as `Plan` is. `kernel` and `arguments` describe the copy kernel.
    wave: copy programs that the GPU holds at once.
    inner: the plan of the same GEMM with aligned operands.
    """

    kernel: ClassVar[Any] = repack_kernel

    problem: Problem
    config: Config
    device: torch.device
    wave: int
    inner: Plan

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, **epilogue) -> torch.Tensor:
        if out.numel() and self.problem.k:
            copies = self._copies(a, b)
            with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
                fill(list(copies.values()), self.wave)
            a, b = (copies[name].operand if name in copies else x for name, x in (("a", a), ("b", b)))
        return self.inner(a, b, out, **epilogue)

    def repeated(self, *tensors) -> None:
        """None: each call has to make new copies. See `Plan.repeated`."""
        return None

    def arguments(self, a, b, out, **epilogue) -> tuple[tuple, dict]:
        """Arguments of the first copy kernel, and its constants and options by name."""
        return launch(_launched_together(list(self._copies(a, b).values()))[0], self.wave)[1:]

    def kernels(self, a, b, out, **epilogue) -> Iterator[tuple[Any, tuple, dict]]:
        """The kernels that a call launches: each with its arguments, and its constants and options by name."""
        copies = self._copies(a, b)
        for together in _launched_together(list(copies.values())):
            yield self.kernel, *launch(together, self.wave)[1:]
        a, b = (copies[name].operand if name in copies else x for name, x in (("a", a), ("b", b)))
        yield from self.inner.kernels(a, b, out, **epilogue)

    def _copies(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, "Copy"]:
        operands = zip("ab", (a, b), self.problem.layout, self.inner.problem.layout, strict=True)
        return {name: Copy.of(x, letter, to) for name, x, letter, to in operands if name in self.config.repack}


@dataclass(frozen=True, slots=True)
class Copy:
    """An allocated, unfilled aligned copy of one operand.

    operand: the copy with the operand's shape, as the GEMM takes it.
    memory: the whole allocation.
    source: the operand to copy.
    batch, lines, length: the copy's contiguous lines: how many, and elements of each.
    pitch: elements from the start of one line to the next in the copy.
    strides: the source's strides along batch, lines and elements.
    strided: True if the source has no contiguous dimension and is copied element by element.
    divisor: 0, or for a transposing copy a power of two that divides the line length and the source's strides.
    """

    operand: torch.Tensor
    memory: torch.Tensor
    source: torch.Tensor
    batch: int
    lines: int
    length: int
    pitch: int
    strides: tuple[int, int, int]
    strided: bool
    divisor: int

    @classmethod
    def of(cls, x: torch.Tensor, letter: str, to: str = "") -> "Copy":
        """Allocates the copy of x.

        x: (batch, rows, columns) or (rows, columns), stored as `letter` of `Problem.layout` says.
        to: the copy's letter; by default `letter`, but "n" instead of "s".
        """
        to = to or letter.replace("s", "n")
        stride_batch, *steps = strides(x)
        lines, length = x.shape[-2:]
        if to == "t":
            lines, length = length, lines
            steps.reverse()
        batch = x.shape[0] if stride_batch else 1  # a broadcast batch is copied once; the copy is broadcast too
        pitch = _pitch_bytes(length * x.element_size()) // x.element_size()
        memory = torch.empty(batch * lines * pitch, dtype=x.dtype, device=x.device)
        copy_strides = lines * pitch if batch > 1 else 0, *((1, pitch) if to == "t" else (pitch, 1))
        operand = memory.as_strided(x.shape, copy_strides[-x.dim() :])
        divisor = 0
        if letter not in (to, "s"):
            bits = 16 | lines | steps[1] | stride_batch | x.data_ptr() // x.element_size()
            divisor = bits & -bits
        return cls(operand, memory, x, batch, lines, length, pitch, (stride_batch, *steps), letter == "s", divisor)

    @property
    def words(self) -> int:
        """8-byte words of a line, or elements if the copy is strided or transposing."""
        by_element = self.strided or self.divisor
        return self.length if by_element else -(-self.length * self.source.element_size() // 8)

    @property
    def tile(self) -> int:
        """Words in a tile."""
        return TRANSPOSED_SIDE**2 if self.divisor else TILE

    @property
    def tile_words(self) -> int:
        """Words of one line in a tile."""
        if self.divisor:
            return TRANSPOSED_SIDE
        return TILE if self.words > TILE // 2 else 32

    def programs(self, tiles_each: int) -> int:
        """Programs that fill this copy if each copies `tiles_each` tiles, one below the other."""
        down = -(-self.lines // (self.tile // self.tile_words * tiles_each))
        return self.batch * down * -(-self.words // self.tile_words)

    @property
    def arguments(self) -> tuple:
        """This copy's arguments of the kernel."""
        return self.source, self.memory, self.lines, self.length, self.pitch, *self.strides


def _pitch_bytes(length: int) -> int:
    """Bytes from one line to the next, for lines of `length` bytes.

    A multiple of 16 bytes, chosen so that no line touches more cache lines than it must.
    """
    unit = min(max(16, 1 << (length - 1).bit_length()), CACHE_LINE)
    return -(-length // unit) * unit


def fill(copies: list[Copy], wave: int) -> None:
    """Fills the copies on the current stream, in one launch if their tiles have the same shape.

    wave: programs that the GPU holds at once.
    """
    for together in _launched_together(copies):
        grid, arguments, options = launch(together, wave)
        with interpreter.exclusive():
            repack_kernel[(grid,)](*arguments, **options)


def _launched_together(copies: list[Copy]) -> list[list[Copy]]:
    """The copies in lists that share a launch."""
    alike = len({(copy.source.dtype, copy.tile_words, copy.strided, copy.divisor) for copy in copies}) == 1
    return [copies] if alike else [[copy] for copy in copies]


def launch(copies: list[Copy], wave: int) -> tuple[int, tuple, dict]:
    """Grid, arguments and options of the kernel that fills one copy, or two copies with tiles of the same shape."""
    x, y = copies[0], copies[-1]
    tiles_each = -(-sum(copy.programs(1) for copy in copies) // wave)  # so that one wave copies everything
    arguments = x.programs(tiles_each), tiles_each, *x.arguments, *y.arguments
    options = {"TILE": x.tile, "WORDS": x.tile_words, "STRIDED": x.strided, "DIVISOR": x.divisor}
    options |= launch_options(x.memory.device, num_warps=TRANSPOSING_WARPS if x.divisor else NUM_WARPS)
    return sum(copy.programs(tiles_each) for copy in copies), arguments, options
