"""The bound that all comparisons use is one that wrong products break."""

import pytest
import torch
from bounds import assert_product


def as_tf32(x):
    """x without the 13 bits of its mantissa that tf32 does not have."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def test_a_product_in_fp32_passes():
    a, b = torch.randn(96, 256), torch.randn(256, 80)
    assert_product(a @ b, a, b)


@pytest.mark.parametrize("inputs", [torch.randn, torch.rand], ids=["signed", "positive"])
def test_a_product_truncated_to_tf32_fails(inputs):
    a, b = inputs(96, 256), inputs(256, 80)
    with pytest.raises(AssertionError, match="are wrong"):
        assert_product(as_tf32(a) @ as_tf32(b), a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_zeroed_tile_fails(dtype):
    a, b = torch.randn(96, 256).to(dtype), torch.randn(256, 80).to(dtype)
    found = (a.double() @ b.double()).to(dtype)
    assert_product(found, a, b)
    found[32:64, 16:32] = 0
    with pytest.raises(AssertionError, match=r"at \(32, 16\)"):
        assert_product(found, a, b)


def test_what_was_never_written_fails():
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    with pytest.raises(AssertionError, match="nan"):
        assert_product(torch.full((8, 8), float("nan")), a, b)
