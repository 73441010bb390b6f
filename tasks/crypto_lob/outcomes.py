"""Outcomes of an episode: return, Sharpe ratio, drawdown, trades, turnover and exposure."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vecenv.tasks.crypto_lob.state import LobState
from vecenv.tasks.crypto_lob.tape import BookTape

YEAR_SECONDS = 365 * 24 * 3600
"""Coins trade at all hours: the steps of a year are these seconds over those of a step."""


def outcomes(state: LobState, doubled_mid: Tensor, initial: int, tape: BookTape) -> dict[str, Tensor]:
    """Return the outcomes of the episode so far, by name.

    The Sharpe ratio of a step is the mean change of equity over its standard deviation, both over all steps of the
    episode; 0 without any change. A year's is that times the square root of the steps of a year. RoMaD is the return
    over the largest drawdown, 0 without one.

    Args:
        state: of one account, or of a batch of them.
        doubled_mid: at its row. Shape: that of the batch, int64.
        initial: initial cash in money.
        tape: of the books.
    """
    currency = tape.money_size
    steps = (state.row - state.start_row).double()
    profit = state.equity.double() * currency
    mean = profit / steps.clamp(min=1.0)
    variance = state.squares / steps.clamp(min=1.0) - mean * mean
    # Equal changes leave a rounding error.
    varies = variance > 1e-12 * state.squares / steps.clamp(min=1.0)
    sharpe = torch.where(varies, mean / torch.where(varies, variance, 1.0).sqrt(), 0.0)
    total = state.equity.double() / initial
    closed = (state.won + state.lost).double()
    fallen = state.drawdown > 0
    return {
        "total_return": total,
        "profit": profit,
        "sharpe": sharpe,
        "annual_sharpe": sharpe * math.sqrt(YEAR_SECONDS / tape.step_gap),
        "max_drawdown": state.drawdown,
        "romad": torch.where(fallen, total / torch.where(fallen, state.drawdown, 1.0), 0.0),
        "trades": state.won + state.lost,
        "won": state.won,
        "lost": state.lost,
        "win_share": torch.where(closed > 0, state.won.double() / closed.clamp(min=1.0), 0.0),
        "turnover": state.traded.double() / initial,
        "costs": state.costs.double() * currency,
        "exposure": state.exposed.double() / steps.clamp(min=1.0),
        "unfilled": state.unfilled.double() * tape.lot_size,
        "position": state.position.double() * tape.lot_size,
        "mid": doubled_mid.double() * (tape.tick_size / 2),
        "invalid_actions": state.invalid,
        "liquidated": state.liquidated,
        "row": state.row,
    }
