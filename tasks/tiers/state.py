"""State of one account of the trading tiers."""

from __future__ import annotations

from tensordict import TensorClass
from torch import Tensor


class TierState(TensorClass, frozen=True):  # type: ignore[call-arg]
    """One account; K symbols, M orders a day, C components of the reward. Money is in whole ticks, float64.

    Where no shape is given it is (); paths, days and rules are int64, counts float32.

    Attributes:
        holdings: whole shares. Shape: (K,), float32.
        average_price: of the positions. Shape: (K,).
        days_held: nights since each position was opened. Shape: (K,), float32.
        losing_sells: losing sells in a row.
        portfolio_value: cash plus holdings at the close of ``day``.
        day: day whose close the agent has seen.
        end_day: day on which the episode is truncated.
        rule: row of the rules' table.
        traded: value bought and sold in the last step.
        costs: commissions and slippage of the last step.
        fills: shares bought in the last step, negative where sold, by order. Shape: (M,), float32.
        components: of the last step's reward. Shape: (C,).
        totals: components summed over the episode. Shape: (C,).
        num_trades: executed orders of the episode.
        max_drawdown: largest loss from an earlier peak, at the closes, a share.
        return_sums: sums of the daily returns and of their squares. Shape: (2,), float64.
        exposure_sum: sum over the days of the positions' share of the portfolio value.
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
