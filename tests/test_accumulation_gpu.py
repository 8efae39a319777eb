"""A Hopper GPU gives the bits that `tritonmm.accumulation` computes, on random and adversarial operands."""

import itertools

import pytest
import torch
from adversarial import kinds, operands

import tritonmm
from tritonmm.accumulation import verify
from tritonmm.config import Config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="the bits are a Hopper's"
    ),
]

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LINES = 200
"""Rows of A and columns of B: neither fills its last tile."""

EVERY = 10**9
ONE = torch.ones(1)

UNSPLIT = {
    torch.bfloat16: [Config("hopper", 128, 128, 64), Config("hopper", 64, 64, 128), Config("tile", 64, 64, 64)],
    torch.float16: [Config("hopper", 128, 128, 64), Config("hopper", 128, 64, 64), Config("tile", 64, 64, 32)],
    torch.float32: [Config("hopper", 128, 128, 32), Config("hopper", 64, 64, 64), Config("tile", 64, 64, 32)],
}


def sets(dtype: torch.dtype, *depths: int):
    """(name, A, transpose of B) for each kind of operands and each K."""
    for kind, k in itertools.product(kinds(dtype), depths):
        yield f"{kind}, k={k}", *operands(kind, dtype, LINES, k, seed=k)


@pytest.mark.parametrize(
    ("dtype", "config"),
    [(dtype, config) for dtype, configs in UNSPLIT.items() for config in configs],
    ids=lambda x: f"{x.kernel}-{x.block_m}x{x.block_n}x{x.block_k}" if isinstance(x, Config) else str(x)[6:],
)
def test_sums_of_tensor_cores(dtype, config):
    """Over 800,000 sums of each config."""
    checked = 0
    precision = "tf32" if dtype == torch.float32 else ""
    for name, a, w in sets(dtype, 40, 264, 1024):
        found = tritonmm.mm(
            a.cuda(), w.cuda().T, out_dtype=torch.float32, precision=precision, config=config, accumulation="invariant"
        )
        verdict = verify(a, w.T, found, precision=precision, samples=EVERY)
        assert verdict, f"{name}: {verdict}"
        checked += verdict.checked
    assert checked >= 800_000


@pytest.mark.parametrize("k", [16376, 16384])  # the longest K of one chain, and the shortest of chunks
@pytest.mark.parametrize("dtype", UNSPLIT, ids=lambda x: str(x)[6:])
def test_long_sums_of_tensor_cores(dtype, k):
    for kind in kinds(dtype):
        a, w = (x[: LINES // 2] for x in operands(kind, dtype, LINES, k, seed=k))
        precision = "tf32" if dtype == torch.float32 else ""
        found = tritonmm.mm(
            a.cuda(), w.cuda().T, out_dtype=torch.float32, precision=precision, accumulation="invariant"
        )
        assert_verified(a, w.T, found, precision=precision)


@pytest.mark.parametrize("fast", [False, True], ids=["accurate", "fast"])
@pytest.mark.parametrize("dtypes", [(E4M3, E4M3), (E5M2, E5M2), (E4M3, E5M2)], ids=["e4m3", "e5m2", "mixed"])
def test_sums_of_fp8(dtypes, fast):
    """Over 800,000 sums of each mode. Fast sums are no invariant accumulation, but unsplit they have these bits."""
    checked = 0
    mode = {} if fast else {"accumulation": "invariant"}
    one = ONE.cuda()
    for (name, a, _), (_, _, w) in zip(*(sets(dtype, 48, 272, 1040) for dtype in dtypes), strict=True):
        found = tritonmm.scaled_mm(
            a.cuda(), w.cuda().T, one, one, out_dtype=torch.float32, use_fast_accum=fast,
            config=Config("hopper", 128, 128, 128), **mode,
        )  # fmt: skip
        precision = "fast" if fast else "ieee"
        verdict = verify(a, w.T, found, scale_a=ONE, scale_b=ONE, precision=precision, samples=EVERY)
        assert verdict, f"{name}: {verdict}"
        checked += verdict.checked
    assert checked >= 800_000


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(
    ("rows", "cols"), [(0, 0), (1, 1), (-1, 1), (-1, -128), (-128, -1)],
    ids=["tensor", "row", "1x128*1x128", "1x128*128x128", "128x128*1x128"],
)  # fmt: skip
def test_scales_and_bias(rows, cols, biased, out_dtype):
    """rows, cols: that share a scale; 0: all of them. Negative: each 128 elements of K have scales of their own."""
    m, n, k = 200, 328, 720
    a, w = random(m, k, dtype=E4M3), random(n, k, dtype=E4M3)
    groups = 6 if rows < 0 else 1
    scale_a = random(-(-m // abs(rows)) if rows else 1, groups)
    scale_b = random(groups, -(-n // abs(cols)) if cols else 1)
    bias = random(n, dtype=torch.bfloat16) if biased else None
    for fast in (False, True) if rows >= 0 else (False,):
        mode = {} if fast else {"accumulation": "invariant"}
        config = Config("hopper", 128, 128, 128) if fast else None
        found = tritonmm.scaled_mm(
            a.cuda(), w.cuda().T, scale_a.cuda(), scale_b.cuda(), bias if bias is None else bias.cuda(),
            out_dtype=out_dtype, use_fast_accum=fast, config=config, **mode,
        )  # fmt: skip
        precision = "fast" if fast else "ieee"
        assert_verified(a, w.T, found, bias=bias, scale_a=scale_a, scale_b=scale_b, precision=precision)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (1 / 3, 1), (1, 0.7), (1 / 3, 0.7)])
@pytest.mark.parametrize("shape", [(200, 328), (328,), (200, 1)], ids=["matrix", "vector", "column"])
def test_alpha_beta_c(dtype, alpha, beta, shape):
    a, b, c = random(200, 264, dtype=dtype), random(264, 328, dtype=dtype), random(*shape, dtype=dtype)
    for precision in ("tf32", "ieee") if dtype == torch.float32 else ("",):
        found = tritonmm.addmm(
            c.cuda(), a.cuda(), b.cuda(), alpha=alpha, beta=beta, precision=precision, accumulation="invariant"
        )
        assert_verified(a, b, found, alpha=alpha, beta=beta, precision=precision, c=c)


def test_batches():
    a, b = random(3, 70, 264, dtype=torch.bfloat16), random(3, 264, 130, dtype=torch.bfloat16)
    assert_verified(a, b, tritonmm.bmm(a.cuda(), b.cuda(), accumulation="invariant"))


@pytest.mark.parametrize("m", [1, 16, 200])
def test_int8(m):
    a, w = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((m, 272), (328, 272)))
    assert_verified(a, w.T, tritonmm.int_mm(a.cuda(), w.cuda().T, accumulation="invariant"))
    scales = random(m, 1), random(1, 328)
    found = tritonmm.scaled_mm(a.cuda(), w.cuda().T, *(x.cuda() for x in scales), accumulation="invariant")
    assert_verified(a, w.T, found, scale_a=scales[0], scale_b=scales[1])


@pytest.mark.parametrize("m", [1, 16, 200])
@pytest.mark.parametrize("weights", [torch.int8, E4M3, E5M2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_8_bit_weights(dtype, weights, m):
    x, w, scale, bias = random(m, 512, dtype=dtype), (random(320, 512) * 9).to(weights), random(320), random(320)
    given = (each.cuda() for each in (x, w, scale, bias))
    found = tritonmm.weight_only_linear(*given, accumulation="invariant")
    assert_verified(x, w.T, found, scale_b=scale, bias=bias)


def assert_verified(*args, **options) -> None:
    verdict = verify(*args, samples=EVERY, **options)
    assert verdict, str(verdict)
