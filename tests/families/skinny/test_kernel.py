"""The skinny kernel computes the product: few rows or columns, any layout and view, any split, clean counters."""

import itertools
from dataclasses import replace

import pytest
import torch
from measured import H200, estimate
from pairs import all_pairs
from promises import assert_adds_before_it_rounds, assert_every_byte_has_its_value, assert_right, assert_same_bits

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.autotune.measuring import space
from tritonmm.autotune.measuring.verify import Check
from tritonmm.config import Config
from tritonmm.launch import workspace
from tritonmm.plan import bind, plan_for
from tritonmm.problem import Problem
from tritonmm.selection import choose, timed
from tritonmm.torch_ops.dense import matmul

TILES = [(16, 32, 64), (32, 16, 32), (64, 32, 32), (1, 8, 512), (8, 1, 512), (1, 64, 32)]
"""Small ones of every kind, (block_m, block_n, block_k): on tensor cores and on CUDA cores, streaming B and A."""

LAYOUTS = ["nn", "nt", "tn", "tt"]


def config(blocks=(16, 32, 64), split_k=1, order="row-major", num_stages=2):
    return Config("skinny", *blocks, num_stages, 4, split_k, order=orders.parse(order))


def configs(problem, gpu):
    """The configs with the shortest estimates."""
    return list(timed(problem, gpu, "skinny"))[:12]


def ragged(blocks):
    """Rows, columns and depth of a few tiles, the last of each ragged."""
    block_m, block_n, block_k = blocks
    return block_m + 3 if block_m > 1 else 2, block_n + 3 if block_n > 1 else 2, 2 * block_k + 8


@pytest.mark.parametrize(("m", "layout", "split_k"), all_pairs([1, 2, 4, 7, 16, 33, 64, 100, 128], LAYOUTS, [1, 3]))
def test_few_rows(m, layout, split_k, device):
    block_m = 1 if m == 1 else 16 if m <= 16 else 64
    blocks = (1, 8, 512) if m == 1 else (block_m, 64, 64)
    assert_right(space.problem(m, 40, 1100 if m == 1 else 200, layout=layout), config(blocks, split_k), device)


@pytest.mark.parametrize(("n", "layout", "split_k"), all_pairs([1, 2, 7, 33], LAYOUTS, [1, 2]))
def test_few_columns(n, layout, split_k, device):
    blocks = (8, 1, 512) if n == 1 else (64, 16, 64)
    assert_right(space.problem(40, n, 600, layout=layout), config(blocks, split_k), device)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "tf32"])
@pytest.mark.parametrize("blocks", TILES, ids=str)
def test_every_dtype_at_block_edges(blocks, dtype, device):
    block_m, block_n, block_k = blocks
    for m, n, k in ((1, 1, 1), (block_m, block_n, block_k), (block_m + 1, 2 * block_n - 1, 3 * block_k - 1)):
        for split_k in {1, -(-k // block_k)}:
            assert_right(space.problem(m, n, k, dtype=dtype), config(blocks, split_k), device)


@pytest.mark.parametrize("split_k", [1, 2, 3, 8])
@pytest.mark.parametrize("blocks", TILES, ids=str)
def test_small_integers_are_exact_however_k_is_split(blocks, split_k, device):
    m, n, _ = ragged(blocks)
    k = 7 * blocks[2] + 5
    a = torch.randint(-4, 5, (m, k), device=device).bfloat16()
    b = torch.randint(-4, 5, (n, k), device=device).bfloat16().t()
    out = torch.full((m, n), float("nan"), device=device).bfloat16()
    matmul(a, b, out=out, config=config(blocks, split_k))
    assert torch.equal(out, (a.double() @ b.double()).bfloat16())


def test_k_zero_gives_zeros(device):
    for blocks in TILES:
        a, b = torch.empty(3, 0, device=device), torch.empty(0, 5, device=device)
        assert torch.equal(matmul(a, b, config=config(blocks)), torch.zeros(3, 5, device=device))


@pytest.mark.parametrize(
    ("blocks", "c_is", "split_k"), all_pairs(TILES, ["whole", "a row", "a column"], [1, 3]), ids=str
)
def test_epilogue_adds_before_it_rounds(blocks, c_is, split_k, device):
    m, n, k = ragged(blocks)
    c_shape = {"whole": (2, m, n), "a row": (1, n), "a column": (m, 1)}[c_is]
    a = torch.randint(-4, 5, (2, m, k), device=device).bfloat16()
    b = torch.randint(-4, 5, (2, k, n), device=device).bfloat16()
    c = torch.randint(-9, 10, c_shape, device=device).bfloat16()
    bias = torch.randint(-9, 10, (n,), device=device).bfloat16()
    assert_adds_before_it_rounds(a, b, c, bias, config(blocks, split_k), torch.float32)


@pytest.mark.parametrize("blocks", [(16, 32, 64), (32, 16, 32), (1, 8, 512), (8, 1, 512)], ids=str)
def test_strides_of_every_kind(blocks, device):
    m, n, k = ragged(blocks)
    x = torch.randn(100, 2 * k + 9, device=device).bfloat16()
    views = {
        "sliced": x[3 : m + 3, 5 : k + 5],
        "stepped": x[: 2 * m : 2, 1 : 2 * k : 2],
        "expanded rows": x[:1, :k].expand(m, k),
        "expanded columns": x[:m, :1].expand(m, k),
        "transposed": x[:m, :k].t().contiguous().t(),
        "misaligned": torch.randn(m * k + 1, device=device).bfloat16()[1:].view(m, k),
    }
    b, same = x[20 : 20 + n, :k].t(), config(blocks, 2)
    for name, a in views.items():
        assert torch.equal(matmul(a, b, config=same), matmul(a.contiguous(), b, config=same)), name
    a, same = b.t(), config((blocks[1], blocks[0], blocks[2]), 2)
    for name, view in views.items():
        b = view.t()
        assert torch.equal(matmul(a, b, config=same), matmul(a, b.contiguous(), config=same)), f"{name}, transposed"


@pytest.mark.parametrize("blocks", TILES, ids=str)
def test_output_views_are_written_and_nothing_else(blocks, device):
    m, n, k = ragged(blocks)
    a, b = torch.randn(m, k, device=device).bfloat16(), torch.randn(k, n, device=device).bfloat16()
    expected = matmul(a, b, config=config(blocks, 2))
    for make in (
        lambda board: board[3 : m + 3, 7 : n + 7],
        lambda board: board[:n, 4 : m + 4].t(),
        lambda board: board[5 : 2 * m + 5 : 2, 2 : 2 * n + 2 : 2],
    ):
        board = torch.full((150, 150), float("nan"), device=device).bfloat16()
        out = make(board)
        matmul(a, b, out=out, config=config(blocks, 2))
        assert torch.equal(out, expected)
        assert board.isnan().sum() == board.numel() - out.numel()


@pytest.mark.parametrize(
    "spelling", ["column-major", "split-merge:3", "swizzle-merge:3,2@n", "serpentine:2", "hilbert"]
)
@pytest.mark.parametrize("blocks", [(16, 32, 64), (32, 16, 64), (1, 8, 512)], ids=str)
def test_every_order_gives_the_same_bits(blocks, spelling, device):
    m, n, k = 3 * blocks[0] - 1, 3 * blocks[1] - 1, blocks[2] + 8
    a, b = torch.randn(2, m, k, device=device).bfloat16(), torch.randn(2, k, n, device=device).bfloat16()
    assert_same_bits(a, b, matmul(a, b, config=config(blocks, 2)), config(blocks, 2, spelling))


def test_counters_are_clean_for_the_next_launch(device, monkeypatch):
    """Launches with other splits and other tiles follow each other on the same counters."""
    kept = torch.zeros(1024, dtype=torch.int32, device=device)
    monkeypatch.setattr(workspace, "flags", lambda count, device: kept)
    a = torch.randint(-4, 5, (2, 9, 516), device=device).bfloat16()
    b = torch.randint(-4, 5, (2, 516, 5), device=device).bfloat16()
    expected = (a.double() @ b.double()).bfloat16()
    for blocks, split_k in (((16, 32, 64), 3), ((16, 32, 64), 8), ((64, 32, 128), 2), ((8, 1, 512), 2)):
        for spelling in ("row-major", "split-merge:4"):
            assert torch.equal(matmul(a, b, config=config(blocks, split_k, spelling)), expected)
            assert not (kept & 0x7FFFFFFF).any(), f"{blocks} split-k:{split_k} {spelling} left counts"


def test_parts_divide_k_without_a_rest(device):
    """Every split of eleven steps, ragged last: each k is counted once."""
    a, b = torch.ones(2, 11 * 16 - 3, device=device), torch.ones(11 * 16 - 3, 20, device=device)
    for split_k in range(1, 12):
        out = matmul(a.bfloat16(), b.bfloat16(), config=config((16, 32, 16), split_k))
        assert (out == 173).all(), split_k


@pytest.mark.filterwarnings(
    "ignore:invalid value encountered in (matmul|multiply):RuntimeWarning"
)  # NumPy, in the interpreter
@pytest.mark.parametrize("blocks", TILES, ids=str)
def test_infinities_and_nans_stay_in_their_rows_and_columns(blocks, device):
    m, n, k = ragged(blocks)
    a, b = torch.randn(m, k, device=device).bfloat16(), torch.randn(k, n, device=device).bfloat16()
    a[1, -1], b[-1, 1] = float("nan"), float("inf")
    found = matmul(a, b, config=config(blocks, 2)).isfinite()
    assert not found[1].any()
    assert not found[:, 1].any()
    found[1], found[:, 1] = True, True
    assert found.all()


@pytest.mark.parametrize("gpu", gpus.names())
@pytest.mark.parametrize("fields", [{"scales": "row"}, {"scales": "group", "group": 32}, {"scales": "group"}], ids=str)
def test_every_product_of_weights_of_a_byte_has_configs(fields, gpu):
    """Whatever shared memory holds. None leaves a part of K a single step, which would cost as much as its sums."""
    for m, layout, aligned in itertools.product((1, 5, 24, 64), ("nt", "nn"), (16, 4, 1)):
        problem = Problem(
            m, 4096, 4096, dtype="bf16", b_dtype="int8", layout=layout,
            a_alignment=max(aligned, 2), b_alignment=aligned, **fields,
        )  # fmt: skip
        found = configs(problem, gpus.spec(gpu))
        assert found
        for config in found:
            assert config.fits(problem, gpus.spec(gpu))
            if layout == "nt" and config.block_m > 1:
                assert 2 * config.split_k * config.block_k <= problem.k, config


@pytest.mark.parametrize("gpu", gpus.names())
@pytest.mark.parametrize("layout", ["nn", "nt", "ts"])
def test_every_problem_has_configs(layout, gpu):
    for m, n, k in itertools.product((0, 1, 17, 300, 5000), (0, 1, 4096), (0, 1, 4096)):
        for dtype in ("bf16", "fp16", "fp32"):
            problem = Problem(m, n, k, batch=3, dtype=dtype, layout=layout, a_alignment=2, b_alignment=2)
            found = configs(problem, gpus.spec(gpu))
            assert found
            assert len(set(found)) == len(found)
            assert all(config.fits(problem, gpus.spec(gpu)) for config in found)
            assert choose(problem, gpus.spec(gpu), "skinny") == found[0]


def test_decode_fills_the_card():
    """No candidate for a linear layer of a large model leaves half of the SMs without a program."""
    h200 = gpus.spec("h200")
    for m in (1, 2, 16, 33, 64, 100):
        problem = space.problem(m, 4096, 4096)
        for found in configs(problem, h200):
            assert bind(problem, found, h200, torch.device("meta")).grid >= h200.sms // 2, found


@pytest.mark.parametrize(
    ("fields", "problem", "gpu", "says"),
    [
        ({"block_n": 48}, Problem(1, 1, 1), "h200", "block_n is 48; Triton needs a power of two"),
        ({"num_warps": 32}, Problem(1, 1, 1), "h200", "num_warps is 32; at most 16"),
        ({"split_tail": 2}, Problem(1, 1, 1), "h200", "split_tail is 2"),
        ({"split_k": 3}, Problem(1, 1, 128), "h200", "split_k is 3; there are 2 steps of K"),
        ({"split_k": 2}, Problem(1, 1, 0), "h200", "split_k is 2; there are 1 steps of K"),
        ({"block_m": 8}, Problem(1, 1, 1), "h200", "blocks 8x64x64: the narrower of the first two must be 1"),
        ({"block_m": 1, "block_k": 1024}, Problem(1, 1, 1), "h200", "64x1024 weights a step for 128 threads"),
        ({"block_m": 1, "block_n": 1}, Problem(1, 1, 1), "h200", "1x64 weights a step for 128 threads"),
        ({"block_m": 256}, Problem(1, 1, 128, layout="tt"), "h200", ""),
        ({"block_m": 256, "split_k": 2}, Problem(1, 1, 128), "h200", "128 accumulator registers"),
        ({"block_n": 256, "num_stages": 8}, Problem(1, 1, 1), "a100", "bytes of shared memory exceed"),
        ({"cluster": "m"}, Problem(1, 1, 1), "h200", "the skinny kernel has no clusters"),
    ],
)
def test_what_does_not_fit_says_why(fields, problem, gpu, says):
    defaults = {"kernel": "skinny", "block_m": 16, "block_n": 64, "block_k": 64, "num_warps": 4, "num_stages": 2}
    fit = Config(**defaults | fields).fits(problem, gpus.spec(gpu))
    assert bool(fit) == (not says)
    assert says in fit.reason


def test_stages_beyond_the_steps_of_k_are_worth_nothing():
    """Which number of them is the fastest differs from product to product, so the fewest are taken."""
    one_step = Problem.dense(16, 2304, 64, layout="nn")
    few, many = (config((16, 64, 64), num_stages=stages) for stages in (3, 5))
    assert estimate(few, one_step) == estimate(many, one_step)
    ranked = [found for found in timed(one_step, H200, "skinny") if (found.block_n, found.block_k) == (64, 64)]
    assert ranked[0].num_stages == min(found.num_stages for found in ranked) < max(found.num_stages for found in ranked)
    steps = Problem.dense(16, 512, 4096, layout="nn")
    assert estimate(few, steps) > estimate(many, steps)


SHAPES = [(1, 4096, 4096), (4096, 1, 4096), (7, 4096, 14336), (64, 512, 32768), (100, 7168, 8192), (200, 1280, 8192)]


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("m", "n", "k"), [*SHAPES, (3, 1001, 3001), (1001, 1, 3001), (256, 256, 256)])
def test_every_candidate(m, n, k, layout, device):
    problem = space.problem(m, n, k, layout=layout)
    check = Check(problem, device)
    for found in configs(problem, gpus.default()):
        ratio = check.error_ratio(plan_for(problem, found, device))
        assert ratio <= 1, f"{found} on {problem}: error {ratio} times its bound"


@pytest.mark.gpu
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_small_integers_are_exact_and_runs_are_bitwise_equal(m, n, k, device):
    exact = (
        torch.randint(-2, 3, (m, k), device=device).bfloat16(),
        torch.randint(-2, 3, (n, k), device=device).bfloat16(),
    )
    random = torch.randn(m, k, device=device).bfloat16(), torch.randn(n, k, device=device).bfloat16()
    expected = (exact[0].double() @ exact[1].double().t()).bfloat16()
    for found in configs(space.problem(m, n, k), gpus.default()):
        assert torch.equal(matmul(exact[0], exact[1].t(), config=found), expected), found
        first = matmul(random[0], random[1].t(), config=found)
        for run in range(50):
            assert torch.equal(matmul(random[0], random[1].t(), config=found), first), f"{found}: run {run} differs"


def _split_configs(problem):
    found = [config for config in configs(problem, gpus.default()) if config.split_k > 1]
    assert found
    return found


@pytest.mark.gpu
def test_two_streams_at_once(device):
    """Launches that overlap in time use counters and sums of their own."""
    problem = space.problem(16, 4096, 4096)
    a = [torch.randn(16, 4096, device=device).bfloat16() for _ in range(2)]
    b = torch.randn(4096, 4096, device=device).bfloat16().t()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for found in _split_configs(problem):
        expected = [matmul(x, b, config=found) for x in a]
        torch.cuda.synchronize()
        results = [[], []]
        for _ in range(100):
            for i, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    results[i].append(matmul(a[i], b, config=found))
        torch.cuda.synchronize()
        for i in range(2):
            assert all(torch.equal(result, expected[i]) for result in results[i]), f"{found} on stream {i}"


@pytest.mark.gpu
def test_graphs_replay_beside_each_other_and_launches(device):
    problem = space.problem(16, 4096, 4096)
    a = [torch.randn(16, 4096, device=device).bfloat16() for _ in range(2)]
    b = torch.randn(4096, 4096, device=device).bfloat16().t()
    for found in _split_configs(problem):
        expected = [matmul(x, b, config=found) for x in a]
        outs = [torch.empty_like(x) for x in expected]
        graphs = []
        for x, out in zip(a, outs, strict=True):
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1]):
                for _ in range(5):
                    matmul(x, b, out=out, config=found)
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        for _ in range(20):
            for out in outs:
                out.fill_(float("nan"))
            torch.cuda.synchronize()
            for graph, stream in zip(graphs, streams, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
            beside = matmul(a[0], b, config=found)
            torch.cuda.synchronize()
            assert torch.equal(beside, expected[0])
            assert all(torch.equal(out, right) for out, right in zip(outs, expected, strict=True)), found


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or gpus.default().capability != 90, reason="the hopper kernel needs sm_90"
)
def test_flags_are_shared_with_the_hopper_kernel(device):
    """A stream's flags serve split tiles of either kernel, which leave them to each other in turn."""
    problem = space.problem(16, 4096, 4096)
    a = torch.randint(-2, 3, (16, 4096), device=device).bfloat16()
    b = torch.randint(-2, 3, (4096, 4096), device=device).bfloat16().t()
    expected = (a.double() @ b.double()).bfloat16()
    hopper = Config("hopper", 64, 64, 64, 8, 4, split_k=2, persistent=True)
    for found in _split_configs(problem):
        for config in (hopper, found, hopper, hopper, found, found):
            assert torch.equal(matmul(a, b, config=config), expected), config


@pytest.mark.parametrize(
    ("dtypes", "scales", "split_k"),
    all_pairs(
        ["bf16 int8", "fp16 fp8e4m3", "bf16 fp8e5m2", "bf16 int8p", "fp16 int8p"],
        ["row", "group"],
        [1, 3],
    ),
)
def test_weights_of_a_byte_with_scales(dtypes, scales, split_k, device):
    dtype, b_dtype = dtypes.split()
    for m, n, k, layout in ((5, 70, 200, "nt"), (1, 65, 257, "nn"), (17, 33, 64, "tt")):
        layout = layout[0] + "t" if b_dtype == "int8p" else layout
        problem = Problem(
            m=m, n=n, k=k, dtype=dtype, b_dtype=b_dtype, scales=scales, layout=layout, group=64,
            a_alignment=1, b_alignment=1,
        )  # fmt: skip
        shapes = ((1, 128, 4), (1, 256, 4), (16, 64, 4), (16, 64, 2), (16, 32, 2), (64, 64, 4))
        deep = ((16, 128, 2), (16, 256, 2)) if scales == "row" else ()
        for narrow, block_k, warps in shapes + deep:
            if narrow >= m or narrow > 1:
                wide, parts = max(narrow, 32), min(split_k, -(-k // block_k))
                config = Config("skinny", narrow, wide, block_k, 2, warps, parts)
                assert_right(problem, config, device)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")  # NumPy, in the interpreter
@pytest.mark.parametrize(
    ("blocks", "b_dtype", "dtype"),
    all_pairs(
        [(16, 64, 64, 2, 2), (16, 64, 64, 2, 4), (1, 8, 256, 2, 4)], ["int8", "fp8e4m3", "fp8e5m2"], ["bf16", "fp16"]
    ),
    ids=str,
)
def test_every_byte_has_its_value(blocks, b_dtype, dtype, device):
    assert_every_byte_has_its_value(Config("skinny", *blocks, order=orders.RowMajor()), b_dtype, dtype, device)


def test_what_the_skinny_kernel_does_not_scale():
    gpu = gpus.spec("h200")
    for fields, says in (
        ({"dtype": "fp8e4m3", "scales": "row"}, "dtype is fp8e4m3"),
        ({"dtype": "bf16", "b_dtype": "int8", "scales": "1x128*128x128"}, "scales are 1x128"),
        ({"dtype": "bf16", "b_dtype": "int8", "scales": "group", "group": 32}, "block_k is 64"),
    ):
        assert says in Config("skinny", 16, 64, 64, 2, 4).fits(Problem(8, 4096, 4096, **fields), gpu).reason
    grouped = Problem.dense(1, 4096, 4096, dtype="bf16", b_dtype="int8", scales="group", layout="nt")
    assert Config("skinny", 1, 4, 128, 2, 4).fits(grouped, gpu)
    assert "16 weights share" in Config("skinny", 1, 256, 8, 2, 4).fits(grouped, gpu).reason
    fp8 = replace(grouped, b_dtype="fp8e4m3")
    assert "sm_89" in Config("skinny", 1, 4, 128, 2, 4).fits(fp8, gpus.spec("a100")).reason
    assert "scales are group" in Config("skinny", 64, 16, 64, 2, 4).fits(replace(grouped, m=4096), gpu).reason
