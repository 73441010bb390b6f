"""A game that the simulator of the FinRL contest of 2024 has played, and that the task plays too.

What the simulator made of it is in the record: `Task_1_starter_kit/trade_simulator.py` of
github.com/Open-Finance-Lab/FinRL_Contest_2024, commit 13133c7, called as its evaluation calls it: one coin at most,
2 s a step, a slippage of 7e-7, `mids` as its midpoint and no factors, its `step_is` at `STARTS`.
"""

from pathlib import Path

import numpy as np

RECORD = Path(__file__).with_suffix(".json")
ROWS, STEPS = 14_400, 1_770
"""Seconds of the course, and steps of 2 s of an episode."""
STARTS = (3_600, 4_510, 6_002, 7_198)
"""First rows of the episodes, of the course of a second."""
TOLD_EVERY = 30
"""Steps between the equities that are written down."""


def mids() -> np.ndarray:
    """Return a course of the mid in steps of a half that often stays and sometimes jumps. Shape: (ROWS,)."""
    draw = np.random.default_rng(11)
    moves = draw.integers(-1, 2, ROWS) * (draw.random(ROWS) < 0.4) + 9 * draw.integers(-1, 2, ROWS) * (
        draw.random(ROWS) < 0.01
    )
    return 1_000.0 + 0.5 * np.cumsum(moves)


def choices() -> np.ndarray:
    """Return choices of 0, 1 and 2: at random, seldom, long and at random. Shape: (STEPS, 4)."""
    draw = np.random.default_rng(12)
    often = draw.integers(0, 3, (STEPS, 4))
    often[:, 1] = np.where(draw.random(STEPS) < 0.05, often[:, 1], 1)
    often[:, 2] = 2
    return often
