"""Launches of the grouped kernel for Hopper: repeated, in graphs, in several streams, in a chain; and large ones."""

import itertools

import pytest
import torch
from compile_groups import WARP_SPECIALIZED
from grouped_cases import int32
from grouped_products import (
    LAYOUTS,
    ON_HOPPER,
    TILES,
    Exact,
    Product,
    assert_same,
    config,
    integers,
    multiply,
    normal,
    random_offsets,
)

from tritonmm.dtypes import DTYPES
from tritonmm.plan import plan_for
from tritonmm.problem import Problem

pytestmark = ON_HOPPER


@pytest.mark.parametrize("case", range(len(WARP_SPECIALIZED)))
def test_runs_are_bitwise_equal(case, device):
    """At other addresses, too: a launch that is repeated has descriptors of its own operands."""
    kind, ragged, layout, blocks, order, _ = WARP_SPECIALIZED[case]
    sizes, n, other = [100, 0, 3, 300, 64, 650], 392, 400
    dtype = DTYPES[kind["dtype"]]
    a, b, offs = normal(ragged, layout, sizes, n, other, device, dtype=torch.float32)
    a, b = ((4 * x).round().clamp(-99, 99).to(dtype) for x in (a, b))
    scales = None
    if kind.get("scales"):
        scales = torch.rand(len(a), 1, device=device), torch.rand(len(sizes), n, device=device)
    options = {"scales": scales, "precision": kind.get("precision", "ieee"), "out_dtype": kind.get("out_dtype", "")}
    product = Product(config(blocks, order), a, b, len(sizes), **options)
    first = product(a, b, offs).clone()
    kept = []
    for run in range(30):
        again = [x.clone(memory_format=torch.preserve_format) for x in (a, b)]
        kept = kept[-4:] + again
        assert_same(product(*again, offs.clone()), first), f"run {run}"
        poison = torch.full_like(kept[run % 2], 127 if dtype == torch.int8 else float("nan"), dtype=torch.float32)
        kept[run % 2].copy_(poison)  # what a stale descriptor would read


@pytest.mark.parametrize(("ragged", "layout"), LAYOUTS)
def test_graphs_read_the_offsets_of_each_replay(ragged, layout, device):
    groups, total = 8, 600
    size = (264, 72) if ragged == "m" else (136, 264)
    exact = Exact(ragged, groups, total, size, torch.bfloat16, layout, device)
    product = Product(config(), exact.a, exact.b, groups)
    offs = int32([0] * groups, device)
    product(exact.a, exact.b, offs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(2):
            product(exact.a, exact.b, offs)
    for each in random_offsets(3, 60, groups, total):
        offs.copy_(int32(each, device))
        product.board.fill_(float("nan"))
        graph.replay()
        assert not exact.wrong(product.out, offs).any(), each
        assert not product.guards_are_written(), each


@pytest.mark.parametrize(("ragged", "layout"), LAYOUTS)
def test_several_streams_at_once(ragged, layout, device):
    """Each launch takes tiles from a table of its own."""
    groups, total, count = 8, 3000, 3
    size = (776, 136) if ragged == "m" else (136, 72)
    exact = Exact(ragged, groups, total, size, torch.bfloat16, layout, device)
    products = [Product(config((64, 128, 64, 6)), exact.a, exact.b, groups) for _ in range(2 * count)]
    streams = [torch.cuda.Stream() for _ in range(count)]
    offs = [int32(each, device) for each in random_offsets(4, 2 * count, groups, total)]
    graphs = []
    for i in range(count):
        products[i](exact.a, exact.b, offs[i])
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[i]):
            products[i](exact.a, exact.b, offs[i])
    for run in range(30):
        torch.cuda.synchronize()
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                graphs[i].replay()
                products[count + i](exact.a, exact.b, offs[count + i])
                graphs[i].replay()
        torch.cuda.synchronize()
        for i, product in enumerate(products):
            assert not exact.wrong(product.out, offs[i]).any(), f"run {run}, output {i}"


@pytest.mark.parametrize("blocks", TILES, ids=str)
def test_a_product_waits_for_the_one_that_it_reads(blocks, device):
    """A grid starts before the previous one has ended; a chain of products through two buffers shows if it waits. The
    offsets, too, are written right before."""
    sizes, n = [700, 0, 33, 1500, 129], 520
    order = torch.stack([torch.randperm(n, device=device) for _ in sizes])
    step = torch.zeros(len(sizes), n, n, device=device, dtype=torch.bfloat16)
    step.scatter_(2, order.unsqueeze(2), 1)
    start = integers((sum(sizes), n), torch.bfloat16, device, 128)
    group = torch.arange(len(sizes), device=device).repeat_interleave(torch.tensor(sizes, device=device))
    counts = int32(sizes, device)
    asked = Problem.of(start, step, start, ragged="m")
    plan = plan_for(asked, config(blocks), device)
    x, y = start.clone(), torch.full_like(start, float("nan"))
    expected = start
    for _ in range(20):
        expected = torch.empty_like(expected).scatter_(1, order[group], expected)

    def chain():
        for i in range(20):
            offs = counts.cumsum(0, dtype=torch.int32)
            plan(*((x, step, y) if i % 2 == 0 else (y, step, x)), offs=offs)

    chain()
    assert torch.equal(x, expected)
    x.copy_(start)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    graph.replay()
    assert torch.equal(x, expected)


def needs(gib):
    return pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_properties(0).total_memory < gib * 2**30,
        reason=f"needs {gib} GiB",
    )


def large(shape, device):
    """Small integers in place: no copy of 8 bytes an element."""
    return torch.empty(shape, dtype=torch.bfloat16, device=device).random_(-4, 5)


@needs(16)
@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_more_than_2_31_elements_of_b(layout, device):
    sizes, n, k = [3, 0, 40, 1, 7, 300, 2, 65, 129], 2**14 + 8, 2**14
    a, b = large((sum(sizes), k), device), large((9, n, k) if layout == "nt" else (9, k, n), device)
    b = b.mT if layout == "nt" else b
    found = multiply(config((256, 128, 64, 4)), a, b, int32(list(itertools.accumulate(sizes)), device))
    start = 0
    for g, size in enumerate(sizes):
        rows = slice(start, start + size)
        for first in range(0, n, 4096):
            cols = slice(first, first + 4096)
            assert torch.equal(found[rows, cols], (a[rows].double() @ b[g][:, cols].double()).bfloat16()), (g, first)
        start += size


@needs(24)
@pytest.mark.parametrize(("n", "k"), [(8200, 64), (64, 8200)], ids=["output", "a"])
def test_more_than_2_31_elements_of_rows(n, k, device):
    sizes = [2**17 + 1, 0, 2**16 + 33, 5, 2**16 + 200]
    ends = list(itertools.accumulate(sizes))
    a, b = large((ends[-1] + 5, k), device), large((len(sizes), n, k), device).mT
    found = multiply(config((256, 128, 64, 4)), a, b, int32(ends, device))
    for g, end in enumerate(ends):
        for first in range(end - sizes[g], end, 2**13):
            rows = slice(first, min(end, first + 2**13))
            assert torch.equal(found[rows], (a[rows].double() @ b[g].double()).bfloat16()), (g, first)


@needs(24)
def test_more_than_2_31_elements_of_k(device):
    sizes, n = [2**17 + 1, 0, 2**16 + 33, 5, 2**16 + 200], 8200
    ends = list(itertools.accumulate(sizes))
    a, b = large((ends[-1] + 5, 72), device).t(), large((ends[-1] + 5, n), device)
    found = multiply(config((64, 256, 64, 3)), a, b, int32(ends, device), out_dtype="fp32")
    for g, end in enumerate(ends):
        part = slice(end - sizes[g], end)
        for first in range(0, n, 2048):
            cols = slice(first, first + 2048)
            assert torch.equal(found[g][:, cols], (a[:, part].double() @ b[part, cols].double()).float()), (g, first)
