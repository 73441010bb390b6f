"""From an action to the orders of a day: what is wanted, what overrules it, and its execution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.kernels.margin import Margin, execute_with_shorts, margin_call
from vecenv.kernels.money import Money
from vecenv.kernels.orders import Fills, Prices, execute_long_only, wanted_shares
from vecenv.kernels.weights import benchmark_units, orders_to_weights, tilted_weights
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.state import StockState

LARGEST_DEAD_ZONE = 0.25
"""Largest dead zone of tilts as a share of 1 / K, the weight of a symbol in an equally weighted portfolio."""

Tensors = Mapping[str, Tensor]


class OrderRules(NamedTuple):
    """What determines orders beside the state.

    ``uses`` tells whether a parameter has an effect, by name; ``max_order`` is the largest order of one symbol in
    shares, None if only cash bounds it.
    """

    config: StockTradingConfig
    money: Money
    num_symbols: int
    uses: Callable[[str], bool]
    max_order: int | None


def wanted_in_shares(rules: OrderRules, action: Tensor, params: Tensors) -> Tensor:
    """Return the orders of an action in shares. Shape: (K,)."""
    return wanted_shares(rules.money, action, params["hmax"], _dead_zone(rules, params))


def wanted_by_weights(
    rules: OrderRules, weights: Tensor, value: Tensor, holdings: Tensor, prices: Prices, params: Tensors
) -> Tensor:
    """Return the orders towards target weights, which are shares of a value. Shape: (K,)."""
    surcharge = 1.0 + params["commission"] + params["slippage"]
    dead_zone = _dead_zone(rules, params)
    return orders_to_weights(rules.money, weights, value, holdings, prices, surcharge, dead_zone)


def tilted(rules: OrderRules, action: Tensor, portfolio: Tensor) -> Tensor:
    """Return the tilted weights of a benchmark portfolio. Shapes: (K + 1,), (K,) -> (K,)."""
    config = rules.config
    if config.whole_shares:
        portfolio = benchmark_units(portfolio)
    return tilted_weights(rules.money, action, portfolio, config.benchmark_cash, config.tilt_gain)


def overruled(
    rules: OrderRules, order: Tensor, state: StockState, close: Tensor, gate: Tensor | None, params: Tensors
) -> Tensor:
    """Return the orders after stop-loss, gate and margin call. Shape: (K,).

    ``close`` is in ticks; ``gate`` is the day's value of the gate's series, None without a gate.
    """
    money = rules.money
    if rules.uses("stop_loss"):
        floor = (1.0 - params["stop_loss"]).to(money.single) * state.average_price
        stopped = (params["stop_loss"] > 0) & (state.holdings > 0) & (close.to(money.single) <= floor)
        order = torch.where(stopped, -state.holdings, order)
    if gate is not None:
        order = torch.where(gate >= params["gate_threshold"], -state.holdings, order)
    if rules.config.shorting:
        called = margin_call(money, state.cash, state.holdings, close, margin_of(params))
        order = torch.where(called, -state.holdings, order)
    return order


def executed(rules: OrderRules, state: StockState, order: Tensor, prices: Prices, params: Tensors) -> Fills:
    """Return what is filled of the orders, as `rules.md` rations them."""
    by_size = rules.config.rationing == "by_size"
    if rules.config.shorting:
        margin = margin_of(params)
        return execute_with_shorts(rules.money, state.cash, state.holdings, order, prices, by_size, margin)
    return execute_long_only(rules.money, state.cash, state.holdings, order, prices, by_size, rules.max_order)


def margin_of(params: Tensors) -> Margin:
    """Return the requirements of short positions."""
    return Margin(params["initial_margin"], params["maintenance_margin"], params["borrow_rate"])


def _dead_zone(rules: OrderRules, params: Tensors) -> Tensor | None:
    if not rules.uses("dead_zone"):
        return None
    if rules.config.action != "tilt":
        return params["dead_zone"]
    # A larger one would keep even the benchmark from being bought where there are many symbols.
    return params["dead_zone"].clamp(max=LARGEST_DEAD_ZONE / rules.num_symbols)
