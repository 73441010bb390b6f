"""What the stock-trading task remembers of one account."""

from __future__ import annotations

from tensordict import TensorClass
from torch import Tensor


class StockState(TensorClass, frozen=True):  # type: ignore[call-arg]
    """One account; K symbols. Money is in ticks, int64 in the exact arithmetic.

    ``holdings`` are shares, (K,); ``portfolio_value`` is cash plus holdings at the close of ``day``, the one that the
    agent has seen. ``traded``, ``costs`` (commissions, slippage and fees) and ``buy_ratio``, the share of the wanted
    purchases that cash covered, 1 before any, are those of the last step. ``invalid_actions`` counts entries of actions
    that were NaN or infinite, in this episode, which is truncated on ``end_day``. ``average_price``, of purchases, is
    kept for the stop-loss only, (K,) or (0,), ``moments``, exponential, for the differential Sharpe ratio only, (2,) or
    (0,), and ``benchmark``, what the benchmark holds in parts of its value, for excess returns over equal weights on
    markets with gaps only, (K,) or (0,). The others have shape ().
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
    benchmark: Tensor
