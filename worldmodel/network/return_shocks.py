"""Common shocks: what happens to the returns of all symbols of a day at once.

The mean return of many symbols that the chain draws one after another is nearly normal, given the days before; that of
real days has heavier tails. So a day is in one of several states s: its returns are aₛ r + mₛ b, with r of the chain, a
scale aₛ, a move mₛ in volatilities, and each symbol's share b in the move. The joint density is that of the mixture
over the states, hence exact. The states are a grid; their probabilities are a market's own, fitted by
`vecenv.worldmodel.training.common_shocks`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SCALES = (0.85, 0.925, 1.1, 1.25, 1.5, 2.0)
"""Scales of days without a move."""

MOVES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
"""Sizes of moves, of both signs, of days without a scale; in volatilities of a mean symbol."""

STATES = (
    *((1.0, -move) for move in reversed(MOVES)),
    *((scale, 0.0) for scale in sorted((1.0, *SCALES))),
    *((1.0, move) for move in MOVES),
)
"""Scale and move of each state, by rising moves, so that a reflected number chooses about the opposite move.

Checkpoints have the probabilities by position: with other states older ones would mean something else.
"""

NO_SHOCK = STATES.index((1.0, 0.0))


class ReturnShocks(NamedTuple):
    """Probabilities of the states, and their scales and moves. Shape of each: (len(STATES),)."""

    probability: Tensor
    scale: Tensor
    move: Tensor

    def shocked(self, returns: Tensor, uniform: Tensor, shares: Tensor, temperature: float) -> Tensor:
        """Return the chain's returns (P, K) in states chosen by numbers in (0, 1], (P,).

        The temperature is a factor on moves, about their mean; the scales of days stay.
        """
        upper = self.probability.cumsum(0)
        # The sum of the probabilities may round to below a number near 1, which itself may round to 1.
        state = (uniform.unsqueeze(-1) > upper / upper[-1]).sum(-1, keepdim=True)
        move = self.move[state]
        if temperature != 1.0:
            mean = (self.probability * self.move).sum()
            move = mean + temperature * (move - mean)
        return self.scale[state] * returns + move * shares


def no_shock() -> Tensor:
    """Return probabilities of the states of days without a shock. Shape: (len(STATES),)."""
    return torch.eye(len(STATES))[NO_SHOCK]


def common_shares(rows: Tensor) -> Tensor:
    """Return each symbol's share in a common move from the mean of its row of correlations: that over the mean of all.

    That is the regression of its return on the mean return, in volatilities, bounded where the mean hardly varies, as
    that of opposite symbols. Independent symbols share alike. Shape: (..., K).
    """
    return rows / rows.mean(-1, keepdim=True).clamp(min=1.0 / rows.shape[-1])
