"""Tables of orders without a closed form: who keeps them, when they can be read, and what wrong entries do.

A CUDA graph keeps nothing but the address of a table. On the CPU the capture is pretended.
"""

import gc
import types
import weakref
from dataclasses import replace

import pytest
import torch

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.autotune.measuring.verify import GUARD
from tritonmm.config import Config
from tritonmm.families.hopper.rules import HAS_CLUSTERS
from tritonmm.launch import capture, order_table, workspace
from tritonmm.plan import CACHED_PLANS, bind, plan_for
from tritonmm.problem import Problem

CAPABILITY = gpus.default().capability
hopper = [pytest.mark.gpu, pytest.mark.skipif(CAPABILITY != 90, reason="needs sm_90")]
tma = pytest.mark.skipif(CAPABILITY not in (90, 100), reason="needs sm_90 or sm_100")
clusters = pytest.mark.skipif(not HAS_CLUSTERS, reason="this Triton has no clusters")

TILE = Config(block_m=16, block_n=16, block_k=16, num_warps=4)
ORDERS = [orders.Hilbert(), orders.Morton(), orders.Table([(i % 4, i // 4) for i in range(16)])]
every_order = pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """The tensors that captured launches of the test keep; of other tests' tables there are none."""
    found = {}
    monkeypatch.setattr(workspace, "_KEPT", found)
    monkeypatch.setattr(order_table, "_TABLES", weakref.WeakValueDictionary())
    return found


def evict_plans(device):
    """Pushes all plans out of the cache."""
    for i in range(CACHED_PLANS + 1):
        plan_for(Problem(16 + i, 16, 16), TILE, device)
    gc.collect()


def launched(order, device):
    """A weak reference to the table of a plan that has been launched once, and that only the cache of plans keeps."""
    problem, config = Problem(64, 64, 32), replace(TILE, order=order)
    a, b, out = (torch.zeros(shape, device=device).bfloat16() for shape in ((64, 32), (32, 64), (64, 64)))
    plan = plan_for(problem, config, device)
    plan(a, b, out)
    return weakref.ref(plan.table)


@every_order
def test_a_captured_launch_keeps_its_table(order, device, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(capture, "underway", lambda device: True, raising=False)
        table = launched(order, device)
    evict_plans(device)
    assert table() is not None


@every_order
def test_a_table_is_freed_with_its_last_plan(order, device, kept):
    table = launched(order, device)
    assert table() is not None
    evict_plans(device)
    assert table() is None
    assert not kept


def test_a_borrowed_reserve_keeps_the_tables_of_its_captures(device, kept, monkeypatch):
    reserve = types.SimpleNamespace(kept={})
    with monkeypatch.context() as patch, workspace.borrowed(reserve):
        patch.setattr(capture, "underway", lambda device: True)
        table = launched(orders.Hilbert(), device)
    evict_plans(device)
    assert table() is not None
    assert not kept
    reserve.kept.clear()
    assert table() is None


def test_plans_of_one_order_and_grid_share_a_table(device, kept, monkeypatch):
    """So what captures keep is bounded by the orders and grids that there are, not by the captures."""
    monkeypatch.setattr(capture, "underway", lambda device: True)
    tables = [
        plan_for(Problem(m, 64, k), replace(TILE, order=orders.Hilbert()), device).table
        for m in (64, 63, 50)
        for k in (16, 32)
    ]
    for table in tables:
        order_table.retain(table)
    assert len({table.data_ptr() for table in tables}) == len(kept) == 1
    other = plan_for(Problem(64, 64, 32), replace(TILE, order=orders.Morton()), device).table
    assert not torch.equal(other, tables[0])


KERNELS = [
    pytest.param(Config(block_m=32, block_n=32, block_k=16, num_warps=4), id="tile"),
    pytest.param(Config(block_m=32, block_n=32, block_k=16, num_warps=4, persistent=True), id="tile-persistent"),
    pytest.param(Config("persistent", 64, 64, 32, 2, 4, persistent=True), id="persistent", marks=tma),
    pytest.param(Config("skinny", 16, 32, 64, 2, 4), id="skinny"),
    pytest.param(Config("skinny", 32, 16, 64, 2, 4), id="skinny-swapped"),
    pytest.param(Config("skinny", 16, 32, 32, 2, 4, split_k=2), id="skinny-split"),
    pytest.param(Config("hopper", 64, 64, 64, 3, 4, persistent=True), id="hopper", marks=hopper),
    pytest.param(Config("hopper", 128, 64, 64, 3, 8, persistent=True), id="hopper-2-consumers", marks=hopper),
    pytest.param(Config("hopper", 64, 64, 64, 3, 4, split_k=2, persistent=True), id="hopper-split", marks=hopper),
    pytest.param(
        Config("hopper", 128, 128, 64, 3, 4, persistent=True, cluster="m"), id="cluster", marks=[*hopper, clusters]
    ),
    pytest.param(Config("exact", 64, 64, 16, 4, 2), id="sliced", marks=hopper),
    pytest.param(Config("mixed_input", 64, 128, 128, 4, 8, persistent=True), id="weights", marks=hopper),
]


@pytest.mark.parametrize("ragged", [False, True], ids=["even", "ragged"])
@pytest.mark.parametrize("config", KERNELS)
def test_an_entry_that_is_no_tile_is_an_idle_program(config, ragged, device):
    """All other tiles are right, and neither an idle program's tile nor what is around the output is written."""
    config = replace(config, order=orders.Hilbert())
    weights = config.kernel == "mixed_input"
    dtype = torch.float32 if config.kernel == "exact" else torch.bfloat16
    m, n, k = 4 * config.block_m - 8 * ragged, 4 * config.block_n - 8 * ragged, 128
    a = torch.randint(-4, 5, (m, k), device=device).to(dtype)
    b = torch.randint(-4, 5, (n, k), device=device).to(torch.int8 if weights else dtype).t()
    board = torch.full((GUARD + m * n + GUARD,), float("nan"), dtype=dtype, device=device)
    out = board[GUARD:-GUARD].view(m, n)
    scales = (None, torch.ones(1, n, device=device)) if weights else None
    problem = Problem.of(a, b, out, scales="row" if weights else "")
    plan = bind(problem, config, gpus.of_device(device.index) if device.type == "cuda" else gpus.default(), device)
    idle = {0: -1, 3: -2, 7: -(2**31), 12: 16, 15: 2**31 - 1}  # of the 16 tiles
    table = plan.table.clone()
    table[list(idle)] = torch.tensor(list(idle.values()), dtype=torch.int32, device=device)
    replace(plan, table=table)(a, b, out, scales=scales)
    expected = (a.double() @ b.double()).to(dtype)
    for i, (row, col) in enumerate(config.order.visit(4, 4).tolist()):
        rows, cols = row * config.block_m, col * config.block_n
        tile = slice(rows, rows + config.block_m), slice(cols, cols + config.block_n)
        if i not in idle:
            assert torch.equal(out[tile], expected[tile]), f"tile {row}, {col}"
        elif not ragged:  # the programs of a ragged grid's last rows may write those before them, too: the same bits
            assert out[tile].isnan().all(), f"tile {row}, {col} of an idle program"
    assert board[:GUARD].isnan().all()
    assert board[-GUARD:].isnan().all()


def graph_operands(device):
    a = torch.randint(-4, 5, (512, 256), device=device).bfloat16()
    b = torch.randint(-4, 5, (256, 512), device=device).bfloat16()
    out = torch.full((512, 512), float("nan"), device=device).bfloat16()
    return a, b, out, (a.double() @ b.double()).bfloat16()


def graph_orders():
    return [orders.Hilbert(), orders.Morton(), orders.Table([(i % 8, i // 8) for i in range(64)])]


GRAPH_KERNELS = [
    pytest.param(Config(block_m=64, block_n=64, block_k=32, num_warps=4), id="tile"),
    pytest.param(Config("hopper", 64, 64, 64, 3, 4, persistent=True), id="hopper", marks=hopper[1:]),
]


@pytest.mark.gpu
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize("order", graph_orders(), ids=lambda order: order.name)
@pytest.mark.parametrize("config", GRAPH_KERNELS)
def test_a_graph_is_right_after_its_plan_is_gone(config, order, warm, device):
    """A cold plan makes its table while the graph is captured."""
    a, b, out, expected = graph_operands(device)
    problem, config = Problem.of(a, b, out), replace(config, order=order)
    evict_plans(device)
    if warm:
        plan_for(problem, config, device)(a, b, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan_for(problem, config, device)(a, b, out)
    evict_plans(device)
    torch.cuda.empty_cache()
    # Freed memory would be read as -1 from here on, whichever stream it was allocated for.
    fill = [torch.full((64,), -1, dtype=torch.int32, device=device) for _ in range(10_000)]
    others = [torch.cuda.Stream() for _ in range(4)]
    for stream in (*others, *order_table._STREAMS.values()):
        with torch.cuda.stream(stream):
            fill += [torch.full((64,), -1, dtype=torch.int32, device=device) for _ in range(2_000)]
    torch.cuda.synchronize()
    for _ in range(2):
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected)
    assert all(x.eq(-1).all() for x in fill[::500])


@pytest.mark.gpu
def test_the_next_table_does_not_overwrite_one_that_a_stream_still_reads(device):
    a, b, out, expected = graph_operands(device)
    problem, config = Problem.of(a, b, out), Config(block_m=64, block_n=64, block_k=32, num_warps=4)
    gpu = gpus.of_device(device.index)
    bind(problem, replace(config, order=orders.Morton()), gpu, device)(a, b, out)  # compiled, and loaded
    torch.cuda.synchronize()
    plan = bind(problem, replace(config, order=orders.Hilbert()), gpu, device)
    out.fill_(float("nan"))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000_000)  # half a second: the launch below has not begun when the next table is made
        plan(a, b, out)
    del plan
    gc.collect()
    # The allocator's blocks are of 128 entries. The first 64 of these are no tiles of the 8 x 8 above.
    backwards = order_table.of(orders.Table([(127 - i, 0) for i in range(128)]), (128, 1), device)
    assert not stream.query()
    torch.cuda.synchronize()
    assert torch.equal(out, expected)
    assert backwards[0] == 127


@pytest.mark.gpu
def test_a_new_table_disturbs_no_capture(device):
    """Made amid a capture, in the strictest error mode, it neither fails nor becomes part of the graph."""
    x, order = torch.zeros(64, device=device), orders.Table([(i % 5, i // 5) for i in range(35)])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        x.add_(1)
        table = order_table.of(order, (5, 7), device)
        x.add_(1)
    assert table.cpu().tolist() == order.linear(5, 7).tolist()  # at once, before any replay
    graph.replay()
    torch.cuda.synchronize()
    assert x.eq(2).all()
