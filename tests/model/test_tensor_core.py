"""The model of tensor cores is what its definition says, computed with integers, and gives what GPUs gave."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from adversarial import kinds, operands

from tritonmm.model import fp32, tensor_core

FIELDS = {  # bits of the exponent and of the fraction
    torch.bfloat16: (8, 7), torch.float16: (5, 10), torch.float32: (8, 23),
    torch.float8_e4m3fn: (4, 3), torch.float8_e5m2: (5, 2),
}  # fmt: skip
CHAIN = {  # products of a step, bits below the largest exponent, fraction bits of a sum
    torch.bfloat16: (16, 25, 23), torch.float16: (16, 25, 23), torch.float32: (8, 25, 23),
    torch.float8_e4m3fn: (32, 13, 13), torch.float8_e5m2: (32, 13, 13),
}  # fmt: skip
NAMES = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "tf32",
    torch.float8_e4m3fn: "fp8e4m3", torch.float8_e5m2: "fp8e5m2",
}  # fmt: skip
DTYPES = list(NAMES)


def factor(bits: int, dtype: torch.dtype):
    """The value of a number, a Fraction unless it is infinite or NaN, and its exponent, None for 0; tf32 for fp32."""
    exponent_bits, fraction_bits = FIELDS[dtype]
    bias = (1 << (exponent_bits - 1)) - 1
    sign = -1 if bits >> (exponent_bits + fraction_bits) & 1 else 1
    field, fraction = bits >> fraction_bits & ((1 << exponent_bits) - 1), bits & ((1 << fraction_bits) - 1)
    if dtype == torch.float8_e4m3fn:
        if field == 15 and fraction == 7:
            return math.nan, 0
    elif field == (1 << exponent_bits) - 1:
        return (math.nan if fraction else sign * math.inf), 0
    if dtype == torch.float32:
        fraction &= ~0x1FFF
    exponent = max(field, 1) - bias
    value = sign * (fraction + (bool(field) << fraction_bits)) * Fraction(2) ** (exponent - fraction_bits)
    return value, exponent if value else None


def size(x: Fraction) -> int:
    """The exponent of the leading bit of x, whose denominator is a power of two."""
    return abs(x.numerator).bit_length() - x.denominator.bit_length()


def toward_zero(x: Fraction, unit: int) -> Fraction:
    """x cut to a multiple of 2**unit."""
    return int(x / Fraction(2) ** unit) * Fraction(2) ** unit


def dot(a: list[int], b: list[int], a_dtype: torch.dtype, b_dtype: torch.dtype | None = None) -> float:
    """The chain along K of the raw bits of two vectors, by the four steps in the docstring of `tensor_core`."""
    step, bits, fraction_bits = CHAIN[a_dtype]
    total = Fraction(0)
    for at in range(0, len(a), step):
        terms, exponents = [total], []
        for x_bits, y_bits in zip(a[at : at + step], b[at : at + step], strict=True):
            (x, x_exponent), (y, y_exponent) = factor(x_bits, a_dtype), factor(y_bits, b_dtype or a_dtype)
            terms.append(x * y if isinstance(x, Fraction) and isinstance(y, Fraction) else float(x) * float(y))
            if x and y:
                exponents.append(x_exponent + y_exponent)
        if not all(isinstance(x, Fraction) for x in terms):
            total = sum(x for x in terms if not isinstance(x, Fraction))
            continue
        if total:
            exponents.append(max(size(total), -126))
        largest = max([*exponents, -133])
        total = sum(toward_zero(x, largest - bits) for x in terms)
        if total:
            total = toward_zero(total, max(size(total), -126) - fraction_bits)
        if abs(total) >= 2**128:
            total = math.copysign(math.inf, total)
    return float(total)


def raw(x: torch.Tensor) -> np.ndarray:
    return x.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.itemsize]).numpy()


def as_lists(x: torch.Tensor) -> list[list[int]]:
    return (raw(x).astype(np.int64) & ((1 << 8 * x.itemsize) - 1)).tolist()


def model(a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
    """Dot products of the rows of a and b."""
    x, y = (tensor_core.operand(x.T.contiguous().double().numpy(), NAMES[x.dtype]) for x in (a, b))
    return tensor_core.add_products(np.zeros(len(a)), x, y, tensor_core.SUMS[NAMES[a.dtype]])


def assert_same(found: np.ndarray, expected: list[float], a: torch.Tensor, b: torch.Tensor) -> None:
    assert found.astype(np.float32).astype(np.float64).tobytes() == found.tobytes() or np.isnan(found).any()
    for i, (x, y) in enumerate(zip(found.tolist(), expected, strict=True)):
        same = (x == y and math.copysign(1, x) == math.copysign(1, y)) or (math.isnan(x) and math.isnan(y))
        assert same, f"{i}: {x!r} ({x.hex()}), by definition {y!r} ({y.hex()}); a {a[i].tolist()}, b {b[i].tolist()}"


@pytest.mark.parametrize("k", [1, 61, 96])
@pytest.mark.parametrize(("dtype", "kind"), [(dtype, kind) for dtype in DTYPES for kind in kinds(dtype)])
def test_chain_is_the_one_defined(dtype, kind, k):
    a, b = operands(kind, dtype, 16, k, seed=k)
    expected = [dot(*each, dtype) for each in zip(as_lists(a), as_lists(b), strict=True)]
    assert_same(model(a, b), expected, a, b)


def test_chain_of_both_kinds_of_fp8():
    for kind in kinds(torch.float8_e5m2):
        a, b = (
            operands(kind, torch.float8_e4m3fn, 40, 64, seed=1)[0],
            operands(kind, torch.float8_e5m2, 40, 64, seed=2)[1],
        )
        expected = [dot(*each, a.dtype, b.dtype) for each in zip(as_lists(a), as_lists(b), strict=True)]
        assert_same(model(a, b), expected, a, b)


def test_reference_needs_each_number_of_the_definition(monkeypatch):
    """The operands tell the definition from its neighbours."""
    for dtype, (step, bits, fraction_bits) in list(CHAIN.items()):
        for other in (
            (step // 2, bits, fraction_bits),
            (step, bits - 1, fraction_bits),
            (step, bits + 1, fraction_bits),
        ):
            monkeypatch.setitem(CHAIN, dtype, other)
            a, b = operands("cancelling", dtype, 32, 96, seed=0)
            expected = [dot(*each, dtype) for each in zip(as_lists(a), as_lists(b), strict=True)]
            assert np.sum(model(a, b) != expected) > 3, (dtype, other)


TOP = 2.0**127


def halves(first: int, last: int) -> list:
    """Products 2^first, half of it, ... down to 2^last, and 2^last again: 2^(first + 1) together."""
    return [(2.0**-75, 2.0 ** (e + 75)) for e in (*range(first, last - 1, -1), last)]


MEASURED = {  # products by step, and what an H200 and an H100 gave for bf16
    "2^128": ([[(2, TOP)]], math.inf),
    "2^128 - 2^103": ([[(2, TOP), (-1, 2.0**103)]], (2 - 2.0**-23) * TOP),
    "2^128 - 2^102": ([[(2, TOP), (-1, 2.0**102)]], math.inf),
    "2^127 + 2^127 - 2^103": ([[(1, TOP), (1, TOP), (-1, 2.0**103)]], (2 - 2.0**-23) * TOP),
    "2^254 - 2^254 + 1": ([[(TOP, TOP), (-TOP, TOP), (1, 1)]], 0.0),
    "2^254 - 2^254 + 2^229": ([[(TOP, TOP), (-TOP, TOP), (2.0**114, 2.0**115)]], math.inf),
    "2^128, then -2^128": ([[(2, TOP)], [(-2, TOP)]], math.inf),
    "2^127, then 2^127 - 2^127": ([[(1, TOP)], [(1, TOP), (-1, TOP)]], TOP),
    "2^127, then 2^127, then -2^127": ([[(1, TOP)], [(1, TOP)], [(-1, TOP)]], math.inf),
    "inf * 0": ([[(math.inf, 0)]], math.nan),
    "inf - inf": ([[(math.inf, 1), (-math.inf, 1)]], math.nan),
    "inf, then -inf": ([[(math.inf, 1)], [(-math.inf, 1)]], math.nan),
    "inf - 2^128": ([[(math.inf, 1), (-2, TOP)]], math.inf),
    "-1, then 1": ([[(-1, 1)], [(1, 1)]], 0.0),
    "-0": ([[(-0.0, 1)]], 0.0),
    "-2^-150": ([[(-(2.0**-75), 2.0**-75)]], 0.0),
    "2^-150 + 2^-150": ([[(2.0**-75, 2.0**-75)] * 2], 2.0**-149),
    "2^-150 + ... + 2^-158 + 2^-158": ([halves(-150, -158)], 2.0**-149),
    "2^-150 + ... + 2^-159 + 2^-159": ([halves(-150, -159)], 0.0),
    "the bit 25 below the largest": ([[(1, 1), (-1, 1), (2.0**-12, 2.0**-13)]], 2.0**-25),
    "the bit 26 below the largest": ([[(1, 1), (-1, 1), (2.0**-13, 2.0**-13)]], 0.0),
    "25 below 1.5 * 1.5, exponent 0": ([[(1.5, 1.5), (-1.5, 1.5), (2.0**-12, 2.0**-13)]], 2.0**-25),
    "16 bits 25 below the accumulator": ([[(1, 1)], [(2.0**-12, 2.0**-13)] * 16, [(-1, 1)]], 2.0**-21),
    "16 bits 26 below the accumulator": ([[(1, 1)], [(2.0**-13, 2.0**-13)] * 16, [(-1, 1)]], 0.0),
    "0 * 2^127 has no exponent": ([[(0, TOP), (2.0**-12, 2.0**-13)]], 2.0**-25),
    "a subnormal has the exponent of 2^-126": ([[(2.0**-133, TOP), (-(2.0**-133), TOP), (2.0**-12, 2.0**-13)]], 0.0),
}  # fmt: skip


@pytest.mark.parametrize("case", MEASURED)
def test_what_gpus_gave(case):
    steps, expected = MEASURED[case]
    a, b = torch.zeros(2, 1, 16 * len(steps)).bfloat16()
    for i, step in enumerate(steps):
        for j, (x, y) in enumerate(step):
            a[0, 16 * i + j], b[0, 16 * i + j] = x, y
    assert_same(model(a, b), [expected], a, b)


def test_fp8_keeps_13_bits():
    a = torch.tensor([[1, 2.0**-6], [1, 2.0**-6], [1, 2.0**-6]]).to(torch.float8_e4m3fn)
    b = torch.tensor([[1, 2.0**-7], [1, 2.0**-8], [-1, -(2.0**-8)]]).to(torch.float8_e4m3fn)
    assert model(a, b).tolist() == [1 + 2.0**-13, 1, -1]


def test_tf32_is_cut_toward_zero():
    a = torch.tensor([[1 + 2.0**-10 - 2.0**-23], [-1 - 2.0**-11 - 2.0**-12], [2.0**-149], [2.0**-136]])
    assert model(a, torch.ones(4, 1)).tolist() == [1, -1, 0, 2.0**-136]


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES.get)
def test_small_integers_are_exact(dtype):
    rng = np.random.default_rng(0)
    fp8 = dtype.itemsize == 1
    for k in (1, 33, 128 if fp8 else 4096):
        a, b = (torch.from_numpy(rng.integers(-3 if fp8 else -8, 4 if fp8 else 9, (50, k))) for _ in "ab")
        assert model(a.to(dtype), b.to(dtype)).tolist() == (a * b).sum(1).tolist()


# Fused multiply-add ---------------------------------------------------------------------------------------------------


def nearest_fp32(x: Fraction) -> float:
    """x rounded to the nearest fp32, ties to even."""
    if not x:
        return 0.0
    unit = Fraction(2) ** (max(size(x), -126) - 23)
    x = round(x / unit) * unit  # Python rounds ties to even
    return math.copysign(math.inf, x) if abs(x) >= 2**128 else float(x)


def finite(rng: np.random.Generator, count: int, low: int, high: int) -> np.ndarray:
    """Random fp32 numbers with these exponents; some have few bits."""
    few = rng.integers(0, 2, count) * rng.integers(0, 24, count)
    fraction = np.ldexp(np.floor(np.ldexp(1 + rng.random(count), 23 - few)), few - 23)
    with np.errstate(all="ignore"):
        return (rng.choice([-1, 1], count) * np.ldexp(fraction, rng.integers(low, high + 1, count))).astype(np.float32)


@pytest.mark.parametrize(
    ("factors", "addend"),
    [
        ((-3, 3), (-6, 6)), ((-3, 3), (-50, 50)), ((-80, -60), (-149, -120)), ((60, 65), (120, 127)),
        ((-149, 127), (-149, 127)),
    ],
    ids=["near", "far", "subnormal", "overflow", "all"],
)  # fmt: skip
def test_fma_rounds_once(factors, addend):
    rng = np.random.default_rng(7)
    x, y, z = finite(rng, 4000, *factors), finite(rng, 4000, *factors), finite(rng, 4000, *addend)
    with np.errstate(all="ignore"):
        z[::4] = -(x * y)[::4]  # what the product's own rounding drops is left
    x, y, z = (np.where(np.isfinite(each), each, np.float32(1)) for each in (x, y, z))
    found = fp32.fma(x, y, z)
    for i, (p, q, r) in enumerate(zip(x.tolist(), y.tolist(), z.tolist(), strict=True)):
        expected = nearest_fp32(Fraction(p) * Fraction(q) + Fraction(r))
        assert found[i] == np.float32(expected), (
            f"fma({p.hex()}, {q.hex()}, {r.hex()}) = {found[i]!r}, not {expected!r}"
        )


def test_fma_where_two_roundings_differ():
    x = np.float32(1 + 2.0**-12)
    assert fp32.fma(x, x, np.float32(-1)) == np.float32(2.0**-11 + 2.0**-24)
    assert x * x - np.float32(1) != np.float32(2.0**-11 + 2.0**-24)
    # 1 + 2^-24 is the middle of two fp32; float64 drops the last bit, which decides.
    middle = fp32.fma(np.float32(2.0**-50), np.float32([2.0**-50, -(2.0**-50)]), np.float32(1))
    assert middle.tolist() == [1, 1]
    tie = fp32.fma(np.float32([1 + 2.0**-23]), np.float32([2.0**-24]), np.float32([1]))
    assert tie.tolist() == [1 + 2.0**-23]


def test_fma_of_what_is_not_finite():
    inf, nan = np.float32(math.inf), np.float32(math.nan)
    one, zero = np.float32(1), np.float32(0)
    found = [float(fp32.fma(*each)) for each in ((inf, one, -inf), (inf, zero, one), (nan, one, one), (one, inf, -one))]
    assert [math.isnan(x) for x in found] == [True, True, True, False]
    assert found[3] == math.inf
    assert math.copysign(1, fp32.fma(-one, zero, zero)) == 1
    assert math.copysign(1, fp32.fma(-one, zero, -zero)) == -1


def test_ieee_chain_is_one_fma_for_each_k():
    rng = np.random.default_rng(3)
    a, b = finite(rng, 200, -4, 4).reshape(40, 5), finite(rng, 200, -4, 4).reshape(40, 5)
    found = fp32.add_products(np.zeros(5), a.astype(np.float64), b.astype(np.float64))
    for i in range(5):
        total = 0.0
        for x, y in zip(a[:, i].tolist(), b[:, i].tolist(), strict=True):
            total = nearest_fp32(Fraction(x) * Fraction(y) + Fraction(total))
        assert found[i] == total
