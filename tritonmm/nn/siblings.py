"""Codes and scales of sibling layers next to each other in memory, where one GEMM can multiply by all of them.

Rows of weights lie one after the other, packed int4 as well: the weights of siblings are slices of one tensor,
(sum of out_features, in_features). So are scales of whole rows and biases. Scales of groups are read with those of a
group of K contiguous, so they are slices of one tensor whose transpose, (groups, sum of out_features), is contiguous.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

import torch

from tritonmm.nn.linear import QuantizedLinear
from tritonmm.torch_ops.siblings import joined

Tensor = torch.Tensor

SIBLINGS = (
    ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"), ("query", "key", "value"),
    ("to_q", "to_k", "to_v"), ("add_q_proj", "add_k_proj", "add_v_proj"), ("wq", "wk", "wv"), ("q", "k", "v"),
    ("q_lin", "k_lin", "v_lin"), ("query_proj", "key_proj", "value_proj"), ("linear_q", "linear_k", "linear_v"),
    ("wi_0", "wi_1"),
)  # fmt: skip
"""Names of layers of one module that usually have the same input. Layers whose inputs differ lose nothing by it."""

ROWS = 16
"""The out_features of each sibling are a multiple of this: then slices of weights, scales and biases begin at a
multiple of 16 bytes, whatever the size of a row."""

BUFFERS = "weight", "scale", "bias"


@torch.no_grad()
def place_siblings_(model: torch.nn.Module) -> torch.nn.Module:
    """Moves the codes, scales and biases of sibling layers next to each other in memory, and returns the model.

    `quantize_` does so itself. Do it for layers of `from_gptq` and `from_awq`, and again where tensors were replaced:
    after `load_state_dict(..., assign=True)`, a move to another device, or a cast of biases. Meanwhile it needs
    extra memory for one group of siblings. Compile and capture CUDA graphs afterwards: buffers get new addresses.

    model: any module. Siblings are quantized linear layers of one module, with names such as q_proj, k_proj and v_proj,
        with the same in_features, kind, group and dtypes, all or none with a bias, and with out_features that are
        multiples of 16. Layers that share a buffer with another, and those on "meta", stay as they are.

    Values, names and shapes stay the same, and `load_state_dict` copies into the same memory. Tensors that are
    neighbours already are not moved. Raises TypeError if model is no module.

    >>> names = "gate_proj", "up_proj"
    >>> model = torch.nn.ModuleDict({name: torch.nn.Linear(64, 32, device="cuda") for name in names})
    >>> model = tritonmm.quantize_(model.bfloat16(), "int8")
    >>> gate, up = (layer.weight for layer in tritonmm.nn.place_siblings_(model).values())
    >>> up.data_ptr() - gate.data_ptr() == gate.nbytes
    True
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"place_siblings_: model must be a torch.nn.Module, not {type(model).__name__}")
    modules = model.named_modules(remove_duplicate=False)  # a layer of two modules is that of two users
    users = Counter(id(x) for _, module in modules for x in module.buffers(recurse=False))
    for module in model.modules():
        for layers in _siblings(module):
            for name in BUFFERS:
                layers = [each for each in layers if users[id(getattr(each, name))] < 2]
            if len(layers) > 1:
                for name in BUFFERS:
                    _place(layers, name)
    return model


def _siblings(module: torch.nn.Module) -> Iterator[list[QuantizedLinear]]:
    """The layers of a module whose memory is to be one tensor's."""
    children = dict(module.named_children())
    for names in SIBLINGS:
        alike: dict[tuple, list[QuantizedLinear]] = defaultdict(list)
        for layer in map(children.get, names):
            if isinstance(layer, QuantizedLinear) and _can_move(layer):
                alike[_kind(layer)].append(layer)
        yield from alike.values()


def _can_move(layer: QuantizedLinear) -> bool:
    buffers = [x for x in (layer.weight, layer.scale, layer.bias) if x is not None]
    return all(type(x) is Tensor and x.device.type != "meta" for x in buffers) and not layer.out_features % ROWS


def _kind(layer: QuantizedLinear) -> tuple:
    """What siblings have in common."""
    bias = None if layer.bias is None else layer.bias.dtype
    of_weight, of_scale = ((x.device, x.dtype, x.shape[1:]) for x in (layer.weight, layer.scale))
    return type(layer), layer.in_features, of_weight, of_scale, bias


def _place(layers: list[QuantizedLinear], name: str) -> None:
    """Makes the buffers of that name slices of one tensor, along out_features."""
    parts = [getattr(layer, name) for layer in layers]
    if parts[0] is None or joined([x.movedim(0, -1) for x in parts]) is not None:
        return
    first = parts[0]
    shape = sum(x.shape[0] for x in parts), *first.shape[1:]
    whole = first.new_empty(shape[::-1]).mT if name == "scale" and first.dim() == 2 else first.new_empty(shape)
    for layer, x, part in zip(layers, parts, whole.split([x.shape[0] for x in parts]), strict=True):
        part.copy_(x)
        # Not a view: to torch these are buffers of their own, which share a storage.
        own = first.new_empty(0).set_(whole.untyped_storage(), part.storage_offset(), part.shape, part.stride())
        setattr(layer, name, own)
