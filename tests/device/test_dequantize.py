"""What weights are multiplied by in place of their scales, in Triton's interpreter or on a GPU."""

import pytest
import torch
import triton
import triton.language as tl

from tritonmm.device.dequantize import power_and_significand


@triton.jit
def divide_kernel(scales, powers, significands, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    power, significand = power_and_significand(tl.load(scales + at))
    tl.store(powers + at, power)
    tl.store(significands + at, significand)


def divided(scales, device):
    scales = scales.to(device)
    powers = torch.empty(len(scales), dtype=torch.bfloat16, device=device)
    significands = torch.empty_like(scales)
    divide_kernel[(1,)](scales, powers, significands, len(scales))
    return powers.float().cpu(), significands.cpu()


@pytest.mark.parametrize("sign", [1, -1])
def test_scales_are_a_power_of_two_times_a_rest_exactly(sign, device):
    mantissas = torch.cat([1 + torch.rand(254), torch.ones(2)])
    scales = sign * torch.ldexp(mantissas, torch.cat([torch.arange(-126, 128), torch.tensor([-126, 0])]))
    powers, significands = divided(scales, device)
    assert torch.equal(powers.double() * significands.double(), scales.double())
    assert (powers <= 1).all()
    assert torch.equal(torch.frexp(powers)[0], torch.full_like(powers, 0.5))
    small = scales.abs() < 2
    assert ((1 <= significands.abs()) & (significands.abs() < 2))[small].all()


def test_scales_that_are_no_normal_numbers(device):
    """Those that are too small count as 0, with a significand that can be divided by; others stay what they are."""
    scales = torch.tensor([0.0, -0.0, 2.0**-127, -(2.0**-149), torch.inf, -torch.inf, torch.nan, torch.finfo().max])
    powers, significands = divided(scales, device)
    assert torch.equal(powers[:4], torch.zeros(4))
    assert torch.equal(significands[:4], torch.ones(4))
    torch.testing.assert_close(powers[4:] * significands[4:], scales[4:], rtol=0, atol=0, equal_nan=True)
