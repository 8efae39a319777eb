"""On every GPU that has a spec, `select` gives a legal config for every product that the library supports."""

import itertools
import random

import pytest
from pairs import all_pairs
from random_products import MORE_KINDS, products, unsupported

from tritonmm import gpu as gpus
from tritonmm.problem import ACCUMULATIONS, KINDS, Problem
from tritonmm.selection import choose

COUNT = 30
"""Products a GPU in each run; `python tests/compile_random.py SEED COUNT` goes through more."""


@pytest.mark.parametrize("name", gpus.names())
def test_select_is_legal_for_random_products(name):
    gpu, seed = gpus.spec(name), random.randrange(2**32)
    for i, product in enumerate(products(seed, COUNT)):
        problem, where = product.problem, f"product {i} of products({seed}, {COUNT}) on {name}, {product.problem}"
        if unsupported(problem, gpu):
            if min(problem.m, problem.n) > 1:  # a matrix times a vector needs no tensor cores
                with pytest.raises(ValueError, match="no config"):
                    choose(problem, gpu)
            continue
        try:
            config = choose(problem, gpu)
        except ValueError as error:
            pytest.fail(f"{where}: {error}")
        fit = config.fits(problem, gpu)
        assert fit, f"{where}: {config} is not legal: {fit.reason}"
        assert config.shared_bytes(problem.repacked(config.repack), gpu) <= gpu.shared_bytes, f"{where}: {config}"


SCALED = [("m", "row"), ("k", "row"), ("m", "1x128*1x128"), ("m", "1x128*128x128")]


@pytest.mark.parametrize("name", gpus.names())
def test_select_is_legal_for_groups_with_scales(name):
    gpu, types = gpus.spec(name), itertools.product(("fp8e4m3", "fp8e5m2", "int8"), ("nt", "tn"))
    kinds = itertools.product(SCALED, ACCUMULATIONS)
    for (dtype, layout), ((ragged, scales), accumulation), alignment in all_pairs(list(types), list(kinds), (1, 4, 16)):
        problem = Problem(
            999, 767, 531, dtype=dtype, out_dtype="bf16", layout=layout, a_alignment=alignment, b_alignment=alignment,
            out_alignment=2, scales=scales, ragged=ragged, groups=16, accumulation=accumulation,
        )  # fmt: skip
        if not unsupported(problem, gpu):
            config = choose(problem, gpu)
            assert config.fits(problem, gpu), f"{problem} on {name}: {config}"


def test_random_products_are_of_every_kind_and_lie_in_every_way():
    found = [product.problem for product in products(0, 2000)]
    terms = {(p.dtype, p.b_dtype, p.out_dtype, p.precision, p.scales) for p in found}
    assert len(terms) == len(KINDS) - 2 + len(MORE_KINDS)  # without packed int8
    assert {p.layout for p in found} == {a + b for a in "nts" for b in "nts"}
    for alignment in ("a_alignment", "b_alignment"):
        assert {getattr(p, alignment) for p in found} == {1, 2, 4, 8, 16}
    assert {p.symmetric for p in found} == {"", "gram", "known", "output"}
    assert {p.ragged for p in found} == {"", "m", "k"}
    assert {p.accumulation for p in found} == {"any", "invariant"}
    assert {p.group for p in found} == {16, 32, 64, 128}
    assert min(p.m for p in found) == min(p.k for p in found) == min(p.batch for p in found) == 0
    assert len({(p.epilogue.scaled, p.epilogue.bias, p.epilogue.c) for p in found}) == 8


def test_equal_seeds_make_equal_products():
    first, second = ([product.problem for product in products(5, 20)] for _ in range(2))
    assert first == second
