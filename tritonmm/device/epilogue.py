"""From a tile's sums to its output: one sequence of floating-point operations, which all kernel families share.

    scales                  x = (x * scale_a) * scale_b, of tensors or of rows and columns
    scales of groups of K   x = x + part * (scale_a * scale_b), or x + (part * scale_b) * scale_a, for each group
    alpha                   x = x * alpha
    bias                    x = x + bias
    C                       x = x + beta * c

in fp32, or in fp64 for fp64. Each operation is left out where the problem lacks its operand, and rounds once. An
addition and the multiplication right before it are one fma; the multiplication of C is always its addition's. These
fma are explicit: which ones a compiler would choose depends on its version.

Plain Triton and Gluon kernels call the same functions: they only use operations that take layouts from their operands.
"""

import triton
import triton.language as tl


@triton.jit
def scaled_plus_bias(x, scale_a, scale_b, alpha, bias):
    """x * scale_a * scale_b * alpha + bias, where None is left out.

    x: sums. scale_b is given if scale_a is. All broadcast to x's shape and have its dtype.
    """
    factor = scale_b
    if scale_a is not None:
        x = x * scale_a
    if alpha is not None:
        if factor is not None:
            x = x * factor
        factor = alpha
    if bias is not None:
        x = tl.fma(x, factor, bias) if factor is not None else x + bias
    elif factor is not None:
        x = x * factor
    return x


@triton.jit
def plus_c(x, beta, c):
    """x + beta * c. c: as x, but of any dtype. It is loaded after `scaled_plus_bias`, to hold fewer registers."""
    return tl.fma(beta, c.to(x.dtype), x)


@triton.jit
def plus_scaled(total, part, scale_a, scale_b, SHARED_COLS: tl.constexpr):
    """total + part * scale_a * scale_b, for the sums `part` of a group of K.

    scale_a, [rows, 1] or None; scale_b: [1, columns]. SHARED_COLS: columns that share a scale of B. If they are many,
    scale_a * scale_b has hardly more elements than rows, and is multiplied first.
    """
    if scale_a is None:
        total = tl.fma(part, scale_b, total)
    elif SHARED_COLS > 1:
        total = tl.fma(part, scale_a * scale_b, total)
    else:
        total = tl.fma(part * scale_b, scale_a, total)
    return total
