"""Problems as values: dtypes are accepted in torch's spellings wherever they are named."""

import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

import tritonmm
from tritonmm.autotune.bench import suite
from tritonmm.autotune.measuring.trial import problem_json, problem_of
from tritonmm.cli import main
from tritonmm.dtypes import DTYPES
from tritonmm.problem import KINDS, Epilogue, Problem, kind_name

SPELLED = [
    ("bf16", [torch.bfloat16, "torch.bfloat16", "bfloat16"]),
    ("fp16", [torch.float16, "torch.float16", "float16", "half"]),
    ("fp32", [torch.float32, "float32", "float"]),
    ("fp64", [torch.float64, "double"]),
    ("int8", [torch.int8, "torch.int8"]),
    ("fp8e4m3", [torch.float8_e4m3fn, "float8_e4m3fn"]),
    ("fp8e5m2", [torch.float8_e5m2, "float8_e5m2"]),
]


@pytest.mark.parametrize(("name", "spellings"), SPELLED, ids=lambda x: x if isinstance(x, str) else "")
def test_a_problem_takes_torchs_spellings_of_dtypes(name, spellings):
    expected = Problem.dense(64, 48, 32, dtype=name)
    for spelling in (name, *spellings):
        assert Problem.dense(64, 48, 32, dtype=spelling) == expected, spelling
        assert Problem(64, 48, 32, dtype=spelling).dtype == name, spelling
    weights = Problem.dense(64, 48, 32, dtype=torch.bfloat16, b_dtype=torch.int8, out_dtype=torch.float32)
    assert (weights.b_dtype, weights.out_dtype) == ("int8", "fp32")


@pytest.mark.parametrize("name", KINDS)
def test_select_takes_kinds_and_torchs_names_of_them(name):
    assert kind_name(name) == name
    if KINDS[name] == {"dtype": name}:
        assert kind_name(DTYPES[name]) == kind_name(str(DTYPES[name])) == name
        assert tritonmm.select(64, 64, 64, dtype=DTYPES[name], gpu="h200") == tritonmm.select(
            64, 64, 64, dtype=name, gpu="h200"
        )


def test_e4m3_is_the_kind_fp8():
    assert {kind_name(x) for x in (torch.float8_e4m3fn, "float8_e4m3fn", "fp8e4m3", "fp8")} == {"fp8"}


@pytest.mark.parametrize("dtype", ["fp7", torch.int32, torch.float8_e5m2, "", None])
def test_what_is_no_kind_says_which_there_are(dtype):
    with pytest.raises(ValueError, match=r"must be one of bf16, fp16, .*such as bfloat16"):
        kind_name(dtype)


def test_the_command_and_suites_take_them_too(tmp_path):
    said = [
        CliRunner().invoke(main, ["explain", "64", "64", "64", "--gpu", "h200", "--dtype", dtype]).output
        for dtype in ("fp16", "float16", "torch.float16")
    ]
    assert said[0] == said[1] == said[2]
    assert "64x64x64 nn fp16" in said[0]
    entry = {"family": "x", "m": 8, "n": 8, "k": 8, "batch": 1, "layout": "nn", "dtype": "torch.bfloat16"}
    (tmp_path / "mine.json").write_text(json.dumps([entry]))
    assert suite.load(tmp_path / "mine.json")[0].dtype == "bf16"


@pytest.mark.parametrize(
    ("scales", "of_a", "of_b"),
    [("1x128*1x128", (300, 3), (3, 500)), ("1x128*128x128", (300, 3), (3, 4)), ("128x128*1x128", (3, 3), (3, 500))],
)
def test_scales_of_blocks_are_named_as_torch_names_them(scales, of_a, of_b):
    """1x128 is one row of A, or column of B, by 128 elements of K: torch.nn.functional.ScalingType.BlockWise1x128."""
    for block in scales.split("*"):
        assert hasattr(torch.nn.functional.ScalingType, f"BlockWise{block}")
    problem = Problem(300, 500, 300, dtype="fp8e4m3", scales=scales, layout="nt")
    assert problem.scale_shapes == (of_a, of_b)
    assert f"{scales} scales" in str(problem)


@pytest.mark.parametrize(
    ("dtypes", "former", "scales"),
    [
        ("fp8e4m3 fp8e4m3", "1x1", "1x128*1x128"),
        ("fp8e4m3 fp8e4m3", "1x128", "1x128*128x128"),
        ("fp8e4m3 fp8e4m3", "128x1", "128x128*1x128"),
        ("bf16 int8", "1x1", "group"),
    ],
)
def test_former_spellings_of_scales_are_read(dtypes, former, scales):
    dtype, b_dtype = dtypes.split()
    written = json.loads(problem_json(Problem(64, 64, 64, dtype=dtype, b_dtype=b_dtype, scales=scales)))
    assert problem_of(json.dumps(written | {"scales": former})).scales == scales


def test_groups_of_4_bit_weights_are_those_of_packed_words():
    problem = Problem(64, 48, 128, 1, "bf16", layout="nt", b_dtype="int4", scales="group", group=32)
    for fields, wrong in (
        ({"group": 16}, "32 elements of K"),
        ({"b_dtype": "int8", "scales": "group-zero"}, "int4 has"),
        ({"b_dtype": "int8p", "layout": "nn"}, "contiguous along K: 'nt'"),
    ):
        with pytest.raises(ValueError, match=wrong):
            replace(problem, **fields)


def test_products_of_residues():
    problem = Problem(64, 48, 32, 14, "int8", layout="nt", moduli=7)
    assert (problem.out_dtype, problem.sum_dtype, str(problem)) == ("int8", "int32", "14x64x48x32 nt int8 modulo 7")
    for fields, wrong in (
        ({"moduli": 4}, "moduli is 4"),
        ({"batch": 8}, "moduli is 7, batch 8"),
        ({"out_dtype": "int32"}, "residues are int8"),
        ({"k": 131_072}, "k is 131072; .* up to 131071"),
        ({"epilogue": Epilogue(bias=True)}, "nor an epilogue"),
        ({"moduli": 0}, "out_dtype is 'int8'"),
    ):
        with pytest.raises(ValueError, match=wrong):
            replace(problem, **fields)
