"""Symmetric products: half of the elements are computed, and each is written to two places.

Arguments that all functions share are those of `tritonmm.torch_ops.dense`, and so are errors. Sums are those of the
same product in full: with `accumulation="invariant"` each element on and below the diagonal has the bits that `mm`
gives it.
"""

import math

import torch

from tritonmm.config import Config
from tritonmm.torch_ops.call_cache import again
from tritonmm.torch_ops.checks import check_inner, check_operands, shape_of
from tritonmm.torch_ops.deliver import deliver
from tritonmm.torch_ops.dense import how_of
from tritonmm.torch_ops.operands import cast
from tritonmm.torch_ops.product import How

Tensor = torch.Tensor


def gram(
    input: Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    config: Config | None = None,
    precision: str = "",
    accumulation: str = "",
) -> Tensor:
    """input @ input.mT: (..., n, k) to (..., n, n), exactly symmetric, in up to half of the time of `matmul`.

    out_dtype: torch.float32 for fp32 results of bf16 and fp16. By default the operand's dtype.
    config: one whose order is `orders.Triangular` with the aspect of its tiles.

    Its derivative is one product, (grad + grad.mT) @ input, and two in fp16, where that sum may overflow. out,
    precision, accumulation, errors and dtypes: see `tritonmm.torch_ops.dense`.

    >>> a = torch.randn(64, 32, device="cuda")
    >>> c = tritonmm.gram(a)
    >>> torch.equal(c, c.mT)
    True
    """
    if config is None and out_dtype is None and not precision and not accumulation:
        found = again("gram", input, input, None, out)
        if found is not None:
            return found
    how = (how_of(input, precision, accumulation, out_dtype) or How())._replace(symmetric="gram")
    (input,) = cast("gram", out, input)
    check_operands("gram", input)
    if input.dim() < 2:
        raise RuntimeError(f"gram: input needs two dimensions or more, but it is {input.dim()}-D, {shape_of(input)}")
    a = _batch(input)
    shape = *input.shape[:-1], input.shape[-2]
    return deliver("gram", (input, input), a, a.mT, shape, out=out, config=config, how=how)


def symmetric_mm(
    a: Tensor,
    b: Tensor,
    *,
    c: Tensor | None = None,
    alpha: float = 1,
    beta: float = 1,
    symmetric_c: bool = False,
    out: Tensor | None = None,
    config: Config | None = None,
    precision: str = "",
    accumulation: str = "",
) -> Tensor:
    """alpha * (a @ b) + beta * c, where the caller knows that a @ b is symmetric: (..., n, k) by (..., k, n).

    So are the products of polynomials of one symmetric matrix, such as b * A + c * A @ A. Of a @ b only the elements on
    and below the diagonal are computed; those above are the same opposite, so a product that is not symmetric gives
    wrong results, which is not checked. c is any addend that broadcasts to the result: it is read for each element, and
    need not be symmetric. It may be `out`.

    symmetric_c: whether c is an exactly symmetric matrix, or a batch of them. Then so is the result, and a kernel may
        read only half of c. Not checked, and ignored where c is a vector.
    config: as in `gram`. out, precision, accumulation, errors: see `tritonmm.torch_ops.dense`.

    >>> x = tritonmm.gram(torch.randn(64, 32, device="cuda"))
    >>> tritonmm.symmetric_mm(x, x, c=x, alpha=0.5, beta=-2.0).shape
    torch.Size([64, 64])
    """
    if config is None and not precision and not accumulation and (c is not None or _is_one(alpha)):
        found = again("symmetric_mm, c" if symmetric_c else "symmetric_mm", a, b, c, out, alpha, beta)
        if found is not None:
            return found
    is_whole = symmetric_c and c is not None and c.dim() > 1
    how = (how_of(a, precision, accumulation) or How())._replace(symmetric="output" if is_whole else "known")
    given = cast("symmetric_mm", out, a, b) if c is None else cast("symmetric_mm", out, a, b, c)
    check_operands("symmetric_mm", *given)
    a, b, *added = given
    if a.dim() != b.dim() or a.dim() < 2 or a.shape[:-2] != b.shape[:-2]:
        raise RuntimeError(f"symmetric_mm: a and b are {shape_of(a)} and {shape_of(b)}; they need the same batch")
    check_inner("symmetric_mm", a, b, a, b)
    if a.shape[-2] != b.shape[-1]:
        raise RuntimeError(
            f"symmetric_mm: a product of {shape_of(a)} and {shape_of(b)} has {a.shape[-2]} rows and {b.shape[-1]}"
            " columns; a symmetric one is square"
        )
    shape = *a.shape[:-1], b.shape[-1]
    left, right = _batch(a), _batch(b)
    addend = _addend(added[0], shape, left.dim()) if added else None
    name = "symmetric_mm, c" if symmetric_c else "symmetric_mm"
    return deliver(
        name, given, left, right, shape, added=addend, alpha=alpha, beta=beta, out=out, config=config, how=how
    )  # fmt: skip


def _is_one(alpha: object) -> bool:
    """Whether alpha is the number 1, of a type that is allowed."""
    return isinstance(alpha, int | float) and alpha == 1


def _batch(x: Tensor) -> Tensor:
    """x with its batch dimensions as one."""
    return x if x.dim() <= 3 else x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def _addend(c: Tensor, shape: tuple[int, ...], dims: int) -> Tensor:
    """c as an addend of a result of `shape` that is computed in so many dimensions."""
    if len(shape) == dims or c.dim() < 2:
        return c
    try:
        return _batch(c.expand(shape))
    except RuntimeError:
        raise RuntimeError(f"symmetric_mm: c is {shape_of(c)}, which does not broadcast to {list(shape)}") from None
