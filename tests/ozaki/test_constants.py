"""Constants of exact int8 products: their defining laws, in integers."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpreterOptions, interpreter_builder

from tritonmm.launch.interpreter import INTERPRETED
from tritonmm.moduli import FEWEST_MODULI, LONGEST_K, MODULI, MOST_K
from tritonmm.ozaki.crt import DIGIT_BITS, FRACTION_BITS, MOST_OF_64_BITS, crt, crt64
from tritonmm.ozaki.norms_kernel import ScaleSpec
from tritonmm.ozaki.reconstruct_kernel import Residues, integer_of_64_bits
from tritonmm.ozaki.residues_kernel import ResidueSpec
from tritonmm.ozaki.scaling import NORM_BITS, scaling

COUNTS = range(FEWEST_MODULI, len(MODULI) + 1)


def test_moduli_are_coprime_and_fit_int8():
    assert all(math.gcd(p, q) == 1 for p, q in itertools.combinations(MODULI, 2))
    assert max(MODULI) == 256
    assert MOST_K * 128**2 <= 2**31 - 2**14 < (MOST_K + 1) * 128**2


@pytest.mark.parametrize("moduli", COUNTS)
def test_scaled_lines_stay_in_the_range_of_the_moduli(moduli):
    """Also after elements have been rounded, which adds sqrt(K) / 2 to a norm at most."""
    product = math.prod(MODULI[:moduli])
    bound, squared, exponent = scaling(moduli)
    assert 2**60 <= squared < 2**62
    exact = bound**2 << 2 * NORM_BITS
    assert squared == (exact >> 2 * exponent if exponent >= 0 else exact << -2 * exponent)
    assert 2 * (bound + math.isqrt(LONGEST_K) / 2 + 1) ** 2 < product
    assert bound + 128 < 2**63  # `residues_kernel` adds MIDDLE to integers of int64


@pytest.mark.parametrize("moduli", COUNTS)
def test_scales_are_the_largest_of_the_definition(moduli):
    """By the operations of `line_scales`, of sums of squares next to those where the scale changes, and of random ones.
    A sum is that of the largest element alone, 2**26, or more."""
    _, squared, exponent = scaling(moduli)
    bits = ScaleSpec(8, 8, squared, exponent).squared_bits
    edges = [squared >> 2 * i for i in range(32)]
    random = np.random.default_rng(moduli).integers(2**26, 2**52, 1000).tolist()
    totals = {edge + off for edge in edges for off in (-1, 0, 1)} | {2**i for i in range(26, 53)} | set(random)
    for total in sorted(total for total in totals if 2**26 <= total <= LONGEST_K << 2 * NORM_BITS):
        found = (bits - int(np.float64(total).view(np.int64))) >> 53
        assert total << 2 * found <= squared < total << 2 * (found + 1), total


@pytest.mark.parametrize("moduli", COUNTS)
def test_weights_are_one_modulo_their_own_modulus_and_zero_modulo_others(moduli):
    bits, weights, product, quotient = crt(moduli)
    primes, whole = MODULI[:moduli], math.prod(MODULI[:moduli])

    def value(digits):
        return sum(digit << bits * i for i, digit in enumerate(digits))

    assert bits <= DIGIT_BITS
    assert value(product) == whole
    for i, digits in enumerate(weights):
        assert [value(digits) % p for p in primes] == [int(i == j) for j in range(moduli)]
        assert 2 * abs(value(digits)) <= whole
    sums = [128 * sum(abs(digits[i]) for digits in weights) for i in range(len(product))]
    most = 128 * sum(abs(value(digits)) for digits in weights) / whole + 1
    assert all(of_digit + most * abs(one) < 2**53 for of_digit, one in zip(sums, product, strict=True))
    lower = sum(of_digit << bits * i for i, of_digit in enumerate(sums[:-1])) / whole
    assert quotient == pytest.approx(2 ** (bits * (len(product) - 1)) / whole)
    largest = (scaling(moduli).bound + math.sqrt(LONGEST_K) / 2) ** 2 / whole
    assert largest + lower + 1e-9 < 0.5  # the quotient is rounded to the right integer


@pytest.mark.parametrize("moduli", range(FEWEST_MODULI, MOST_OF_64_BITS + 1))
def test_integers_of_64_bits_are_those_of_their_residues(moduli):
    """By the operations of `integer_of_64_bits`, for integers up to the largest and for random ones."""
    constants, primes, whole = crt64(moduli), MODULI[:moduli], math.prod(MODULI[:moduli])
    largest = int((scaling(moduli).bound + math.sqrt(LONGEST_K) / 2) ** 2)
    assert largest < 2**63
    assert whole < 2**64
    random = np.random.default_rng(moduli).integers(-largest, largest, 2000).tolist()
    near = [sign * (whole * i // 64 + j) for sign in (1, -1) for i in range(32) for j in (-1, 0, 1)]
    for x in (0, 1, -1, largest, -largest, *random, *(x for x in near if abs(x) <= largest)):
        residues = [(x + 128) % p - 128 if p == 256 else (x + p // 2) % p - p // 2 for p in primes]
        assert all(-128 <= r <= 127 for r in residues)
        weighted = [
            sum((r + 128) * factor for r, factor in zip(residues, factors, strict=True))
            for factors in (constants.low, constants.high, constants.fractions)
        ]
        quotient = constants.fraction + weighted[2]
        assert -(2**31) <= quotient < 2**31
        found = constants.start + weighted[0] + (weighted[1] << 32) - (quotient >> FRACTION_BITS) * constants.product
        assert (found + 2**63) % 2**64 - 2**63 == x


@pytest.mark.parametrize("moduli", range(FEWEST_MODULI, MOST_OF_64_BITS + 1))
def test_the_quotient_of_any_residues_is_rounded_to_the_right_integer(moduli):
    """Errors of fractions are less than what is left of P / 2, and sums of fractions fit int32."""
    primes, whole = MODULI[:moduli], math.prod(MODULI[:moduli])
    constants = crt64(moduli)
    weights = [(high << 32) + low for low, high in zip(constants.low, constants.high, strict=True)]
    assert [[weight % p for p in primes] for weight in weights] == np.eye(moduli, dtype=int).tolist()
    unit = 2**FRACTION_BITS
    off = [
        abs(Fraction(weight * unit, whole) - fraction)
        for weight, fraction in zip(weights, constants.fractions, strict=True)
    ]
    largest = (scaling(moduli).bound + math.sqrt(LONGEST_K) / 2) ** 2 / whole
    assert largest + float(128 * sum(off) / unit) < 0.5
    assert 255 * sum(abs(fraction) for fraction in constants.fractions) + abs(constants.fraction) < 2**31


@pytest.mark.parametrize("modulus", MODULI)
def test_residues_of_sums_fit_int8(modulus):
    """By the operations of `device.residue`, at both ends of its range, at all multiples near them, and at random."""
    reciprocal = (2**38 + modulus // 2) // modulus
    most = 2**31 - 2**14
    assert MOST_K * 128**2 <= most
    rng = np.random.default_rng(modulus)
    halves = np.arange(0, most, modulus)[-200_000:] + modulus // 2
    x = np.concatenate([np.arange(most - 70_000, most + 1), rng.integers(0, most, 10**6), halves, halves + 1, [0]])
    x = np.concatenate([x, -x])
    x = x[abs(x) <= most]
    found = x - ((x * reciprocal + 2**37) >> 38) * modulus
    assert found.min() >= -128
    assert found.max() <= 127
    assert ((found - x) % modulus == 0).all()


@pytest.mark.parametrize("integer_bits", [60, 33], ids=["three limbs", "two limbs"])
@pytest.mark.parametrize("modulus", MODULI[1:])
def test_residues_of_sums_of_limbs_fit_int8(modulus, integer_bits):
    """By the operations of `device.residue.remainder` and what `residues_kernel` does with a remainder.

    Quotients grow with x, so they are right everywhere if they are at all multiples and just below them. Of two limbs
    these are all multiples in the range; of three, those near its ends and near 0.
    """
    spec = ResidueSpec(8, 256, (modulus,), integer_bits, False)
    most = 2 ** (spec.reciprocal_bits - 7)
    multiples = np.arange(0, most + 1, modulus)
    multiples = np.concatenate([multiples[:200_000], multiples[-200_000:]])
    x = np.concatenate([[most], multiples, multiples - 1, multiples + 1, np.arange(0, 70_000)])
    x = np.concatenate([x, -x])
    x = x[abs(x) <= most]
    remainder = x - ((x * spec.reciprocals[0]) >> spec.reciprocal_bits) * modulus
    assert remainder.min() >= 0
    assert remainder.max() <= modulus
    stored = remainder.astype(np.int8) ^ -128
    assert ((stored - (x - 128)) % modulus == 0).all()
    assert stored[x == 128].tolist() == [0] * (x == 128).sum()  # beyond K are zeros


@pytest.mark.parametrize("moduli", COUNTS)
def test_sums_of_limbs_are_in_the_range_that_is_reduced(moduli):
    bits = scaling(moduli).bound.bit_length()
    spec = ResidueSpec(8, 256, MODULI[:moduli], bits, False)
    top = 2 ** max(0, bits - spec.limb * (spec.limbs - 1))
    limbs = [2**bits + 128] if spec.limbs == 1 else [2**spec.limb] * (spec.limbs - 1) + [top]
    for row, p in zip(spec.factors, spec.moduli, strict=True):
        assert all((factor - (1 << spec.limb * i)) % p == 0 for i, factor in enumerate(row))
        most = sum(limb * abs(factor) for limb, factor in zip(limbs, row, strict=True))
        assert most <= 2 ** (spec.reciprocal_bits - 7)


@pytest.mark.parametrize("moduli", COUNTS)
def test_scales_of_fp32_and_what_they_are_multiplied_by_are_normal_numbers_of_fp64(moduli):
    """As `reconstructed_fp32` and `residues` take for granted: by the definition in `scaling.py`, of the smallest line
    and the largest one."""
    bound = scaling(moduli).bound

    def scale(squares, e):
        return max(s for s in range(-200, 300) if Fraction(squares) * Fraction(4) ** (s + e - NORM_BITS) <= bound**2)

    smallest = scale((2 ** (NORM_BITS - 1) + 1) ** 2, -148)  # one element, 2**-149
    largest = scale(LONGEST_K << 2 * NORM_BITS, 128)
    assert -121 <= largest < smallest <= 211
    if moduli <= MOST_OF_64_BITS:
        assert smallest <= 180
        assert 63 - 2 * largest <= 1023
        assert -2 * smallest >= -1022


@pytest.mark.skipif(not INTERPRETED, reason="checks of the interpreter")
@pytest.mark.parametrize("moduli", range(FEWEST_MODULI, MOST_OF_64_BITS + 1))
def test_integers_of_64_bits_under_tritons_checks_of_overflow(moduli, monkeypatch):
    """As with TRITON_DEBUG=1: what wraps on purpose is not taken for an error."""
    monkeypatch.setattr(interpreter_builder, "options", InterpreterOptions(debug=True))
    expected = [(i - 8) * 10 ** (moduli - 1) + i for i in range(16)]
    residues = [[(x + 128) % p - 128 if p == 256 else (x + p // 2) % p - p // 2 for x in expected] for p in MODULI]
    found = torch.zeros(16, dtype=torch.int64)
    integers_kernel[(1,)](torch.tensor(residues[:moduli], dtype=torch.int8), found, crt64(moduli))
    assert found.tolist() == expected


@triton.jit
def integers_kernel(planes, out, C: tl.constexpr):
    at = tl.arange(0, 16)
    tl.store(out + at, integer_of_64_bits(Residues(planes, 16, 16), at, at < 16, C))
