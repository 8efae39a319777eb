"""The bits of any elements of a GEMM, as tritonmm's kernels compute them on Hopper without split-K.

1. Sums along K. bf16, fp16, tf32 and fast fp8: the chain of `tensor_core`; in a long K the chain of each chunk
   (`chunks`), which fp32 adds in the order of K. Accurate fp8: the chain of each 128 elements of K, which fp32 adds in
   the order of K. int8: exact, modulo 2**32. IEEE fp32: the fused multiply-adds of `fp32`. 8-bit weights: the chain of
   A's dtype, to which they convert exactly.
2. Scales of blocks multiply each partial sum before it is added: total + part * (scale_a * scale_b) where 128 columns
   share a scale, else total + (part * scale_b) * scale_a. The last multiplication is fused with the addition.
3. The epilogue in fp32: scales of the tensors or of rows and columns, (x * scale_a) * scale_b; alpha; bias; beta * C.
   The addition of the bias is fused with the multiplication just before it, and the addition of C with beta * C.
4. The result is rounded to the output dtype, to the nearest and ties to even.

Elements are addressed by index arrays of batch, rows and columns that broadcast: a block of the output, or any list.
"""

from typing import NamedTuple

import numpy as np
import torch

from tritonmm.dtypes import DTYPES, FP8
from tritonmm.model import fp32, tensor_core
from tritonmm.model.chunks import chunk_k
from tritonmm.model.gemm import Gemm
from tritonmm.model.tensor_core import SUMS, Operand

Array = np.ndarray
Tensor = torch.Tensor

GROUP = 128
"""Elements of K of a partial sum. This many are decoded at a time."""


class Elements(NamedTuple):
    """Indices of elements of the output, int64 arrays that broadcast."""

    batch: Array
    rows: Array
    cols: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return np.broadcast_shapes(*(x.shape for x in self))


def compute(gemm: Gemm, at: Elements) -> Tensor:
    """The elements in the output dtype, on the CPU."""
    with np.errstate(all="ignore"):
        found = addends(gemm, at) if gemm.alpha == 0 else finish(gemm, sums(gemm, at), at)
    return torch.from_numpy(found).to(DTYPES[gemm.problem.out_dtype])


def sums(gemm: Gemm, at: Elements) -> Array:
    """The sums of products, int32 for int8, else fp32."""
    p = gemm.problem
    law = "tf32" if p.precision == "tf32" else p.dtype
    a = Lines(gemm.a, at.batch * p.m + at.rows, law)
    b = Lines(gemm.b, at.batch * p.n + at.cols, p.b_dtype if p.dtype in FP8 else law)
    total, before = np.zeros(at.shape), np.zeros(at.shape, np.float32)
    for group in range(-(-p.k // GROUP)):
        x, y = a.group(group), b.group(group)
        if p.promotes:
            part = tensor_core.add_products(np.zeros(at.shape), x, y, SUMS[law])
            total = _add_part(gemm, total.astype(np.float32), part.astype(np.float32), group, at)
        elif law in SUMS:
            if chunk_k(p) and group * GROUP % chunk_k(p) == 0:
                before, total = before + total.astype(np.float32), np.zeros(at.shape)
            total = tensor_core.add_products(total, x, y, SUMS[law])
        elif law == "int8":
            total += (x.values * y.values).sum(axis=0)
        else:
            total = fp32.add_products(total, x.values, y.values)
    if law == "int8":
        return total.astype(np.int64).astype(np.int32)
    return before + total.astype(np.float32) if chunk_k(p) else total.astype(np.float32)


class Lines:
    """Some rows of A, or columns of B, as operands (K, *index.shape); each is decoded once for a group of K."""

    def __init__(self, x: Tensor, index: Array, fmt: str):
        """x: (batch, lines, K). index: batch * lines + line."""
        distinct, where = np.unique(index, return_inverse=True)
        self.x, self.fmt = x, fmt
        self.where = where.reshape(index.shape)
        self.at = tuple(torch.from_numpy(i).to(x.device) for i in divmod(distinct, x.shape[1]))

    def group(self, group: int) -> Operand:
        x = self.x[..., group * GROUP : (group + 1) * GROUP]
        x = x.view(torch.uint8)[self.at].view(x.dtype) if x.dtype in _FP8 else x[self.at]
        values = x.cpu().T.contiguous().double().numpy()
        if self.fmt not in SUMS:
            return Operand(np.take(values, self.where, axis=1), values[:0])
        return Operand(*(np.take(each, self.where, axis=1) for each in tensor_core.operand(values, self.fmt)))


_FP8 = tuple(DTYPES[name] for name in FP8)
"""Indexed as bytes: not every device indexes them."""


def _add_part(gemm: Gemm, total: Array, part: Array, group: int, at: Elements) -> Array:
    """total plus the partial sum of a group of K, times its scales if it has any; fp32."""
    p = gemm.problem
    if not p.block_scaled:
        return total + part
    assert gemm.scale_a is not None
    assert gemm.scale_b is not None
    rows = gemm.scale_a[at.rows // p.rows_per_scale, group]
    cols = gemm.scale_b[group, at.cols // p.cols_per_scale]
    if p.cols_per_scale > 1:
        return fp32.fma(part, rows * cols, total)
    return fp32.fma(part * cols, rows, total)


def finish(gemm: Gemm, x: Array, at: Elements) -> Array:
    """alpha * x * scales + bias + beta * c in fp32; x itself if the output is int32."""
    p = gemm.problem
    if p.out_dtype == "int32":
        return x
    x = x.astype(np.float32)
    factor = None  # has not multiplied x yet: it may be fused with the bias
    if p.k and p.scales in ("tensor", "row"):
        assert gemm.scale_b is not None
        rows, cols = (at.rows, at.cols) if p.scales == "row" else (0, 0)
        x = x if gemm.scale_a is None else x * gemm.scale_a[rows, 0]
        factor = gemm.scale_b[0, cols]
    if gemm.alpha != 1 and p.k:
        x = x if factor is None else x * factor
        factor = np.float32(gemm.alpha)
    if gemm.bias is not None:
        bias = gemm.bias[at.cols]
        x = x + bias if factor is None else fp32.fma(x, factor, bias)
    elif factor is not None:
        x = x * factor
    return x if gemm.c is None else fp32.fma(np.float32(gemm.beta), _gathered(gemm.c, at), x)


def addends(gemm: Gemm, at: Elements) -> Array:
    """The result for alpha = 0, which reads neither A nor B: beta * c + bias in fp32."""
    total = None if gemm.c is None else _gathered(gemm.c, at) * np.float32(gemm.beta)
    if gemm.bias is not None:
        bias = gemm.bias[at.cols]
        total = bias if total is None else total + bias
    return np.array(np.broadcast_to(np.float32(0) if total is None else total, at.shape))


def _gathered(c: Tensor, at: Elements) -> Array:
    return c[tuple(torch.from_numpy(i).to(c.device) for i in at)].cpu().float().numpy()
