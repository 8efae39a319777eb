"""tune="first-call": measured once, used from then on, and never where it would be in the way."""

import threading

import pytest
import torch
from bounds import assert_product
from threads import at_once

import tritonmm
from tritonmm import gpu, tuned
from tritonmm.config import Config
from tritonmm.torch_ops import call_cache, first_call
from tritonmm.torch_ops import product as products
from tritonmm.torch_ops.product import How
from tritonmm.tuned import table


@pytest.fixture(autouse=True)
def user(tmp_path, monkeypatch):
    """The file of the user's table, which is missing; nothing is remembered."""
    monkeypatch.setenv("TRITONMM_TABLES", str(tmp_path))
    monkeypatch.setattr(tuned, "_SHIPPED", tmp_path / "shipped")
    for memory in (tuned._TABLES, products._CALLS, call_cache._KEPT, first_call._TUNED):
        memory.clear()
    yield tuned.user_path(gpu.default())
    for memory in (tuned._TABLES, products._CALLS, call_cache._KEPT, first_call._TUNED):
        memory.clear()


@pytest.fixture
def timer(monkeypatch):
    """Instead of the GPU: what is in `times`, in turn, and every plan that was timed in `plans`."""

    class Timer:
        times = (9.0, 8.0, 3.0, 7.0)
        plans = ()
        rounds = 0

        def __call__(self, plans, a, b, out):
            self.plans, self.rounds = plans, self.rounds + 1
            assert out.data_ptr() not in (a.data_ptr(), b.data_ptr())
            out.fill_(float("nan"))
            return [*self.times, *[99.0] * len(plans)][: len(plans)]

    timer = Timer()
    monkeypatch.setattr(first_call, "_times", timer)
    monkeypatch.setattr(first_call, "_is_measurable", lambda a, b: True)
    return timer


def operands(device, m=96, n=80, k=64, dtype=torch.bfloat16):
    return torch.randn(m, k, device=device).to(dtype), torch.randn(k, n, device=device).to(dtype)


def config_of(a, b, out=None):
    return products.find(a, b, products.BARE, out).plan.config


def rows(path):
    found, wrong = table.read(path, gpu.default())
    assert not wrong
    return found


def test_the_winner_is_used_by_all_later_calls_and_published(user, timer, device):
    a, b = operands(device)
    tritonmm.matmul(a, b)  # remembered as the estimates have it
    before = config_of(a, b)
    assert_product(tritonmm.matmul(a, b, tune="first-call"), a, b)
    winner = timer.plans[2].config
    assert timer.plans[0].config == before != winner
    assert 1 < len(timer.plans) <= first_call.MEASURED
    assert config_of(a, b) == winner
    assert_product(tritonmm.matmul(a, b), a, b)
    assert [kept.call.plan.config for kept in call_cache._KEPT.values()] == [winner]
    (row,) = rows(user)
    assert (row.config, row.us) == (winner, 3.0)
    assert (row.problem.m, row.problem.n, row.problem.k) == (96, 80, 64)


def test_it_is_measured_once(timer, device):
    a, b = operands(device)
    for _ in range(3):
        tritonmm.mm(a, b, tune="first-call")
        tritonmm.matmul(a, b, tune="first-call")
    assert timer.rounds == 1
    tritonmm.mm(*operands(device, m=97), tune="first-call")
    assert timer.rounds == 2


def test_what_a_table_has_is_not_measured_again(user, timer, device):
    a, b = operands(device)
    tritonmm.mm(a, b, tune="first-call")
    winner = config_of(a, b)
    for memory in (tuned._TABLES, products._CALLS, call_cache._KEPT, first_call._TUNED):  # as in another process
        memory.clear()
    tritonmm.mm(a, b, tune="first-call")
    assert timer.rounds == 1
    assert config_of(a, b) == winner


@pytest.mark.parametrize("function", ["matmul", "mm", "bmm"])
def test_into_an_output_it_writes_only_the_result(timer, device, function):
    a, b = operands(device)
    if function == "bmm":
        a, b = a.expand(2, *a.shape), b.expand(2, *b.shape)
    out = torch.full((*a.shape[:-1], 80), 7.0, device=device, dtype=a.dtype)
    assert getattr(tritonmm, function)(a, b, out=out, tune="first-call") is out
    assert_product(out, a, b)
    assert config_of(a, b, out) == timer.plans[2].config


@pytest.mark.parametrize("function", ["matmul", "mm", "bmm"])
@pytest.mark.parametrize("asked", [{"precision": "bf16x3"}, {"out_dtype": torch.float32}], ids=str)
@pytest.mark.parametrize("into", [False, True])
def test_what_is_tuned_is_what_is_asked_for(user, timer, device, function, asked, into):
    """With a precision or an output dtype of its own, and not the default product of these operands."""
    if function == "matmul" and "out_dtype" in asked:
        pytest.skip("torch.matmul has no out_dtype")
    a, b = operands(device, dtype=torch.float32 if "precision" in asked else torch.bfloat16)
    if function == "bmm":
        a, b = a.expand(2, *a.shape), b.expand(2, *b.shape)
    out = {"out": torch.empty(*a.shape[:-1], 80, device=device)} if into else {}
    how = How(**asked)
    multiply = getattr(tritonmm, function)
    assert_product(multiply(a, b, tune="first-call", **asked, **out), a, b)
    (row,) = rows(user)
    assert row.problem.precision == asked.get("precision", "ieee")
    assert row.problem.out_dtype == "fp32"
    winner = timer.plans[2].config
    assert {plan.problem.precision for plan in timer.plans} == {row.problem.precision}
    written = torch.empty(*a.shape[:-1], 80, device=device)
    assert products.find(a, b, products.BARE, written, how).plan.config == winner == row.config
    multiply(a, b, tune="first-call", **asked, **out)
    assert timer.rounds == 1
    multiply(a, b, tune="first-call")
    assert timer.rounds == 2


def test_derivatives_are_there(timer, device):
    a, b = (x.requires_grad_() for x in operands(device))
    tritonmm.matmul(a, b, tune="first-call").sum().backward()
    assert a.grad is not None
    assert timer.rounds == 1


def test_if_all_fail_the_call_goes_on(user, timer, device):
    timer.times = (float("inf"),) * first_call.MEASURED
    a, b = operands(device)
    assert_product(tritonmm.matmul(a, b, tune="first-call"), a, b)
    assert not user.exists()


def test_without_memory_the_call_goes_on(user, timer, device, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(first_call, "_times", full)
    a, b = operands(device)
    assert_product(tritonmm.matmul(a, b, tune="first-call"), a, b)
    assert not user.exists()


def test_a_table_that_cannot_be_written_is_a_warning(user, timer, device, monkeypatch):
    def readonly(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(table, "write", readonly)
    a, b = operands(device)
    with pytest.warns(UserWarning, match=r"not kept for other processes: .*Permission denied") as caught:
        found = tritonmm.matmul(a, b, tune="first-call")
    assert caught[0].filename == __file__
    assert_product(found, a, b)
    assert config_of(a, b) == timer.plans[2].config


def test_what_is_remembered_is_bounded(timer, device, monkeypatch):
    monkeypatch.setattr(products, "CACHED_CALLS", 3)
    for m in range(16, 26):
        first_call.tune(*operands(device, m=m))
    assert len(first_call._TUNED) == 3
    assert timer.rounds == 10


@pytest.mark.parametrize("fails", [False, True], ids=["one wins", "all fail"])
def test_eight_threads_measure_once(timer, device, fails):
    if fails:  # then no table keeps the others from measuring again
        timer.times = (float("inf"),) * first_call.MEASURED
    a, b = operands(device)
    at_once(8, lambda _: first_call.tune(a, b))
    assert timer.rounds == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [({"tune": "always"}, "tune is 'always'"), ({"tune": "first-call", "config": Config()}, "both config and tune")],
    ids=["unknown", "with a config"],
)
def test_what_cannot_be_asked_for(device, options, says):
    with pytest.raises(ValueError, match=says):
        tritonmm.matmul(*operands(device), **options)


def test_nothing_is_measured_without_a_gpu_or_of_nothing(user, monkeypatch):
    monkeypatch.setattr(first_call, "_tune", lambda *_: pytest.fail("measured"))
    a, b = operands("cpu")
    first_call.tune(a, b)
    first_call.tune(a[:, :0], b[:0])
    assert not user.exists()


def test_nothing_is_measured_under_transforms_and_compilation(timer, device, monkeypatch):
    monkeypatch.undo()  # the real `_is_measurable`
    monkeypatch.setattr(first_call, "_tune", lambda *_: pytest.fail("measured"))
    a, b = operands(device)

    def tuned_matmul(a, b):
        return tritonmm.matmul(a, b, tune="first-call")

    assert_product(torch.func.vmap(tuned_matmul)(a[None], b[None])[0], a, b)
    assert_product(torch.compile(tuned_matmul, backend="eager", fullgraph=True)(a, b), a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("side", [False, True], ids=["default stream", "side stream"])
def test_measured_on_the_gpu(user, device, side):
    a, b = operands(device, 1000, 768, 512)
    out = torch.full((1000, 768), 7.0, device=device, dtype=a.dtype)
    stream = torch.cuda.Stream() if side else torch.cuda.current_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = tritonmm.matmul(a, b, tune="first-call")
    torch.cuda.current_stream().wait_stream(stream)
    assert_product(found, a, b)
    assert (out == 7).all()
    (row,) = rows(user)
    assert row.config == config_of(a, b)
    assert 0.5 < row.us < 1000
    assert tritonmm.explain(a, b).is_measured


@pytest.mark.gpu
def test_never_in_a_capture(user, device):
    a, b = operands(device, 512, 512, 512)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = tritonmm.matmul(a, b, tune="first-call")
    graph.replay()
    assert_product(found, a, b)
    assert not user.exists()
    assert not first_call._TUNED


@pytest.mark.gpu
def test_while_another_thread_captures(user, device):
    """Measuring asks for events and memory and compiles, which must not break the capture."""
    a, b = operands(device, 640, 384, 256)
    graph, x = torch.cuda.CUDAGraph(), torch.zeros(8, device=device)
    torch.cuda.empty_cache()  # so that memory is asked of CUDA
    with torch.cuda.graph(graph):
        x += 1
        thread = threading.Thread(target=first_call.tune, args=(a, b))
        thread.start()
        thread.join()
        x += 1
    graph.replay()
    assert x.tolist() == [2.0] * 8
    assert len(rows(user)) == 1


@pytest.mark.gpu
def test_a_config_that_fails_loses(device):
    a, b = operands(device, 256, 256, 256)
    plan = products.find(a, b, products.BARE).plan

    def failing(*_):
        raise RuntimeError("no registers")

    us = first_call._times([failing, plan], a, b, torch.empty(256, 256, device=device, dtype=a.dtype))
    assert us[0] == float("inf")
    assert 0.5 < us[1] < 1000
