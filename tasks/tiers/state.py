"""State of one account of the trading tiers."""

from __future__ import annotations

from tensordict import TensorClass
from torch import Tensor


class TierState(TensorClass, frozen=True):  # type: ignore[call-arg]
    """One account; K symbols, M orders a day, C components of the reward. Money is in whole ticks, float64.

    Attributes:
        cash: Shape: ().
        holdings: whole shares. Shape: (K,), float32.
        average_price: of the positions. Shape: (K,).
        days_held: nights since each position was opened. Shape: (K,), float32.
        losing_sells: losing sells in a row. Shape: (), float32.
        portfolio_value: cash plus holdings at the close of ``day``. Shape: ().
        peak_value: highest portfolio value so far. Shape: ().
        start_value: portfolio value at the start. Shape: ().
        path: path of the market. Shape: (), int64.
        day: day whose close the agent has seen. Shape: (), int64.
        start_day: first day of the episode. Shape: (), int64.
        end_day: day on which the episode is truncated. Shape: (), int64.
        rule: row of the rules' table. Shape: (), int64.
        traded: value bought and sold in the last step. Shape: ().
        costs: commissions and slippage of the last step. Shape: ().
        fills: shares bought in the last step, negative where sold, by order. Shape: (M,), float32.
        components: of the last step's reward. Shape: (C,).
        totals: components summed over the episode. Shape: (C,).
        num_trades: executed orders of the episode. Shape: (), float32.
        traded_total: value bought and sold in the episode. Shape: ().
        max_drawdown: largest loss from an earlier peak, at the closes. Shape: (), float64.
        return_sums: sums of the daily returns and of their squares. Shape: (2,), float64.
        exposure_sum: sum over the days of the positions' share of the portfolio value. Shape: (), float64.
        gate_days: closed days, and those of them without a BUY. Shape: (2,), float32.
    """

    cash: Tensor
    holdings: Tensor
    average_price: Tensor
    days_held: Tensor
    losing_sells: Tensor
    portfolio_value: Tensor
    peak_value: Tensor
    start_value: Tensor
    path: Tensor
    day: Tensor
    start_day: Tensor
    end_day: Tensor
    rule: Tensor
    traded: Tensor
    costs: Tensor
    fills: Tensor
    components: Tensor
    totals: Tensor
    num_trades: Tensor
    traded_total: Tensor
    max_drawdown: Tensor
    return_sums: Tensor
    exposure_sum: Tensor
    gate_days: Tensor
