"""What the stock-trading task remembers of one account."""

from __future__ import annotations

from tensordict import TensorClass
from torch import Tensor


class StockState(TensorClass, frozen=True):  # type: ignore[call-arg]
    """One account; K symbols. Money is in ticks, int64 in the exact arithmetic.

    Attributes:
        cash: Shape: ().
        holdings: shares. Shape: (K,).
        portfolio_value: cash plus holdings at the close of ``day``. Shape: ().
        start_value: portfolio value at the start of the episode. Shape: ().
        traded: value bought and sold in the last step. Shape: ().
        costs: commissions, slippage and fees of the last step. Shape: ().
        buy_ratio: share of the wanted purchases that cash covered, 1 before any, in the last step. Shape: (), float32.
        invalid_actions: entries of actions that were NaN or infinite, in this episode. Shape: (), int64.
        path: path of the market. Shape: (), int64.
        day: day whose close the agent has seen. Shape: (), int64.
        start_day: first day of the episode. Shape: (), int64.
        end_day: day on which the episode is truncated. Shape: (), int64.
        average_price: average purchase price, kept for the stop-loss only. Shape: (K,) or (0,).
        moments: exponential moments, kept for the differential Sharpe ratio only. Shape: (2,) or (0,).
    """

    cash: Tensor
    holdings: Tensor
    portfolio_value: Tensor
    start_value: Tensor
    traded: Tensor
    costs: Tensor
    buy_ratio: Tensor
    invalid_actions: Tensor
    path: Tensor
    day: Tensor
    start_day: Tensor
    end_day: Tensor
    average_price: Tensor
    moments: Tensor
