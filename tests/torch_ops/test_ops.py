"""What torch's products promise beside their values: epilogues, out, views, errors, autocast."""

import numpy as np
import pytest
import torch
from bounds import assert_product
from pairs import all_pairs
from torch._subclasses.fake_tensor import FakeTensorMode

import tritonmm
from tritonmm.torch_ops import checks as rules
from tritonmm.torch_ops import product as products

NAN = float("nan")


def randn(*shape, device, dtype=torch.float32):
    return torch.randn(shape, device=device).to(dtype)


@pytest.mark.parametrize(
    ("c", "factors", "dtype"),
    all_pairs(
        [(33, 20), (20,), (1, 20), (33, 1), (1,), ()],
        [(1, 1), (2, 0.5), (-1.5, 1), (1, -2)],
        [torch.float32, torch.bfloat16, torch.float16],
    ),
    ids=str,
)
def test_addmm_adds_what_broadcasts(c, factors, dtype, device):
    alpha, beta = factors
    a, b, c = (randn(*shape, device=device, dtype=dtype) for shape in ((33, 40), (40, 20), c))
    assert_product(tritonmm.addmm(c, a, b, alpha=alpha, beta=beta), a, b, c, alpha, beta)


def test_a_row_that_is_added_as_it_is_is_a_bias():
    row = torch.randn(7)
    for c in (row, row[None], torch.randn(14)[::2]):
        assert list(rules.addend("addmm", c, 1, 1, (5, 7))) == ["bias"]
    for c, beta in ((row, 2), (torch.randn(5, 1), 1), (torch.randn(5, 7), 1), (torch.randn(()), 1)):
        assert list(rules.addend("addmm", c, 1, beta, (5, 7))) == ["c"]
    assert list(rules.addend("addmm", row, 2, 1, (5, 7))) == ["c"]


@pytest.mark.parametrize("shape", [(5, 7), (7,)], ids=str)
def test_beta_zero_leaves_c_unread(shape, device):
    a, b = randn(5, 4, device=device), randn(4, 7, device=device)
    c = torch.full(shape, NAN, device=device)
    assert_product(tritonmm.addmm(c, a, b, beta=0), a, b)


def test_alpha_zero_leaves_the_matrices_unread(device):
    a, b, c = torch.full((5, 4), NAN, device=device), randn(4, 7, device=device), randn(5, 7, device=device)
    assert torch.equal(tritonmm.addmm(c, a, b, alpha=0, beta=2), 2 * c)
    assert torch.equal(tritonmm.addmm(c[0], a, b, alpha=0), c[0].expand(5, 7))
    assert torch.equal(tritonmm.addmm(c, a, b, alpha=0, beta=0), torch.zeros_like(c))
    out = torch.full((5, 7), NAN, device=device)
    assert torch.equal(tritonmm.addmm(c, a, b, alpha=0, out=out), c)


def test_k_zero_leaves_what_is_added(device):
    a, b, c = randn(5, 0, device=device), randn(0, 7, device=device), randn(5, 7, device=device)
    assert torch.equal(tritonmm.addmm(c, a, b, alpha=3, beta=2), 2 * c)
    assert torch.equal(tritonmm.linear(a, b.t(), c[0]), c[0].expand(5, 7))
    assert torch.equal(tritonmm.dot(a[0], b[:, 0]), torch.zeros((), device=device))
    assert torch.equal(tritonmm.addbmm(c, a.expand(2, 5, 0), b.expand(2, 0, 7)), c)
    assert torch.equal(tritonmm.addbmm(c, torch.ones(0, 5, 4, device=device), torch.ones(0, 4, 7, device=device)), c)
    for alpha in (NAN, float("inf")):
        assert torch.equal(tritonmm.addmm(c, a, b, alpha=alpha, beta=2), 2 * c)
        assert torch.equal(tritonmm.addmm(c[0], a, b, alpha=alpha, out=torch.empty_like(c)), c[0].expand(5, 7))
        assert torch.equal(tritonmm.baddbmm(c, a[None], b[None], alpha=alpha), c[None])
        assert torch.equal(tritonmm.addbmm(c, a[None], b[None], alpha=alpha, beta=0), torch.zeros_like(c))


@pytest.mark.parametrize("which", range(4), ids=["mat1", "mat2", "c", "bias"])
def test_negated_views_are_resolved(which, device):
    def negated(*shape):
        return torch.view_as_complex(torch.randn(*shape, 2, device=device)).conj().imag

    shapes = [(6, 5), (5, 4), (6, 4), (4,)]
    a, b, c, bias = (negated(*s) if i == which else randn(*s, device=device) for i, s in enumerate(shapes))
    given = (a, b, c, bias)[which]
    assert given.is_neg()
    assert_product(tritonmm.addmm(c, a, b, beta=2), a, b, c, beta=2)
    assert_product(tritonmm.addmm(bias, a, b), a, b, bias)


def test_views_that_start_anywhere(device):
    memory = torch.randn(3000, device=device)
    for start in (1, 2, 3, 5):
        a, b = memory[start : start + 35].view(5, 7), memory[100 + start :].as_strided((7, 6), (2, 17))
        c, out = memory[500 + start :].as_strided((5, 6), (0, 1)), torch.full((90,), NAN, device=device)
        view = out[start:].as_strided((5, 6), (13, 2))
        assert_product(tritonmm.addmm(c, a, b, beta=2, out=view), a, b, c, beta=2)
        assert int(out.isnan().sum()) == 90 - 30


@pytest.mark.parametrize("role", ["c", "mat1", "mat2", "bias"])
def test_out_may_be_any_operand(role, device):
    operands = {name: randn(6, 6, device=device) for name in ("c", "mat1", "mat2")}
    bias = randn(6, device=device)
    if role == "bias":
        board = randn(6, 6, device=device)
        bias = board[2]
        expected = tritonmm.addmm(bias, operands["mat1"], operands["mat2"])
        found = tritonmm.addmm(bias, operands["mat1"], operands["mat2"], out=board)
    else:
        expected = tritonmm.addmm(operands["c"], operands["mat1"], operands["mat2"], beta=2)
        found = tritonmm.addmm(*operands.values(), beta=2, out=operands[role])
        assert found is operands[role]
    assert torch.equal(found, expected)


def test_out_that_overlaps_c_in_part(device):
    memory, a, b = randn(100, device=device), randn(6, 6, device=device), randn(6, 6, device=device)
    c, out = memory[:36].view(6, 6), memory[3:39].view(6, 6)
    expected = tritonmm.addmm(c, a, b)
    assert torch.equal(tritonmm.addmm(c, a, b, out=out), expected)


def test_separate_blocks_have_no_element_in_common():
    """All pairs of blocks of a matrix: those that are called separate are, and all with other columns are."""
    matrix = torch.arange(4 * 6).view(4, 6)
    rows, columns = ([(i, j) for i in range(n) for j in range(i + 1, n + 1)] for n in matrix.shape)
    blocks = [(matrix[i:j, k:m], (k, m)) for i, j in rows for k, m in columns]
    separate = 0
    for x, (first, end) in blocks:
        seen = set(x.flatten().tolist())
        for y, (other_first, other_end) in blocks:
            for left, right in ((x, y), (x, y.mT), (x.mT, y)):
                if rules.separate_blocks(left, right):
                    separate += 1
                    assert seen.isdisjoint(y.flatten().tolist()), (left, right)
            wide = min(*x.shape, *y.shape) > 1  # lines of a single element or row have no pitch
            if wide and (end <= other_first or other_end <= first):
                assert rules.separate_blocks(x, y), (x, y)
    assert separate > 1000


def test_out_beside_an_operand_in_one_storage_is_written_in_place(device, monkeypatch):
    memory = randn(100, device=device)
    a, b, out = memory[:36].view(6, 6), memory[36:72].view(6, 6), memory[72:].as_strided((4, 6), (6, 1))
    monkeypatch.setattr(torch.Tensor, "copy_", None)
    assert_product(tritonmm.mm(a[:4], b, out=out), a[:4], b)


def test_out_of_a_call_that_is_remembered(device, monkeypatch):
    a, b = randn(6, 6, device=device), randn(6, 6, device=device)
    expected = tritonmm.mm(a, b)
    with monkeypatch.context() as patch:
        patch.setattr("tritonmm.torch_ops.dense.check_operands", None)  # the long way is not taken
        out = torch.full((6, 6), NAN, device=device)
        assert tritonmm.mm(a, b, out=out) is out
        assert torch.equal(out, expected)
    memory = torch.full((200,), NAN, device=device)
    for start in (0, 1, 33, 35):  # over a, over its end, from its last row; and misaligned
        x = memory[:36].view(6, 6).copy_(a)
        out = memory[start : start + 36].view(6, 6)
        assert torch.equal(tritonmm.mm(x, b, out=out), expected), start
        y = memory[:36].view(6, 6).copy_(b)
        assert torch.equal(tritonmm.mm(a, y, out=memory[start : start + 36].view(6, 6)), expected), start
    transposed = torch.full((6, 6), NAN, device=device).t()
    assert torch.equal(tritonmm.mm(a, b, out=transposed), expected)


def test_transposed_out_keeps_its_strides(device):
    a, b, c = randn(5, 7, device=device), randn(7, 6, device=device), randn(6, device=device)
    for function, args in ((tritonmm.mm, (a, b)), (tritonmm.addmm, (c, a, b))):
        out = torch.full((6, 5), NAN, device=device).t()
        function(*args, out=out)
        assert out.stride() == (1, 5)
        assert_product(out, a, b, c if function is tritonmm.addmm else None)


OUTS = {
    "mm": ((5, 7), (7, 3)), "bmm": ((2, 5, 7), (2, 7, 3)), "mv": ((5, 7), (7,)), "dot": ((7,), (7,)),
    "addmm": ((5, 3), (5, 7), (7, 3)), "baddbmm": ((2, 5, 3), (2, 5, 7), (2, 7, 3)),
    "addbmm": ((5, 3), (2, 5, 7), (2, 7, 3)), "matmul": ((2, 5, 7), (7,)),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTS)
def test_out_of_every_function(name, device):
    args = [randn(*shape, device=device) for shape in OUTS[name]]
    ours = getattr(tritonmm, name)
    expected = ours(*args)
    out = torch.full(expected.shape, NAN, device=device)
    assert ours(*args, out=out) is out
    assert torch.equal(out, expected)
    wrong = torch.empty(*expected.shape, 2, device=device)
    with pytest.warns(UserWarning, match="resized"):
        ours(*args, out=wrong)
    assert torch.equal(wrong, expected)
    for bad in (
        torch.empty_like(expected, dtype=torch.float16),
        torch.empty((), device=device).expand(4, *expected.shape)[0] if expected.dim() else None,
        torch.empty_like(expected, requires_grad=True),
    ):
        if bad is not None:
            with pytest.raises(RuntimeError, match=f"^{name}: "):
                ours(*args, out=bad)


def test_out_and_an_operand_that_requires_grad(device):
    a, b = randn(5, 7, device=device).requires_grad_(), randn(7, 3, device=device)
    for module in (torch, tritonmm):
        with pytest.raises(RuntimeError, match=r"support automatic differentiation"):
            module.mm(a, b, out=torch.empty(5, 3, device=device))
        with torch.no_grad():
            module.mm(a, b, out=torch.empty(5, 3, device=device))


BAD = [
    ("mm", ((5, 7), (6, 3))), ("mm", ((5, 7), (7,))), ("mm", ((2, 5, 7), (2, 7, 3))), ("bmm", ((5, 7), (7, 3))),
    ("bmm", ((2, 5, 7), (3, 7, 3))), ("bmm", ((2, 5, 7), (2, 6, 3))), ("mv", ((5, 7), (6,))), ("mv", ((7,), (7,))),
    ("dot", ((5,), (6,))), ("dot", ((5, 5), (5, 5))), ("addmm", ((4, 3), (5, 7), (7, 3))),
    ("addmm", ((1, 5, 3), (5, 7), (7, 3))), ("addmm", ((5, 3), (5, 7), (6, 3))), ("addmm", ((5, 3), (7,), (7, 3))),
    ("baddbmm", ((3, 5, 3), (2, 5, 7), (2, 7, 3))),
    ("addbmm", ((4, 3), (2, 5, 7), (2, 7, 3))), ("addbmm", ((5, 3), (3, 5, 7), (2, 7, 3))),
    ("linear", ((5, 7), (3, 6))), ("linear", ((5, 7), (3, 7), (4,))), ("linear", ((), (3, 7))),
    ("linear", ((5, 7), (2, 3, 7), (3,))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shapes"), BAD, ids=str)
def test_shapes_that_torch_refuses(name, shapes, device):
    args = [torch.zeros(shape, device=device) for shape in shapes]
    reference = torch.nn.functional.linear if name == "linear" else getattr(torch, name)
    with pytest.raises(RuntimeError):
        reference(*args)
    with pytest.raises(RuntimeError, match=f"^{name}: "):
        getattr(tritonmm, name)(*args)


def test_a_weight_has_its_own_shape_in_errors(device):
    with pytest.raises(RuntimeError, match="4x64 has 64 columns, 32x60 has 60 columns"):
        tritonmm.linear(torch.zeros(4, 64, device=device), torch.zeros(32, 60, device=device))


@pytest.mark.parametrize("name", OUTS)
def test_dtypes_and_devices_that_differ(name, device):
    args = [torch.zeros(shape, device=device) for shape in OUTS[name]]
    for i in range(len(args)):
        for other, says in ((args[i].half(), "dtype"), (args[i].to("meta"), "device")):
            given = [*args[:i], other, *args[i + 1 :]]
            if says == "dtype":
                with pytest.raises(RuntimeError):
                    getattr(torch, name)(*given)
            with pytest.raises(RuntimeError, match=f"^{name}: operands need the same {says}"):
                getattr(tritonmm, name)(*given)


@pytest.mark.parametrize("number", ["alpha", "beta"])
def test_complex_scalars(number, device):
    args = [torch.zeros(5, 5, device=device)] * 3
    for module in (torch, tritonmm):
        with pytest.raises(RuntimeError):
            module.addmm(*args, **{number: 2j})
    assert torch.equal(tritonmm.addmm(*args, **{number: torch.tensor(2.0)}), args[0])


@pytest.mark.parametrize("number", ["alpha", "beta"])
def test_scalars_that_are_no_numbers(number, device):
    args = [torch.ones(2, 2, device=device)] * 3
    for value in ("2", None, [2.0], torch.tensor([2.0]), torch.tensor(2.0, requires_grad=True)):
        for module in (torch, tritonmm):
            with pytest.raises(TypeError, match=number):
                module.addmm(*args, **{number: value})
    for value in (True, 2, 0.5, np.float32(0.5), np.int64(2), torch.tensor(2), torch.tensor(True)):
        expected = torch.addmm(*args, **{number: value})
        assert torch.equal(tritonmm.addmm(*args, **{number: value}), expected), value


def test_sparse_operands_say_so(device):
    dense = torch.eye(4, device=device)
    with pytest.raises(NotImplementedError, match="sparse"):
        tritonmm.mm(dense, dense.to_sparse())


def test_a_matrix_product_after_a_batch_of_the_same_operands(device):
    a, b = randn(2, 5, 7, device=device), randn(2, 7, 3, device=device)
    tritonmm.bmm(a, b)
    with pytest.raises(RuntimeError, match="2-D"):
        tritonmm.mm(a, b)
    tritonmm.mm(a[0], b[0])
    with pytest.raises(RuntimeError, match="3-D"):
        tritonmm.bmm(a[0], b[0])


SHAPES = OUTS | {"linear": ((5, 7), (3, 7), (3,))}


def torchs(name):
    return torch.nn.functional.linear if name == "linear" else getattr(torch, name)


@pytest.mark.parametrize("name", SHAPES)
def test_autocast(name, device):
    args = [randn(*shape, device=device) for shape in SHAPES[name]]
    with torch.autocast(device.type, dtype=torch.bfloat16):
        found, expected = getattr(tritonmm, name)(*args), torchs(name)(*args)
        if name != "linear":
            out = getattr(tritonmm, name)(*args, out=torch.empty(0, device=device))
            assert out.dtype == torch.float32
    assert found.dtype == expected.dtype
    assert torch.equal(found, getattr(tritonmm, name)(*(x.to(found.dtype) for x in args)))


@pytest.mark.parametrize("first", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("name", SHAPES)
def test_autocast_casts_what_torch_casts(name, kind, first):
    """The lists of functions differ between devices. Fake tensors tell them without a GPU."""
    rest = torch.float64 if first == torch.float64 else torch.float32
    with FakeTensorMode():
        args = [torch.empty(s, device=kind, dtype=rest if i else first) for i, s in enumerate(SHAPES[name])]
        before = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        torch.set_autocast_enabled(kind, True)
        torch.set_autocast_dtype(kind, torch.bfloat16)
        try:
            if kind == "cpu" and first != rest and name in ("mv", "dot"):  # which keep their dtypes
                with pytest.raises(RuntimeError, match="same dtype"):
                    getattr(tritonmm, name)(*args)
            else:
                assert getattr(tritonmm, name)(*args).dtype == torchs(name)(*args).dtype
        finally:
            torch.set_autocast_enabled(kind, before[0])
            torch.set_autocast_dtype(kind, before[1])


@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
@pytest.mark.parametrize("shape", [(5, 7), (2, 7), (1, 7), (7,), (3, 2, 7), (1, 2, 7), (2, 0, 7), (0, 7)], ids=str)
def test_biases_of_linear(shape, strided, device):
    input = randn(*shape, device=device) if not strided else randn(*shape[:-1], 14, device=device)[..., ::2]
    weight = randn(3, 7, device=device)
    biases = [(3,), (1, 3), (2, 3), (5, 3), (1,), (), (1, 2, 3), (3, 2, 3), (6, 3), (0, 3), (2, 1)]
    for bias in (randn(*bias, device=device) for bias in biases):
        try:
            expected = torch.nn.functional.linear(input, weight, bias)
        except RuntimeError:
            with pytest.raises(RuntimeError, match=r"^linear: "):
                tritonmm.linear(input, weight, bias)
        else:
            torch.testing.assert_close(tritonmm.linear(input, weight, bias), expected, rtol=1e-5, atol=1e-5)


def test_autocast_is_differentiable(device):
    a, b = randn(5, 7, device=device).requires_grad_(), randn(7, 3, device=device).requires_grad_()
    with torch.autocast(device.type, dtype=torch.bfloat16):
        tritonmm.mm(a, b).sum().backward()
    assert a.grad.dtype == torch.float32
    assert_product(b.grad.bfloat16(), a.detach().bfloat16().t(), torch.ones(5, 3, device=device).bfloat16())


def test_config_is_used_by_every_way(device):
    wrong = tritonmm.Config(block_m=48)
    a, b = randn(5, 7, device=device), randn(7, 3, device=device)
    for product in (lambda: tritonmm.mm(a, b, config=wrong), lambda: tritonmm.mm(a.requires_grad_(), b, config=wrong)):
        with pytest.raises(ValueError, match="block_m is 48"):
            product()
    with pytest.raises(ValueError, match="block_m is 48"):
        torch.func.grad(lambda x: tritonmm.mm(x, b, config=wrong).sum())(a.detach())
    right = tritonmm.Config(block_m=32, block_n=32, block_k=32, num_stages=2, num_warps=4)
    assert_product(tritonmm.mm(a, b, config=right), a, b)


def test_the_memory_of_calls_is_bounded(monkeypatch):
    monkeypatch.setattr(products, "CACHED_CALLS", 3)
    calls = {}
    for i in range(5):
        products.remember(calls, (i,), None)
    assert list(calls) == [(2,), (3,), (4,)]


@pytest.mark.gpu
@pytest.mark.parametrize("which", ["a", "b", "c", "out"])
def test_elements_beyond_two_to_the_31(which, device):
    """64 rows that lie 2^26 elements apart: the last ones are out of a 32-bit offset's reach."""
    tensors = {"a": (64, 96), "b": (96, 80), "c": (64, 80), "out": (64, 80)}
    given = {name: randn(*shape, device=device, dtype=torch.bfloat16) for name, shape in tensors.items()}
    rows, cols = tensors[which]
    far = torch.empty((rows - 1) * 2**26 + cols, dtype=torch.bfloat16, device=device).as_strided(
        (rows, cols), (2**26, 1)
    )
    far.copy_(given[which])
    given[which] = far
    a, b, c, out = given.values()
    out.fill_(NAN)
    assert_product(tritonmm.addmm(c, a, b, beta=2, out=out), a, b, c, beta=2)


@pytest.mark.gpu
def test_results_are_the_same_from_run_to_run(device):
    torch.use_deterministic_algorithms(True)
    try:
        for m, n, k in ((257, 300, 5000), (4096, 1024, 512), (1, 4096, 4096)):
            a, b = randn(m, k, device=device, dtype=torch.bfloat16), randn(k, n, device=device, dtype=torch.bfloat16)
            first = tritonmm.mm(a, b)
            assert all(torch.equal(tritonmm.mm(a, b), first) for _ in range(5))
    finally:
        torch.use_deterministic_algorithms(False)


def test_addends_have_no_more_dimensions_than_the_result(device):
    x, w = torch.randn(3, 4, device=device), torch.randn(4, 2, device=device)
    for alpha in (1, 2):
        with pytest.raises(RuntimeError, match="1x1x2 does not broadcast to"):
            tritonmm.addmm(torch.ones(1, 1, 2, device=device), x, w, alpha=alpha)
    none = torch.func.vmap(lambda c: tritonmm.addmm(c, x, w))(torch.empty(0, 2, device=device))
    assert none.shape == (0, 3, 2)
