"""The pass of torch's compiler behind `merge_siblings`. Importing this module imports torch._inductor.

1. Find the calls of `tritonmm::product` with scales, 2-D, whose B, scales and bias are graph inputs or views of them.
2. Group those with the same A, scales of A and settings that follow each other: results of all layers that read one
   tensor, such as an encoder's, would need memory all at once. A is compared by what it is computed from: each layer
   makes a view of its input, or quantizes it, by itself.
3. Replace each group by one `tritonmm::sibling_products` in place of its first call. Its columns are copied apart:
   later nodes expect contiguous results. Inductor computes such copies within the kernels that read them.

Graphs are functional here: operands that are graph inputs have the same values at the first call as at later ones.
"""

import operator
from itertools import groupby
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from tritonmm.torch_ops import siblings
from tritonmm.torch_ops.operator import operator as product

ATEN = torch.ops.aten

VIEWS = {
    ATEN.alias.default, ATEN.detach.default, ATEN.expand.default, ATEN.permute.default, ATEN.reshape.default,
    ATEN.select.int, ATEN.slice.Tensor, ATEN.squeeze.dim, ATEN.t.default, ATEN.transpose.int, ATEN.unsqueeze.default,
    ATEN.view.default, ATEN.view.dtype, ATEN._unsafe_view.default,
}  # fmt: skip
"""Operators that only look at their input in another way."""

REPEATED = VIEWS | {
    torch.ops.tritonmm.quantize_rows.default, operator.getitem, ATEN._to_copy.default,
    torch.ops.prims.convert_element_type.default,
}  # fmt: skip
"""What each layer computes of its input by itself: the results of two such nodes with equal arguments are the same."""

KINDS = {"row", "group", "group-zero"}
"""Scales, as `How.scales`, with some for each column: those of several weights fit side by side."""

ARGUMENTS = product._schema.arguments


class MergeSiblings(CustomGraphPass):
    """Merges the GEMMs of a graph that have the same input."""

    def __call__(self, graph: Graph) -> None:
        known: dict[Node, Any] = {}

        def alike(node: Node) -> tuple | None:
            given = _given(node)
            return _alike(given, known) if _is_mergeable(given) else None

        calls = graph.find_nodes(op="call_function", target=product)
        for common, group in [(common, list(nodes)) for common, nodes in groupby(calls, alike)]:
            if common is not None and len(group) > 1:
                _merge(graph, group)

    def __reduce__(self) -> tuple:
        """Copies are the pass itself, so that options copied by transformers equal those before, and a model is
        compiled once."""
        return siblings.merge_siblings, ()

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__, siblings.__file__))


def _given(node: Node) -> dict[str, Any]:
    """The arguments of a call of the product, by name."""
    given = {x.name: x.default_value for x in ARGUMENTS}
    given.update(zip(given, node.args, strict=False))
    return given | node.kwargs


def _is_mergeable(given: dict[str, Any]) -> bool:
    if given["scales"] not in KINDS or given["c"] is not None or given["config"] or given["symmetric"]:
        return False
    if given["alpha"] != 1 or given["beta"] != 1:
        return False
    fixed = [given["b"], given["scale_b"], *([] if given["bias"] is None else [given["bias"]])]
    read = [given["a"], *fixed, *([] if given["scale_a"] is None else [given["scale_a"]])]
    if not all(isinstance(x, Node) and isinstance(x.meta.get("val"), torch.Tensor) for x in read):
        return False
    weight = given["b"].meta["val"]
    return weight.dim() == 2 and all(isinstance(size, int) for size in weight.shape) and all(map(_is_input, fixed))


def _is_input(node: Node) -> bool:
    """Whether a node is an input of the graph, or a view of some."""
    if node.op in ("placeholder", "get_attr"):
        return True
    return node.target in VIEWS and all(map(_is_input, node.all_input_nodes))


def _alike(given: dict[str, Any], known: dict[Node, Any]) -> tuple:
    """What calls that are merged have in common."""
    weight, scale = given["b"].meta["val"], given["scale_b"].meta["val"]
    bias = None if given["bias"] is None else given["bias"].meta["val"].dtype
    settings = tuple(given[name] for name in ("precision", "out_dtype", "scales", "group", "accumulation"))
    operands = weight.dtype, weight.shape[0], scale.dtype, scale.shape[0], bias
    return *(_computed(given[name], known) for name in ("a", "scale_a")), *operands, *settings


def _computed(x: Any, known: dict[Node, Any]) -> Any:
    """A key that is equal for equal arguments, and for nodes that compute the same of the same nodes."""
    if isinstance(x, list | tuple):
        return tuple(_computed(each, known) for each in x)
    if not isinstance(x, Node):
        return type(x), x  # 1 is not True
    if x not in known:
        keywords = tuple((name, _computed(value, known)) for name, value in sorted(x.kwargs.items()))
        known[x] = (x.target, _computed(x.args, known), keywords) if x.target in REPEATED else x
    return known[x]


def _merge(graph: Graph, nodes: list[Node]) -> None:
    """Replaces calls of the product, in the order of the graph, by one for all."""
    first, *_ = nodes
    calls = [_given(node) for node in nodes]
    one = calls[0]
    with graph.inserting_before(first):
        weights, scales, biases = (
            [_moved(graph, given[name]) for given in calls if given[name] is not None]
            for name in ("b", "scale_b", "bias")
        )
        settings = (one[name] for name in ("precision", "out_dtype", "scales", "group", "accumulation"))
        arguments = one["a"], weights, scales, biases, one["scale_a"], *settings
        merged = _call(graph, first, siblings.operator, *arguments)
        merged.meta["eager_input_vals"] = _values(arguments), {}  # Inductor passes operands with these strides
        end = 0
        for node, weight in zip(nodes, weights, strict=True):
            start, end = end, end + weight.meta["val"].shape[1]
            part = _call(graph, node, ATEN.slice.Tensor, merged, 1, start, end)
            copied = _call(graph, node, ATEN.clone.default, part, memory_format=torch.contiguous_format)
            node.replace_all_uses_with(copied)
    for node in nodes:
        _erase(graph, node)


def _moved(graph: Graph, node: Node) -> Node:
    """A graph input, or a view of some where it is inserted."""
    return node if node.op in ("placeholder", "get_attr") else graph.node_copy(node, lambda x: _moved(graph, x))


def _call(graph: Graph, like: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A call with the metadata that torch's compiler needs, and that of `like` about the user's code."""
    node = graph.call_function(target, args, kwargs)
    node.meta = {name: like.meta[name] for name in ("stack_trace", "nn_module_stack") if name in like.meta}
    node.meta["val"] = target(*_values(args), **kwargs)
    return node


def _values(args: Any) -> Any:
    return map_arg(args, lambda x: x.meta["val"])


def _erase(graph: Graph, node: Node) -> None:
    """Erases a node that nothing uses, and so the views and quantized rows that it alone has used."""
    pending = {node: None}
    while pending:
        x, _ = pending.popitem()
        if not x.users and (x is node or x.target in REPEATED):
            pending.update(dict.fromkeys(x.all_input_nodes))
            graph.erase_node(x)
