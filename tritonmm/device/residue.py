"""Residues and remainders of int32 sums, which a byte holds."""

import triton
import triton.language as tl


@triton.jit
def residue(x, modulus, reciprocal):
    """The residue of x modulo `modulus`, in -128..127, as int32.

    x: int32, |x| <= 2**31 - 2**14. modulus: up to 256. reciprocal: 2**38 / modulus, rounded to nearest, int64.
    The quotient is off by at most 2**-8, and where that rounds to another integer the residue still fits int8: of 255,
    the one modulus with no room, the reciprocal is off by at most a quarter.
    """
    quotient = ((x.to(tl.int64) * reciprocal + (1 << 37)) >> 38).to(tl.int32)
    return x - quotient * modulus


@triton.jit
def remainder(x, modulus, reciprocal, BITS: tl.constexpr):
    """The remainder of x modulo `modulus`, in 0..modulus, as int32: `modulus` itself may stand for 0.

    x: int32, |x| <= 2**(BITS - 7). modulus: 129 to 255. reciprocal: 2**BITS / modulus, rounded to nearest.
    BITS: 32, where the quotient is the upper half of a product of int32, or 38, which takes a shift more.
    Before it is rounded down the quotient is off by at most 2**-8, less than 1 / modulus. So it becomes the right
    integer, or the one below that if x is a multiple of `modulus`.
    """
    return x - ((x.to(tl.int64) * reciprocal) >> BITS).to(tl.int32) * modulus


@triton.jit
def residue_in_plane(x, plane, MODULI: tl.constexpr):
    """`residue` of x modulo MODULI[plane]. It is called from Gluon, too, where constants have no tl.full."""
    modulus = plane.to(tl.int32) * 0 + MODULI[0]
    reciprocal = plane.to(tl.int32) * 0 + ((1 << 38) + MODULI[0] // 2) // MODULI[0]
    for i in tl.static_range(1, len(MODULI)):
        modulus = tl.where(plane == i, MODULI[i], modulus)
        reciprocal = tl.where(plane == i, ((1 << 38) + MODULI[i] // 2) // MODULI[i], reciprocal)
    return residue(x, modulus, reciprocal.to(tl.int64))
