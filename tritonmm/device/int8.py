"""Packed int8 weights as the bf16 or fp16 that tensor cores multiply, exactly: `nn/int8.py` has their order.

A 32-bit register holds the 4 weights of a row that one thread of wgmma's first operand multiplies of 16 elements of K.
Weights become numbers as `dequantize.py` says, but the signs of the bytes are flipped in memory: four instructions for
four weights, and bf16 comes divided by 64.
"""

import triton
import triton.language as tl


@triton.jit
def unpacked(words, DTYPE: tl.constexpr):
    """words, int16 [rows, k / 2], as weights [rows, k] in DTYPE, bf16 or fp16: in bf16 divided by 64, on sm_80 and
    later. A thread must hold words in pairs of neighbours."""
    if DTYPE == tl.bfloat16:
        a, b = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 byte, most, back;
            mov.b32 most, 0x7f007f00;
            mov.b32 back, 0xc000c000;
            prmt.b32 byte, $2, 0, 0x4140;
            fma.rn.bf16x2 $0, byte, most, back;
            prmt.b32 byte, $2, 0, 0x4342;
            fma.rn.bf16x2 $1, byte, most, back;
            }
            """,
            "=r,=r,r", [words], (tl.bfloat16, tl.bfloat16), is_pure=True, pack=2,
        )  # fmt: skip
    else:
        a, b = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 byte, bias;
            mov.b32 bias, 0x64806480;
            prmt.b32 byte, $2, 0x64646464, 0x4140;
            sub.rn.f16x2 $0, byte, bias;
            prmt.b32 byte, $2, 0x64646464, 0x4342;
            sub.rn.f16x2 $1, byte, bias;
            }
            """,
            "=r,=r,r", [words], (tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    return in_order(a, b)


@triton.jit
def unpacked_times(words, power):
    """`unpacked` in bf16, times a power of two up to 1 that fits the shape of words, exactly."""
    most = (power.to(tl.float32) * 2.0**127).to(tl.bfloat16)
    back = (power.to(tl.float32) * -2.0).to(tl.bfloat16)
    a, b = tl.inline_asm_elementwise(
        """
        {
        .reg .b32 byte;
        prmt.b32 byte, $2, 0, 0x4140;
        fma.rn.bf16x2 $0, byte, $3, $4;
        prmt.b32 byte, $2, 0, 0x4342;
        fma.rn.bf16x2 $1, byte, $3, $4;
        }
        """,
        "=r,=r,r,r,r", [words, most, back], (tl.bfloat16, tl.bfloat16), is_pure=True, pack=2,
    )  # fmt: skip
    return in_order(a, b)


@triton.jit
def in_order(a, b):
    """Weights in the order of K, [rows, k]; a and b, [rows, k / 2], have those of the halves of each 16."""
    ROWS: tl.constexpr = a.shape[0]
    WORDS: tl.constexpr = a.shape[1]
    x = tl.reshape(tl.join(a, b), (ROWS, WORDS // 8, 8, 2))
    return tl.reshape(tl.permute(x, (0, 1, 3, 2)), (ROWS, WORDS * 2))


@triton.jit
def packed_k(k):
    """Bytes of a packed row of k weights."""
    return (k + 15) // 16 * 16


@triton.jit
def signed(x):
    """Bytes of packed weights as int8."""
    return x ^ -128


@triton.jit
def packed_order(x):
    """x [rows, k] with each 16 of its k in the order of packed weights."""
    ROWS: tl.constexpr = x.shape[0]
    K: tl.constexpr = x.shape[1]
    return x.reshape(ROWS, K // 16, 2, 4, 2).permute(0, 1, 3, 2, 4).reshape(ROWS, K)
