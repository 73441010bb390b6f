"""Programs over lanes: paths, rows and symbols as tensors, without a compiler, on any device.

What depends on no account is evaluated for whole paths, the rest step by step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vecenv.core.checks import form
from vecenv.programs.expressions import Program
from vecenv.programs.graph import Graph
from vecenv.programs.native import Machine, has_machine
from vecenv.programs.operations import ELEMENTWISE, STRUCTURED
from vecenv.system.settings import refuse_unknown

BUFFER = 2**23
"""Numbers that are computed at a time: lanes are cut so that the nodes of all programs take 32 MB at most."""

BLOCK = 2**16
"""Numbers that a thread of a CPU gathers and computes at a time, so that they stay in its second cache."""

SHORTEST = 64
"""Nodes that are worth an operation of their own because less of what they read must be gathered."""

COMMUTATIVE = ("add", "mul", "eq", "min", "max")


class _Piece(NamedTuple):
    """Nodes of one level and operation, which lie side by side in the buffer.

    Each of ``operands`` is a column of constants, (N, 1), or rows of the buffer: a slice, of one row for all nodes or
    of a row for each, or numbers of rows, which are gathered.
    """

    operation: str
    window: int
    first: int
    last: int
    operands: list[Tensor | slice]


class Plan:
    """One tensor operation for each level and operation of a graph: the reference.

    It is called with rows of lanes, (R, S, T, K), and returns those that are wanted, (W, S, T, K). Nodes stand in the
    order of what they read, so that many operands are constants or rows side by side; the others are gathered.

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
        self.num_given, self.device = len(given), torch.device(device)
        places |= {number: len(given) + place for place, number in enumerate(constants)}
        self.constants = torch.tensor([nodes[number].value for number in constants], device=device).unsqueeze(-1)
        self.pieces: list[_Piece] = []
        for (_, operation, window), numbers in sorted(groups.items()):
            read = np.array([[places[one] for one in nodes[number].operands] for number in numbers]).T
            if operation in COMMUTATIVE:
                read.sort(axis=0)
            constant = (read >= len(given)) & (read < len(given) + len(constants))
            order = np.lexsort((*read[::-1], *constant[::-1]))
            read, constant, begin = np.ascontiguousarray(read[:, order]), constant[:, order], len(places)
            places |= {numbers[one]: begin + place for place, one in enumerate(order)}
            for first, last in _cuts(read, constant):
                columns = zip(read[:, first:last], constant[:, first:last], strict=True)
                operands = [self._operand(*column) for column in columns]
                self.pieces.append(_Piece(operation, window, begin + first, begin + last, operands))
        self.num_rows = len(places)
        self.whole_paths = any(operation in STRUCTURED for _, operation, _ in groups)
        self.only_given = all(places[number] < len(given) for number in wanted)
        self.wanted = torch.tensor([places[number] for number in wanted], dtype=torch.int64, device=device)
        # By number of lanes and path.
        self._prepared: dict[tuple[int, ...], tuple[Tensor, list[Callable[[], object]]]] = {}

    def _operand(self, rows: NDArray[np.int64], constant: NDArray[np.bool_]) -> Tensor | slice:
        if constant.all():
            return self.constants[torch.from_numpy(rows - self.num_given).to(self.device)]
        first, steps = int(rows[0]), np.diff(rows)
        if not steps.any():
            return slice(first, first + 1)
        return slice(first, first + len(rows)) if (steps == 1).all() else torch.from_numpy(rows).to(self.device)

    def __call__(self, rows: Tensor) -> Tensor:
        if self.only_given:
            return rows.index_select(0, self.wanted)
        path = rows.shape[2:]
        given, found = rows.flatten(1), rows.new_empty(len(self.wanted), *rows.shape[1:])
        lanes, target = given.shape[1], found.flatten(1)
        unit = max(1, path.numel()) if self.whole_paths else 64
        part = min(lanes, unit * max(1, BUFFER // (max(1, self.num_rows) * unit)))
        for first in range(0, lanes, max(1, part)):
            last = min(lanes, first + part)
            # Kept: to be given fresh memory takes longer than to compute in it.
            if (last - first, *path) not in self._prepared:
                self._prepare(last - first, path)
            buffer, calls = self._prepared[last - first, *path]
            buffer[: self.num_given] = given[:, first:last]
            for call in calls:
                call()
            torch.index_select(buffer, 0, self.wanted, out=target[:, first:last])
        return found

    def _prepare(self, lanes: int, path: torch.Size) -> None:
        """Make a buffer, and what is to be called, one after the other, to compute all nodes in it."""
        if len(self._prepared) > 1:
            self._prepared.clear()
        buffer = torch.empty(self.num_rows, lanes, device=self.device)
        buffer[self.num_given : self.num_given + len(self.constants)] = self.constants
        block = BLOCK * torch.get_num_threads() if self.device.type == "cpu" else BUFFER
        most = max(1, block // max(1, lanes))
        widest = max((len(one) for piece in self.pieces for one in piece.operands if _gathered(one)), default=0)
        scratch = [buffer.new_empty(min(widest, most), lanes) for _ in range(3)]
        calls: list[Callable[[], object]] = []
        for operation, window, begin, end, operands in self.pieces:
            for first in range(begin, end, most):
                last = min(end, first + most)
                own, values, out = slice(first - begin, last - begin), [], buffer[first:last]
                for operand, memory in zip(operands, scratch, strict=False):
                    if isinstance(operand, slice):
                        value = buffer[operand] if operand.stop - operand.start == 1 else buffer[operand][own]
                    elif operand.is_floating_point():
                        value = operand[own]
                    else:
                        value = memory[: last - first]
                        calls.append(partial(torch.index_select, buffer, 0, operand[own], out=value))
                    values.append(value.expand_as(out))
                if operation in STRUCTURED:
                    calls.append(partial(_of_paths, operation, values[0], window, path, out))
                else:
                    calls.append(partial(ELEMENTWISE[operation], *values, out=out))
        self._prepared[lanes, *path] = buffer, calls


def _of_paths(operation: str, values: Tensor, window: int, path: torch.Size, out: Tensor) -> None:
    out.copy_(STRUCTURED[operation](values.reshape(len(out), -1, *path), window).reshape(out.shape))


def _gathered(operand: Tensor | slice) -> TypeGuard[Tensor]:
    return isinstance(operand, Tensor) and not operand.is_floating_point()


def _cuts(read: NDArray[np.int64], constant: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield nodes, from and to, of which some operand is constants, one row, or rows side by side.

    Those of fewer than `SHORTEST` nodes are joined with their neighbours.
    """
    count = read.shape[1]
    ends = []
    for rows, known in zip(read, constant, strict=True):
        steps = np.diff(rows)
        alike = [steps == 0, steps == 1, known[1:] & known[:-1]]
        ends.append(np.max([_ends(one) for one in alike], axis=0))
    # The nearest end that is far enough.
    long = np.array(ends) - np.arange(count)
    length = np.where(long >= SHORTEST, long, count + 1).min(axis=0)
    first = place = 0
    while place < count:
        if length[place] > count:
            place += 1
            continue
        if first < place:
            yield first, place
        first = place + int(length[place])
        yield place, first
        place = first
    if first < count:
        yield first, count


def _ends(joined: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return for each of N places where its run ends, given which of them are joined with the next."""
    count = len(joined) + 1
    ends = np.where(np.append(joined, False), count, np.arange(1, count + 1))
    return np.minimum.accumulate(ends[::-1])[::-1]


class Evaluator:
    """P programs over the same lanes, by the graph or by the native machine.

    Args:
        programs: of one vocabulary, with O outputs.
        own_accounts: every program plays an account of its own.
        native: use the machine, whose numbers are the graph's: on a CPU with a compiler, on a GPU with Triton.
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
        self._native = native and has_machine(self.device)
        self._shape = len(graph.outputs), len(graph.outputs[0])
        self._ahead = self._runner(leaves, frontier)
        self._step = self._runner([*(number for own in frontier for number in own), *accounts], graph.outputs)

    def _runner(self, given: Sequence[int], wanted: Sequence[Sequence[int]]) -> Callable[[Tensor], Tensor]:
        flat = [number for own in wanted for number in own]
        if not self._native:
            return Plan(self.graph, given, flat, self.device)
        cone = self.graph.cone(flat, set(given))
        whole = [number for number in cone if self.graph.nodes[number].operation in STRUCTURED]
        first, then = (
            Plan(self.graph, given, whole, self.device),
            Machine(self.graph, [*given, *whole], wanted, self.device),
        )
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
