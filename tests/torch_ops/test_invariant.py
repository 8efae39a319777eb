"""`accumulation="invariant"`: what functions and the override ask for, on the CPU, where NumPy adds up."""

import re
from pathlib import Path

import pytest
import torch

import tritonmm
from tritonmm import Config
from tritonmm.torch_ops import aten_grouped, aten_others, call_cache, mode, operator, product
from tritonmm.torch_ops.aten import ATEN_OPS
from tritonmm.torch_ops.routes import Demand, LeftToTorchError, Routes


@pytest.fixture(autouse=True)
def forgotten(override):
    """Nothing is kept of what earlier tests multiplied."""
    override.enable()
    override.disable()
    product._CALLS.clear()
    call_cache.forget()


@pytest.fixture
def planned(monkeypatch):
    """The problems that are planned, without a config of the caller's, as they are asked for."""
    found = []
    bare = product.problem_of

    def problem_of(*args):
        found.append(bare(*args))
        return found[-1]

    monkeypatch.setattr(product, "problem_of", problem_of)
    monkeypatch.setattr("tritonmm.torch_ops.aten_quantized.problem_of", problem_of)
    return found


A, B = torch.randn(5, 48), torch.randn(48, 7)
EIGHT = torch.ones(16, 16, dtype=torch.int8)
FP8, ONE = torch.ones(16, 32).to(torch.float8_e4m3fn), torch.ones(1)

CALLS = {
    "mm": lambda **more: tritonmm.mm(A, B, **more),
    "bmm": lambda **more: tritonmm.bmm(A[None], B[None], **more),
    "matmul": lambda **more: tritonmm.matmul(A, B, **more),
    "addmm": lambda **more: tritonmm.addmm(torch.ones(7), A, B, **more),
    "baddbmm": lambda **more: tritonmm.baddbmm(torch.ones(1, 5, 7), A[None], B[None], **more),
    "addbmm": lambda **more: tritonmm.addbmm(torch.ones(5, 7), A[None], B[None], **more),
    "linear": lambda **more: tritonmm.linear(A, B.t(), **more),
    "linear of a vector": lambda **more: tritonmm.linear(A, B[:, 0], **more),
    "linear of a vector, bias": lambda **more: tritonmm.linear(A, B[:, 0], torch.ones(()), **more),
    "mv": lambda **more: tritonmm.mv(A, B[:, 0], **more),
    "dot": lambda **more: tritonmm.dot(A[0], B[:, 0], **more),
    "int_mm": lambda **more: tritonmm.int_mm(EIGHT, EIGHT, **more),
    "scaled_mm": lambda **more: tritonmm.scaled_mm(FP8, FP8.t(), ONE, ONE, **more),
    "weight_only_linear": lambda **more: tritonmm.weight_only_linear(
        torch.ones(2, 16, dtype=torch.bfloat16), EIGHT, torch.ones(16), **more
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_function_takes_it(name, planned):
    CALLS[name](accumulation="invariant")
    assert [p.accumulation for p in planned] == ["invariant"]


@pytest.mark.parametrize("name", CALLS)
def test_functions_follow_the_mode_unless_told_otherwise(name, planned, override):
    for _ in range(2):  # the second call may find the first one's plan, but never one of another accumulation
        CALLS[name]()
        with override.use("always", "invariant"):
            CALLS[name]()
            CALLS[name](accumulation="any")
    assert {p.accumulation for p in planned[1::2]} <= {"any", "invariant"}
    assert [p.accumulation for p in planned[:3]] == ["any", "invariant", "any"]
    assert mode.required() == "any"


@pytest.mark.parametrize("name", CALLS)
def test_unknown_accumulation(name):
    with pytest.raises(ValueError, match="accumulation is 'same'; it must be 'any', 'invariant', or ''"):
        CALLS[name](accumulation="same")


@pytest.mark.parametrize(("function", "asked"), [(tritonmm.mm, 1), (torch.mm, 2)], ids=["tritonmm", "torch"])
def test_what_is_kept_is_what_was_asked_for(function, asked, planned, override, monkeypatch):
    """Another thread leaves its `use` between the key of a call and its plan, which later calls find by that key."""
    for name in ("tritonmm.torch_ops.product", "tritonmm.torch_ops.aten"):

        def key(*operands, found=product.key):
            asked = found(*operands)
            mode.require("any")
            return asked

        monkeypatch.setattr(f"{name}.key", key)
    with override.use("always", "invariant"):
        function(A, B)
    assert [p.accumulation for p in planned[:asked]] == ["invariant"] * asked


ROW = torch.arange(7.0)
ADDED = {
    "a vector": ROW,
    "a strided vector": torch.stack([ROW, ROW], 1)[:, 0],
    "a row": ROW[None],
    "rows": ROW.expand(5, 7).contiguous(),
    "an expanded row": ROW.expand(5, 7),
}


@pytest.mark.parametrize("alpha", [1, 0.3])
@pytest.mark.parametrize("function", [tritonmm.addmm, torch.addmm], ids=["tritonmm", "torch"])
def test_what_is_added_has_the_same_bits_however_it_lies(function, alpha, planned, override):
    """alpha is fused with the addition of a bias, so a bias and a C are alike only without it."""
    with override.use("always", "invariant", strict=True):
        for added in ADDED.values():
            function(added, A, B, alpha=alpha)
        function(ROW[None], A[:1], B, alpha=alpha)  # one of the rows
    assert len({(p.epilogue.bias, p.epilogue.c) for p in planned if p.epilogue.scaled}) == (alpha != 1)
    assert all(p.epilogue.bias != p.epilogue.c for p in planned)


def test_a_bias_of_each_sample_is_added_before_the_sum_is_rounded():
    """As for one sample: 256 + 1 + 1 is 258, which bf16 has, but not 257, which it would be rounded from twice."""
    x = torch.tensor([[256.0, 1.0]]).bfloat16()
    weight, bias = torch.ones(3, 2).bfloat16(), torch.ones(4, 3).bfloat16()
    for dims, given in ((None, x), (0, x.expand(4, 1, 2))):
        found = torch.func.vmap(tritonmm.linear, (dims, None, 0))(given, weight, bias)
        assert torch.equal(found, torch.full((4, 1, 3), 258.0).bfloat16())
    assert torch.equal(tritonmm.linear(x, weight, bias[0]), torch.full((1, 3), 258.0).bfloat16())


def test_a_config_that_splits_k_is_refused():
    split = Config("skinny", block_m=16, block_n=32, block_k=16, split_k=2)
    with pytest.raises(ValueError, match="one program sums all of K"):
        tritonmm.mm(A.bfloat16(), B.bfloat16(), config=split, accumulation="invariant")


def test_derivatives_have_the_accumulation_of_the_forward_pass(planned, override):
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    with override.use("faster", "invariant"):
        out = tritonmm.mm(a, b)
    out.sum().backward()
    assert [p.accumulation for p in planned] == ["invariant"] * 3
    planned.clear()
    tritonmm.mm(a[:3], b, accumulation="invariant").sum().backward()
    assert [p.accumulation for p in planned] == ["invariant"] * 3


def test_the_operator_follows_the_mode_of_the_call_not_of_the_trace(planned, override):
    compiled = torch.compile(lambda a, b: tritonmm.mm(a, b), backend="eager")
    compiled(A[:4], B)
    with override.use("faster", "invariant"):
        compiled(A[:4], B)
    assert [p.accumulation for p in planned] == ["any", "invariant"]
    assert "str accumulation" in str(operator.operator._schema)


TORCH_CALLS = {
    "mm": lambda: torch.mm(A, B),
    "bmm": lambda: torch.bmm(A[None], B[None]),
    "addmm": lambda: torch.addmm(torch.ones(7), A, B),
    "baddbmm": lambda: torch.baddbmm(torch.ones(1, 5, 7), A[None], B[None]),
    "mv": lambda: torch.mv(A, B[:, 0]),
    "dot": lambda: torch.dot(A[0], B[:, 0]),
    "einsum": lambda: torch.einsum("ij,jk->ik", A, B),
    "fp64": lambda: torch.mm(A.double(), B.double()),
}


@pytest.mark.parametrize("name", TORCH_CALLS)
def test_torchs_matmuls_go_through_it_whatever_the_policy(name, planned, override, monkeypatch):
    monkeypatch.setattr("tritonmm.torch_ops.override.prefers", lambda problem, gpu: (False, "never"))
    with override.use("faster", "invariant", strict=True):
        TORCH_CALLS[name]()
    assert {p.accumulation for p in planned} == {"invariant"}


LEFT = {
    "complex": (lambda: torch.mm(A.cfloat(), B.cfloat()), "operands are torch.complex64 on cpu"),
    "int64": (lambda: torch.mm(A.long(), B.long()), "operands are torch.int64 on cpu"),
    "subclass": (lambda: torch.mm(A.as_subclass(type("Mine", (torch.Tensor,), {})), B), "subclass of Tensor"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_stays_with_torch_is_reported_once_or_raises(name, override):
    call, reason = LEFT[name]
    with override.use("faster", "invariant"):
        with pytest.warns(UserWarning, match=f"aten::mm stays with torch's kernel, .*: .*{reason}"):
            call()
        call()  # warnings are errors
    with override.use("faster", "invariant", strict=True), pytest.raises(LeftToTorchError, match=reason):
        call()
    call()
    with override.use("faster"):
        call()


WRONG = {
    "shapes": (lambda: torch.mm(A, A), "mat1 and mat2"),
    "dtypes": (lambda: torch.mm(A, B.double()), "expected m1 and m2 to have the same dtype"),
    "dtype of C": (lambda: torch.addmm(torch.ones(7).half(), A, B), "must have the same dtype"),
    "dtype of out": (lambda: torch.mm(A, B, out=torch.empty(5, 7).half()), "Expected out tensor to have dtype"),
    "a complex alpha": (lambda: torch.addmm(torch.ones(7), A, B, alpha=1j), "without overflow"),
}


def test_empty_and_wrong_operands_are_torchs_without_a_word(override):
    with override.use("faster", "invariant", strict=True):
        assert torch.mm(torch.ones(0, 3), torch.ones(3, 2)).shape == (0, 2)
        assert torch.mm(torch.ones(2, 0), torch.ones(0, 2)).tolist() == [[0, 0], [0, 0]]
        assert torch.addmm(torch.ones(5, 7), A, B, alpha=0).tolist() == torch.ones(5, 7).tolist()
        for wrong, error in WRONG.values():
            with pytest.raises(RuntimeError, match=error) as found:
                wrong()
            assert type(found.value) is RuntimeError


def test_a_failure_is_an_error_if_strict(override, monkeypatch):
    def broken(*args):
        raise OSError("no compiler")

    monkeypatch.setattr("tritonmm.torch_ops.aten.find", broken)
    with override.use("faster", "invariant", strict=True):
        for _ in range(2):
            with pytest.raises(LeftToTorchError, match="tritonmm failed: OSError: no compiler"):
                torch.mm(A, B)


def test_a_failure_is_reported_once(override, monkeypatch):
    def broken(*args):
        raise OSError("no linker")

    monkeypatch.setattr("tritonmm.torch_ops.aten.find", broken)
    with override.use("faster", "invariant"):
        with pytest.warns(UserWarning, match="tritonmm failed to compute aten::mm"):
            torch.mm(A, B)
        torch.mm(A, B)  # warnings are errors


def test_ops_that_have_no_kernel_of_ours_say_so(override):
    with override.use("faster", "invariant"), pytest.warns(UserWarning, match="_addmm_activation .* no activation"):
        torch._addmm_activation(torch.ones(7), A, B)
    with override.use("faster", "invariant", strict=True), pytest.raises(LeftToTorchError, match="no activation"):
        torch._addmm_activation(torch.ones(7), A, B)
    with override.use("always"):
        torch._addmm_activation(torch.ones(7), A, B)


def test_every_op_that_multiplies_matrices_is_taken_over_or_reported():
    """torch's list of its functions names those with a kernel for dense tensors on GPUs."""
    yaml = pytest.importorskip("yaml")
    listed = Path(pytest.importorskip("torchgen").__file__).parent / "packaged/ATen/native/native_functions.yaml"
    ours = {op.name + suffix for op in ATEN_OPS for suffix in ("", "_", ".out")}
    ours |= {name + suffix for name in ("_int_mm", "_scaled_mm", "_scaled_mm_v2") for suffix in ("", ".out")}
    ours |= {*aten_others.TO_FP32, *aten_others.LEFT, *aten_grouped.OPERATORS}
    others = {"sspaddmm.out", "_cslt_sparse_mm_search"}  # of sparse tensors; times kernels
    for function in yaml.load(listed.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        name = function["func"].split("(")[0]
        on_gpus = any("CUDA" in key.split(", ") for key in function.get("dispatch", {}))
        if on_gpus and re.search(r"mm(_|$)|mv$|dot$|_linear$", name.split(".")[0]) and name not in others:
            assert name in ours, f"{name} is neither taken over nor reported"


@pytest.mark.parametrize("beta", [None, 0, 2])
@pytest.mark.parametrize("dims", [2, 3])
def test_overloads_to_fp32(dims, beta, planned):
    """mm.dtype and its like, which torch has for GPUs alone."""
    routes = Routes("mm.dtype", Demand(accumulation="invariant"), lambda problem, gpu: "")
    a, b = (x[None].half() if dims == 3 else x.half() for x in (A, B))
    more = {} if beta is None else {"c": torch.full((7,), 3.0).half(), "beta": beta, "alpha": 2}
    found = aten_others._product(routes, dims, a, b, torch.float32, **more)
    expected = a.double() @ b.double() * (1 if beta is None else 2) + 3 * (beta or 0)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert planned[-1].out_dtype == "fp32"
    assert aten_others._product(routes, dims, a, a, torch.float32) is None  # torch says what is wrong with the shapes
    for wrong in (torch.ones(3).half(), torch.ones(7).double()):
        assert aten_others._product(routes, dims, a, b, torch.float32, c=wrong) is None
    assert not routes


def test_an_overload_to_fp32_that_failed_is_not_tried_again(monkeypatch):
    calls = []

    def broken(*args, **more):
        calls.append(args)
        raise OSError("no assembler")

    monkeypatch.setattr(aten_others, "product", broken)
    routes = Routes("bmm.dtype", Demand(accumulation="invariant"), lambda problem, gpu: "")
    with pytest.warns(UserWarning, match="tritonmm failed to compute aten::bmm.dtype"):
        aten_others._product(routes, 2, A.half(), B.half(), torch.float32)
    assert aten_others._product(routes, 2, A.half(), B.half(), torch.float32) is None
    assert len(calls) == 1


def test_requests_that_make_no_sense(override):
    with pytest.raises(ValueError, match="accumulation is 'same'"):
        override.enable("faster", "same")
    with pytest.raises(ValueError, match="strict is True; that is for accumulation="):
        override.enable("faster", strict=True)
