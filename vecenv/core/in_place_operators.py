"""Operators of other libraries that overwrite their arguments, in graphs that Inductor compiles.

Inductor (torch 2.13) expects graphs without them, and does two things that are wrong with them. It leaves out copies,
so that the original is overwritten; that pass is switched off by the setting ``pattern_matcher``. And it computes what
was read of an argument only where the result is used, after the operator has overwritten it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, Node


@torch.library.custom_op("vecenv::computed", mutates_args=())
def _computed(value: Tensor) -> Tensor:
    """Return a copy; Inductor computes the arguments of an operator that it does not know before it calls it."""
    return value.clone()


@_computed.register_fake
def _(value: Tensor) -> Tensor:
    return torch.empty_like(value)


def operators_in_place(graph: Graph) -> list[Node]:
    """Return the calls of operators that overwrite arguments and are not PyTorch's own."""
    return [
        node
        for node in graph.nodes
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable and node.target.namespace != "aten"
    ]


def read_before_overwritten(graph: Graph) -> None:
    """Let all that is read of an argument be computed before an operator overwrites it."""
    for operator in operators_in_place(graph):
        earlier = _before(operator)
        later = set(graph.nodes).difference(earlier, [operator])
        for node in _read_of(_overwritten(operator), earlier):
            if later.intersection(node.users):
                _compute_before(operator, node, later)
    graph.lint()


def _before(operator: Node) -> list[Node]:
    nodes = list(operator.graph.nodes)
    return nodes[: nodes.index(operator)]


def _overwritten(operator: Node) -> set[Node]:
    """Return the nodes whose memory an operator overwrites: of a view, that which it is a view of."""
    assert isinstance(operator.target, OpOverload)
    found: set[Node] = set()
    for place, argument in enumerate(operator.target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = operator.args[place] if place < len(operator.args) else operator.kwargs.get(argument.name)
        for node in value if isinstance(value, list | tuple) else [value]:
            while isinstance(node, Node) and _is_view(node):
                node = node.args[0]
            if isinstance(node, Node):
                found.add(node)
    return found


def _read_of(memory: set[Node], nodes: list[Node]) -> list[Node]:
    """Return the tensors among some nodes, in order, that were computed from memory, directly or not."""
    views, read = set(memory), []
    computed: set[Node] = set()
    for node in nodes:
        if _is_view(node) and node.args[0] in views:
            views.add(node)
        elif node.op == "call_function" and (views | computed).intersection(node.all_input_nodes):
            computed.add(node)
            if isinstance(node.meta.get("val"), Tensor) and node.target is not torch.ops.vecenv.computed.default:
                read.append(node)
    return read


def _is_view(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.is_view


def _compute_before(operator: Node, node: Node, later: set[Node]) -> None:
    with operator.graph.inserting_before(operator):
        copy = operator.graph.call_function(torch.ops.vecenv.computed.default, (node,))
    copy.meta = dict(node.meta)
    node.replace_all_uses_with(copy, delete_user_cb=lambda user: user in later)
