"""Configs, problems and GPUs as values: what is legal, what round-trips, what is refused."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from random_products import unsupported

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.autotune.measuring.trial import problem_json
from tritonmm.config import Config
from tritonmm.families.exact import rules as sliced
from tritonmm.families.exact.rules import warp_grid
from tritonmm.families.hopper import rules as hopper
from tritonmm.model import l2
from tritonmm.problem import KINDS, Epilogue, Problem
from tritonmm.selection import choose, timed

H200 = gpus.spec("h200")
power = st.sampled_from([16, 32, 64, 128, 256])
configs = st.builds(
    Config,
    block_m=power,
    block_n=power,
    block_k=power,
    num_stages=st.integers(1, 6),
    num_warps=st.sampled_from([1, 2, 4, 8]),
    persistent=st.booleans(),
    cluster=st.sampled_from(["", "m", "n"]),
    repack=st.sampled_from(["", "a", "b", "ab"]),
    order=st.sampled_from(["row-major", "hilbert", "swizzle-merge:16,8@n", "split-merge:3"]).map(orders.parse),
)
problems = st.builds(
    lambda kind, batch, **fields: Problem(**kind | fields, batch=min(batch, 1) if "scales" in kind else batch),
    kind=st.sampled_from([*(x for x in KINDS.values() if x.get("b_dtype") != "int8p"), {"dtype": "fp8e5m2"}]),
    m=st.integers(0, 20_000),
    n=st.integers(0, 20_000),
    k=st.integers(0, 20_000),
    batch=st.integers(0, 40),
    layout=st.sampled_from(["nn", "nt", "tn", "tt", "ns"]),
    a_alignment=st.sampled_from([1, 2, 4, 8, 16]),
    b_alignment=st.sampled_from([1, 2, 4, 8, 16]),
)


@given(configs)
def test_config_round_trips_through_json(config):
    assert Config.from_json(config.to_json()) == config
    assert hash(Config.from_json(config.to_json())) == hash(config)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"block_m": "128"}', "block_m is '128'"),
        ('{"block_m": true}', "block_m is True"),
        ('{"num_warps": 0}', "num_warps is 0"),
        ('{"kernel": "cublas"}', "'cublas'"),
        ('{"persistent": 1}', "persistent is 1"),
        ('{"order": "zigzag"}', "'zigzag'"),
        ('{"cluster": "k"}', "cluster is 'k'"),
        ('{"cluster": 2}', "cluster is 2"),
        ('{"repack": "c"}', "repack is 'c'"),
        ('{"repack": true}', "repack is True"),
        ('{"order": 8}', "8"),
        ('{"blok_m": 128}', "'blok_m'"),
        ("[1]", "list"),
        ("{", "Expecting"),
    ],
)
def test_bad_json_names_the_field(text, says):
    with pytest.raises(ValueError, match=says):
        Config.from_json(text)


def test_a_changed_config_is_a_new_one_of_the_same_fields():
    config = Config("hopper")
    changed = config.changed(split_k=2, order=orders.parse("hilbert"))
    assert changed == replace(config, split_k=2, order=orders.parse("hilbert"))
    assert hash(changed) == hash(replace(config, split_k=2, order=orders.parse("hilbert")))
    assert config == Config("hopper")
    with pytest.raises(AttributeError, match="splits"):
        config.changed(splits=2)


def test_a_table_has_no_json():
    with pytest.raises(ValueError, match="no spelling"):
        Config(order=orders.Table([(0, 0)])).to_json()


@pytest.mark.parametrize(
    ("config", "problem", "says"),
    [
        (Config(block_m=96), Problem(1, 1, 1), "block_m is 96"),
        (Config(block_k=8), Problem(1, 1, 1), "at least 16"),
        (Config(num_warps=32), Problem(1, 1, 1), "num_warps is 32"),
        (Config(split_k=2), Problem(1, 1, 1), "split_k, split_tail are 2, 1"),
        (Config("hopper", num_stages=4, persistent=True), Problem(1, 1, 1, dtype="fp32"), "dtype is fp32"),
        (Config("hopper", num_stages=4, persistent=True), Problem(1, 1, 1, layout="sn"), "layout is sn"),
        (Config("hopper", num_stages=4, persistent=True), Problem(1, 1, 1, b_alignment=2), "b is aligned to 2 bytes"),
        (Config("hopper", num_stages=4, persistent=True), Problem(1, 1, 0), "k is 0"),
        (Config("hopper", num_stages=1, persistent=True), Problem(1, 1, 1), "num_stages is 1"),
        (Config("hopper", num_stages=4, num_warps=6, persistent=True), Problem(1, 1, 1), "num_warps is 6"),
        (Config("hopper", block_m=192, num_warps=8, num_stages=4), Problem(1, 1, 1), "192x256"),
        (Config("hopper", block_n=256, block_k=128, num_stages=4, persistent=True), Problem(1, 1, 1), "shared memory"),
        (Config("hopper", num_stages=4, persistent=True, split_k=3), Problem(1, 1, 128), "split_k is 3; there are 2"),
        (
            Config("hopper", num_stages=4, persistent=True, split_k=2, split_tail=2),
            Problem(1, 1, 128),
            "there is no tail",
        ),
        (
            Config("hopper", block_n=192, num_warps=12, num_stages=4, persistent=True),
            Problem(64, 1023, 64, out_alignment=2, epilogue=Epilogue(c=True)),
            "spills registers: 128 rows, 12 warps",
        ),
        (
            Config("hopper", 192, 256, num_warps=12, num_stages=3, persistent=True),
            Problem(64, 1023, 64, out_alignment=2),
            "192x256 leaves no registers",
        ),
        (
            Config("hopper", 128, 320, num_stages=3, split_tail=2, persistent=True),
            Problem(64, 1024, 128),
            "two N-subtiles, of 256 + 64 columns",
        ),
        (Config("hopper", 64, 80, num_warps=4, num_stages=4, persistent=True), Problem(1, 1, 1), "a multiple of 32"),
        (Config(num_stages=8), Problem(1, 1, 1), "exceed the 232448 of h200"),
        (Config(block_m=256, block_n=256), Problem(1, 1, 1), "accumulator registers"),
        (Config(block_m=16, block_n=16), Problem(2**20, 2**20, 1), "programs exceed"),
        (Config(order=orders.Table([(0, 0)])), Problem(129, 1, 1), "grid of 2 x 1"),
    ],
)
def test_what_does_not_fit_says_why(config, problem, says):
    fit = config.fits(problem, H200)
    assert not fit
    assert says in fit.reason


BYTES = Config("hopper", 128, 256, 128, 4, 8, persistent=True)


@pytest.mark.parametrize(
    ("config", "fields", "says"),
    [
        (BYTES, {"dtype": "int8", "layout": "nn"}, "layout is nn; tensor cores take int8 as nt, and repack"),
        (BYTES, {"dtype": "fp32", "precision": "tf32", "layout": "tt"}, "take fp32 as nt"),
        (BYTES, {"dtype": "fp64", "layout": "nt"}, "dtype is fp64 ieee"),
        (BYTES, {"dtype": "fp32", "precision": "tf32x3"}, "dtype is fp32 tf32x3"),
        (BYTES, {"dtype": "bf16", "b_dtype": "int8"}, "operands of one size"),
        (replace(BYTES, block_k=256, num_stages=2), {"dtype": "fp8e4m3", "layout": "nt"}, "need steps of 128"),
        (replace(BYTES, block_n=192), {"dtype": "fp8e4m3", "layout": "nt"}, "and one N-subtile"),
        (
            replace(BYTES, block_n=192),
            {"dtype": "fp8e4m3", "layout": "nt", "scales": "1x128*128x128"},
            "and one N-subtile",
        ),
        (
            replace(BYTES, block_m=192, num_warps=12, num_stages=3),
            {"dtype": "fp8e4m3", "layout": "nt"},
            "one N-subtile",
        ),
        (BYTES, {"dtype": "fp8e4m3", "layout": "nt", "scales": "1x128*1x128"}, "224 accumulator registers"),
        (BYTES, {"dtype": "fp8e4m3", "layout": "nt", "epilogue": Epilogue(c=True)}, "256 accumulator registers"),
        (BYTES, {"dtype": "fp8e4m3", "layout": "nt", "out_alignment": 2}, "no registers to add sums in fp32"),
        (BYTES, {"dtype": "int8", "layout": "nt", "scales": "1x128*128x128"}, "scales groups of fp8"),
        (replace(BYTES, block_k=64), {"dtype": "int8", "layout": "nt"}, "block_k is 64; 128 or 256"),
        (replace(BYTES, cluster="m"), {"dtype": "int8", "layout": "nt"}, "of bf16 or fp16"),
        (BYTES, {"dtype": "int8", "layout": "nt", "scales": "row", "batch": 2}, "batch is 2; a GEMM with scales"),
        (Config(block_k=16), {"dtype": "int8"}, "at least 32 of int8"),
        (Config(), {"dtype": "bf16", "b_dtype": "int8", "scales": "group", "group": 32}, "divide the 32 elements"),
        (Config(block_m=32, block_n=32, block_k=256, num_stages=1), {"dtype": "fp8e4m3"}, "every 128 elements"),
        (Config(), {"dtype": "int8", "a_alignment": 1}, "loaded one by one"),
        (Config("persistent", persistent=True), {"dtype": "int8"}, "multiplies bf16 and fp16"),
    ],
    ids=str,
)
def test_what_other_dtypes_do_not_fit_says_why(config, fields, says):
    fit = config.fits(Problem(64, 64, 256, **fields), H200)
    assert not fit
    assert says in fit.reason


def test_dtypes_that_a_gpu_lacks():
    small = Config(block_m=32, block_n=32, block_k=32, num_stages=2, num_warps=4)
    e4m3, e5m2 = (Problem(64, 64, 64, dtype=dtype) for dtype in ("fp8e4m3", "fp8e5m2"))
    assert "needs sm_89" in small.fits(e4m3, gpus.spec("a100")).reason
    assert small.fits(e5m2, gpus.spec("a100"))
    assert small.fits(e4m3, gpus.spec("rtx4090"))
    split = Problem(64, 64, 64, dtype="fp32", precision="tf32x3")
    assert "mi300x has no tf32" in small.fits(split, gpus.spec("mi300x")).reason
    assert small.fits(split, H200)


SLICED = Config("exact", 64, 64, 16, 3, 4)


@pytest.mark.parametrize(
    ("config", "fields", "gpu", "says"),
    [
        (SLICED, {}, "mi300x", "mi300x is gfx942"),
        (SLICED, {"dtype": "bf16"}, "h200", "dtype is bf16 ieee"),
        (SLICED, {"precision": "tf32"}, "h200", "dtype is fp32 tf32"),
        (SLICED, {"dtype": "fp64"}, "a100", "a100 is sm_80"),
        (replace(SLICED, block_m=96), {}, "h200", "block_m is 96"),
        (replace(SLICED, split_tail=2), {}, "h200", "split_tail is 2"),
        (replace(SLICED, split_k=17), {}, "h200", "split_k is 17; there are 16 steps of K"),
        (replace(SLICED, split_k=2), {"dtype": "fp64"}, "h200", "parts of fp64"),
        (replace(SLICED, num_stages=1), {}, "h200", "num_stages is 1"),
        (replace(SLICED, block_k=64), {}, "h200", "block_k at most 32"),
        (replace(SLICED, block_k=8), {"dtype": "fp64"}, "h200", "at least 32x32x16"),
        (replace(SLICED, block_n=16), {}, "h200", "at least 16x32x8"),
        (replace(SLICED, num_warps=16), {}, "h200", "16 warps do not divide 64x64"),
        (replace(SLICED, num_warps=1), {}, "h200", "128 sums a thread"),
        (replace(SLICED, num_warps=2), {"dtype": "fp64"}, "h200", "64 sums a thread"),
        (replace(SLICED, num_stages=99), {}, "h200", "shared memory"),
        (replace(SLICED, block_m=128), {"a_alignment": 4}, "h200", "24 copies a thread, of 1 elements"),
        (replace(SLICED, block_m=128, block_n=128, num_warps=8), {"a_alignment": 8}, "h200", "copies of 8 bytes"),
        (replace(SLICED, cluster="m"), {}, "h200", "has no clusters"),
    ],
    ids=str,
)
def test_what_the_sliced_kernel_cannot_do_says_why(config, fields, gpu, says, monkeypatch):
    monkeypatch.setattr(sliced, "HAS_FP64", True)
    assert says in config.fits(Problem(64, 64, 256, **{"dtype": "fp32"} | fields), gpus.spec(gpu)).reason


WEIGHTS = Config("mixed_input", 64, 256, 128, 4, 8, persistent=True, order=orders.RowMajor())


@pytest.mark.parametrize(
    ("config", "fields", "gpu", "says"),
    [
        (WEIGHTS, {}, "b200", "b200 is sm_100"),
        (WEIGHTS, {"b_dtype": "bf16"}, "h200", "dtypes are bf16 and bf16"),
        (WEIGHTS, {"layout": "nn"}, "h200", "layout is nn"),
        (WEIGHTS, {"batch": 2}, "h200", "batch is 2"),
        (WEIGHTS, {"scales": "tensor"}, "h200", "scales are tensor"),
        (WEIGHTS, {"scales": "group", "group": 32}, "h200", "one or two scale groups, of 32 elements"),
        (
            WEIGHTS,
            {"scales": "group", "group": 64, "dtype": "fp16"},
            "h200",
            "no registers for the operands and for the scales of groups of K",
        ),
        (WEIGHTS, {"b_alignment": 8}, "h200", "b is aligned to 8 bytes"),
        (WEIGHTS, {"k": 0}, "h200", "k is 0"),
        (WEIGHTS, {"m": 2**20, "n": 2**20, "k": 2**20}, "h200", "8192 steps of K are too many for 132 programs"),
        (
            replace(WEIGHTS, split_tail=2, block_m=128, num_stages=3),
            {"m": 132 * 128},
            "h200",
            "the last round has 0 tiles of 2 steps of K for 132 programs",
        ),
        (
            replace(WEIGHTS, split_tail=2, block_m=32),
            {},
            "h200",
            "only persistent programs whose tiles are otherwise whole",
        ),
        (
            replace(WEIGHTS, split_tail=2, persistent=False),
            {},
            "h200",
            "only persistent programs whose tiles are otherwise whole",
        ),
        (replace(WEIGHTS, split_tail=3, block_m=128, num_stages=3), {}, "h200", "1 and 2 are legal"),
        (replace(WEIGHTS, split_tail=2, block_m=72), {}, "h200", "1 where a tile has several subtiles"),
        (
            replace(WEIGHTS, split_tail=2, block_m=256, block_n=128, num_stages=2),
            {"b_dtype": "int4", "scales": "row"},
            "h200",
            "with int4 or scale groups it needs block_k of 64",
        ),
        (replace(WEIGHTS, split_k=2), {}, "h200", "persistent programs take 1"),
        (replace(WEIGHTS, split_k=3, persistent=False), {}, "h200", "there are 2 steps"),
        (replace(WEIGHTS, num_stages=1), {}, "h200", "num_stages is 1"),
        (replace(WEIGHTS, num_stages=9), {}, "h200", "shared memory"),
        (replace(WEIGHTS, num_warps=12), {}, "h200", "block_n and num_warps are 256 and 12"),
        (replace(WEIGHTS, block_m=16, block_n=64, num_warps=4, block_k=256), {}, "h200", "with a block_n of 64"),
        (replace(WEIGHTS, num_warps=2, block_k=64), {"scales": "group"}, "h200", "num_warps are 256 and 2"),
        (
            replace(WEIGHTS, block_n=192, num_warps=12, block_k=64),
            {"scales": "group"},
            "h200",
            "scale groups, of 128 elements of K each, need at least 128 here",
        ),
        (replace(WEIGHTS, block_k=32), {}, "h200", "64, 128 and 256 are legal"),
        (replace(WEIGHTS, block_m=56), {}, "h200", "block_m is 56; 8, 16, 24, 32, 40, 48, 64, 72"),
        (
            replace(WEIGHTS, block_m=72, block_n=192, num_warps=12),
            {},
            "h200",
            "block_m is 72, 64 + 8; several subtiles need 8 warps",
        ),
        (
            replace(WEIGHTS, block_m=208, block_n=128, block_k=128, num_stages=3),
            {"epilogue": Epilogue(c=True)},
            "h200",
            "block_m is 208, 128 + 64 + 16; three subtiles leave registers only without C",
        ),
        (
            replace(WEIGHTS, block_m=16, block_k=64),
            {"scales": "group"},
            "h200",
            "scale groups, of 128 elements of K each, need at least 128 here",
        ),
        (replace(WEIGHTS, block_k=64), {"scales": "group", "dtype": "fp16"}, "h200", "need at least 128 here"),
        (
            replace(WEIGHTS, block_m=256, block_n=128),
            {"scales": "group", "dtype": "fp16"},
            "h200",
            "registers for the operands and for the scales of groups of K",
        ),
        (replace(WEIGHTS, block_m=192), {}, "h200", "no registers for the operands"),
        (replace(WEIGHTS, block_m=128, num_stages=3), {"scales": "group"}, "h200", "for a scale group of weights"),
        (replace(WEIGHTS, block_n=192, num_warps=12), {"epilogue": Epilogue(c=True)}, "h200", "add C"),
        (replace(WEIGHTS, cluster="m"), {}, "h200", "has no clusters"),
    ],
    ids=str,
)
def test_what_the_weights_kernel_cannot_do_says_why(config, fields, gpu, says):
    problem = Problem(**{"m": 64, "n": 64, "k": 256, "b_dtype": "int8", "layout": "nt"} | fields)
    assert says in config.fits(problem, gpus.spec(gpu)).reason
    for config in (WEIGHTS, replace(WEIGHTS, split_k=2, persistent=False)):
        assert config.fits(Problem(64, 64, 256, b_dtype="int8", layout="nt"), H200)


@pytest.mark.parametrize("scales", ["", "row", "group"])
@pytest.mark.parametrize("m", [4, 16, 17, 33, 64, 65, 200, 4096])
def test_rows_beside_weights_of_a_byte_take_the_kernel_that_streams_them(m, scales):
    fields = {"layout": "nt", "b_dtype": "int8", "scales": scales}
    problem = Problem.dense(m, 28672, 4096, **fields)
    found = timed(problem, H200)
    assert choose(problem, H200) == next(iter(found))
    assert next(iter(found)).kernel == "mixed_input"
    assert all(config.fits(problem, H200) for config in found)
    for other, gpu in (
        (problem, gpus.spec("b200")),
        (Problem.dense(m, 28672, 4096, **fields | {"layout": "nn"}), H200),
        (Problem.dense(m, 28672, 4096, layout="nt"), H200),
    ):
        assert "mixed_input" not in {config.kernel for config in timed(other, gpu)}


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt", "ns"])
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_exact_products_are_sliced_where_they_can_be(dtype, layout):
    for alignment in (8, 16):
        alignments = {"a_alignment": alignment, "b_alignment": alignment}
        for m, n, k in ((4096, 4096, 4096), (1000, 4096, 77), (65, 130, 1024)):
            problem = Problem(m, n, k, dtype=dtype, layout=layout, **alignments)
            config = choose(problem, H200)
            assert config.kernel == ("tile" if dtype == "fp64" and not sliced.HAS_FP64 else "exact")
            assert (config.persistent, config.repack) == (False, "")
    assert choose(Problem(4096, 4096, 4096, dtype=dtype), gpus.spec("mi300x")).kernel == "tile"


@given(configs, st.sampled_from(["fp32", "fp64"]))
def test_warps_divide_a_tile_evenly(config, dtype):
    rows, cols = warp_grid(config, Problem(1, 1, 1, dtype=dtype))
    unit_m, unit_n = (16, 8) if dtype == "fp64" else (16, 32)
    possible = config.num_warps <= (config.block_m // unit_m) * (config.block_n // unit_n)
    assert (rows * cols == config.num_warps) == possible
    if possible:
        assert config.block_m % (rows * unit_m) == config.block_n % (cols * unit_n) == 0


def cluster(axis, block_m=256, block_n=256, **fields):
    return Config("hopper", block_m, block_n, **{"num_stages": 3, "persistent": True, "cluster": axis} | fields)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (Config(cluster="m"), "the tile kernel has no clusters"),
        (cluster("m", split_k=2), "split_k, split_tail are 2, 1"),
        (cluster("n", split_tail=2), "split_k, split_tail are 1, 2"),
        (cluster("m", block_k=128, block_n=128), "block_k is 128"),
        (cluster("m", block_n=64), "block_n is 64; in a cluster:m it must be a multiple of 128"),
        (cluster("n", block_m=64), "block_m is 64; in a cluster:n it must be a multiple of 128"),
        (cluster("m", block_m=257), "block_m is 257; in a cluster:m it must be a multiple of 2"),
        (cluster("n", block_n=64), "needs 64 columns"),
        (cluster("m", num_warps=4), "two N-subtiles, of 128 + 128 columns; clusters and split K need one"),
        (cluster("m", num_stages=5), "shared memory"),
    ],
)
def test_what_no_cluster_can_do_says_why(config, says):
    assert says in config.fits(Problem(4096, 4096, 4096), H200).reason


@pytest.mark.parametrize("axis", ["m", "n"])
def test_clusters_fit_only_a_triton_that_has_them(axis, monkeypatch):
    monkeypatch.setattr(hopper, "HAS_CLUSTERS", True)
    assert cluster(axis).fits(Problem(4096, 4096, 4096), H200)
    monkeypatch.setattr(hopper, "HAS_CLUSTERS", False)
    assert "needs Triton 3.9" in cluster(axis).fits(Problem(4096, 4096, 4096), H200).reason


def test_a_cluster_is_one_program_of_two_sms():
    problem = Problem(8192, 8192, 4096)
    assert cluster("m").cta_tile == (128, 256)
    assert cluster("n").cta_tile == (256, 128)
    assert cluster("m").tiles(problem) == (32, 32)
    assert l2.concurrent(problem, cluster("m"), H200) == 66
    assert cluster("m").shared_bytes(problem, H200) == replace(cluster(""), block_m=128).shared_bytes(problem, H200)


def test_what_fits_is_true():
    fit = Config().fits(Problem(4096, 4096, 4096), H200)
    assert fit
    assert fit.reason == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"m": -1}, "m is -1"),
        ({"k": 2.0}, "k is 2.0"),
        ({"dtype": "brain16"}, "'brain16'"),
        ({"precision": "high"}, "'high'"),
        ({"layout": "row"}, "'row'"),
        ({"a_alignment": 3}, "a_alignment is 3"),
        ({"dtype": "int32"}, "outputs only"),
        ({"dtype": "bf16", "b_dtype": "fp16"}, "dtypes are bf16 and fp16"),
        ({"dtype": "int8", "b_dtype": "fp8e4m3"}, "dtypes are int8 and fp8e4m3"),
        ({"dtype": "fp64", "out_dtype": "fp32"}, "for fp64 operands it must be one of fp64"),
        ({"dtype": "bf16", "precision": "tf32"}, "for bf16 it must be one of ieee"),
        ({"dtype": "int8", "scales": "column"}, "'column'"),
        ({"group": 48}, "group is 48"),
    ],
)
def test_bad_problem_names_the_field(arguments, says):
    with pytest.raises(ValueError, match=says):
        Problem(**({"m": 1, "n": 1, "k": 1} | arguments))


def test_unknown_gpu_lists_the_known():
    with pytest.raises(ValueError, match=r"'tpu'.*h200"):
        gpus.spec("tpu")


def test_problem_of_tensors_reads_layout_and_alignment():
    buffer = torch.zeros(65 * 64 + 8, dtype=torch.bfloat16)
    aligned = buffer[: 64 * 64].view(64, 64)
    odd = buffer[1 : 1 + 64 * 64].view(64, 64)
    ragged = buffer[: 63 * 65].view(63, 65)
    assert buffer.data_ptr() % 16 == 0
    assert Problem.of(aligned, aligned, aligned).layout == "nn"
    assert Problem.of(aligned, aligned.t(), aligned).layout == "nt"
    assert Problem.of(aligned[:, ::2], aligned.t()[:32], aligned).layout == "st"
    assert Problem.of(aligned, aligned, aligned).alignment == 16
    assert (Problem.of(odd, aligned, aligned).a_alignment, Problem.of(odd, aligned, aligned).b_alignment) == (2, 16)
    assert Problem.of(odd, aligned, aligned).alignment == Problem.of(aligned, odd, aligned).alignment == 2
    assert Problem.of(ragged.t(), ragged, torch.zeros(65, 65)).alignment == 2
    assert Problem.of(aligned[:, :60], aligned[:60], aligned).alignment == 16


def test_problem_counts_its_work():
    problem = Problem(m=3, n=5, k=7, batch=2)
    assert problem.flops == 2 * 2 * 3 * 5 * 7
    assert problem.compulsory_bytes == 2 * 2 * (3 * 7 + 7 * 5 + 3 * 5)
    assert json.loads(Config().to_json())["order"] == "swizzle-merge:8"


def test_kinds_and_problems_name_each_other():
    for name, fields in KINDS.items():
        problem = Problem(64, 64, 64, layout="nt", **fields)
        assert problem.kind == name
        assert Problem(**json.loads(problem_json(problem)) | {"epilogue": Epilogue()}) == problem
    assert Problem(1, 1, 1, dtype="fp8e5m2").kind == "fp8e5m2-fp8e5m2-bf16-ieee"


def test_operands_of_different_sizes_are_counted_each():
    problem = Problem(3, 5, 256, dtype="bf16", b_dtype="int8", scales="group")
    assert (problem.operand_bytes("a"), problem.operand_bytes("b")) == (3 * 256 * 2, 5 * 256)
    assert problem.scale_shapes == (None, (2, 5))
    assert Problem(130, 5, 200, dtype="fp8e4m3", scales="128x128*1x128").scale_shapes == ((2, 2), (2, 5))


@given(problems, st.sampled_from(gpus.names()), st.sampled_from(["", "tile"]))
def test_select_is_legal_for_every_problem_on_every_gpu(problem, name, kernel):
    gpu = gpus.spec(name)
    assume(not unsupported(problem, gpu))
    config = choose(problem, gpu, kernel)
    assert config.fits(problem, gpu)
    assert kernel in ("", config.kernel)


def test_a_former_field_name_still_loads():
    text = Config(repack="ab").to_json().replace('"repack"', '"relayout"')
    assert Config.from_json(text) == Config(repack="ab")
