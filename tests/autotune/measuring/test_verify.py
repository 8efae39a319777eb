"""The check of a config: what it lets pass and what it must not."""

import math
from dataclasses import replace

import pytest
import torch

from tritonmm import orders
from tritonmm.autotune.measuring import space, verify
from tritonmm.autotune.measuring.verify import Check
from tritonmm.config import Config
from tritonmm.dtypes import DTYPES
from tritonmm.plan import INTERPRETED
from tritonmm.problem import KINDS

CPU = torch.device("cpu")
SMALL = space.problem(48, 40, 96, dtype="bf16", layout="nt")
# Too large for its budget: only some rows and columns are compared.
SAMPLED = space.problem(300, 200, 64, dtype="fp32", layout="nn")
SAMPLE_BUDGET = 2**24


def product(a, b, out):
    out.copy_(a.double() @ b.double())


def sampled():
    return Check(SAMPLED, CPU, budget=SAMPLE_BUDGET)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "tf32"])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_rounded_product_passes(batch, dtype):
    ratio = Check(space.problem(33, 17, 50, batch=batch, dtype=dtype), CPU).error_ratio(product)
    assert 0 < ratio <= 1


def test_fp32_sums_pass():
    ratio = Check(space.problem(64, 64, 4096, dtype="fp32"), CPU).error_ratio(lambda a, b, out: out.copy_(a @ b))
    assert 0 < ratio <= 1


@pytest.mark.parametrize("k", [0, 1])
def test_short_sums_pass(k):
    assert Check(space.problem(20, 20, k, dtype="fp16"), CPU).error_ratio(product) <= 1


def test_cut_inputs_pass_as_tf32_and_only_as_tf32():
    def cut(x):
        return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)

    def launch(a, b, out):
        out.copy_(cut(a).double() @ cut(b).double())

    assert Check(space.problem(64, 64, 64, dtype="tf32"), CPU).error_ratio(launch) <= 1
    assert Check(space.problem(64, 64, 64, dtype="fp32"), CPU).error_ratio(launch) > 1


def test_an_element_never_written_fails():
    def launch(a, b, out):
        product(a, b, out)
        out[-1, -1] = math.nan

    assert Check(SMALL, CPU).error_ratio(launch) == math.inf


def test_nan_outside_of_the_sample_fails():
    check = sampled()
    compared = set(check.parts[0][1].tolist())
    row = next(m for m in range(300) if m not in compared)
    col = next(n for n in range(200) if n not in set(check.parts[1][1].tolist()))

    def launch(a, b, out):
        product(a, b, out)
        out[row, col] = math.nan

    assert check.error_ratio(launch) == math.inf


@pytest.mark.parametrize("where", [-1, 1], ids=["before", "behind"])
def test_a_store_outside_of_the_output_fails(where):
    check = Check(SMALL, CPU)

    def launch(a, b, out):
        product(a, b, out)
        check.buffer[verify.GUARD - 1 if where < 0 else verify.GUARD + out.numel()] = 0

    assert check.error_ratio(launch) == math.inf


def test_one_wrong_element_fails():
    def launch(a, b, out):
        product(a, b, out)
        out[7, 11] += 1

    assert 1 < Check(SMALL, CPU).error_ratio(launch) < math.inf


def test_a_missing_step_of_k_fails():
    def launch(a, b, out):
        product(a[:, :-1], b[:-1], out)

    assert Check(SMALL, CPU).error_ratio(launch) > 1


def test_a_launch_that_does_nothing_after_a_right_one_fails():
    check = Check(SMALL, CPU)
    assert check.error_ratio(product) <= 1
    assert check.error_ratio(lambda a, b, out: None) == math.inf


def losing(problem, dropped, tile):
    """A launch that leaves out the last elements of K in the rows and columns from `tile` on, and rounds the rest."""

    def launch(a, b, out, scales=None):
        a, b = verify.scaled(problem, a, b, scales)
        found = a @ b
        found[tile:, tile:] -= a[tile:, problem.k - dropped :] @ b[problem.k - dropped :, tile:]
        out.copy_(found)

    return launch


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_tail_of_a_long_sum_fails(kind):
    """In every tile, or in one alone, even where tensor cores may round off more than such a tail is."""
    problem = space.problem(65, 48, 16400, dtype=kind)
    check = Check(problem, CPU)
    assert check.error_ratio(losing(problem, 0, 0)) <= 1
    for dropped in (1, 16, 64, 128):
        for tile in (0, 32):
            assert check.error_ratio(losing(problem, dropped, tile)) > 1, (dropped, tile)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 128, 129, 1000])
def test_integers_are_exact_in_any_order_of_sums(kind, k):
    """Outputs of the kind hold them exactly, and so does every partial sum in the 13 bits that fp8 is summed with."""
    problem = space.problem(33, 20, k, dtype=kind)
    integers = Check(problem, CPU).integers
    a, b = verify.scaled(problem, integers.a, integers.b, integers.scales)
    assert set(a.unique().tolist()) | set(b.unique().tolist()) <= {-1.0, 1.0}
    for stored in (integers.a, verify.values(problem, integers.b)):
        assert set(stored.double().abs().unique().tolist()) <= {1.0, 4.0}
    exact = a @ b
    assert exact.abs().max() <= verify.UNPAIRED
    assert torch.equal(exact.to(DTYPES[problem.out_dtype]).double(), exact)
    walk = (a.unsqueeze(2) * b.unsqueeze(0)).cumsum(1)
    assert walk.abs().max() < 2**13


def test_one_wrong_integer_anywhere_fails():
    """Outside of the sample too, in a row that no column of the sample crosses in its tile."""
    check = sampled()
    row = next(m for m in range(300) if m not in set(check.parts[0][1].tolist()))
    col = next(n for n in range(200) if n not in set(check.parts[1][1].tolist()))

    def launch(a, b, out):
        product(a, b, out)
        out[row, col] += 1

    assert check.error_ratio(product) <= 1
    assert check.error_ratio(launch) == math.inf


@pytest.mark.parametrize(
    ("m", "n"), [(0, 100), (-1, 100), (150, 0), (150, -1)], ids=["first row", "last row", "first col", "last col"]
)
def test_edges_are_always_in_the_sample(m, n):
    def launch(a, b, out):
        product(a, b, out)
        out[m, n] += 1

    assert sampled().error_ratio(launch) > 1


def test_a_wrong_row_is_found_by_the_columns():
    check = sampled()
    row = next(m for m in range(300) if m not in set(check.parts[0][1].tolist()))

    def launch(a, b, out):
        product(a, b, out)
        out[row] += 1

    assert check.error_ratio(launch) > 1


def test_the_sample_keeps_to_its_budget():
    rows, cols = (part[1] for part in sampled().parts)
    work = 2 * (len(rows) * 200 + len(cols) * 300) * 256
    assert len(rows) < 300
    assert len(cols) < 200
    assert SAMPLE_BUDGET / 4 < work <= SAMPLE_BUDGET * 1.1


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, 2049, 4096])
@pytest.mark.parametrize("block", [16, 64, 128])
def test_reduced_is_as_ragged_as_the_original(block, size):
    config = Config(block_m=block, block_n=block, block_k=block)
    small = verify.reduced(space.problem(size, size, size), config)
    for name, most in (("m", 3), ("n", 2), ("k", 2)):
        reduced = getattr(small, name)
        assert reduced % block == size % block, name
        assert reduced == size or (most - 1) * block < reduced <= most * block, name


@pytest.mark.parametrize("k", [1, 63, 64, 64 * 3, 64 * 4, 64 * 7 - 1, 64 * 50 + 5, 64 * 64])
@pytest.mark.parametrize("parts", [{"split_k": 3}, {"split_k": 4}, {"split_tail": 5}], ids=str)
def test_reduced_splits_k_as_the_original(parts, k):
    config = Config(block_k=64, **parts)
    small = verify.reduced(space.problem(100, 100, k), config).k
    (split,) = parts.values()
    steps, left = -(-k // 64), -(-small // 64)
    assert small % 64 == k % 64
    assert left % split == steps % split, "parts with a step more"
    assert left == steps or 2 * split <= left < 3 * split


@pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled for the GPU")
def test_a_split_config_is_interpreted_split():
    config = Config("skinny", 1, 32, 64, num_warps=4, split_k=4, order=orders.RowMajor())
    problem = verify.reduced(space.problem(1, 500, 4000), config)
    assert 0 < verify.interpreted(problem, config) <= 1


def test_reduced_keeps_what_selects_code():
    asked = space.problem(4096, 4100, 4096, batch=5, dtype="tf32", layout="tn")
    small = verify.reduced(asked, Config())
    assert small.batch == 2
    kept = ("dtype", "out_dtype", "precision", "layout", "a_alignment", "b_alignment")
    assert {name: getattr(small, name) for name in kept} == {name: getattr(asked, name) for name in kept}


@pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled for the GPU")
@pytest.mark.parametrize("persistent", [False, True], ids=["plain", "persistent"])
@pytest.mark.parametrize("order", ["row-major", "swizzle-merge:2", "split-merge:2", "hilbert"])
def test_the_tile_kernel_passes(order, persistent):
    config = Config(
        block_m=32, block_n=16, block_k=32, num_stages=1, num_warps=16, persistent=persistent, order=orders.parse(order)
    )
    problem = verify.reduced(replace(SMALL, m=1000, n=100, k=70), config)
    assert 0 < verify.interpreted(problem, config) <= 1


@pytest.mark.parametrize("scales", ["tensor", "row", "1x128*128x128", "128x128*1x128", "1x128*1x128"])
def test_scales_are_of_whole_blocks_where_sizes_are_none(scales):
    """257 rows are three blocks of 128, the last of one row."""
    check = Check(replace(space.problem(257, 300, 200, dtype="fp8-ieee"), scales=scales), CPU)
    a, b = verify.scaled(check.problem, check.a, check.b, check.scales)
    of_rows, of_cols = check.scales
    for i, j, k in ((0, 0, 0), (127, 127, 127), (128, 128, 128), (256, 299, 199)):
        group = k // 128 if "x" in scales else 0
        row = {"tensor": 0, "128x128*1x128": i // 128}.get(scales, i)
        col = {"tensor": 0, "1x128*128x128": j // 128}.get(scales, j)
        assert a[i, k] == check.a[i, k].double() * of_rows[row, group].double(), (i, k)
        assert b[k, j] == check.b[k, j].double() * of_cols[group, col].double(), (k, j)
