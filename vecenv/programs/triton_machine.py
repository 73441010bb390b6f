"""Programs on a register machine in Triton, for CUDA devices: the code of `native.Machine`, whose numbers it gives.

A block takes one program and `LANES` lanes at a time, and executes its instructions one after the other. Triton
compiles the machine once, and programs not at all.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

LANES = 256
"""Lanes of an instruction."""

BLOCKS = 2048
"""Blocks at most, each with registers of its own in memory; a block goes on with what no other one has taken."""

ADD, SUB, MUL, DIV, NEG, ABS, SIGN, MIN, MAX, LT, LE, EQ, IF = (tl.constexpr(code) for code in range(13))
"""In the order of `operations.ELEMENTWISE`."""


@triton.jit
def execute(  # type: ignore[no-untyped-def]  # noqa: ANN201
    rows,  # noqa: ANN001
    code,  # noqa: ANN001
    starts,  # noqa: ANN001
    output_rows,  # noqa: ANN001
    outputs,  # noqa: ANN001
    memory,  # noqa: ANN001
    lanes,  # noqa: ANN001
    programs,  # noqa: ANN001
    registers,  # noqa: ANN001
    width: tl.constexpr,
):
    """Run programs, whose code is that of ``machine.cpp``; a block has ``registers`` of ``width`` numbers in memory."""
    lane = tl.arange(0, width)
    own = memory + tl.program_id(0).to(tl.int64) * registers * width + lane
    parts = tl.cdiv(lanes, width)
    for task in range(tl.program_id(0), programs * parts, tl.num_programs(0)):
        program, first = task // parts, (task % parts) * width
        inside = first + lane < lanes
        given = rows + first + lane
        word = code + tl.load(starts + program)
        constants, instructions, results = tl.load(word + 1), tl.load(word + 2), tl.load(word + 3)
        word += 4
        for number in range(constants):
            value = tl.load(word + number).to(tl.float32, bitcast=True)
            tl.store(own + number * width, tl.zeros((width,), tl.float32) + value)
        word += constants
        tl.debug_barrier()
        for _ in range(instructions):
            opcode, target = tl.load(word), tl.load(word + 1)
            x, y, z = tl.load(word + 2), tl.load(word + 3), tl.load(word + 4)
            # An operand is a register, or ~ of a given row.
            a = tl.load(tl.where(x >= 0, own + x * width, given + (~x).to(tl.int64) * lanes), inside)
            b = tl.load(tl.where(y >= 0, own + y * width, given + (~y).to(tl.int64) * lanes), inside)
            c = tl.load(tl.where(z >= 0, own + z * width, given + (~z).to(tl.int64) * lanes), inside)
            if opcode == ADD:
                found = a + b
            elif opcode == SUB:
                found = a - b
            elif opcode == MUL:
                found = a * b
            elif opcode == DIV:
                found = tl.where(b == 0.0, 0.0, tl.div_rn(a, b))
            elif opcode == NEG:
                # Triton's -a is 0 - a, which is 0 of 0.
                found = (a.to(tl.int32, bitcast=True) ^ -2147483648).to(tl.float32, bitcast=True)
            elif opcode == ABS:
                found = tl.abs(a)
            elif opcode == SIGN:
                sign = tl.where(a > 0.0, 1.0, 0.0) - tl.where(a < 0.0, 1.0, 0.0)
                found = tl.where(a == a, sign, a)
            elif opcode == MIN:
                found = tl.where(a == a, tl.where(a < b, a, b), a) + 0.0
            elif opcode == MAX:
                found = tl.where(a == a, tl.where(a > b, a, b), a) + 0.0
            elif opcode == LT:
                found = tl.where(a < b, 1.0, 0.0)
            elif opcode == LE:
                found = tl.where(a <= b, 1.0, 0.0)
            elif opcode == EQ:
                found = tl.where(a == b, 1.0, 0.0)
            else:
                found = tl.where(a != 0.0, b, c)
            tl.store(own + target * width, found, inside)
            word += 5
            # Another thread may read what this one wrote.
            tl.debug_barrier()
        place = tl.load(output_rows + program)
        for number in range(results):
            x = tl.load(word + number)
            value = tl.load(tl.where(x >= 0, own + x * width, given + (~x).to(tl.int64) * lanes), inside)
            tl.store(outputs + (place + number) * lanes + first + lane, value, inside)
        # The next program takes the same registers.
        tl.debug_barrier()


def run(rows: Tensor, code: Tensor, starts: Tensor, output_rows: Tensor, outputs: Tensor, registers: int) -> None:
    """Write the outputs of all programs, (W, L), on rows of lanes, (R, L); ``registers`` is the most of a program."""
    lanes, programs = rows.shape[1], len(starts)
    blocks = min(BLOCKS, programs * triton.cdiv(lanes, LANES))
    if blocks:
        memory = rows.new_empty(blocks * registers * LANES)
        # A product and a sum must not be rounded together.
        execute[(blocks,)](
            rows, code, starts, output_rows, outputs, memory, lanes, programs, registers, LANES, enable_fp_fusion=False
        )
