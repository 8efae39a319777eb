"""Where tritonmm fails under the override, torch's kernel computes the product, and one warning says why."""

import warnings

import pytest
import torch
from bounds import assert_product

import tritonmm
from tritonmm.launch import Plan, direct
from tritonmm.torch_ops import aten, routes

F8 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def nothing_known(override, monkeypatch):
    """No route and no failure of tests before."""
    monkeypatch.setattr(routes, "_CAUSES", set())
    override.enable()
    override.disable()


@pytest.fixture
def fails(monkeypatch):
    """Has every launch fail with `fails.error` while there is one; counts the attempts."""

    class Fails:
        error: BaseException | None = PermissionError(13, "Permission denied: '/.triton/cache'")
        attempts = 0

        def __call__(self, plan, *args, **kwargs):
            self.attempts += 1
            if self.error is not None:
                raise self.error
            return call(plan, *args, **kwargs)

    call, fails = Plan.__call__, Fails()
    monkeypatch.setattr(Plan, "__call__", lambda *args, **kwargs: fails(*args, **kwargs))
    return fails


def case(name, device):
    """A call of an operator that gives a new result each time."""

    def ints(*shape, dtype=torch.float32):
        return torch.randint(-4, 5, shape, device=device).to(dtype)

    a, b, c, row = ints(32, 48), ints(48, 64), ints(32, 64), ints(64)
    i8, f8 = (ints(32, 48, dtype=dtype) for dtype in (torch.int8, F8))
    i8_b, f8_b = (ints(64, 48, dtype=dtype).t() for dtype in (torch.int8, F8))
    one, half_out = torch.ones((), device=device), torch.empty(32, 64, device=device).bfloat16()
    kind = torch.nn.functional.ScalingType.TensorWise
    half = torch.bfloat16
    groups, offs = ints(2, 48, 64, dtype=half), torch.tensor([16, 32], dtype=torch.int32, device=device)
    f8_groups = f8_b.expand(2, 48, 64).mT.contiguous().mT
    scales = torch.ones(32, device=device), torch.ones(2, 64, device=device)
    rows = torch.nn.functional.ScalingType.RowWise
    return {
        "mm": lambda: torch.mm(a, b),
        "mm.out": lambda: torch.mm(a, b, out=torch.empty_like(c)),
        "bmm.out": lambda: torch.bmm(a[None], b[None], out=torch.empty_like(c)[None]),
        "addmm": lambda: torch.addmm(c, a, b, beta=2, alpha=3),
        "addmm bias": lambda: torch.addmm(row, a, b),
        "addmm_": lambda: c.clone().addmm_(a, b, beta=2, alpha=3),
        "baddbmm.out": lambda: torch.baddbmm(c[None], a[None], b[None], out=torch.empty_like(c)[None]),
        "addmv_": lambda: row[:32].clone().addmv_(a, row[:48]),
        "dot": lambda: torch.dot(row, row),
        "_int_mm": lambda: torch._int_mm(i8, i8_b),
        "_int_mm.out": lambda: torch._int_mm(i8, i8_b, out=torch.empty(32, 64, dtype=torch.int32, device=device)),
        "_scaled_mm": lambda: torch._scaled_mm(f8, f8_b, one, one, out_dtype=half),
        "_scaled_mm.out": lambda: torch._scaled_mm(f8, f8_b, one, one, out_dtype=half, out=half_out.clone()),
        "_scaled_mm_v2": lambda: torch.nn.functional.scaled_mm(f8, f8_b, one, kind, one, kind, output_dtype=half),
        "_grouped_mm": lambda: torch.nn.functional.grouped_mm(a.to(half), groups, offs=offs),
        "_scaled_grouped_mm": lambda: torch._scaled_grouped_mm(f8, f8_groups, *scales, offs),
        "_scaled_grouped_mm_v2": lambda: torch.nn.functional.scaled_grouped_mm(
            f8, f8_groups, scales[0], rows, scales[1], rows, offs=offs
        ),
    }[name]  # fmt: skip


CASES = (
    "mm", "mm.out", "bmm.out", "addmm", "addmm bias", "addmm_", "baddbmm.out", "addmv_", "dot",
    "_int_mm", "_int_mm.out", "_scaled_mm", "_scaled_mm.out", "_scaled_mm_v2",
    "_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2",
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_torchs_kernel_computes_what_fails_and_it_is_not_tried_again(name, override, fails, device):
    call = case(name, device)
    expected = call()
    with override.use("always"):
        with pytest.warns(UserWarning, match=rf"compute aten::{name.split()[0]} of .*\[.*PermissionError: .*cache'"):
            found = call()
        assert torch.equal(found, expected)
        attempts = fails.attempts
        assert attempts > 0
        fails.error = None
        assert torch.equal(call(), expected)
        assert fails.attempts == attempts
    override.enable("always")
    call()
    override.disable()
    assert fails.attempts > attempts, "enable() tries again"


def test_the_warning_is_the_callers_and_says_what_to_do(override, fails, device):
    a = torch.eye(6, device=device)
    with override.use("always"), pytest.warns(UserWarning, match=r"tritonmm doctor.*\n?.*enable\(\) tries") as caught:
        torch.addmm(a, a, a)
    assert caught[0].filename == __file__


def test_each_cause_is_reported_once(override, fails, device):
    a = torch.eye(6, device=device)
    with override.use("always"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for calls in range(1, 6):
            torch.mm(a[:calls], a)
            torch.addmm(a[:calls], a[:calls], a)
        assert len(caught) == 1
        fails.error = RuntimeError("ptxas " * 1000)
        torch.dot(a[0], a[0])
        assert len(caught) == 2
        assert len(str(caught[1].message)) < 1200


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no"), MemoryError(), RuntimeError("Triton Error [CUDA]: out of memory")], ids=repr
)
@pytest.mark.parametrize("name", ["mm", "addmm_", "_int_mm", "_scaled_grouped_mm"])
def test_without_memory_one_call_is_torchs_and_the_next_is_tried(name, error, override, fails, device):
    call = case(name, device)
    expected = call()
    fails.error = error
    with override.use("always"):
        assert torch.equal(call(), expected)
        fails.error = None
        assert torch.equal(call(), expected)
    assert fails.attempts == 2


@pytest.mark.parametrize("name", ["mm", "addmm_", "_int_mm", "_scaled_grouped_mm"])
def test_interrupts_are_passed_on(name, override, fails, device):
    call = case(name, device)
    fails.error = KeyboardInterrupt()
    with override.use("always"):
        with pytest.raises(KeyboardInterrupt):
            call()
        fails.error = None
        call()
    assert fails.attempts == 2


@pytest.mark.parametrize("name", ["mm", "bmm.out", "addmm"])
def test_what_fails_before_there_is_a_plan_is_torchs_too(name, override, monkeypatch, device):
    def broken(*args):
        raise ImportError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(aten, "find", broken)
    call = case(name, device)
    expected = call()
    with override.use("always"):
        with pytest.warns(UserWarning, match="ImportError: libcuda"):
            assert torch.equal(call(), expected)
        assert torch.equal(call(), expected)


def test_direct_calls_raise(override, fails, device):
    a, b = torch.eye(6, device=device), torch.eye(6, device=device, dtype=torch.int8)
    with override.use("always"):
        for call in (lambda: tritonmm.mm(a, a), lambda: tritonmm.addmm(a, a, a), lambda: tritonmm.int_mm(b, b)):
            with pytest.raises(PermissionError):
                call()


@pytest.mark.gpu
def test_a_launch_that_cannot_be_kept_is_no_failure(override, monkeypatch, device):
    """C is added once, although something fails after the kernel has been launched on it."""

    def broken(*args):
        raise TypeError("another Triton")

    monkeypatch.setattr(direct, "repeatable", broken)
    a, b, c = (torch.randn(shape, device=device) for shape in ((33, 77), (77, 55), (33, 55)))
    expected = c.clone()
    with override.use("always"), pytest.warns(UserWarning, match="a launch was not kept.*another Triton"):
        c.addmm_(a, b)
    assert_product(c, a, b, expected)


@pytest.mark.gpu
def test_without_a_compiler_torch_computes(tmp_path):
    """In a process of its own, with an empty Triton cache and no C compiler, or a cache that cannot be written."""
    import os
    import subprocess
    import sys

    script = """
import warnings, torch, tritonmm
tritonmm.enable("always")
a = torch.randn(300, 256, device="cuda").bfloat16()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    found = [a @ a[:256] for _ in range(3)] + [torch.nn.functional.linear(a, a, a[:, 0])]
tritonmm.disable()
assert all(torch.equal(x, a @ a[:256]) for x in found[:3])
ours = [str(x.message) for x in caught if "tritonmm failed" in str(x.message)]
assert len(ours) == 1, ours
print(ours[0])
"""
    (tmp_path / "file").touch()
    for broken in ({"CC": "/nowhere/cc", "TRITON_CACHE_DIR": str(tmp_path / "cache")},
                   {"TRITON_CACHE_DIR": str(tmp_path / "file" / "cache")}):  # fmt: skip
        environment = os.environ | broken
        ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert "torch's own kernel computes this call" in ran.stdout
