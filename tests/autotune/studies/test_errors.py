"""The study of errors: its reference is exact, exact kinds have none, and it tells modes apart."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from click.testing import CliRunner

from tritonmm.autotune.measuring import results_file
from tritonmm.autotune.studies import errors
from tritonmm.plan import INTERPRETED
from tritonmm.problem import KINDS

CPU = torch.device("cpu")
SMALL = ("--shape", "32", "48", "256")


@pytest.mark.parametrize("k", [1, 5, 300])
def test_a_float64_product_is_compared_exactly(k):
    """Each error of torch's float64 is what fractions say, though elements differ by up to 2^40, or cancel."""
    a, b = (torch.randn(*size).double() * torch.randint(-20, 20, size).double().exp2() for size in ((3, k), (k, 2)))
    a, b = a / 3, b / 3  # 53 bits
    a[2], b[: k // 2] = 0, b[k - k // 2 :]
    out = a @ b
    found = errors.difference(out, a, b)
    for i in range(3):
        for j in range(2):
            pairs = [(Fraction(x), Fraction(y)) for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True)]
            wrong = Fraction(out[i, j].item()) - sum(x * y for x, y in pairs)
            left = abs(Fraction(found[i, j].item()) - wrong)
            longest = max(abs(x) for x, _ in pairs) * max(abs(y) for _, y in pairs)
            assert left <= abs(wrong) / 2**52 + k * longest / 2**70, (i, j, float(wrong), found[i, j].item())


def test_measures_of_a_known_error():
    """Of ones by ones, one element of four is off by 1 in 16."""
    a, b = torch.ones(2, 16).double(), torch.ones(16, 2).double()
    out = torch.tensor([[16, 16], [16, 17]])
    assert errors.errors(out, a, b) == (0.0625, round(1 / 32, 5))
    unwritten = torch.tensor([[16.0, math.nan], [16, 16]])
    assert all(map(math.isnan, errors.errors(unwritten, a, b)))


def cut(x, bits):
    """fp32 with so many bits behind the leading 1."""
    return (x.contiguous().view(torch.int32) & -(1 << (23 - bits))).view(torch.float32)


def test_products_in_three_parts_are_told_from_those_of_inputs_cut_once():
    a, b = torch.randn(64, 512), torch.randn(512, 48)
    large = [cut(x, 10).double() for x in (a, b)]
    small = [cut(x - cut(x, 10), 10).double() for x in (a, b)]
    once = large[0] @ large[1]
    thrice = (once + large[0] @ small[1] + small[0] @ large[1]).float()
    rows = [
        errors.Row(kind, "fp32", "normal", *errors.errors(out, a.double(), b.double()))
        for kind, out in (("tf32", once.float()), ("tf32x3", thrice))
    ]
    assert rows[0].rms > 100 * rows[1].rms > 0
    (said,) = errors.closer(rows)
    assert said.startswith("tf32x3 closer than tf32, normal operands: ")
    assert not list(errors.closer(rows[1:]))


def test_every_kind_is_compared_and_narrow_outputs_in_fp32_too():
    found = list(errors.products(KINDS, 32, 48, 256))
    assert {kind for kind, _ in found} == set(KINDS)
    assert len({problem for _, problem in found}) == len(found)
    assert [problem.out_dtype for kind, problem in found if kind == "bf16-int8-row"] == ["bf16", "fp32"]
    assert [problem.out_dtype for _, problem in errors.products(["fp16"], 32, 48, 256)] == ["fp16", "fp32"]


@pytest.mark.skipif(not INTERPRETED, reason="runs on the CPU")
def test_the_command_prints_a_table_and_writes_the_file(tmp_path):
    result = CliRunner().invoke(
        errors.main, ["--kinds", "int8,bf16-int8-row,fp32,tf32,tf32x3", *SMALL, "--csv", str(tmp_path / "errors.csv")]
    )
    assert result.exit_code == 0, result.output
    about, columns, rows = results_file.read(tmp_path / "errors.csv")
    assert about["shape"] == "32x48x256 nt"
    assert "tf32x3 closer than tf32, positive operands" in about
    assert columns[:5] == ["kind", "output", "operands", "largest", "rms"]
    assert len(rows) == 12
    by = {(row["kind"], row["output"], row["operands"]): row for row in rows}
    for operands in errors.OPERANDS:
        assert float(by["int8", "int32", operands]["largest"]) == float(by["int8", "int32", operands]["torch_rms"]) == 0
        assert 0 < float(by["fp32", "fp32", operands]["largest"]) < 2**-20
        wide, narrow = (by["bf16-int8-row", out, operands] for out in ("fp32", "bf16"))
        assert 0 < float(wide["rms"]) < 2**-20 < 2**-11 < float(narrow["rms"]) < 2**-8
        # torch's weights are rounded once more, after their scales.
        assert float(narrow["rms"]) < float(narrow["torch_rms"])
        assert "torch refused" in wide["message"]
    lines = result.output.splitlines()
    assert lines[0] == errors.HEADER
    assert {len(line) for line in lines[:13]} == {len(errors.HEADER)}


def test_an_output_that_is_not_written_shows(monkeypatch):
    (_, problem), *_ = errors.products(["fp32"], 16, 16, 32)
    monkeypatch.setattr(errors, "bound_launch", lambda *_: lambda a, b, out: None)
    monkeypatch.setattr(errors, "choose", lambda *_: None)
    row = errors.measure("fp32", problem, "normal", CPU)
    assert math.isnan(row.largest)


def test_unknown_kinds_are_refused():
    result = CliRunner().invoke(errors.main, ["--kinds", "fp32,fp7"])
    assert result.exit_code == 2
    assert "'fp7' is not one of bf16, fp16" in result.output


def test_numbers_that_are_missing_line_up():
    row = errors.Row("bf16-int8-row", "bf16", "positive", 1e-3, 0.0)
    assert len(errors.line(row)) == len(errors.line(replace(row, torch_largest=1.0, torch_rms=2.0)))


@pytest.mark.gpu
def test_tf32x3_is_100_times_closer_than_tf32(device):
    rows = [
        errors.measure(kind, problem, "normal", device)
        for kind, problem in errors.products(["tf32", "tf32x3"], *errors.SHAPE)
    ]
    assert rows[0].rms >= 100 * rows[1].rms, rows


@pytest.mark.gpu
@pytest.mark.parametrize("named", errors.OPERANDS)
def test_int8_is_exact_and_torch_says_so(named, device):
    ((_, problem),) = errors.products(["int8"], *errors.SHAPE)
    row = errors.measure("int8", problem, named, device)
    assert (row.largest, row.rms, row.torch_largest, row.torch_rms) == (0, 0, 0, 0)
