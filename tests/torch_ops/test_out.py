"""What is written through out= counts as written: autograd and inference mode see it, as of torch's own operators."""

import pytest
import torch

import tritonmm
from tritonmm.torch_ops import call_cache

FLOATS = {
    "mm": ((5, 7), (7, 3)), "bmm": ((2, 5, 7), (2, 7, 3)), "matmul": ((2, 5, 7), (7, 3)), "mv": ((5, 7), (7,)),
    "dot": ((7,), (7,)), "addmm": ((5, 3), (5, 7), (7, 3)), "baddbmm": ((2, 5, 3), (2, 5, 7), (2, 7, 3)),
    "addbmm": ((5, 3), (2, 5, 7), (2, 7, 3)), "linear": ((2, 5, 7), (3, 7), (3,)),
}  # fmt: skip
FUNCTIONS = [*FLOATS, "int_mm"]
IN_PLACE = ("addmm", "baddbmm", "addbmm", "addmv")


def operands(name, device):
    if name == "int_mm":
        return tuple(torch.randint(-5, 6, shape, device=device).char() for shape in ((5, 7), (7, 3)))
    return tuple(torch.randn(shape, device=device) for shape in FLOATS.get(name, ((5,), (5, 7), (7,))))


@pytest.fixture(params=["new", "remembered"])
def call(request, device):
    """A function of tritonmm by its name, of operands that it has seen before or not."""
    call_cache.forget()

    def prepared(name):
        function, args = getattr(tritonmm, name), operands(name, device)
        if request.param == "remembered":
            function(*args)
        return lambda out: function(*args, out=out), function(*args)

    return prepared


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_version_of_out_counts_up(name, call):
    into, expected = call(name)
    for out in (
        torch.zeros_like(expected),
        torch.zeros_like(expected).mT.contiguous().mT if expected.dim() > 1 else None,
    ):
        if out is not None:
            version = out._version
            into(out)
            assert torch.equal(out, expected)
            assert out._version > version


@pytest.mark.parametrize("name", ["mm", "bmm", "addmm"])
def test_a_view_counts_for_its_base(name, call):
    into, expected = call(name)
    base = torch.zeros(4, *expected.shape, device=expected.device)
    into(base[2])
    assert base._version > 0
    assert torch.equal(base[2], expected)


@pytest.mark.parametrize("name", FLOATS)
def test_backward_raises_where_out_was_saved(name, call):
    """The gradient of the sum is the saved tensor, which is no longer what it was."""
    into, expected = call(name)
    saved = torch.ones_like(expected)
    total = (torch.ones_like(expected).requires_grad_() * saved).sum()
    into(saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_inference_tensors_are_written_in_inference_mode_only(name, call):
    into, expected = call(name)
    with torch.inference_mode():
        out = torch.zeros_like(expected)
        into(out)
        assert torch.equal(out, expected)
        out.zero_()
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"(?i)inplace update to inference tensor outside"):
        into(out)
    assert not out.any()


def test_results_in_inference_mode_are_inference_tensors(device):
    args = operands("mm", device)
    with torch.inference_mode():
        assert all(tritonmm.mm(*args).is_inference() for _ in range(2))


@pytest.fixture
def ours(override):
    with override.use("always"):
        yield


@pytest.mark.parametrize("name", ["mm", "bmm", "matmul", "mv", "dot", *IN_PLACE])
@pytest.mark.parametrize("form", ["out", "in place"])
def test_torchs_operators_count_too(name, form, ours, device):
    """The override is below the dispatch key that counts versions."""
    args = operands(name, device)
    if form == "out":
        written = torch.ones_like(getattr(torch, name)(*args))
        write = lambda: getattr(torch, name)(*args, out=written)  # noqa: E731
    elif name in IN_PLACE:
        written = args[0]
        write = lambda: getattr(written, name + "_")(*args[1:])  # noqa: E731
    else:
        pytest.skip("it has no form in place")
    total = (torch.ones_like(written).requires_grad_() * written).sum()
    version = written._version
    write()
    assert written._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_a_sparse_out_is_refused(device):
    a, b = torch.randn(4, 5, device=device), torch.randn(5, 3, device=device)
    with pytest.raises(NotImplementedError, match="out must be dense"):
        tritonmm.mm(a, b, out=torch.ones(4, 3, device=device).to_sparse())
