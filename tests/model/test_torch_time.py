"""The model of torch's grouped products: it gives what was measured, and what the sizes of groups say."""

from dataclasses import replace

import pytest

from tritonmm import gpu as gpus
from tritonmm import policy
from tritonmm.autotune.measuring.group_sizes import group_sizes
from tritonmm.model.groups import expected_sizes, sized
from tritonmm.model.torch_time import torch_us
from tritonmm.problem import Problem
from tritonmm.tuned import errors

H200 = gpus.spec("h200")

MEASURED = {
    (8, 16384, 28672, 4096): {"even": (4915, 4892), "zipf": (5079, 4863)},
    (64, 16384, 2816, 2048): {"even": (314, 530), "zipf": (432, 630), "random": (412, 615)},
    (128, 16384, 1536, 2048): {"even": (291, 857), "zipf": (406, 908), "random": (392, 869)},
    (128, 1024, 1536, 2048): {"even": (282, 790), "zipf": (297, 986), "random": (292, 884)},
    (256, 8192, 4096, 7168): {"even": (4522, 5125), "zipf": (4988, 5344), "random": (4552, 5223)},
    (8, 256, 14336, 4096): {"even": (363, 275), "zipf": (356, 276), "random": (370, 275)},
}
"""(groups, rows, N, K), and for each distribution the microseconds of torch.nn.functional.grouped_mm of bf16, and of a
torch.mm for each group: H200, torch 2.11, CUDA graphs."""

CASES = [(*shape, name, *us) for shape, by_name in MEASURED.items() for name, us in by_name.items()]


def rows(groups, total, n, k, name, dtype="bf16"):
    problem = Problem.dense(total, n, k, layout="nt", dtype=dtype, ragged="m", groups=groups)
    return sized(problem, group_sizes(name, total, groups))


@pytest.mark.parametrize(("groups", "total", "n", "k", "name", "us", "loop_us"), CASES)
def test_measured_times(groups, total, n, k, name, us, loop_us):
    assert torch_us(rows(groups, total, n, k, name), H200) == pytest.approx(us, rel=0.08)
    # fp16 has no kernel for groups: torch computes one after the other.
    assert torch_us(rows(groups, total, n, k, name, "fp16"), H200) == pytest.approx(loop_us, rel=0.2)


@pytest.mark.parametrize("ragged", ["m", "k"])
@pytest.mark.parametrize("gpu", ["h200", "b200", "a100"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_what_is_expected_is_the_time_of_the_expected_sizes(ragged, gpu, dtype):
    problem = Problem.dense(4096, 1536, 4096, dtype=dtype, ragged=ragged, groups=16)
    known = sized(problem, expected_sizes(4096, 16))
    gpu = gpus.spec(gpu)
    assert torch_us(problem, gpu) == torch_us(known, gpu) > 0
    assert policy.times(problem, gpu, errors.of(gpu)) == policy.times(known, gpu, errors.of(gpu))


@pytest.mark.parametrize("ragged", ["m", "k"])
def test_a_loop_over_groups_takes_the_sum_of_their_gemms(ragged):
    problem = Problem.dense(64, 96, 128, dtype="fp16", ragged=ragged, groups=5)
    found = torch_us(sized(problem, [8, 0, 40, 8, 8]), H200)
    ones = [torch_us(replace(problem, ragged="", groups=0, **{ragged: size}), H200) for size in (8, 8, 8, 40)]
    assert found == pytest.approx(sum(ones))
    assert torch_us(sized(problem, [0] * 5), H200) == 0


def test_rows_that_fill_no_tile_cost_as_much_as_a_tile():
    few, many = (sized(Problem.dense(8192, 4096, 4096, layout="nt", ragged="m", groups=64), [size] * 64)
                 for size in (1, 128))  # fmt: skip
    assert 0.9 < torch_us(few, H200) / torch_us(many, H200) < 1


@pytest.mark.parametrize("ragged", ["m", "k"])
def test_empty_groups_cost_nothing_but_the_launch_and_their_zeros(ragged):
    problem = Problem.dense(4096, 4096, 4096, ragged=ragged, groups=4)
    empty, full = (torch_us(sized(problem, [size] * 4), H200) for size in (0, 1024))
    assert empty < full
    if ragged == "m":
        assert empty == pytest.approx(torch_us(sized(problem, [0, 0, 0, 1]), H200), abs=60)


@pytest.mark.parametrize("ragged", ["m", "k"])
def test_nothing_is_known_of_the_errors_of_such_estimates(ragged):
    problem = Problem.dense(4096, 1536, 4096, ragged=ragged, groups=16)
    assert errors.torch_kind(problem) == f"torch groups of {ragged}"
    found = policy.times(problem, H200, errors.of(H200))
    assert found.spread == pytest.approx(2**0.5 * errors.UNKNOWN)
    faster, said = policy.prefers(problem, H200)
    assert faster == (found.torch_us > found.ours_us * 1.1849)
    assert "ours is predicted to take" in said
