"""explain: says what would be done, with no GPU and nothing computed."""

import json
import re

import pytest
import torch
from click.testing import CliRunner

import tritonmm
from tritonmm import families
from tritonmm import gpu as gpus
from tritonmm.autotune.measuring.group_sizes import group_sizes
from tritonmm.cli import main
from tritonmm.explanation import Explanation
from tritonmm.model import l2
from tritonmm.model.groups import expected_sizes, sized
from tritonmm.model.torch_time import torch_us
from tritonmm.policy import prefers
from tritonmm.problem import KINDS, Problem
from tritonmm.selection import choose
from tritonmm.torch_ops.grouped_product import chosen

H200 = gpus.spec("h200")


@pytest.mark.parametrize(
    "problem",
    [
        Problem.dense(2049, 8192, 3584, layout="nt"),
        Problem.dense(777, 1001, 3001),
        Problem.dense(8, 8, 8, dtype="fp32"),
    ],
    ids=str,
)
def test_it_says_what_select_and_the_policy_say(problem):
    found = Explanation.of(problem, H200)
    assert found.config == choose(problem, H200)
    assert found.kernel == found.config.kernel
    assert (found.overrides, found.reason) == prefers(problem, H200)
    text = plain(found)
    how = "measured" if found.is_measured else "predicted"
    for said in (problem, found.config, found.traffic, found.why, found.reason, f"{found.us:.1f} us, {how}"):
        assert str(said) in text
    assert list(found.others) == [kernel for kernel in families.names() if kernel != found.kernel]
    for kernel, said in found.others.items():
        assert f"{kernel} {said}" in text
    assert ("enable() tritonmm: " if found.overrides else "enable() torch: ") in text


def plain(found: Explanation) -> str:
    """What is printed, without its line breaks and columns."""
    return " ".join(str(found).split())


def test_others_say_what_they_lack():
    found = Explanation.of(Problem.dense(777, 1001, 0), H200)
    assert found.others["hopper"].startswith("not legal: k is 0")
    assert "waves on 132 SMs" in found.why
    assert "considered only for" in found.others["skinny"]
    assert Explanation.of(Problem.dense(8, 8, 8), H200).why.endswith("1 tile, 0.01 waves on 132 SMs")


SHAPES = ((1, 1, 1), (3, 5, 4), (16, 700, 64), (64, 64, 64), (300, 1000, 520), (4096, 4096, 4096))


@pytest.mark.parametrize("gpu", ["h200", "a100", "b200"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_of_other_kernels_is_true(kind, gpu, user):
    """A shorter estimate is one that is not considered, and what is illegal has a reason of its rules."""
    for shape in SHAPES if gpu != "a100" or "fp8" not in kind else ():  # it multiplies no e4m3
        found = Explanation.of(Problem.dense(*shape, layout="nt", **KINDS[kind]), gpus.spec(gpu))
        for kernel, said in found.others.items():
            us, _, rule = said.partition(" us estimated")
            if "not legal: " in said:
                assert re.search(r"sm_|dtype|scales|bytes|block|registers|split|groups only", said), (
                    f"{kernel}: {found}"
                )
                assert "no tile of" not in said
            else:
                assert float(us) >= round(found.us, 1) or "considered only" in rule, f"{kernel}: {found}"


def test_printed_lines_are_short_and_aligned():
    for args in (["2049", "8192", "3584"], ["1", "1", "1"], ["64", "4352", "4096", "--dtype", "bf16-int8"]):
        lines = CliRunner().invoke(main, ["explain", *args, "--gpu", "h200"]).output.splitlines()
        assert max(map(len, lines)) <= 120, lines
        others = [i for i, line in enumerate(lines) if line.startswith("   others")]
        for line in lines[others[0] : others[0] + 5]:
            assert re.match(
                r"( {11}|   others  )(tile|persistent|hopper|grouped|skinny|exact|mixed_input) +(\d|not legal)", line
            )
            assert line[23] != " "
            assert line[22] == " "


@pytest.mark.parametrize(
    ("shape", "gpu", "warns"),
    [((2**31 - 1, 4096, 4096), "h200", "35,184 GB, more than the 141 GB of h200"), ((4096, 4096, 4096), "h200", ""),
     ((200_000, 200_000, 4096), "h200", ""), ((200_000, 200_000, 4096), "h100", "83 GB, more than the 80 GB of h100")],
)  # fmt: skip
def test_a_product_that_exceeds_the_memory_is_warned_of(shape, gpu, warns):
    text = plain(Explanation.of(Problem.dense(*shape), gpus.spec(gpu)))
    assert ("warning" in text) == bool(warns)
    assert warns in text


def test_times_of_gpus_that_were_not_compared_are_unverified():
    of = {gpu: str(Explanation.of(Problem.dense(512, 512, 512), gpus.spec(gpu))) for gpu in gpus.names()}
    unverified = {gpu for gpu, text in of.items() if "us, predicted (unverified on this GPU)" in text}
    assert unverified == {*of} - {"h200", "h100"}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"dtype": "fp8e5m2", "scales": "tensor"}, "torch's scaled_mm refuses e5m2 by e5m2"),
        ({"dtype": "int8", "scales": "row", "out_dtype": "bf16"}, "no operator for int8 but _int_mm"),
        (KINDS["bf16-int8"], "no overridden operator multiplies bf16 by int8"),
        (KINDS["bf16-fp8-row"], "no overridden operator multiplies bf16 by fp8e4m3"),
        (KINDS["bf16x3"], "torch has no bf16x3"),
        (KINDS["fp16-fp32"], "mm(out_dtype=) is not overridden"),
        (KINDS["fp8"] | {"layout": "nn"}, "takes layout nt"),
        ({"dtype": "int8", "batch": 2}, "_int_mm takes no batch"),
        ({"k": 0}, "empty GEMMs stay with torch"),
        ({"dtype": "fp8e4m3"}, "no operator for fp8 without scales"),
        (KINDS["fp8"], ""), (KINDS["int8"], ""), (KINDS["bf16"], ""), (KINDS["tf32"], ""), (KINDS["fp8-block"], ""),
    ],
    ids=str,
)  # fmt: skip
def test_what_torch_has_no_operator_for_stays_torchs(fields, says):
    problem = Problem.dense(**{"m": 64, "n": 4096, "k": 4096, "layout": "nt"} | fields)
    found = Explanation.of(problem, H200)
    if says:
        assert not found.overrides
        assert says in found.reason
        assert "enable()  torch: " in str(found)
    else:
        assert (found.overrides, found.reason) == prefers(problem, H200)


def test_why_says_how_tiles_are_dealt():
    for m, n, says in ((64, 4352, "in singles"), (128, 4096, "in pairs"), (4096, 4096, "")):
        why = Explanation.of(Problem.dense(m, n, 4096, layout="nt"), H200).why
        assert ("assigned to SMs" in why) == bool(says)
        assert says in why


def test_of_tensors_nothing_is_computed(device):
    a = torch.empty(4, 96, 64, device=device, dtype=torch.bfloat16)
    found = tritonmm.explain(a, torch.empty(32, 64, device=device, dtype=torch.bfloat16).t())
    assert (found.problem.m, found.problem.n, found.problem.k, found.problem.layout) == (384, 32, 64, "nt")
    with pytest.raises(RuntimeError, match="inner dimensions"):
        tritonmm.explain(a, a)
    with pytest.raises(NotImplementedError, match="int8"):
        tritonmm.explain(a.char(), a.char())


def test_the_command():
    result = CliRunner().invoke(main, ["explain", "2049", "8192", "3584", "--layout", "nt", "--gpu", "h200"])
    assert result.exit_code == 0, result.output
    assert result.output == str(Explanation.of(Problem.dense(2049, 8192, 3584, layout="nt"), H200)) + "\n"
    result = CliRunner().invoke(main, ["explain", "64", "64", "64", "--dtype", "tf32", "--batch", "2", "--gpu", "a100"])
    assert "2x64x64x64 nn fp32 tf32 on a100" in result.output


ROWS = Problem.dense(5001, 1536, 2048, layout="nt", ragged="m", groups=128)
PARTS = Problem.dense(1536, 2048, 5001, layout="tn", ragged="k", groups=128)


@pytest.mark.parametrize("problem", [ROWS, PARTS], ids=str)
def test_groups_are_explained_as_they_are_called(problem):
    """The config is that of a call, and what enable() does is decided without the sizes."""
    unknown = Explanation.of(problem, H200)
    assert unknown.config == chosen(problem, H200)
    assert (unknown.overrides, unknown.reason) == prefers(problem, H200)
    assert "expected, as uneven as a router makes them" in plain(unknown)
    expected = sized(problem, expected_sizes(5001, 128))
    assert Explanation.of(expected, H200).us == unknown.us
    for name in ("even", "zipf:1", "one-hot", "empties"):
        sizes = group_sizes(name, 5001, 128)
        found = Explanation.of(sized(problem, sizes), H200)
        assert found.config == unknown.config
        assert found.overrides == unknown.overrides
        assert found.traffic == l2.of(sized(problem, sizes), found.config, H200)
        text = plain(found)
        what = "rows" if problem is ROWS else "elements of K"
        assert f"groups {min(sizes)} to {max(sizes)} {what}, 39.1 on average, {sizes.count(0)} empty config" in text
        assert f"for these torch's is predicted to take {torch_us(sized(problem, sizes), H200):.1f} us" in text
        assert str(found.config.order) in text
        assert "the hopper kernel multiplies no groups" in text


def test_tiles_of_groups_are_those_that_their_sizes_make():
    rows = Explanation.of(ROWS, H200).config.block_m
    whole, nearly = [rows * (5001 // rows), *[0] * 127], [rows, rows + 1, *[0] * 126]
    for sizes, tiles in ((whole, 5001 // rows), ([1] * 128, 128), (nearly, 3), ([0] * 128, 0)):
        found = Explanation.of(sized(ROWS, sizes), H200)
        config = found.config
        assert config.block_m == rows
        assert f": {tiles * -(-1536 // config.block_n)} tiles, " in found.why
        assert found.us > 0


@pytest.mark.parametrize(
    ("a", "b", "sizes", "ragged", "shape"),
    [
        ((50, 32), (3, 32, 16), [40, 0, 10], "m", (50, 16, 32)),
        ((3, 16, 32), (32, 50), [40, 0, 9], "m", (50, 16, 32)),
        ((16, 50), (50, 32), [20, 30], "k", (16, 32, 50)),
    ],
    ids=["rows", "columns", "k"],
)
def test_of_tensors_in_groups(a, b, sizes, ragged, shape, device):
    a, b = (torch.empty(shape, device=device, dtype=torch.bfloat16) for shape in (a, b))
    problem = tritonmm.explain(a, b, groups=sizes).problem
    assert (problem.m, problem.n, problem.k) == shape
    assert (problem.ragged, problem.groups, problem.sizes) == (ragged, len(sizes), tuple(sizes))
    assert tritonmm.explain(a, b, groups=sizes, accumulation="invariant").problem.accumulation == "invariant"


@pytest.mark.parametrize(
    ("a", "b", "sizes", "error", "said"),
    [
        ((50, 32), (3, 32, 16), [50, 0], RuntimeError, "groups has 2 sizes, b is 3x32x16"),
        ((50, 32), (3, 32, 16), [50, 1, 0], ValueError, "51, more than the 50"),
        ((50, 32), (3, 32, 16), [51, -1, 0], ValueError, "3 integers >= 0"),
        ((50, 32), (3, 33, 16), [50, 0, 0], RuntimeError, "inner dimensions"),
        ((3, 50, 32), (3, 32, 16), [1, 1, 1], RuntimeError, "two 3-D operands are a batch"),
        ((16, 50), (50, 32), [], ValueError, "1 to 4096"),
    ],
    ids=str,
)
def test_sizes_that_operands_cannot_have(a, b, sizes, error, said, device):
    with pytest.raises(error, match=said):
        tritonmm.explain(torch.empty(a, device=device), torch.empty(b, device=device), groups=sizes)


def test_torchs_loop_over_groups_is_said():
    for dtype, gpu, says in (("bf16", "h200", False), ("fp16", "h200", True), ("bf16", "a100", True)):
        problem = Problem.dense(512, 512, 512, layout="nt", dtype=dtype, ragged="m", groups=4)
        assert ("one such group after the other" in Explanation.of(problem, gpus.spec(gpu)).reason) == says


def test_the_command_explains_groups():
    args = ["explain", "5001", "1536", "2048", "--layout", "nt", "--gpu", "h200", "--groups", "128"]
    assert CliRunner().invoke(main, args).output == f"{Explanation.of(ROWS, H200)}\n"
    found = Explanation.of(sized(ROWS, group_sizes("zipf:3", 5001, 128)), H200)
    result = CliRunner().invoke(main, [*args, "--sizes", "zipf:3"])
    assert result.output == f"{found}\n"
    assert max(map(len, result.output.splitlines())) <= 120
    said = json.loads(CliRunner().invoke(main, [*args, "--sizes", "zipf:3", "--json"]).output)
    assert tuple(said["problem"]["sizes"]) == found.problem.sizes
    assert said["us"] == found.us
    args = ["explain", "1536", "2048", "5001", "--layout", "tn", "--gpu", "h200", "--groups", "128", "--ragged", "k"]
    assert CliRunner().invoke(main, args).output == f"{Explanation.of(PARTS, H200)}\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sizes", "zipf"], "--sizes: it goes with --groups"),
        (["--ragged", "k"], "--ragged: it goes with --groups"),
        (["--groups", "3", "--batch", "2"], "batch is 2"),
        (["--groups", "5000"], "1 to 4096"),
        (["--groups", "3", "--sizes", "odd"], "one of even, random, zipf"),
        (["--groups", "3", "--dtype", "fp8"], "scales is 'tensor'"),
    ],
    ids=str,
)
def test_options_of_groups_that_do_not_fit(options, said):
    result = CliRunner().invoke(main, ["explain", "64", "64", "64", "--gpu", "h200", *options])
    assert result.exit_code == 2
    assert said in result.output
