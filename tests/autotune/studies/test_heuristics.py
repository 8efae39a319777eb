"""What NVIDIA's heuristics choose becomes legal configs of our kernels, near to it, and is judged by its times."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from tritonmm import gpu as gpus
from tritonmm.autotune.bench import suite
from tritonmm.autotune.measuring import results_file, space
from tritonmm.autotune.measuring.trial import COLUMNS, Trial
from tritonmm.autotune.studies import heuristics, nvidia_heuristics
from tritonmm.autotune.studies.heuristics import Arm
from tritonmm.autotune.studies.nvidia_heuristics import WAYS, first_choice, mapped, spelled
from tritonmm.config import Config
from tritonmm.orders import SwizzleMerge
from tritonmm.selection import estimated

H200 = gpus.spec("h200")
SQUARE = space.problem(4096, 4096, 4096)
PROBLEMS = [e.problem() for name in ("random60", "public") for e in suite.load(name) if e.dtype == "bf16"]


def choice(blocks, stages=4, warp=(64, 64), split_k=1, swizzle=1, by_column=0, cluster=(1, 1)):
    """A `GemmConfig` of the library's, which need not be there."""
    return SimpleNamespace(
        **dict(zip(("cta_tile_m", "cta_tile_n", "cta_tile_k"), blocks, strict=True)),
        **dict(zip(("warp_tile_m", "warp_tile_n"), warp, strict=True)),
        **dict(zip(("cluster_m", "cluster_n"), cluster, strict=True)),
        stages=stages,
        split_k=split_k,
        swizzle_factor=swizzle,
        cta_order=by_column,
    )


@pytest.mark.parametrize("way", WAYS)
def test_first_choices_become_legal_configs_nearby(way):
    pytest.importorskip("nvMatmulHeuristics")
    for problem in PROBLEMS:
        found = first_choice(way, problem, H200)
        config = mapped(found, problem, H200)
        said = f"{problem}: {spelled(found)} became {config}"
        assert config.fits(problem, H200), said
        for ours, theirs in ((config.block_m, found.cta_tile_m), (config.block_n, found.cta_tile_n)):
            assert max(ours, theirs) <= 2 * min(ours, theirs), said


def test_a_choice_is_the_same_when_it_is_asked_for_again():
    pytest.importorskip("nvMatmulHeuristics")
    first = {(way, problem): spelled(first_choice(way, problem, H200)) for way in WAYS for problem in PROBLEMS}
    assert {asked: spelled(first_choice(*asked, H200)) for asked in reversed(first)} == first


HOPPER = Config("hopper", 128, 256, 64, 4, 8, persistent=True, order=SwizzleMerge(1))


@pytest.mark.parametrize(
    ("problem", "found", "config"),
    [
        (SQUARE, choice((128, 256, 64)), HOPPER),
        (SQUARE, choice((128, 256, 64), swizzle=8), replace(HOPPER, order=SwizzleMerge(8))),
        (SQUARE, choice((128, 256, 64), swizzle=4, by_column=1), replace(HOPPER, order=SwizzleMerge(4, along="n"))),
        (SQUARE, choice((128, 256, 64), cluster=(2, 4)), replace(HOPPER, order=SwizzleMerge(2))),
        (SQUARE, choice((128, 256, 64), swizzle=2, by_column=1, cluster=(2, 4)),
         replace(HOPPER, order=SwizzleMerge(8, along="n"))),
        (SQUARE, choice((128, 256, 64), stages=8), HOPPER),
        (SQUARE, choice((128, 80, 64), stages=8), replace(HOPPER, block_n=64, num_stages=8, num_warps=4)),
        (SQUARE, choice((128, 128, 32), split_k=3), replace(HOPPER, block_n=128, split_k=3)),
        (SQUARE, choice((128, 192, 64), split_k=3), replace(HOPPER, block_n=192, num_warps=12, split_k=3)),
        (SQUARE, choice((192, 256, 64), 3, split_k=3), replace(HOPPER, block_m=192, num_stages=3, num_warps=12)),
        (SQUARE, choice((32, 16, 64)), replace(HOPPER, block_m=64, block_n=32, num_warps=4)),
        (SQUARE, choice((16, 32, 64), 5, warp=(16, 16)), Config("tile", 16, 32, 64, 5, 2, order=SwizzleMerge(1))),
        (SQUARE, choice((16, 64, 64), 5, warp=(16, 16), split_k=2),
         Config("skinny", 16, 64, 64, 5, 4, split_k=2, order=SwizzleMerge(1))),
        (space.problem(4095, 4095, 4095), choice((128, 256, 64)), replace(HOPPER, repack="ab")),
    ],
    ids=["as it is", "swizzle", "column-major", "cluster", "swizzled cluster", "fewer stages", "nearest tile",
         "split K", "split K by other warps", "a tile that splits no K", "low", "too low for hopper", "split and low",
         "unaligned"],
)  # fmt: skip
def test_what_is_kept_of_a_choice(problem, found, config):
    assert mapped(found, problem, H200) == config


def test_without_hopper_it_is_the_tile_kernel():
    assert mapped(choice((128, 128, 32)), SQUARE, gpus.spec("a100")).kernel == "tile"


@pytest.mark.parametrize("problem", [space.problem(64, 64, 64, dtype="fp32"), space.problem(64, 64, 64, dtype="fp8")])
def test_other_dtypes_are_refused(problem):
    with pytest.raises(ValueError, match="bf16 and fp16"):
        first_choice("triton", problem, H200)


def test_an_unknown_gpu_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", SimpleNamespace())
    with pytest.raises(ValueError, match=r"h200.*the GPU is mi300x"):
        first_choice("triton", SQUARE, gpus.spec("mi300x"))


def sweep(path, problems):
    trials = [Trial(p, estimated(p, H200).config, "gpu", "burst", "ok", "2026-11-21", 9.0) for p in problems]
    results_file.write(path, {"gpu": "NVIDIA H200"}, list(COLUMNS), [trial.row() for trial in trials])
    return str(path)


def test_without_the_package_the_command_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", None)
    nvidia_heuristics._heuristics.cache_clear()
    result = CliRunner().invoke(heuristics.main, [sweep(tmp_path / "x.csv", [SQUARE])])
    assert result.exit_code == 1
    said = "Error: nvidia-matmul-heuristics is not installed: pip install nvidia-matmul-heuristics\n"
    assert result.output == said


@pytest.mark.skipif(torch.cuda.is_available(), reason="without a GPU")
def test_without_a_gpu_the_configs_are_listed(tmp_path):
    pytest.importorskip("nvMatmulHeuristics")
    path = sweep(tmp_path / "x.csv", [SQUARE, space.problem(100, 200, 300)])
    result = CliRunner().invoke(heuristics.main, [path])
    assert result.exit_code == 0, result.output
    for way in WAYS:
        assert sum(line.split()[:1] == [way] for line in result.output.splitlines()) == 2
        assert spelled(first_choice(way, SQUARE, H200)) in result.output
    refused = CliRunner().invoke(heuristics.main, [path, "--csv", str(tmp_path / "y.csv")])
    assert (refused.exit_code, "need a GPU" in refused.output) == (1, True)


def test_shares_are_of_the_sweeps_best():
    other = space.problem(64, 64, 64)
    near = replace(HOPPER, block_n=64)
    found = [
        *(Arm(SQUARE, "sweep", HOPPER), Arm(SQUARE, "select", HOPPER), Arm(SQUARE, "cutlass3", near, "128x80x64 ...")),
        *(Arm(other, "sweep", near), Arm(other, "select", HOPPER), Arm(other, "cutlass3", near, "128x64x64 ...")),
    ]
    times = {(SQUARE, HOPPER): 10.0, (SQUARE, near): 40.0, (other, near): 8.0, (other, HOPPER): 6.4}
    said = list(heuristics.lines(found, times))
    assert f"        cutlass3      40.00 us  0.250  {near}  near 128x80x64 ..." in said
    assert f"        cutlass3       8.00 us  1.000  {near}  for 128x64x64 ..." in said
    assert "cutlass3: 1 of 2 tiles have other rows or columns than what it chose" in said
    assert f"cutlass3: 2 of 2 problems, geometric mean 0.5000 of the sweep's best, worst 0.250 on {SQUARE}" in said
    assert f"select: 2 of 2 problems, geometric mean 1.1180 of the sweep's best, worst 1.000 on {SQUARE}" in said
    assert "select is 2.236 times as fast as cutlass3: faster on 2, slower on 0" in said


def test_a_problem_whose_best_failed_has_no_shares():
    found = [Arm(SQUARE, "sweep", HOPPER), Arm(SQUARE, "select", replace(HOPPER, num_stages=3))]
    assert not any("geometric mean" in line for line in heuristics.lines(found, {(SQUARE, found[1].config): 9.0}))
