"""From N planes of residues to fp64 or fp32: the Chinese remainder theorem, one rounding, and the epilogue.

1. The digits of the sum of weights times residues, and of the quotient by P times P, are exact in fp64 (`crt.py`).
2. Carries leave an integer |X| < P / 2 as three digits of which no two overlap.
3. They are added up with one rounding, to the precision of the result where that is a subnormal of fp64. For fp32 the
   sum is rounded to odd first, and to nearest where it becomes fp32.
4. It is scaled by a power of two; alpha, bias and C are added in fp64 as `device/epilogue.py` says.

Of fp32 and up to 8 moduli, steps 1 to 3 are sums of integers modulo 2**64, `integer_of_64_bits`, and a conversion.

Supports any sizes, strides of the output and C, batches; every GPU and the interpreter.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from tritonmm.device.constexpr_args import ConstexprArgs
from tritonmm.device.epilogue import plus_c, scaled_plus_bias
from tritonmm.device.exact_sum import fast_two_sum, odd_sum
from tritonmm.device.exponent import power_of_two, times_power_of_two
from tritonmm.device.numeric import multiple_of
from tritonmm.device.operand import Addends, Output
from tritonmm.device.pdl import follow_previous_grid
from tritonmm.ozaki import crt
from tritonmm.ozaki.crt import Crt64
from tritonmm.ozaki.norms_kernel import NONFINITE

FRACTION_BITS = tl.constexpr(crt.FRACTION_BITS)


@dataclass(frozen=True)
class ReconstructSpec(ConstexprArgs):
    """What `reconstruct_kernel` is compiled for. bits, weights, product, quotient: as in `crt.Crt`."""

    block_m: int
    block_n: int
    bits: int
    weights: tuple[tuple[float, ...], ...]
    product: tuple[float, ...]
    quotient: float
    scaled: bool  # alpha multiplies
    to_fp32: bool
    of_fp32: Crt64 | None = None  # where the operands and the output are fp32 and the integers fit int64

    @property
    def digit(self):
        """The unit of the middle digit."""
        return float(1 << self.bits)

    @property
    def digit_squared(self):
        """The unit of the highest digit."""
        return float(1 << 2 * self.bits)

    @property
    def per_digit(self):
        return 1.0 / self.digit


class Residues(NamedTuple):
    """Planes of residues of one matrix of a batch."""

    at: Any  # pointer to the first plane
    stride: Any  # elements from a plane to the next
    pitch: Any  # elements from a row to the next


@triton.jit
def wide(value: tl.constexpr):
    """A constant as fp64: Triton would take some for fp32."""
    return tl.full((), value, tl.float64)


@triton.jit
def nearest(x):
    """x of fp64 rounded to an integer, |x| < 2**51."""
    return (x + wide(6755399441055744.0)) - wide(6755399441055744.0)


@triton.jit
def accumulate_digit(x, residue, weight: tl.constexpr):
    """x + weight * residue, exact. A digit that is 0 adds nothing."""
    if weight != 0:
        x += residue * wide(weight)
    return x


@triton.jit
def carried(low, high, S: tl.constexpr):
    """Two neighbouring digits, with what the lower one has too much in the higher one."""
    carry = nearest(low * wide(S.per_digit))
    return low - carry * wide(S.digit), high + carry


@triton.jit
def integer(residues, at, inside, S: tl.constexpr):
    """The integers with these residues: three digits in units of 1, 2**bits and 4**bits, as fp64 in units of 1.

    at: offsets of the block in a plane. inside: which of them to load.
    """
    WEIGHTS: tl.constexpr = S.weights
    PRODUCT: tl.constexpr = S.product
    low = tl.zeros(at.shape, tl.float64)
    middle = tl.zeros(at.shape, tl.float64)
    high = tl.zeros(at.shape, tl.float64)
    plane = residues.at
    for i in tl.static_range(len(WEIGHTS)):
        loaded = tl.load(plane + at, mask=inside, other=0).to(tl.int32)
        # 2**52 + 128 + r by its bits: conversions to fp64 are slow.
        r = ((loaded + 128).to(tl.int64) | 0x4330000000000000).to(tl.float64, bitcast=True) - wide(4503599627370624.0)
        low = accumulate_digit(low, r, WEIGHTS[i][0])
        if len(PRODUCT) > 1:
            middle = accumulate_digit(middle, r, WEIGHTS[i][1])
        if len(PRODUCT) > 2:
            high = accumulate_digit(high, r, WEIGHTS[i][2])
        plane += residues.stride
    if len(PRODUCT) == 1:
        low -= nearest(low * wide(S.quotient)) * wide(PRODUCT[0])
    elif len(PRODUCT) == 2:
        quotient = nearest(middle * wide(S.quotient))
        low -= quotient * wide(PRODUCT[0])
        middle -= quotient * wide(PRODUCT[1])
        low, middle = carried(low, middle, S)
    else:
        quotient = nearest(high * wide(S.quotient))
        low -= quotient * wide(PRODUCT[0])
        middle -= quotient * wide(PRODUCT[1])
        high -= quotient * wide(PRODUCT[2])
        low, middle = carried(low, middle, S)
        middle, high = carried(middle, high, S)
    return low, middle * wide(S.digit), high * wide(S.digit_squared)


@triton.jit
def integer_of_64_bits(residues, at, inside, C: tl.constexpr):
    """The integers with these residues, |X| < 2**63, as int64. at, inside: as in `integer`."""
    LOW: tl.constexpr = C.low
    HIGH: tl.constexpr = C.high
    FRACTIONS: tl.constexpr = C.fractions
    START: tl.constexpr = C.start
    FRACTION: tl.constexpr = C.fraction
    PRODUCT: tl.constexpr = C.product
    low = tl.full(at.shape, START, tl.int64)
    high = tl.zeros(at.shape, tl.int32)
    quotient = tl.full(at.shape, FRACTION, tl.int32)
    plane = residues.at
    for i in tl.static_range(len(LOW)):
        loaded = tl.load(plane + at, mask=inside, other=0)
        r = (loaded.to(tl.uint8, bitcast=True) ^ 0x80).to(tl.int32)  # r + 128: unsigned is faster
        low += r.to(tl.int64) * LOW[i]
        high = tl.add(high, tl.mul(r, HIGH[i], sanitize_overflow=False), sanitize_overflow=False)  # modulo 2**32
        quotient += r * FRACTIONS[i]
        plane += residues.stride
    return low + (high.to(tl.int64) << 32) - (quotient >> FRACTION_BITS).to(tl.int64) * PRODUCT


@triton.jit
def fp64_of(x):
    """int64 x as fp64: exact below 2**53; else rounded to odd in units of 2**10, so that fp32 of it is rounded once."""
    odd = (x & -1024) | (tl.minimum(x & 1023, 1) << 10)
    return tl.where((x >> 53 == 0) | (x >> 53 == -1), x, odd).to(tl.float64)


@triton.jit
def reconstructed_fp32(residues, at, inside, row_scale, col_scale, C: tl.constexpr):
    """`reconstructed` of fp32 operands and at most 8 moduli."""
    x = fp64_of(integer_of_64_bits(residues, at, inside, C))
    return x * power_of_two(-row_scale)[:, None] * power_of_two(-col_scale)[None, :]  # exact: scales are -121 to 180


@triton.jit
def scaled_to_subnormals(high, low, e):
    """(high + low) * 2**e with one rounding, also where the result is a subnormal.

    There, 2**52 units of the last place of subnormals are added and subtracted: the first sum has no finer one.
    """
    unit = power_of_two(tl.maximum(tl.minimum(-1022 - e, 1020), -1022))
    x = high + low
    unit = tl.where(tl.abs(x) < unit, unit, 0.0)
    unit = tl.where(x < 0, -unit, unit)
    top, rest = fast_two_sum(unit, high)
    found = (top + odd_sum(rest, low)) - unit
    return times_power_of_two(tl.where(found == 0, x * 0.0, found), tl.maximum(e, -2044))  # 0 with the sign of x


@triton.jit
def reconstructed(residues, at, inside, row_scale, col_scale, S: tl.constexpr):
    """Elements of the product in fp64, those for fp32 rounded to odd. Scales: [rows] and [columns]."""
    low, middle, high = integer(residues, at, inside, S)
    e = -(row_scale[:, None] + col_scale[None, :])
    if len(S.product) > 2:
        high, middle = fast_two_sum(high, middle)
        low = odd_sum(middle, low)
    else:
        high = middle
    if S.to_fp32:
        x = times_power_of_two(odd_sum(high, low), e)
    elif tl.max(row_scale, axis=0) + tl.max(col_scale, axis=0) > 1022:  # an integer may be a subnormal
        x = scaled_to_subnormals(high, low, e)
    else:
        x = times_power_of_two(high + low, e)
    return x


@triton.jit
def reconstruct_kernel(
    planes, row_scales, col_scales, out, c, bias, alpha: tl.float64, beta: tl.float64, m, n, pitch, skip,
    out_strides, c_strides, S: tl.constexpr,
):  # fmt: skip
    """out[batch] = alpha * X * 2**-(row_scales + col_scales) + bias + beta * C, where finite.

    planes: int8 residues of X, [batch, moduli, m, pitch]; pitch is a multiple of 16. row_scales: int32 [batch, m];
    col_scales: [batch, n]. Elements of rows and columns with an infinity or NaN are not written. skip: None, or one
    int32: nothing is written if it is not 0.
    out, c: strides along the batch, rows and columns. bias: [n]. Grid: batch x blocks of rows x blocks of columns.
    """
    follow_previous_grid()
    if skip is not None and tl.load(skip) != 0:
        return
    stride_ob, stride_om, stride_on = out_strides
    stride_cb, stride_cm, stride_cn = c_strides
    pitch = multiple_of(pitch, 16)
    MODULI: tl.constexpr = len(S.weights)
    FP32: tl.constexpr = S.of_fp32
    blocks_m, blocks_n = tl.cdiv(m, S.block_m), tl.cdiv(n, S.block_n)
    col = tl.program_id(0) % blocks_n * S.block_n
    row = tl.program_id(0) // blocks_n % blocks_m * S.block_m
    batch = (tl.program_id(0) // blocks_n // blocks_m).to(tl.int64)
    rows, cols = tl.arange(0, S.block_m), tl.arange(0, S.block_n)
    of_rows, of_cols = rows < m - row, cols < n - col
    row_scale = tl.load(row_scales + batch * m + row + rows, mask=of_rows, other=0)
    col_scale = tl.load(col_scales + batch * n + col + cols, mask=of_cols, other=0)
    finite_rows, finite_cols = row_scale != NONFINITE, col_scale != NONFINITE
    row_scale, col_scale = tl.where(finite_rows, row_scale, 0), tl.where(finite_cols, col_scale, 0)
    plane = tl.cast(m, tl.int64) * pitch
    residues = Residues(planes + batch * MODULI * plane + row.to(tl.int64) * pitch + col, plane, pitch)
    at = rows[:, None] * pitch + cols[None, :]
    inside = of_rows[:, None] & (cols < pitch - col)[None, :]
    if FP32 is None:
        x = reconstructed(residues, at, inside, row_scale, col_scale, S)
    else:
        x = reconstructed_fp32(residues, at, inside, row_scale, col_scale, FP32)
    inside = (of_rows & finite_rows)[:, None] & (of_cols & finite_cols)[None, :]
    addends = Addends(c, stride_cb, stride_cm, stride_cn, bias, alpha, beta)
    output = Output(out, stride_ob, stride_om, stride_on)
    finish(x, batch, row, col, inside, of_cols, output, addends, S.scaled)


@triton.jit
def finish(x, batch, row, col, inside, of_cols, output, addends, SCALED: tl.constexpr):
    """Applies the epilogue to a block of fp64 values at (row, col) and stores those `inside`."""
    rows = tl.arange(0, x.shape[0]).to(tl.int64)
    cols = tl.arange(0, x.shape[1]).to(tl.int64)
    down, across = row.to(tl.int64), col.to(tl.int64)
    bias = None
    if addends.bias is not None:
        bias = tl.load(addends.bias + col + cols, mask=of_cols, other=0.0).to(tl.float64)[None, :]
    x = scaled_plus_bias(x, None, None, tl.full((), addends.alpha, tl.float64) if SCALED else None, bias)
    if addends.c is not None:
        first = addends.c + batch * addends.stride_cb + down * addends.stride_cm + across * addends.stride_cn
        c = tl.load(first + rows[:, None] * addends.stride_cm + cols[None, :] * addends.stride_cn, mask=inside, other=0)
        x = plus_c(x, tl.full((), addends.beta, tl.float64), c)
    first = output.pointer + batch * output.stride_b + down * output.stride_m + across * output.stride_n
    target = first + rows[:, None] * output.stride_m + cols[None, :] * output.stride_n
    tl.store(target, x.to(output.pointer.dtype.element_ty), mask=inside)
