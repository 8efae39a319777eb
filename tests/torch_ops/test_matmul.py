"""tritonmm.matmul is torch.matmul: shapes, out=, errors, derivatives."""

import os
import re
import subprocess
import sys

import pytest
import torch

import tritonmm
from tritonmm.torch_ops.product import fp32_precision

SHAPES = [
    ((7,), (7,)), ((5, 7), (7,)), ((7,), (7, 3)), ((5, 7), (7, 3)), ((1, 1), (1, 1)), ((33, 20), (20, 70)),
    ((2, 5, 7), (7, 3)), ((2, 5, 7), (7,)), ((7,), (2, 7, 3)), ((5, 7), (2, 7, 3)), ((2, 5, 7), (2, 7, 3)),
    ((2, 1, 5, 7), (3, 7, 3)), ((2, 3, 5, 7), (2, 3, 7, 4)), ((1, 5, 7), (4, 7, 3)), ((4, 5, 7), (1, 7, 3)),
    ((2, 1, 5, 7), (1, 3, 7, 2)), ((0, 7), (7, 3)), ((5, 0), (0, 3)), ((0,), (0,)), ((0, 5, 7), (7, 3)),
    ((2, 5, 0), (2, 0, 3)), ((2, 0, 7), (7, 3)), ((0, 5, 7), (0, 7, 3)), ((3, 5, 7), (7, 0)),
]  # fmt: skip


def assert_is_product(found, a, b):
    expected = a.double() @ b.double()
    assert found.shape == expected.shape
    assert found.dtype == a.dtype
    unit = torch.finfo(a.dtype).eps / 2
    bound = unit * expected.abs() + 2 * a.shape[-1] ** 0.5 * 2**-24 * (a.double().abs() @ b.double().abs())
    error = (found.double() - expected).abs()
    assert (error <= bound).all(), f"worst error {error.max()} where {bound.flatten()[error.argmax()]} is allowed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_shapes_of_torch(a, b, dtype, device):
    a, b = torch.randn(a, device=device).to(dtype), torch.randn(b, device=device).to(dtype)
    assert_is_product(tritonmm.matmul(a, b), a, b)


def test_batch_views_are_read_in_place(device):
    x = torch.randn(4, 3, 6, 10, device=device)
    for a in (x, x.transpose(0, 1), x[::2], x[:, :, ::2], x[:, :1].expand(4, 3, 6, 10), x.permute(1, 0, 2, 3)[1:]):
        b = torch.randn(10, 5, device=device)
        assert_is_product(tritonmm.matmul(a, b), a, b)
        b = torch.randn(*a.shape[:-2], 10, 5, device=device)
        assert_is_product(tritonmm.matmul(a, b), a, b)


def test_negated_view_is_resolved(device):
    z = torch.view_as_complex(torch.randn(6, 5, 2)).conj().imag
    assert z.is_neg()
    a, b = z.to(device), torch.randn(5, 4, device=device)
    assert_is_product(tritonmm.matmul(a, b), a, b)


@pytest.mark.parametrize(
    ("a", "b"), [((5, 7), (7, 3)), ((2, 5, 7), (7, 3)), ((2, 1, 5, 7), (3, 7, 3)), ((7,), (7,))], ids=str
)
def test_out_is_written_and_returned(a, b, device):
    a, b = torch.randn(a, device=device), torch.randn(b, device=device)
    out = torch.full((a @ b).shape, float("nan"), device=device)
    assert tritonmm.matmul(a, b, out=out) is out
    assert_is_product(out, a, b)


def test_out_keeps_its_strides_and_its_neighbours(device):
    a, b = torch.randn(6, 7, device=device), torch.randn(7, 5, device=device)
    board = torch.full((12, 14), float("nan"), device=device)
    out = board[2:12:2, 3:9].t()
    tritonmm.matmul(a, b, out=out)
    assert_is_product(out, a, b)
    assert board.isnan().sum() == board.numel() - out.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_out_may_be_aligned_and_transposed(dtype, device):
    a, b = torch.randn(64, 32, device=device).to(dtype), torch.randn(32, 48, device=device).to(dtype)
    out = torch.full((48, 64), float("nan"), dtype=dtype, device=device).t()
    tritonmm.matmul(a, b, out=out)
    assert_is_product(out, a, b)


def test_out_of_a_batch_with_unfoldable_strides(device):
    a, b = torch.randn(2, 3, 5, 7, device=device), torch.randn(7, 4, device=device)
    out = torch.empty(3, 2, 5, 4, device=device).transpose(0, 1)
    tritonmm.matmul(a, b, out=out)
    assert_is_product(out, a, b)
    assert out.stride() == (20, 40, 4, 1)


@pytest.mark.parametrize("which", ["a", "b"])
def test_out_may_be_an_operand(which, device):
    a, b = torch.randn(6, 6, device=device), torch.randn(6, 6, device=device)
    expected = tritonmm.matmul(a, b)
    out = tritonmm.matmul(a, b, out=a if which == "a" else b)
    assert torch.equal(out, expected)


def test_out_of_a_wrong_shape_is_resized_with_a_warning(device):
    a, b = torch.randn(5, 7, device=device), torch.randn(7, 3, device=device)
    out = torch.empty(2, 2, device=device)
    with pytest.warns(UserWarning, match="2x2"):
        tritonmm.matmul(a, b, out=out)
    assert_is_product(out, a, b)
    empty = torch.empty(0, device=device)
    tritonmm.matmul(a, b, out=empty)  # silently: a UserWarning would be an error here
    assert_is_product(empty, a, b)


def zeros(*shape, **kwargs):
    return lambda device: torch.zeros(shape, device=device, **kwargs)


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (zeros(5, 7), zeros(6, 3), "5x7 has 7 columns, 6x3 has 6 rows"),
        (zeros(7), zeros(6), "7"),
        (zeros(5, 7), zeros(6), "7"),
        (zeros(), zeros(3), "0 and 1"),
        (zeros(2, 5, 7), zeros(3, 7, 3), "2x5x7 and 3x7x3"),
        (zeros(5, 7), zeros(7, 3, dtype=torch.float16), "torch.float32 and torch.float16"),
    ],
)
def test_bad_operands_raise_what_torch_raises(a, b, says, device):
    a, b = a(device), b(device)
    with pytest.raises(RuntimeError):
        torch.matmul(a, b)
    with pytest.raises(RuntimeError, match=re.escape(says)):
        tritonmm.matmul(a, b)


def test_operands_on_two_devices(device):
    with pytest.raises(RuntimeError, match="and meta"):
        tritonmm.matmul(torch.zeros(5, 7, device=device), torch.zeros(7, 3, device="meta"))


@pytest.mark.parametrize(
    ("out", "says"),
    [
        (zeros(5, 3, dtype=torch.float16), "torch.float16"),
        (lambda device: torch.zeros(5, 3, device="meta"), "meta"),
        (lambda device: torch.zeros(5, 1, device=device).expand(5, 3), "one memory location"),
        (zeros(5, 3, requires_grad=True), "requires grad"),
    ],
)
def test_bad_out_raises_what_torch_raises(out, says, device):
    a, b, out = torch.zeros(5, 7, device=device), torch.zeros(7, 3, device=device), out(device)
    with pytest.raises(RuntimeError):
        torch.matmul(a, b, out=out)
    with pytest.raises(RuntimeError, match=says):
        tritonmm.matmul(a, b, out=out)


def test_operands_that_are_no_tensors(device):
    with pytest.raises(TypeError, match="not list"):
        tritonmm.matmul([[1.0]], torch.zeros(1, 1, device=device))
    with pytest.raises(TypeError, match="not int"):
        tritonmm.matmul(torch.zeros(1, 1, device=device), torch.zeros(1, 1, device=device), out=3)


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.bool, torch.int8, torch.float8_e4m3fn], ids=str)
def test_other_dtypes_are_not_implemented(dtype, device):
    x = torch.zeros(4, 4, dtype=dtype, device=device)
    with pytest.raises(NotImplementedError, match=str(dtype)):
        tritonmm.matmul(x, x)


def test_config_that_does_not_fit_says_why(device):
    x = torch.zeros(64, 64, device=device)
    with pytest.raises(ValueError, match="block_m is 48"):
        tritonmm.matmul(x, x, config=tritonmm.Config(block_m=48))
    with pytest.raises(ValueError, match="bytes of shared memory"):
        tritonmm.matmul(x, x, config=tritonmm.Config(num_stages=60))


@pytest.mark.parametrize("config", ["fast", {"block_m": 64}, 128])
def test_what_is_no_config_is_a_type_error(config, device):
    x = torch.zeros(2, 64, 64, device=device)
    for multiply, a in ((tritonmm.matmul, x), (tritonmm.mm, x[0]), (tritonmm.bmm, x)):
        with pytest.raises(
            TypeError, match=rf"{multiply.__name__}: config is .*; it must be a tritonmm.Config, or None"
        ):
            multiply(a, a, config=config)


def test_cpu_tensors_outside_of_the_interpreter_say_what_to_set():
    code = "import torch, tritonmm; tritonmm.matmul(torch.zeros(2, 2), torch.zeros(2, 2))"
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert ran.returncode
    assert "RuntimeError" in ran.stderr
    assert "set TRITON_INTERPRET=1 before importing tritonmm" in " ".join(ran.stderr.split())


@pytest.mark.parametrize(
    ("a", "b"),
    [((5, 7), (7, 3)), ((2, 5, 7), (7, 3)), ((7,), (7, 3)), ((2, 1, 5, 7), (3, 7, 3)), ((7,), (7,))],
    ids=str,
)
def test_derivatives_are_torchs(a, b, device):
    a, b = torch.randn(a, device=device, requires_grad=True), torch.randn(b, device=device, requires_grad=True)
    twins = [x.detach().double().requires_grad_() for x in (a, b)]
    weights = torch.randn((a @ b).shape, device=device)

    def derivatives(product, a, b, weights):
        first = torch.autograd.grad((product(a, b) * weights).square().sum(), (a, b), create_graph=True)
        second = torch.autograd.grad(sum((g * g).sum() for g in first), (a, b))
        return *first, *second

    found = derivatives(tritonmm.matmul, a, b, weights)
    expected = derivatives(torch.matmul, *twins, weights.double())
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-3)


def test_no_grad_makes_no_graph(device):
    a = torch.randn(4, 4, device=device, requires_grad=True)
    with torch.no_grad():
        assert not tritonmm.matmul(a, a).requires_grad


def test_fp32_precision_follows_torch():
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert fp32_precision() == "tf32"
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        assert fp32_precision() == "ieee"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.gpu
def test_tf32_is_used_where_torch_allows_it(device):
    a, b = torch.rand(512, 512, device=device), torch.rand(512, 512, device=device)
    expected = a.double() @ b.double()
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        errors = {}
        for precision in ("ieee", "tf32"):
            torch.backends.cuda.matmul.fp32_precision = precision
            errors[precision] = (tritonmm.matmul(a, b) - expected).abs().max().item()
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert errors["ieee"] < 1e-3 < errors["tf32"] < 1
