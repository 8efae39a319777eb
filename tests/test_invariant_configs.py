"""What invariant accumulation allows: one chain over K, in families and tiles that sum alike."""

import dataclasses
import random

import pytest

from tritonmm import Config, Problem, families
from tritonmm import gpu as gpus
from tritonmm.explanation import Explanation
from tritonmm.model.chunks import chunk_k, chunks
from tritonmm.problem import KINDS, Epilogue
from tritonmm.selection import best, timed
from tritonmm.tuned import Row, Tables

H200 = gpus.spec("h200")
SIZES = (1, 2, 7, 16, 33, 64, 129, 257, 1000, 4096)


def problems(seed: int, count: int, **more):
    draw = random.Random(seed)
    for _ in range(count):
        kind = draw.choice(list(KINDS))
        weights = KINDS[kind].get("b_dtype") not in (None, "fp8e5m2")
        batch = 1 if "scales" in KINDS[kind] else draw.choice((1, 1, 3))
        layout = "nt" if weights else draw.choice(("nn", "nt", "tn", "tt", "sn", "ns"))
        alignments = {f"{name}_alignment": draw.choice((16, 16, 8)) for name in ("a", "b", "out")}
        epilogue = Epilogue(*(draw.random() < 0.3 for _ in range(3)))
        m, n = draw.choice(SIZES), draw.choice(SIZES)
        k = 0 if draw.random() < 0.05 else draw.randrange(1, 17) * draw.choice((1, 16, 128, 1024))
        fields = {"batch": batch, "layout": layout, "epilogue": epilogue, **alignments, **KINDS[kind], **more}
        yield Problem(m, n, k, **fields)


@pytest.mark.parametrize("name", ["h200", "a100", "b200", "mi300x"])
def test_every_problem_has_a_config_that_sums_as_all_others(name):
    gpu = gpus.spec(name)
    for problem in problems(1, 120, accumulation="invariant"):
        if "fp8e4m3" in (problem.dtype, problem.b_dtype) and gpu.is_nvidia and gpu.capability < 89:
            continue  # it has no config at all
        if problem.precision == "tf32x3" and not gpu.is_nvidia:
            continue
        config = best(problem, gpu).config
        assert config.fits(problem, gpu)
        splits = {config.split_k, config.split_tail} - {1}
        assert not problem.fixes_sums or splits <= {chunks(problem)}, f"{problem}: {config}"
        if gpu.capability != 90 and problem.fixes_sums:
            assert config.kernel == "tile"


@pytest.mark.parametrize("name", ["a100", "b200", "mi300x"])
def test_one_tile_sums_on_gpus_where_tiles_were_not_compared(name):
    gpu = gpus.spec(name)
    tiles = {}
    for problem in problems(2, 120, accumulation="invariant"):
        if problem.precision == "tf32x3" and not gpu.is_nvidia:
            continue
        if not problem.fixes_sums or not timed(dataclasses.replace(problem, accumulation="any"), gpu):
            continue
        config = best(problem, gpu).config
        kind = problem.dtype, problem.b_dtype, problem.precision, problem.group
        tiles.setdefault(kind, set()).add((config.block_m, config.block_n, config.block_k, config.num_warps))
    assert len(tiles) > 6
    assert all(len(found) == 1 for found in tiles.values()), tiles


WAYS = {
    "split-K": (Config("hopper", split_k=2), "one program sums all of K"),
    "split tail": (Config("hopper", split_tail=2), "one program sums all of K"),
    "skinny split-K": (Config("skinny", split_k=2), "one program sums all of K"),
    "GEMV on CUDA cores": (Config("skinny", block_m=1, block_n=16, block_k=128), "at least 16 rows and columns"),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_changes_bits_is_illegal(way):
    config, reason = WAYS[way]
    problem = Problem.dense(64, 4096, 4096, layout="nt")
    assert config.fits(problem, H200), config.fits(problem, H200).reason
    assert reason in config.fits(dataclasses.replace(problem, accumulation="invariant"), H200).reason


def test_programs_that_share_tiles_are_illegal_for_8_bit_weights():
    problem = Problem.dense(64, 4096 + 128, 4096, layout="nt", **KINDS["bf16-int8-row"])
    shared = Config("mixed_input", block_m=64, block_n=128, block_k=128, num_stages=4, num_warps=8, persistent=True)
    assert shared.fits(problem, H200)
    fixed = dataclasses.replace(problem, accumulation="invariant")
    assert "share" in shared.fits(fixed, H200).reason
    assert best(fixed, H200).config.split_k == 1


def test_integers_may_be_summed_in_any_order():
    problem = Problem.dense(256, 256, 65536, dtype="int8", layout="nt", accumulation="invariant")
    config = best(problem, H200).config
    assert config.split_k * config.split_tail > 1
    assert "exact in any order" in Explanation.of(problem, H200).accumulation


def test_a_tuned_row_serves_where_its_config_is_legal():
    """Rows measured with any accumulation are as good, unless they split K; those for invariant ones come first."""
    problem = Problem.dense(256, 256, 14336, layout="nt")
    fixed = dataclasses.replace(problem, accumulation="invariant")
    split = Row(problem, Config("hopper", split_k=16), 20.0, "0.1.0", "3.6", "2026-11-20")
    whole = Row(problem, Config("hopper", block_m=64, num_warps=4, block_n=64), 60.0, "0.1.0", "3.6", "2026-11-19")
    own = Row(fixed, Config("hopper", block_m=64, num_warps=4, block_n=32), 50.0, "0.1.0", "3.6", "2026-11-18")
    assert Tables([split, whole]).exact(fixed) == [split, whole]
    assert Tables([split, whole, own]).exact(fixed)[0] == own
    assert own not in Tables([split, own]).exact(problem)
    assert own not in Tables([split, own]).near(problem)
    assert own in Tables([split, own]).near(dataclasses.replace(fixed, m=250))


def test_explain_says_what_it_costs():
    problem = Problem.dense(256, 256, 65536, layout="nt")
    free = Explanation.of(problem, H200)
    assert free.accumulation == "any; invariant accumulation would sum 16 chunks of K"
    found = Explanation.of(dataclasses.replace(problem, accumulation="invariant"), H200)
    assert found.accumulation.startswith("invariant: 16 chunks of 4096 elements of K; +")
    assert found.accumulation.endswith(f"% of the {free.us:.1f} us of {free.config}")
    split = Explanation.of(Problem.dense(16, 384, 15040), H200)
    assert split.accumulation.startswith(f"any; split_tail is {split.config.split_tail}; with invariant")
    assert (found.overrides, found.reason) == (True, "invariant accumulation is tritonmm's")
    large = Explanation.of(Problem.dense(4096, 4096, 4096), H200)
    assert large.accumulation == "any; this config has the sums of invariant accumulation"


def test_unknown_accumulation():
    with pytest.raises(ValueError, match="accumulation is 'same'; it must be any or invariant"):
        Problem(1, 1, 1, accumulation="same")


@pytest.mark.parametrize("family", families.names())
def test_any_accumulation_forbids_nothing(family):
    """What is legal with the demand is legal without."""
    for problem in problems(3, 20):
        for config in timed(dataclasses.replace(problem, accumulation="invariant"), H200, family):
            assert config.fits(problem, H200)


@pytest.mark.parametrize(
    ("k", "chunk"), [(1, 0), (16383, 0), (16384, 4096), (131072, 4096), (131073, 8192), (600_000, 20480)]
)
def test_chunks_depend_on_k_alone(k, chunk):
    for m, n, layout, batch in ((1, 1, "nt", 1), (4096, 50257, "tn", 3)):
        for kind in ("bf16", "fp16", "bf16-fp32", "tf32", "fp8"):
            problem = Problem(m, n, k, batch, layout=layout, accumulation="invariant", **KINDS[kind])
            assert chunk_k(problem) == chunk
            assert chunks(problem) == (-(-k // chunk) if chunk else 1) <= 32
            assert chunk_k(dataclasses.replace(problem, accumulation="any")) == 0


@pytest.mark.parametrize("kind", ["fp32", "fp64", "int8", "tf32x3", "fp8-ieee", "fp8-block", "bf16-int8-row"])
def test_other_sums_have_no_chunks(kind):
    assert chunk_k(Problem(64, 64, 65536, accumulation="invariant", **KINDS[kind])) == 0


def test_scaled_groups_have_no_chunks_whatever_their_precision():
    """`use_fast_accum` changes nothing there: each group is added to the sum of all before it, so nothing may split."""
    fields = KINDS["fp8-block"] | {"precision": "fast"}
    problem = Problem.dense(256, 256, 65536, layout="nt", accumulation="invariant", **fields)
    assert chunks(problem) == 1
    assert "one program sums all of K" in Config("hopper", 128, 128, 128, split_k=16).fits(problem, H200).reason


INT8_BLOCK = {"int8-block": {"dtype": "int8", "out_dtype": "bf16", "scales": "1x128*128x128"}}
STEPS = {
    "fp8 through mma.sync, as fp16": ("fp8", Config("tile", 32, 64, 128), "8-bit weights needs wgmma"),
    "accurate fp8 through mma.sync": (
        "fp8-ieee",
        Config("tile", 16, 64, 128, num_warps=4),
        "8-bit weights needs wgmma",
    ),
    "fp8 by two warps": ("fp8-row", Config("tile", 64, 64, 128, num_warps=2), "8-bit weights needs wgmma"),
    "accurate fp8, added each 64": ("fp8-ieee", Config("tile", 64, 64, 64, num_warps=4), "block_k is 64"),
    "fp8 of scaled groups, added each 32": ("fp8-block", Config("tile", 64, 64, 32, num_warps=4), "block_k is 32"),
    "int8 of scaled groups, added each 64": ("int8-block", Config("tile", 64, 64, 64, num_warps=4), "block_k is 64"),
    "weights of scaled groups, added each 32": ("bf16-int8", Config("tile", 16, 32, 32, num_warps=2), "block_k is 32"),
}


@pytest.mark.parametrize("step", STEPS)
def test_steps_that_change_bits_are_illegal(step):
    """Partial sums are those of wgmma over 128 elements of K or a scale group. mma.sync multiplies fp8 as fp16."""
    kind, config, reason = STEPS[step]
    problem = Problem.dense(64, 4096, 4096, layout="nt", **(KINDS | INT8_BLOCK)[kind])
    assert config.fits(problem, H200), config.fits(problem, H200).reason
    fixed = dataclasses.replace(problem, accumulation="invariant")
    assert reason in config.fits(fixed, H200).reason
    assert dataclasses.replace(config, block_m=64, block_k=128, num_warps=4).fits(fixed, H200)


@pytest.mark.parametrize("group", [16, 32, 64, 128])
@pytest.mark.parametrize("alignment", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("kind", ["bf16-int8", "bf16-fp8"])
def test_a_step_is_a_scale_group_for_every_alignment(kind, alignment, group):
    for m, n in ((1, 4096), (16, 64), (300, 1000)):
        problem = Problem(
            m, n, 1024, layout="nt", group=group, a_alignment=max(2, alignment), b_alignment=alignment,
            accumulation="invariant", **KINDS[kind],
        )  # fmt: skip
        config = best(problem, H200).config
        assert config.block_k == group or config.kernel == "mixed_input", f"{problem}: {config}"


def test_weights_are_multiplied_in_the_order_of_k():
    """mma.sync takes the K of 8-bit weights in another order than wgmma, which the other kernels use."""
    problem = Problem.dense(16, 4096, 4096, layout="nt", accumulation="invariant", **KINDS["bf16-int8"])
    for config in (Config("skinny", 16, 16, 128, num_warps=2), Config("skinny", 16, 32, 128, num_warps=4)):
        assert "another order of K" in config.fits(problem, H200).reason
    wide = Config("skinny", 16, 64, 128, num_warps=4)
    assert wide.fits(problem, H200), wide.fits(problem, H200).reason
    assert "needs wgmma: at least 64 rows and 4 warps" in Config("tile", 16, 64, 128, 4, 4).fits(problem, H200).reason


def test_a_long_k_may_be_split_by_its_chunks_alone():
    problem = Problem.dense(256, 256, 65536, layout="nt", accumulation="invariant")
    for splits, legal in ((1, True), (2, False), (8, False), (16, True), (32, False)):
        for field in ("split_k", "split_tail"):
            config = Config("hopper", 128, 128, 64, num_stages=6, **{field: splits})
            assert bool(config.fits(problem, H200)) == legal, config.fits(problem, H200).reason
    for other in (Config("tile"), Config("persistent"), Config("skinny", block_m=16)):
        assert "16 chunks" in other.fits(problem, H200).reason
    wide = Config("hopper")  # 128x256: a thread has no registers for a second accumulator of 128 sums
    assert "256 accumulator registers" in wide.fits(problem, H200).reason
