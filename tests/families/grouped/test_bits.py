"""Scales of rows and columns in the grouped kernel for Hopper, and the bits of its sums."""

import itertools

import pytest
import torch
from grouped_cases import int32
from grouped_products import (
    ON_HOPPER,
    Product,
    config,
    ends_of,
    integers,
    is_poison,
    multiply,
    normal,
    random_offsets,
    stored,
)

import tritonmm
from tritonmm.dtypes import DTYPES

pytestmark = ON_HOPPER


KINDS = {
    "fp8 fast": ((torch.float8_e4m3fn, torch.float8_e4m3fn), "fast"),
    "fp8": ((torch.float8_e4m3fn, torch.float8_e4m3fn), "ieee"),
    "e5m2 by e4m3": ((torch.float8_e5m2, torch.float8_e4m3fn), "ieee"),
    "int8": ((torch.int8, torch.int8), "ieee"),
}
WIDE = [(128, 128, 128, 5), (64, 256, 128, 3), (64, 128, 128, 6)]
"""Tiles with registers to add the sums of each step in fp32."""

LARGE = [(256, 128, 128, 3), (128, 256, 128, 3)]


def scaled_operands(kind, sizes, n, k, device, most=4):
    """Small integers, scales that leave their products exact, and offsets."""
    (dtype_a, dtype_b), precision = KINDS[kind]
    total = sum(sizes) + 5
    a, b = integers((total, k), dtype_a, device, most), integers((len(sizes), n, k), dtype_b, device, most).mT
    scales = [torch.randint(-2, 3, shape, device=device).float().exp2() for shape in ((total, 1), (len(sizes), n))]
    return a, b, int32(list(itertools.accumulate(sizes)), device), tuple(scales), precision


@pytest.mark.parametrize(("out_dtype", "bias"), [("bf16", False), ("fp32", True)], ids=["bf16", "fp32 and bias"])
@pytest.mark.parametrize(
    ("kind", "blocks"),
    [*itertools.product(KINDS, WIDE), *itertools.product(("fp8 fast", "int8"), LARGE)],
    ids=str,
)
def test_scales_of_rows_and_columns(kind, blocks, out_dtype, bias, device):
    sizes = [*range(0, 301, 7), 1, 2, 513]
    a, b, offs, scales, precision = scaled_operands(kind, sizes, 280, 528, device)
    added = integers((len(sizes), 280), DTYPES[out_dtype], device) if bias else None
    options = {"scales": scales, "precision": precision, "bias": added, "out_dtype": out_dtype}
    found = multiply(config(blocks), a, b, offs, **options)
    start = 0
    for g, end in enumerate(offs.tolist()):
        factor = scales[0][start:end].double() * scales[1][g].double()
        expected = (a[start:end].double() @ b[g].double()) * factor
        expected = expected if added is None else expected + added[g].double()
        assert torch.equal(found[start:end], expected.to(found.dtype)), f"group {g} of {end - start} rows"
        start = end


def test_sums_of_int8_are_whole(device):
    a, b, offs, _, _ = scaled_operands("int8", [3, 0, 200, 64, 130], 280, 528, device, most=127)
    found = multiply(config((256, 128, 128, 3)), a, b, offs)
    start = 0
    for g, end in enumerate(offs.tolist()):
        assert torch.equal(found[start:end], (a[start:end].double() @ b[g].double()).int())
        start = end


@pytest.mark.parametrize("kind", ["fp8 fast", "fp8", "e5m2 by e4m3"])
@pytest.mark.parametrize("blocks", WIDE, ids=str)
def test_rows_with_scales_have_the_bits_of_a_plain_product(blocks, kind, device):
    sizes, n, k = [1, 70, 0, 128, 300, 17], 280, 1040
    (dtype_a, dtype_b), precision = KINDS[kind]
    a = torch.randn(sum(sizes), k, device=device).to(dtype_a)
    b = torch.randn(len(sizes), n, k, device=device).to(dtype_b).mT
    scales = torch.rand(len(a), 1, device=device) + 0.5, torch.rand(len(sizes), n, device=device) + 0.5
    offs = int32(list(itertools.accumulate(sizes)), device)
    found = multiply(config(blocks), a, b, offs, scales=scales, precision=precision)
    for g, end in enumerate(offs.tolist()):
        rows = slice(end - sizes[g], end)
        if sizes[g]:
            expected = tritonmm.scaled_mm(
                a[rows], b[g], scales[0][rows], scales[1][g : g + 1], out_dtype=torch.bfloat16,
                use_fast_accum=precision == "fast", accumulation="invariant",
            )  # fmt: skip
            assert torch.equal(found[rows], expected), f"group {g}"


@pytest.mark.parametrize(
    ("blocks", "layout", "out_dtype"),
    [((256, 192, 64, 3, 12), "nt", "bf16"), ((256, 128, 64, 4), "nt", "bf16"),
     ((128, 256, 64, 4), "nn", "bf16"), ((64, 128, 64, 8), "nt", "bf16"),
     ((128, 128, 64, 5), "nt", "fp32"), ((64, 256, 64, 3), "nn", "fp32")],
    ids=str,
)  # fmt: skip
def test_rows_have_the_same_bits_in_groups_of_any_size(blocks, layout, out_dtype, device):
    """Those of a plain product with invariant accumulation, too: alone, and beside any number of others."""
    total, groups, n, k = 700, 9, 264, 1096
    a, b, _ = normal("m", layout, [total], n, k, device, rest=0)
    kind = None if out_dtype == "bf16" else torch.float32
    expected = tritonmm.mm(a, b[0], out_dtype=kind, accumulation="invariant")
    many = stored(b.expand(groups, -1, -1), layout[1])
    product = Product(config(blocks), a, many, groups, out_dtype=out_dtype, accumulation="invariant")
    for offs in random_offsets(5, 60, groups, total):
        of_groups = int32(offs, device)
        found = product(a, many, of_groups)
        end = int(ends_of(of_groups, total)[-1])
        assert torch.equal(found[:end], expected[:end]), offs
        assert is_poison(found[end:]).all(), offs


def test_groups_of_k_have_the_bits_of_a_plain_product(device):
    sizes = [7, 0, 64, 1000, 65, 1]
    a, b, offs = normal("k", "tn", sizes, 264, 136, device)
    found = multiply(config((256, 128, 64, 4)), a, b, offs, accumulation="invariant")
    for g, end in enumerate(offs.tolist()):
        part = slice(end - sizes[g], end)
        if sizes[g]:
            left = a.t()[part].contiguous().t()
            assert torch.equal(found[g], tritonmm.mm(left, b[part].contiguous(), accumulation="invariant")), g
