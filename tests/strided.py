"""Operands as callers have them: views of any strides, at any alignment."""

import torch


def strided(memory: torch.Tensor, shape: tuple[int, ...], layout: str, offset: int) -> torch.Tensor:
    """A vector, a matrix or a stack of them somewhere in `memory`, which starts at a multiple of 16 bytes."""
    assert memory.data_ptr() % 16 == 0
    rows, cols = (1, 1, *shape)[-2:]
    strides = {
        "rows": (cols, 1),
        "columns": (1, rows),
        "padded rows": (cols + 1, 1),
        "padded columns": (1, rows + 8),
        "every other": (2 * cols, 2),
    }[layout]
    stack = rows * cols if layout in ("rows", "columns") else 2 * (rows + 8) * (cols + 8)
    return memory.as_strided(shape, (stack, *strides)[3 - len(shape) :], offset)
