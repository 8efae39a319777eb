"""The check of a grouped GEMM: what it lets pass, and the mistakes that kernels make with groups."""

import math

import pytest
import torch
from grouped_cases import in_groups

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.autotune.measuring import sources, space, verify
from tritonmm.autotune.measuring.verify import Check
from tritonmm.config import Config
from tritonmm.plan import INTERPRETED, bind

CPU = torch.device("cpu")
ROWS = space.problem(60, 24, 40, ragged="m", groups=5)
PARTS = space.problem(24, 40, 300, layout="tn", ragged="k", groups=5)
SIZES = {"m": [20, 0, 17, 3, 15], "k": [150, 0, 17, 3, 125]}
"""5 rows or elements of K belong to no group."""

interpreted = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled for the GPU")


def check(problem, **options):
    return Check(problem, CPU, sizes=SIZES[problem.ragged], **options)


def product(a, b, out, offs):
    """The grouped product, written out."""
    start = 0
    for group, end in enumerate(offs.tolist()):
        if b.dim() == 3:
            out[start:end] = a[start:end].double() @ b[group].double()
        else:
            out[group] = a[:, start:end].double() @ b[start:end].double()
        start = end


def mutant(change):
    """The product of operands that `change` has changed."""
    return lambda a, b, out, offs: product(*change(a, b, out, offs))


def shifted(by, group=0):
    """The offsets, one of which is `by` more."""
    return torch.tensor([by * (g == group) for g in range(5)], dtype=torch.int32)


@pytest.mark.parametrize("problem", [ROWS, PARTS], ids=str)
@pytest.mark.parametrize("budget", [verify.BUDGET, 2**14], ids=["all", "sampled"])
def test_the_rounded_product_passes(problem, budget):
    found = check(problem, budget=budget)
    assert len(found.parts) == (1 if budget == verify.BUDGET else 2)
    assert 0 < found.error_ratio(product) <= 1


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "bf16-fp32", "fp64", "tf32"])
@pytest.mark.parametrize("ragged", ["m", "k"])
def test_every_dtype_of_groups_is_checked(dtype, ragged):
    assert Check(space.problem(70, 33, 90, dtype=dtype, ragged=ragged, groups=7), CPU).error_ratio(product) <= 1


@pytest.mark.parametrize(
    "launch",
    [
        mutant(lambda a, b, out, offs: (a, b[[2, 1, 0, 3, 4]], out, offs)),
        mutant(lambda a, b, out, offs: (a, b[[0, 1, 2, 4, 3]], out, offs)),
        mutant(lambda a, b, out, offs: (a, b, out, offs - shifted(1))),
        mutant(lambda a, b, out, offs: (a, b, out, offs + shifted(1, 2))),
        mutant(lambda a, b, out, offs: (a.roll(1, 0), b, out, offs)),
    ],
    ids=["first matrices swapped", "last matrices swapped", "a row too late", "a row too early", "rows shifted"],
)
@pytest.mark.parametrize("budget", [verify.BUDGET, 2**14], ids=["all", "sampled"])
def test_a_wrong_matrix_of_a_row_fails(launch, budget):
    assert check(ROWS, budget=budget).error_ratio(launch) > 1


@pytest.mark.parametrize(
    "launch",
    [
        mutant(lambda a, b, out, offs: (a, b, out, offs - shifted(1))),
        mutant(lambda a, b, out, offs: (a, b, out, offs + shifted(1, 4))),
    ],
    ids=["an element too late", "an element of no group"],
)
def test_a_wrong_part_of_k_fails(launch):
    assert check(PARTS).error_ratio(launch) > 1


def test_swapped_outputs_fail():
    def launch(a, b, out, offs):
        product(a, b, out, offs)
        out.copy_(out[[4, 1, 2, 3, 0]])

    assert 1 < check(PARTS).error_ratio(launch) < math.inf


def test_a_lost_element_of_a_long_group_fails():
    """The bound of the first check allows it, and integers do not."""
    problem = space.problem(20, 16, 40_000, layout="tn", ragged="k", groups=2)
    lose = mutant(lambda a, b, out, offs: (a, b.index_fill(0, torch.tensor([7]), 0), out, offs))
    found = Check(problem, CPU, sizes=[30_000, 10_000])
    assert found.error_ratio(product) <= 1
    assert found.error_ratio(lose) > 1


def test_an_empty_group_of_k_must_be_zeros():
    def launch(a, b, out, offs):
        product(a, b, out, offs)
        out[1] = 1e-30

    assert check(PARTS).error_ratio(launch) > 1


def test_an_empty_group_of_k_must_be_written():
    def launch(a, b, out, offs):
        before = out[1].clone()
        product(a, b, out, offs)
        out[1] = before

    assert check(PARTS).error_ratio(launch) == math.inf


@pytest.mark.parametrize("value", [math.nan, math.inf, 3.0], ids=str)
def test_rows_of_no_group_may_have_any_value(value):
    def launch(a, b, out, offs):
        product(a, b, out, offs)
        out[55:] = value

    assert check(ROWS).error_ratio(launch) <= 1


@pytest.mark.parametrize("row", [0, 19, 20, 36, 37, 39, 40, 54])
def test_the_ends_of_each_group_are_in_every_sample(row):
    found = check(ROWS, budget=1)
    assert row in found.parts[0][1].tolist()
    assert found.parts[0][1].max() < 55


@pytest.mark.parametrize("problem", [ROWS, PARTS], ids=str)
@pytest.mark.parametrize("where", [-1, 1], ids=["before", "behind"])
def test_a_store_outside_of_the_output_fails(problem, where):
    found = check(problem)

    def launch(a, b, out, offs):
        product(a, b, out, offs)
        found.buffer[verify.GUARD - 1 if where < 0 else verify.GUARD + out.numel()] = 0

    assert found.error_ratio(launch) == math.inf


@pytest.mark.parametrize("problem", [ROWS, PARTS], ids=str)
def test_integers_are_exact_in_each_group(problem):
    found = check(problem)
    integers, offs = found.integers, found.keywords["offs"]
    exact = torch.empty_like(found.out, dtype=torch.float64)
    product(integers.a, integers.b, exact, offs)
    exact = in_groups(exact, integers.a, integers.b, offs.tolist())
    assert exact.abs().max() <= verify.UNPAIRED
    assert torch.equal(exact.bfloat16().double(), exact)


@pytest.mark.parametrize("problem", [ROWS, PARTS], ids=str)
def test_what_torch_computes_passes(problem):
    def launch(a, b, out, offs):
        out.copy_(sources.torch_product(problem, offs=offs)(a, b, out))

    assert Check(problem, CPU).error_ratio(launch) <= 1


LARGE = {"m": (5001, 1536, 2048), "k": (1536, 2049, 32768)}


@pytest.mark.parametrize("ragged", ["m", "k"])
@pytest.mark.parametrize("groups", [1, 3, 128])
def test_reduced_groups_are_few_and_as_ragged(ragged, groups):
    config = Config(block_m=64, block_n=64, block_k=32, persistent=True)
    small = verify.reduced(space.problem(*LARGE[ragged], ragged=ragged, groups=groups), config)
    assert (small.ragged, small.groups) == (ragged, min(groups, 4))
    assert max(small.m, small.n, small.k) <= 3 * 64
    for size, of_large in zip((small.m, small.n, small.k), LARGE[ragged], strict=True):
        assert size % 32 == of_large % 32


@interpreted
@pytest.mark.parametrize("order", ["groups/row-major", "largest-groups/swizzle-merge:2", "joined-groups/serpentine:2"])
@pytest.mark.parametrize("problem", [ROWS, PARTS], ids=str)
@pytest.mark.parametrize("total", [1, 2, 3, 1000])
def test_the_tile_kernel_passes(problem, order, total):
    if problem.ragged == "k" and "joined" in order:
        pytest.skip("groups of K are not joined")
    config = Config("tile", 16, 16, 16, 1, 4, persistent=True, order=orders.parse(order))
    large = (total, 100, 70) if problem.ragged == "m" else (100, 70, total)
    asked = space.problem(*large, layout=problem.layout, ragged=problem.ragged, groups=9)
    assert verify.interpreted(verify.reduced(asked, config), config) <= 1


@interpreted
def test_the_tile_kernel_with_two_matrices_swapped_fails():
    config = Config("tile", 16, 16, 16, 1, 4, persistent=True, order=orders.parse("groups/row-major"))
    plan = bind(ROWS, config, gpus.spec("h200"), CPU)
    found = check(ROWS)
    assert found.error_ratio(plan) <= 1
    assert found.error_ratio(lambda a, b, out, offs: plan(a, b[[0, 1, 3, 2, 4]].contiguous(), out, offs=offs)) > 1
