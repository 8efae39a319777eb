"""Invariant accumulation on a GPU: a row has the same bits in every product, whatever computes it."""

import json
import random

import pytest
import torch
import triton
from invariant_cases import CASES, HASHES, bits, digest, epilogues, hashed, operands

from tritonmm import Config
from tritonmm.selection import timed
from tritonmm.torch_ops.product import gpu_of, product

pytestmark = [pytest.mark.gpu, pytest.mark.long]

ROWS = (1, 2, 3, 4, 7, 8, 16, 17, 33, 64, 100, 128, 129, 200, 256, 257, 512, 1000, 2048, 4096)
N = 640


class Comparison:
    """Counts the rows that were compared; a row that differs fails the test at once."""

    def __init__(self):
        self.rows = 0

    def same(self, found: torch.Tensor, expected: torch.Tensor, what: object) -> None:
        differs = bits(found) != bits(expected)
        differs &= ~(found.isnan() & expected.isnan()) if found.is_floating_point() else True
        self.rows += found.shape[-2]
        if differs.any():
            at = tuple(differs.nonzero()[0].tolist())
            count = int(differs.any(-1).sum())
            pytest.fail(
                f"{what}: {count} of {found.shape[-2]} rows differ: {found[at]} at {at}, expected {expected[at]}"
            )


@pytest.mark.parametrize("name", CASES)
def test_a_row_has_the_same_bits_everywhere(name, device):
    all_of = operands(name, ROWS[-1], N, device)
    gpu = gpu_of(device)
    draw, found = random.Random(f"{name} {gpu.name} {triton.__version__}"), Comparison()
    step = 128 if all_of.problem.rows_per_scale == 128 else 1
    weights = (all_of.problem.b_dtype in ("int8",) and all_of.problem.dtype != "int8") or "bf16-fp8" in name
    expected = all_of.product()

    def rows_of(m: int) -> slice:
        first = draw.randrange(0, (ROWS[-1] - m) // step + 1) * step
        return slice(first, first + m)

    for m in ROWS:  # any number of rows, from anywhere
        rows = rows_of(m)
        found.same(all_of.product(rows), expected[rows], rows)
    for m in (1, 40, 300, 3000):  # any legal config of any family
        rows = rows_of(m)
        legal = list(timed(all_of.asked(rows), gpu))
        for config in draw.sample(legal, min(4, len(legal))):
            found.same(all_of.product(rows, config=config), expected[rows], config)
    for stored in ("nn", "tn", "tt", "nt", "ss", "off"):  # any layout and alignment
        if weights and stored != "off":
            continue
        rows = rows_of(draw.choice((5, 40, 130, 700)))
        found.same(all_of.product(rows, stored=stored), expected[rows], (stored, rows))
    for first, last in ((128, 384), (256, 256 + 72), (512, 640)):  # some columns, as in tensor parallelism
        for m in (3, 257):
            rows, cols = rows_of(m), slice(first, last)
            found.same(all_of.product(rows, cols), expected[rows, cols], (rows, cols))
    for epilogue in epilogues(name)[1:]:
        whole = all_of.product(epilogue=epilogue)
        for m in (draw.choice((1, 9)), draw.choice((1029, 1500))):
            rows = rows_of(m)
            found.same(all_of.product(rows, epilogue=epilogue), whole[rows], (epilogue, rows))
        rows = rows_of(200)
        legal = list(timed(all_of.asked(rows, epilogue=epilogue), gpu))
        config = draw.choice(legal)
        found.same(all_of.product(rows, epilogue=epilogue, config=config), whole[rows], (epilogue, config))
    assert found.rows >= 20_000
    print(f"{name}: {found.rows} rows compared")


@pytest.mark.parametrize("k", [16384, 17008, 140_016])
@pytest.mark.parametrize("name", ["bf16", "bf16-fp32", "fp16", "tf32", "fp8", "fp8-row"])
def test_a_long_k_has_the_bits_of_its_chunks(name, k, device):
    """Whole tiles that add chunk after chunk, and tiles whose chunks are summed by programs of their own."""
    one = operands(name, 384, 256, device, k)
    gpu = gpu_of(device)
    draw, found = random.Random(f"{name} {gpu.name} {triton.__version__}"), Comparison()
    expected = one.product()
    for m in (1, 70, 384):
        rows = slice(384 - m, 384)
        legal = list(timed(one.asked(rows), gpu))
        split = [config for config in legal if config.split_k * config.split_tail > 1]
        assert split, "no config splits a long K"
        for config in (*draw.sample(split, min(3, len(split))), *draw.sample(legal, min(3, len(legal)))):
            found.same(one.product(rows, config=config), expected[rows], config)
        found.same(one.product(rows, stored="off"), expected[rows], "off")
    epilogue = one.product(epilogue="alpha bias C")
    found.same(one.product(slice(0, 5), epilogue="alpha bias C"), epilogue[:5], "epilogue")
    verdict = one.verdict(expected)
    assert verdict, verdict


@pytest.mark.parametrize("name", ["bf16", "fp16", "tf32", "fp32", "fp64", "bf16-fp32"])
def test_a_batch_has_the_bits_of_its_products(name, device):
    one = operands(name, 1024, N, device)
    expected, found = one.product(), Comparison()
    _, _, how, _ = one._arguments(slice(None), slice(None), "as is", "", "invariant")
    for batch in (2, 7, 64):
        m = 1024 // batch
        a = one.a[: batch * m].view(batch, m, -1)
        found.same(
            product(a, one.b.expand(batch, *one.b.shape), how=how), expected[: batch * m].view(batch, m, N), batch
        )
    assert found.rows > 500


def test_a_graph_has_the_bits_of_a_call(device):
    one, found = operands("bf16", 300, N, device), Comparison()
    expected = one.product()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        one.product(slice(0, 70))
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = one.product(slice(0, 70))
    graph.replay()
    found.same(captured, expected[:70], "captured")


@pytest.mark.parametrize(
    "config",
    [
        Config("hopper", block_m=64, block_n=64, block_k=64, num_stages=6, num_warps=4, split_k=4),
        Config("skinny", block_m=1, block_n=16, block_k=256, num_warps=4),
    ],
    ids=["split-K", "GEMV"],
)
def test_what_is_illegal_has_other_bits(config, device):
    """The comparison sees what it is there to see."""
    one = operands("bf16-fp32", 64, N, device, 4096)
    expected = one.product()
    found = one.product(config=config, accumulation="any")
    assert (bits(found) != bits(expected)).any()
    with pytest.raises(ValueError, match="accumulation"):
        one.product(config=config)


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_other_hoppers(name, device):
    """Hashes that the emulator gave, or another GPU for what it does not cover."""
    if gpu_of(device).capability != 90:
        pytest.skip("hashes are Hopper's")
    known = json.loads(HASHES.read_text())
    one = hashed(name, device)
    for epilogue in epilogues(name):
        expected = known[f"{name} {epilogue}".strip()]
        assert digest(one.product(epilogue=epilogue)) == expected, f"{name} {epilogue}"
