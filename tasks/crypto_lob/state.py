"""What an account on replayed order books remembers."""

from __future__ import annotations

from tensordict import TensorClass
from torch import Tensor


class LobState(TensorClass, frozen=True):  # type: ignore[call-arg]
    """An account and its place on the tape. Money is in half ticks times lots, and begins at 0.

    Attributes:
        row: of the tape. Shape: (), int32.
        start_row: in which the episode began. Shape: (), int32.
        position: lots, negative if short. Shape: (), int32.
        cash: received less paid. Shape: (), int64.
        equity: cash and position at the mid. Shape: (), int64.
        trade_cost: paid less received for the open trade. Shape: (), int64.
        entry: doubled mid at which the position began. Shape: (), int32.
        best: most favourable doubled mid since then. Shape: (), int32.
        age: steps since then. Shape: (), int32.
        pending: choices that are not heard yet, the oldest first: kind and lots of each, see `orders.Order`; empty with
            a latency of at most one. Shape: (latency - 1, 2), int32.
        pending_quotes: the resting orders chosen with them: price and lots of bid and ask. Shape: (latency - 1, 2, 2)
            with action limit, else (0, 2, 2), int32.
        resting: price, lots left and lots ahead of bid and ask. Shape: (2, 3) with action limit, else (0, 3), int32.
        bought: lots bought in the last step. Shape: (), int32.
        sold: lots sold in the last step. Shape: (), int32.
        peak: highest equity. Shape: (), int64.
        drawdown: largest drawdown from the peak as a share of it, initial cash included. Shape: (), float64.
        squares: sum of the squared changes of equity, in currency. Shape: (), float64.
        won: closed trades with a profit. Shape: (), int32.
        lost: closed trades with a loss. Shape: (), int32.
        traded: value bought and sold. Shape: (), int64.
        costs: fees and slippage. Shape: (), int64.
        exposed: steps that ended with a position. Shape: (), int32.
        unfilled: lots of market orders that the levels did not cover. Shape: (), int64.
        invalid: steps with an invalid action. Shape: (), int32.
        liquidated: 1 if the margin ended the episode, else 0. Shape: (), int32.
    """

    row: Tensor
    start_row: Tensor
    position: Tensor
    cash: Tensor
    equity: Tensor
    trade_cost: Tensor
    entry: Tensor
    best: Tensor
    age: Tensor
    pending: Tensor
    pending_quotes: Tensor
    resting: Tensor
    bought: Tensor
    sold: Tensor
    peak: Tensor
    drawdown: Tensor
    squares: Tensor
    won: Tensor
    lost: Tensor
    traded: Tensor
    costs: Tensor
    exposed: Tensor
    unfilled: Tensor
    invalid: Tensor
    liquidated: Tensor
