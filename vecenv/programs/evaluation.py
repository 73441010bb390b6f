"""Programs over lanes: paths, rows and symbols as tensors, without a compiler, on any device.

What depends on no account is evaluated for whole paths, the rest step by step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.core.checks import form
from vecenv.programs.expressions import Program
from vecenv.programs.graph import Graph
from vecenv.programs.native import Machine, machine
from vecenv.programs.operations import ELEMENTWISE, STRUCTURED
from vecenv.system.settings import refuse_unknown

BUFFER = 2**23
"""Numbers that are computed at a time: lanes are cut so that the nodes of all programs take 32 MB at most."""


class _Group(NamedTuple):
    """Nodes of one level and operation, that lie side by side in the buffer; ``operands`` are the rows of each."""

    operation: str
    window: int
    first: int
    last: int
    operands: list[Tensor]


class Plan:
    """One tensor operation for each level and operation of a graph, with gathered operands: the reference.

    It is called with rows of lanes, (R, S, T, K), and returns those that are wanted, (W, S, T, K).

    Args:
        graph: nodes of programs.
        given: nodes whose rows are given.
        wanted: nodes whose rows are returned.
        device: of all rows.
    """

    def __init__(self, graph: Graph, given: Sequence[int], wanted: Sequence[int], device: torch.device | str) -> None:
        nodes, places = graph.nodes, {number: place for place, number in enumerate(given)}
        depths: dict[int, int] = {}
        groups: dict[tuple[int, str, int], list[int]] = defaultdict(list)
        constants = []
        for number in graph.cone(wanted, places):
            node = nodes[number]
            depths[number] = 1 + max((depths.get(one, 0) for one in node.operands), default=-1)
            if node.operation == "constant":
                constants.append(number)
            else:
                groups[depths[number], node.operation, node.window].append(number)
        places |= {number: len(places) + place for place, number in enumerate(constants)}
        for _, numbers in sorted(groups.items()):
            # In the order of what they read, which is gathered faster so.
            numbers.sort(key=lambda number: [places[one] for one in nodes[number].operands])
            places |= {number: len(places) + place for place, number in enumerate(numbers)}
        self.num_given, self.num_rows, self.device = len(given), len(places), torch.device(device)
        self.constants = torch.tensor([nodes[number].value for number in constants], device=device).unsqueeze(-1)
        self.whole_paths = any(operation in STRUCTURED for _, operation, _ in groups)
        self.wanted = self._rows([places[number] for number in wanted])
        self._memory = torch.empty(0, device=device)
        self.widest = max(map(len, groups.values()), default=0)
        self.groups = []
        for (_, operation, window), numbers in sorted(groups.items()):
            columns = zip(*(nodes[number].operands for number in numbers), strict=True)
            operands = [self._rows([places[one] for one in column]) for column in columns]
            first = places[numbers[0]]
            self.groups.append(_Group(operation, window, first, first + len(numbers), operands))

    def _rows(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.device)

    def __call__(self, rows: Tensor) -> Tensor:
        bars, symbols = rows.shape[2:]
        given, found = rows.flatten(1), rows.new_empty(len(self.wanted), *rows.shape[1:])
        lanes, target = given.shape[1], found.flatten(1)
        unit = max(1, bars * symbols) if self.whole_paths else 64
        part = min(lanes, unit * max(1, BUFFER // (max(1, self.num_rows) * unit)))
        size = (self.num_rows + 3 * self.widest) * part
        if self._memory.numel() < size:
            # Kept: to be given fresh memory takes longer than to compute in it.
            self._memory = rows.new_empty(size)
        buffer, *scratch = self._memory.split(
            [self.num_rows * part, *[self.widest * part] * 3, self._memory.numel() - size]
        )
        for first in range(0, lanes, max(1, part)):
            last = min(lanes, first + part)
            own = buffer[: self.num_rows * (last - first)].view(self.num_rows, last - first)
            self._compute(own, given[:, first:last], scratch, (bars, symbols))
            torch.index_select(own, 0, self.wanted, out=target[:, first:last])
        return found

    def _compute(self, buffer: Tensor, given: Tensor, scratch: list[Tensor], path: tuple[int, int]) -> None:
        buffer[: self.num_given] = given
        buffer[self.num_given : self.num_given + len(self.constants)] = self.constants
        for operation, window, first, last, operands in self.groups:
            out, values = buffer[first:last], []
            for rows, gathered in zip(operands, scratch, strict=False):
                own = gathered[: out.numel()].view(out.shape)
                values.append(torch.index_select(buffer, 0, rows, out=own))
            if operation in STRUCTURED:
                whole = values[0].view(last - first, -1, *path)
                out.copy_(STRUCTURED[operation](whole, window).reshape(out.shape))
            else:
                ELEMENTWISE[operation](*values, out=out)


class Evaluator:
    """P programs over the same lanes, by the graph or by the native machine.

    Args:
        programs: of one vocabulary, with O outputs.
        own_accounts: every program plays an account of its own.
        native: use the machine in C++ on a CPU with a compiler, whose numbers are the graph's.
        device: of all tensors.

    Attributes:
        features: names of the features that must be given ahead.
        account_features: names of those that must be given at each step.
        graph: nodes of all programs.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        own_accounts: bool = False,
        native: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        self.graph = graph = Graph(programs, own_accounts)
        self.own_accounts, self.device = own_accounts, torch.device(device)
        leaves, accounts, frontier = graph.leaves("feature"), graph.leaves("account"), graph.frontier()
        self._accounts = [graph.nodes[number] for number in accounts]
        self.features = [graph.nodes[number].name for number in leaves]
        self.account_features = list(dict.fromkeys(node.name for node in self._accounts))
        self._native = native and self.device.type == "cpu" and machine() is not None
        self._shape = len(graph.outputs), len(graph.outputs[0])
        self._ahead = self._runner(leaves, frontier)
        self._step = self._runner([*(number for own in frontier for number in own), *accounts], graph.outputs)

    def _runner(self, given: Sequence[int], wanted: Sequence[Sequence[int]]) -> Callable[[Tensor], Tensor]:
        flat = [number for own in wanted for number in own]
        if not self._native:
            return Plan(self.graph, given, flat, self.device)
        cone = self.graph.cone(flat, set(given))
        whole = [number for number in cone if self.graph.nodes[number].operation in STRUCTURED]
        first, then = Plan(self.graph, given, whole, self.device), Machine(self.graph, [*given, *whole], wanted)
        return lambda rows: then(torch.cat([rows, first(rows)]) if whole else rows)

    def ahead(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return what steps read, for all bars of all paths. Shapes: (S, T, K) or (S, T, 1) each -> (F, S, T, K).

        Without a feature that any program reads, F = 0.

        Raises:
            ValueError: a feature is missing, or has another shape or type.
        """
        given = _rows(features, self.features, 3)
        # The first tells the shape where no program reads any.
        known = given or list(features.values())[:1]
        return self._ahead(torch.stack(known)[: len(given)])

    def step(self, ahead: Tensor, account: Mapping[str, Tensor]) -> Tensor:
        """Return the outputs of all programs on some lanes. Shapes: (F, ...) and (...) each -> (P, O, ...).

        ``ahead`` are rows of what `ahead` returned, those of the lanes' paths and bars. With accounts of their own the
        features of the account have P in front: (P, ...).
        """
        lanes, names = ahead.shape[1:], self.account_features
        given = dict(zip(names, _rows(account, names, len(lanes) + self.own_accounts), strict=True))
        wanted = (self._shape[0], *lanes) if self.own_accounts else lanes
        own = []
        for node in self._accounts:
            values = given[node.name].expand(wanted)
            own.append(values[int(node.value)] if self.own_accounts else values)
        rows = torch.cat([ahead, torch.stack(own)]) if own else ahead
        return self._step(rows.reshape(len(rows), 1, 1, lanes.numel())).view(*self._shape, *lanes)

    def over(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return the outputs of programs that read no account, on all bars of all paths: (P, O, S, T, K)."""
        return self.step(self.ahead(features), {})


def _rows(given: Mapping[str, Tensor], names: list[str], dimensions: int) -> list[Tensor]:
    """Return features by name, expanded to one shape."""
    if any(name not in given for name in names):
        refuse_unknown("features", [name for name in names if name not in given], list(given), "programs read ")
    found = [given[name] for name in names]
    for name, values in zip(names, found, strict=True):
        if not isinstance(values, Tensor) or values.dtype != torch.float32 or values.ndim != dimensions:
            raise ValueError(f"{name} must have {dimensions} dimensions of float32, got {form(values)}")
    try:
        return list(torch.broadcast_tensors(*found)) if found else []
    except RuntimeError:
        shapes = ", ".join(f"{name} {tuple(values.shape)}" for name, values in zip(names, found, strict=True))
        raise ValueError(f"the features do not fit each other: {shapes}") from None
