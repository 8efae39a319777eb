"""A model with weights of 8 or 4 bits in one line."""

from collections import defaultdict
from collections.abc import Collection

import torch

from tritonmm.nn.linear import DynamicFp8Linear, QuantizedLinear, WeightOnlyLinear
from tritonmm.nn.weights import quantized

GROUPS = (16, 32, 64, 128)
"""Elements of a row that may share a scale."""

DEFAULT_GROUP = {"int4": 128}
"""By default, where it is not whole rows."""

ROWS = "rows"
"""The group that is a whole row."""

KINDS: dict[str, tuple[type[QuantizedLinear], str]] = {
    "int8": (WeightOnlyLinear, "int8"),
    "int4": (WeightOnlyLinear, "int4"),
    "fp8": (WeightOnlyLinear, "fp8"),
    "fp8-dynamic": (DynamicFp8Linear, "fp8"),
}
"""The layer, and its codes."""


@torch.no_grad()
def quantize_(
    model: torch.nn.Module, kind: str, *, group: int | str | None = None, skip: Collection[str] = ("lm_head",)
) -> torch.nn.Module:
    """Replaces the torch.nn.Linear layers in a model by ones with 8- or 4-bit weights, in place, and returns the model.

    model: on any device, its linear layers in bf16 or fp16. On "meta" the layers have shapes only, and
        `load_state_dict(..., assign=True)` fills them.
    kind: "int8", "int4" and "fp8" (e4m3) keep activations as they are, which is fastest for few rows, as in decoding.
        "fp8-dynamic" quantizes activations too, row by row, which is fastest for many rows.
    group: 16 (not for "int4"), 32, 64 or 128 elements of a row of weights that share a scale; "rows" for whole rows.
        None is 128 for "int4" and whole rows for all others. "fp8-dynamic" has whole rows only.
    skip: names of modules that stay as they are, with all that is inside: "lm_head" means `lm_head` and
        `model.lm_head`, "layers.0" only the first of `layers`.

    Memory falls to half that of bf16, or for "int4" to little more than a quarter, layer by layer. Layers that share
    their weight share the codes. A layer whose weight something else uses as well, as tied embeddings do, stays as it
    is, and so do subclasses of Linear. The layers' buffers `weight`, `scale` and `bias` are in the model's state_dict.
    They are not trained, but layers before and adapters beside them can be. Works with torch.compile and CUDA graphs,
    and is bitwise reproducible.

    Raises TypeError if model is no module, ValueError for other kinds and groups, for layers of other dtypes, whose
    rows do not divide into groups or whose weights are not finite, and if there is nothing to quantize. The model is
    unchanged then.

    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64, device="cuda", dtype=torch.bfloat16), torch.nn.ReLU())
    >>> tritonmm.quantize_(model, "int8")
    Sequential(
      (0): WeightOnlyLinear(in_features=64, out_features=64, bias=True, weight=int8)
      (1): ReLU()
    )
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"quantize_: model must be a torch.nn.Module, not {type(model).__name__}")
    if kind not in KINDS:
        raise ValueError(f"quantize_: kind is {kind!r}; it must be one of {', '.join(map(repr, KINDS))}")
    group = _group(kind, group)
    if isinstance(skip, str):
        raise TypeError(f"quantize_: skip is {skip!r}; it must be several names, as in ({skip!r},)")
    layers = _layers(model, skip)
    if not layers:
        raise ValueError(
            "quantize_: there is nothing to quantize: model has no torch.nn.Linear inside, with a weight of its own,"
            f" that is not in {tuple(skip)}"
        )
    for layer, names in layers.items():
        _check(names[0], layer, group)
    layer_type, codes = KINDS[kind]
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for layer, names in layers.items():
        key = id(layer.weight)
        if key not in made:
            made[key] = quantized(layer.weight.detach(), codes, group)
        bias = None if layer.bias is None else layer.bias.detach()
        new = layer_type(*made[key], bias, layer.in_features).train(layer.training)
        for name in names:
            model.set_submodule(name, new)
    return model


def _group(kind: str, group: int | str | None) -> int | None:
    """Elements of a row that share a scale; None if all do. Raises ValueError for groups that the kind has not."""
    if group is None:
        return DEFAULT_GROUP.get(kind)
    if group == ROWS:
        return None
    known = {"fp8-dynamic": (), "int4": GROUPS[1:]}.get(kind, GROUPS)
    if group not in known or isinstance(group, str):
        raise ValueError(f"quantize_: group is {group!r} of {kind}; it can be {', '.join(map(repr, (*known, ROWS)))}")
    return group


def _layers(model: torch.nn.Module, skip: Collection[str]) -> dict[torch.nn.Linear, list[str]]:
    """The layers to replace, and the names of each."""
    users: dict[int, set[torch.nn.Module]] = defaultdict(set)
    found: dict[torch.nn.Linear, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            users[id(parameter)].add(module)
        if type(module) is torch.nn.Linear and name:
            found.setdefault(module, []).append(name)
    kept = {module for module, names in found.items() if any(_is_in(name, skip) for name in names)}
    while alone := {m for m in found if m not in kept and users[id(m.weight)] - (found.keys() - kept)}:
        kept |= alone  # their weights stay in memory for somebody else
    return {module: names for module, names in found.items() if module not in kept}


def _is_in(name: str, skip: Collection[str]) -> bool:
    """Whether a module is one of those that `skip` names, or inside of one."""
    return any(f".{each}." in f".{name}." for each in skip)


def _check(name: str, layer: torch.nn.Linear, group: int | None) -> None:
    weight = layer.weight
    if weight.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(
            f"quantize_: {name} has weights of {weight.dtype}; it must be bf16 or fp16, as after model.bfloat16()"
        )
    if group is not None and layer.in_features % group:
        raise ValueError(
            f"quantize_: {name} has {layer.in_features} input features, which {group} does not divide; another group"
            ' does, or group="rows"'
        )
    if weight.device.type != "meta" and not weight.isfinite().all():
        raise ValueError(f"quantize_: {name} has weights that are not finite")
