"""The Hopper kernel computes the product: every tile at its edges, every layout, order and epilogue, on a GPU."""

import pytest
import torch
from compile_cases import CLUSTERS, HOPPER
from promises import (
    assert_adds_before_it_rounds,
    assert_exact_and_repeatable,
    assert_reads_views_that_tma_can_address,
    assert_right,
    assert_writes_views_and_nothing_else,
    edges,
)

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.autotune.measuring import space
from tritonmm.config import Config
from tritonmm.dtypes import DTYPES
from tritonmm.families.hopper.rules import HAS_CLUSTERS, n_subtiles
from tritonmm.plan import plan_for
from tritonmm.problem import Epilogue, Problem
from tritonmm.torch_ops.dense import matmul

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or gpus.default().capability != 90, reason="the hopper kernel needs sm_90"
    ),
]


def config(blocks=(128, 256, 64, 4, 8), order="swizzle-merge:3", split_k=1, split_tail=1):
    *blocks, cluster = blocks if len(blocks) == 6 else (*blocks, "")
    return Config("hopper", *blocks, split_k, split_tail, True, orders.parse(order), cluster)


needs_clusters = pytest.mark.skipif(not HAS_CLUSTERS, reason="this Triton has no clusters")
TILES = [*sorted(HOPPER), *(pytest.param(blocks, marks=needs_clusters) for blocks in sorted(CLUSTERS))]
LARGE_CLUSTERS = [
    pytest.param((256, 256, 64, 4, 8, "m"), marks=needs_clusters),
    pytest.param((256, 256, 64, 4, 8, "n"), marks=needs_clusters),
]


@pytest.mark.parametrize("blocks", TILES, ids=str)
def test_every_tile_at_its_edges(blocks, device):
    for m, n, k in edges(*blocks[:3]):
        if n % 8 == 0 or blocks[0] * blocks[1] <= 128 * 256:  # larger tiles are written by TMA only
            assert_right(space.problem(m, n, k, layout="nt"), config(blocks), device)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    "blocks",
    [
        (128, 256, 64, 4, 8),
        (256, 128, 64, 4, 8),
        (192, 128, 64, 5, 12),
        (64, 64, 64, 8, 4),
        (192, 256, 64, 3, 12),
        (256, 192, 64, 3, 8),
        *TILES[len(HOPPER) :],
    ],
    ids=str,
)
def test_every_layout(blocks, layout, dtype, device):
    for m, n, k in ((1000, 1288, 328), (264, 136, 64), (2056, 520, 1032)):
        assert_right(space.problem(m, n, k, layout=layout, dtype=dtype), config(blocks), device)


@pytest.mark.parametrize(
    "spelling",
    ["row-major", "column-major", "split-merge:3", "split-merge:2@n", "swizzle-merge:3", "swizzle-merge:3,2@n",
     "serpentine:2", "morton", "hilbert"],
)  # fmt: skip
@pytest.mark.parametrize("blocks", [(64, 64, 64, 8, 4), (128, 256, 64, 4, 8), *LARGE_CLUSTERS], ids=str)
def test_every_order_gives_the_same_bits(blocks, spelling, device):
    a, b = torch.randn(3, 1000, 200, device=device).half(), torch.randn(3, 200, 1304, device=device).half()
    found = matmul(a, b, config=config(blocks, spelling))
    assert torch.equal(found, matmul(a, b, config=config(blocks, "row-major")))
    assert_right(space.problem(1000, 1304, 200, batch=3, layout="nn"), config(blocks, order=spelling), device)


@pytest.mark.parametrize("blocks", TILES, ids=str)
def test_small_integers_are_exact_and_runs_are_bitwise_equal(blocks, device):
    assert_exact_and_repeatable(1500, 1400, 1032, config(blocks), device)


@pytest.mark.parametrize(
    "blocks",
    [(64, 128, 64, 8, 8), (128, 64, 64, 8, 4), (128, 128, 64, 6, 8), (192, 128, 64, 5, 12), (128, 256, 64, 4, 8)],
    ids=str,
)
@pytest.mark.parametrize(("split_tail", "n"), [(1, 392), (3, 392), (1, 8200)])
@pytest.mark.parametrize("over", [1, 16, 17, 40, 63], ids=lambda over: f"{over} rows over")
def test_few_rows_of_a_last_tile_follow_their_operand(over, split_tail, n, blocks, device):
    """Tiles that are multiplied at once have equal shares, few others begin with rows of others, many have boxes with a
    tensor map of their own; a second call has another A, at another address."""
    one = config(blocks, split_tail=split_tail)
    b = torch.randint(-4, 5, (1032, n), device=device).bfloat16()
    for m in (over, 2 * blocks[0] + over, 5 * blocks[0] + over):
        for _ in range(3):
            a = torch.randint(-4, 5, (m, 1032), device=device).bfloat16()
            assert torch.equal(matmul(a, b, config=one), (a.double() @ b.double()).bfloat16())
            del a
            torch.empty(4 * m, 1032, device=device).fill_(float("nan"))  # what the next one's rows would be, if stale


@pytest.mark.parametrize(
    "blocks", [(64, 64, 128, 6, 4), (64, 96, 64, 8, 4), (128, 64, 64, 8, 4), (64, 128, 64, 8, 8)], ids=str
)
@pytest.mark.parametrize("m", [65, 80, 129, 150])
def test_equal_shares_of_rows_in_batches(m, blocks, device):
    """The last tile of a matrix begins with rows of the one before it, never with rows of another matrix."""
    a, b = (torch.randint(-4, 5, shape, device=device).bfloat16() for shape in ((3, m, 520), (3, 520, 328)))
    for split_tail in (1, 3) if blocks[1] != 96 else (1,):  # two N-subtiles are not split
        out = torch.full((3, m, 328), float("nan"), device=device, dtype=torch.bfloat16)
        matmul(a, b, out=out, config=config(blocks, split_tail=split_tail))
        assert torch.equal(out, (a.double() @ b.double()).bfloat16())


@pytest.mark.parametrize("layout", ["nt", "tn"])
@pytest.mark.parametrize("blocks", [(128, 64, 64, 8, 4), (192, 64, 64, 6, 12), (256, 128, 64, 4, 8)], ids=str)
def test_rows_of_a_ragged_tile_have_the_bits_of_a_whole_one(blocks, layout, device):
    one = config(blocks, "row-major")
    b = torch.randn(520, 1032, device=device).bfloat16()
    b = b.t().contiguous().t() if layout == "nt" else b
    for m in (65, 129, 191, 257, 3 * blocks[0] + 40, 5 * blocks[0] + 104):
        a = torch.randn(-(-m // 256) * 768, 520, device=device).bfloat16()  # blocks of 192 divide it too
        a = a.t().contiguous().t() if layout == "tn" else a
        rows = a[:m] if layout == "nt" else a.t()[:, : -(-m // 8) * 8].contiguous().t()[:m]
        assert torch.equal(matmul(rows, b, config=one), matmul(a, b, config=one)[:m])


@pytest.mark.parametrize("out_dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("n", [520, 521])
@pytest.mark.parametrize("c_shape", [(2, 300, None), (1, None), (300, 1)], ids=str)
@pytest.mark.parametrize("blocks", [(128, 256, 64, 4, 8), (64, 128, 64, 8, 8), *LARGE_CLUSTERS], ids=str)
def test_epilogue_adds_before_it_rounds(blocks, c_shape, n, out_dtype, device):
    a = torch.randint(-4, 5, (2, 300, 136), device=device).bfloat16()
    b = torch.randint(-4, 5, (2, n, 136), device=device).bfloat16().mT
    c = torch.randint(-9, 10, [n if size is None else size for size in c_shape], device=device).to(DTYPES[out_dtype])
    bias = torch.randint(-9, 10, (n,), device=device).bfloat16()
    if n % 8 and blocks[-1] == "n":
        pytest.skip("256 rows a CTA would spill, and Config.fits says so")
    assert_adds_before_it_rounds(a, b, c, bias, config(blocks), DTYPES[out_dtype])


def test_views_that_tma_can_address(device):
    assert_reads_views_that_tma_can_address(264, config(), device)


@pytest.mark.parametrize("blocks", LARGE_CLUSTERS, ids=str)
def test_clusters_that_walk_many_tiles(blocks, device):
    """Several waves of items with few steps each: the CTAs of a cluster drift apart where they can."""
    for m, n, k in ((8192, 8192, 64), (9000, 16384, 136), (4097, 8200, 512)):
        assert_right(space.problem(m, n, k, layout="nt"), config(blocks), device)


def test_output_views(device):
    a, b = torch.randn(300, 72, device=device).bfloat16(), torch.randn(72, 264, device=device).bfloat16()
    assert_writes_views_and_nothing_else(a, b, config())


@pytest.mark.parametrize("split", [{"split_k": 2}, {"split_k": 5}, {"split_tail": 2}, {"split_tail": 7}], ids=str)
@pytest.mark.parametrize(
    "blocks", [b for b in sorted(HOPPER) if len(n_subtiles(config(b))) == 1 and b[0] * b[1] <= 128 * 256], ids=str
)
def test_split_tiles_are_right_and_bitwise_equal(blocks, split, device):
    block_m, block_n, block_k, *_ = blocks
    split_config = config(blocks, **split)
    for m, n, k in (
        (1, 8, 9 * block_k),
        (9 * block_m + 17, 17 * block_n + 8, 7 * block_k + 8),
        (300, 257, 13 * block_k),
    ):
        problem = space.problem(m, n, k, layout="nt")
        assert_right(problem, split_config, device)
    assert_exact_and_repeatable(1500, 4000, 1032, split_config, device)


def test_split_tiles_in_batches_epilogues_and_orders(device):
    a = torch.randint(-4, 5, (3, 700, 520), device=device).bfloat16()
    b = torch.randint(-4, 5, (3, 520, 1304), device=device).bfloat16()
    c = torch.randint(-9, 10, (700, 1304), device=device).bfloat16()
    bias = torch.randint(-9, 10, (1304,), device=device).bfloat16()
    out = torch.empty(3, 700, 1304, device=device).bfloat16()
    problem = Problem.of(a, b, out, epilogue=Epilogue(scaled=True, bias=True, c=True))
    expected = (0.5 * (a.double() @ b.double()) + bias.double() - 2 * c.double()).bfloat16()
    for order in ("split-merge:4", "hilbert", "swizzle-merge:3,2@n"):
        for split in ({"split_k": 3}, {"split_tail": 3}):
            plan = plan_for(problem, config((128, 128, 64, 6, 8), order, **split), device)
            plan(a, b, out.fill_(float("nan")), alpha=0.5, beta=-2.0, c=c, bias=bias)
            assert torch.equal(out, expected), f"{order} {split}"


@pytest.mark.parametrize(
    ("shape", "split"),
    [((700, 520, 4104), config((64, 128, 64, 8, 8), split_k=4)), ((64, 5000, 1032), config((64, 64, 128, 6, 4)))],
    ids=["split", "dealt"],
)
def test_flags_of_several_streams_and_graphs(shape, split, device):
    """Launches that overlap must not meet in each other's flags, however they are captured and replayed."""
    m, n, k = shape
    a, b = torch.randn(m, k, device=device).bfloat16(), torch.randn(k, n, device=device).bfloat16()
    expected = matmul(a, b, config=split)
    plan = plan_for(Problem.of(a, b, expected), split, device)
    assert plan.schedule.split > 0 or plan.schedule.affinity
    streams = [torch.cuda.Stream() for _ in range(3)]
    outs = [torch.empty_like(expected) for _ in range(6)]
    graphs = []
    for i in range(3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            matmul(a, b, out=outs[3 + i], config=split)
        graphs.append(graph)
    for run in range(30):
        for out in outs:
            out.fill_(float("nan"))
        torch.cuda.synchronize()
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                graphs[i].replay()
                matmul(a, b, out=outs[i], config=split)
        torch.cuda.synchronize()
        for i, out in enumerate(outs):
            assert torch.equal(out, expected), f"run {run}, output {i}"


def test_overflow_far_outside_of_the_grid_writes_nothing(device):
    """A factor of 2**25 makes tiles whose first row, 2**25 * 128, is 0 in 32 bits."""
    a, b = torch.randn(200, 72, device=device).bfloat16(), torch.randn(72, 264, device=device).bfloat16()
    assert torch.equal(matmul(a, b, config=config(order=f"split-merge:{2**25 + 1}")), matmul(a, b, config=config()))


@pytest.mark.parametrize(
    ("m", "n", "blocks"),
    [
        (5000, 768, (64, 64, 64, 8, 4)), (5000, 768, (128, 256, 64, 4, 8)), (5000, 768, (192, 256, 64, 3, 12)),
        (60, 5120, (64, 64, 128, 6, 4)), (129, 3072, (128, 64, 64, 8, 4)),
    ],
    ids=str,
)  # fmt: skip
def test_a_product_waits_for_the_one_that_it_reads(m, n, blocks, device):
    """A grid starts before the previous one has ended; a chain of products through two buffers shows if it waits."""
    order = torch.randperm(n, device=device)
    step = torch.zeros(n, n, device=device, dtype=torch.bfloat16)
    step[torch.arange(n, device=device), order] = 1
    start = torch.randint(-128, 129, (m, n), device=device).bfloat16()
    once = Problem.of(start, step, start)
    plan = plan_for(once, config(blocks, "swizzle-merge:2"), device)
    assert bool(plan.schedule.affinity) == (m < 5000)
    x, y = start.clone(), torch.full_like(start, float("nan"))

    def chain():
        for _ in range(20):
            plan(x, step, y)
            plan(y, step, x)

    expected = start
    for _ in range(40):
        turned = torch.empty_like(expected)
        turned[:, order] = expected
        expected = turned
    chain()
    assert torch.equal(x, expected)
    x.copy_(start)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    graph.replay()
    assert torch.equal(x, expected)
