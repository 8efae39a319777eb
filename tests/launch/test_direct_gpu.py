"""Repeated launches on a GPU: they follow their tensors, streams, threads and graphs, and disturb no capture."""

import threading

import pytest
import torch
import triton
from threads import at_once

from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.families.hopper.rules import HAS_CLUSTERS
from tritonmm.launch import direct, workspace
from tritonmm.launch.bounded import Bounded
from tritonmm.plan import bind
from tritonmm.problem import Epilogue, Problem

CAPABILITY = gpus.default().capability if torch.cuda.is_available() else 0
hopper = pytest.mark.skipif(CAPABILITY != 90, reason="the hopper kernel needs sm_90")
persistent = pytest.mark.skipif(CAPABILITY not in (90, 100), reason="the persistent kernel needs sm_90 or sm_100")
clusters = pytest.mark.skipif(not HAS_CLUSTERS, reason="this Triton has no clusters")

pytestmark = pytest.mark.gpu

EVERYTHING = Epilogue(scaled=True, bias=True, c=True)
SPLIT = Config("hopper", 64, 128, 64, 8, 8, split_k=4, persistent=True)
CONFIGS = [
    pytest.param(Config(block_m=64, block_n=64, num_warps=4), id="tile"),
    pytest.param(Config("persistent", 128, 128, 64, 3, 8, persistent=True), id="persistent", marks=persistent),
    pytest.param(Config("hopper", 128, 128, 64, 4, 8, persistent=True), id="hopper", marks=hopper),
    pytest.param(SPLIT, id="hopper-split", marks=hopper),
    pytest.param(
        Config("hopper", 256, 128, 64, 4, 8, persistent=True, cluster="m"), id="cluster", marks=[hopper, clusters]
    ),
]
every_config = pytest.mark.parametrize("config", CONFIGS)


def plan_of(problem, config, device):
    return bind(problem, config, gpus.of_device(device.index), device)


def integers(*shape, device):
    return torch.randint(-4, 5, shape, device=device).bfloat16()


class Product:
    """Operands of one product, whose result is exact, and an output that is not written yet."""

    def __init__(self, problem, device, gap=0):
        p = problem
        self.a = integers(p.m, p.k + gap, device=device)[:, : p.k]
        self.b = integers(p.k, p.n + gap, device=device)[:, : p.n]
        self.out = torch.full((p.m, p.n + gap), float("nan"), device=device).bfloat16()[:, : p.n]
        self.rest = {}
        expected = self.a.double() @ self.b.double()
        if p.epilogue == EVERYTHING:
            alpha, beta = (float(x) for x in torch.randint(-2, 3, (2,)))
            c, bias = integers(p.m, 1, device=device), integers(p.n, device=device)
            self.rest = {"alpha": alpha, "beta": beta, "c": c, "bias": bias}
            expected = alpha * expected + bias.double() + beta * c.double()
        self.expected = expected.bfloat16()

    def launch(self, plan):
        plan(self.a, self.b, self.out, **self.rest)

    def poison(self):
        self.out.fill_(float("nan"))

    def right(self):
        return torch.equal(self.out, self.expected)


@every_config
@pytest.mark.parametrize("epilogue", [Epilogue(), EVERYTHING], ids=["bare", "everything"])
def test_launches_follow_their_tensors(config, epilogue, device):
    problem = Problem(200, 264, 520, epilogue=epilogue)
    plan = plan_of(problem, config, device)
    products = [Product(problem, device, gap=8 * (i % 3)) for i in range(12)]
    for run in range(3):
        for i, product in enumerate(products):
            product.poison()
            product.launch(plan)
            assert product.right(), f"run {run}, product {i}"
    assert len(plan.launches) == (3 if direct.KNOWN else 0)


@every_config
def test_the_same_addresses_with_other_strides(config, device):
    memory = integers(3, 520 * 600, device=device)
    problem = Problem(200, 264, 520)
    plan = plan_of(problem, config, device)
    for gap in (0, 8, 64, 0, 8, 64):
        a = memory[0].as_strided((200, 520), (520 + gap, 1))
        b = memory[1].as_strided((520, 264), (264 + gap, 1))
        out = memory[2].as_strided((200, 264), (264 + gap, 1))
        memory[2].fill_(float("nan"))
        plan(a, b, out)
        assert torch.equal(out, (a.double() @ b.double()).bfloat16()), f"{gap} elements between rows"
        assert memory[2].isnan().sum() == memory[2].numel() - out.numel()


def test_misaligned_tensors(device):
    problem = Problem(200, 264, 520, a_alignment=2, b_alignment=2, out_alignment=2)
    plan = plan_of(problem, Config(block_m=64, block_n=64, num_warps=4), device)
    for offset in (0, 1, 8, 3, 0, 1):
        memory = integers(520 * 264 + 16, device=device)
        a, b = integers(200, 520, device=device), memory[offset : offset + 520 * 264].view(520, 264)
        out = torch.full((200, 264), float("nan"), device=device).bfloat16()
        plan(a, b, out)
        assert torch.equal(out, (a.double() @ b.double()).bfloat16()), f"{offset} elements past a multiple of 16 bytes"


@every_config
def test_threads_and_streams(config, device):
    problem = Problem(200, 264, 2056, epilogue=EVERYTHING)
    plan = plan_of(problem, config, device)
    products = [[Product(problem, device) for _ in range(4)] for _ in range(8)]
    torch.cuda.synchronize()

    def run(i):
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                for product in products[i]:
                    product.launch(plan)
            torch.cuda.current_stream().synchronize()
            assert all(product.right() for product in products[i])

    at_once(len(products), run)


@every_config
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_graphs(config, warm, device):
    """A cold plan's module is loaded while the graph is captured."""
    problem = Problem(200, 264, 2056)
    plan = plan_of(problem, config, device)
    plan.kernel.device_caches.clear()
    products = [Product(problem, device) for _ in range(3)]
    if warm:
        products[0].launch(plan)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for product in products:
            product.launch(plan)
    for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
        for product in products:
            product.poison()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            graph.replay()
        torch.cuda.synchronize()
        assert all(product.right() for product in products)


@every_config
def test_a_capture_in_another_thread_is_not_disturbed(config, device, monkeypatch):
    """The first launches of a plan load a module, allocate and clear flags, all forbidden while a graph is captured."""
    monkeypatch.setattr(workspace, "_DEVICES", {})
    problem = Problem(200, 264, 2056)
    plan = plan_of(problem, config, device)
    plan.kernel.device_caches.clear()
    mine, theirs = Product(problem, device), torch.zeros(100, device=device)
    capturing, done, failed = threading.Event(), threading.Event(), []

    def capture():
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
                theirs.add_(1)
                capturing.set()
                done.wait()
                theirs.add_(1)
            graph.replay()
        except RuntimeError as error:
            failed.append(error)
        finally:
            capturing.set()

    thread = threading.Thread(target=capture)
    thread.start()
    capturing.wait()
    try:
        mine.launch(plan)
    finally:
        done.set()
        thread.join()
    torch.cuda.synchronize()
    assert not failed
    assert mine.right()
    assert torch.equal(theirs, torch.full_like(theirs, 2))
    mine.poison()
    mine.launch(plan)
    assert mine.right()


@hopper
def test_captured_launches_take_cleared_flags_from_the_reserve(device, monkeypatch):
    monkeypatch.setattr(workspace, "_DEVICES", {})
    problem = Problem(200, 264, 2056)
    plan = plan_of(problem, SPLIT, device)
    product = Product(problem, device)
    product.launch(plan)
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    for graph in graphs:
        with torch.cuda.graph(graph):
            product.launch(plan)
    assert workspace._DEVICES[device].reserve.taken > 0
    assert not workspace._DEVICES[device].reserve.flags.count_nonzero()
    for graph in graphs * 2:
        product.poison()
        graph.replay()
        assert product.right()
    assert not workspace._DEVICES[device].reserve.flags.count_nonzero()


@hopper
def test_a_stream_shares_flags_in_one_graph(device, monkeypatch):
    monkeypatch.setattr(workspace, "_DEVICES", {})
    workspace.flags(100, device)
    torch.cuda.synchronize()
    found, other, work = [], torch.cuda.Stream(), torch.zeros(2, device=device)
    for _ in range(2):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            mine, again = workspace.flags(100, device), workspace.flags(100, device)
            work[0].add_(1)
            other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other):
                theirs = workspace.flags(100, device)
                work[1].add_(1)
            torch.cuda.current_stream().wait_stream(other)
        assert mine.data_ptr() == again.data_ptr()
        found += [mine.data_ptr(), theirs.data_ptr()]
    assert len(set(found)) == 4


@every_config
def test_hooks_see_every_launch(config, device):
    problem = Problem(200, 264, 520)
    plan = plan_of(problem, config, device)
    product = Product(problem, device)
    product.launch(plan)
    seen = []
    hook = lambda metadata: seen.append(metadata.get()["name"])  # noqa: E731
    triton.knobs.runtime.launch_enter_hook.add(hook)
    try:
        for _ in range(3):
            product.poison()
            product.launch(plan)
            assert product.right()
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hook)
    assert len(seen) == 3
    product.launch(plan)
    assert len(seen) == 3


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@every_config
def test_a_plan_of_another_device_than_the_current_one(config):
    problem = Problem(200, 264, 520)
    for index in (1, 0, 1):
        other = torch.device("cuda", index)
        plan, product = plan_of(problem, config, other), Product(problem, other)
        with torch.cuda.device(1 - index):
            for _ in range(2):
                product.poison()
                product.launch(plan)
                assert product.right()
            assert torch.cuda.current_device() == 1 - index


@hopper
def test_maps_stay_bounded(device, monkeypatch):
    monkeypatch.setattr(direct, "MAPS", Bounded(5))
    problem = Problem(200, 264, 520)
    plan = plan_of(problem, Config("hopper", 128, 128, 64, 4, 8, persistent=True), device)
    products = [Product(problem, device) for _ in range(8)]
    for _ in range(2):
        for product in products:
            product.poison()
            product.launch(plan)
            assert product.right()
    (launch,) = plan.launches.values()
    assert len(launch.a_maps) + len(launch.b_maps) + len(launch.out_maps) <= 5
