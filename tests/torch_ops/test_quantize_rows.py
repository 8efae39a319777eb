"""quantize_rows: codes and scales of rows, bit by bit."""

import pytest
import torch

import tritonmm
from tritonmm.launch import quantize_rows as launch
from tritonmm.torch_ops.quantize_rows import quantize_rows


def expected(x):
    """On the CPU: on a GPU torch multiplies by the reciprocal of 448."""
    device, x = x.device, x.float().cpu()
    scale = (x.abs().amax(1, keepdim=True) / 448).clamp(min=2.0**-126)
    return (x / scale).to(torch.float8_e4m3fn).to(device), scale.to(device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 4096), (2, 5000), (33, 130)], ids=str)
def test_codes_and_scales(shape, dtype, device):
    x = torch.randn(shape, device=device).to(dtype)
    x[0, 0] = 0
    codes, scales = quantize_rows(x)
    of_torch, scale = expected(x)
    assert torch.equal(scales, scale)
    assert torch.equal(codes.view(torch.uint8), of_torch.view(torch.uint8))
    assert codes.float().abs().amax(1).eq(448).all() or not x.any()


@pytest.mark.parametrize("view", ["transposed", "every other", "rows of a wider matrix", "broadcast"])
def test_any_strides(view, device):
    x = torch.randn(48, 64, device=device, dtype=torch.bfloat16)
    x = {"transposed": x.t(), "every other": x[:, ::2], "rows of a wider matrix": x[3:20, 5:50],
         "broadcast": x[:1].expand(9, 64)}[view]  # fmt: skip
    codes, scales = quantize_rows(x)
    of_torch, scale = expected(x)
    assert codes.is_contiguous()
    assert torch.equal(scales, scale)
    assert torch.equal(codes.view(torch.uint8), of_torch.view(torch.uint8))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", [0, 4095, 4999])
def test_a_row_that_is_not_finite_is_nan_and_no_other(bad, where, device):
    x = torch.ones(3, 5000, device=device, dtype=torch.bfloat16)
    x[1, where] = bad
    codes, scales = quantize_rows(x)
    assert (codes.float() * scales)[1].isnan().all()
    assert torch.equal((codes.float() * scales)[[0, 2]], torch.full((2, 5000), 448.0, device=device) * scales[0])


def test_rows_of_zeros_and_of_the_least_numbers(device):
    x = torch.zeros(2, 40, device=device)
    x[1] = 2.0**-149
    codes, scales = quantize_rows(x)
    assert not (codes.float() * scales).any()
    assert scales.isfinite().all()


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_empty(shape, device):
    codes, scales = quantize_rows(torch.empty(shape, device=device))
    assert (codes.shape, scales.shape) == (shape, (shape[0], 1))


def test_wrong_operands(device):
    with pytest.raises(RuntimeError, match="x is 1-D"):
        quantize_rows(torch.ones(3, device=device))
    with pytest.raises(RuntimeError, match=r"x is torch\.int8"):
        quantize_rows(torch.ones(3, 3, device=device, dtype=torch.int8))


@pytest.mark.gpu
def test_x_is_read_after_the_grid_that_writes_it_has_ended(device):
    """The GEMM lets the next grid start early, and there are SMs without one of its programs."""
    a, b = torch.randn(64, 1 << 17, device=device).bfloat16(), torch.randn(1 << 17, 64, device=device).bfloat16()
    x = tritonmm.mm(a, b)
    codes, scale = quantize_rows(x)
    for _ in range(20):
        torch.cuda.synchronize()
        later = torch.full_like(x, float("nan"))
        torch.cuda._sleep(1_000_000)  # both are in the queue when the product starts
        found = quantize_rows(tritonmm.mm(a, b, out=later))
        assert torch.equal(found[1], scale)
        assert torch.equal(found[0].view(torch.uint8), codes.view(torch.uint8))


def test_torchs_checks_of_operators(device):
    torch.library.opcheck(torch.ops.tritonmm.quantize_rows.default, (torch.randn(5, 7, device=device),))


def test_the_kernel_on_numbers_that_need_no_rounding(device):
    """In the interpreter, too, which does not round to fp8 correctly."""
    codes = torch.randint(-14, 15, (9, 5000), device=device).float()
    codes[:, 7] = 448
    x = codes * 2.0 ** torch.randint(-9, 9, (9, 1), device=device)
    found, scales = torch.empty_like(x, dtype=torch.float8_e4m3fn), x.new_empty(9, 1)
    launch.fill(x, found, scales)
    assert torch.equal(found.float(), codes)
    assert torch.equal(scales, x[:, 7:8] / 448)
