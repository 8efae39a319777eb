"""The registry of kernel families, and a family from outside the package that multiplies without any other change."""

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import triton
import triton.language as tl

import tritonmm
from tritonmm import families
from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.launch import Plan, strides
from tritonmm.orders import RowMajor
from tritonmm.plan import plan_for
from tritonmm.problem import KINDS, Problem
from tritonmm.select import estimated

H200 = gpus.spec("h200")

KIND = {"exact": "fp32", "mixed_input": "bf16-int8"}
"""The kind of a family's typical GEMM, where that is not bf16."""


@triton.jit
def rows_kernel(
    a, b, out, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, stride_om, stride_on, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for i in range(k):
        acc += tl.load(a + row * stride_am + i * stride_ak) * tl.load(
            b + i * stride_bk + cols * stride_bn, mask=cols < n
        )
    tl.store(out + row * stride_om + cols * stride_on, acc, mask=cols < n)


@dataclass(frozen=True, slots=True)
class RowsPlan(Plan):
    kernel: ClassVar[Any] = rows_kernel

    def arguments(self, a, b, out, alpha=1.0, beta=1.0, c=None, bias=None, scales=None):
        p = self.problem
        spans = *strides(a)[1:], *strides(b)[1:], *strides(out)[1:]
        return (a, b, out, p.m, p.n, p.k, *spans), {"BLOCK": self.config.block_n}


def reason(config, problem, gpu):
    if (
        problem.dtype != "fp32"
        or problem.batch > 1
        or any((problem.epilogue.scaled, problem.epilogue.bias, problem.epilogue.c))
    ):
        return "the rows kernel computes a bare fp32 product"
    return "" if problem.n <= config.block_n else f"block_n is {config.block_n}; all {problem.n} columns must fit"


ROWS = SimpleNamespace(
    name="rows",
    portable=True,
    complete=True,
    defaults={
        "block_m": 1, "block_n": 64, "block_k": 1, "num_stages": 1, "num_warps": 1, "persistent": False,
        "order": RowMajor(),
    },
    reason=reason,
    shared_bytes=lambda config, problem: 0,
    passed_over=lambda problem, gpu: "only where it is named",
    candidates=lambda problem, gpu: [(0.5, Config("rows"))],
    estimate=lambda config, problem, gpu: 0.5,
    adapted=lambda config, tuned_for, problem, gpu: [],
    plan=lambda problem, config, gpu, device: RowsPlan.of(problem, config, device, problem.m),
    describe=lambda config, problem, gpu: ["a program a row"],
)  # fmt: skip


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.setattr(families, "_REGISTERED", {})
    families.register(ROWS)
    return ROWS


def test_a_family_from_outside_multiplies(rows):
    a, b = torch.randn(7, 33), torch.randn(33, 50)
    config = Config("rows")
    assert str(config) == "rows 1x64x1 stages:1 warps:1 row-major"
    torch.testing.assert_close(tritonmm.mm(a, b, config=config), a @ b)
    assert estimated(Problem.dense(7, 50, 33, dtype="fp32"), H200, "rows").config == config
    assert Config.from_json(config.to_json()) == config
    with pytest.raises(ValueError, match="all 65 columns must fit"):
        tritonmm.mm(a, torch.randn(33, 65), config=config)
    assert "rows" in families.names()


def test_a_name_is_registered_once(rows):
    families.register(rows)
    for name in ("rows", families.portable(), *families.FORMER_NAMES):
        with pytest.raises(ValueError, match="is registered already"):
            families.register(SimpleNamespace(name=name))


def test_an_unknown_name_says_which_there_are():
    with pytest.raises(ValueError, match="kernel is 'cubes'; it must be one of tile, persistent, hopper"):
        Config("cubes")
    with pytest.raises(ValueError, match="kernel is 3; it must be one of"):
        Config(3)


@pytest.mark.parametrize("name", families.names())
def test_a_config_of_a_family_is_legal_by_default(name):
    problem = Problem.dense(
        4096, 4096, 4096, layout="nt" if name == "mixed_input" else "nn", **KINDS[KIND.get(name, "bf16")]
    )
    assert Config(name).fits(problem, H200).reason == ""


@pytest.mark.parametrize("name", families.names())
def test_candidates_have_the_estimate_of_the_family(name):
    problem = Problem.dense(48, 4096, 4096, layout="nt", **KINDS[KIND.get(name, "bf16")])
    family = families.family(name)
    found = [(us, config) for us, config in family.candidates(problem, H200) if config.fits(problem, H200)]
    assert found
    for us, config in found:
        assert config.kernel == name
        assert family.estimate(config, problem, H200) == pytest.approx(us)
        assert 0 < family.shared_bytes(config, problem) <= H200.shared_bytes


def test_former_names_are_read():
    for former, name in families.FORMER_NAMES.items():
        config = Config(name)
        spelled = json.dumps(json.loads(config.to_json()) | {"kernel": former})
        assert Config.from_json(spelled) == config
        assert Config(former) == config
        assert replace(config, kernel=former) == config


def test_what_the_interpreter_cannot_run_says_what_it_can():
    problem = Problem.dense(64, 64, 64)
    portable = ", ".join(name for name in families.names() if families.family(name).portable)
    with pytest.raises(ValueError, match=f"the hopper kernel does not run in Triton's interpreter; {portable} do"):
        plan_for(problem, Config("hopper", 64, 64, 64, 4, 4), torch.device("cpu"))
