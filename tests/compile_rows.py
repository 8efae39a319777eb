"""What the compile gate compiles of kernels that multiply no matrices, see `compile_cases.py`."""

from typing import NamedTuple

import torch

from tritonmm import gpu as gpus
from tritonmm.launch import decode_attention
from tritonmm.launch.steps import Step


def quantize_rows_cases():
    """(gpu, dtype): on every target that has fp8."""
    for gpu in map(gpus.spec, ("rtx4090", "h200", "b200", "rtx5090", "mi355x")):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            yield gpu, dtype


class Attention(NamedTuple):
    """Attention of one token of 16 sequences with 8 key heads. is_even: all rows begin at multiples of 16 bytes."""

    heads: int
    dim: int
    value_dim: int
    dtype: torch.dtype = torch.bfloat16
    masked: bool = True
    is_even: bool = True
    length: int = 1000

    def steps(self) -> list[Step]:
        """Its launches, on tensors without memory."""
        query, out = (torch.empty(16, 8 * self.heads, x, dtype=self.dtype, device="meta") for x in self[1:3])
        shape, row = (16, 8, self.length), 0 if self.is_even else 1
        key, value = (torch.empty(*shape, x + row, dtype=self.dtype, device="meta")[..., :x] for x in self[1:3])
        mask = torch.empty(16, self.length, dtype=torch.bool, device="meta") if self.masked else None
        constants = decode_attention.constants_of(query, key, value, mask)
        return decode_attention.steps_of(*decode_attention.arguments(query, key, value, mask, out, 0.1), constants)


def attention_cases():
    """(gpu, attention): for every target, and more for Hopper."""
    for name in gpus.names():
        for attention in (Attention(1, 64, 64), Attention(4, 128, 128), Attention(16, 256, 256)):
            yield gpus.spec(name), attention
    for attention in (
        Attention(8, 128, 128, torch.float16), Attention(4, 128, 128, masked=False), Attention(7, 80, 80),
        Attention(64, 128, 128), Attention(32, 256, 256), Attention(16, 192, 128),
        Attention(4, 128, 128, is_even=False), Attention(4, 128, 128, length=4000), Attention(4, 128, 128, length=9000),
    ):  # fmt: skip
        yield gpus.spec("h200"), attention
