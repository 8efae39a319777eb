"""Rows as fp8 with a scale each: what activations become on their way to fp8 tensor cores."""

import triton
import triton.language as tl

from tritonmm.device.pdl import follow_previous_grid


@triton.jit
def quantize_rows_kernel(x, codes, scales, k, stride, MOST: tl.constexpr, BLOCK: tl.constexpr):
    """A program a row: scale = the largest |x| / MOST, at least 2**-126, and codes = x / scale.

    x: rows `stride` elements apart, contiguous along k. codes: [rows, k]. A row with a NaN or an infinity has a scale
    of NaN.
    """
    follow_previous_grid()
    row = tl.program_id(0).to(tl.int64)
    x += row * stride
    codes += row * k
    cols = tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], tl.int32)  # bits of |x|, which are in its order, and those of NaN are the largest
    for first in range(0, k, BLOCK):
        part = tl.load(x + first + cols, mask=first + cols < k, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, part.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    bits = tl.max(largest, 0)
    most = bits.to(tl.float32, bitcast=True)
    scale = tl.where(bits < 0x7F800000, tl.maximum(tl.div_rn(most, MOST), 2.0**-126), float("nan"))
    tl.store(scales + row, scale)
    for first in range(0, k, BLOCK):
        part = tl.load(x + first + cols, mask=first + cols < k, other=0.0).to(tl.float32)
        part = tl.div_rn(part, scale).to(codes.dtype.element_ty, fp_downcast_rounding="rtne")
        tl.store(codes + first + cols, part, mask=first + cols < k)
