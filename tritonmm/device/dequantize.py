"""8-bit weights as the bf16 or fp16 that tensor cores multiply: exactly, and at one or two instructions each for
the conversion alone.

A GPU that streams 4.3 TB/s brings each SM of an H200 19 weights a cycle, and an SM issues 128 instructions of a thread
in that time. What compilers make of int8 -> bf16 and of fp8 -> bf16 takes more than that leaves for the rest.

Integers are converted by their place in a number: a byte in the mantissa of one whose last bit counts 1 is that number
plus the byte. A bf16 has no such place for 8 bits but among its smallest numbers, from where no power of two leads back
in one step: those come divided by a `unit`, which kernels multiply their scales by.
"""

import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq


@triton.constexpr_function
def unit(w_dtype, dtype):
    """A weight divided by the number that `dequantized` returns for it: a power of two, so that nothing is rounded."""
    return 64.0 if w_dtype == tl.int8 and dtype == tl.bfloat16 and cuda_capability_geq(8) else 1.0


@triton.jit
def dequantized(weights, DTYPE: tl.constexpr, FOUR: tl.constexpr):
    """weights, int8 or fp8, divided by `unit`, in DTYPE, bf16 or fp16: exactly; NaN stays NaN."""
    if weights.dtype == tl.int8 and cuda_capability_geq(8):
        weights = _int8_as_bf16(weights, FOUR) if DTYPE == tl.bfloat16 else _int8_as_fp16(weights)
    elif weights.dtype != tl.int8 and DTYPE == tl.bfloat16:
        weights = weights.to(tl.float32).to(tl.bfloat16)  # directly, each would be converted by itself
    else:
        weights = weights.to(DTYPE)
    return weights


@triton.jit
def power_and_significand(scale):
    """scale, fp32, as a power of two up to 1, in bf16, times a significand, from 1 to 2 if the scale is below 2.

    A scale below 2**-126 counts as 0, of power 0 and significand 1; inf and NaN are in the significand.
    """
    bits = tl.minimum(scale.to(tl.int32, bitcast=True) & 0x7F800000, 0x3F800000)
    power = bits.to(tl.float32, bitcast=True)
    inverse = (0x7F000000 - bits).to(tl.float32, bitcast=True)
    return power.to(tl.bfloat16), tl.where(bits == 0, 1.0, scale * inverse)


@triton.jit
def dequantized_times(weights, power):
    """`dequantized` weights, two at a time, in bf16, times a power of two up to 1 that fits their shape, exactly."""
    if weights.dtype == tl.int8:
        # What `_int8_as_bf16` multiplies by and adds.
        most = (power.to(tl.float32) * 2.0**127).to(tl.bfloat16)
        back = (power.to(tl.float32) * -2.0).to(tl.bfloat16)
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 byte;
            prmt.b32 byte, $1, 0, 0x4140;
            xor.b32 byte, byte, 0x00800080;
            fma.rn.bf16x2 $0, byte, $2, $3;
            }
            """,
            "=r,r,r,r", [weights, most, back], tl.bfloat16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        weights = dequantized(weights, tl.bfloat16, False)
        return tl.inline_asm_elementwise(
            "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", [weights, power], tl.bfloat16, is_pure=True, pack=2
        )


@triton.jit
def as_fp32(weights):
    """weights, of any dtype, in fp32, where CUDA cores multiply them."""
    # Conversions of integers have a lower rate than the three instructions that do the same.
    by_bits: tl.constexpr = weights.dtype == tl.int8 and cuda_capability_geq(8)
    return _int8_as_fp32(weights) if by_bits else weights.to(tl.float32)


@triton.jit
def _int8_as_fp32(weights):
    """Four at a time: 2**23 + 128 + the weight is 2**23 + the byte whose sign is flipped."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 flipped, byte;
        xor.b32 flipped, $4, 0x80808080;
        prmt.b32 byte, flipped, 0x4b000000, 0x7440;
        sub.rn.f32 $0, byte, 0f4b000080;
        prmt.b32 byte, flipped, 0x4b000000, 0x7441;
        sub.rn.f32 $1, byte, 0f4b000080;
        prmt.b32 byte, flipped, 0x4b000000, 0x7442;
        sub.rn.f32 $2, byte, 0f4b000080;
        prmt.b32 byte, flipped, 0x4b000000, 0x7443;
        sub.rn.f32 $3, byte, 0f4b000080;
        }
        """,
        "=r,=r,=r,=r,r", [weights], tl.float32, is_pure=True, pack=4,
    )  # fmt: skip


@triton.jit
def _int8_as_bf16(weights, FOUR: tl.constexpr):
    """Divided by 64: four bytes of a register at a time, or two. As the bits of a bf16, a byte counts its last bit
    2**-133, subnormal or not, so one multiplication and addition brings 128 + the weight to where bf16 ends.
    """
    if FOUR:
        weights = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 flipped, byte, most, back;
            mov.b32 most, 0x7f007f00;
            mov.b32 back, 0xc000c000;
            xor.b32 flipped, $2, 0x80808080;
            prmt.b32 byte, flipped, 0, 0x4140;
            fma.rn.bf16x2 $0, byte, most, back;
            prmt.b32 byte, flipped, 0, 0x4342;
            fma.rn.bf16x2 $1, byte, most, back;
            }
            """,
            "=r,=r,r", [weights], tl.bfloat16, is_pure=True, pack=4,
        )  # fmt: skip
    else:
        weights = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 byte, most, back;
            mov.b32 most, 0x7f007f00;
            mov.b32 back, 0xc000c000;
            prmt.b32 byte, $1, 0, 0x4140;
            xor.b32 byte, byte, 0x00800080;
            fma.rn.bf16x2 $0, byte, most, back;
            }
            """,
            "=r,r", [weights], tl.bfloat16, is_pure=True, pack=2,
        )  # fmt: skip
    return weights


@triton.jit
def _int8_as_fp16(weights):
    """Four at a time: 1024 + 128 + the weight is 1024 + the byte whose sign is flipped."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 flipped, byte, bias;
        mov.b32 bias, 0x64806480;
        xor.b32 flipped, $2, 0x80808080;
        prmt.b32 byte, flipped, 0x64646464, 0x4140;
        sub.rn.f16x2 $0, byte, bias;
        prmt.b32 byte, flipped, 0x64646464, 0x4342;
        sub.rn.f16x2 $1, byte, bias;
        }
        """,
        "=r,=r,r", [weights], tl.float16, is_pure=True, pack=4,
    )  # fmt: skip


@triton.jit
def interleaved(x):
    """x [rows, k] with each 64 of its k in another order, in which a thread multiplies 16 that lie side by side.

    mma.sync gives the k of a step to four threads in turn, four to each where operands come from bytes. A product in
    which both operands' k are in this order is the same product, and each thread loads 16 weights at once.
    """
    ROWS: tl.constexpr = x.shape[0]
    K: tl.constexpr = x.shape[1]
    return x.reshape(ROWS, K // 64, 4, 4, 4).permute(0, 1, 3, 2, 4).reshape(ROWS, K)
