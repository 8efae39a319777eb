"""GEMMs of 8-bit operands: int8, fp8 with scales; and int8, fp8 or int4 weights with bf16 or fp16 activations.

Any strides are allowed. Operands that tensor cores cannot read in place are copied first; a row-major first operand and
a column-major second one need no copy. int8 by int8 is accumulated in int32, everything else in fp32. Results are
bitwise reproducible from run to run.

No function here is differentiable: RuntimeError if an operand requires grad while grad mode is on.

Arguments that all functions share, keyword-only:

out: where to store the result; as in `dense`.
config: the `Config` to use, instead of the one that `select` chooses.
accumulation: as in `dense`. Sums of int8 are exact: it does not change them.
"""

import math

import torch

from tritonmm.config import Config
from tritonmm.dtypes import DTYPES, FP8, HALF, PACKED, SCALE_GROUPS, any_name, stored_k
from tritonmm.scales import scales_of
from tritonmm.torch_ops.checks import check_dims, check_inner, prepare_out, shape_of
from tritonmm.torch_ops.deliver import deliver
from tritonmm.torch_ops.mode import check_accumulation
from tritonmm.torch_ops.product import How

Tensor = torch.Tensor

FP8_DTYPES = tuple(DTYPES[name] for name in FP8)

WEIGHT_DTYPES = torch.int8, torch.uint8, *FP8_DTYPES
"""Of weights, packed or not: uint8 is int4."""

BLOCK = PACKED["int8p"][0]
"""The last dimension of packed int8: its elements of K that are packed together."""

OUTPUTS = tuple(DTYPES[name] for name in (*HALF, "fp32"))


def int_mm(
    input: Tensor, mat2: Tensor, *, out: Tensor | None = None, config: Config | None = None, accumulation: str = ""
) -> Tensor:
    """Multiplies two int8 matrices, as torch._int_mm: (m, k) by (k, n) to (m, n) in int32. Any size, 0 included.

    out: (m, n), where to store the result; resized as torch does. config: the `Config` to use instead of `select`'s.
    accumulation: "any" or "invariant"; int8 sums are exact, so here it changes nothing.

    Any strides. Exact unless a sum overflows int32. Bitwise reproducible. Not differentiable. Raises RuntimeError, as
    torch does, for other dtypes and for shapes that cannot be multiplied, and if an operand needs a derivative;
    ValueError for a config that is not legal.

    >>> a = torch.full((16, 32), 3, device="cuda", dtype=torch.int8)
    >>> tritonmm.int_mm(a, a.t())[0, 0].item()
    288
    """
    check_accumulation(accumulation)
    _check("int_mm", input, mat2)
    if not input.dtype == mat2.dtype == torch.int8:
        raise RuntimeError(f"int_mm: operands must be torch.int8, but they are {input.dtype} and {mat2.dtype}")
    shape = input.shape[0], mat2.shape[1]
    how = How(out_dtype=torch.int32, accumulation=accumulation)
    return deliver("int_mm", (input, mat2), input, mat2, shape, out=out, config=config, how=how)


def scaled_mm(
    input: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    *,
    out: Tensor | None = None,
    config: Config | None = None,
    accumulation: str = "",
) -> Tensor:
    """(input * scale_a) @ (mat2 * scale_b) + bias, with the arguments of torch._scaled_mm: (m, k) by (k, n) to (m, n).

    input, mat2: fp8 of either kind, also one of each, or both int8.
    scale_a, scale_b: fp32. Their shapes say what each scale applies to, in the terms of
        torch.nn.functional.ScalingType:

        - TensorWise: one element each.
        - RowWise: (m, 1) and (1, n).
        - BlockWise1x128, one row of input or column of mat2 by 128 elements of k: (m, ceil(k / 128)) and
          (ceil(k / 128), n).
        - BlockWise128x128, 128 rows or columns by 128 elements of k: (ceil(m / 128), ceil(k / 128)) or
          (ceil(k / 128), ceil(n / 128)), for one operand, with BlockWise1x128 for the other.
    bias: (n,), of a floating-point dtype.
    scale_result: None. It would scale fp8 results, which are not supported.
    out_dtype: torch.bfloat16 (also for None), torch.float16 or torch.float32. torch's None means input's dtype instead.
    use_fast_accum: True accumulates fp8 as tensor cores do, with about 13 bits on sm_90. False adds the sums of each
        128 elements of k in fp32. Block-wise scales always do the latter.
    out, config, accumulation: as in `int_mm`.

    Unlike torch, it takes int8, e5m2 by e5m2, any sizes and any strides. Raises RuntimeError for other dtypes, for
    shapes that cannot be multiplied and for scales of other shapes; NotImplementedError for other output dtypes and for
    `scale_result`; ValueError for a config that is not legal.

    >>> a = torch.ones(16, 256, device="cuda").to(torch.float8_e4m3fn)
    >>> b = torch.ones(32, 256, device="cuda").to(torch.float8_e4m3fn).t()
    >>> one, per_block = torch.ones(1, device="cuda"), torch.full((16, 2), 0.5, device="cuda")
    >>> tritonmm.scaled_mm(a, b, one, one)[0, 0].item()
    256.0
    >>> tritonmm.scaled_mm(a, b, per_block, torch.ones(2, 32, device="cuda"), out_dtype=torch.float32)[0, 0].item()
    128.0
    """
    check_accumulation(accumulation)
    _check("scaled_mm", input, mat2, scale_a, scale_b, *if_given(bias))
    a, b = input, mat2
    if not (a.dtype in FP8_DTYPES and b.dtype in FP8_DTYPES) and not a.dtype == b.dtype == torch.int8:
        raise RuntimeError(f"scaled_mm: operands must be fp8, or both int8, but they are {a.dtype} and {b.dtype}")
    if scale_result is not None:
        raise NotImplementedError("scaled_mm: scale_result is given; it would scale fp8 results, and there are none")
    out_dtype = check_out_dtype("scaled_mm", out_dtype or torch.bfloat16)
    scale_a, scale_b, scales = matched_scales(a, b, scale_a, scale_b)
    _check_bias("scaled_mm", bias, b.shape[1])
    shape = a.shape[0], b.shape[1]
    if not a.shape[1]:  # there are no groups of k to have scales
        return _empty_sum("scaled_mm", (a, b), shape, out_dtype, bias, out)
    precision = "fast" if use_fast_accum and a.dtype in FP8_DTYPES else "ieee"
    how = How(precision, out_dtype, scale_a, scale_b, scales, accumulation=accumulation)
    return deliver("scaled_mm", (a, b), a, b, shape, added=bias, out=out, config=config, how=how)


def matched_scales(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> tuple[Tensor, Tensor, str]:
    """The scales in two dimensions, and which of `problem.SCALES` they are. Raises RuntimeError for none of them."""
    (m, k), n = a.shape, b.shape[1]
    groups, rows, cols = (math.ceil(x / 128) for x in (k, m, n))
    are_fp32 = scale_a.dtype == scale_b.dtype == torch.float32
    if are_fp32 and (name := scales_of(m, n, k, scale_a.shape, scale_b.shape)):
        if name == "tensor":
            scale_a, scale_b = scale_a.reshape(1, 1), scale_b.reshape(1, 1)
        return scale_a, scale_b, name
    raise RuntimeError(
        f"scaled_mm: scales are {scale_a.dtype} {list(scale_a.shape)} and {scale_b.dtype} {list(scale_b.shape)}; for"
        f" {shape_of(a)} by {shape_of(b)} they must be float32, of one element each, ({m}, 1) and (1, {n}), or"
        f" ({m} or {rows}, {groups}) and ({groups}, {n} or {cols})"
    )


def weight_only_linear(
    input: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
    config: Config | None = None,
    accumulation: str = "",
) -> Tensor:
    """input @ (weight * scale).T + bias, with weights of 8 or 4 bits: (..., k) by (n, k) to (..., n).

    input: bf16 or fp16; the result has its dtype.
    weight: int8 or fp8 (e4m3 or e5m2); or int8 as `nn.int8.pack` packs it, (n, ceil(k / 16), 16), which is faster with
        many rows of input; or int4 as `nn.int4.pack` packs it, uint8 (n, ceil(k / 32) * 16), whose codes from 0 to 15
        stand for -8 to 7. Packed rows are filled up to a multiple of 16 or 32 elements; k is that of input.
    scale: fp32. (n,) or (n, 1): one for each row of weight. (n, k / group): one for each `group` elements of a row, 16
        (not of int4), 32, 64 or 128. Scales below 2**-126 may count as 0. For int4 it may be int32 instead, (n, k /
        group), with a zero point for each group as well: see `nn.int4.with_zero_points`.
    bias: (n,), of a floating-point dtype.
    out, config, accumulation: as in `int_mm`; a config is one for the rows of input as one matrix.

    Weights are read once and converted on their way to the tensor cores. With few rows of input, reading them is what
    takes the time, so 8 bits take down to half the time of 16. Rows of packed int8 must be contiguous; other strides
    are any. Bitwise reproducible from run to run; bits depend on the number of rows of input, unless accumulation is
    "invariant". Not differentiable. Raises RuntimeError for other dtypes, for shapes that do not fit, and if an operand
    needs a derivative; TypeError for operands that are no tensors; ValueError for a config that is not legal and for an
    unknown `accumulation`.

    >>> x = torch.ones(4, 64, device="cuda", dtype=torch.bfloat16)
    >>> weight = torch.full((32, 64), 2, device="cuda", dtype=torch.int8)
    >>> tritonmm.weight_only_linear(x, weight, torch.full((32,), 0.5, device="cuda"))[0, 0].item()
    64.0
    """
    check_accumulation(accumulation)
    check_without_grad("weight_only_linear", input, weight, scale, *if_given(bias))
    stored = stored_weight("weight_only_linear", weight, 2)
    if not input.dim():
        raise RuntimeError("weight_only_linear: input needs at least one dimension, but it has none")
    rows, right = input.reshape(math.prod(input.shape[:-1]), input.shape[-1]), stored.t()
    check_weights("weight_only_linear", input, weight, rows, right)
    n, k = weight.shape[0], rows.shape[1]
    scale, scales, group = weight_scales("weight_only_linear", stored, scale, k)
    _check_bias("weight_only_linear", bias, n)
    shape = *input.shape[:-1], n
    if not n or not k:  # there are no weights to be scaled
        return _empty_sum("weight_only_linear", (input, weight), shape, input.dtype, bias, out)
    how = How("ieee", input.dtype, None, scale, scales, group, accumulation)
    given = input, weight
    return deliver("weight_only_linear", given, rows, right, shape, added=bias, out=out, config=config, how=how)


def stored_weight(name: str, weight: Tensor, dims: int) -> Tensor:
    """Weights as kernels read them: `packed_words` of packed int8, all others as they are. Raises RuntimeError for
    other numbers of dimensions and for packed int8 whose rows are not contiguous. dims: of weights that are not packed.
    """
    if weight.dtype != torch.int8 or weight.dim() != dims + 1 or weight.shape[-1] != BLOCK:
        check_dims(name, weight=(weight, dims))
        return weight
    *_, blocks, element = weight.stride()
    if weight.numel() and (element != 1 or (blocks != BLOCK and weight.shape[-2] > 1)):
        raise RuntimeError(
            f"{name}: weight {shape_of(weight)} is packed int8 with strides {list(weight.stride())}; its rows must be"
            " contiguous, as weight.contiguous() makes them"
        )
    return packed_words(weight)


def packed_words(weight: Tensor) -> Tensor:
    """Packed int8 (..., ceil(k / 16), 16) as int16 (..., ceil(k / 16) * 8), which `Problem` calls int8p. No data moves.

    >>> packed_words(tritonmm.nn.int8.pack(torch.zeros(3, 40, dtype=torch.int8))).shape
    torch.Size([3, 24])
    """
    return weight.view(torch.int16).flatten(-2)


def check_weights(name: str, input: Tensor, weight: Tensor, rows: Tensor, right: Tensor) -> None:
    """Raises unless activations can be multiplied by weights of 8 or 4 bits. rows, right: both as matrices."""
    if input.dtype not in (torch.bfloat16, torch.float16) or weight.dtype not in WEIGHT_DTYPES:
        raise RuntimeError(
            f"{name}: input must be bf16 or fp16 and weight int8, fp8 or uint8 (packed int4), but they are"
            f" {input.dtype} and {weight.dtype}"
        )
    stored = any_name(right.dtype)
    if stored not in PACKED:
        check_inner(name, input, weight, rows, right, inner="columns")
    elif right.shape[-2] != stored_k(stored, rows.shape[-1]):
        codes = "int8" if stored == "int8p" else "int4"
        together, elements = PACKED[stored]
        room, needed = (x // elements * together for x in (right.shape[-2], stored_k(stored, rows.shape[-1])))
        raise RuntimeError(
            f"{name}: weight {shape_of(weight)} is packed {codes} with room for {room} elements of K; input"
            f" {shape_of(input)} has {rows.shape[-1]} columns, and needs room for {needed}, as tritonmm.nn.{codes}.pack"
            " makes it"
        )


def weight_scales(name: str, weight: Tensor, scale: Tensor, k: int) -> tuple[Tensor, str, int]:
    """The scales of weights (..., n, k), as `Problem` has them: fp32 (..., scale groups, n), what they apply to, and
    the elements of K that share one. Raises RuntimeError for scales that do not fit."""
    lines = tuple(weight.shape[:-1])
    is_int4 = weight.dtype == torch.uint8
    groups = scale.shape[-1] if scale.dim() == len(lines) + 1 else 1
    has_zero_points = is_int4 and scale.dtype == torch.int32
    of_whole_rows = groups == 1 and not has_zero_points
    group = 128 if of_whole_rows else k // max(groups, 1)
    fits_lines = tuple(scale.shape) in (lines, (*lines, groups))
    sizes = SCALE_GROUPS[1:] if is_int4 else SCALE_GROUPS
    fits_k = of_whole_rows or not groups or (group in sizes and group * groups == k)
    is_known = scale.dtype == torch.float32 or has_zero_points
    if not is_known or not fits_lines or not fits_k or (k and not groups):
        spelled = ", ".join(map(str, lines))
        raise RuntimeError(
            f"{name}: scale is {scale.dtype} {list(scale.shape)}; for weights {[*lines, k]} it must be float32"
            f" [{spelled}] or [{spelled}, {k} / group], with a group of {', '.join(map(str, sizes[:-1]))} or 128"
            + (f"; or int32 with zero points, [{spelled}, {k} / group]" if is_int4 else "")
        )
    scales = "group-zero" if has_zero_points else "row" if of_whole_rows else "group"
    scale = scale.view(torch.float32) if has_zero_points else scale  # their bits
    return scale.reshape(*lines, groups).mT, scales, group


def _empty_sum(
    name: str,
    operands: tuple[Tensor, Tensor],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    bias: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    """The result where k or n is 0: the bias, or zeros."""
    if out is None:
        out = operands[0].new_empty(shape, dtype=dtype)
    else:
        prepare_out(name, out, shape, *operands, dtype=dtype)
    return out.zero_() if bias is None else out.copy_(bias.expand(shape))


def if_given(x: Tensor | None) -> tuple[Tensor, ...]:
    """x, if it is given, as arguments that are checked."""
    return () if x is None else (x,)


def _check(name: str, input: Tensor, mat2: Tensor, *others: Tensor) -> None:
    """As `check_without_grad`; also raises unless input @ mat2 is a product of matrices."""
    check_without_grad(name, input, mat2, *others)
    check_dims(name, input=(input, 2), mat2=(mat2, 2))
    check_inner(name, input, mat2, input, mat2)


def check_without_grad(name: str, *tensors: Tensor) -> None:
    """Raises unless all are dense tensors of one device, and none needs a derivative."""
    first = tensors[0]
    for x in tensors:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: operands must be Tensors, not {type(x).__name__}")
        if x.device != first.device:
            raise RuntimeError(f"{name}: operands need the same device, but they are on {first.device} and {x.device}")
        if x.layout != torch.strided:
            raise NotImplementedError(f"{name}: operands must be dense; got {x.layout}")
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(f"{name}: it has no derivative, but an operand requires grad; detach() it first")


def _check_bias(name: str, bias: Tensor | None, n: int) -> None:
    if bias is not None and (bias.shape != (n,) or not bias.is_floating_point()):
        raise RuntimeError(f"{name}: bias is {bias.dtype} {list(bias.shape)}; it must be of floats, [{n}]")


def check_out_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """`dtype`. Raises NotImplementedError unless it is one of `OUTPUTS`."""
    if dtype not in OUTPUTS:
        raise NotImplementedError(f"{name}: out_dtype is {dtype}; it can be {', '.join(map(str, OUTPUTS))}")
    return dtype
