"""tritonmm.quantized_planes: bits of the product of the operand itself, and errors where that has changed."""

import pytest
import torch

import tritonmm
from tritonmm.ozaki import panels
from tritonmm.torch_ops.ozaki import ozaki_mm

pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")  # NumPy's, of infinity

FP64, FP32 = torch.float64, torch.float32


def test_bits_are_those_of_the_operand_itself(normal, dtype):
    a, b = normal(2, 3, 20), normal(6, 20).t()
    planes = tritonmm.quantized_planes(b, moduli=6)
    assert planes.shape == b.shape
    assert planes.nbytes == 6 * 16 * 32
    expected = ozaki_mm(a.flatten(0, 1), b, moduli=6).reshape(2, 3, 6)
    assert torch.equal(tritonmm.matmul(a, planes, precision="ozaki:6"), expected)
    assert torch.equal(tritonmm.matmul(a[1, 2], planes, precision="ozaki:6"), expected[1, 2])
    out = torch.empty(2, 3, 6, dtype=dtype, device=a.device)
    assert tritonmm.matmul(a, planes, precision="ozaki:6", out=out) is out
    assert torch.equal(out, expected)
    b[7, 2] = float("inf")
    planes = tritonmm.quantized_planes(b, moduli=6)
    assert torch.equal(tritonmm.matmul(a, planes, precision="ozaki:6"), tritonmm.matmul(a, b, precision="ozaki:6"))


def test_safe_falls_back(normal):
    a, b = normal(5, 20), normal(20, 6)
    planes = tritonmm.quantized_planes(b)
    assert torch.equal(tritonmm.matmul(a, planes, precision="ozaki"), tritonmm.matmul(a, b, precision="ozaki"))
    refused = a.clone()
    refused[1, 3] *= 2.0**40
    for x in (a, refused):
        assert torch.equal(tritonmm.matmul(x, planes, precision="ozaki:safe"), ozaki_mm(x, b, moduli="safe"))


def test_columns_in_panels(monkeypatch, device):
    a, b = torch.randn(20, 40, dtype=FP64, device=device), torch.randn(40, 50, dtype=FP64, device=device)
    planes = tritonmm.quantized_planes(b, moduli=5)
    expected = ozaki_mm(a, b, moduli=5)
    monkeypatch.setattr(panels, "FEWEST", 16)
    monkeypatch.setattr(panels, "WORKSPACE", 12_000)
    assert max(len(panel.columns) for panel in panels.panels(20, 50, 40, 1, 5)) > 1
    assert torch.equal(tritonmm.matmul(a, planes, precision="ozaki:5"), expected)


def test_an_operand_that_has_changed(normal):
    b = normal(20, 6)
    planes = tritonmm.quantized_planes(b, moduli=5)
    b.t()[3].mul_(2)
    with pytest.raises(RuntimeError, match="changed in place after they were made"):
        tritonmm.matmul(normal(5, 20), planes, precision="ozaki:5")
    tritonmm.matmul(normal(5, 20), tritonmm.quantized_planes(b, moduli=5), precision="ozaki:5")


def test_errors(normal, dtype):
    a, b = normal(5, 20), normal(20, 6)
    planes = tritonmm.quantized_planes(b, moduli=5)
    for precision in ("ozaki", "ozaki:6", "ozaki:safe"):
        with pytest.raises(ValueError, match=r'these planes of 5 moduli need "ozaki:5"'):
            tritonmm.matmul(a, planes, precision=precision)
    with pytest.raises(ValueError, match="precision is ''"):
        tritonmm.matmul(a, planes)
    with pytest.raises(ValueError, match="config or tune is given for planes"):
        tritonmm.matmul(a, planes, precision="ozaki:5", tune="first-call")
    with pytest.raises(RuntimeError, match="inner dimensions differ"):
        tritonmm.matmul(a[:, :19], planes, precision="ozaki:5")
    with pytest.raises(RuntimeError, match="same dtype"):
        tritonmm.matmul(a.to(FP32 if dtype is FP64 else FP64), planes, precision="ozaki:5")
    with pytest.raises(RuntimeError, match="products with planes have none"):
        tritonmm.matmul(a.requires_grad_(), planes, precision="ozaki:5")
    default = tritonmm.quantized_planes(b)
    with pytest.raises(ValueError, match="bits depend on all of the operands"):
        tritonmm.matmul(a.detach(), default, precision="ozaki:safe", accumulation="invariant")
    for moduli in (4, 17, 8.0, "safe"):
        with pytest.raises(ValueError, match="moduli is"):
            tritonmm.quantized_planes(b, moduli=moduli)
    with pytest.raises(RuntimeError, match="must be a matrix"):
        tritonmm.quantized_planes(b[0])
    with pytest.raises(NotImplementedError, match="bfloat16"):
        tritonmm.quantized_planes(b.bfloat16())
    with torch.inference_mode():
        unseen = b.clone()
    with pytest.raises(ValueError, match="changes in place are not counted"):
        tritonmm.quantized_planes(unseen)
