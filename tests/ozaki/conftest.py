"""Operands of exact products."""

import pytest
import torch


@pytest.fixture(params=[torch.float64, torch.float32], ids=["fp64", "fp32"])
def dtype(request):
    return request.param


@pytest.fixture
def normal(dtype, device):
    """Normal numbers of that dtype, by shape."""
    return lambda *shape: torch.randn(shape, dtype=dtype, device=device)
