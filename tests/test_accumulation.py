"""`emulate` computes the operations that are documented, each rounded as it should be, and `verify` finds what differs.

The chain of the tensor cores itself has its tests in `tests/model/test_tensor_core.py`; here it is taken as right.
"""

import itertools
import json
import math
import subprocess
import sys
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import torch
from adversarial import kinds, operands
from invariant_cases import CASES, HASHES, digest, hashed

from tritonmm import accumulation
from tritonmm.accumulation import emulate, verify
from tritonmm.model import tensor_core
from tritonmm.model.gemm import checked
from tritonmm.problem import Problem
from tritonmm.torch_ops.quantized import matched_scales

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LAWS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "tf32", E4M3: "fp8e4m3", E5M2: "fp8e5m2"}


def chain(a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
    """The tensor core's fp32 sums of a (m, k) by b (k, n), in float64."""
    x = tensor_core.operand(a.T.contiguous().double().numpy(), LAWS[a.dtype])
    y = tensor_core.operand(b.contiguous().double().numpy(), LAWS[b.dtype])
    x, y = ([each[:, :, None] for each in x], [each[:, None, :] for each in y])
    total = np.zeros((a.shape[0], b.shape[1]))
    return tensor_core.add_products(
        total, tensor_core.Operand(*x), tensor_core.Operand(*y), tensor_core.SUMS[LAWS[a.dtype]]
    )


def fp32(x: Fraction) -> Fraction:
    """x rounded to the nearest fp32, ties to even."""
    size = abs(x.numerator).bit_length() - x.denominator.bit_length() - 1
    while abs(x) >= Fraction(2) ** (size + 1):
        size += 1
    unit = Fraction(2) ** (max(size, -126) - 23)
    return round(x / unit) * unit


def exact(x) -> list[Fraction]:
    return [Fraction(float(each)) for each in np.asarray(x).reshape(-1)]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    bits = {2: torch.int16, 4: torch.int32}[found.itemsize]
    wrong = (found.contiguous().view(bits) != expected.contiguous().view(bits)) & ~(found.isnan() & expected.isnan())
    for at in wrong.nonzero()[:1].tolist():
        raise AssertionError(
            f"{at}: {found[tuple(at)].item()!r}, not {expected[tuple(at)].item()!r}; {wrong.sum()} differ"
        )


# Sums -----------------------------------------------------------------------------------------------------------------

TENSOR_CORE = [(torch.bfloat16, ""), (torch.float16, ""), (torch.float32, "tf32"), (E4M3, "fast"), (E5M2, "fast")]


@pytest.mark.parametrize(("dtype", "precision"), TENSOR_CORE, ids=lambda x: str(x).removeprefix("torch."))
def test_sums_of_tensor_cores(dtype, precision):
    for kind, k in itertools.product(kinds(dtype), (5, 300)):
        a, w = operands(kind, dtype, 20, k, seed=k)
        found = emulate(a, w.T, precision=precision, out_dtype=torch.float32)
        assert_bits(found, torch.from_numpy(chain(a, w.T)).float())


@pytest.mark.parametrize("dtypes", [(E4M3, E4M3), (E4M3, E5M2)], ids=["e4m3", "mixed"])
@pytest.mark.parametrize("k", [64, 128, 300])
def test_accurate_fp8_adds_groups_of_128_in_fp32(dtypes, k):
    a, w = operands("wide", dtypes[0], 9, k, 1)[0], operands("wide", dtypes[1], 7, k, 1)[1]
    total = torch.zeros(9, 7)
    for at in range(0, k, 128):
        total += torch.from_numpy(chain(a[:, at : at + 128], w.T[at : at + 128])).float()
    assert_bits(emulate(a, w.T, out_dtype=torch.float32), total)
    fast = emulate(a, w.T, precision="fast", out_dtype=torch.float32)
    assert torch.equal(fast, total) == (k <= 128)


BLOCKS = {"1x128*128x128": (1, 128), "128x128*1x128": (128, 1), "1x128*1x128": (1, 1)}


@pytest.mark.parametrize("name", BLOCKS)
def test_scales_of_blocks_multiply_partial_sums(name):
    rows, cols = BLOCKS[name]
    m, n, k = 130, 131, 300
    a, w = operands("normal", E4M3, m, k, 0)[0], operands("normal", E4M3, n, k, 1)[0]
    scale_a, scale_b = random(-(-m // rows), 3, seed=2), random(3, -(-n // cols), seed=3)
    picked_rows, picked_cols = [0, 127, 128, 129], [1, 126, 128, 130]
    found = emulate(
        a, w.T, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.float32, rows=picked_rows, cols=picked_cols
    )
    for (i, r), (j, s) in itertools.product(enumerate(picked_rows), enumerate(picked_cols)):
        total = Fraction(0)
        for group in range(3):
            k_range = slice(group * 128, group * 128 + 128)
            part = Fraction(chain(a[r : r + 1, k_range], w[s : s + 1, k_range].T).item())
            of_row, of_col = exact(scale_a[r // rows, group])[0], exact(scale_b[group, s // cols])[0]
            if cols == 128:
                total = fp32(part * fp32(of_row * of_col) + total)
            else:
                total = fp32(fp32(part * of_col) * of_row + total)
        assert found[i, j].item() == float(total), f"({r}, {s})"


def test_int8_is_exact_and_wraps():
    a = torch.randint(-128, 128, (20, 300), dtype=torch.int8)
    b = torch.randint(-128, 128, (300, 30), dtype=torch.int8)
    assert torch.equal(emulate(a, b), (a.long() @ b.long()).int())
    k = 140_000
    least = torch.full((1, k), -128, dtype=torch.int8)
    assert emulate(least, least.T).item() == k * 128**2 - 2**32


def test_ieee_fp32_is_nearly_exact_and_tf32_is_not():
    a, b = random(20, 200), random(200, 30, seed=1)
    product = a.double() @ b.double()
    bound = 2 * math.sqrt(200) * 2**-24 * (a.abs().double() @ b.abs().double())
    assert ((emulate(a, b, precision="ieee") - product).abs() <= bound).all()
    assert not ((emulate(a, b, precision="tf32") - product).abs() <= bound).all()


def test_default_precision_is_torchs():
    a, b = random(20, 200), random(200, 30, seed=1)
    assert_bits(emulate(a, b), emulate(a, b, precision="ieee"))
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert_bits(emulate(a, b), emulate(a, b, precision="tf32"))
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weights", [torch.int8, E4M3, E5M2])
def test_8_bit_weights_are_multiplied_as_the_activations_dtype(dtype, weights):
    x = random(9, 300, dtype=dtype)
    w = (random(11, 300, seed=1) * 20).to(weights)
    assert_bits(emulate(x, w.T), emulate(x, w.to(dtype).T))
    scale, bias = random(11, seed=2), random(11, seed=3, dtype=dtype)
    sums = exact(emulate(x, w.to(dtype).T, out_dtype=torch.float32))
    for shape in ((11,), (11, 1)):
        found = emulate(x, w.T, scale_b=scale.reshape(shape), bias=bias)
        scaled = [fp32(s * f + g) for s, f, g in zip(sums, exact(scale) * 9, exact(bias.float()) * 9, strict=True)]
        assert_bits(found, torch.tensor([float(s) for s in scaled]).reshape(9, 11).to(dtype))


@pytest.mark.parametrize(("dtype", "precision"), [*TENSOR_CORE, (torch.float32, "ieee"), (E4M3, ""), (torch.int8, "")])
def test_small_integers_are_exact(dtype, precision):
    a, b = (torch.randint(-3, 4, shape) for shape in ((30, 200), (200, 40)))
    out_dtype = None if dtype == torch.int8 else torch.float32
    if precision == "fast":
        a[:, 100:] = 0  # 13 bits
    assert torch.equal(emulate(a.to(dtype), b.to(dtype), precision=precision, out_dtype=out_dtype).long(), a @ b)


# Epilogue -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scales", ["", "tensor", "row"])
@pytest.mark.parametrize(
    ("alpha", "biased", "beta"), [*itertools.product([1.0, 1 / 3], [False, True], [None, 1.0, 0.7])]
)
def test_epilogue_rounds_in_the_order_documented(scales, alpha, biased, beta):
    m, n, k = 6, 7, 40
    a, w = operands("normal", E4M3, m, k, 0)[0], operands("normal", E4M3, n, k, 1)[0]
    bias = random(n, seed=2, dtype=torch.bfloat16) if biased else None
    c = None if beta is None else random(m, n, seed=3)
    shapes = {"": None, "tensor": ((1,), (1, 1)), "row": ((m, 1), (1, n))}[scales]
    scale_a, scale_b = (None, None) if shapes is None else (random(*s, seed=i) for i, s in enumerate(shapes))
    found = emulate(
        a, w.T, bias=bias, c=c, alpha=alpha, beta=1.0 if beta is None else beta, scale_a=scale_a, scale_b=scale_b,
        out_dtype=torch.float32,
    )  # fmt: skip
    sums = exact(chain(a, w.T))
    for i, (row, col) in enumerate(itertools.product(range(m), range(n))):
        factors = []  # of the sum, in order
        if scales == "tensor":
            factors = [exact(scale_a)[0], exact(scale_b)[0]]
        elif scales == "row":
            factors = [exact(scale_a)[row], exact(scale_b)[col]]
        if alpha != 1:
            factors.append(Fraction(float(np.float32(alpha))))
        x = sums[i]
        for factor in factors[:-1]:
            x = fp32(x * factor)
        last = factors[-1] if factors else 1
        x = fp32(x * last + (exact(bias.float())[col] if biased else 0))
        if c is not None:
            x = fp32(Fraction(float(np.float32(beta))) * exact(c)[i] + x)
        assert found[row, col].item() == float(x), f"({row}, {col})"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_results_are_rounded_to_nearest_even(dtype):
    a = torch.tensor([[1, 1], [1, 3], [-1, -1], [1, 0]], dtype=dtype)
    b = torch.tensor([[1], [torch.finfo(dtype).eps / 2]], dtype=dtype)
    eps = torch.finfo(dtype).eps
    assert emulate(a, b).flatten().tolist() == [1, 1 + 2 * eps, -1, 1]


def test_fp16_overflows_to_infinity():
    a = torch.tensor([[65504.0, 15.99], [65504.0, 16.0], [-65504.0, -16.0]]).half()
    assert emulate(a, torch.ones(2, 1).half()).flatten().tolist() == [65504, math.inf, -math.inf]


@pytest.mark.parametrize("k", [64, 200, 384])
@pytest.mark.parametrize("n", [1, 2, 128, 300])
def test_scales_are_those_that_scaled_mm_sees(n, k):
    """Kinds of scales have shapes in common. With more than one column and group, no sum depends on the rows."""
    for name in ("tensor", "row", "1x128*1x128", "1x128*128x128", "128x128*1x128"):
        ways = set()
        for m in (1, 2, 128, 129, 300):
            a, b = torch.ones(m, k).to(E4M3), torch.ones(n, k).to(E4M3).T
            shapes = Problem(m, n, k, dtype="fp8e4m3", scales=name).scale_shapes
            scale_a, scale_b = (torch.ones(shape) for shape in shapes)
            problem = checked(a, b, None, None, 1.0, 1.0, scale_a, scale_b, "", None).problem
            assert problem.scales == matched_scales(a, b, scale_a, scale_b)[2]
            ways.add((problem.block_scaled, problem.cols_per_scale))
        assert len(ways) == 1 or n == 1 or k <= 128


def test_scaled_int8_is_converted_to_fp32_first():
    a = torch.full((1, 3000), 127, dtype=torch.int8)
    a[0, 0] = 126
    one = torch.ones(1)
    total = 127**2 * 2999 + 126 * 127
    found = emulate(a, torch.full((3000, 1), 127, dtype=torch.int8), scale_a=one, scale_b=one, out_dtype=torch.float32)
    assert total != int(np.float32(total)) == found.item()
    assert emulate(a, a.T, scale_a=one, scale_b=one).dtype == torch.bfloat16


def test_beta_and_alpha_of_zero_read_nothing():
    a, b = random(3, 4), random(4, 5)
    nan = torch.full((3, 5), math.nan)
    assert_bits(emulate(a, b, c=nan, beta=0), emulate(a, b))
    c, bias = random(3, 5), random(5)
    assert_bits(emulate(a * math.nan, b, c=c, bias=bias, alpha=0, beta=0.7), c * 0.7 + bias)
    assert_bits(emulate(a * math.nan, b, alpha=0), torch.zeros(3, 5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, E4M3, torch.int8])
def test_k_zero(dtype):
    a, b = torch.zeros(3, 0).to(dtype), torch.zeros(0, 4).to(dtype)
    assert not emulate(a, b).any()
    if dtype != torch.int8:
        assert torch.equal(
            emulate(a, b, bias=torch.arange(4.0), alpha=math.inf, out_dtype=torch.float32)[2], torch.arange(4.0)
        )


# Which elements -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, E4M3, torch.int8])
def test_an_element_depends_on_its_row_and_column_alone(dtype):
    """Blocks, batches, subsets, strides and the product's other rows do not change it."""
    a, b = (random(3, 70, 150) * 10).to(dtype), (random(3, 150, 130, seed=1) * 10).to(dtype)
    whole = emulate(a, b)
    assert whole.shape == (3, 70, 130)
    for i in range(3):
        assert_bits(emulate(a[i], b[i]), whole[i])
    rows, cols = [69, 0, 0, 33], np.array([129, 64])
    assert_bits(emulate(a, b, rows=rows, cols=cols), whole[:, rows][:, :, cols.tolist()])
    assert_bits(emulate(a[0, 5:6], b[0, :, 7:8]), whole[0, 5:6, 7:8])
    assert_bits(emulate(a.mT.contiguous().mT, b.mT.contiguous().mT), whole)
    assert_bits(emulate(b[0].T, a[0].T), whole[0].T)


def test_numpy_arrays_are_taken():
    a, b, bias = (np.random.default_rng(0).standard_normal(s).astype(np.float16) for s in ((5, 9), (9, 4), (4,)))
    found = emulate(a, b, bias=bias)
    assert_bits(found, emulate(*map(torch.from_numpy, (a, b)), bias=torch.from_numpy(bias)))
    assert verify(a, b, found.numpy(), bias=bias)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_results_without_elements(shape):
    a, b = torch.zeros(shape[0], 3), torch.zeros(3, shape[1])
    assert emulate(a, b).shape == shape
    assert verify(a, b, torch.zeros(shape)).checked == 0


@pytest.mark.parametrize("shape", [(1, 100_000, 40), (60, 60, 20_000)], ids=["wide", "deep"])
def test_memory_is_bounded(shape):
    m, n, k = shape
    a, b = random(m, k, dtype=torch.bfloat16), random(k, n, dtype=torch.bfloat16)
    tracemalloc.start()
    emulate(a, b)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 50e6


# verify ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("samples", [10**6, 80 * 90 * 2])
def test_a_planted_bit_flip_is_found(batch, samples):
    a, b = random(*batch, 80, 64, dtype=torch.bfloat16), random(*batch, 64, 90, seed=1, dtype=torch.bfloat16)
    result = emulate(a, b)
    index = (1, 71, 88)[-result.dim() :]
    expected = result[index].item()
    assert verify(a, b, result, samples=samples)
    result.view(torch.int16)[index] ^= 1
    verdict = verify(a, b, result, samples=samples)
    assert not verdict
    assert verdict.mismatches == ((index, result[index].item(), expected),)
    assert (verdict.checked, verdict.total, verdict.wrong) == (result.numel(), result.numel(), 1)
    assert f"{list(index)} is {result[index].item()!r}, not {expected!r}" in str(verdict)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"bias": random(40), "alpha": 0.3}, {"c": random(50, 1), "beta": 0.7},
        {"scale_a": random(50, 1), "scale_b": random(1, 40)},
        {"scale_a": random(50, 2), "scale_b": random(2, 1), "precision": "ieee"}, {"precision": "fast"},
    ],
    ids=" ".join,
)  # fmt: skip
def test_samples_are_elements_of_the_whole_result(options):
    """Of 2000 elements, 500 are sampled: their bits are those that `emulate` computes in blocks."""
    a, b = random(50, 200).to(E4M3), random(200, 40, seed=1).to(E4M3)
    result = emulate(a, b, **options)
    assert verify(a, b, result, samples=500, **options).checked == 500
    result.view(torch.int16)[::2] ^= 1
    verdict = verify(a, b, result, samples=500, seed=5, **options)
    assert 180 < verdict.wrong < 320
    assert len(verdict.mismatches) == accumulation.LISTED
    assert all(x.position[0] % 2 == 0 and x.found == result[x.position].item() for x in verdict.mismatches)
    assert verdict.mismatches == tuple(sorted(set(verdict.mismatches)))
    assert verify(a, b, result, samples=500, seed=5, **options) == verdict
    assert verify(a, b, result, samples=500, seed=6, **options) != verdict


def test_samples_are_drawn_without_replacement():
    a, b = torch.zeros(30, 8), torch.zeros(8, 40)
    verdict = verify(a, b, torch.ones(30, 40), samples=1199)
    assert verdict.checked == verdict.wrong == 1199


def test_nans_are_alike_and_zeros_are_not():
    a, b = torch.tensor([[math.nan, 0.0]]), torch.ones(2, 1)
    result = emulate(a, b)
    result.view(torch.int32)[:] = 0x7FC00001
    assert verify(a, b, result)
    assert not verify(a, b, torch.zeros(1, 1))
    assert not verify(torch.zeros(1, 2), b, -torch.zeros(1, 1))


@pytest.mark.parametrize(("samples", "fraction"), [(1, 0.5), (4096, 0.001), (10, 0.0), (10, 1.0)])
def test_chance_of_finding_a_fraction_of_wrong_elements(samples, fraction):
    verdict = accumulation.Verdict(samples, 10**9, 0, ())
    assert verdict.chance(fraction) == pytest.approx(1 - (1 - fraction) ** samples, rel=1e-12)


def test_chance_is_what_sampling_finds():
    a, b = torch.zeros(20, 4), torch.zeros(4, 50)
    result = torch.zeros(20, 50)
    result[0, :20] = 1
    verdicts = [verify(a, b, result, samples=30, seed=i) for i in range(300)]
    assert sum(not x for x in verdicts) / 300 == pytest.approx(verdicts[0].chance(0.02), abs=0.08)


# Errors ---------------------------------------------------------------------------------------------------------------

HALF, FP32 = torch.zeros(3, 4).half(), torch.zeros(3, 4)
ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("args", "options", "error", "words"),
    [
        ((HALF, HALF), {}, RuntimeError, r"shapes \[3, 4\] and \[3, 4\]; they must be \(m, k\) and \(k, n\)"),
        ((HALF, [1]), {}, TypeError, "b is of type list; it must be a torch tensor or a NumPy array"),
        ((HALF, FP32.T), {}, ValueError, "dtypes are fp16 and fp32"),
        ((FP32.double(), FP32.double().T), {}, NotImplementedError, r"torch.float64; fp64 is not covered"),
        ((FP32, FP32.T), {"precision": "tf32x3"}, NotImplementedError, "'tf32x3', which is not covered"),
        ((FP32, FP32.T), {"precision": "fast"}, ValueError, "'fast'; for fp32 it must be one of ieee, tf32"),
        ((HALF, HALF.T), {"out_dtype": torch.int32}, ValueError, "out_dtype is 'int32'; for fp16 operands it must be"),
        ((HALF, HALF.T), {"bias": torch.ones(4)}, RuntimeError, r"float32 \[4\]; it must be of floats, \[3\]"),
        ((HALF, HALF.T), {"c": torch.ones(4)}, RuntimeError, r"\[4\], which does not broadcast to \[3, 3\]"),
        ((HALF, HALF.T), {"scale_a": ONE, "scale_b": ONE}, RuntimeError, "given for fp16 by fp16; they are for fp8"),
        ((HALF.char(), HALF.char().T), {"bias": torch.ones(3)}, ValueError, "the result is int32; out_dtype must be"),
        ((HALF.to(E4M3), HALF.to(E4M3).T), {"scale_a": ONE}, RuntimeError, "and None; they must be float32, of one"),
        ((HALF.to(E4M3), HALF.to(E4M3).T), {"scale_a": ONE, "scale_b": torch.ones(2, 2)}, RuntimeError,
         r"float32 \[2, 2\]; they must be float32, of one element each, or \[3, 1\] and \[1, 3\]"),
        ((torch.zeros(3, 256).char(), torch.zeros(256, 3).char()),
         {"scale_a": torch.ones(3, 2), "scale_b": torch.ones(2, 3)}, NotImplementedError, "for int8 they are not"),
        ((HALF, HALF.char().T), {"scale_b": torch.ones(3, 2)}, NotImplementedError, "scales of groups of K"),
        ((HALF, HALF.char().T), {"scale_b": torch.ones(5)}, RuntimeError, r"for 8-bit weights scale_b must be float32"),
        ((HALF, HALF.T), {"rows": [0, 3]}, IndexError, "rows has index 3; there are 3 rows, from 0"),
        ((HALF, HALF.T), {"cols": [-1]}, IndexError, "cols has index -1; there are 3 cols, from 0"),
        ((HALF, HALF.T), {"rows": [True, False, True]}, TypeError, "rows are of bool; they must be integers"),
        ((HALF, HALF.T), {"cols": [0.5]}, TypeError, "cols are of float64; they must be integers"),
        ((HALF, HALF.T), {"c": torch.ones(3).cfloat()}, RuntimeError, "c has dtype torch.complex64; it must be"),
        ((HALF.to_sparse(), HALF.T), {}, TypeError, "a has layout torch.sparse_coo; it must be dense"),
    ],
)  # fmt: skip
def test_errors_of_emulate(args, options, error, words):
    with pytest.raises(error, match=words):
        emulate(*args, **options)


def test_errors_of_verify():
    with pytest.raises(RuntimeError, match=r"result has shape \[4, 3\]; the product has \[3, 3\]"):
        verify(HALF, HALF.T, torch.zeros(4, 3).half())
    for wrong in (0, True, 2.5):
        with pytest.raises(ValueError, match=f"samples is {wrong}; it must be an integer of at least 1"):
            verify(HALF, HALF.T, torch.zeros(3, 3).half(), samples=wrong)
    with pytest.raises(ValueError, match="fraction is 2; it must be a share of the elements, from 0 to 1"):
        accumulation.Verdict(1, 1, 0, ()).chance(2)


def test_arrays_that_torch_does_not_share():
    """Warnings are errors."""
    a, b = FP32.numpy().copy(), FP32.T.numpy()
    a.flags.writeable = False
    expected = emulate(FP32, FP32.T)
    assert torch.equal(emulate(a, b), expected)
    assert torch.equal(emulate(a[::-1], b), expected.flip(0))
    assert verify(a, b, expected, samples=np.int64(5)).checked == 5


def test_it_needs_no_triton():
    code = "import sys, tritonmm.accumulation; print('triton' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("False\n", "")


# Chunks of K ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [16384, 16400, 20480])
def test_fp32_adds_the_chains_of_the_chunks_of_a_long_k(k):
    a, b = random(3, k, seed=1, dtype=torch.bfloat16), random(k, 4, seed=2, dtype=torch.bfloat16)
    found = emulate(a, b, out_dtype=torch.float32)
    expected = np.zeros((3, 4), np.float32)
    for first in range(0, k, 4096):
        expected += chain(a[:, first : first + 4096], b[first : first + 4096]).astype(np.float32)
    assert_bits(found, torch.from_numpy(expected))
    whole = torch.from_numpy(chain(a, b).astype(np.float32))
    assert not torch.equal(found, whole)  # one chain has other bits


def test_a_k_below_that_has_one_chain():
    a, b = random(2, 16383, seed=1, dtype=torch.bfloat16), random(16383, 2, seed=2, dtype=torch.bfloat16)
    assert_bits(emulate(a, b, out_dtype=torch.float32), torch.from_numpy(chain(a, b).astype(np.float32)))


@pytest.mark.parametrize("name", CASES)
def test_the_committed_hashes_are_the_emulators(name):
    """A GPU test compares a Hopper's results with them."""
    one = hashed(name, torch.device("cpu"))
    try:
        found = one.emulated()
    except NotImplementedError:
        return
    assert digest(found) == json.loads(HASHES.read_text())[name]
