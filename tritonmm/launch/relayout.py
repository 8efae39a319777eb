"""Launches a product whose operands are first copied to where TMA can address them.

The copies are torch's to keep: allocated on the current stream at each call, and inside a capture in
the graph's own pool. So launches on several streams never share one, and the next call of a stream
finds the memory free again.
"""

import contextlib
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tritonmm.config import Config
from tritonmm.kernels.relayout import relayout_kernel
from tritonmm.launch import Plan, strides
from tritonmm.problem import Problem

PITCH_BYTES = 128
"""What the start of each line of a copy is a multiple of: a cache line, and the width of a box that TMA swizzles."""

TILE = 1024
"""Words that a program copies, or elements that it gathers: four a thread."""

NUM_WARPS = 8


@dataclass(frozen=True, slots=True)
class RelayoutPlan:
    """A plan that copies the operands `config.relayout` names and does `inner`, the plan of the product of the copies.

    Called as `Plan` is. `kernel` and `arguments` are those of the copy.
    """

    kernel: ClassVar[Any] = relayout_kernel

    problem: Problem
    config: Config
    device: torch.device
    inner: Plan

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, **epilogue) -> torch.Tensor:
        if out.numel() and self.problem.k:
            copies = self._copies(a, b)
            arguments, options = _arguments(list(copies.values()))
            grid = (sum(copy.tiles for copy in copies.values()),)
            with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
                self.kernel[grid](*arguments, **options)
            a, b = (copies[name].operand if name in copies else x for name, x in (("a", a), ("b", b)))
        return self.inner(a, b, out, **epilogue)

    def arguments(self, a, b, out, **epilogue) -> tuple[tuple, dict]:
        """What the kernel of the copy is called with: its arguments, and its constants and options."""
        return _arguments(list(self._copies(a, b).values()))

    def _copies(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, "_Copy"]:
        operands = zip("ab", (a, b), self.problem.layout, strict=True)
        return {name: _copy(x, letter) for name, x, letter in operands if name in self.config.relayout}


@dataclass(frozen=True, slots=True)
class _Copy:
    """Room for the copy of one operand.

    operand: the room, as the product takes it; arguments: what the kernel takes for it; words: how many of a line a
    tile has; tiles: programs that copy it; strided: whether it is gathered.
    """

    operand: torch.Tensor
    arguments: tuple
    words: int
    tiles: int
    strided: bool


def _copy(x: torch.Tensor, letter: str) -> _Copy:
    stride_batch, *steps = strides(x)
    sizes = list(x.shape[-2:])
    if letter == "t":
        sizes.reverse()
        steps.reverse()
    lines, length = sizes
    batch = x.shape[0] if stride_batch else 1  # what is broadcast is copied once, and broadcast again
    pitch = -(-length * x.element_size() // PITCH_BYTES) * PITCH_BYTES // x.element_size()
    room = torch.empty(batch * lines * pitch, dtype=x.dtype, device=x.device)
    places = (1, pitch) if letter == "t" else (pitch, 1)
    operand = room.as_strided(x.shape, (lines * pitch if batch > 1 else 0, *places)[-x.dim() :])
    strided = letter == "s"
    words = length if strided else -(-length * x.element_size() // 8)
    tile_words = 256 if words > 128 else 32
    tiles = batch * -(-lines // (TILE // tile_words)) * -(-words // tile_words)
    return _Copy(operand, (x, room, lines, length, pitch, stride_batch, *steps), tile_words, tiles, strided)


def _arguments(copies: list[_Copy]) -> tuple[tuple, dict]:
    x, y = copies[0], copies[1] if len(copies) == 2 else None
    arguments = x.tiles, *x.arguments, *(y.arguments if y else (None, None, 0, 0, 0, 0, 0, 0))
    options = {
        "TILE": TILE, "X_WORDS": x.words, "Y_WORDS": y.words if y else 0,
        "X_STRIDED": x.strided, "Y_STRIDED": y.strided if y else False,
        "num_warps": NUM_WARPS,
    }  # fmt: skip
    return arguments, options
