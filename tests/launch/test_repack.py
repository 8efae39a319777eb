"""Operands that TMA cannot address are copied to where it can: exactly, once, and only where asked or worth it."""

import random
from dataclasses import replace

import pytest
import torch
from promises import assert_adds_before_it_rounds, assert_repeatable

import tritonmm
from tritonmm import families, orders
from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import space
from tritonmm.autotune.measuring.verify import TWO_SMS, Check
from tritonmm.config import Config
from tritonmm.launch.repack import Copy, fill
from tritonmm.model.constants import of as constants_of
from tritonmm.model.time import repack_us
from tritonmm.plan import INTERPRETED, bind, plan_for
from tritonmm.problem import Problem
from tritonmm.selection import choose
from tritonmm.torch_ops.dense import matmul

H200 = gpus.spec("h200")
GUARD = 64
TILE = Config(block_m=64, block_n=64, block_k=64, num_stages=2, num_warps=4)
PERSISTENT = Config("persistent", 128, 64, 32, 2, 4, persistent=True, order=orders.parse("swizzle-merge:3"))
HOPPER = Config("hopper", 128, 256, 64, 4, 8, persistent=True, order=orders.parse("swizzle-merge:3"))
SUITE = [(4095, 4095, 4095, "nn"), (1023, 4097, 2047, "nn"), (777, 1001, 3001, "nn"), (2048, 50257, 768, "nn"),
         (50257, 768, 2048, "nn"), (2048, 50257, 768, "nt"), (4096, 4096, 4095, "nt")]  # fmt: skip
REDUCED = [(255, 255, 255, "nn"), (127, 257, 191, "nn"), (77, 101, 301, "nn"), (128, 785, 72, "nn"),
           (785, 72, 128, "nn"), (128, 785, 72, "nt"), (256, 256, 255, "nt")]  # fmt: skip

needs_persistent = pytest.mark.skipif(
    gpus.default().capability not in (90, 100), reason="the persistent kernel needs sm_90 or sm_100"
)
needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or gpus.default().capability != 90, reason="the hopper kernel needs sm_90"
)


def poisoned(x, letter):
    """The copy of x, its room filled with NaN and cut out of a larger one, of which it must not leave its part."""
    copy = Copy.of(x, letter)
    board = torch.full((GUARD + copy.memory.numel() + GUARD,), float("nan"), dtype=x.dtype, device=x.device)
    room = board[GUARD : GUARD + copy.memory.numel()]
    return replace(copy, memory=room, operand=room.as_strided(x.shape, copy.operand.stride(), GUARD)), board


def assert_copies(operands, letters, wave=5):
    copies, boards = zip(*(poisoned(x, letter) for x, letter in zip(operands, letters, strict=True)), strict=True)
    fill(list(copies), wave)
    for x, copy, board in zip(operands, copies, boards, strict=True):
        what = f"{list(x.shape)} of strides {x.stride()} at {x.data_ptr() % 16} bytes"
        assert torch.equal(copy.operand, x), what
        assert board[:GUARD].isnan().all(), what
        assert board[-GUARD:].isnan().all(), what
        lines = copy.memory.view(-1, copy.pitch)
        vector = 1 if copy.strided else 8 // x.element_size()
        assert lines[:, -(-copy.length // vector) * vector :].isnan().all(), what
        pitch, length = copy.pitch * x.element_size(), copy.length * x.element_size()
        assert pitch % 16 == 0
        assert {i * pitch // 128 != (i * pitch + min(length, 128) - 1) // 128 for i in range(8)} == {False}, what


def stored(batch, rows, cols, letter, offset, dtype, device):
    """An operand of random elements, `offset` of them behind an aligned address, without gaps."""
    sizes = (batch, cols, rows) if letter == "t" else (batch, rows, cols)
    x = torch.randn(offset + batch * rows * cols, device=device).to(dtype)[offset:].view(sizes)
    return x.mT if letter == "t" else x


@pytest.mark.parametrize("letter", ["n", "t"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_small_operands_at_every_offset(dtype, letter, device):
    sample = random.Random(0)
    for i in range(32):
        rows, cols, batch = sample.randint(1, 40), sample.randint(1, 40), sample.randint(1, 3)
        assert_copies([stored(batch, rows, cols, letter, i % 8, dtype, device)], letter)


@pytest.mark.parametrize("length", [510, 511, 512, 513, 1023, 1025, 1027, 2051])
def test_lines_around_the_width_of_a_tile(length, device):
    for offset in range(5):
        assert_copies([stored(1, 3, length, "n", offset, torch.bfloat16, device)], "n")


@pytest.mark.parametrize("wave", [1, 4, 10_000])
def test_both_operands_in_one_launch_of_any_size(wave, device):
    a = stored(2, 70, 33, "n", 1, torch.bfloat16, device)
    b = stored(2, 33, 65, "t", 3, torch.bfloat16, device)
    assert_copies([a, b], "nt", wave)


def test_operands_whose_tiles_differ(device):
    a = stored(1, 9, 1025, "n", 1, torch.bfloat16, device)
    assert_copies([a, a.mT[:17]], "nt")
    assert_copies([a[:, :, ::3], a], "sn")
    assert_copies([a, a[:, ::2, ::2]], "ns")


def test_strides_of_every_kind(device):
    x = torch.randn(3, 50, 90, device=device).bfloat16()
    for name, view, letter in (
        ("sliced", x[:, 3:43, 5:70], "n"),
        ("every other row", x[:, ::2, 1:80], "n"),
        ("every other column", x[:, :, ::2], "s"),
        ("both", x[1:, 1::3, 1::2], "s"),
        ("expanded rows", x[:, :1].expand(3, 40, 90), "n"),
        ("expanded columns", x[:, :, :1].expand(3, 50, 40), "s"),
        ("one column", x[:, :, 7:8], "n"),
        ("one column of a transpose", x[:, 7:8].mT, "n"),
        ("one row of a transpose", x[:, :, 7:8].mT, "t"),
        ("batch in between", x.permute(1, 2, 0), "t"),
        ("batch contiguous", x.permute(2, 1, 0), "s"),
        ("two-dimensional", x[0, :, 1:], "n"),
    ):
        assert Problem.of(view, view.mT, view @ view.mT).layout[0] == letter, name
        assert_copies([view], letter)


def test_neighbours_in_a_word_are_no_part_of_the_copy(device):
    """A line is read in words that also hold what surrounds it; here that is infinite."""
    board = torch.full((20, 40), float("inf"), device=device).bfloat16()
    for first in range(8):
        for length in (1, 2, 3, 5, 21):
            x = board[3:17, first : first + length].normal_()
            assert_copies([x], "n")
            x.fill_(float("inf"))


def test_a_broadcast_batch_is_copied_once(device):
    x = torch.randn(1, 40, 33, device=device).bfloat16().expand(5, 40, 33)
    copy = Copy.of(x, "n")
    assert copy.memory.numel() == 40 * copy.pitch
    assert copy.operand.shape == x.shape
    assert copy.operand.stride(0) == 0
    assert_copies([x], "n")


def test_offsets_beyond_32_bits(device):
    """Rows 2**29 elements apart: the fifth begins beyond 2**31. Only the pages that are touched take memory."""
    far = torch.empty(10 * 2**29, dtype=torch.bfloat16, device=device).as_strided((10, 23), (2**29, 1), 1)
    far.copy_(torch.randn(10, 23, device=device))
    assert_copies([far], "n")
    assert_copies([far.mT], "t")


def test_effective_problem_is_what_the_copies_are():
    odd = torch.randn(70, 33).bfloat16()
    for a, b in ((odd, odd.mT), (odd.mT, odd), (odd[:, ::2], odd.mT[::2]), (odd[::2, ::2], odd[:17].mT[:17])):
        problem = Problem.of(a, b, torch.empty(a.shape[0], b.shape[1]).bfloat16())
        for repack in ("a", "b", "ab"):
            copied = {"a": Copy.of(a, problem.layout[0]).operand, "b": Copy.of(b, problem.layout[1]).operand}
            left, right = (copied[name] if name in repack else x for name, x in (("a", a), ("b", b)))
            assert Problem.of(left, right, torch.empty(a.shape[0], b.shape[1]).bfloat16()) == problem.repacked(repack)
        assert not problem.repacked(problem.unaligned).unaligned


def test_unaligned_names_the_operands_that_tma_refuses():
    for repack, fields in (
        ("", {}),
        ("a", {"a_alignment": 8}),
        ("b", {"b_alignment": 2}),
        ("ab", {"a_alignment": 4, "layout": "ns"}),
        ("a", {"layout": "sn"}),
        ("", {"out_alignment": 2}),
    ):
        assert Problem(4095, 4095, 4096, **fields).unaligned == repack


@pytest.mark.parametrize("config", [PERSISTENT, HOPPER], ids=["persistent", "hopper"])
def test_legal_once_the_copies_are(config):
    problem = Problem(4095, 4095, 4095, layout="ns", a_alignment=2, b_alignment=2)
    assert "layout is ns" in config.fits(problem, H200).reason
    assert "layout is ns" in replace(config, repack="a").fits(problem, H200).reason
    assert "a is aligned to 2 bytes" in replace(config, repack="b").fits(problem, H200).reason
    assert replace(config, repack="ab").fits(problem, H200)


def test_rows_from_before_there_was_repack_still_parse():
    text = Config().to_json().replace(', "repack": ""', "")
    assert "repack" not in text
    assert Config.from_json(text) == Config()


@pytest.mark.parametrize(("m", "n", "k", "layout"), SUITE, ids=str)
def test_select_copies_what_tma_refuses_of_large_products(m, n, k, layout):
    problem = Problem.dense(m, n, k, layout=layout)
    config = choose(problem, H200)
    assert config.kernel == "hopper"
    assert config.repack == problem.unaligned


def test_select_copies_nothing_of_tiny_products_and_nothing_aligned():
    for size in (1, 17, 63):
        assert choose(Problem.dense(size, size, size), H200).repack == ""
    for size in (64, 1024, 8192):
        assert choose(Problem.dense(size, size, size), H200).repack == ""


def test_select_copies_nothing_where_there_is_no_tma():
    """The tile kernel loads as narrowly as K is divisible: copies made it 20% faster at best, and often slower."""
    config = choose(Problem.dense(4095, 4095, 4095), gpus.spec("a100"))
    assert (config.kernel, config.repack) == ("tile", "")


def test_the_model_counts_the_copies():
    problem = Problem.dense(4095, 4095, 4095)
    config = choose(problem, H200)
    copies = repack_us(problem, config, H200, constants_of(H200).shared)
    assert 2e6 * problem.operand_bytes("ab") / H200.bandwidth < copies < 50
    assert families.family(config.kernel).estimate(config, problem, H200).parts.repack == copies
    assert repack_us(problem, replace(config, repack=""), H200, constants_of(H200).shared) == 0


def assert_exact(m, n, k, layout, config, device, gpu=None):
    problem = space.problem(m, n, k, layout=layout)
    a, b, out = space.operands(problem, device)
    a.random_(-4, 5)
    b.random_(-4, 5)
    out.fill_(float("nan"))
    config = replace(config, repack=problem.unaligned)
    plan = bind(problem, config, gpu, device) if gpu else plan_for(problem, config, device)
    plan(a, b, out)
    assert torch.equal(out, (a.double() @ b.double()).to(out.dtype)), f"{problem} {config}"


@pytest.mark.parametrize(("m", "n", "k", "layout"), REDUCED, ids=str)
@pytest.mark.parametrize("config", [TILE, pytest.param(PERSISTENT, marks=needs_persistent)], ids=["tile", "persistent"])
def test_the_suite_reduced_is_exact(config, m, n, k, layout, device):
    assert_exact(m, n, k, layout, config, device, TWO_SMS if INTERPRETED else None)


@pytest.mark.parametrize(
    "config",
    [
        TILE,
        pytest.param(PERSISTENT, marks=needs_persistent),
        pytest.param(HOPPER, marks=[pytest.mark.gpu, needs_hopper]),
    ],
    ids=["tile", "persistent", "hopper"],
)
def test_batches_views_and_epilogue(config, device):
    x = torch.randint(-4, 5, (3, 50, 91), device=device).bfloat16()
    bias = torch.randint(-9, 10, (33,), device=device).bfloat16()
    for a, b in (
        (x[:, :40, 1:42], x[:, :41, 3:36]),
        (x[:1, :40, :41].expand(3, 40, 41), x[:, :33, :41].mT),
        (x[:, :, ::3][:, :40], x[:, :31, 1:34]),
        (x.mT[:, :40], x[1:2, :50, 7:40].expand(3, 50, 33)),
    ):
        c = torch.randint(-9, 10, (40, 33), device=device).bfloat16()
        assert_adds_before_it_rounds(a, b, c, bias, replace(config, repack="ab"), torch.bfloat16)


def test_empty_products_copy_nothing(device):
    config = replace(TILE, repack="ab")
    for m, n, k in ((0, 5, 7), (5, 0, 7), (5, 7, 0)):
        a, b = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
        assert torch.equal(matmul(a, b, config=config), a @ b)


def test_operands_keep_their_bits(device):
    a, b = torch.randn(40, 33, device=device), torch.randn(33, 35, device=device)
    before = a.clone(), b.clone()
    found = matmul(a, b, config=replace(TILE, repack="ab"))
    assert torch.equal(found, matmul(a, b, config=TILE))
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])


@pytest.mark.gpu
@pytest.mark.parametrize(("m", "n", "k", "layout"), SUITE, ids=str)
def test_what_select_chooses_for_the_suite_is_right(m, n, k, layout, device):
    problem = space.problem(m, n, k, layout=layout)
    config = choose(problem, gpus.default())
    assert Check(problem, device).error_ratio(plan_for(problem, config, device)) <= 1
    assert_exact(m, n, k, layout, replace(config, repack=""), device)


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize(("m", "n", "k", "layout"), REDUCED, ids=str)
def test_the_suite_reduced_is_exact_with_the_hopper_kernel(m, n, k, layout, device):
    assert_exact(m, n, k, layout, HOPPER, device)
    assert_exact(m, n, k, layout, replace(HOPPER, block_n=128, num_stages=6, split_tail=2), device)


@pytest.mark.gpu
def test_runs_are_bitwise_equal(device):
    a, b = torch.randn(1023, 2047, device=device).bfloat16(), torch.randn(2047, 1999, device=device).bfloat16()
    assert_repeatable(lambda: tritonmm.matmul(a, b))


@pytest.mark.gpu
def test_copies_on_several_streams_and_in_graphs(device):
    """Launches that overlap must not share a copy, and a graph must not lose its own to what is allocated later."""
    operands = [
        (torch.randn(511, 1023, device=device).bfloat16(), torch.randn(1023, 767, device=device).bfloat16())
        for _ in range(4)
    ]
    config = choose(Problem.of(*operands[0], torch.empty(511, 767).bfloat16()), gpus.default())
    assert config.repack == "ab"
    expected = [matmul(a, b, config=config) for a, b in operands]
    outs = [torch.empty_like(expected[0]) for _ in range(8)]
    graphs = []
    for (a, b), out in zip(operands, outs, strict=False):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            matmul(a, b, out=out, config=config)
            matmul(a, b, out=out, config=config)
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in operands]
    for run in range(30):
        for out in outs:
            out.fill_(float("nan"))
        torch.cuda.synchronize()
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                graphs[i].replay()
                matmul(*operands[i], out=outs[4 + i], config=config)
        torch.cuda.synchronize()
        for i, out in enumerate(outs):
            assert torch.equal(out, expected[i % 4]), f"run {run}, output {i}"


@pytest.mark.gpu
def test_a_graph_reads_what_its_operands_hold_when_it_is_replayed(device):
    a, b = torch.randn(511, 1023, device=device).bfloat16(), torch.randn(1023, 767, device=device).bfloat16()
    out = torch.empty(511, 767, device=device).bfloat16()
    matmul(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        matmul(a, b, out=out)
    for _ in range(3):
        a.normal_()
        graph.replay()
        assert torch.equal(out, matmul(a, b))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float32], ids=str)
@pytest.mark.parametrize("letters", ["nt", "tn"])
def test_lines_along_the_other_dimension(letters, dtype, device):
    """What tensor cores take with K contiguous alone is transposed; its neighbours stay as they are."""
    for batch, rows, cols in ((1, 70, 130), (1, 64, 64), (3, 17, 300), (1, 1, 5), (2, 33, 48)):
        for offset in (0, 1, 16):
            count = batch * rows * cols
            x = torch.randint(-9, 9, (count + offset,), device=device).to(dtype)[offset:].view(batch, rows, cols)
            x = x if letters[0] == "n" else x.mT
            copy = Copy.of(x, *letters)
            board = torch.full((2 * GUARD + copy.memory.numel(),), 11, device=device).to(dtype)
            room = board[GUARD:-GUARD]
            copy = replace(copy, memory=room, operand=room.as_strided(x.shape, copy.operand.stride(), GUARD))
            fill([copy], 3)
            what = f"{list(x.shape)}, {offset} elements behind an aligned address, divisor {copy.divisor}"
            assert torch.equal(copy.operand.float(), x.float()), what
            assert (board[:GUARD].float() == 11).all(), what
            assert (board[-GUARD:].float() == 11).all(), what
            assert copy.operand.stride(-1 if letters[1] == "n" else -2) == 1


def test_tensor_cores_that_take_k_contiguous_alone():
    for fields in ({"dtype": "int8"}, {"dtype": "fp8e4m3"}, {"dtype": "fp32", "precision": "tf32"}):
        for layout, repack in (("nt", ""), ("nn", "b"), ("tt", "a"), ("tn", "ab"), ("sn", "ab")):
            problem = Problem(4096, 4096, 4096, layout=layout, **fields)
            assert problem.unaligned == repack
            assert problem.repacked(repack).layout == "nt"
            config = choose(problem, H200)
            assert (config.kernel, config.repack) == ("hopper", repack)
            if repack:
                assert "repack makes it so" in replace(config, repack="").fits(problem, H200).reason or "s" in layout
    assert not Problem(4096, 4096, 4096, dtype="fp32", layout="tn").unaligned
