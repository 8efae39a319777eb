"""Experts of mixture-of-experts layers with weights of 8 or 4 bits.

A router gives each token the indices of its experts and a weight for each. Tokens are sorted by expert on the device,
so that the rows of an expert are a group of a grouped product:

    place   = order of the (token, expert) pairs by expert
    hidden  = rows of the tokens in that order
    hidden  = first projection of each group, then the activation, then the second projection
    out     = rows back at the place of their pair, times its weight, summed over the experts of a token

Nothing comes to the host, and no sum depends on the order in which programs run.
"""

import copy
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from tritonmm.nn.weights import QuantizedModule, dequantized
from tritonmm.torch_ops import grouped_operator
from tritonmm.torch_ops.grouped_product import GroupedHow
from tritonmm.torch_ops.quantize_rows import quantize_rows
from tritonmm.torch_ops.scaled_grouped import scaled_grouped_mm
from tritonmm.torch_ops.weight_only_grouped import weight_only_grouped_mm

Tensor = torch.Tensor

FIRST = {True: "gate_up_proj", False: "up_proj"}
"""The parameter of the first projection, by whether the experts have a gate."""

SECOND = "down_proj"
"""The parameter of the second projection."""


class Projection(NamedTuple):
    """A linear layer of each expert.

    weight: codes (experts, out_features, in_features), int8 or fp8, or as `int8.pack` and `int4.pack` pack them.
    scale: fp32 (experts, out_features) or (experts, out_features, in_features / group), or int32 with zero points.
    bias: (experts, out_features) or None.
    in_features: of packed weights, by default as many as weight has room for.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor | None = None
    in_features: int | None = None


class QuantizedExperts(QuantizedModule):
    """What replaces the experts of a mixture-of-experts layer, with weights of 8 or 4 bits.

    Buffers, for each of the two projections: NAME, its codes; NAME_scale; NAME_bias or None. They are the module's
    state_dict. Casts such as `module.half()` leave codes and scales as they are, and apply to biases. Hidden states and
    the router's weights have derivatives, hidden states once: those of products with the dequantized weights.

    >>> codes = torch.ones(4, 64, 32, device="cuda", dtype=torch.int8), torch.ones(4, 32, 32, device="cuda").char()
    >>> up, down = (Projection(each, torch.full(each.shape[:2], 0.125, device="cuda")) for each in codes)
    >>> experts = QuantizedExperts({"gate_up_proj": up, "down_proj": down}, Gated(torch.nn.ReLU()))
    >>> tokens = torch.ones(2, 32, device="cuda", dtype=torch.bfloat16)
    >>> index, weights = torch.tensor([[0, 2], [3, 2]], device="cuda"), torch.full((2, 2), 0.5, device="cuda")
    >>> experts(tokens, index, weights)[0, 0].item()
    64.0
    """

    lines = 2

    def __init__(
        self,
        projections: Mapping[str, Projection],
        activation: Callable[[Tensor], Tensor],
        *,
        quantizes_activations: bool = False,
    ) -> None:
        """projections: two by their names, in the order in which they are applied.
        activation: a module or function from rows of the first projection to those of the second, such as `Gated`.
        quantizes_activations: rows are quantized to fp8, with a scale each, before each projection; weights are fp8
            with scales of rows.
        """
        super().__init__()
        self.first, self.second = projections
        for name, each in projections.items():
            self.register_buffer(name, each.weight)
            self.register_buffer(f"{name}_scale", each.scale)
            self.register_buffer(f"{name}_bias", each.bias)
        self.activation = activation
        self.quantizes_activations = quantizes_activations
        up, down = projections.values()
        self.num_experts = up.weight.shape[0]
        self.hidden_dim, self.intermediate_dim = (x.in_features or self._room_of(x.weight) for x in (up, down))

    def _operands(self) -> dict[str, tuple[str, int]]:
        sizes = {self.first: self.hidden_dim, self.second: self.intermediate_dim}
        return {name: (f"{name}_scale", k) for name, k in sizes.items()}

    def extra_repr(self) -> str:
        sizes = (
            f"num_experts={self.num_experts}, hidden_dim={self.hidden_dim}, intermediate_dim={self.intermediate_dim}"
        )
        activations = ", activations=fp8" if self.quantizes_activations else ""
        has_bias = getattr(self, f"{self.first}_bias") is not None
        return f"{sizes}, bias={has_bias}, {self._described(self.first)}{activations}"

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """The sum of each token's experts, times their weights, as hidden_states.

        hidden_states: (tokens, hidden_dim), bf16 or fp16, or whatever autocast casts. top_k_index, top_k_weights:
        (tokens, top_k), the experts of each token, from 0 to num_experts - 1, and their weights.

        Bitwise reproducible. Raises RuntimeError as `weight_only_grouped_mm` does, and for hidden states of another
        width. Indices of no expert give undefined results.
        """
        x = self._prepared(hidden_states, self.hidden_dim)
        tokens, top_k = top_k_index.shape
        width = self.hidden_dim
        ordered, place = torch.sort(top_k_index.reshape(-1), stable=True)
        each = torch.arange(self.num_experts, device=ordered.device, dtype=ordered.dtype)
        offs = torch.searchsorted(ordered, each, right=True, out_int32=True)
        rows = self._project(self.first, x.reshape(tokens, width)[place // top_k], offs)
        rows = self._project(self.second, self.activation(rows), offs)
        back = torch.empty_like(place).scatter_(0, place, torch.arange(tokens * top_k, device=place.device))
        weighted = rows[back].view(tokens, top_k, width) * top_k_weights.unsqueeze(-1)
        return weighted.sum(1).to(x.dtype).view(hidden_states.shape)

    def _project(self, name: str, rows: Tensor, offs: Tensor) -> Tensor:
        weight, scale, bias = (getattr(self, f"{name}{what}") for what in ("", "_scale", "_bias"))
        needs_derivative = torch.is_grad_enabled() and rows.requires_grad
        multiply = differentiable if needs_derivative else product
        return multiply(rows, weight, scale, bias, offs, self.quantizes_activations)


class Gated(torch.nn.Module):
    """The activation of experts with a gate: act_fn of the first half of a row, times the second half."""

    def __init__(self, act_fn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.act_fn = act_fn

    def forward(self, rows: Tensor) -> Tensor:
        gate, up = rows.chunk(2, dim=-1)
        return self.act_fn(gate) * up


class GateOf(torch.nn.Module):
    """The gate of a module of experts that has one of its own, `_apply_gate`: that module, without its parameters."""

    def __init__(self, experts: torch.nn.Module) -> None:
        super().__init__()
        self.experts = copy.copy(experts)
        self.experts._parameters = {}
        self.experts._modules, self.experts._buffers = dict(experts._modules), dict(experts._buffers)

    def forward(self, rows: Tensor) -> Tensor:
        return self.experts._apply_gate(rows)


def projections_of(module: torch.nn.Module) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Weights (experts, out_features, in_features) and biases of the two projections of a module of experts, by name;
    empty for other modules.

    Experts are recognized by transformers' interface of experts (`use_experts_implementation`): a forward that it
    wrapped, attributes that say how the weights are stored, and those weights as its only parameters. Left out are
    those with a norm behind each expert, and experts that are divided among GPUs.
    """
    has_gate, is_transposed = getattr(module, "has_gate", True), getattr(module, "is_transposed", None)
    has_bias = getattr(module, "has_bias", None)
    is_known = isinstance(has_gate, bool) and isinstance(is_transposed, bool) and isinstance(has_bias, bool)
    if not is_known or not hasattr(type(module).forward, "__wrapped__"):
        return {}
    if getattr(module, "has_post_expert_norm", False) or getattr(module, "_is_expert_parallel", False):
        return {}
    if not callable(getattr(module, "_apply_gate" if has_gate else "act_fn", None)):
        return {}
    names = FIRST[has_gate], SECOND
    wanted = {*names, *(f"{name}_bias" for name in names if has_bias)}
    given = dict(module.named_parameters())
    if given.keys() != wanted or any(True for _ in module.buffers()):
        return {}
    if any(type(x) is not torch.nn.Parameter or x.dim() != 3 for x in map(given.get, names)):
        return {}
    found: dict[str, tuple[Tensor, Tensor | None]] = {
        name: (given[name].mT if is_transposed else given[name], given.get(f"{name}_bias")) for name in names
    }
    (up, of_up), (down, of_down) = found.values()
    experts, outputs, hidden = up.shape
    intermediate = outputs // 2 if has_gate else outputs
    fits = down.shape == (experts, hidden, intermediate) and outputs == (2 if has_gate else 1) * intermediate
    fits = fits and all(b is None or b.shape == w.shape[:2] for w, b in ((up, of_up), (down, of_down)))
    return found if fits and getattr(module, "num_experts", experts) == experts else {}


def activation_of(module: torch.nn.Module) -> torch.nn.Module | Callable[[Tensor], Tensor]:
    """What a module of experts, recognized by `projections_of`, does between its projections."""
    return GateOf(module) if getattr(module, "has_gate", True) else module.act_fn


def product(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, offs: Tensor, quantizes_activations: bool
) -> Tensor:
    """x @ (weight * scale).mT + bias of the groups of rows that end at offs, without derivatives."""
    if not quantizes_activations:
        return weight_only_grouped_mm(x, weight, scale, offs=offs, bias=bias)
    codes, of_rows = quantize_rows(x)
    of_rows = of_rows.squeeze(1)
    return scaled_grouped_mm(codes, weight.mT, of_rows, scale, offs, bias, out_dtype=x.dtype, use_fast_accum=True)


differentiable = torch.library.custom_op("tritonmm::quantized_experts", product, mutates_args=())
"""`product` as an operator of torch: autograd and torch's compiler know its derivative."""


@differentiable.register_fake
def _(x, weight, scale, bias, offs, quantizes_activations):
    return x.new_empty((x.shape[0], weight.shape[1]))


def _keep(ctx, inputs, output):
    _, weight, scale, _, offs, _ = inputs
    ctx.save_for_backward(weight, scale, offs)
    ctx.in_features = inputs[0].shape[-1]


def _backward(ctx, grad):
    weight, scale, offs = ctx.saved_tensors
    dense = dequantized(weight, scale, grad.dtype, ctx.in_features, lines=2)
    found = grouped_operator.compute(grad, dense, offs, how=GroupedHow(zeros=True))
    return found, None, None, None, None, None


differentiable.register_autograd(_backward, setup_context=_keep)
