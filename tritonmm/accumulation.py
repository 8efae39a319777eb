"""Check a GPU's bits on a CPU: a bit-exact model of the GEMMs that Hopper computes with accumulation="invariant".

`emulate` computes what a Hopper GPU returns, bit for bit. `verify` samples elements of a result and says which of them
differ. Neither needs a GPU or Triton. `tritonmm.model.bits` and `tritonmm.model.tensor_core` define every rounding.

Covered: bf16, fp16, tf32, IEEE fp32, int8, fp8 with fast and with accurate sums, with scales of tensors, rows and
blocks, and 8-bit weights with scales of rows. Not covered: fp64, precision "tf32x3" and "bf16x3", and weights with
scales of groups of K.

Arguments that both functions share. Arrays are torch tensors on any device, or NumPy arrays; results are on the CPU.

a, b: (m, k) by (k, n), or (batch, m, k) by (batch, k, n). bf16, fp16, fp32, fp8 of either kind or int8; b may also be
    int8 or fp8 weights where a is bf16 or fp16: the transposed weight of `tritonmm.weight_only_linear`.
c, beta: beta * c is added; c broadcasts to the result's shape.
bias: (n,), added to each row.
alpha: multiplies the product.
scale_a, scale_b: fp32, in the shapes of `tritonmm.scaled_mm`. 8-bit weights: scale_b alone, (n,) or (n, 1).
precision: fp32: "ieee" or "tf32"; "", the default, follows torch.backends.cuda.matmul.fp32_precision. fp8: "ieee" (also
    for "") adds the sums of each 128 elements of K in fp32, "fast" does not; they are use_fast_accum=False and True.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from tritonmm.dtypes import DTYPES
from tritonmm.model.bits import Elements, compute
from tritonmm.model.gemm import as_tensor, checked

Array = np.ndarray
Tensor = torch.Tensor

BLOCK = 4096
"""Elements that are computed at a time. Their products of one step stay in a core's L2 cache."""

LISTED = 100
"""Mismatches that a verdict lists."""


class Mismatch(NamedTuple):
    """An element that is not what `emulate` computes. position: (row, column), or (batch, row, column)."""

    position: tuple[int, ...]
    found: float
    expected: float


@dataclass(frozen=True)
class Verdict:
    """What `verify` found. It is true if no element that was checked differs.

    checked: elements that were compared. total: elements of the result. wrong: elements that differ.
    mismatches: those of the first positions, at most `LISTED`.
    """

    checked: int
    total: int
    wrong: int
    mismatches: tuple[Mismatch, ...]

    def __bool__(self) -> bool:
        return not self.wrong

    def chance(self, fraction: float) -> float:
        """The probability of finding a wrong element where a fraction of them is wrong: 1 - (1 - fraction)**checked.

        It is at least that, because elements are sampled without replacement.
        Raises ValueError unless 0 <= fraction <= 1.

        >>> tritonmm.accumulation.Verdict(4096, 10**8, 0, ()).chance(0.001)
        0.983...
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction is {fraction!r}; it must be a share of the elements, from 0 to 1")
        if fraction == 1:
            return float(self.checked > 0)
        return -math.expm1(self.checked * math.log1p(-fraction))

    def __str__(self) -> str:
        checked = f"{self.checked} of {self.total} elements checked"
        if self:
            chance = f"; 0.1% of wrong ones would be found with probability {self.chance(0.001):.3f}"
            return f"{checked}: all have the expected bits{chance if self.checked < self.total else ''}"
        shown = "; ".join(f"{list(x.position)} is {x.found!r}, not {x.expected!r}" for x in self.mismatches[:3])
        return f"{checked}: {self.wrong} differ: {shown}{'; ...' if self.wrong > 3 else ''}"


def emulate(
    a: Tensor | Array,
    b: Tensor | Array,
    *,
    c: Tensor | Array | None = None,
    bias: Tensor | Array | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    scale_a: Tensor | Array | None = None,
    scale_b: Tensor | Array | None = None,
    precision: str = "",
    out_dtype: torch.dtype | None = None,
    rows: Sequence[int] | Array | None = None,
    cols: Sequence[int] | Array | None = None,
) -> Tensor:
    """alpha * a @ b + bias + beta * c with the bits that a Hopper GPU computes, on the CPU: (m, n), or (batch, m, n).

    out_dtype: by default a's dtype; for fp8, and int8 with scales, bf16; for int8 without scales int32.
    rows, cols: indices of the rows and columns to compute, in this order; by default all.

    One core takes 5 to 40 ns for each of the m * n * k products, and less than 200 MB besides operands and result.

    Raises RuntimeError for shapes that do not fit, ValueError for dtypes, a precision or scales that no function of
    tritonmm takes, NotImplementedError for what is not covered, IndexError for rows and columns outside, and TypeError
    for arguments of a wrong type.

    >>> a, b = torch.full((2, 3), 0.1).bfloat16(), torch.ones(3, 4).bfloat16()
    >>> tritonmm.accumulation.emulate(a, b, out_dtype=torch.float32, rows=[0], cols=[0, 3])
    tensor([[0.3003, 0.3003]])
    """
    gemm = checked(a, b, c, bias, alpha, beta, scale_a, scale_b, precision, out_dtype)
    gemm = replace(gemm, a=gemm.a.cpu(), b=gemm.b.cpu(), c=None if gemm.c is None else gemm.c.cpu())
    p = gemm.problem
    chosen = np.arange(p.batch), _chosen("rows", rows, p.m), _chosen("cols", cols, p.n)
    out = torch.empty([len(x) for x in chosen], dtype=DTYPES[p.out_dtype])
    for place in _blocks(*(len(x) for x in chosen)):
        out[place] = compute(gemm, Elements(*np.ix_(*(x[part] for x, part in zip(chosen, place, strict=True)))))
    return out if a.ndim == 3 else out[0]


def verify(
    a: Tensor | Array,
    b: Tensor | Array,
    result: Tensor | Array,
    *,
    c: Tensor | Array | None = None,
    bias: Tensor | Array | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    scale_a: Tensor | Array | None = None,
    scale_b: Tensor | Array | None = None,
    precision: str = "",
    samples: int = 4096,
    seed: int | np.random.Generator | None = None,
) -> Verdict:
    """Whether `result` has the bits that a Hopper GPU computes: compares sampled elements with `emulate`.

    result: what the GPU computed, (m, n) or (batch, m, n), in its output dtype. All NaNs are alike; 0 and -0 differ.
    samples: elements to check, drawn without replacement; all of them if there are no more than that.
    seed: of the draw, or a NumPy generator; None draws others each time.

    Only rows of a and columns of b with sampled elements are read. 4096 samples of K = 4096 take half a second.

    Raises as `emulate` does, and RuntimeError for a result of another shape.

    >>> a, b = torch.randn(64, 32).half(), torch.randn(32, 48).half()
    >>> result = tritonmm.accumulation.emulate(a, b)
    >>> print(tritonmm.accumulation.verify(a, b, result, samples=1000))
    1000 of 3072 elements checked: all have the expected bits; 0.1% of wrong ones would be found with probability 0.632
    >>> result[5, 7] = 100.0
    >>> tritonmm.accumulation.verify(a, b, result).mismatches[0].position
    (5, 7)
    """
    result = as_tensor("result", result)
    gemm = checked(a, b, c, bias, alpha, beta, scale_a, scale_b, precision, result.dtype)
    p = gemm.problem
    shape = (p.batch, p.m, p.n) if a.ndim == 3 else (p.m, p.n)
    if result.shape != shape:
        raise RuntimeError(f"result has shape {list(result.shape)}; the product has {list(shape)}")
    if isinstance(samples, bool) or not isinstance(samples, int | np.integer) or samples < 1:
        raise ValueError(f"samples is {samples!r}; it must be an integer of at least 1")
    samples = int(samples)
    every = result.reshape(p.batch, p.m, p.n)
    wrong, listed = 0, []
    for at in _sampled(every.shape, samples, seed):
        found = every[tuple(torch.from_numpy(i).to(every.device) for i in at)].cpu()
        expected = compute(gemm, at)
        differing = np.argwhere(_differ(found, expected).numpy())
        wrong += len(differing)
        for i in map(tuple, differing[:LISTED]):
            position = tuple(int(np.broadcast_to(x, at.shape)[i]) for x in at)[3 - len(shape) :]
            listed.append(Mismatch(position, found[i].item(), expected[i].item()))
        listed = sorted(listed)[:LISTED]
    return Verdict(min(samples, every.numel()), every.numel(), wrong, tuple(listed))


def _blocks(*lengths: int) -> Iterator[tuple[slice, ...]]:
    """Slices of batch, rows and columns that cut a result into blocks of about `BLOCK` elements."""
    _, rows, cols = lengths
    width = max(1, min(cols, max(math.isqrt(BLOCK), BLOCK // max(rows, 1))))
    height = max(1, min(rows, BLOCK // width))
    depth = BLOCK // (width * height)
    cuts = (
        [slice(i, i + size) for i in range(0, n, size)] for n, size in zip(lengths, (depth, height, width), strict=True)
    )
    return itertools.product(*cuts)


def _sampled(shape: Sequence[int], samples: int, seed: int | np.random.Generator | None) -> Iterator[Elements]:
    """The elements to check: blocks of all of them, or lists of those that are drawn."""
    total = math.prod(shape)
    if samples >= total:
        every = [np.arange(n) for n in shape]
        for place in _blocks(*shape):
            yield Elements(*np.ix_(*(x[part] for x, part in zip(every, place, strict=True))))
        return
    drawn = np.sort(np.random.default_rng(seed).choice(total, samples, replace=False, shuffle=False))
    for i in range(0, samples, BLOCK):
        yield Elements(*np.unravel_index(drawn[i : i + BLOCK], tuple(shape)))


def _differ(x: Tensor, y: Tensor) -> Tensor:
    """Where the bits of two tensors of one dtype differ; NaNs do not."""
    as_bits = {2: torch.int16, 4: torch.int32}[x.itemsize]
    return (x.view(as_bits) != y.view(as_bits)) & ~(x.isnan() & y.isnan())


def _chosen(name: str, index: Sequence[int] | Array | None, size: int) -> Array:
    """The indices of rows or columns that are asked for."""
    if index is None:
        return np.arange(size)
    given = np.asarray(index).reshape(-1)
    if given.size and given.dtype.kind not in "iu":
        raise TypeError(f"{name} are of {given.dtype}; they must be integers")
    found = given.astype(np.int64)
    outside = found[(found < 0) | (found >= size)]
    if outside.size:
        raise IndexError(f"{name} has index {outside[0]}; there are {size} {name}, from 0")
    return found
