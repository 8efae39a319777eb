"""Launches a product whose operands are first copied to where TMA can address them.

The copies are torch's to keep: allocated on the current stream at each call, and inside a capture in
the graph's own pool. So launches on several streams never share one, and the next call of a stream
finds the memory free again.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tritonmm.config import Config
from tritonmm.device.repack import repack_kernel
from tritonmm.launch import Plan, early_start, interpreter, strides
from tritonmm.problem import Problem

CACHE_LINE = 128
"""Bytes, and the width of a box that TMA swizzles."""

TILE = 256
"""Words in a tile of the copy, or elements where they are gathered: eight a thread."""

NUM_WARPS = 1
"""What is computed once a line, each warp computes; so a warp has lines of its own."""

TRANSPOSED_SIDE = 64
"""Rows and columns of a tile that is transposed, in shared memory."""

TRANSPOSING_WARPS = 4

RESIDENT = 32
"""Programs that an SM holds: as many blocks as it takes. They have 64 KB on their way to it."""


@dataclass(frozen=True, slots=True)
class RepackPlan:
    """A plan that copies the operands `config.repack` names and does `inner`, the plan of the product of the copies.

    Called as `Plan` is. `kernel` and `arguments` are those of the copy; wave: programs that the GPU holds at once.
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
        """As `Plan.repeated`: each call makes copies."""
        return None

    def arguments(self, a, b, out, **epilogue) -> tuple[tuple, dict]:
        """What the kernel of the first copy is called with: its arguments, and its constants and options."""
        return launch(_launched_together(list(self._copies(a, b).values()))[0], self.wave)[1:]

    def kernels(self, a, b, out, **epilogue) -> Iterator[tuple[Any, tuple, dict]]:
        """The kernels that a call launches, each with its arguments, and its constants and options."""
        copies = self._copies(a, b)
        for alike in _launched_together(list(copies.values())):
            yield self.kernel, *launch(alike, self.wave)[1:]
        a, b = (copies[name].operand if name in copies else x for name, x in (("a", a), ("b", b)))
        yield from self.inner.kernels(a, b, out, **epilogue)

    def _copies(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, "Copy"]:
        operands = zip("ab", (a, b), self.problem.layout, self.inner.problem.layout, strict=True)
        return {name: Copy.of(x, letter, to) for name, x, letter, to in operands if name in self.config.repack}


@dataclass(frozen=True, slots=True)
class Copy:
    """Room for the aligned copy of one operand, not yet filled.

    operand: the room, seen as the product takes it; room: all of it; source: the operand to copy;
    batch, lines, length: its lines, as they are stored; pitch: elements between the starts of two in the room;
    strides: those of the source along batch, lines and elements; strided: whether it is gathered.
    divisor: 0, or where its lines lie across the source's, what divides their length and the strides between them.
    """

    operand: torch.Tensor
    room: torch.Tensor
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
        """x: (batch, rows, columns) or (rows, columns), stored as the letter of its layout says.

        to: the letter of the copy; as its own where not given, "n" of "s".
        """
        to = to or letter.replace("s", "n")
        stride_batch, *steps = strides(x)
        lines, length = x.shape[-2:]
        if to == "t":
            lines, length = length, lines
            steps.reverse()
        batch = x.shape[0] if stride_batch else 1  # what is broadcast is copied once, and broadcast again
        pitch = _pitch_bytes(length * x.element_size()) // x.element_size()
        room = torch.empty(batch * lines * pitch, dtype=x.dtype, device=x.device)
        places = lines * pitch if batch > 1 else 0, *((1, pitch) if to == "t" else (pitch, 1))
        operand = room.as_strided(x.shape, places[-x.dim() :])
        divisor = 0
        if letter not in (to, "s"):
            bits = 16 | lines | steps[1] | stride_batch | x.data_ptr() // x.element_size()
            divisor = bits & -bits
        return cls(operand, room, x, batch, lines, length, pitch, (stride_batch, *steps), letter == "s", divisor)

    @property
    def words(self) -> int:
        """Words of a line, or elements where they are gathered or transposed."""
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

    def programs(self, turns: int) -> int:
        """Programs of `turns` tiles each, one below the other."""
        down = -(-self.lines // (self.tile // self.tile_words * turns))
        return self.batch * down * -(-self.words // self.tile_words)

    @property
    def arguments(self) -> tuple:
        return self.source, self.room, self.lines, self.length, self.pitch, *self.strides


def _pitch_bytes(length: int) -> int:
    """Bytes from one line to the next: a multiple of 16, so that none lies in more cache lines than it must."""
    unit = min(max(16, 1 << (length - 1).bit_length()), CACHE_LINE)
    return -(-length // unit) * unit


def fill(copies: list[Copy], wave: int) -> None:
    """Copies what the rooms are for, on the current stream: in one launch where the tiles are alike.

    wave: programs that the GPU holds at once.
    """
    for alike in _launched_together(copies):
        grid, arguments, options = launch(alike, wave)
        with interpreter.exclusive():
            repack_kernel[(grid,)](*arguments, **options)


def _launched_together(copies: list[Copy]) -> list[list[Copy]]:
    alike = len({(copy.source.dtype, copy.tile_words, copy.strided, copy.divisor) for copy in copies}) == 1
    return [copies] if alike else [[copy] for copy in copies]


def launch(copies: list[Copy], wave: int) -> tuple[int, tuple, dict]:
    """Grid, arguments and options of the kernel that fills one copy, or two whose tiles are alike."""
    x, y = copies[0], copies[-1]
    turns = -(-sum(copy.programs(1) for copy in copies) // wave)  # in one wave each program starts once
    arguments = x.programs(turns), turns, *x.arguments, *y.arguments
    options = {"TILE": x.tile, "WORDS": x.tile_words, "STRIDED": x.strided, "DIVISOR": x.divisor}
    options["num_warps"] = TRANSPOSING_WARPS if x.divisor else NUM_WARPS
    options |= early_start(x.room.device)
    return sum(copy.programs(turns) for copy in copies), arguments, options
