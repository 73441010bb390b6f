"""Funding times on a tape."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.tasks.crypto_lob.tape import BookTape


def funding_times(tape: BookTape, hours: float) -> Tensor:
    """Return the number of funding times after the row before and up to each row; 0 in the first.

    Args:
        tape: of the rows.
        hours: from one to the next, from midnight UTC on.

    Returns:
        Shape: (T,), int32.
    """
    passed = tape.time // round(hours * 3_600_000)
    return torch.diff(passed, prepend=passed[:1]).to(torch.int32)
