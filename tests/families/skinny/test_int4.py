"""int4 weights in the skinny kernel: every code, kind of scales, edge and split; and where it is considered."""

import itertools
from dataclasses import replace

import pytest
import torch
from bounds import assert_within
from measured import H200
from pairs import all_pairs
from promises import assert_right

from tritonmm import gpu as gpus
from tritonmm import tuned
from tritonmm.autotune.measuring.verify import Check, scaled
from tritonmm.config import Config
from tritonmm.dtypes import DTYPES
from tritonmm.nn import int4
from tritonmm.orders import RowMajor
from tritonmm.plan import plan_for
from tritonmm.problem import KINDS, Problem
from tritonmm.selection import best_by, choose, timed

PARTED = [(8, 16, 256, 2, 2), (16, 32, 128, 2, 2), (8, 32, 512, 2, 4), (8, 64, 64, 2, 2)]
"""Few and many parts of K in a step, of 16 to 64 rows of weights."""

SIZES = [(1, 70, 200), (3, 65, 257), (9, 33, 64), (1, 5, 32), (2, 40, 1000)]

KINDS_OF_SCALES = [("row", 128), ("group", 64), ("group", 128), ("group-zero", 64), ("group-zero", 128)]

KINDS_OF_INT4 = ["bf16-int4", "bf16-int4-zero", "bf16-int4-row"]


def config(blocks, split_k=1):
    return Config("skinny", *blocks, split_k, order=RowMajor())


def problem(m, n, k, dtype="bf16", scales="group-zero", group=128, **fields):
    aligned = {"a_alignment": 2, "b_alignment": 2, "out_alignment": 2}
    return Problem(m, n, k, dtype=dtype, b_dtype="int4", scales=scales, group=group, layout="nt", **aligned | fields)


def multiplied(asked, x, codes, scale_b, found):
    """The product of x and packed codes, (n, k), in a poisoned output."""
    out = torch.full((asked.m, asked.n), float("nan"), dtype=DTYPES[asked.out_dtype], device=x.device)
    plan_for(asked, found, x.device)(x, int4.pack(codes).t(), out, scales=(None, scale_b))
    return out


@pytest.mark.parametrize(("scales", "blocks", "dtype"), all_pairs(KINDS_OF_SCALES, PARTED, ["bf16", "fp16"]), ids=str)
def test_edges_and_splits(scales, blocks, dtype, device):
    for i, (m, n, k) in enumerate(SIZES):
        split_k = min(1 + i % 3, -(-k // blocks[2]))
        assert_right(problem(m, n, k, dtype, *scales), config(blocks, split_k), device)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("zero", [0, 3, 8, 15])
def test_every_code_has_its_value_at_every_place(zero, dtype, device):
    k = 128
    x = torch.eye(k, dtype=DTYPES[dtype], device=device)
    codes = (torch.arange(16, device=device)[:, None] + torch.arange(k, device=device) // 7) % 16
    scale = int4.with_zero_points(torch.full((16, 1), 0.5), torch.full((16, 1), zero)).view(torch.float32)
    out = multiplied(problem(k, 16, k, dtype), x, codes, scale.t().to(device), config((16, 16, 128, 2, 1)))
    assert torch.equal(out.float(), (codes.t().float() - zero) * 0.5)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("scales", ["row", "group", "group-zero"])
def test_a_common_offset_does_not_cancel(scales, dtype, device):
    """Weights that are 0 add exactly nothing, however large their codes and activations are, and others keep the bound.
    A kernel that takes the zero point off sums instead of weights fails here."""
    n, k = 33, 1000
    asked = problem(3, n, k, dtype, scales)
    generator = torch.Generator().manual_seed(0)
    x = (24 * torch.rand(3, k, generator=generator) - 13).exp2()  # all above 0, and no fp32 sum of them is exact
    x[:, 517] = 1e-3
    x = x.to(DTYPES[dtype]).to(device)
    zero = torch.randint(16, asked.scale_shapes[1], generator=generator)
    scale = torch.rand(asked.scale_shapes[1], generator=generator).bfloat16().float() / 1024
    zero_of = torch.full((n, k), int4.ZERO)
    if scales == "group-zero":
        zero_of = zero.t().repeat_interleave(128, 1)[:, :k].long()
        scale = int4.with_zero_points(scale, zero).view(torch.float32)
    scale = scale.to(device)
    for blocks in PARTED[:2]:
        assert not multiplied(asked, x, zero_of.to(device), scale, config(blocks)).any()
        one = zero_of.clone()
        one[:, 517] ^= 1
        for codes in (one, torch.randint(16, (n, k), generator=generator)):
            out = multiplied(asked, x, codes.to(device), scale, config(blocks))
            a, b = scaled(asked, x, int4.pack(codes.to(device)).t(), (None, scale))
            assert_within(out, a @ b, a.abs() @ b.abs(), torch.full_like(a[:, :1], k))


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul:RuntimeWarning")  # NumPy, in the interpreter
def test_infinities_and_nans_stay_in_their_rows(device):
    asked = problem(5, 40, 300)
    x = torch.randn(5, 300, device=device).bfloat16()
    x[1, -1], x[3, 0] = float("nan"), float("inf")
    scale = torch.ones(asked.scale_shapes[1], device=device)
    finite = multiplied(asked, x, torch.full((40, 300), 9, device=device), scale, config(PARTED[0], 2)).isfinite()
    assert finite.all(1).tolist() == finite.any(1).tolist() == [True, False, True, False, True]


@pytest.mark.parametrize("blocks", PARTED, ids=str)
def test_views_of_weights_and_repeated_launches(blocks, device):
    """Rows of packed weights that are cut out of longer ones, at addresses that 2 bytes divide and 4 do not."""
    n, k = 33, 320
    codes = torch.randint(16, (n, k), device=device)
    board = torch.zeros(n, 256, dtype=torch.uint8, device=device)
    view = board[:, 34 : 34 + k // 2]
    view.copy_(int4.pack(codes))
    x = torch.randn(2, k, device=device).bfloat16()
    scale = torch.rand(3, n, device=device)
    outs = []
    for weight in (view, view, view.contiguous()):
        out = torch.full((2, n), float("nan"), dtype=torch.bfloat16, device=device)
        asked = Problem.of(x, weight.t(), out, scales="group")
        asked = replace(asked, b_dtype="int4", b_alignment=2)
        plan_for(asked, config(blocks), device)(x, weight.t(), out, scales=(None, scale))
        outs.append(out)
    assert not outs[0].isnan().any()
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


@pytest.mark.parametrize(
    ("blocks", "fields", "gpu", "says"),
    [
        ((8, 16, 512, 3, 4), {}, "h200", ""),
        ((8, 16, 512, 3, 4), {}, "a100", ""),
        ((1, 16, 512, 3, 4), {}, "h200", "at least 8x16"),
        ((8, 16, 512, 3, 4), {}, "mi300x", "needs sm_80"),
        ((64, 16, 64, 3, 2), {}, "h200", "streams B"),
        ((8, 16, 512, 3, 8), {}, "h200", "4 parts of K and 16 rows"),
        ((8, 16, 32, 3, 1), {}, "h200", "at least 64 of int4"),
        ((8, 16, 512, 3, 4), {"group": 32}, "h200", "at least 64 of int4"),
        ((64, 256, 512, 2, 4), {}, "h200", "accumulator registers"),
        ((8, 64, 2048, 8, 16), {}, "h200", "bytes of shared memory exceed"),
        ((8, 16, 512, 3, 4), {"b_alignment": 1}, "h200", "words of 2 bytes"),
        ((8, 16, 512, 3, 4), {"accumulation": "invariant"}, "h200", "invariant accumulation"),
    ],
)
def test_what_does_not_fit_says_why(blocks, fields, gpu, says):
    fit = config(blocks).fits(problem(1, 4096, 4096, scales="group", **fields), gpus.spec(gpu))
    assert bool(fit) == (not says)
    assert says in fit.reason


@pytest.mark.parametrize("gpu", [name for name in gpus.names() if gpus.spec(name).is_nvidia])
@pytest.mark.parametrize("kind", KINDS_OF_INT4)
def test_decode_steps_have_configs(kind, gpu):
    for m, (n, k) in itertools.product((1, 8, 16), ((1024, 4096), (4096, 14336), (128256, 4096))):
        asked = Problem.dense(m, n, k, layout="nt", **KINDS[kind])
        found = list(timed(asked, gpus.spec(gpu), "skinny"))
        assert found
        assert len(set(found)) == len(found)
        assert all(found.block_m == (8 if m <= 8 else 16) for found in found)


@pytest.mark.parametrize("kind", KINDS_OF_INT4)
def test_what_is_not_timed_replaces_nothing_that_is(kind):
    """On Hopper, where the mixed-input kernel was measured. Searches try the skinny kernel's configs."""
    for m, n, k in itertools.product((1, 4, 16), (512, 4096, 14336, 128256), (128, 512, 4096, 14336)):
        asked = Problem.dense(m, n, k, layout="nt", **KINDS[kind])
        assert choose(asked, H200).kernel != "skinny", asked
        assert any(found.kernel == "skinny" for found in timed(asked, H200)), asked


def test_a_tuned_table_may_choose_it():
    asked = Problem.dense(1, 4096, 4096, layout="nt", **KINDS["bf16-int4"])
    row = tuned.Row(asked, config((8, 16, 512, 4, 4)), 5.0, "0.1.0", "3.9", "2026-11-27")
    found = best_by(asked, H200, "", tuned.Tables([row]))
    assert (found.config, found.is_measured) == (row.config, True)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS_OF_INT4)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 4096, 14336), (1, 6144, 4096), (4, 1024, 4096), (13, 14336, 4096)])
def test_every_candidate(m, n, k, kind, device):
    for dtype in ("bf16", "fp16"):
        asked = Problem.dense(m, n, k, layout="nt", **KINDS[kind] | {"dtype": dtype})
        check = Check(asked, device)
        found = list(timed(asked, gpus.default(), "skinny"))
        assert found
        for each in found:
            ratio = check.error_ratio(plan_for(asked, each, device))
            assert ratio <= 1, f"{each} on {asked}: error {ratio} times its bound"
