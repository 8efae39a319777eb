"""What the compile gate compiles of rows that become fp8, see `compile_cases.py`."""

import torch

from tritonmm import gpu as gpus


def quantize_rows_cases():
    """(gpu, dtype): on every target that has fp8."""
    for gpu in map(gpus.spec, ("rtx4090", "h200", "b200", "rtx5090", "mi355x")):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            yield gpu, dtype
