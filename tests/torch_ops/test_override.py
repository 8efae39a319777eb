"""enable, disable, use: torch's products become ours, nothing that worked stops working, and leaving restores all."""

import pytest
import torch
from bounds import assert_product

import tritonmm
from tritonmm import gpu as gpus
from tritonmm.policy import prefers
from tritonmm.problem import Problem
from tritonmm.torch_ops import aten

NAN = float("nan")
OPERATORS = [
    *("mm", "mm.out", "bmm", "bmm.out", "dot", "vdot"),
    *(name + form for name in ("addmm", "baddbmm", "addbmm", "addmv") for form in ("", "_", ".out")),
]


@pytest.fixture
def ours(override):
    with override.use("always"):
        yield


def is_ours(route: aten.Route | str) -> bool:
    return isinstance(route, aten.Route)


@pytest.fixture
def routes(override, monkeypatch):
    """The routes that are found, a text for each that is torch's; those of the references in double are left out."""
    override.enable()  # which forgets those of tests before
    override.disable()
    found = []
    find = aten._route

    def spy(op, refusal, device, a, *args):
        route = find(op, refusal, device, a, *args)
        if a.dtype != torch.float64:
            found.append(route)
        return route

    monkeypatch.setattr(aten, "_route", spy)
    return found


def registered():
    names = [f"aten::{name}" for name in OPERATORS]
    return [torch._C._dispatch_dump(name) + torch._C._dispatch_dump_table(name) for name in names]


SHAPES = {
    "mm": ((5, 7), (7, 3)), "bmm": ((2, 5, 7), (2, 7, 3)), "addmm": ((5, 3), (5, 7), (7, 3)), "dot": ((7,), (7,)),
    "vdot": ((7,), (7,)), "baddbmm": ((2, 5, 3), (2, 5, 7), (2, 7, 3)), "addbmm": ((5, 3), (2, 5, 7), (2, 7, 3)),
    "addmv": ((5,), (5, 7), (7,)), "mv": ((5, 7), (7,)),
}  # fmt: skip
ADDING = ("addmm", "baddbmm", "addbmm", "addmv")


def products(device):
    """One product of every operator."""
    for name, shapes in SHAPES.items():
        args = [torch.randn(shape, device=device) for shape in shapes]
        out = torch.empty(getattr(torch, name)(*args).shape, device=device)
        yield lambda name=name, args=args: getattr(torch, name)(*args)
        yield lambda name=name, args=args, out=out: getattr(torch, name)(*args, out=out).clone()
        if name in ADDING:
            yield lambda name=name, args=args: getattr(args[0].clone(), name + "_")(*args[1:])


def test_blocks_of_one_matrix(override, launched, device):
    """A blocked factorisation updates one block of a matrix by products of others."""
    matrix = torch.randn(40, 48, device=device)
    corner, left, factor = matrix[16:, 24:40], matrix[16:, :20], matrix[:16, :20]
    others = matrix.clone()
    expected = corner.double() - left.double() @ factor.double().mT
    with override.use("always"):
        corner.addmm_(left, factor.mT, alpha=-1)
        assert launched
        assert (corner - expected).abs().max() < 1e-4
        launched.clear()
        matrix[:16, 16:32].addmm_(matrix[:16, 4:20], torch.ones(16, 16, device=device))  # they share 4 columns
        assert not launched
    matrix[16:, 24:40], matrix[:16, 16:32] = others[16:, 24:40], others[:16, 16:32]
    assert torch.equal(matrix, others)


def test_after_leaving_all_products_are_torchs(override, launched, device):
    every = list(products(device))
    before = [product() for product in every]
    with override.use("always"):
        for product in every:
            launched.clear()
            product()
            assert launched
    launched.clear()
    assert all(torch.equal(product(), x) for product, x in zip(every, before, strict=True))
    assert not launched


def test_kernels_are_registered_once(override):
    override.enable()
    once = registered()
    assert len(once) == len(OPERATORS)
    for enter in (override.disable, override.enable, lambda: override.enable("always"), override.disable):
        enter()
        with override.use("always"):
            assert registered() == once
        assert registered() == once


def test_enabling_twice_is_one_enabling(override, launched, device):
    a = torch.randn(6, 6, device=device)
    override.enable("always")
    override.enable("always")
    torch.mm(a, a)
    assert len(launched) == 1
    for _ in range(2):
        override.disable()
        torch.mm(a, a)
    assert len(launched) == 1


def test_nested_blocks_end_one_by_one(override, launched, device):
    a = torch.randn(6, 6, device=device)
    override.enable("always")
    with override.use("always"):
        override.disable()
        torch.mm(a, a)
        assert len(launched) == 1
        with pytest.raises(KeyError), override.use("faster"):
            raise KeyError
        torch.mm(a, a)
        assert len(launched) == 2
    torch.mm(a, a)
    assert len(launched) == 2


def test_the_block_entered_last_decides_the_policy(override, routes, launched, monkeypatch, device):
    a = torch.randn(6, 6, device=device)
    monkeypatch.setattr("tritonmm.torch_ops.override.prefers", lambda problem, gpu: (False, "never"))
    with override.use("always"):
        for _ in range(2):
            with override.use("faster"):
                torch.mm(a, a)
            assert not launched
        torch.mm(a, a)
    assert len(launched) == 1
    assert routes[0] == "never"  # and remembered for the second block
    assert is_ours(routes[1])
    assert len(routes) == 2


def test_enabling_again_finds_routes_anew(override, routes, monkeypatch, device):
    a = torch.randn(6, 6, device=device)
    for wanted in (False, True):
        monkeypatch.setattr("tritonmm.torch_ops.override.prefers", lambda problem, gpu, wanted=wanted: (wanted, "so"))
        override.enable("faster")
        torch.mm(a, a)
        override.disable()
    assert list(map(is_ours, routes)) == [False, True]


def test_unknown_policies(override, launched, device):
    for enter in (override.enable, lambda policy: override.use(policy).__enter__()):
        with pytest.raises(ValueError, match="'fastest'; it must be one of faster, always"):
            enter("fastest")
    torch.mm(torch.eye(6, device=device), torch.eye(6, device=device))
    assert not launched


def exact(name, args, kwargs):
    return getattr(torch, name)(*(x.double() for x in args), **kwargs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_each_form_of_each_operator_is_ours(name, dtype, ours, routes, device):
    args = [torch.randn(shape, device=device).to(dtype) for shape in SHAPES[name]]
    kwargs = {"alpha": 1.5, "beta": -0.5} if name in ADDING else {}
    expected = exact(name, args, kwargs)
    tolerance = {"rtol": torch.finfo(dtype).eps, "atol": 1e-5}
    found = [getattr(torch, name)(*args, **kwargs)]
    out = torch.full_like(found[0], NAN)
    assert getattr(torch, name)(*args, **kwargs, out=out) is out
    found.append(out)
    if name in ADDING:
        found.append(getattr(args[0].clone(), name + "_")(*args[1:], **kwargs))
    for x in found:
        torch.testing.assert_close(x.double(), expected, **tolerance)
    assert routes
    assert all(map(is_ours, routes))


def test_what_comes_down_to_the_operators_is_ours(ours, launched, device):
    x, w, bias = (torch.randn(s, device=device) for s in ((2, 5, 7), (3, 7), (3,)))
    for product in (
        lambda: torch.nn.functional.linear(x, w, bias),
        lambda: torch.matmul(x, w.t()),
        lambda: torch.einsum("bij,kj->bik", x, w),
        lambda: torch.tensordot(x, w, dims=([2], [1])),
        lambda: torch.inner(x, w),
        lambda: torch.linalg.multi_dot([x[0], w.t(), w]),
        lambda: x @ x.mT,
        lambda: torch.nn.functional.bilinear(x, x, torch.randn(3, 7, 7, device=device)),
    ):
        launched.clear()
        product()
        assert launched


def test_a_bias_is_added_as_one(ours, routes, device):
    a, b, bias = (torch.randn(s, device=device) for s in ((5, 7), (7, 3), (3,)))
    assert_product(torch.addmm(bias, a, b), a, b, bias)
    assert_product(torch.addmm(bias, a, b, beta=2), a, b, bias, beta=2)
    assert [route.added for route in routes] == ["bias", "c"]


def test_beta_zero_leaves_c_unread(ours, device):
    a, b, c = torch.randn(5, 7, device=device), torch.randn(7, 3, device=device), torch.full((5, 3), NAN, device=device)
    assert_product(torch.addmm(c, a, b, beta=0), a, b)
    assert_product(c.addmm_(a, b, beta=0), a, b)


def test_alpha_zero_leaves_the_matrices_unread(ours, device):
    a, b, c = torch.full((5, 7), NAN, device=device), torch.randn(7, 3, device=device), torch.randn(5, 3, device=device)
    assert torch.equal(torch.addmm(c, torch.randn_like(a), b, alpha=1).isnan(), c.isnan())
    assert torch.equal(torch.addmm(c, a, b, alpha=0), c)


def test_out_that_is_an_operand_is_torchs(ours, device):
    a, b = torch.randn(6, 6, device=device), torch.randn(6, 6, device=device)
    copies = a.clone(), b.clone()
    assert_product(torch.mm(a, b, out=torch.empty_like(a)), *copies)
    memory = torch.randn(72, device=device)
    c, out = memory[:36].view(6, 6), memory[36:].view(6, 6)
    before = c.clone()
    assert_product(torch.addmm(c, a, b, out=out), a, b, before)
    assert_product(torch.addmm(c, a, b, out=c), a, b, before)


def test_an_out_that_is_the_bias_is_torchs(device):
    """A tile may be written twice, and would read what it wrote; a route is that of other calls with such shapes."""
    a, b, out = torch.randn(1, 6, device=device), torch.randn(6, 8, device=device), torch.randn(1, 8, device=device)
    bias = torch.randn(1, 8, device=device)
    for added, meets in (("bias", True), ("c", False)):
        route = aten.Route(None, added, tuple(4 * x.numel() for x in (a, b, bias, out)))
        assert not aten._meets(route, a, b, bias, out)
        assert aten._meets(route, a, b, out, out) == meets


def test_out_of_a_wrong_shape_is_resized_with_torchs_warning(ours, device):
    a, b = torch.randn(5, 7, device=device), torch.randn(7, 3, device=device)
    out = torch.empty(2, 2, device=device)
    with pytest.warns(UserWarning, match="was resized"):
        torch.mm(a, b, out=out)
    assert_product(out, a, b)
    torch.mm(a, b, out=(transposed := torch.empty(3, 5, device=device).t()))
    assert transposed.stride() == (1, 5)
    assert_product(transposed, a, b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex64], ids=str)
def test_other_dtypes_stay_torchs(dtype, override, routes, device):
    if dtype == torch.int64 and device.type == "cuda":
        pytest.skip("torch has no integer products on GPUs")
    a, b = (torch.randn(s, device=device).mul(9).to(dtype) for s in ((5, 7), (7, 3)))
    expected = (
        torch.mm(a, b),
        torch.mm(a.conj(), b),
        torch.addmm(expected_c := torch.ones(5, 3, device=device).to(dtype), a, b),
    )
    with override.use("always"):
        found = torch.mm(a, b), torch.mm(a.conj(), b), torch.addmm(expected_c, a, b)
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
    assert not any(map(is_ours, routes))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
def test_sparse_operands_stay_torchs(override, device):
    dense, sparse = torch.randn(4, 4, device=device), torch.eye(4, device=device).to_sparse()
    with override.use("always"):
        assert torch.equal(torch.mm(sparse, dense), dense)
        assert torch.equal(torch.mm(sparse.to_sparse_csr(), dense), dense)


def test_empty_products_stay_torchs(ours, routes, device):
    for m, n, k in ((0, 3, 7), (5, 0, 7), (5, 3, 0)):
        found = torch.mm(torch.randn(m, k, device=device), torch.randn(k, n, device=device))
        assert torch.equal(found, torch.zeros(m, n, device=device))
    assert routes == [""] * 3


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.mm(x, x[:5]),
        lambda x: torch.mm(x, x.half()),
        lambda x: torch.mm(x, x[0]),
        lambda x: torch.bmm(x, x),
        lambda x: torch.mm(x[None], x[None]),
        lambda x: torch.addmm(x[:, :3], x, x),
        lambda x: torch.addmm(x.half(), x, x),
        lambda x: torch.addmm(x, x, x, alpha=2j),
        lambda x: torch.dot(x[0], x[0, :3]),
        lambda x: torch.mv(x, x[0, :3]),
        lambda x: torch.mm(x, x, out=x.half()),
        lambda x: torch.addbmm(x, x[None], x[None].expand(2, 6, 6)),
        lambda x: x[:3].addmm_(x, x),
    ],
)
def test_errors_are_torchs_own(call, override, device):
    x = torch.randn(6, 6, device=device)
    with pytest.raises(Exception) as expected:  # noqa: PT011, whatever torch raises
        call(x)
    with override.use("always"):
        torch.bmm(x[None], x[None])  # stacks are known, and must not be taken for matrices
        torch.mm(x, x)
        with pytest.raises(expected.type) as found:
            call(x)
    assert str(found.value) == str(expected.value)


def test_negated_and_conjugated_views(ours, device):
    z = torch.view_as_complex(torch.randn(6, 6, 2)).to(device)
    negated = z.conj().imag
    assert negated.is_neg()
    assert_product(torch.mm(negated, negated), negated, negated)


class Tagged(torch.Tensor):
    """A subclass with nothing of its own."""


def test_subclasses_stay_torchs(ours, routes, device):
    a = torch.randn(6, 6, device=device)
    assert type(torch.mm(a.as_subclass(Tagged), a)) is Tagged
    assert not any(map(is_ours, routes))
    torch.nn.functional.linear(a, torch.nn.Parameter(a))
    assert all(map(is_ours, routes))


def test_a_network_trains_as_without(override, routes, device):
    def losses():
        torch.manual_seed(1)
        layer = torch.nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True, device=device)
        x = torch.randn(2, 5, 16, device=device)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        found = []
        for _ in range(2):
            optimizer.zero_grad()
            loss = (layer(x) - x.flip(1)).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    expected = losses()
    with override.use("always"):
        found = losses()
    assert found == pytest.approx(expected, rel=1e-4)
    assert sum(map(is_ours, routes)) > 4


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch.func.hessian
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # dynamo's own, in some releases of torch
def test_transforms_and_compilers_work_above_it(ours, routes, device):
    a, b = torch.randn(5, 7, device=device), torch.randn(7, 3, device=device)
    found = torch.func.hessian(lambda a: torch.mm(a, b).square().sum())(a)
    torch.testing.assert_close(found, torch.func.hessian(lambda a: (a[..., None] * b).sum(1).square().sum())(a))
    torch._dynamo.reset()
    compiled = torch.compile(lambda a: torch.mm(a, b).relu(), fullgraph=True, backend="aot_eager")
    routes.clear()
    torch.testing.assert_close(compiled(a[:4]), (a[:4, :, None] * b).sum(1).relu())
    assert any(map(is_ours, routes))
    with torch._subclasses.FakeTensorMode() as mode:
        assert torch.mm(mode.from_tensor(a), mode.from_tensor(b)).shape == (5, 3)


@pytest.mark.parametrize(
    ("problem", "preferred"),
    [
        (Problem.dense(4095, 4095, 4095), True),  # torch's kernels for unaligned operands are slow
        (Problem.dense(2048, 50257, 768), True),
        (Problem.dense(1, 1, 4096), False),  # a dot product: a tile of the matrix kernel is mostly empty
        (Problem.dense(4096, 4096, 4096, dtype="fp32"), False),
    ],
    ids=str,
)
def test_what_the_policy_prefers_on_an_h200(problem, preferred, user):
    faster, reason = prefers(problem, gpus.spec("h200"))
    assert faster == preferred
    assert "us and torch's" in reason


def test_public_names_override_cuda(launched):
    """A script that enables runs where there are no GPUs, too."""
    tritonmm.enable("always")
    with tritonmm.use("always"):
        tritonmm.disable()
        if torch.cuda.is_available():
            torch.eye(6, device="cuda") @ torch.eye(6, device="cuda")
            assert len(launched) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda r: torch.addmv(r(4, 1), r(4, 5), r(5)),
        lambda r: r(4, 1).addmv_(r(4, 5), r(5)),
        lambda r: torch.addbmm(r(4, 3), r(2, 4, 5, 1), r(2, 5, 3)),
        lambda r: torch.addmm(r(9, 3), r(4, 5), r(5, 3), beta=0),
        lambda r: torch.baddbmm(r(2, 9, 3), r(2, 4, 5), r(2, 5, 3), beta=0),
        lambda r: torch.mv(r(4, 5), r(5), out=r(4, 1)),
    ],
)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized:UserWarning")
def test_what_torch_refuses_is_refused(override, call, device):
    """torch's kernels of CPUs and of GPUs may refuse different calls."""
    expected = outcome(call, device)
    with override.use("always"):
        assert outcome(call, device) == expected


def outcome(call, device):
    """The shape of the result, or None if torch refuses the call."""
    try:
        return call(lambda *shape: torch.randn(*shape, device=device)).shape
    except RuntimeError:
        return None


def test_a_block_can_be_entered_again(override):
    block = override.use("always")
    for _ in range(2):
        with block, block:
            assert len(override._scopes) == 2
        assert not override._scopes
