"""The registry of kernel families, and a family from outside the package that multiplies without any other change."""

import json
import math
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
from tritonmm.families import tiled_model
from tritonmm.families.family import Bounded
from tritonmm.launch import Plan, strides
from tritonmm.model.time import Time
from tritonmm.orders import RowMajor, SwizzleMerge
from tritonmm.plan import plan_for
from tritonmm.problem import GROUPED_SCALES, KINDS, Problem
from tritonmm.selection import estimated

H200 = gpus.spec("h200")

KIND = {"exact": "fp32", "mixed_input": "bf16-int8"}
"""The kind of a family's typical GEMM, where that is not bf16."""

GROUPS = {"grouped": {"ragged": "m", "groups": 8}}
"""What the problems of a family have that multiplies groups alone."""


def typical(name, m, n, k, **fields):
    """A problem of a family."""
    return Problem.dense(m, n, k, layout="nt", **KINDS[KIND.get(name, "bf16")], **GROUPS.get(name, {}), **fields)


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
    persistent=False,
    complete=True,
    grouped=False,
    dynamic=False,
    defaults={
        "block_m": 1, "block_n": 64, "block_k": 1, "num_stages": 1, "num_warps": 1,
        "order": RowMajor(),
    },
    reason=reason,
    shared_bytes=lambda config, problem: 0,
    passed_over=lambda problem, gpu: "only where it is named",
    candidates=lambda problem, gpu: [Config("rows")],
    bounded=lambda problem, gpu: [Bounded(0.5, [Config("rows")])],
    orders=lambda config, problem, gpu: [],
    estimate=lambda config, problem, gpu: Time(0.5),
    lower_bound=lambda config, problem, gpu: 0.5,
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


TYPICAL = {"exact": ["fp32"], "mixed_input": ["bf16-int8", "bf16-fp8", "bf16-int8-row", "bf16-fp8-row"]}
TYPICAL |= {"hopper": ["bf16", "fp16", "bf16-fp32", "fp16-fp32"], "persistent": ["bf16", "fp16", "bf16-fp32"]}
TYPICAL |= {"grouped": ["bf16", "fp16"]}
TYPICAL |= {"tile": ["bf16", "fp16", "bf16-fp32", "int8", "tf32"], "skinny": ["bf16", "fp16", "fp32", "tf32"]}
"""Kinds of GEMMs for which the default config of each family is legal."""


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name in families.names() for kind in KINDS])
def test_a_default_config_is_legal_or_says_which_field_or_operand_is_in_the_way(name, kind):
    fields = KINDS[kind] | GROUPS.get(name, {})
    is_nt = name == "mixed_input" or fields["dtype"] in ("int8", "fp8e4m3") or fields.get("b_dtype") == "int8p"
    layout = "nt" if is_nt else "nn"
    if "ragged" in fields and fields.get("scales", "") not in GROUPED_SCALES["m"]:
        pytest.skip("groups have no such scales")
    problem = Problem.dense(4096, 4096, 4096, layout=layout, **fields)
    reason = Config(name).fits(problem, H200).reason
    if kind in TYPICAL[name]:
        assert reason == ""
    elif reason:
        fields = ("dtype", "precision", "scales", "layout", "block_m", "block_n", "block_k", "warps", "stages")
        assert any(field in reason for field in fields), reason


@pytest.mark.parametrize("name", families.names())
def test_persistent_is_asked_only_where_it_is_a_choice(name):
    chosen = families.family(name).persistent
    configs = [Config(name, persistent=value) for value in (False, True)]
    if chosen is None:
        assert [config.persistent for config in configs] == [False, True]
        assert [" persistent" in str(config) for config in configs] == [False, True]
        assert [json.loads(config.to_json())["persistent"] for config in configs] == [False, True]
    else:
        assert configs == [Config(name)] * 2
        assert Config(name).persistent is chosen
        assert str(Config(name)).count("persistent") == (name == "persistent")
        assert "persistent" not in json.loads(Config(name).to_json())
    for value in (False, True):  # older files have the field in every config
        older = json.dumps(json.loads(Config(name).to_json()) | {"persistent": value})
        assert Config.from_json(older) == Config(name, persistent=value)


@pytest.mark.parametrize("name", families.names())
def test_candidates_have_an_estimate(name):
    problem = typical(name, 48, 4096, 4096)
    family = families.family(name)
    found = [config for config in family.candidates(problem, H200) if config.fits(problem, H200)]
    assert found
    for config in found:
        assert config.kernel == name
        assert 0 < family.estimate(config, problem, H200).us < math.inf
        assert 0 < family.shared_bytes(config, problem, H200) <= H200.shared_bytes


@pytest.mark.parametrize("name", families.names())
def test_no_order_is_faster_than_the_lower_bound(name):
    family = families.family(name)
    for m, n, k in ((48, 4096, 4096), (3001, 2048, 1024), (300, 300, 20000), (8192, 8192, 512)):
        problem = typical(name, m, n, k)
        for config in family.candidates(problem, H200):
            bound = family.lower_bound(config, problem, H200)
            for each in (config, *family.orders(config, problem, H200)):
                assert bound <= family.estimate(each, problem, H200).us * (1 + 1e-12), (str(each), str(problem))


@pytest.mark.parametrize("name", families.names())
@pytest.mark.parametrize("accumulation", ["any", "invariant"])
def test_no_candidate_is_faster_than_the_bound_it_shares(name, accumulation):
    family = families.family(name)
    for m, n, k in ((48, 4096, 4096), (3001, 2048, 1024), (300, 300, 20000), (8704, 4096, 8192), (2112, 2048, 512)):
        problem = typical(name, m, n, k, accumulation=accumulation)
        found = []
        for bound, configs in family.bounded(problem, H200):
            for config in configs:
                assert bound <= family.lower_bound(config, problem, H200) * (1 + 1e-12), (str(config), str(problem))
                found.append(config)
        assert found == list(family.candidates(problem, H200))


@pytest.mark.parametrize("name", families.names())
@pytest.mark.parametrize("empty", ["m", "n", "k", "batch"])
def test_candidates_of_an_empty_gemm(name, empty):
    fields = KINDS[KIND.get(name, "bf16")] | GROUPS.get(name, {})
    if "groups" in fields and empty == "batch":
        pytest.skip("groups have no batch")
    problem = Problem(**{"m": 300, "n": 256, "k": 512, "layout": "nt"} | fields | {empty: 0})
    family = families.family(name)
    for config in family.candidates(problem, H200):
        assert family.lower_bound(config, problem, H200) <= family.estimate(config, problem, H200).us


def test_what_is_kept_of_a_problem_is_bounded(monkeypatch):
    """And forgetting changes no estimate."""
    monkeypatch.setattr(tiled_model, "MOST_LAUNCHES", 3)
    monkeypatch.setattr(tiled_model, "MOST_ORDERS", 2)
    problem, family = Problem.dense(4321, 1234, 2345), families.family("hopper")
    configs = [c.ordered(SwizzleMerge(f)) for c in list(family.candidates(problem, H200))[:9] for f in range(1, 8)]
    first = [family.estimate(config, problem, H200) for config in configs]
    assert [family.estimate(config, problem, H200) for config in configs] == first
    kept = tiled_model._of(family.estimate.__self__, problem, H200).found
    assert 0 < len(kept) <= 3
    assert all(len(each.moved) <= 2 for each in kept.values() if each)


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
