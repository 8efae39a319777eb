"""The grouped GEMM as an operator of torch, `torch.ops.tritonmm.grouped_product`.

As in `operator`, a call on plain tensors launches directly, and all other features of torch find the operator in its
dispatcher. Derivatives are grouped products again, of the forms that the dimensions of the operands say:

    a           b           out          grad @ b.mT   a.mT @ grad
    (t, k)      (g, k, n)   (t, n)       rows          k
    (g, m, k)   (k, t)      (m, t)       k             columns
    (m, t)      (t, n)      (g, m, n)    columns       rows

Rows and columns that belong to no group are 0 in derivatives, because nothing depends on them. In the product itself
they are uninitialised, as in torch.
"""

import functools

import torch
from torch._C._functorch import is_legacy_batchedtensor as _is_batched
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from tritonmm.config import Config
from tritonmm.dtypes import any_name, stored_k
from tritonmm.torch_ops.checks import check_without_tangents, shape_of
from tritonmm.torch_ops.grouped_product import DEFAULT, GroupedHow, grouped_product, result_shape
from tritonmm.torch_ops.mode import required
from tritonmm.torch_ops.operator import applied, config_of, is_launched, register_flops, spelled

Tensor = torch.Tensor


def compute(
    a: Tensor,
    b: Tensor,
    offs: Tensor,
    *,
    bias: Tensor | None = None,
    config: Config | None = None,
    how: GroupedHow = DEFAULT,
) -> Tensor:
    """`grouped_product` of tensors of any kind, differentiable: launched directly if that is right, or dispatched."""
    given = [x for x in (a, b, offs, bias, how.scale_a, how.scale_b) if x is not None]
    if is_launched(given):
        if torch.is_grad_enabled() and any(x.requires_grad for x in given):
            return _Grouped.apply(a, b, offs, bias, config, how, True)
        return grouped_product(a, b, offs, bias=bias, config=config, how=how)
    if not is_compiling():
        register_flops(torch.ops.tritonmm.grouped_product, _flops)
    return operator(a, b, offs, bias, spelled(config), *how)


_library = torch.library.Library("tritonmm", "FRAGMENT")
_library.define(
    "grouped_product(Tensor a, Tensor b, Tensor offs, Tensor? bias=None, str config='', str precision='',"
    " ScalarType? out_dtype=None, Tensor? scale_a=None, Tensor? scale_b=None, str scales='', str accumulation='',"
    " bool zeros=False, int group=128) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
operator = torch.ops.tritonmm.grouped_product.default


def _kernel(a, b, offs, bias=None, config="", *how):
    _check(a, b, offs, bias)
    return grouped_product(a, b, offs, bias=bias, config=config_of(config), how=GroupedHow(*how))


def _fake(a, b, offs, bias=None, config="", *how):
    _check(a, b, offs, bias)
    return a.new_empty(result_shape(a, b, offs), dtype=GroupedHow(*how).out_dtype or a.dtype)


def _check(a, b, offs, bias) -> None:
    """Raises RuntimeError where the shapes of the operands disagree."""
    dims = a.dim(), b.dim()
    torch._check(dims in ((2, 3), (3, 2), (2, 2)), lambda: f"grouped_product: a and b are {dims[0]}-D and {dims[1]}-D")
    k = stored_k(any_name(b.dtype), a.shape[-1])
    torch._check(k == b.shape[-2], lambda: f"grouped_product: {shape_of(a)} and {shape_of(b)} differ in K")
    torch._check(
        offs.dim() == 1 and offs.dtype == torch.int32,
        lambda: f"grouped_product: offs is {offs.dtype} {list(offs.shape)}, not int32 of one dimension",
    )
    for x in (a, b):
        torch._check(
            x.dim() == 2 or x.shape[0] == offs.shape[0],
            lambda x=x: f"grouped_product: {shape_of(x)} and {offs.shape[0]} offsets differ in their groups",
        )
    torch._check(
        bias is None or (dims != (3, 2) and bias.shape == (offs.shape[0], b.shape[-1])),
        lambda: f"grouped_product: bias is {shape_of(bias)} for {shape_of(a)} by {shape_of(b)}",
    )


class _Grouped(torch.autograd.Function):
    """The grouped GEMM with its derivatives, which are grouped GEMMs again, and so differentiable themselves."""

    @staticmethod
    def forward(a, b, offs, bias, config, how, grads):
        if is_launched([x for x in (a, b, offs, bias) if x is not None]):
            return grouped_product(a, b, offs, bias=bias, config=config, how=how)
        # Under torch.func this is one level of several, and those below it keep their own derivatives.
        below = torch._C._AutoDispatchBelowAutograd()
        with below, torch.set_grad_enabled(grads), forward_ad._set_fwd_grad_enabled(True):
            return operator(a, b, offs, bias, spelled(config), *how)

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, b, offs, _, _, how, _ = inputs
        # Derivatives have the accumulation of this moment.
        ctx.how = GroupedHow(how.precision, how.out_dtype, accumulation=how.accumulation or required(), zeros=True)
        ctx.save_for_backward(a, b, offs)
        ctx.save_for_forward(a, b, offs)

    @staticmethod
    def backward(ctx, grad):
        a, b, offs = ctx.saved_tensors
        needs = ctx.needs_input_grad
        # Derivatives have the operands' dtype, even if the output has another.
        how, rounded = ctx.how._replace(out_dtype=None), grad.to(a.dtype)
        grad_a = _derivative(rounded, b.mT, offs, a, how) if needs[0] else None
        grad_b = _derivative(a.mT, rounded, offs, b, how) if needs[1] else None
        grad_bias = _sums(grad, a, offs, how).to(a.dtype) if needs[3] else None
        return grad_a, grad_b, None, grad_bias, None, None, None

    @staticmethod
    def jvp(ctx, tangent_a, tangent_b, _, tangent_bias, *rest):
        a, b, offs = ctx.saved_tensors
        terms = []
        # The operator, and not `compute`: a tangent may be one of torch's zeros that have no memory.
        if tangent_a is not None:
            terms.append(operator(tangent_a, b, offs, None, "", *ctx.how))
        if tangent_b is not None:
            terms.append(operator(a, tangent_b, offs, None, "", *ctx.how))
        if tangent_bias is not None:  # a product without K, and the bias
            empty = a[:, :0], b[..., :0, :]
            terms.append(operator(*empty, offs, tangent_bias, "", *ctx.how))
        return functools.reduce(torch.add, terms)


def _derivative(a: Tensor, b: Tensor, offs: Tensor, like: Tensor, how: GroupedHow) -> Tensor:
    """The grouped product of a and b, contiguous along the dimension along which `like` is.

    Weights are often columns of rows, (g, n, k).mT: their gradient then needs no copy to be added to another.
    """
    is_column_major = like.stride(-1) != 1 and like.stride(-2) == 1
    if is_column_major:
        a, b = b.mT, a.mT
    # torch.autograd.grad(is_grads_batched=True) comes with tensors that look plain and have no memory.
    is_batched = _is_batched(a) or _is_batched(b)
    found = operator(a, b, offs, None, "", *how) if is_batched else compute(a, b, offs, how=how)
    return found.mT if is_column_major else found


def _sums(grad: Tensor, a: Tensor, offs: Tensor, how: GroupedHow) -> Tensor:
    """The sums of the rows of each group, for which K is the rows: a product of ones and grad."""
    if grad.dim() == 3:
        return grad.sum(1)
    ones = a.new_ones((1, a.shape[0]), dtype=grad.dtype)
    return _derivative(ones, grad, offs, grad, how._replace(precision="ieee")).squeeze(1)


def _autograd(a, b, offs, bias=None, config="", *how):
    _check(a, b, offs, bias)
    found = GroupedHow(*how)
    if found.scales:
        check_without_tangents("grouped product of scaled operands", a, b, bias, found.scale_a, found.scale_b)
    return applied(_Grouped, a, b, offs, bias, config_of(config), found, torch.is_grad_enabled())


def _vmap(info, in_dims, *arguments):
    raise NotImplementedError("vmap: grouped_mm has no batch of grouped products; call it for each sample")


def _flops(a_shape, b_shape, *_, out_shape=None, **__) -> int:
    """2 * total * k * n: an upper bound, which is exact where every row belongs to a group."""
    return 2 * a_shape[-2] * a_shape[-1] * b_shape[-1]


for _key in ("CPU", "CUDA"):
    _library.impl("grouped_product", _kernel, _key)
_library.impl("grouped_product", _autograd, "Autograd")
torch.library.register_fake("tritonmm::grouped_product", _fake, lib=_library)
torch.library.register_vmap("tritonmm::grouped_product", _vmap, lib=_library)
