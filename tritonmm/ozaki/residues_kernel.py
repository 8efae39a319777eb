"""Residues of an operand's lines, scaled to integers: a plane of int8 for each modulus, contiguous along K.

A program reads a block of lines by K once and writes it to all planes. A scaled element is rounded to an integer of up
to 63 bits, which is cut into limbs. Modulo p it is the sum of the limbs times powers of two modulo p, which
`device.residue.remainder` reduces: two limbs are cut so that it is below 2**25, three of 21 bits so that it is below
2**30.

The remainder is 0 to p. 128 is added to the integer before, and subtracted from the remainder, which is then a residue
in -128..127. Neither costs an instruction per element: the addition is part of the rounding, and the subtraction flips
the top bit of each byte, four bytes at once.

Supports fp32 and fp64; any sizes, strides and alignment; every GPU and the interpreter.
"""

from dataclasses import dataclass

import triton
import triton.language as tl

from tritonmm.device.constexpr_args import ConstexprArgs
from tritonmm.device.exponent import power_of_two, times_power_of_two
from tritonmm.device.numeric import block_offsets, multiple_of
from tritonmm.device.pdl import follow_previous_grid
from tritonmm.device.residue import remainder
from tritonmm.ozaki.norms_kernel import NONFINITE, ScaleSpec, line_scales, store_scales
from tritonmm.ozaki.rule_kernel import counted

LIMB = 21
"""Bits of each of three limbs."""

UPPER_LIMB = 18
"""Bits of the signed upper limb of two: at most 2**17, so at most 2**24 times a factor of at most 2**7."""

MIDDLE = tl.constexpr(128)
"""Added to integers, and subtracted from remainders."""


@dataclass(frozen=True)
class ResidueSpec(ConstexprArgs):
    """What `residues_kernel` is compiled for."""

    lines: int  # of a block
    block_k: int
    moduli: tuple[int, ...]
    integer_bits: int  # magnitudes of scaled elements are below 2**integer_bits
    wide: bool  # offsets within a block of the operand have 64 bits
    along_k: bool = True  # the operand is contiguous along K
    threshold: float = 0.0  # `rule.Rule.threshold`, where elements are counted
    scale: ScaleSpec | None = None  # of `line_scales`, where scales are found here

    @property
    def limbs(self):
        """Limbs of an integer, the last one signed. One if integers are in the range that `remainder` reduces."""
        if self.integer_bits <= 24:
            return 1
        return 2 if self.integer_bits + 1 - UPPER_LIMB <= 23 else 3

    @property
    def limb(self):
        """Bits of a limb but the last one."""
        return self.integer_bits + 1 - UPPER_LIMB if self.limbs == 2 else LIMB

    @property
    def factors(self):
        """For each modulus, what limbs are multiplied by: 2**limb and 4**limb modulo it, of least magnitude."""
        factors = [[(1 << (self.limb * i)) % p for i in range(self.limbs)] for p in self.moduli]
        return tuple(tuple(x - p if 2 * x > p else x for x in row) for p, row in zip(self.moduli, factors, strict=True))

    @property
    def reciprocal_bits(self):
        """BITS of `device.residue.remainder`, for sums of limbs."""
        return 38 if self.limbs == 3 else 32

    @property
    def reciprocals(self):
        """2**reciprocal_bits over each modulus, rounded."""
        return tuple(((1 << self.reciprocal_bits) + p // 2) // p for p in self.moduli)


@triton.jit
def nearest_integer(x, BITS: tl.constexpr, ADDED: tl.constexpr):
    """x of fp64, |x| < 2**BITS <= 2**63, rounded to nearest, ties to even, plus ADDED, as int64. ADDED: even, small."""
    if BITS < 51:  # the sum has an exponent for which the integer is in its lowest bits
        shift = tl.full((), 6755399441055744.0 + ADDED, tl.float64)  # fp32 does not have it
        return (x + shift).to(tl.int64, bitcast=True) - 0x4338000000000000
    shift = tl.where(x < 0, -4503599627370496.0, 4503599627370496.0)
    return tl.where(tl.abs(x) < 4503599627370496.0, (x + shift) - shift, x).to(tl.int64) + ADDED


@triton.jit
def residues(
    program, x, norms, scales, planes, counts, special, lines, k, held_lines, pitch, chunks,
    stride_xb, stride_line, stride_k, S: tl.constexpr,
):  # fmt: skip
    """What one program of `residues_kernel` does for its operand, of batch x blocks of lines x blocks of K."""
    MODULI: tl.constexpr = S.moduli
    FACTORS: tl.constexpr = S.factors
    RECIPROCALS: tl.constexpr = S.reciprocals
    LIMBS: tl.constexpr = S.limbs
    LIMB_BITS: tl.constexpr = S.limb
    LOWEST: tl.constexpr = (1 << S.limb) - 1
    SCALE: tl.constexpr = S.scale
    pitch = multiple_of(pitch, 16)
    steps, blocks = tl.cdiv(pitch, S.block_k), tl.cdiv(lines, S.lines)
    depth = program % steps * S.block_k
    line = program // steps % blocks * S.lines
    batch = (program // steps // blocks).to(tl.int64)
    first = x + batch * stride_xb + line.to(tl.int64) * stride_line + depth.to(tl.int64) * stride_k
    across, along = block_offsets(S.lines, S.wide), block_offsets(S.block_k, S.wide)
    of_block = tl.arange(0, S.lines)
    of_lines = of_block < lines - line
    inside = of_lines[:, None] & (along < k - depth)[None, :]
    if norms is None:
        scale = tl.load(scales + batch * lines + line + of_block, mask=of_lines, other=0)
    else:
        scale = line_scales(norms, batch * lines + line + of_block, of_lines, chunks, SCALE)
        if depth == 0:
            store_scales(scale, scales, special, batch * lines + line + of_block, of_lines)
    finite = scale != NONFINITE
    source = first + across[:, None] * stride_line + along[None, :] * stride_k
    if not S.along_k:  # Triton 3.9 then loads in the layout of the stores: else residues go through shared memory
        source = tl.max_contiguous(source, (1, 1))
    loaded = tl.load(source, mask=inside, other=0.0)
    loaded = tl.where(finite[:, None], loaded, 0.0).to(tl.float64)
    scale = tl.where(finite, scale, 0)[:, None]
    if x.dtype.element_ty == tl.float32:  # noqa: SIM108  # whose scales are -121 to 211
        scaled = loaded * power_of_two(scale)
    else:
        scaled = times_power_of_two(loaded, scale)
    integer = nearest_integer(scaled, S.integer_bits, MIDDLE)
    if counts is not None:
        found = counted(loaded, scaled, integer - MIDDLE, S.threshold)
        tl.atomic_add(counts + batch * lines + line + of_block, found, mask=of_lines, sem="relaxed")
    at = (batch * len(MODULI) * held_lines + line) * pitch + depth
    target = planes + at + (of_block[:, None] * pitch + tl.arange(0, S.block_k)[None, :])
    held = of_lines[:, None] & (tl.arange(0, S.block_k) < pitch - depth)[None, :]
    if LIMBS == 1:
        low, middle, high = integer.to(tl.int32), None, None
    elif LIMBS == 2:
        low, middle, high = integer.to(tl.int32) & LOWEST, (integer >> LIMB_BITS).to(tl.int32), None
    else:
        low, middle = integer.to(tl.int32) & LOWEST, (integer >> LIMB_BITS).to(tl.int32) & LOWEST
        high = (integer >> 2 * LIMB_BITS).to(tl.int32)
    for i in tl.static_range(len(MODULI)):
        summed = low
        if MODULI[i] != 256:  # else the remainder is the low byte of the low limb
            if LIMBS > 1:
                summed += middle * FACTORS[i][1]
            if LIMBS > 2:
                summed += high * FACTORS[i][2]
            summed = remainder(summed, MODULI[i], RECIPROCALS[i], S.reciprocal_bits)
        tl.store(target, summed.to(tl.int8) ^ -128, mask=held)  # MIDDLE less
        target += tl.cast(held_lines, tl.int64) * pitch


@triton.jit(do_not_specialize=["first_of_b"])
def residues_kernel(
    a, a_norms, a_scales, a_planes, a_counts, a_special, b, b_norms, b_scales, b_planes, b_counts, b_special,
    a_lines, b_lines, a_held_lines, b_held_lines, k, pitch, chunks, first_of_b,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bn, stride_bk, A: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """planes[batch, i, line, :k] = the residues of 2**scales[batch, line] * x[batch, line] modulo S.moduli[i].

    Elements from k to pitch, a multiple of 16, are 0; lines from `lines` to held_lines are not written. Lines with an
    infinity or NaN are zeros. counts: None, or what `rule_kernel.counted` finds is added to those of each line.
    norms: None, or those of `chunk_norms_kernel`: then scales are found from them and stored, and special is set to 1
    if one is NONFINITE. b: the other operand, or None. Grid: the programs of a, which are first_of_b, and those of b.
    """
    follow_previous_grid()
    program = tl.program_id(0)
    if b is None or program < first_of_b:
        residues(
            program, a, a_norms, a_scales, a_planes, a_counts, a_special, a_lines, k, a_held_lines, pitch, chunks,
            stride_ab, stride_am, stride_ak, A,
        )  # fmt: skip
    else:
        residues(
            program - first_of_b, b, b_norms, b_scales, b_planes, b_counts, b_special, b_lines, k, b_held_lines, pitch,
            chunks, stride_bb, stride_bn, stride_bk, B,
        )  # fmt: skip
