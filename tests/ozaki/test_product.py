"""ozaki_mm: bits of the exact definition, for any strides, batches, panels and values; errors and addends."""

import math

import ozaki_reference as reference
import pytest
import torch

from tritonmm.ozaki import panels
from tritonmm.torch_ops.ozaki import ozaki_mm


def bits(x):
    return x.view(torch.int64 if x.dtype == torch.float64 else torch.int32)


def assert_same_bits(found, expected):
    wrong = (bits(found.contiguous()) != bits(expected.contiguous())).nonzero()
    assert not len(wrong), f"{len(wrong)} differ; {wrong[0].tolist()}: {found[tuple(wrong[0])]!r}, {expected[tuple(wrong[0])]!r}"


def operand(kind, rows, cols, dtype, device):
    x = torch.randn(rows, cols, dtype=dtype, device=device)
    if kind == "spread":
        x = x * torch.exp2(20 * torch.randn_like(x))
    elif kind == "lines":
        x = x * torch.exp2(torch.randint(-60, 60, (rows, 1), device=device))
    elif kind == "integers":
        x = torch.randint(-1000, 1000, (rows, cols), device=device).to(dtype)
    elif kind == "sparse":
        x = x * (torch.rand_like(x) < 0.1)
        x[0] = 0
    elif kind == "uniform":
        x = torch.rand_like(x)
    return x


@pytest.mark.parametrize("kind", ["normal", "uniform", "spread", "lines", "integers", "sparse"])
@pytest.mark.parametrize(("dtype", "moduli"), [
    (torch.float64, 5), (torch.float64, 10), (torch.float64, 14), (torch.float64, 15), (torch.float64, 16),
    (torch.float32, 6), (torch.float32, 7), (torch.float32, 8), (torch.float32, 16),
])  # fmt: skip
def test_bits_are_those_of_exact_integers(kind, dtype, moduli, device):
    a, b = operand(kind, 19, 300, dtype, device), operand(kind, 21, 300, dtype, device).mT
    assert_same_bits(ozaki_mm(a, b, moduli=moduli), reference.product(a, b, moduli))
