"""A model with weights of 8 or 4 bits in one line: its linear layers, and its experts."""

import difflib
from collections import defaultdict
from collections.abc import Collection, Iterable

import torch

from tritonmm.nn.experts import Projection, QuantizedExperts, activation_of, projections_of
from tritonmm.nn.linear import DynamicFp8Linear, QuantizedLinear, WeightOnlyLinear
from tritonmm.nn.siblings import place_siblings_
from tritonmm.nn.weights import quantized
from tritonmm.torch_ops.quantized import SCALE_GROUPS

DEFAULT_GROUP = {"int4": 128}
"""By default, where it is not whole rows."""

ROWS = "rows"
"""The group that is a whole row."""

READERS = (torch.nn.TransformerEncoderLayer,)
"""Modules that read the weights of linear layers inside, which therefore stay as they are."""

OPTIONAL = ("lm_head",)
"""Names that skip may have though no module of the model has them: those of its default."""

HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_backward_pre_hooks", "_backward_hooks", "_is_full_backward_hook",
)  # fmt: skip
"""Attributes of a torch.nn.Module that hold its forward and backward hooks, and how each is called."""

KINDS: dict[str, tuple[type[QuantizedLinear], str]] = {
    "int8": (WeightOnlyLinear, "int8p"),
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
    So it does with the experts of mixture-of-experts layers, which transformers stores as 3-D parameters.

    model: on any device, its linear layers and experts in bf16 or fp16. On "meta" they have shapes only, and
        `load_state_dict(..., assign=True)` fills them.
    kind: "int8", "int4" and "fp8" (e4m3) keep activations as they are, which is fastest for few rows, as in decoding.
        "fp8-dynamic" quantizes activations too, row by row, which is fastest for many rows. Weights are rounded to
        nearest, without calibration.
    group: 16 (not for "int4"), 32, 64 or 128 elements of a row of weights that share a scale; "rows" for whole rows.
        None is 128 for "int4" and whole rows for all others. "fp8-dynamic" has whole rows only.
    skip: names of modules that stay as they are, with all that is inside: "lm_head" means `lm_head` and
        `model.lm_head`, "layers.0" only the first of `layers`. Each must name a module of the model,
        except "lm_head".

    Memory falls to half that of bf16, or for "int4" to little more than a quarter, layer by layer. Layers that usually
    have the same input, such as q_proj, k_proj and v_proj, lie next to each other in memory: see `nn.place_siblings_`
    and `merge_siblings`. Layers that share their weight share the codes. A layer whose weight something else uses as
    well, as tied embeddings do, stays as it is, and so do subclasses of Linear. The layers' buffers `weight`, `scale`
    and `bias` are in the model's state_dict, and those of experts, see `nn.experts.QuantizedExperts`. They are not
    trained, but layers before and adapters beside them can be. Forward and backward hooks are kept, and their handles
    still remove them. accelerate's replacement of a layer's forward is dropped if it only moves inputs to the layer's
    device. Routers that are not a Linear stay as they are, as do layers whose weight or bias a hook computes, such as
    `weight_norm`, layers that have other modules, parameters or buffers, and those of torch.nn.TransformerEncoderLayer,
    which reads their weights. Works with torch.compile and CUDA graphs. Bitwise reproducible.

    Raises TypeError if model is no module or skip not several names; ValueError for other kinds and groups, for names
    that no module has, for layers and experts of other dtypes, without input features, whose rows do not divide into
    groups, whose weights are not finite or whose forward was replaced, and if there is nothing to quantize. The model
    is unchanged then.

    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64, device="cuda", dtype=torch.bfloat16), torch.nn.ReLU())
    >>> tritonmm.quantize_(model, "int8")
    Sequential(
      (0): WeightOnlyLinear(in_features=64, out_features=64, bias=True, weight=int8)
      (1): ReLU()
    )
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"quantize_: model must be a torch.nn.Module, not {type(model).__name__}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"quantize_: kind is {kind!r}; it must be one of {', '.join(map(repr, KINDS))}")
    group = _group(kind, group)
    skip = _names(skip, model)
    layers = _layers(model, skip)
    if not layers:
        raise ValueError(
            "quantize_: there is nothing to quantize: model has no torch.nn.Linear and no experts inside, with weights"
            f" of their own, that are not in {skip} and not quantized already"
        )
    for layer, names in layers.items():
        _check_forward(names[0], layer)
        for name, (_, weight) in _weights(layer).items():
            _check(".".join(filter(None, (names[0], name))), weight, group, _groups(kind))
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    while layers:
        layer = next(iter(layers))
        names = layers.pop(layer)  # `layers` would keep the layer's weights in memory
        new = _quantized(layer, kind, group, made).train(layer.training)
        vars(new).update((hooks, vars(layer)[hooks]) for hooks in HOOKS)
        for name in names:
            model.set_submodule(name, new)
    del layer, weight  # the last ones
    return place_siblings_(model)


def _quantized(
    layer: torch.nn.Module, kind: str, group: int | None, made: dict[int, tuple[torch.Tensor, torch.Tensor]]
) -> torch.nn.Module:
    """The module that replaces a layer. made: codes and scales by the parameters they were made of."""
    layer_type, codes = KINDS[kind]

    def of(parameter: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if id(parameter) not in made:
            made[id(parameter)] = quantized(weight.detach(), codes, group)
        return made[id(parameter)]

    if isinstance(layer, torch.nn.Linear):
        bias = None if layer.bias is None else layer.bias.detach()
        return layer_type(*of(layer.weight, layer.weight), bias, layer.weight.shape[1])
    projections = {
        name: Projection(*of(getattr(layer, name), weight), None if bias is None else bias.detach(), weight.shape[2])
        for name, (weight, bias) in projections_of(layer).items()
    }
    return QuantizedExperts(projections, activation_of(layer), quantizes_activations=layer_type.quantizes_activations)


def _groups(kind: str) -> tuple[int, ...]:
    """The numbers of elements of a row that may share a scale, besides all."""
    return {"fp8-dynamic": (), "int4": SCALE_GROUPS[1:]}.get(kind, SCALE_GROUPS)


def _group(kind: str, group: int | str | None) -> int | None:
    """Elements of a row that share a scale; None if all do. Raises ValueError for groups that the kind has not."""
    if group is None:
        return DEFAULT_GROUP.get(kind)
    if group == ROWS:
        return None
    known = _groups(kind)
    if group not in known or not isinstance(group, int):
        raise ValueError(f"quantize_: group is {group!r} of {kind}; it can be {', '.join(map(repr, (*known, ROWS)))}")
    return group


def _names(skip: Collection[str], model: torch.nn.Module) -> tuple[str, ...]:
    """The names of modules to skip. Raises TypeError for anything else, ValueError for those that no module has."""
    if isinstance(skip, str) or not isinstance(skip, Iterable):
        given = f"({skip!r},)" if isinstance(skip, str) else "('lm_head',), or ()"
        raise TypeError(f"quantize_: skip is {skip!r}; it must be several names, as in {given}")
    skip = tuple(skip)
    if wrong := [each for each in skip if not isinstance(each, str)]:
        raise TypeError(f"quantize_: skip has {wrong[0]!r}; it must have names of modules, as in ('lm_head',)")
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    for each in skip:
        if each not in OPTIONAL and not any(_is_in(name, (each,)) for name in names):
            known = {part for name in names for part in (name, *name.split("."))}
            near = difflib.get_close_matches(each, known, 1)
            said = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"quantize_: skip has {each!r}, which no module of the model is named{said}")
    return skip


def _layers(model: torch.nn.Module, skip: tuple[str, ...]) -> dict[torch.nn.Module, list[str]]:
    """The linear layers and experts to replace, and the names of each."""
    users: dict[int, set[torch.nn.Module]] = defaultdict(set)
    found: dict[torch.nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            users[id(parameter)].add(module)
        if name and (_is_plain_linear(module) or projections_of(module)):
            found.setdefault(module, []).append(name)
    kept = {module for module, names in found.items() if any(_is_in(name, skip) for name in names)}
    kept |= {child for module in model.modules() if isinstance(module, READERS) for child in module.children()}

    def has_others(module: torch.nn.Module) -> bool:
        return any(users[id(weight)] - (found.keys() - kept) for weight, _ in _weights(module).values())

    while alone := {module for module in found if module not in kept and has_others(module)}:
        kept |= alone  # their weights stay in memory for somebody else
    return {module: names for module, names in found.items() if module not in kept}


def _is_plain_linear(module: torch.nn.Module) -> bool:
    """Whether a module is a Linear whose weight and bias no hook computes, with nothing else inside."""
    has_others = module._modules or module._buffers or module._parameters.keys() != {"weight", "bias"}
    return type(module) is torch.nn.Linear and not has_others


def _weights(layer: torch.nn.Module) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The parameters of a layer that are quantized, by name, and each as rows of weights."""
    if isinstance(layer, torch.nn.Linear):
        return {"": (layer.weight, layer.weight)}
    return {name: (getattr(layer, name), weight) for name, (weight, _) in projections_of(layer).items()}


def _is_in(name: str, skip: tuple[str, ...]) -> bool:
    """Whether a module is one of those that `skip` names, or inside of one."""
    return any(f".{each}." in f".{name}." for each in skip)


def _check_forward(name: str, layer: torch.nn.Module) -> None:
    """Raises if the layer's forward was replaced by one that would be lost with it.

    accelerate replaces forwards in models on several devices. Most only move inputs to the layer's device, which the
    block around the layer does as well: these may be lost. Others load weights first, which are on "meta" until then.
    """
    replaced = "forward" in vars(layer)
    offloaded = any(weight.device.type == "meta" for _, weight in _weights(layer).values())
    if replaced and (offloaded or not hasattr(layer, "_hf_hook")):
        why = "loads its weights" if hasattr(layer, "_hf_hook") else "is not its class's"
        raise ValueError(f"quantize_: the forward of {name} was replaced and {why}; undo that, or name it in skip=")


def _check(name: str, weight: torch.Tensor, group: int | None, known: Iterable[int]) -> None:
    """Raises unless weights (..., in_features) can be quantized. known: what `_groups` has for the kind."""
    if weight.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(
            f"quantize_: {name!r} has weights of {weight.dtype}; it must be bf16 or fp16, as after model.bfloat16()"
        )
    if not weight.shape[-1]:
        raise ValueError(f"quantize_: {name!r} has no input features; name it in skip=")
    if group is not None and weight.shape[-1] % group:
        others = [str(each) for each in known if not weight.shape[-1] % each]
        raise ValueError(
            f"quantize_: {name!r} has {weight.shape[-1]} input features, which {group} does not divide; group can"
            f" be {', '.join([*others, repr(ROWS)])}"
        )
    if weight.device.type != "meta" and not weight.isfinite().all():
        raise ValueError(f"quantize_: {name!r} has weights that are not finite")
