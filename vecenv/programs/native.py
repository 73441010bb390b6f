"""Programs on a register machine, in C++ or in Triton: an operator of `torch.library` that compiles no program.

Its numbers are those of the graph bit for bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vecenv.core.checks import form
from vecenv.programs.graph import Graph
from vecenv.programs.operations import ELEMENTWISE
from vecenv.system.native_library import built_library

SOURCE = Path(__file__).with_name("machine.cpp")

THREAD_WORK = 2**20
"""Numbers computed by a thread at least."""

_OPCODES = {operation: number for number, operation in enumerate(ELEMENTWISE)}


def machine() -> ctypes.CDLL | None:
    """Return the machine in C++, built when it is first asked for; None without a compiler."""
    return built_library(SOURCE, "-ffp-contract=off")


def has_machine(device: torch.device) -> bool:
    """Return whether there is a machine for a device: on a CPU by the compiler, on a GPU by Triton."""
    if device.type == "cpu":
        return machine() is not None
    return device.type == "cuda" and find_spec("triton") is not None


class Machine:
    """Code that computes nodes from rows of others, as `Plan` does: (R, S, T, K) -> (W, S, T, K).

    Args:
        graph: nodes of programs.
        given: nodes whose rows are given.
        wanted: by program the nodes whose rows are returned; none of them needs whole paths.
        device: of all rows.
    """

    def __init__(
        self,
        graph: Graph,
        given: Sequence[int],
        wanted: Sequence[Sequence[int]],
        device: torch.device | str = "cpu",
    ) -> None:
        places = {number: ~row for row, number in enumerate(given)}
        codes = [_code(graph, places, own) for own in wanted if own]
        sizes, counts = [len(code) for code in codes], [len(own) for own in wanted if own]
        self.code = torch.from_numpy(np.array([word for code in codes for word in code], dtype=np.int32)).to(device)
        self.starts = torch.tensor(np.cumsum([0, *sizes])[:-1], dtype=torch.int64, device=device)
        self.output_rows = torch.tensor(np.cumsum([0, *counts]), dtype=torch.int64, device=device)
        self.sizes = sum(counts), max((code[0] for code in codes), default=0)

    def __call__(self, rows: Tensor) -> Tensor:
        found = torch.ops.vecenv.programs(rows.flatten(1), self.code, self.starts, self.output_rows, *self.sizes)
        return found.view(-1, *rows.shape[1:]) if found.numel() else rows.new_empty(len(found), *rows.shape[1:])


def _code(graph: Graph, given: dict[int, int], wanted: Sequence[int]) -> list[int]:
    """Return the words of a program, with as few registers as its order of instructions allows."""
    nodes, cone = graph.nodes, graph.cone(wanted, given)
    constants = [number for number in cone if nodes[number].operation == "constant"]
    computed = [number for number in cone if nodes[number].operation != "constant"]
    registers = {number: place for place, number in enumerate(constants)}
    last_use = {one: number for number in computed for one in nodes[number].operands}
    kept = {*constants, *wanted}
    count, free, words = len(constants), [], []
    for number in computed:
        operation, operands = nodes[number].operation, nodes[number].operands
        read = [given[one] if one in given else registers[one] for one in operands]
        for one in dict.fromkeys(operands):
            if last_use[one] == number and one not in kept and one not in given:
                free.append(registers[one])
        if not free:
            free.append(count)
            count += 1
        registers[number] = free.pop()
        words += [_OPCODES[operation], registers[number], *read, *[read[0]] * (3 - len(read))]
    values = np.array([nodes[number].value for number in constants], dtype=np.float32).view(np.int32)
    results = [given[number] if number in given else registers[number] for number in wanted]
    return [count, len(constants), len(computed), len(wanted), *values.tolist(), *words, *results]


@torch.library.custom_op("vecenv::programs", mutates_args=(), device_types="cpu")
def _run(rows: Tensor, code: Tensor, starts: Tensor, output_rows: Tensor, outputs: int, registers: int) -> Tensor:
    """Return the outputs of all programs, (W, L), on rows of lanes, (R, L), in as many threads as PyTorch has.

    ``outputs`` is W, ``registers`` the most that a program has.
    """
    library = machine()
    if library is None:
        raise RuntimeError("there is no native machine: no working C++ compiler was found")
    if rows.dtype != torch.float32 or rows.ndim != 2:
        raise ValueError(f"rows must be (R, L) float32, got {form(rows)}")
    rows, lanes, programs = rows.contiguous(), rows.shape[1], len(starts)
    found = rows.new_empty(outputs, lanes)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (code, starts, output_rows, rows)]

    def run(first: int, last: int) -> None:
        limits = ctypes.c_int64(first), ctypes.c_int64(last)
        library.vecenv_programs_run(*limits, *pointers, ctypes.c_int64(lanes), ctypes.c_void_p(found.data_ptr()))

    work = len(code) // 5 * lanes // THREAD_WORK
    threads = max(1, min(torch.get_num_threads(), programs, work))
    ends = [programs * part // threads for part in range(threads + 1)]
    if threads == 1:
        run(0, programs)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(run, ends[:-1], ends[1:]))
    return found


@_run.register_kernel("cuda")
def _(rows: Tensor, code: Tensor, starts: Tensor, output_rows: Tensor, outputs: int, registers: int) -> Tensor:
    from vecenv.programs import triton_machine

    found = rows.new_empty(outputs, rows.shape[1])
    triton_machine.run(rows.contiguous(), code, starts, output_rows, found, registers)
    return found


@_run.register_fake
def _(rows: Tensor, code: Tensor, starts: Tensor, output_rows: Tensor, outputs: int, registers: int) -> Tensor:
    return rows.new_empty(outputs, rows.shape[1])
