"""All families make the same output, bit for bit, of the same sums: `device/epilogue.py` has the operations."""

import pytest
import torch

from tritonmm import families, orders
from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import space
from tritonmm.config import Config
from tritonmm.families.mixed_input.rules import rescales
from tritonmm.launch.interpreter import INTERPRETED
from tritonmm.plan import plan_for
from tritonmm.problem import KINDS, Epilogue, Problem

CONFIGS = [
    Config("tile", 32, 32, 128, 2, 4),
    Config("tile", 64, 64, 32, 2, 4),
    Config("persistent", 128, 64, 64, 2, 4, persistent=True),
    Config("hopper", 64, 64, 128, 2, 4, persistent=True),
    Config("hopper", 64, 64, 32, 2, 4, persistent=True),
    Config("skinny", 16, 32, 128, 2, 4, order=orders.RowMajor()),
    Config("exact", 64, 64, 16, 2, 4),
    Config("mixed_input", 16, 128, 128, 2, 8, persistent=False, order=orders.RowMajor()),  # one program sums all of K
    Config("mixed_input", 128, 256, 128, 2, 8, persistent=False, order=orders.RowMajor()),
]
M, N, K = 20, 72, 256

EPILOGUES = {
    "nothing": Epilogue(),
    "alpha": Epilogue(scaled=True),
    "bias": Epilogue(bias=True),
    "C": Epilogue(c=True),
    "alpha, C": Epilogue(scaled=True, c=True),
    "alpha, bias": Epilogue(scaled=True, bias=True),
    "alpha, bias, C": Epilogue(scaled=True, bias=True, c=True),
}
FIELDS = {
    **{kind: KINDS[kind] for kind in ("bf16-fp32", "fp16-fp32", "fp32", "tf32", "fp64", "bf16-int8-row", "bf16-fp8")},
    **{f"fp8 {scales}": KINDS["fp8-ieee"] | {"scales": scales} for scales in ("tensor", "row")},
    **{f"fp8 {scales}": KINDS["fp8-block"] | {"scales": scales} for scales in ("1x128*128x128", "128x128*1x128")},
    "int8 row": {"dtype": "int8", "scales": "row", "out_dtype": "fp32"},
}


def configs(problem):
    """Those that compute the problem here, and add the sums of scale groups as they are."""
    for config in CONFIGS:
        added = not problem.block_scaled or (config.block_k == problem.group and not rescales(config, problem))
        interpreted = families.family(config.kernel).portable or not INTERPRETED
        if added and interpreted and config.fits(problem, gpus.default()):
            yield config


def outputs(problem, device):
    """Each config and its output: small integers make exact sums in any order."""
    a, b, out = space.operands(problem, device)
    for x in (a, b):
        x.copy_(torch.randint(-4, 5, x.shape, device=device))
    given = {"scales": space.scales(problem, device), "alpha": 1 / 3, "beta": -0.7}
    if problem.epilogue.bias:
        given["bias"] = 1000 * torch.randn(problem.n, device=device)
    if problem.epilogue.c:
        given["c"] = 1000 * torch.randn(problem.m, problem.n, device=device)
    for config in configs(problem):
        yield config, plan_for(problem, config, device)(a, b, out.fill_(float("nan")), **given).clone()


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("kind", FIELDS)
def test_families_agree(kind, epilogue, device):
    fields = {"layout": "nt", "epilogue": EPILOGUES[epilogue]} | FIELDS[kind]
    if fields["dtype"] not in ("int8", "fp64"):
        fields |= {"out_dtype": "fp32"}
    problem = Problem.dense(M, N, K, **fields)
    (first, expected), *others = outputs(problem, device)
    for config, found in others:
        differ = (found != expected).nonzero().tolist()
        assert not differ, (
            f"{len(differ)} elements, the first at {differ[0]}: {found[tuple(differ[0])].item()!r} of {config},"
            f" {expected[tuple(differ[0])].item()!r} of {first}"
        )


def test_scales_of_rows_are_multiplied_before_those_of_columns(device):
    problem = Problem.dense(M, N, K, dtype="int8", out_dtype="fp32", layout="nt", scales="row")
    ones = [torch.ones(shape, device=device) for shape in problem.scale_shapes]
    of_a, of_b = space.scales(problem, device)
    a, b, out = space.operands(problem, device)
    for x in (a, b):
        space.fill(x)
    for config in configs(problem):
        plan = plan_for(problem, config, device)
        sums = plan(a, b, out, scales=tuple(ones)).clone()
        assert torch.equal(plan(a, b, out, scales=(of_a, of_b)), sums * of_a * of_b), str(config)
