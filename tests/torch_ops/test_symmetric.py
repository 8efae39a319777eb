"""gram, symmetric_mm and newton_schulz: torch's results, derivatives and rules; A @ A.T under `enable`."""

import tracemalloc

import pytest
import torch
from bounds import assert_like_torch, assert_product
from compile_cases import symmetric_config

import tritonmm
from tritonmm import gpu as gpus
from tritonmm.families.tile.kernel import TileSpec
from tritonmm.plan import bind
from tritonmm.problem import Problem
from tritonmm.selection import as_gram_if_faster
from tritonmm.torch_ops.newton_schulz import COEFFICIENTS, EPS

SHAPES = [(33, 20), (20, 33), (2, 17, 9), (2, 3, 9, 5), (1, 1), (4, 0), (0, 4), (0, 5, 3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gram(shape, dtype, device):
    a = torch.randn(shape, device=device).to(dtype)
    for _ in range(2):  # the second call is repeated as the first was
        found = tritonmm.gram(a)
        assert torch.equal(found, found.mT)
        assert_product(found, a, a.mT)
    out = torch.full_like(found, float("nan"))
    assert tritonmm.gram(a, out=out) is out
    assert torch.equal(out, found)


@pytest.mark.parametrize("view", ["columns", "every other", "unaligned", "broadcast"])
def test_gram_of_views(view, device):
    memory = torch.randn(4000, device=device)
    a = {
        "columns": memory[:800].view(20, 40).t(),
        "every other": memory[:2400].view(30, 80)[:, ::2],
        "unaligned": memory[1:1001].view(25, 40),
        "broadcast": memory[:40].expand(3, 8, 40),
    }[view]
    found = tritonmm.gram(a)
    assert torch.equal(found, found.mT)
    assert_product(found, a, a.mT)


def test_precisions_and_dtypes(device):
    a = torch.randn(40, 64, device=device)
    assert tritonmm.gram(a.bfloat16(), out_dtype=torch.float32).dtype is torch.float32
    torch.testing.assert_close(tritonmm.gram(a, precision="tf32x3"), a @ a.mT, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="precision is 'fast'"):
        tritonmm.gram(a, precision="fast")


def test_symmetric_mm(device):
    x = tritonmm.gram(torch.randn(3, 21, 9, device=device))
    c, row = torch.randn(3, 21, 21, device=device), torch.randn(21, device=device)
    for _ in range(2):
        assert_product(tritonmm.symmetric_mm(x, x, alpha=0.5), x, x, alpha=0.5)
        assert_product(tritonmm.symmetric_mm(x, x, c=c, alpha=2.0, beta=-3.0), x, x, c, 2.0, -3.0)
        assert_product(tritonmm.symmetric_mm(x, x, c=row), x, x, row.expand_as(c))
        assert_product(tritonmm.symmetric_mm(x, x, c=row, beta=2.0), x, x, row.expand_as(c), 1.0, 2.0)
    for _ in range(2):
        whole = tritonmm.symmetric_mm(x, x, c=x, alpha=2.0, beta=-3.0, symmetric_c=True)
        assert torch.equal(whole, whole.mT)
        assert_product(whole, x, x, x, 2.0, -3.0)
        assert_product(tritonmm.symmetric_mm(x, x, c=row, symmetric_c=True), x, x, row.expand_as(c))
        assert_product(tritonmm.symmetric_mm(x, x, c=c), x, x, c)
    inplace = c.clone()
    tritonmm.symmetric_mm(x, x, c=inplace, out=inplace)
    assert_product(inplace, x, x, c)
    deep = x.expand(2, 3, 21, 21)
    assert_product(tritonmm.symmetric_mm(deep, deep, c=c), deep, deep, c.expand_as(deep))
    nan = torch.full_like(x, float("nan"))
    assert torch.equal(tritonmm.symmetric_mm(x, x, c=nan, beta=0), tritonmm.symmetric_mm(x, x))
    assert torch.equal(tritonmm.symmetric_mm(nan, nan, c=c, alpha=0, beta=2.0), 2 * c)


def test_out_may_be_what_is_read(device):
    x = tritonmm.gram(torch.randn(40, 30, device=device))
    expected = tritonmm.symmetric_mm(x, x, c=x)
    assert torch.equal(tritonmm.symmetric_mm(x, x, c=x, out=x), expected)
    a = torch.randn(24, 24, device=device)
    expected = tritonmm.gram(a)
    assert torch.equal(tritonmm.gram(a, out=a), expected)


def test_derivatives(device):
    assert_like_torch(tritonmm.gram, lambda a: a @ a.mT, (torch.randn(2, 13, 7, device=device),), {})
    x = torch.randn(3, 2, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(tritonmm.gram, x)
    assert torch.autograd.gradgradcheck(tritonmm.gram, x)
    a = torch.randn(20, 8, device=device, requires_grad=True)
    c = torch.randn(20, 20, device=device, requires_grad=True)

    def both(multiply):
        found = multiply(a, c)
        return torch.autograd.grad(found.sin().sum(), (a, c))

    ours = both(lambda a, c: tritonmm.symmetric_mm(a, a.mT, c=c, alpha=2.0, beta=3.0))
    theirs = both(lambda a, c: 2.0 * (a @ a.mT) + 3.0 * c)
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_fp16_gradients_do_not_overflow(device):
    a = torch.full((2, 4), 1e-3, device=device, dtype=torch.float16, requires_grad=True)
    tritonmm.gram(a).backward(torch.full((2, 2), 40_000.0, device=device, dtype=torch.float16))
    torch.testing.assert_close(a.grad, torch.full_like(a, 160.0), rtol=1e-2, atol=0.0)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch.func.jvp
def test_transforms(device):
    a = torch.randn(4, 6, 5, device=device)
    torch.testing.assert_close(torch.func.vmap(tritonmm.gram)(a), a @ a.mT)
    per_sample = torch.func.vmap(torch.func.grad(lambda x: tritonmm.gram(x).sin().sum()))(a)
    expected = torch.func.vmap(torch.func.grad(lambda x: (x @ x.mT).sin().sum()))(a)
    torch.testing.assert_close(per_sample, expected, rtol=1e-4, atol=1e-4)
    _, tangent = torch.func.jvp(tritonmm.gram, (a,), (a,))
    torch.testing.assert_close(tangent, 2 * a @ a.mT, rtol=1e-4, atol=1e-4)
    x = tritonmm.gram(a)
    both = torch.func.vmap(lambda s: tritonmm.symmetric_mm(s, s, c=s))(x)
    torch.testing.assert_close(both, x @ x + x, rtol=1e-4, atol=1e-4)


def test_compiled_whole(device):
    a = torch.randn(12, 7, device=device)

    def polynomial(a):
        x = tritonmm.gram(a)
        return tritonmm.symmetric_mm(x, x)

    compiled = torch.compile(polynomial, backend="eager", fullgraph=True)
    x = a @ a.mT
    torch.testing.assert_close(compiled(a), x @ x, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda x: tritonmm.gram(x[0]), RuntimeError, "gram: input needs two dimensions or more, but it is 1-D, 4"),
        (lambda x: tritonmm.gram(x.long()), NotImplementedError, "got torch.int64"),
        (lambda x: tritonmm.gram(x, out=x.double()), RuntimeError, "gram: out must have dtype torch.float32"),
        (lambda x: tritonmm.symmetric_mm(x, x), RuntimeError, "inner dimensions differ"),
        (lambda x: tritonmm.symmetric_mm(x, torch.ones(4, 5)), RuntimeError, "has 3 rows and 5 columns"),
        (lambda x: tritonmm.symmetric_mm(x, x.t()[None]), RuntimeError, "they need the same batch"),
        (lambda x: tritonmm.symmetric_mm(x, x.t(), c=torch.ones(2, 2)), RuntimeError, "does not broadcast"),
        (lambda x: tritonmm.newton_schulz(x[0]), RuntimeError, "needs two dimensions or more"),
        (lambda x: tritonmm.newton_schulz(x.long()), TypeError, "g has dtype torch.int64"),
        (lambda x: tritonmm.newton_schulz(None), TypeError, "g must be a Tensor, not NoneType"),
        (lambda x: tritonmm.newton_schulz(x, steps=100), ValueError, "must be an integer from 0 to 99"),
        (lambda x: tritonmm.newton_schulz(x, coefficients=(1, 2)), ValueError, "they must be three numbers"),
        (lambda x: tritonmm.newton_schulz(x, coefficients=None), ValueError, "they must be three numbers"),
        (lambda x: tritonmm.newton_schulz(x, out=torch.ones(3, 3)), RuntimeError, "it must be as g, 3x4"),
    ],
)  # fmt: skip
def test_errors(call, error, said):
    with pytest.raises(error, match=said):
        call(torch.ones(3, 4))


def test_configs_of_other_orders_are_refused(device):
    with pytest.raises(ValueError, match="such as triangular:8"):
        tritonmm.gram(torch.ones(3, 4, device=device), config=tritonmm.Config("tile", 32, 32, 32))


@pytest.mark.gpu  # where small products are computed in full
@pytest.mark.parametrize("n", [64, 256, 511, 512, 1000, 1024])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_small_grams_are_exactly_symmetric(n, dtype, device):
    found = tritonmm.gram(torch.randn(n, 1000, device=device).to(dtype))
    assert torch.equal(found, found.mT)


def torchs(g, steps=5):
    from torch.optim._muon import _zeropower_via_newtonschulz

    return _zeropower_via_newtonschulz(g.clone(), COEFFICIENTS, steps, EPS)


def exact(g, steps=5):
    """The iteration in fp64."""
    a, b, c = COEFFICIENTS
    x = g.double()
    x = x.mT if g.shape[-2] > g.shape[-1] else x
    x = x / x.norm()
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if g.shape[-2] > g.shape[-1] else x


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(32, 48), (48, 32), (1, 7)], ids=str)
def test_newton_schulz_is_no_further_from_the_exact_iteration_than_torchs(shape, dtype, device):
    ours = theirs = 0.0
    for _ in range(4):
        g = torch.randn(shape, device=device).to(dtype)
        found = tritonmm.newton_schulz(g)
        assert (found.dtype, found.shape) == (torch.bfloat16, g.shape)
        expected = exact(g)
        ours += (found.double() - expected).norm()
        theirs += (torchs(g).double() - expected).norm()
    assert ours <= 1.1 * theirs


def test_newton_schulz_of_batches_and_views(device):
    g = torch.randn(2, 2, 20, 12, device=device)
    found = tritonmm.newton_schulz(g)
    singles = torch.stack([tritonmm.newton_schulz(x) for x in g.flatten(0, 1)]).view_as(g)
    assert torch.equal(found, singles)
    assert torch.equal(tritonmm.newton_schulz(g.mT.contiguous().mT), found)
    before = g.clone()
    out = torch.empty_like(g)
    assert tritonmm.newton_schulz(g, out=out) is out
    assert torch.equal(g, before)
    assert torch.equal(out, found.float())
    assert torch.equal(tritonmm.newton_schulz(g, out=g), out)
    assert tritonmm.newton_schulz(torch.zeros(3, 4, device=device)).eq(0).all()
    assert tritonmm.newton_schulz(torch.empty(0, 4, device=device)).shape == (0, 4)
    scaled = tritonmm.newton_schulz(before, steps=0)
    torch.testing.assert_close(scaled.float(), before / before.norm(dim=(-2, -1), keepdim=True), rtol=1e-2, atol=1e-3)


def test_muon_converges_as_torchs(device):
    """The same small model by torch.optim.Muon, and by its step with our iteration."""
    from torch.optim import _muon

    def losses(iterate):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(16, 16, bias=False) for _ in range(2))).to(device)
        x, target = torch.randn(64, 16, device=device), torch.randn(16, 16, device=device)
        optimizer = torch.optim.Muon(model.parameters(), lr=0.1, weight_decay=0.0)
        kept, _muon._zeropower_via_newtonschulz = _muon._zeropower_via_newtonschulz, iterate
        found = []
        try:
            for _ in range(8):
                loss = (model(x) - x @ target).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
        finally:
            _muon._zeropower_via_newtonschulz = kept
        return found

    from torch.optim._muon import _zeropower_via_newtonschulz

    theirs = losses(_zeropower_via_newtonschulz)
    ours = losses(lambda g, coefficients, steps, eps: tritonmm.newton_schulz(g, steps, coefficients))
    assert ours[-1] < 0.8 * ours[0]
    torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.0)


def test_full_products_of_a_by_itself_become_symmetric_where_that_is_faster():
    gpu = gpus.spec("h200")
    for n, faster in ((256, False), (4096, True), (8192, True)):
        problem = Problem.dense(n, n, n, layout="nt")
        assert as_gram_if_faster(problem, gpu).symmetric == ("gram" if faster else "")


@pytest.fixture
def always_gram(monkeypatch):
    """Symmetric products are chosen whatever the estimates say."""
    monkeypatch.setattr("tritonmm.selection.SYMMETRIC_GAIN", 1e6)


def test_what_aliases_is_recognised(always_gram, launched, device):
    n = iter(range(30, 100))  # sizes that no other call has had

    def is_gram(multiply, *shape):
        launched.clear()
        multiply(torch.randn(*shape, device=device))
        return [p.symmetric for p in launched]

    assert is_gram(lambda a: tritonmm.mm(a, a.t()), next(n), 20) == ["gram"]
    assert is_gram(lambda a: tritonmm.mm(a.t(), a), 20, next(n)) == ["gram"]
    assert is_gram(lambda a: tritonmm.matmul(a, a.mT), 2, next(n), 20) == ["gram"]
    assert is_gram(lambda a: tritonmm.mm(a, a), m := next(n), m) == [""]
    assert is_gram(lambda a: tritonmm.mm(a, a.clone().t()), next(n), 20) == [""]
    assert is_gram(lambda a: tritonmm.mm(a[:, :10], a[:, 10:].t()), next(n), 20) == [""]
    assert is_gram(lambda a: tritonmm.addmm(a[:, 0], a, a.t()), next(n), 20) == ["gram"]
    assert is_gram(lambda a: tritonmm.mm(a, a.t(), config=tritonmm.Config("tile", 32, 32, 32)), next(n), 20) == [""]


def test_tuning_at_the_first_call_tunes_the_symmetric_product(always_gram, launched, device, monkeypatch):
    from tritonmm.torch_ops import first_call

    monkeypatch.setattr(first_call, "_is_measurable", lambda a, b: True)
    monkeypatch.setattr(first_call, "_times", lambda plans, *_: [float(i) for i, _ in enumerate(plans)])
    monkeypatch.setattr(first_call.tuned, "publish", lambda *_: None)
    a = torch.randn(77, 20, device=device)
    assert_product(tritonmm.mm(a, a.t(), tune="first-call"), a, a.t())
    assert [p.symmetric for p in launched] == ["gram"]


def test_products_of_integers_are_computed_in_full(always_gram, launched, device):
    a = torch.randint(-9, 9, (32, 32), device=device, dtype=torch.int8)
    assert torch.equal(tritonmm.int_mm(a, a.t()).long(), (a.double() @ a.double().t()).long())
    assert [p.symmetric for p in launched] == [""]


def test_scaled_products_of_a_by_itself(device):
    a = torch.randn(32, 32, device=device).to(torch.float8_e4m3fn)
    scales = torch.rand(32, 1, device=device) + 0.5, torch.rand(1, 32, device=device) + 0.5
    found = tritonmm.scaled_mm(a, a.t(), *scales)
    torch.testing.assert_close(found.float(), a.float() @ a.float().t() * scales[0] * scales[1], rtol=0.02, atol=0.1)


def test_parts_of_operands_keep_their_bits(always_gram):
    for accumulation, symmetric in (("any", "gram"), ("invariant", "")):
        problem = Problem.dense(78, 78, 20, dtype="fp32", precision="tf32x3", layout="nt", accumulation=accumulation)
        assert as_gram_if_faster(problem, gpus.spec("h200"), "tile").symmetric == symmetric


def test_calls_that_differ_only_in_aliasing_differ(always_gram, launched, device):
    a = torch.randn(130, 20, device=device)
    b = a.clone()
    for right, symmetric in ((a, "gram"), (b, ""), (a, "gram"), (b, "")):
        launched.clear()
        tritonmm.mm(a, right.t())
        assert [p.symmetric for p in launched] == [symmetric]


@pytest.mark.parametrize(
    "multiply",
    [
        lambda a: a @ a.mT,
        lambda a: torch.mm(a, a.t()),
        lambda a: torch.addmm(torch.ones(len(a), len(a), device=a.device).tril(), a, a.t(), beta=2),
        lambda a: torch.addmm(torch.arange(float(len(a)), device=a.device), a, a.t()),
        lambda a: torch.bmm(a.expand(2, *a.shape), a.expand(2, *a.shape).mT),
        lambda a: torch.einsum("ik,jk->ij", a, a),
        lambda a: torch.cov(a),
    ],
)  # fmt: skip
def test_torchs_products_under_enable(multiply, always_gram, launched, override, device):
    a = torch.randn(47, 21, device=device)
    expected = multiply(a.double() if "cov" in str(multiply) else a)
    override.enable("always")  # forgets the routes of other tests
    try:
        launched.clear()
        found = multiply(a)
    finally:
        override.disable()
        override.enable()
        override.disable()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert "gram" in [p.symmetric for p in launched]


def test_a_wrong_alpha_is_refused_in_every_call(device):
    x = tritonmm.gram(torch.randn(20, 8, device=device))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="alpha is"):
            tritonmm.symmetric_mm(x, x, alpha=1 + 0j)
        with pytest.raises(TypeError, match="alpha is"):
            tritonmm.symmetric_mm(x, x, alpha=torch.ones(2))
        tritonmm.symmetric_mm(x, x)


def test_rows_that_are_far_apart(device):
    """The mirrored tile has more rows than the tile: their offsets do not fit 32 bits."""
    config = symmetric_config("tile", (16, 32, 16, 2, 4))
    for pitch, wide in ((1000, False), (72_000_000, True)):
        a = torch.empty(64, 8, device="meta", dtype=torch.bfloat16)
        out = torch.empty(1, device="meta", dtype=torch.bfloat16).as_strided((64, 64), (pitch, 1))
        problem = Problem.of(a, a.mT, out, symmetric="gram")
        plan = bind(problem, config, gpus.spec("h200"), torch.device("cpu"))
        (spec,) = (x for x in plan.arguments(a, a.mT, out)[0] if isinstance(x, TileSpec))
        assert spec.wide == wide


def test_a_batch_is_estimated_at_once():
    """The memory that an estimate takes does not grow with the batch."""
    from tritonmm.model import l2

    gpu = gpus.spec("h100")
    problem = Problem.dense(128, 128, 64, batch=65_536, layout="nt", symmetric="gram")
    config = symmetric_config("hopper", (64, 64, 128, 6, 4))
    tracemalloc.start()
    l2.of(problem, config, gpu)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6


def test_explain_says_so():
    a = torch.empty(8192, 8192, dtype=torch.bfloat16)
    found = tritonmm.explain(a, a.t())
    assert found.problem.symmetric == "gram"
    assert "8192x8192x8192 nt bf16 gram" in str(found)
    assert "those that meet the lower triangle" in found.why
    assert not tritonmm.explain(a, torch.empty_like(a).t()).problem.symmetric
    apart = (torch.empty(8192, 8192, dtype=torch.bfloat16, device="meta") for _ in range(2))
    assert not tritonmm.explain(next(apart), next(apart).t()).problem.symmetric  # both have address 0
