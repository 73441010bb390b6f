"""The law of one account: its state, the orders of a day and their execution, the benchmark, and the reward.

`rules.md` and `learner.md` beside this file are the specification. The benchmark portfolio, from which tilts start and
against which excess returns are measured, is costless and holds no cash: ``equal_weight`` is restored every day to the
same value of every symbol that can trade, and keeps its shares of those that cannot; ``buy_and_hold`` bought the same
value of each at the start of the episode and keeps the shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from tensordict import TensorClass
from torch import Tensor

from vecenv.kernels.margin import Margin, borrow_fee, execute_with_shorts, margin_call
from vecenv.kernels.money import Money
from vecenv.kernels.orders import Fills, Prices, execute_long_only, wanted_shares
from vecenv.kernels.weights import benchmark_units, orders_to_weights, tilted_weights
from vecenv.tasks.stock_trading.config import PERCENT, StockTradingConfig


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


LARGEST_DEAD_ZONE = 0.25
"""Largest dead zone of tilts as a share of 1 / K, the weight of a symbol in an equally weighted portfolio."""

Tensors = Mapping[str, Tensor]


class Rules(NamedTuple):
    """What a step depends on beside states, the market and parameters.

    ``uses`` tells by name whether a parameter has an effect. ``max_order`` and ``max_holdings`` are the largest order
    and position of one symbol in shares, None if only cash bounds them. With ``own_scale`` money counts in rewards as a
    share of the value at the start, else in currency.
    """

    config: StockTradingConfig
    money: Money
    num_symbols: int
    tick_size: float
    periods_per_year: float
    uses: Callable[[str], bool]
    max_order: int | None
    max_holdings: int | None
    own_scale: bool


def wanted_in_shares(rules: Rules, action: Tensor, params: Tensors) -> Tensor:
    """Return the orders of an action in shares. Shape: (K,)."""
    return wanted_shares(rules.money, action, params["hmax"], _dead_zone(rules, params))


def wanted_by_weights(
    rules: Rules, weights: Tensor, value: Tensor, holdings: Tensor, prices: Prices, params: Tensors
) -> Tensor:
    """Return the orders towards target weights, which are shares of a value. Shape: (K,)."""
    surcharge = 1.0 + params["commission"] + params["slippage"]
    dead_zone = _dead_zone(rules, params)
    return orders_to_weights(rules.money, weights, value, holdings, prices, surcharge, dead_zone)


def tilted(rules: Rules, action: Tensor, portfolio: Tensor) -> Tensor:
    """Return the tilted weights of a benchmark portfolio. Shapes: (K + 1,), (K,) -> (K,)."""
    config = rules.config
    if config.whole_shares:
        portfolio = benchmark_units(portfolio)
    return tilted_weights(rules.money, action, portfolio, config.benchmark_cash, config.tilt_gain)


class Decision(NamedTuple):
    """What an action comes to on its day, before anything is known of the next close.

    Attributes:
        weights: target weights of the symbols; cash has the rest. Shape: (K,), (0,) of an action in shares.
        wanted: orders of the action in shares, positive to buy. Shape: (K,).
        forced: where a rule sells all instead, by the names of the rules; the last one prevails. Shape of each: (K,).
        tradable: symbols that can trade where the orders fill. Shape: (K,), bool.
        order: orders after these rules. Shape: (K,).
        prices: of the fills.
        fills: what is filled.
        finite: entries of the action that are numbers. Shape: that of the action, bool.
    """

    weights: Tensor
    wanted: Tensor
    forced: dict[str, Tensor]
    tradable: Tensor
    order: Tensor
    prices: Prices
    fills: Fills
    finite: Tensor


def forced_sales(
    rules: Rules, state: StockState, close: Tensor, gate: Tensor | None, params: Tensors
) -> dict[str, Tensor]:
    """Return where stop-loss, gate and margin call sell all that is held, by name. Shape of each: (K,), bool.

    ``close`` is in ticks; ``gate`` is the day's value of the gate's series, None without a gate.
    """
    money, found = rules.money, {}
    if rules.uses("stop_loss"):
        floor = (1.0 - params["stop_loss"]).to(money.single) * state.average_price
        fallen = close.to(money.single) <= floor
        found["stop_loss"] = (params["stop_loss"] > 0) & (state.holdings > 0) & fallen
    if gate is not None:
        found["gate"] = (gate >= params["gate_threshold"]).expand_as(close)
    if rules.config.shorting:
        called = margin_call(money, state.cash, state.holdings, close, margin_of(params))
        found["margin_call"] = called.expand_as(close)
    return found


def overruled(order: Tensor, state: StockState, forced: Mapping[str, Tensor]) -> Tensor:
    """Return the orders after the rules of `forced_sales`. Shape: (K,)."""
    for where in forced.values():
        order = torch.where(where, -state.holdings, order)
    return order


def executed(rules: Rules, state: StockState, order: Tensor, prices: Prices, params: Tensors) -> Fills:
    """Return what is filled of the orders, as `rules.md` rations them."""
    by_size = rules.config.rationing == "by_size"
    if rules.config.shorting:
        margin = margin_of(params)
        return execute_with_shorts(rules.money, state.cash, state.holdings, order, prices, by_size, margin)
    return execute_long_only(rules.money, state.cash, state.holdings, order, prices, by_size, rules.max_order)


def settled(
    rules: Rules,
    state: StockState,
    day: Tensor,
    fills: Fills,
    prices: Prices,
    next_close: Tensor,
    invalid: Tensor,
    benchmark: Tensor,
    params: Tensors,
) -> StockState:
    """Return the account at the close after a day on which orders were filled.

    ``invalid`` is the number of entries of the action that were no numbers, ``benchmark`` what the benchmark holds.
    """
    config, money, cash, holdings = rules.config, rules.money, fills.cash, fills.holdings
    costs = fills.commissions
    if prices.buy is not prices.sell:
        sold = fills.bought - (holdings - state.holdings)
        costs = costs + money.total(fills.bought, prices.buy - prices.fill, rules.max_order)
        costs = costs + money.total(sold, prices.fill - prices.sell, rules.max_order)
    if config.shorting:
        fee = borrow_fee(money, holdings, next_close, margin_of(params), rules.periods_per_year)
        cash, costs = cash - fee, costs + fee
    value = cash + money.total(holdings, next_close, rules.max_holdings)
    average_price, moments = state.average_price, state.moments
    if rules.uses("stop_loss"):
        average_price = _average_price(money, state, fills.bought, holdings, prices)
    if config.reward == "differential_sharpe":
        step_return = simple_return(state.portfolio_value, value, money.dtype)
        moments = updated_moments(step_return, moments, params["sharpe_decay"])
    return StockState(
        cash=cash,
        holdings=holdings,
        portfolio_value=value,
        start_value=state.start_value,
        traded=fills.traded,
        costs=costs,
        buy_ratio=fills.buy_ratio,
        invalid_actions=state.invalid_actions + invalid,
        path=state.path,
        day=day + 1,
        start_day=state.start_day,
        end_day=state.end_day,
        average_price=average_price,
        moments=moments,
        benchmark=benchmark,
        batch_size=[],
    )


def _average_price(money: Money, state: StockState, bought: Tensor, holdings: Tensor, prices: Prices) -> Tensor:
    """Return the average purchase price of long positions after the fills. Shape: (K,)."""
    held = state.holdings.clamp(min=0.0).to(money.single)
    added = torch.minimum(bought, holdings.clamp(min=0.0)).to(money.single)
    paid = state.average_price * held + prices.buy.to(money.single) * added
    average = torch.where(added > 0, paid / (held + added).clamp(min=1e-9), state.average_price)
    return torch.where(holdings > 0, average, 0.0)


def margin_of(params: Tensors) -> Margin:
    """Return the requirements of short positions."""
    return Margin(params["initial_margin"], params["maintenance_margin"], params["borrow_rate"])


def _dead_zone(rules: Rules, params: Tensors) -> Tensor | None:
    if not rules.uses("dead_zone"):
        return None
    if rules.config.action != "tilt":
        return params["dead_zone"]
    # A larger one would keep even the benchmark from being bought where there are many symbols.
    return params["dead_zone"].clamp(max=LARGEST_DEAD_ZONE / rules.num_symbols)


WHOLE = 2.0**44
"""Parts of a portfolio's value in which its positions are counted: whole numbers, whose sums are exact in any order."""


def held_portfolio(close: Tensor, start_close: Tensor, start_tradable: Tensor) -> Tensor:
    """Return the value of each position bought and held since the start, per unit. Shape: (K,), as the closes."""
    bought = start_tradable & (start_close > 0)
    growth = close / torch.where(bought, start_close, 1.0)
    return torch.where(bought, growth, 0.0)


def equal_weight_growth(close: Tensor, next_close: Tensor, tradable: Tensor) -> Tensor:
    """Return the growth of one day of equally weighted tradable symbols; 1 without any. Shapes: (..., K) -> (...).

    It is the portfolio's on a market without gaps. In float64, so that eager and compiled results are equal after
    rounding to float32.
    """
    change = torch.where(tradable, next_close.double() / close.double().clamp(min=1e-12), 0.0)
    count = tradable.sum(-1)
    return torch.where(count > 0, change.sum(-1) / count.clamp(min=1), 1.0)


def restored_growth(parts: Tensor, close: Tensor, next_close: Tensor, tradable: Tensor) -> tuple[Tensor, Tensor]:
    """Return the growth of one day of a portfolio restored to equal weights at its start, and what it holds at the end.

    What it holds of symbols that cannot trade stays as it is; the rest is spread equally over those that can. ``parts``
    are its positions before that, in parts of `WHOLE`; what they lack of it is cash. Shapes: (), (K,), float64.
    """
    free = WHOLE - torch.where(tradable, 0.0, parts).sum(-1, keepdim=True)
    held = torch.where(tradable, torch.floor(free / tradable.sum(-1, keepdim=True).clamp(min=1)), parts)
    change = next_close.double() / close.double().clamp(min=1e-12)
    worth = torch.where(held > 0, torch.floor(held * change), 0.0)
    total = WHOLE - held.sum(-1) + worth.sum(-1)
    return total / WHOLE, torch.floor(worth * WHOLE / total)


def held_growth(close: Tensor, next_close: Tensor, start_close: Tensor, start_tradable: Tensor) -> Tensor:
    """Return the growth of one day of the portfolio bought at the start; 1 if nothing was. Shape: (), float64."""
    bought = start_tradable & (start_close > 0)
    shares = torch.where(bought, 1.0 / torch.where(bought, start_close, 1.0).double(), 0.0)
    value, next_value = (shares * close.double()).sum(-1), (shares * next_close.double()).sum(-1)
    return torch.where(value > 0, next_value / torch.where(value > 0, value, 1.0), 1.0)


VARIANCE_FLOOR = 1e-12


def simple_return(value: Tensor, next_value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return v'/v - 1, 0 for a worthless account. Shape: ()."""
    gain = (next_value - value).to(dtype)
    return torch.where(value > 0, gain / value.to(dtype).clamp(min=1e-30), 0.0)


def log_return(value: Tensor, next_value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return log(v'/v); a ruined account counts as one with a millionth of its value left. Shape: ()."""
    return torch.log1p(simple_return(value, next_value, dtype).clamp(min=-1.0 + 1e-6))


def differential_sharpe(step_return: Tensor, moments: Tensor) -> Tensor:
    """Return the derivative of the exponential Sharpe ratio (Moody and Saffell 1998, eq. 12).

    ``moments`` are exponential means A of the returns and B of their squares before the step. Shapes: (), (2,) -> ().
    """
    mean, square = moments[0], moments[1]
    variance = square - mean * mean
    numerator = square * (step_return - mean) - 0.5 * mean * (step_return * step_return - square)
    known = variance > VARIANCE_FLOOR
    return torch.where(known, numerator / torch.where(known, variance, 1.0) ** 1.5, 0.0)


def updated_moments(step_return: Tensor, moments: Tensor, decay: Tensor) -> Tensor:
    """Return the exponential means after a step. Shape: (2,)."""
    sample = torch.stack([step_return, step_return * step_return], dim=-1)
    return moments + decay.to(moments.dtype) * (sample - moments)


def risk_penalised(step_return: Tensor, risk_aversion: Tensor) -> Tensor:
    """Return r - λ r², the mean-variance utility of one step. Shape: ()."""
    return step_return - risk_aversion.to(step_return.dtype) * step_return * step_return


def step_reward(
    rules: Rules,
    state: StockState,
    next_state: StockState,
    ended: Tensor,
    growth: Tensor | None,
    params: Tensors,
    shaped: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the configured reward, less the cash penalty, plus the terminal bonus. Shape: ().

    ``growth`` is that of the benchmark over the step, for the excess return, ``shaped`` the change of the configured
    reward before penalty, scale and bonus.
    """
    config, dtype = rules.config, rules.money.dtype
    value, next_value = state.portfolio_value, next_state.portfolio_value

    def money(ticks: Tensor) -> Tensor:
        if rules.own_scale:
            return (ticks.double() / state.start_value.double().clamp(min=1.0)).to(dtype)
        return ticks.to(dtype) * rules.tick_size

    if config.reward == "delta_value":
        reward = money(next_value - value)
    elif config.reward == "log_return":
        reward = log_return(value, next_value, dtype)
    elif growth is not None:
        reward = (log_return(value, next_value, torch.float64) - torch.log(growth)).to(dtype)
    else:
        step_return = simple_return(value, next_value, dtype)
        if config.reward == "differential_sharpe":
            reward = differential_sharpe(step_return, state.moments)
        else:
            reward = risk_penalised(step_return, params["risk_aversion"])
    reward = shaped(reward)
    if rules.uses("min_cash_fraction"):
        lacking = params["min_cash_fraction"] * next_value.to(dtype) - next_state.cash.to(dtype)
        penalty = money(lacking.clamp(min=0.0))
        if rules.own_scale:
            penalty = penalty * (PERCENT / config.own_reward_scale)
        reward = reward - params["cash_penalty_weight"].to(dtype) * penalty
    reward = reward * params["reward_scale"].to(dtype)
    if rules.uses("terminal_bonus"):
        total = simple_return(next_state.start_value, next_value, dtype)
        reward = reward + torch.where(ended, params["terminal_bonus"].to(dtype) * total, 0.0)
    return reward
