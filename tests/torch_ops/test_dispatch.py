"""What torch does to functions it can do to ours: derivatives, transforms, compilers, modes, subclasses."""

import numpy as np
import pytest
import torch
from bounds import assert_product
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import tritonmm
from tritonmm import orders
from tritonmm.torch_ops.operator import config_of, operator

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch.func.jvp


@pytest.fixture
def a(device):
    return torch.randn(5, 7, device=device)


@pytest.fixture
def b(device):
    return torch.randn(7, 3, device=device)


def assert_like(found, expected):
    found, expected = (x if isinstance(x, tuple) else (x,) for x in (found, expected))
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


TRANSFORMS = {
    "grad": lambda mm, a, b: grad(lambda a, b: mm(a, b).square().sum(), (0, 1))(a, b),
    "grad of grad": lambda mm, a, b: grad(lambda b: grad(lambda a: mm(a, b).pow(3).sum())(a).square().sum())(b),
    "jacrev": lambda mm, a, b: jacrev(mm, (0, 1))(a, b),
    "jacfwd": lambda mm, a, b: jacfwd(mm, (0, 1))(a, b),
    "hessian": lambda mm, a, b: hessian(lambda a: mm(a, b).square().sum())(a),
    "jacfwd of jacfwd": lambda mm, a, b: jacfwd(jacfwd(lambda a: mm(a, b).square().sum()))(a),
    "jvp": lambda mm, a, b: jvp(mm, (a, b), (torch.ones_like(a), b.cos())),
    "jvp in one operand": lambda mm, a, b: jvp(lambda b: mm(a, b), (b,), (b.cos(),)),
    "jvp of grad": lambda mm, a, b: jvp(grad(lambda a: mm(a, b).square().sum()), (a,), (a.cos(),)),
    "vmap over rows": lambda mm, a, b: vmap(mm, (0, None))(a.expand(4, 5, 7), b),
    "vmap over both": lambda mm, a, b: vmap(mm, (0, 2))(torch.stack([a, 2 * a]), torch.stack([b, b.cos()], 2)),
    "vmap over the right": lambda mm, a, b: vmap(mm, (None, 0))(a, torch.stack([b, b.cos()])),
    "vmap of vmap": lambda mm, a, b: vmap(vmap(mm, (0, None)), (None, 0))(torch.stack([a, -a]), torch.stack([b, -b])),
    "vmap of grad": lambda mm, a, b: vmap(grad(lambda a: mm(a, b).square().sum()))(torch.stack([a, 2 * a])),
    "grad of vmap": lambda mm, a, b: grad(lambda x: vmap(mm, (0, None))(x, b).square().sum())(torch.stack([a, 2 * a])),
    "no_grad in grad": lambda mm, a, b: grad(lambda a: (without_grad(mm, a, b) * mm(a, b)).sum())(a),
}


def without_grad(mm, a, b):
    with torch.no_grad():
        return mm(a, b)


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms_of_torch_func(transform, a, b):
    assert_like(transform(tritonmm.mm, a, b), transform(torch.mm, a, b))


VMAPPED = {
    "linear": ((5, 7), (3, 7), (3,)), "addmm": ((5, 3), (5, 7), (7, 3)), "matmul": ((2, 5, 7), (7, 3)),
    "baddbmm": ((2, 5, 3), (2, 5, 7), (2, 7, 3)), "mv": ((5, 7), (7,)), "dot": ((7,), (7,)),
}  # fmt: skip
DIMS = {2: ((0, None), (None, 0), (0, 0)), 3: ((0, None, None), (None, 0, 0), (None, None, 0), (0, 0, 0))}


@pytest.mark.parametrize(
    ("name", "in_dims"), [(name, dims) for name, shapes in VMAPPED.items() for dims in DIMS[len(shapes)]], ids=str
)
def test_vmap_of_every_operand(name, in_dims, device):
    pairs = zip(VMAPPED[name], in_dims, strict=True)
    args = [torch.randn(shape if dim is None else (2, *shape), device=device) for shape, dim in pairs]
    reference = torch.nn.functional.linear if name == "linear" else getattr(torch, name)
    assert_like(vmap(getattr(tritonmm, name), in_dims)(*args), vmap(reference, in_dims)(*args))


def test_forward_mode(a, b):
    def tangent(mm):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(mm(forward_ad.make_dual(a, a.cos()), b)).tangent

    assert_like(tangent(tritonmm.mm), tangent(torch.mm))


def test_a_batch_of_gradients_at_once(a, b):
    def gradients(mm):
        x = a.clone().requires_grad_()
        eye = torch.eye(15, device=a.device).reshape(15, 5, 3)
        return torch.autograd.grad(mm(x, b), x, eye, is_grads_batched=True)

    assert_like(gradients(tritonmm.mm), gradients(torch.mm))


def test_checkpointing(a, b):
    x = a.clone().requires_grad_()
    checkpoint(tritonmm.mm, x, b, use_reentrant=False).sum().backward()
    assert_product(x.grad, torch.ones(5, 3, device=a.device), b.t())


class Layer(torch.nn.Module):
    def __init__(self, device):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 7, device=device))
        self.bias = torch.nn.Parameter(torch.randn(3, device=device))

    def forward(self, x):
        return tritonmm.linear(x, self.weight, self.bias).relu()


def test_functional_call(a, device):
    layer = Layer(device)
    weight = torch.randn(3, 7, device=device)
    found = functional_call(layer, {"weight": weight}, (a,))
    assert_like(found, torch.nn.functional.linear(a, weight, layer.bias).relu())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Inductor's own, in some releases of torch
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.gpu)])
def test_compiled_whole_with_sizes_that_change(backend, device):
    torch._dynamo.reset()
    weight = torch.randn(3, 7, device=device, requires_grad=True)
    compiled = torch.compile(lambda x: tritonmm.linear(x, weight).relu(), fullgraph=True, dynamic=True, backend=backend)
    for shape in ((5, 7), (9, 7), (2, 4, 7), (3, 6, 7)):
        x = torch.randn(shape, device=device)
        found, expected = compiled(x), torch.nn.functional.linear(x, weight).relu()
        assert_like(found, expected)
        assert_like(*(torch.autograd.grad(y.square().sum(), weight) for y in (found, expected)))


@pytest.mark.parametrize("name", ["matmul", "addmm", "baddbmm", "bmm", "mv", "dot", "addbmm"])
def test_every_function_compiles_whole(name, device):
    shapes = {
        "matmul": ((2, 1, 5, 7), (3, 7, 3)), "addmm": ((3,), (5, 7), (7, 3)), "bmm": ((2, 5, 7), (2, 7, 3)),
        "baddbmm": ((2, 5, 3), (2, 5, 7), (2, 7, 3)), "mv": ((5, 7), (7,)), "dot": ((7,), (7,)),
        "addbmm": ((5, 3), (2, 5, 7), (2, 7, 3)),
    }[name]  # fmt: skip
    torch._dynamo.reset()
    args = [torch.randn(shape, device=device) for shape in shapes]
    compiled = torch.compile(getattr(tritonmm, name), fullgraph=True, backend="aot_eager")
    assert_like(compiled(*args), getattr(torch, name)(*args))
    out = torch.empty_like(getattr(torch, name)(*args))
    compiled(*args, out=out)
    assert_like(out, getattr(torch, name)(*args))


def test_autocast_in_a_compiled_function(a, b):
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def product(a, b):
        with torch.autocast(a.device.type, dtype=torch.bfloat16):
            return tritonmm.mm(a, b)

    assert torch.equal(product(a, b), tritonmm.mm(a.bfloat16(), b.bfloat16()))


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "not strict"])
def test_export_keeps_the_operator(strict, a, device):
    layer = Layer(device)
    rows = {"x": {0: torch.export.Dim("rows", min=2)}}
    program = torch.export.export(layer, (a,), dynamic_shapes=rows, strict=strict)
    assert operator in {node.target for node in program.graph.nodes}
    x = torch.randn(11, 7, device=device)
    assert_like(program.module()(x), layer(x))


def test_traced_by_make_fx(a, b):
    traced = make_fx(lambda a, b: tritonmm.mm(a, b))(a, b)
    assert operator in {node.target for node in traced.graph.nodes}
    assert_like(traced(2 * a, b), torch.mm(2 * a, b))


def test_fake_and_meta_tensors(a, b):
    with torch._subclasses.FakeTensorMode() as mode:
        found = tritonmm.matmul(mode.from_tensor(a).expand(4, 5, 7), mode.from_tensor(b))
        assert (found.shape, found.device) == ((4, 5, 3), a.device)
    a, b = a.to("meta"), b.to("meta")
    for _ in range(2):
        assert (tritonmm.mm(a, b).shape, tritonmm.mm(a, b).device.type) == ((5, 3), "meta")
    found = tritonmm.mm(a.requires_grad_(), b)
    found.sum().backward()
    assert (found.shape, found.device.type, a.grad.shape) == ((5, 3), "meta", (5, 7))


@pytest.mark.parametrize("default", ["cpu", "meta"])
def test_a_default_device_leaves_calls_direct(default, a, b, monkeypatch):
    """The operator is not called, and orders without a spelling work."""
    monkeypatch.setattr("tritonmm.torch_ops.operator.operator", None)
    order = orders.Table(np.array([[0, 0]]))
    config = tritonmm.Config("tile", 32, 32, 32, order=order)
    c = torch.ones(5, 3, device=a.device)
    expected = torch.mm(a, b)
    with torch.device(default):
        assert_like(tritonmm.mm(a, b, config=config), expected)
        for _ in range(2):
            assert_like(tritonmm.addmm(c, a, b, alpha=2), 2 * expected + c)
            assert_like(tritonmm.mm(a, b, out=torch.empty_like(expected)), expected)


def test_tables_are_refused_where_calls_are_dispatched(a, b):
    config = tritonmm.Config("tile", 32, 32, 32, order=orders.Table(np.array([[0, 0]])))
    with torch.autocast(a.device.type, dtype=torch.bfloat16), pytest.raises(ValueError, match="takes no tables"):
        tritonmm.mm(a, b, config=config)


def test_tangents_have_the_dtype_of_the_output(device):
    """Not that of the operands, to which they would be rounded."""
    a, b, tangent = (torch.randn(*shape, device=device).bfloat16() for shape in ((4, 64), (64, 3), (4, 64)))
    for x, of_x, exact in (
        (a, lambda a: tritonmm.mm(a, b, out_dtype=torch.float32), tangent.double() @ b.double()),
        (b.t(), lambda t: tritonmm.mm(a, t.t(), out_dtype=torch.float32), a.double() @ tangent[:3].t().double()),
    ):
        found, its_tangent = jvp(of_x, (x,), (tangent[: len(x)],))
        assert found.dtype == its_tangent.dtype == torch.float32
        assert (its_tangent.double() - exact).abs().max() < 1e-4


def test_compiled_with_a_config(a, b):
    """Each config is compiled for, in one graph."""
    launched = []
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda a, b, config: tritonmm.mm(a, b, config=config), fullgraph=True, backend=spy(launched)
    )
    configs = [tritonmm.Config("tile", rows, 32, 32) for rows in (32, 64, 32, 16)]
    for config in configs:
        assert_like(compiled(a, b, config), torch.mm(a, b))
    assert [config_of(text) for text in launched] == [configs[0], configs[1], configs[3]]


def spy(launched):
    """A backend that notes the configs of the operators in a graph."""

    def backend(graph, inputs):
        launched.extend(node.args[6] for node in graph.graph.nodes if node.target is operator)
        return graph.forward

    return backend


def test_flops_are_counted_forwards_and_backwards(a, b):
    with FlopCounterMode(display=False) as counter:
        tritonmm.mm(a.requires_grad_(), b.requires_grad_()).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * 5 * 3 * 7
    with FlopCounterMode(display=False) as counter:
        tritonmm.matmul(a.detach().expand(4, 5, 7).clone(), b.detach().expand(4, 7, 3))
    assert counter.get_total_flops() == 4 * 2 * 5 * 3 * 7


def test_torchs_own_check_of_the_operator(a, b):
    torch.library.opcheck(operator, (a.requires_grad_(), b.requires_grad_()))
    stacks = (torch.randn(*shape, device=a.device) for shape in ((2, 5, 7), (2, 7, 3), (2, 5, 3)))
    torch.library.opcheck(operator, (*stacks, None, 2.0, 3.0))


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (((5, 7), (6, 3)), "differ in K"),
        (((5, 7), (2, 7, 3)), "both be"),
        (((2, 5, 7), (3, 7, 3)), "batch"),
        (((5, 7), (7, 3), (3, 5)), "c is 3x5"),
        (((5, 7), (7, 3), (5, 3), (4,)), "bias is 4"),
    ],
    ids=str,
)
@pytest.mark.parametrize("where", ["device", "meta"])
def test_the_operator_checks_its_shapes(shapes, says, where, device):
    args = [torch.zeros(shape, device=device if where == "device" else "meta") for shape in shapes]
    with pytest.raises(RuntimeError, match=says):
        operator(*args)


class Tagged(torch.Tensor):
    """A subclass with nothing of its own."""


def test_subclasses_stay_what_they_are(a, b):
    found = tritonmm.mm(a.as_subclass(Tagged), b)
    assert type(found) is type(torch.mm(a.as_subclass(Tagged), b)) is Tagged
    assert_product(found.as_subclass(torch.Tensor), a, b)


def test_functions_modes_see_the_operator(a, b):
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    tritonmm.mm(a, b)
    with Mode():
        tritonmm.mm(a, b)
    assert operator in seen


def test_a_layer_trains_like_torchs(device):
    torch.manual_seed(1)
    layer, twin = Layer(device), torch.nn.Linear(7, 3, device=device)
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(32, 7, device=device)
    for module in (layer, twin):
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            y = module(x) if module is layer else module(x).relu()
            y.square().mean().backward()
            optimizer.step()
    assert_like((layer.weight, layer.bias), (twin.weight, twin.bias))
