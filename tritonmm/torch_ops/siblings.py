"""GEMMs of one A by several weights as an operator of torch, `torch.ops.tritonmm.sibling_products`: one launch where
the weights lie next to each other in memory.

torch's compiler gets it from `merge_siblings`. A compiled graph does not know where its inputs will lie, so the
operator looks at each call.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tritonmm.dtypes import any_name, output_dtype, stored_k
from tritonmm.torch_ops.checks import shape_of
from tritonmm.torch_ops.product import How, product

if TYPE_CHECKING:
    from torch._inductor.custom_graph_pass import CustomGraphPass

Tensor = torch.Tensor


@functools.cache
def merge_siblings() -> "CustomGraphPass":
    """A pass of torch's compiler that computes layers with the same input by one GEMM: q, k and v of an attention, gate
    and up of an MLP. With few rows a launch costs about as much as reading the weights of a small layer.

    It is for the layers of `quantize_`, where no derivative of their input is needed, and for other calls of
    `weight_only_linear` and `scaled_mm`. The second operand, scales and bias must be inputs of the graph. Calls are
    merged that have one input and follow each other: no such call with another input lies between them. Their codes and
    scales must lie next to each other in memory, as `quantize_` and `nn.place_siblings_` lay those of known names.
    Others give the same results with as many launches as before: each call looks at the addresses. "fp8-dynamic"
    quantizes the input once for all.

    A merged GEMM has more columns than each one alone and may have another config, so bits of results may differ, as
    for any other size. They do not with accumulation "invariant".

    Returns the value of Inductor's option `post_grad_custom_pre_pass`, the same one at each call. It has an id, so
    compiled graphs are cached as before.

    >>> names = "gate_proj", "up_proj"
    >>> model = torch.nn.ModuleDict({name: torch.nn.Linear(64, 32, device="cuda") for name in names})
    >>> model = tritonmm.quantize_(model.bfloat16(), "int8")
    >>> options = {"post_grad_custom_pre_pass": tritonmm.merge_siblings()}
    >>> step = torch.compile(lambda x: model["gate_proj"](x) * model["up_proj"](x), options=options)
    """
    from tritonmm.torch_ops.merging import MergeSiblings  # imports torch._inductor, which takes long

    return MergeSiblings()


def joined(parts: Sequence[Tensor]) -> Tensor | None:
    """The tensor that `parts`, in their order, are neighbouring slices of along the last dimension; None if there is
    none in their memory.

    >>> whole = torch.arange(10).view(5, 2).t()
    >>> joined([whole[:, :3], whole[:, 3:]]).tolist(), joined([whole[:, :3], whole[:, :2]])
    ([[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]], None)
    """
    return _joined(parts) if all(map(_follows, parts[1:], parts[:-1])) else None


def _joined(parts: Sequence[Tensor]) -> Tensor:
    first = parts[0]
    return first.as_strided((*first.shape[:-1], sum(x.shape[-1] for x in parts)), first.stride())


def _follows(x: Tensor, before: Tensor) -> bool:
    """Whether x begins where `before` ends, along the last dimension of one tensor."""
    step = before.stride(-1)
    if x.storage_offset() != before.storage_offset() + before.shape[-1] * step or x.stride(-1) != step:
        return False
    own, its = x.untyped_storage(), before.untyped_storage()
    if x.dtype != before.dtype or own.data_ptr() != its.data_ptr() or own.nbytes() != its.nbytes():
        return False
    lines = zip(x.shape[:-1], before.shape[:-1], x.stride()[:-1], before.stride()[:-1], strict=True)
    return all(size == other and (size == 1 or a == b) for size, other, a, b in lines)


_library = torch.library.Library("tritonmm", "FRAGMENT")
_library.define(
    "sibling_products(Tensor a, Tensor[] weights, Tensor[] scales, Tensor[] biases, Tensor? scale_a, str precision,"
    " ScalarType? out_dtype, str kind, int group, str accumulation) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
operator = torch.ops.tritonmm.sibling_products.default
"""[a @ (weight * scale) + bias for each weight], side by side: (m, k) by several (k, n), each with a scale and, unless
`biases` is empty, a bias, to (m, sum of n). All other arguments are those of `How`, as `kind` is its `scales`."""


def _kernel(a, weights, scales, biases, scale_a, precision, out_dtype, kind, group, accumulation):
    width = _width(a, weights, scales, biases)
    how = How(precision, out_dtype, scale_a, None, kind, group, accumulation)
    runs = _runs(weights, scales, *([biases] if biases else []))
    out = None if len(runs) == 1 else a.new_empty(a.shape[0], width, dtype=out_dtype or output_dtype(a.dtype))
    end = 0
    for run in runs:
        weight, scale, bias = (_joined(parts[run]) if parts else None for parts in (weights, scales, biases))
        start, end = end, end + weight.shape[1]
        part = None if out is None else out[:, start:end]
        found = product(a, weight, part, bias=bias, how=how._replace(scale_b=scale))
    return found if out is None else out


def _runs(*operands: Sequence[Tensor]) -> list[slice]:
    """Which of several operands of each GEMM lie next to each other, all of them: each slice is one launch."""
    count = len(operands[0])
    begins = [i for i in range(count) if not i or not all(_follows(parts[i], parts[i - 1]) for parts in operands)]
    return [slice(*ends) for ends in zip(begins, [*begins[1:], count], strict=True)]


def _fake(a, weights, scales, biases, scale_a, precision, out_dtype, kind, group, accumulation):
    return a.new_empty(a.shape[0], _width(a, weights, scales, biases), dtype=out_dtype or output_dtype(a.dtype))


def _width(a: Tensor, weights: Sequence[Tensor], scales: Sequence[Tensor], biases: Sequence[Tensor]) -> int:
    """Columns of the result. Raises RuntimeError where the operands do not fit."""
    torch._check(
        0 < len(weights) == len(scales) and len(biases) in (0, len(weights)),
        lambda: (
            f"sibling_products: there are {len(weights)} weights, {len(scales)} scales and {len(biases)} biases; each"
            " weight needs a scale, and each or none a bias"
        ),
    )
    for i, (weight, scale) in enumerate(zip(weights, scales, strict=True)):
        k = stored_k(any_name(weight.dtype), a.shape[-1])
        torch._check(
            a.dim() == weight.dim() == scale.dim() == 2 and k == weight.shape[0] and weight.shape[1] == scale.shape[1],
            lambda i=i, weight=weight, scale=scale: (
                f"sibling_products: a is {shape_of(a)}, weight {i} {shape_of(weight)} and its scale {shape_of(scale)};"
                " they must be (m, k), (k, n) and (groups, n)"
            ),
        )
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=False)):
        torch._check(
            bias.shape == weight.shape[1:],
            lambda i=i, weight=weight, bias=bias: (
                f"sibling_products: bias {i} is {shape_of(bias)}; it must be ({weight.shape[1]},)"
            ),
        )
    return sum(weight.shape[1] for weight in weights)


for _key in ("CPU", "CUDA"):
    _library.impl("sibling_products", _kernel, _key)
torch.library.register_fake("tritonmm::sibling_products", _fake, lib=_library)
