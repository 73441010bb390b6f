"""The machine of programs in Triton's interpreter: the numbers of the graph, bit for bit.

Run by ``test_arithmetic.py`` in a process of its own, in which Triton interprets.
"""

import torch

from tests.programs.test_programs import WORDS, assert_same, evaluated, odd_features
from vecenv.programs import triton_machine
from vecenv.programs.drawing import random_programs
from vecenv.programs.graph import Graph
from vecenv.programs.native import Machine
from vecenv.programs.operations import ELEMENTWISE


def test_the_machine_in_triton_gives_the_numbers_of_the_graph(monkeypatch):
    programs, features = random_programs(WORDS, 24, 7, past=0.0), odd_features(7, (2, 5, 9))
    graph = Graph(programs)
    assert set(ELEMENTWISE) <= {node.operation for node in graph.nodes}
    given = [*graph.leaves("feature"), *graph.leaves("account")]
    machine = Machine(graph, given, graph.outputs)
    rows = torch.stack([features[graph.nodes[number].name].flatten() for number in given])
    outputs, registers = machine.sizes
    # More programs and lanes than blocks take at once, and a last block that is not full.
    monkeypatch.setattr(triton_machine, "BLOCKS", 7)
    monkeypatch.setattr(triton_machine, "LANES", 64)
    found = rows.new_empty(outputs, rows.shape[1])
    triton_machine.run(rows, machine.code, machine.starts, machine.output_rows, found, registers)
    assert_same(found.view(24, 2, 5, 9), evaluated(programs, features, native=False))
