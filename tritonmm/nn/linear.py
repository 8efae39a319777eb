"""Linear layers with weights of 8 or 4 bits."""

import torch

from tritonmm.nn.weights import QuantizedModule, dequantized
from tritonmm.torch_ops.dense import matmul
from tritonmm.torch_ops.quantize_rows import quantize_rows
from tritonmm.torch_ops.quantized import scaled_mm, weight_only_linear

Tensor = torch.Tensor


class QuantizedLinear(QuantizedModule):
    """What replaces a torch.nn.Linear whose weights are codes of 8 or 4 bits and scales.

    Buffers: `weight` (out_features, in_features), int8 or fp8, or packed as `int8.pack` and `int4.pack` do it; `scale`,
    fp32, (out_features,) or (out_features, in_features / group), or int32 from `int4.with_zero_points`; `bias` or None.
    They are the module's state_dict. Casts such as `module.half()` leave codes and scales as they are, and apply to the
    bias. Only activations have derivatives, once: those of a product with the dequantized weights. `load_state_dict`
    packs int8 that is not packed, and raises for codes and scales of another dtype, unless assign=True.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor | None
    quantizes_activations: bool
    lines = 1

    def __init__(
        self, weight: Tensor, scale: Tensor, bias: Tensor | None = None, in_features: int | None = None
    ) -> None:
        """in_features: of packed weights, by default as many as weight has room for."""
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)
        self.out_features = weight.shape[0]
        self.in_features = in_features or self._room_of(weight)

    def _operands(self) -> dict[str, tuple[str, int]]:
        return {"weight": ("scale", self.in_features)}

    @property
    def group(self) -> int | None:
        """Elements of a row that share a scale; None if all do."""
        return self._group_of("weight")

    def extra_repr(self) -> str:
        features = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{features}, bias={self.bias is not None}, {self._described('weight')}"

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features), bf16 or fp16, or whatever autocast casts. The result has that
        dtype.

        Bitwise reproducible. Raises RuntimeError as `weight_only_linear` does, and for rows of another length.
        """
        x = self._prepared(x, self.in_features)
        needs_derivative = torch.is_grad_enabled() and x.requires_grad
        multiply = differentiable if needs_derivative else product
        return multiply(x, self.weight, self.scale, self.bias, self.quantizes_activations)


class WeightOnlyLinear(QuantizedLinear):
    """`weight_only_linear` as a layer: bf16 or fp16 activations, int8, fp8 or int4 weights.

    >>> weight, scale = torch.ones(32, 64, device="cuda", dtype=torch.int8), torch.ones(32, device="cuda")
    >>> layer = WeightOnlyLinear(weight, scale)
    >>> layer, layer(torch.ones(64, device="cuda", dtype=torch.bfloat16))[0].item()
    (WeightOnlyLinear(in_features=64, out_features=32, bias=False, weight=int8), 64.0)
    """

    quantizes_activations = False


class DynamicFp8Linear(QuantizedLinear):
    """fp8 weights with a scale for each row, and activations that are quantized to fp8, a scale for each row, too.

    The product runs on fp8 tensor cores with their own accumulation, `use_fast_accum` of `scaled_mm`: twice the rate of
    bf16. Activations are bf16 or fp16, and the result has their dtype. Derivatives are those without the rounding of
    activations.
    """

    quantizes_activations = True


def product(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, quantizes_activations: bool) -> Tensor:
    """x @ (weight * scale).T + bias, without derivatives."""
    if not quantizes_activations:
        return weight_only_linear(x, weight, scale, bias)
    codes, of_rows = quantize_rows(x.reshape(-1, x.shape[-1]))
    of_cols = scale.unsqueeze(0)
    found = scaled_mm(codes, weight.t(), of_rows, of_cols, bias, out_dtype=x.dtype, use_fast_accum=True)
    return found.reshape(*x.shape[:-1], weight.shape[0])


differentiable = torch.library.custom_op("tritonmm::quantized_linear", product, mutates_args=())
"""`product` as an operator of torch: autograd and torch's compiler know its derivative."""


@differentiable.register_fake
def _(x, weight, scale, bias, quantizes_activations):
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[1:3])
    ctx.in_features = inputs[0].shape[-1]


def _backward(ctx, grad):
    return matmul(grad, dequantized(*ctx.saved_tensors, grad.dtype, ctx.in_features)), None, None, None, None


differentiable.register_autograd(_backward, setup_context=_keep)
