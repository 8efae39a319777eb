"""precision="ozaki" of torch's functions: the bits of `ozaki_mm`, derivatives, torch.compile, errors, and explain."""

import pytest
import torch

import tritonmm
from tritonmm import gpu as gpus
from tritonmm.explanation import Explanation
from tritonmm.problem import Epilogue, Problem
from tritonmm.selection import best
from tritonmm.torch_ops.operator import operator
from tritonmm.torch_ops.ozaki import ozaki_mm
from tritonmm.torch_ops.ozaki_time import estimate

FP64, FP32 = torch.float64, torch.float32
H200 = gpus.spec("h200")


@pytest.fixture(params=[FP64, FP32], ids=["fp64", "fp32"])
def dtype(request):
    return request.param


@pytest.fixture
def normal(dtype, device):
    return lambda *shape: torch.randn(shape, dtype=dtype, device=device)


@pytest.mark.parametrize("moduli", [8, "safe"])
def test_addends_may_share_memory_with_out(moduli, normal):
    a, b, buf = normal(20, 33), normal(33, 17), normal(40, 17)
    addends = {
        "rows": lambda x: {"c": x[:20]}, "row": lambda x: {"c": x[3]}, "bias": lambda x: {"bias": x[1]},
        "out": lambda x: {"c": x[1:21]},
    }  # fmt: skip
    for name, given in addends.items():
        expected = ozaki_mm(a, b, moduli=moduli, **given(buf.clone()))
        own = buf.clone()
        assert torch.equal(ozaki_mm(a, b, moduli=moduli, out=own[1:21], **given(own)), expected), name


def test_the_default_is_15_moduli_for_fp64_and_8_for_fp32(dtype, normal):
    a, b = normal(5, 20), normal(20, 6)
    expected = ozaki_mm(a, b, moduli={FP64: 15, FP32: 8}[dtype])
    assert torch.equal(tritonmm.mm(a, b, precision="ozaki"), expected)
    assert torch.equal(tritonmm.mm(a, b, precision="ozaki", accumulation="invariant"), expected)
    assert torch.equal(tritonmm.mm(a, b, precision="ozaki:6"), ozaki_mm(a, b, moduli=6))


def test_functions_have_the_bits_of_products_of_their_rows_and_columns(normal):
    a, b, c, bias = normal(2, 5, 9), normal(2, 9, 6), normal(2, 5, 6), normal(6)
    how = {"precision": "ozaki:5"}

    def product(i, **addends):
        return ozaki_mm(a[i], b[i], moduli=5, **addends)

    stacked = torch.stack([product(0), product(1)])
    assert torch.equal(tritonmm.bmm(a, b, **how), stacked)
    assert torch.equal(tritonmm.matmul(a, b, **how), stacked)
    assert torch.equal(tritonmm.matmul(a[:, None], b, **how)[1, 1], product(1))
    assert torch.equal(tritonmm.matmul(a, b[0], **how)[0], product(0))
    added = tritonmm.addmm(c[0], a[0], b[0], beta=0.5, alpha=-2, **how)
    assert torch.equal(added, product(0, c=c[0], beta=0.5, alpha=-2))
    assert torch.equal(tritonmm.addmm(bias, a[0], b[0], **how), product(0, bias=bias))
    found = tritonmm.baddbmm(c, a, b, beta=3, **how)
    assert torch.equal(found[1], product(1, c=c[1], beta=3))
    assert torch.equal(tritonmm.linear(a, b[0].t(), bias, **how)[0], product(0, bias=bias))
    assert torch.equal(tritonmm.mv(a[0], b[0, :, 2], **how), product(0)[:, 2])
    assert torch.equal(tritonmm.dot(a[0, 1], b[0, :, 2], **how), product(0)[1, 2])
    joined = ozaki_mm(torch.cat([a[0], a[1]], 1), torch.cat([b[0], b[1]]), moduli=5, c=bias)
    assert torch.equal(tritonmm.addbmm(bias, a, b, **how), joined)


def test_out_may_be_the_addend_and_nothing_is_read_for_zeros(normal):
    a, b, c = normal(5, 9), normal(9, 6), normal(5, 6)
    expected = tritonmm.addmm(c, a, b, precision="ozaki:5")
    assert tritonmm.addmm(c, a, b, out=c, precision="ozaki:5") is c
    assert torch.equal(c, expected)
    nan = torch.full_like(c, float("nan"))
    assert torch.equal(tritonmm.addmm(nan, a, b, beta=0, precision="ozaki:5"), ozaki_mm(a, b, moduli=5))
    assert torch.equal(tritonmm.addmm(c, a * float("nan"), b, alpha=0, precision="ozaki:5"), c)
    assert not tritonmm.mm(a[:, :0], b[:0], precision="ozaki").any()
    out = torch.empty(6, 5, dtype=a.dtype, device=a.device).t()
    assert torch.equal(tritonmm.mm(a, b, out=out, precision="ozaki:5"), ozaki_mm(a, b, moduli=5))


def test_a_gram_matrix_is_exactly_symmetric(normal):
    a = normal(7, 12)
    found = tritonmm.gram(a, precision="ozaki:6")
    assert torch.equal(found, found.mT)
    assert torch.equal(found, ozaki_mm(a, a.mT, moduli=6))


def test_derivatives_are_products_of_the_same_precision(normal):
    a, b, grad = normal(4, 9).requires_grad_(), normal(9, 6).requires_grad_(), normal(4, 6)
    tritonmm.mm(a, b, precision="ozaki:6").backward(grad)
    assert torch.equal(a.grad, ozaki_mm(grad, b.mT, moduli=6))
    assert torch.equal(b.grad, ozaki_mm(a.mT, grad, moduli=6))


def test_derivatives_of_second_order_and_in_forward_mode(normal):
    a, b, grad = normal(4, 9).requires_grad_(), normal(9, 6).requires_grad_(), normal(4, 6)

    def product(a, b):
        return tritonmm.mm(a, b, precision="ozaki:6")

    (of_a,) = torch.autograd.grad(product(a, b), a, grad, create_graph=True)  # grad @ b.mT
    of_a.backward(a.detach())
    assert torch.equal(b.grad, ozaki_mm(grad.mT, a.detach(), moduli=6).mT)
    a, b = a.detach(), b.detach()
    tangent = normal(4, 9)
    assert torch.equal(torch.func.jvp(lambda a: product(a, b), (a,), (tangent,))[1], product(tangent, b))


def test_compiled_whole(normal):
    torch._dynamo.reset()
    a, b, bias = normal(5, 9), normal(6, 9), normal(6)
    compiled = torch.compile(
        lambda a, b, bias: tritonmm.linear(a, b, bias, precision="ozaki:5"), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(a, b, bias), ozaki_mm(a, b.t(), moduli=5, bias=bias))
    a.requires_grad_()
    compiled(a, b, bias).sum().backward()
    assert torch.equal(a.grad, ozaki_mm(torch.ones(5, 6, dtype=a.dtype, device=a.device), b, moduli=5))


def test_vmap_and_the_operator(normal):
    a, b = normal(3, 4, 9), normal(9, 6)
    expected = torch.stack([ozaki_mm(x, b, moduli=5) for x in a])
    assert torch.equal(torch.func.vmap(lambda x: tritonmm.mm(x, b, precision="ozaki:5"))(a), expected)
    assert torch.equal(operator(a[0], b, precision="ozaki:5"), expected[0])


@pytest.mark.parametrize("precision", ["ozaki:4", "ozaki:17", "ozaki:", "ozaki:05", "ozaki14", "Ozaki"])
def test_unknown_spellings(precision, normal):
    with pytest.raises(ValueError, match=r"it is one of ieee, .*ozaki, ozaki:5 to ozaki:16"):
        tritonmm.mm(normal(3, 4), normal(4, 3), precision=precision)


def test_errors(normal, device):
    a = normal(4, 4)
    with pytest.raises(ValueError, match=r"does not fit .*: precision is ozaki, whose int8 products have configs"):
        tritonmm.mm(a, a, precision="ozaki", config=tritonmm.Config("tile"))
    with pytest.raises(ValueError, match="tune is given with precision 'ozaki'"):
        tritonmm.mm(a, a, precision="ozaki", tune="first-call")
    with pytest.raises(ValueError, match="symmetric products in full: use mm"):
        tritonmm.symmetric_mm(a, a, precision="ozaki")
    with pytest.raises(ValueError, match=r"precision is 'ozaki' for torch\.bfloat16"):
        tritonmm.mm(a.bfloat16(), a.bfloat16(), precision="ozaki")
    long = torch.empty(1, 1, dtype=a.dtype, device=device).expand(1, 2**24)
    with pytest.raises(ValueError, match="k is 16777216; with precision 'ozaki' it is at most 16777215"):
        tritonmm.mm(long, long.mT, precision="ozaki")
    offs = torch.tensor([2, 4], dtype=torch.int32, device=device)
    if a.dtype is FP32:
        with pytest.raises(ValueError, match="grouped products do not have it"):
            tritonmm.grouped_mm(a, a.expand(2, 4, 4), offs=offs, precision="ozaki")


def test_problems():
    problem = Problem.dense(64, 48, 32, dtype="fp64", precision="ozaki:14", epilogue=Epilogue(bias=True))
    assert str(problem) == "64x48x32 nn fp64 ozaki:14"
    assert problem.ozaki == 14
    assert Problem.dense(1, 1, 1, dtype="fp32", precision="ozaki").ozaki == 8
    assert Problem.dense(1, 1, 1, dtype="fp32").ozaki == 0
    with pytest.raises(ValueError, match="for bf16 it must be one of ieee"):
        Problem.dense(1, 1, 1, precision="ozaki")
    with pytest.raises(ValueError, match=r"no config for .*: precision is ozaki"):
        best(Problem.dense(64, 64, 64, dtype="fp64", precision="ozaki"), H200)
    assert H200.rate("fp64", "ozaki:10") == H200.rate("int8") / 10


def test_the_time_grows_with_the_work_and_its_parts_are_all_of_it():
    for name in ("h200", "rtx4090", "mi300x"):
        gpu = gpus.spec(name)
        before = 0.0
        for n in (256, 1024, 4096, 20_000):
            found = estimate(Problem.dense(n, n, n, dtype="fp64", precision="ozaki"), gpu)
            assert found.time.us == pytest.approx(sum(found.time.parts))
            assert before < found.time.us
            assert min(found.time.parts) > 0
            assert (found.panels > 1) == (n == 20_000)
            before = found.time.us
        fewer = estimate(Problem.dense(4096, 4096, 4096, dtype="fp64", precision="ozaki:12"), gpu).time
        more = estimate(Problem.dense(4096, 4096, 4096, dtype="fp64", precision="ozaki:16"), gpu).time
        assert all(x <= y for x, y in zip(fewer.parts, more.parts, strict=True))
        assert fewer.us < more.us
    with pytest.raises(ValueError, match="has no output"):
        estimate(Problem.dense(0, 4, 4, dtype="fp64", precision="ozaki"), H200)


@pytest.mark.parametrize(("n", "faster"), [(256, "ieee"), (8192, "ozaki")])
def test_explain_says_whether_the_native_product_should_be_faster(n, faster, dtype):
    a = torch.empty(n, n, dtype=dtype)
    found = tritonmm.explain(a, a, precision="ozaki")
    moduli = {FP64: 15, FP32: 8}[dtype]
    text = " ".join(str(found).split())
    assert f"{moduli} exact int8 products" in text
    assert f"{faster} should be faster" in text
    assert "bound by" in text
    assert "quantize" in text
    assert "exact in any order" in text
    assert not found.overrides
    assert 'tritonmm.matmul(..., precision="ozaki") has' in found.reason
    assert found == Explanation.of(found.problem, gpus.default())
    with pytest.raises(ValueError, match="leave one out"):
        tritonmm.explain(a, a.expand(1, n, n), groups=[n], precision="ozaki")


@pytest.mark.parametrize("n", [4096, 8192])
def test_estimates_for_an_rtx_4090_are_like_what_others_measured(n):
    """arXiv 2504.08009 has 7.4 to 9.8 TFLOPS for fp64 with int8 tensor cores of an RTX 4090. Ours never ran there."""
    problem = Problem.dense(n, n, n, dtype="fp64", precision="ozaki")
    tflops = problem.flops / estimate(problem, gpus.spec("rtx4090")).time.us / 1e6
    assert 0.75 * 7.4 < tflops < 1.25 * 9.8
