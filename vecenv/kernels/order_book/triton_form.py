"""`accounts.process_all` in Triton, for GPUs; imported only where there are both.

Each book is a program, of one warp up to 128 orders a side, so that nothing waits for another warp. It has not run on a
GPU yet: its numbers are those of the reference bit for bit in Triton's interpreter, and it compiles for sm_90 (tests).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from vecenv.kernels.order_book.book import max_quantity
from vecenv.kernels.order_book.messages import report_types
from vecenv.kernels.order_book.triton_kernel import process_books

LANES = 32
"""Threads of a warp, and the fewest lanes of a program: fewer would do the same work twice."""

OPTIONS = {"debug": True, "sanitize_overflow": False}
"""Triton's: assertions hold, of those of the kernel alone, since sums of a side fit int32 by the rules."""

PLACES_A_LANE = 4
"""Places of a side that a thread holds at most, until a program has the 32 warps that it may have."""


def width_of(room: int) -> int:
    """Return the number of lanes for so many orders of a side: a power of two."""
    return max(LANES, triton.next_power_of_2(room))


def warps_of(room: int) -> int:
    """Return the number of warps of a program."""
    return max(1, min(32, width_of(room) // (LANES * PLACES_A_LANE)))


def processed_books(
    book: Sequence[Tensor], accounts: Sequence[Tensor], messages: Sequence[Tensor], evict: bool
) -> list[Tensor]:
    """Carry out messages to one book, or to a batch of books along the first dimensions of all tensors.

    Tensors lie on a GPU, or on a CPU for Triton's interpreter (``TRITON_INTERPRET=1``), and have the shapes and types
    that the operator of `native` checks. An order of an owner without an account that is met is an error of the device.

    Returns:
        The tensors of the book and of the accounts after the messages, and of the reports.
    """
    given = [tensor.contiguous() for tensor in book]
    made = [torch.empty_like(tensor) for tensor in given]
    held = [tensor.clone(memory_format=torch.contiguous_format) for tensor in accounts]
    sent = [words.contiguous() for words in messages]
    told = [torch.empty_like(sent[0], dtype=kind) for kind in report_types()]
    room, count = given[0].shape[-1], given[-1].numel()
    if count:
        with torch.cuda.device_of(given[0]):
            process_books[(count,)](
                *given,
                *made,
                *held,
                *sent,
                *told,
                sent[0].shape[-1],
                held[0].shape[-1],
                ROOM=room,
                WIDTH=width_of(room),
                MOST=max_quantity(room),
                EVICT=evict,
                num_warps=warps_of(room),
                **OPTIONS,
            )
    return [*made, *held, *told]
