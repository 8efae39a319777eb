"""Large products, compared in whole: their planes have up to 2**30 elements."""

import pytest
import torch

from tritonmm.moduli import DEFAULT_MODULI
from tritonmm.torch_ops.ozaki import ozaki_mm

pytestmark = pytest.mark.gpu

FP32, FP64 = torch.float32, torch.float64
NAMES = {FP32: "fp32", FP64: "fp64"}
SIZES = (
    *((8192, k, k) for k in (8192, 4096, 2048, 1024)), (4096, 4096, 4096), (2048, 2048, 2048),
)  # fmt: skip


@pytest.fixture(autouse=True)
def enough_memory():
    if not torch.cuda.is_available() or torch.cuda.mem_get_info()[0] < 20 * 2**30:
        pytest.skip("needs 20 GiB of a GPU")


def assert_near(found, a, b, c=None):
    """Near torch's fp64 product. For fp64 that reference has rounding errors as well, which the bound allows for."""
    u = torch.finfo(found.dtype).eps / 2
    for rows in range(0, len(a), 1024):
        left, right = a[rows : rows + 1024].double(), b.double()
        exact, size = left @ right, left.abs() @ right.abs()
        if c is not None:
            exact, size = c[rows : rows + 1024].double() - exact, size + c[rows : rows + 1024].double().abs()
        bound = 2 * u * exact.abs() + (0.5 if found.dtype == FP32 else 2 * a.shape[1] ** 0.5 + 1) * u * size
        wrong = ~((found[rows : rows + 1024].double() - exact).abs() <= bound)
        assert not wrong.any(), (rows, wrong.nonzero()[:4].tolist(), int(wrong.sum()))


@pytest.mark.parametrize("moduli", ["default", "safe"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize("dtype", [FP32, FP64], ids=["fp32", "fp64"])
def test_every_element(dtype, size, moduli, device):
    m, n, k = size
    a, b = torch.randn(m, k, dtype=dtype, device=device), torch.randn(n, k, dtype=dtype, device=device).mT
    out = torch.full((m, n), float("nan"), dtype=dtype, device=device)
    ozaki_mm(a, b, moduli=DEFAULT_MODULI[NAMES[dtype]] if moduli == "default" else moduli, out=out)
    assert_near(out, a, b)


@pytest.mark.parametrize("n", [8192, 16384])
@pytest.mark.parametrize("dtype", [FP32, FP64], ids=["fp32", "fp64"])
def test_the_update_of_a_cholesky_factorisation(dtype, n, device):
    """C - A @ A.mT where A and C are blocks of one matrix."""
    half = n // 2
    matrix = torch.randn(n, n, dtype=dtype, device=device)
    before = matrix.clone()
    a, c = matrix[half:, :half], matrix[half:, half:]
    out = torch.empty_like(c)
    ozaki_mm(a, a.mT, moduli="safe", alpha=-1, beta=1, c=c, out=out)
    assert torch.equal(matrix, before)
    assert_near(out, a, a.mT, c)
