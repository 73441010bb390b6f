"""Many different programs on the same lanes: each in eager PyTorch, all as one graph, and by the machine in C++.

Programs have 14 to 18 operations at random, or 20 as written. Ratios are to eager PyTorch, a program at a time, in the
same rounds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from vecenv.benchmarks.harness import Point, Workload
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.programs.drawing import random_programs
from vecenv.programs.evaluation import Evaluator
from vecenv.programs.expressions import Feature, Program, Vocabulary
from vecenv.programs.graph import Graph, Node
from vecenv.programs.operations import ELEMENTWISE
from vecenv.programs.parsing import parsed
from vecenv.programs.units import NONE, PRICE, WEALTH

WORDS = Vocabulary(
    features={
        "close": Feature(PRICE),
        "fast": Feature(PRICE),  # a short mean of closes
        "slow": Feature(PRICE),  # a long one
        "rsi": Feature(NONE),
        "held": Feature(WEALTH),
    },
    outputs={"weight": WEALTH},
)

CROSSOVER = """\
low = param({low})
high = param({high})
trend = clip((fast - slow) / slow, -{most}, {most})
cheap = rsi < low and close < fast * {near}
dear = rsi > high or close > slow * {far}
wanted = 0 if dear else 0.5 + trend * {gain} if cheap else held
weight = clip(wanted, held - {step}, held + {step})
"""

OPERATIONS = (14, 18)


def _divided(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    torch.div(left, right, out=out)
    return torch.where(right == 0, 0.0, out)


def _sign(values: Tensor, out: Tensor) -> Tensor:
    return torch.where(values == values, torch.sign(values, out=out), values)


def _chosen(condition: Tensor, one: Tensor, other: Tensor, out: Tensor) -> Tensor:
    return torch.where(condition != 0, one, other, out=out)


EAGER: dict[str, Callable[..., Tensor]] = ELEMENTWISE | {"div": _divided, "sign": _sign, "if": _chosen}
"""Operations as one writes them in PyTorch, which are faster than the graph's on few lanes."""


def points_of_programs(config: CaseConfig) -> Sequence[Point]:
    count = config.sized(64, 4096)
    return [
        Point(f"{count} {kind} programs", partial(_compared, config, kind, count)) for kind in ("random", "written")
    ]


def _compared(config: CaseConfig, kind: str, count: int) -> Sequence[Workload]:
    programs, device, lanes = _programs(kind, count), config.on(), config.sized(256, 256, 4096)
    generator = torch.Generator().manual_seed(0)
    features = {name: torch.rand(1, lanes, 1, generator=generator).to(device) + 0.5 for name in WORDS.features}
    features["rsi"] *= 50
    alone = [_eager(Graph([program]), device) for program in programs]
    graph, native = (Evaluator(programs, native=native, device=device) for native in (False, True))
    operations = sum(bool(node.operands) for node in graph.graph.nodes)
    wanted = torch.stack([call(features) for call in alone])
    assert torch.equal(graph.over(features)[:, 0].nan_to_num(7.0), wanted.nan_to_num(7.0))
    assert torch.equal(native.over(features)[:, 0].nan_to_num(7.0), wanted.nan_to_num(7.0))
    one_by_one = "eager, a program at a time"
    told = {"nodes": operations, "operations_alone": sum(_size(program) for program in programs) / count}
    units = count * lanes
    return [
        Workload(one_by_one, lambda: [call(features) for call in alone], units, "decisions", told=told),
        Workload("graph", lambda: graph.over(features), units, "decisions", beside=one_by_one),
        Workload("native", lambda: native.over(features), units, "decisions", beside=one_by_one),
    ]


def _programs(kind: str, count: int) -> list[Program]:
    if kind == "random":
        found: list[Program] = []
        while len(found) < count:
            drawn = random_programs(WORDS, count, seed=len(found), lines=(3, 4, 5), past=0.0)
            found += [program for program in drawn if OPERATIONS[0] <= _size(program) <= OPERATIONS[1]]
        return found[:count]
    draw = random.Random(0)
    places = ("low", "high", "most", "near", "far", "gain", "step")
    return [parsed(CROSSOVER.format(**{name: round(draw.random(), 4) for name in places}), WORDS) for _ in range(count)]


def _size(program: Program) -> int:
    return sum(bool(node.operands) for node in Graph([program]).nodes)


def _eager(graph: Graph, device: torch.device) -> Callable[[dict[str, Tensor]], Tensor]:
    """Return one program as a sequence of PyTorch's operations."""
    cone = graph.cone(graph.outputs[0], ())
    constants = {
        number: torch.tensor(graph.nodes[number].value, device=device)
        for number in cone
        if graph.nodes[number].operation == "constant"
    }
    steps: list[tuple[int, Node]] = [(number, graph.nodes[number]) for number in cone if number not in constants]

    def call(features: dict[str, Tensor]) -> Tensor:
        found = dict(constants)
        shape = next(iter(features.values()))
        for number, (operation, operands, _, name, _) in steps:
            if operation == "feature":
                found[number] = features[name]
            else:
                found[number] = EAGER[operation](*(found[one] for one in operands), out=torch.empty_like(shape))
        return found[graph.outputs[0][0]].expand_as(shape)

    return call
