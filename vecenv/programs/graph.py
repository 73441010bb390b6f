"""Many programs as one graph, in which what is equal stands once and what no output needs not at all."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

import torch

from vecenv.programs.expressions import Apply, Expression, Name, Number, Parameter, Program, Truth
from vecenv.programs.operations import ELEMENTWISE


class Node(NamedTuple):
    """An operation on earlier nodes, or a leaf: a ``constant``, a ``feature`` or an ``account`` feature.

    Attributes:
        operation: key of `ELEMENTWISE` or `STRUCTURED`, or the kind of a leaf.
        operands: numbers of nodes.
        window: in bars.
        name: of a feature.
        value: of a constant; of an account's feature the program whose account it is, -1 for one account of all.
    """

    operation: str
    operands: tuple[int, ...] = ()
    window: int = 0
    name: str = ""
    value: float = 0.0


class Graph:
    """The nodes of many programs of one vocabulary, operands before what reads them.

    Args:
        programs: P programs.
        own_accounts: every program plays an account of its own, so that what depends on it is not shared.

    Attributes:
        outputs: node of each output by program, in the vocabulary's order.
        account: whether a node depends on the account.

    Raises:
        ValueError: there is no program, or their vocabularies differ.
    """

    def __init__(self, programs: Sequence[Program], own_accounts: bool = False) -> None:
        if not programs or any(program.vocabulary != programs[0].vocabulary for program in programs):
            raise ValueError("a graph needs at least one program, and all of one vocabulary")
        self.vocabulary = programs[0].vocabulary
        self.nodes: list[Node] = []
        self.account: list[bool] = []
        self._known: dict[tuple[object, ...], int] = {}
        self.outputs = [
            self._program(program, number if own_accounts else -1) for number, program in enumerate(programs)
        ]

    def _program(self, program: Program, account: int) -> list[int]:
        names: dict[str, int] = {}
        unused = set(program.unused())
        for name, line in program.lines.items():
            if name not in unused:
                names[name] = self._line(line, names, account)
        return [names[name] for name in program.vocabulary.outputs]

    def _line(self, line: Expression | Parameter, names: dict[str, int], account: int) -> int:
        if isinstance(line, Number | Truth | Parameter):
            return self._constant(float(line.value))
        if isinstance(line, Name):
            if line.name in names:
                return names[line.name]
            if self.vocabulary.features[line.name].account:
                return self._node(Node("account", name=line.name, value=account))
            return self._node(Node("feature", name=line.name))
        return self._applied(line, [self._line(operand, names, account) for operand in line.operands])

    def _applied(self, line: Apply, operands: list[int]) -> int:
        """Return the node of an operation, made of the few that machines have."""
        operation = line.operation
        if operation == "plain":
            return operands[0]
        if operation in ("gt", "ge"):
            return self._computed("lt" if operation == "gt" else "le", operands[::-1])
        if operation == "ne":
            return self._computed("sub", [self._constant(1.0), self._computed("eq", operands)])
        if operation == "not":
            return self._computed("sub", [self._constant(1.0), operands[0]])
        if operation == "clip":
            return self._computed("min", [self._computed("max", operands[:2]), operands[2]])
        if operation == "delta":
            return self._computed("sub", [operands[0], self._computed("lag", operands, line.window)])
        return self._computed({"and": "mul", "or": "max"}.get(operation, operation), operands, line.window)

    def _computed(self, operation: str, operands: list[int], window: int = 0) -> int:
        if operation in ELEMENTWISE and all(self.nodes[one].operation == "constant" for one in operands):
            values = [torch.tensor(self.nodes[one].value) for one in operands]
            return self._constant(float(ELEMENTWISE[operation](*values, out=torch.empty(()))))
        if operation in ("add", "mul", "eq"):
            operands = sorted(operands)
        return self._node(Node(operation, tuple(operands), window))

    def _constant(self, value: float) -> int:
        return self._node(Node("constant", value=value), str(value))

    def _node(self, node: Node, *key: object) -> int:
        """Return the number of a node, new or known; by its text of constants, where -0 is not 0 and NaN is NaN."""
        key = key or node
        if key not in self._known:
            self._known[key] = len(self.nodes)
            self.nodes.append(node)
            self.account.append(node.operation == "account" or any(self.account[one] for one in node.operands))
        return self._known[key]

    def leaves(self, kind: str) -> list[int]:
        return [number for number, node in enumerate(self.nodes) if node.operation == kind]

    def frontier(self) -> list[list[int]]:
        """Return by program what is known ahead and read by its outputs or with its account, each node once."""
        met: set[int] = set()
        found = []
        for outputs in self.outputs:
            own, waiting = [], list(outputs)
            while waiting:
                number = waiting.pop()
                if number in met or self.nodes[number].operation == "constant":
                    continue
                met.add(number)
                if self.account[number]:
                    waiting += self.nodes[number].operands
                else:
                    own.append(number)
            found.append(sorted(own))
        return found

    def cone(self, wanted: Iterable[int], given: Container[int]) -> list[int]:
        """Return what must be computed for some nodes from others, and the constants, operands first."""
        found: set[int] = set()
        waiting = list(wanted)
        while waiting:
            number = waiting.pop()
            if number not in found and number not in given:
                found.add(number)
                waiting += self.nodes[number].operands
        return sorted(found)

    def history(self) -> int:
        """Return the bars that outputs need at most, the present one included."""
        bars = [1] * len(self.nodes)
        for number, node in enumerate(self.nodes):
            more = node.window - (node.operation != "lag") if node.window else 0
            bars[number] = more + max((bars[one] for one in node.operands), default=1)
        return max(bars)

    def depth(self) -> int:
        """Return the number of operations that follow each other at most."""
        levels = [0] * len(self.nodes)
        for number, node in enumerate(self.nodes):
            levels[number] = 1 + max((levels[one] for one in node.operands), default=-1)
        return max(levels)
