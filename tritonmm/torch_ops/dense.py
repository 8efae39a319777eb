"""torch's matrix multiplications, computed by tritonmm: the same arguments, shapes, exception classes and derivatives.

Operands are bf16, fp16, fp32 or fp64 tensors of one dtype on one GPU, with any strides; any size may be 0. Functions
for int8 and fp8 are in `quantized`.

Accumulation is in fp32, for fp64 in fp64. alpha, beta, bias and C are applied before the one rounding to the output
dtype; no kernel uses the reduced precision that torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction and
similar flags allow. Results are bitwise reproducible from run to run. All functions are differentiable any number of
times, in forward and reverse mode, unless `out` is given.

Arguments that all functions share, keyword-only:

out: where to store the result. It is resized, with torch's warning, if its shape is wrong. If it overlaps an operand,
    the result is computed in a temporary tensor and copied.
config: the `Config` to use, instead of the one that `select` chooses.
precision: how fp32 operands are multiplied: "ieee", "tf32", or with three tensor-core GEMMs "tf32x3" (about as accurate
    as IEEE) or "bf16x3" (less accurate than tf32x3 and faster). fp32 and fp64 operands can be multiplied with exact
    int8 GEMMs: "ozaki", or "ozaki:N" for N moduli (docs/ozaki.md). Then there is no `config`, and nothing to tune, and
    accumulation is invariant. "ozaki:safe" does so where that should be faster and the GPU proves it to be as accurate,
    and else multiplies natively. It applies to derivatives too. "", the default, follows
    torch.backends.cuda.matmul.fp32_precision for fp32: tf32 if that is "tf32", otherwise IEEE.
accumulation: what is required of the order in which products are summed, as `Problem.accumulation` says: "any", or
    "invariant" for bits of a row that depend on no other row, so not on the size of the batch. It applies to
    derivatives too. "", the default, follows `enable` and `use`: "any" unless they were called with "invariant".

Raises RuntimeError, as torch does, for shapes that cannot be multiplied, for dtypes or devices that differ, and for CPU
tensors unless Triton's interpreter is on. Raises NotImplementedError for dtypes and layouts that tritonmm does not
support, TypeError for arguments of a wrong type, and ValueError for a config that is not legal for the operands, naming
the reason, and for an unknown `precision`, `accumulation` or `tune`.
"""

import math

import torch

from tritonmm.config import Config
from tritonmm.dtypes import has_precision, precisions_of, short_name
from tritonmm.torch_ops.call_cache import again
from tritonmm.torch_ops.checks import check_dims, check_inner, check_operands, expanded, prepare_out, shape_of
from tritonmm.torch_ops.deliver import deliver
from tritonmm.torch_ops.mode import check_accumulation
from tritonmm.torch_ops.operands import batched, cast, matrices
from tritonmm.torch_ops.product import How
from tritonmm.torch_ops.quantized_planes import QuantizedPlanes, matmul_by_planes

Tensor = torch.Tensor


def mm(
    input: Tensor,
    mat2: Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    config: Config | None = None,
    precision: str = "",
    accumulation: str = "",
    tune: str = "",
) -> Tensor:
    """Multiplies two matrices, as torch.mm: (m, k) by (k, n) to (m, n).

    out_dtype: torch.float32 for fp32 results of bf16 and fp16 operands. By default the operands' dtype.
    tune: "first-call" measures the 8 most promising configs the first time that operands of this kind are multiplied,
        which takes seconds. The fastest is used from then on, also by other processes. "" does not measure.

    dtypes, precision, errors and the other arguments: see `tritonmm.torch_ops.dense`.

    >>> a = torch.randn(64, 32, device="cuda", dtype=torch.bfloat16)
    >>> b = torch.randn(32, 48, device="cuda", dtype=torch.bfloat16)
    >>> tritonmm.mm(a, b).shape
    torch.Size([64, 48])
    >>> tritonmm.mm(a, b, out_dtype=torch.float32, config=tritonmm.Config("tile", block_m=64)).dtype
    torch.float32
    """
    if config is None and out_dtype is None and not precision and not accumulation and not tune:
        found = again("mm", input, mat2, None, out)
        if found is not None:
            return found
    how = how_of(input, precision, accumulation, out_dtype)
    input, mat2 = cast("mm", out, input, mat2)
    check_operands("mm", input, mat2)
    check_dims("mm", input=(input, 2), mat2=(mat2, 2))
    check_inner("mm", input, mat2, input, mat2)
    shape = input.shape[0], mat2.shape[1]
    return deliver("mm", (input, mat2), input, mat2, shape, out=out, config=config, how=how, tune=tune)


def bmm(
    input: Tensor,
    mat2: Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    config: Config | None = None,
    precision: str = "",
    accumulation: str = "",
    tune: str = "",
) -> Tensor:
    """Multiplies two batches of matrices, as torch.bmm: (batch, m, k) by (batch, k, n) to (batch, m, n).

    Arguments and errors as in `mm`.

    >>> a, b = torch.randn(3, 16, 32, device="cuda"), torch.randn(3, 32, 8, device="cuda")
    >>> tritonmm.bmm(a, b, precision="tf32x3").shape
    torch.Size([3, 16, 8])
    """
    if config is None and out_dtype is None and not precision and not accumulation and not tune:
        found = again("bmm", input, mat2, None, out)
        if found is not None:
            return found
    how = how_of(input, precision, accumulation, out_dtype)
    input, mat2 = cast("bmm", out, input, mat2)
    check_operands("bmm", input, mat2)
    shape = batched("bmm", input, mat2)
    return deliver("bmm", (input, mat2), input, mat2, shape, out=out, config=config, how=how, tune=tune)


def matmul(
    input: Tensor,
    other: Tensor | QuantizedPlanes,
    *,
    out: Tensor | None = None,
    config: Config | None = None,
    precision: str = "",
    accumulation: str = "",
    tune: str = "",
) -> Tensor:
    """Multiplies two tensors of at least one dimension, as torch.matmul.

    1-D operands are a row vector and a column vector, and lose that dimension in the result. Dimensions before the last
    two are the batch, and broadcast. `other` may be what `tritonmm.quantized_planes` made of a matrix, with precision
    "ozaki". `tune` is as in `mm`; errors and the other arguments are as in `tritonmm.torch_ops.dense`.

    >>> a, b = torch.randn(2, 5, 16, 32, device="cuda"), torch.randn(32, 8, device="cuda")
    >>> tritonmm.matmul(a, b).shape
    torch.Size([2, 5, 16, 8])
    >>> order = tritonmm.orders.SwizzleMerge(4)
    >>> tritonmm.matmul(a, b, config=tritonmm.Config("tile", 64, 64, 32, order=order)).shape
    torch.Size([2, 5, 16, 8])
    """
    if isinstance(other, QuantizedPlanes):
        if config is not None or tune:
            raise ValueError("matmul: config or tune is given for planes, whose products have neither; leave it out")
        how_of(input, precision, accumulation)
        return matmul_by_planes(input, other, precision, accumulation, out)
    if config is None and not precision and not accumulation and not tune:
        found = again("matmul", input, other, None, out)
        if found is not None:
            return found
    how = how_of(input, precision, accumulation)
    input, other = cast("matmul", out, input, other)
    check_operands("matmul", input, other)
    left, right, shape = matrices(input, other)
    return deliver("matmul", (input, other), left, right, shape, out=out, config=config, how=how, tune=tune)


def addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
    config: Config | None = None,
    precision: str = "",
    accumulation: str = "",
) -> Tensor:
    """beta * input + alpha * (mat1 @ mat2), as torch.addmm: (m, k) by (k, n); `input` broadcasts to (m, n).

    With beta = 0 `input` is not read, and with alpha = 0 the matrices are not read: NaNs in them do not propagate.
    Errors and the other arguments: see `tritonmm.torch_ops.dense`.

    >>> a, b, bias = (torch.randn(shape, device="cuda") for shape in ((16, 32), (32, 8), (8,)))
    >>> tritonmm.addmm(bias, a, b, alpha=0.5, precision="bf16x3").shape
    torch.Size([16, 8])
    """
    if config is None and not precision and not accumulation:
        found = again("addmm", mat1, mat2, input, out, alpha, beta)
        if found is not None:
            return found
    how = how_of(mat1, precision, accumulation)
    input, mat1, mat2 = cast("addmm", out, input, mat1, mat2)
    check_operands("addmm", mat1, mat2, input)
    check_dims("addmm", mat1=(mat1, 2), mat2=(mat2, 2))
    check_inner("addmm", mat1, mat2, mat1, mat2)
    shape = mat1.shape[0], mat2.shape[1]
    given = mat1, mat2, input
    return deliver(
        "addmm", given, mat1, mat2, shape, added=input, alpha=alpha, beta=beta, out=out, config=config, how=how
    )  # fmt: skip


def baddbmm(
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
    config: Config | None = None,
    precision: str = "",
    accumulation: str = "",
) -> Tensor:
    """beta * input + alpha * bmm(batch1, batch2), as torch.baddbmm: (batch, m, k) by (batch, k, n).

    `input` broadcasts to (batch, m, n). Otherwise as `addmm`.

    >>> a, b, c = (torch.randn(shape, device="cuda") for shape in ((3, 16, 32), (3, 32, 8), (3, 16, 8)))
    >>> tritonmm.baddbmm(c, a, b, beta=2, out=c) is c
    True
    """
    if config is None and not precision and not accumulation:
        found = again("baddbmm", batch1, batch2, input, out, alpha, beta)
        if found is not None:
            return found
    how = how_of(batch1, precision, accumulation)
    input, batch1, batch2 = cast("baddbmm", out, input, batch1, batch2)
    check_operands("baddbmm", batch1, batch2, input)
    shape = batched("baddbmm", batch1, batch2)
    given = batch1, batch2, input
    return deliver(
        "baddbmm", given, batch1, batch2, shape, added=input, alpha=alpha, beta=beta, out=out, config=config, how=how
    )  # fmt: skip


def addbmm(
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
    config: Config | None = None,
    precision: str = "",
    accumulation: str = "",
) -> Tensor:
    """beta * input + alpha * the sum of bmm(batch1, batch2) over the batch, as torch.addbmm.

    (batch, m, k) by (batch, k, n); `input` broadcasts to (m, n). It is computed as one GEMM with a K of batch * k, and
    rounded once. A `config` is one for that GEMM. Otherwise as `addmm`.

    >>> a, b, c = (torch.randn(shape, device="cuda") for shape in ((3, 16, 32), (3, 32, 8), (16, 8)))
    >>> tritonmm.addbmm(c, a, b).shape
    torch.Size([16, 8])
    """
    how = how_of(batch1, precision, accumulation)
    input, batch1, batch2 = cast("addbmm", out, input, batch1, batch2)
    check_operands("addbmm", batch1, batch2, input)
    batch, m, n = batched("addbmm", batch1, batch2)
    k = batch * batch1.shape[2]
    a, b = batch1.transpose(0, 1).reshape(m, k), batch2.reshape(k, n)
    given = batch1, batch2, input
    return deliver(
        "addbmm", given, a, b, (m, n), added=input, alpha=alpha, beta=beta, out=out, config=config, how=how
    )  # fmt: skip


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
    config: Config | None = None,
    precision: str = "",
    accumulation: str = "",
) -> Tensor:
    """input @ weight.T + bias, as torch.nn.functional.linear: (..., k), (n, k) and (n,) to (..., n).

    Errors and the other arguments: see `tritonmm.torch_ops.dense`.

    >>> x, weight, bias = (torch.randn(shape, device="cuda") for shape in ((2, 16, 32), (8, 32), (8,)))
    >>> tritonmm.linear(x, weight, bias).shape
    torch.Size([2, 16, 8])
    """
    if config is None and not precision and not accumulation:
        found = again("linear", input, weight, bias, out)
        if found is not None:
            return found
    how = how_of(input, precision, accumulation)
    given = cast("linear", out, input, weight) if bias is None else cast("linear", out, input, weight, bias)
    check_operands("linear", *given)
    input, weight = given[:2]
    if weight.dim() not in (1, 2) or not input.dim():
        raise RuntimeError(
            f"linear: input needs a dimension and weight one or two, but they are {input.dim()}-D and {weight.dim()}-D"
        )
    if weight.dim() == 1:
        if bias is None:
            return matmul(input, weight, out=out, config=config, precision=precision, accumulation=accumulation)
        found = matmul(input, weight, config=config, precision=precision, accumulation=accumulation)
        found = found + expanded("linear", given[2], found.shape)
        if out is None:
            return found
        prepare_out("linear", out, tuple(found.shape), *given)
        return out.copy_(found)
    right = weight.t()
    left = input.unsqueeze(0) if input.dim() == 1 else input
    check_inner("linear", input, weight, left, right, inner="columns")
    rows, cols = left.shape[:-1], right.shape[1]
    left = left.reshape(math.prod(rows), left.shape[-1])
    shape = *input.shape[:-1], cols
    if bias is None:
        return deliver("linear", given, left, right, shape, out=out, config=config, how=how)
    added = given[2]
    if bias.dim() > 1 and input.dim() != 2 and not (input.is_contiguous() and sum(x != 1 for x in bias.shape) == 1):
        # As in torch, which otherwise adds it to the rows of a matrix, where the result has another shape.
        added = expanded("linear", added, shape).reshape(left.shape[0], cols)
    return deliver("linear", given, left, right, shape, added=added, out=out, config=config, how=how)


def mv(
    input: Tensor,
    vec: Tensor,
    *,
    out: Tensor | None = None,
    config: Config | None = None,
    precision: str = "",
    accumulation: str = "",
) -> Tensor:
    """Multiplies a matrix by a vector, as torch.mv: (m, k) by (k,) to (m,).

    A `config` is one for a GEMM with n = 1. Errors and the other arguments: see `tritonmm.torch_ops.dense`.

    >>> tritonmm.mv(torch.randn(16, 32, device="cuda"), torch.randn(32, device="cuda")).shape
    torch.Size([16])
    """
    if config is None and not precision and not accumulation:
        found = again("mv", input, vec, None, out)
        if found is not None:
            return found
    how = how_of(input, precision, accumulation)
    input, vec = cast("mv", out, input, vec)
    check_operands("mv", input, vec)
    check_dims("mv", input=(input, 2), vec=(vec, 1))
    right = vec.unsqueeze(1)
    check_inner("mv", input, vec, input, right)
    return deliver("mv", (input, vec), input, right, input.shape[:1], out=out, config=config, how=how)


def dot(
    input: Tensor,
    tensor: Tensor,
    *,
    out: Tensor | None = None,
    config: Config | None = None,
    precision: str = "",
    accumulation: str = "",
) -> Tensor:
    """The dot product of two vectors, as torch.dot: (k,) by (k,) to a tensor of no dimension.

    A `config` is one for a GEMM with m = n = 1. Errors and the other arguments: see `tritonmm.torch_ops.dense`.

    >>> tritonmm.dot(torch.ones(32, device="cuda"), torch.ones(32, device="cuda")).item()
    32.0
    """
    if config is None and not precision and not accumulation:
        found = again("dot", input, tensor, None, out)
        if found is not None:
            return found
    how = how_of(input, precision, accumulation)
    input, tensor = cast("dot", out, input, tensor)
    check_operands("dot", input, tensor)
    check_dims("dot", input=(input, 1), tensor=(tensor, 1))
    if input.shape != tensor.shape:
        raise RuntimeError(f"dot: vectors need one length, but they have {shape_of(input)} and {shape_of(tensor)}")
    left, right = input.unsqueeze(0), tensor.unsqueeze(1)
    return deliver("dot", (input, tensor), left, right, (), out=out, config=config, how=how)


def how_of(a: Tensor, precision: str, accumulation: str, out_dtype: torch.dtype | None = None) -> How | None:
    """The precision, accumulation and output dtype that are asked for, checked; None if all are the default."""
    if not precision and not accumulation and out_dtype is None:
        return None
    check_accumulation(accumulation)
    dtype = getattr(a, "dtype", None)
    name = short_name(dtype) if isinstance(dtype, torch.dtype) else ""  # `check_operands` refuses what is no tensor
    if precision and name and not has_precision(name, precision):
        fits = "only torch.float32 and torch.float64 have others than 'ieee'"
        if name in ("fp32", "fp64"):
            fits = f"it is one of {precisions_of(name)}"
        raise ValueError(f"precision is {precision!r} for {dtype}; {fits}")
    if out_dtype not in (None, dtype) and (out_dtype != torch.float32 or dtype not in (torch.bfloat16, torch.float16)):
        raise RuntimeError(f"out_dtype is {out_dtype} for {dtype}; it is the operands', or float32 for bf16 and fp16")
    return How(precision, out_dtype, accumulation=accumulation)
