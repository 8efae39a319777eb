"""4-bit weights as the bf16 or fp16 that tensor cores multiply, exactly: `nn/int4.py` has the order of their bits.

A 32-bit register holds the 8 weights of a row that one thread of wgmma's first operand multiplies of 32 elements of K,
each pair of neighbours 16 bits apart. So one AND takes two weights to where the two numbers of a register begin, and
one multiplication and addition makes numbers of them: 9 instructions for 8 weights.

As the bits of a bf16, a nibble counts 2**-133 or, four bits higher, 2**-129: among the smallest numbers bits count the
same whether they belong to the mantissa or not. No power of two leads back from there to 1 in one step, so weights in
bf16 come divided by 64, as int8 does. In fp16 a nibble is in the mantissa of 1024.
"""

import triton
import triton.language as tl

ZERO = tl.constexpr(8)
"""The code of the weight 0."""


@triton.jit
def unpacked(words, DTYPE: tl.constexpr):
    """words, int16 [rows, k / 4], as weights [rows, k] in DTYPE, bf16 or fp16: in bf16 divided by 64, on sm_80 and
    later. A thread must hold words in pairs of neighbours."""
    if DTYPE == tl.bfloat16:
        a, b, c, d = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 nibbles, high, low_unit, high_unit, zero;
            mov.b32 low_unit, 0x7f007f00;
            mov.b32 high_unit, 0x7d007d00;
            mov.b32 zero, 0xbe00be00;
            and.b32 nibbles, $4, 0x000f000f;
            fma.rn.bf16x2 $0, nibbles, low_unit, zero;
            and.b32 nibbles, $4, 0x00f000f0;
            fma.rn.bf16x2 $1, nibbles, high_unit, zero;
            shr.b32 high, $4, 8;
            and.b32 nibbles, high, 0x000f000f;
            fma.rn.bf16x2 $2, nibbles, low_unit, zero;
            and.b32 nibbles, high, 0x00f000f0;
            fma.rn.bf16x2 $3, nibbles, high_unit, zero;
            }
            """,
            "=r,=r,=r,=r,r", [words],
            (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2,
        )  # fmt: skip
    else:
        a, b, c, d = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 nibbles, high, bias, high_unit, high_bias;
            mov.b32 bias, 0x64086408;
            mov.b32 high_unit, 0x2c002c00;
            mov.b32 high_bias, 0xd480d480;
            lop3.b32 nibbles, $4, 0x000f000f, 0x64006400, 0xea;
            sub.rn.f16x2 $0, nibbles, bias;
            lop3.b32 nibbles, $4, 0x00f000f0, 0x64006400, 0xea;
            fma.rn.f16x2 $1, nibbles, high_unit, high_bias;
            shr.b32 high, $4, 8;
            lop3.b32 nibbles, high, 0x000f000f, 0x64006400, 0xea;
            sub.rn.f16x2 $2, nibbles, bias;
            lop3.b32 nibbles, high, 0x00f000f0, 0x64006400, 0xea;
            fma.rn.f16x2 $3, nibbles, high_unit, high_bias;
            }
            """,
            "=r,=r,=r,=r,r", [words],
            (tl.float16, tl.float16, tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    return in_order(a, b, c, d)


@triton.jit
def unpacked_from(words, zero, DTYPE: tl.constexpr):
    """`unpacked`, where the code of the weight 0 is `zero`, fp32, which fits the shape of words."""
    if DTYPE == tl.bfloat16:
        back = (zero * -0.015625).to(tl.bfloat16)
        a, b, c, d = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 nibbles, high, low_unit, high_unit;
            mov.b32 low_unit, 0x7f007f00;
            mov.b32 high_unit, 0x7d007d00;
            and.b32 nibbles, $4, 0x000f000f;
            fma.rn.bf16x2 $0, nibbles, low_unit, $5;
            and.b32 nibbles, $4, 0x00f000f0;
            fma.rn.bf16x2 $1, nibbles, high_unit, $5;
            shr.b32 high, $4, 8;
            and.b32 nibbles, high, 0x000f000f;
            fma.rn.bf16x2 $2, nibbles, low_unit, $5;
            and.b32 nibbles, high, 0x00f000f0;
            fma.rn.bf16x2 $3, nibbles, high_unit, $5;
            }
            """,
            "=r,=r,=r,=r,r,r", [words, back],
            (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2,
        )  # fmt: skip
    else:
        bias = (zero + 1024.0).to(tl.float16)
        high_bias = (-64.0 - zero).to(tl.float16)
        a, b, c, d = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 nibbles, high, high_unit;
            mov.b32 high_unit, 0x2c002c00;
            lop3.b32 nibbles, $4, 0x000f000f, 0x64006400, 0xea;
            sub.rn.f16x2 $0, nibbles, $5;
            lop3.b32 nibbles, $4, 0x00f000f0, 0x64006400, 0xea;
            fma.rn.f16x2 $1, nibbles, high_unit, $6;
            shr.b32 high, $4, 8;
            lop3.b32 nibbles, high, 0x000f000f, 0x64006400, 0xea;
            sub.rn.f16x2 $2, nibbles, $5;
            lop3.b32 nibbles, high, 0x00f000f0, 0x64006400, 0xea;
            fma.rn.f16x2 $3, nibbles, high_unit, $6;
            }
            """,
            "=r,=r,=r,=r,r,r,r", [words, bias, high_bias],
            (tl.float16, tl.float16, tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    return in_order(a, b, c, d)


@triton.jit
def unpacked_times(words, power, zero):
    """`unpacked_from` in bf16, times a power of two up to 1 that fits the shape of words, exactly."""
    low_unit = (power.to(tl.float32) * 2.0**127).to(tl.bfloat16)
    high_unit = (power.to(tl.float32) * 2.0**123).to(tl.bfloat16)
    zero = (power.to(tl.float32) * (zero * -0.015625)).to(tl.bfloat16)
    a, b, c, d = tl.inline_asm_elementwise(
        """
        {
        .reg .b32 nibbles, high;
        and.b32 nibbles, $4, 0x000f000f;
        fma.rn.bf16x2 $0, nibbles, $5, $7;
        and.b32 nibbles, $4, 0x00f000f0;
        fma.rn.bf16x2 $1, nibbles, $6, $7;
        shr.b32 high, $4, 8;
        and.b32 nibbles, high, 0x000f000f;
        fma.rn.bf16x2 $2, nibbles, $5, $7;
        and.b32 nibbles, high, 0x00f000f0;
        fma.rn.bf16x2 $3, nibbles, $6, $7;
        }
        """,
        "=r,=r,=r,=r,r,r,r,r", [words, low_unit, high_unit, zero],
        (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2,
    )  # fmt: skip
    return in_order(a, b, c, d)


@triton.jit
def in_order(a, b, c, d):
    """Weights in the order of K, [rows, k], from the lowest to the highest nibble of each word, [rows, k / 4]."""
    ROWS: tl.constexpr = a.shape[0]
    WORDS: tl.constexpr = a.shape[1]
    x = tl.join(tl.join(a, c), tl.join(b, d))  # [rows, word, half of 32 elements of K, half of that]
    x = tl.reshape(x, (ROWS, WORDS // 8, 8, 2, 2))
    return tl.reshape(tl.permute(x, (0, 1, 3, 4, 2)), (ROWS, WORDS * 4))


@triton.jit
def scale_of(coded):
    """The scale, fp32, that has a zero point in its last 4 bits: see `nn/int4.py`."""
    return (coded.to(tl.int32, bitcast=True) & -16).to(tl.float32, bitcast=True)


@triton.jit
def zero_point_of(coded):
    """The code of the weight 0, fp32, that is in the last 4 bits of a scale."""
    return ((coded.to(tl.int32, bitcast=True) & 15) ^ ZERO).to(tl.float32)


@triton.jit
def plain_unpacked(codes, DTYPE: tl.constexpr):
    """codes, uint8 [k / 2, columns], as weights [k, columns] in DTYPE: for any GPU, and for the interpreter."""
    BYTES: tl.constexpr = codes.shape[0]
    COLS: tl.constexpr = codes.shape[1]
    x = tl.join(codes & 15, codes >> 4).to(tl.int8) - ZERO  # [byte, column, half of 16 elements of K]
    x = tl.reshape(x.to(DTYPE), (BYTES // 16, 8, 2, COLS, 2))
    return tl.reshape(tl.permute(x, (0, 2, 4, 1, 3)), (BYTES * 2, COLS))
