"""The GEMM as an operator of torch, `torch.ops.tritonmm.product`, and which calls bypass it.

A call on plain tensors launches directly. All other features of torch work through its dispatcher, where the operator
is registered: torch.compile and torch.export keep it whole in their graphs, torch.func transforms it, and forward-mode
derivatives, tensor subclasses such as DTensor and modes such as FlopCounterMode find it there.
"""

import functools
import sys

import torch
from torch._C import (
    _are_functorch_transforms_active,
    _get_tracing_state,
    _is_any_autocast_enabled,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch._C._functorch import is_legacy_batchedtensor as _is_batched
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from tritonmm.config import Config
from tritonmm.dtypes import any_name, output_dtype, stored_k
from tritonmm.orders import Table
from tritonmm.torch_ops.checks import check_without_tangents, shape_of
from tritonmm.torch_ops.mode import required
from tritonmm.torch_ops.product import How, product

PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def is_plain(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether only autograd can intercept a GEMM of a and b: no subclass, transform, mode, trace or autocast does."""
    return (
        not is_compiling()
        and type(a) in PLAIN
        and type(b) in PLAIN
        and not _len_torch_dispatch_stack()
        and not (_len_torch_function_stack() and _is_intercepted())
        and not _are_functorch_transforms_active()
        and not _is_any_autocast_enabled()
        and forward_ad._current_level < 0
        and _get_tracing_state() is None
        and not a.is_neg()
        and not b.is_neg()
    )


def _is_intercepted() -> bool:
    """Whether a mode intercepts functions of torch. One that torch.set_default_device enters does so only for functions
    that make tensors, and those called here name their device."""
    return any(type(mode) is not DeviceContext for mode in _get_current_function_mode_stack())


def compute(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    c: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    config: Config | None = None,
    how: How | None = None,
) -> torch.Tensor:
    """`product.product` of tensors of any kind, differentiable: launched directly if that is right, or dispatched."""
    given = [x for x in (a, b, c, bias, *((how.scale_a, how.scale_b) if how else ())) if x is not None]
    if is_launched(given):
        if torch.is_grad_enabled() and any(x.requires_grad for x in given):
            return _Product.apply(a, b, c, bias, alpha, beta, config, how, True)
        return product(a, b, c=c, bias=bias, alpha=alpha, beta=beta, config=config, how=how)
    if not is_compiling():
        _introduce()
    return operator(a, b, c, bias, alpha, beta, spelled(config), *(how or ()))


def is_launched(tensors: list[torch.Tensor]) -> bool:
    """Whether a kernel may be launched on them directly, or autograd's function for it called."""
    return tensors[0].device.type in ("cuda", "cpu") and all(is_plain(x, x) for x in tensors)


_library = torch.library.Library("tritonmm", "DEF")
_library.define(
    "product(Tensor a, Tensor b, Tensor? c=None, Tensor? bias=None, float alpha=1.0, float beta=1.0, str config='',"
    " str precision='', ScalarType? out_dtype=None, Tensor? scale_a=None, Tensor? scale_b=None, str scales='',"
    " int group=128, str accumulation='', str symmetric='') -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
operator = torch.ops.tritonmm.product.default


def _kernel(a, b, c=None, bias=None, alpha=1.0, beta=1.0, config="", *how):
    _out_shape(a, b, c, bias)
    options = {"how": How(*how)} if how else {}
    return product(a, b, c=c, bias=bias, alpha=alpha, beta=beta, config=config_of(config), **options)


def _fake(a, b, c=None, bias=None, alpha=1.0, beta=1.0, config="", *how):
    return a.new_empty(_out_shape(a, b, c, bias), dtype=How(*how).out_dtype or output_dtype(a.dtype))


def _out_shape(a, b, c, bias) -> tuple[int, ...]:
    """The shape of the operator's result. Raises RuntimeError where the shapes of its operands disagree."""
    torch._check(a.dim() == b.dim() and a.dim() in (2, 3), lambda: "product: a and b must both be 2-D, or both 3-D")
    k = stored_k(any_name(b.dtype), a.shape[-1])
    torch._check(k == b.shape[-2], lambda: f"product: {shape_of(a)} and {shape_of(b)} differ in K")
    torch._check(
        a.shape[:-2] == b.shape[:-2], lambda: f"product: {shape_of(a)} and {shape_of(b)} differ in their batch"
    )
    shape = *a.shape[:-1], b.shape[-1]
    torch._check(c is None or c.shape == shape, lambda: f"product: c is {shape_of(c)}, the result {list(shape)}")
    torch._check(bias is None or bias.shape == shape[-1:], lambda: f"product: bias is {shape_of(bias)}, n {shape[-1]}")
    return shape


class _Product(torch.autograd.Function):
    """The GEMM with its derivatives, which are GEMMs again, and so differentiable themselves."""

    @staticmethod
    def forward(a, b, c, bias, alpha, beta, config, how, grads):
        if is_launched([x for x in (a, b, c, bias) if x is not None]):
            return product(a, b, c=c, bias=bias, alpha=alpha, beta=beta, config=config, how=how)
        # Under torch.func this is one level of several, and those below it keep their own derivatives.
        below = torch._C._AutoDispatchBelowAutograd()
        with below, torch.set_grad_enabled(grads), forward_ad._set_fwd_grad_enabled(True):
            return operator(a, b, c, bias, alpha, beta, spelled(config), *(how or ()))

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, b, _, _, ctx.alpha, ctx.beta, _, how, _ = inputs
        # Derivatives have the operands' dtype, even if the output has another, and the accumulation of this moment.
        accumulation = (how and how.accumulation) or required()
        given = how is not None or accumulation != "any"
        ctx.how = How(how.precision if how else "", accumulation=accumulation) if given else None
        ctx.how_forward = ctx.how and ctx.how._replace(out_dtype=how.out_dtype if how else None)
        ctx.dtype = output.dtype
        ctx.is_gram = how is not None and how.symmetric == "gram"
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        needs = ctx.needs_input_grad
        # Of "gram" b is a view of a, whose gradient is that of both. In fp16 their sum could overflow.
        is_one = ctx.is_gram and a.dtype is not torch.float16
        rounded = (grad + grad.mT if is_one else grad).to(a.dtype)
        grad_a = _derivative(rounded, b.mT, ctx.alpha, ctx.how) if needs[0] else None
        grad_b = _derivative(a.mT, rounded, ctx.alpha, ctx.how) if needs[1] and not is_one else None
        grad_c = grad * ctx.beta if needs[2] else None
        grad_bias = grad.sum(tuple(range(grad.dim() - 1))) if needs[3] else None
        return grad_a, grad_b, grad_c, grad_bias, None, None, None, None, None

    @staticmethod
    def jvp(ctx, tangent_a, tangent_b, tangent_c, tangent_bias, *_):
        a, b = ctx.saved_tensors
        terms = []
        # The operator, and not `compute`: a tangent may be one of torch's zeros that have no memory.
        if tangent_a is not None:
            terms.append(operator(tangent_a, b, None, None, ctx.alpha, 1.0, "", *(ctx.how_forward or ())))
        if tangent_b is not None:
            terms.append(operator(a, tangent_b, None, None, ctx.alpha, 1.0, "", *(ctx.how_forward or ())))
        if tangent_c is not None:
            terms.append(tangent_c * ctx.beta)
        if tangent_bias is not None:
            terms.append(tangent_bias.expand(*a.shape[:-1], b.shape[-1]))
        return functools.reduce(torch.add, terms).to(ctx.dtype)


def _derivative(a: torch.Tensor, b: torch.Tensor, alpha: float, how: How | None) -> torch.Tensor:
    # torch.autograd.grad(is_grads_batched=True) comes with tensors that look plain and have no memory.
    if _is_batched(a) or _is_batched(b):
        return operator(a, b, None, None, alpha, 1.0, "", *(how or ()))
    return compute(a, b, alpha=alpha, how=how)


def _autograd(a, b, c=None, bias=None, alpha=1.0, beta=1.0, config="", *how):
    _out_shape(a, b, c, bias)
    found = How(*how) if how else None
    if found and found.scales:  # not differentiable: `quantized` has raised if that was needed, but knows no tangents
        check_without_tangents("product of scaled operands", a, b, c, bias, found.scale_a, found.scale_b)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(a, b, c, bias, alpha, beta, config, *how)
    return applied(_Product, a, b, c, bias, alpha, beta, config_of(config), found, torch.is_grad_enabled())


def applied(function: type[torch.autograd.Function], *arguments):
    """function.apply(*arguments) in an operator's autograd kernel."""
    if not _are_functorch_transforms_active():
        return function.apply(*arguments)
    # torch.func has taken the levels apart before it calls this kernel: what is left is one level's autograd,
    # without the Function's own understanding of levels.
    from torch._functorch.utils import enable_single_level_autograd_function

    with enable_single_level_autograd_function():
        return super(torch.autograd.Function, function).apply(*arguments)


def _vmap(info, in_dims, a, b, c=None, bias=None, alpha=1.0, beta=1.0, config="", *how):
    if how and How(*how).scales:
        raise NotImplementedError("vmap: scaled operands have no batch; call the function for each sample")
    config = config, *how
    dim_a, dim_b, dim_c, dim_bias = (*in_dims, None, None)[:4]
    size = info.batch_size

    def batched(x, dim):
        return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)

    if dim_bias is not None and c is None:  # one GEMM has one bias: those of the samples are a C
        sample = a.shape if dim_a is None else a.select(dim_a, 0).shape
        c = batched(bias, dim_bias)
        c = c.reshape(size, *(1 for _ in sample[:-1]), c.shape[-1]).expand(size, *sample[:-1], c.shape[-1])
        return _vmap(info, (dim_a, dim_b, 0, None), a, b, c, None, alpha, 1.0, *config)
    if dim_bias is not None:  # beside a C they are added afterwards
        total, dim = _vmap(info, (dim_a, dim_b, dim_c, None), a, b, c, None, alpha, beta, *config)
        rows = (1,) * (total.dim() - 2)
        return total + batched(bias, dim_bias).reshape(size, *rows, total.shape[-1]), dim
    is_symmetric = bool(how and How(*how).symmetric)
    if dim_b is None and b.dim() == 2 and not is_symmetric:  # one GEMM of all samples' rows
        a = batched(a, dim_a)
        c = c if c is None else batched(c, dim_c).flatten(0, 1)
        return operator(a.flatten(0, 1), b, c, bias, alpha, beta, *config).unflatten(0, a.shape[:2]), 0
    a, b, c = (x if x is None else batched(x, dim) for x, dim in ((a, dim_a), (b, dim_b), (c, dim_c)))
    if a.dim() == 3:
        return operator(a, b, c, bias, alpha, beta, *config), 0
    batch = a.shape[:2]
    a, b, c = (x if x is None else x.flatten(0, 1) for x in (a, b, c))
    return operator(a, b, c, bias, alpha, beta, *config).unflatten(0, batch), 0


for _key in ("CPU", "CUDA"):
    _library.impl("product", _kernel, _key)
_library.impl("product", _autograd, "Autograd")
torch.library.register_fake("tritonmm::product", _fake, lib=_library)
torch.library.register_vmap("tritonmm::product", _vmap, lib=_library)


def _introduce() -> None:
    """Registers the operator with the parts of torch that are imported already; importing them here would be slow."""
    register_flops(torch.ops.tritonmm.product, _flops)
    if "torch.distributed.tensor" in sys.modules:
        _register_sharding()


def register_flops(operators, formula) -> None:
    """Registers a formula of all overloads with torch's FLOP counter, if that is imported already."""
    if counting := sys.modules.get("torch.utils.flop_counter"):
        if operators not in counting.flop_registry:
            counting.register_flop_formula(operators)(formula)
        for mode in torch.utils._python_dispatch._get_current_dispatch_mode_stack():
            counter = getattr(mode, "counter", None)  # a counter copies the registry when it is made
            if isinstance(counter, counting.FlopCounterMode):
                counter.flop_registry.setdefault(operators, counting.flop_registry[operators])


def _flops(a_shape, b_shape, *_, out_shape=None, **__) -> int:
    return 2 * functools.reduce(int.__mul__, a_shape) * b_shape[-1]


@functools.cache
def _register_sharding() -> None:
    """Tells DTensor which placements of the operands give which of the result."""
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    @register_sharding(operator)
    def _(a, b, c=None, bias=None, *rest):
        dims = len(a.shape)
        rows, cols, whole = Shard(dims - 2), Shard(dims - 1), Replicate()
        if len(rest) > 6 and rest[6] is not None:  # scales: those of operands that are whole
            given = (None if x is None else whole for x in (c, bias))
            scales = (None if x is None else whole for x in rest[5:7])
            return [([whole], [whole, whole, *given, *(None for _ in rest[:5]), *scales, *(None for _ in rest[7:])])]
        ways = [(whole, whole, whole, whole)]
        is_symmetric = len(rest) > 10 and rest[10]  # then each part of the result depends on all of it
        if not is_symmetric:
            ways += [(rows, rows, whole, whole), (cols, whole, cols, Shard(0))]
        if dims == 3:
            ways.append((Shard(0), Shard(0), Shard(0), whole))
        if c is None and bias is None and not is_symmetric:
            ways.append((Partial(), cols, rows, whole))
        return [
            (
                [out],
                [of_a, of_b, None if c is None else out, None if bias is None else of_bias, *(None for _ in rest)],
            )
            for out, of_a, of_b, of_bias in ways
        ]


@functools.lru_cache(maxsize=256)
def config_of(text: str) -> Config | None:
    """The config that `spelled` wrote."""
    return Config.from_json(text) if text else None


_NUMBERS = ("block_m", "block_n", "block_k", "num_stages", "num_warps", "split_k", "split_tail")


def spelled(config: Config | None) -> str:
    """A config as an operator takes it: `Config.to_json`, in an expression that torch.compile can trace.

    Raises ValueError for a `Table` order, which has no spelling.
    """
    if config is None:
        return ""
    if isinstance(config.order, Table):
        raise ValueError(
            f"config: order {config.order} is a table of tiles, and such calls pass through torch's dispatcher, which"
            " takes no tables: use it outside of torch.compile, torch.export, torch.func, autocast and subclasses"
        )
    # An integer that has changed once is a symbol to torch.compile. The length of a range is none: it compiles anew.
    numbers = [f'"{name}": {len(range(getattr(config, name)))}' for name in _NUMBERS]
    persistent = "true" if config.persistent else "false"
    names = f'"order": "{config.order.__str__()}", "cluster": "{config.cluster}", "repack": "{config.repack}"'
    return f'{{"kernel": "{config.kernel}", {", ".join(numbers)}, "persistent": {persistent}, {names}}}'
