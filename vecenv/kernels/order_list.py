"""A day's orders as a short list of kind, symbol and fraction, served one after the other.

The orders of a day share the cash, the count of trades and, where they name the same symbol, its position; all else is
independent. So the kernel works on scalars of one order at a time and never on the K symbols, until the end
puts the positions back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.kernels.money import Money
from vecenv.kernels.orders import fill_prices

MAX_ORDERS = 8

FRACTION_STEPS = 10_000
"""Fractions of orders are whole hundredths of a percent, so that shares and budgets are exact."""

MAX_SHARES = 2**24 - 1
"""Largest position of one symbol: float32 holds it exactly."""

LOSING_STREAK = 3
"""Losing sells in a row after which a purchase is a mistake."""

OVERBOUGHT, OVERSOLD = 70.0, 30.0
"""Relative strength above which buying, and below which selling, is a mistake (Wilder, 1978)."""

CAPACITY_STEPS = 4
"""Capacity is counted in quarters."""


class Kind(IntEnum):
    """What an order asks for; an invalid one counts as a hold and is marked."""

    HOLD = 0
    BUY = 1
    SELL = 2
    INVALID = 3


class OrderList(NamedTuple):
    """Orders of one day, decoded.

    Attributes:
        buys: whether each is a BUY. Shape: (M,), bool.
        sells: whether each is a SELL. Shape: (M,), bool.
        symbols: symbol of each, 0 where it is neither. Shape: (M,), int64.
        steps: fraction in hundredths of a percent, a whole number. Shape: (M,), float64.
        valid: whether the action obeyed the format. Shape: (), bool.
    """

    buys: Tensor
    sells: Tensor
    symbols: Tensor
    steps: Tensor
    valid: Tensor


class Positions(NamedTuple):
    """Cash and positions of an account.

    Attributes:
        cash: whole ticks. Shape: (), float64.
        holdings: whole shares. Shape: (K,), float32.
        average_price: ticks, 0 without shares. Shape: (K,).
        days_held: nights since each position was opened. Shape: (K,), float32.
        losing_sells: losing sells in a row. Shape: (), float32.
    """

    cash: Tensor
    holdings: Tensor
    average_price: Tensor
    days_held: Tensor
    losing_sells: Tensor


class Quotes(NamedTuple):
    """The market on the day of the orders, looked up symbol by symbol.

    Attributes:
        close: function of a symbol to its close in ticks. Shapes: () -> ().
        rsi: to its relative strength index.
        tradable: to whether it trades on the day, 1 or 0.
    """

    close: Callable[[Tensor], Tensor]
    rsi: Callable[[Tensor], Tensor]
    tradable: Callable[[Tensor], Tensor]


class Limits(NamedTuple):
    """What the tier allows on the day. Shape of each: ().

    Attributes:
        commission: rate on the traded value, float64.
        slippage: rate on the price, float64, a float32 number.
        closed: whether the gate refuses purchases, bool.
        capacity: quarters of a purchase that the drawdown leaves, float64.
        max_trades: executed orders after which purchases are refused.
        position_value: largest value of one position, ticks, float64.
        exposure_value: largest value of all positions together, ticks, float64.
    """

    commission: Tensor
    slippage: Tensor
    closed: Tensor
    capacity: Tensor
    max_trades: Tensor
    position_value: Tensor
    exposure_value: Tensor


class Execution(NamedTuple):
    """What became of the orders.

    Attributes:
        positions: afterwards; `days_held` not yet advanced.
        fills: shares bought, negative where sold, by order. Shape: (M,), float32.
        num_trades: executed orders. Shape: (), float32.
        traded: value bought plus value sold at trade prices, ticks. Shape: (), float64.
        costs: commissions and slippage, ticks. Shape: (), float64.
        exposure: value of all positions at the closes, ticks. Shape: (), float64.
        counts: by name of the reward component, how often it happened. Shape of each: (), float32.
    """

    positions: Positions
    fills: Tensor
    num_trades: Tensor
    traded: Tensor
    costs: Tensor
    exposure: Tensor
    counts: dict[str, Tensor]


def decode_orders(action: Tensor, num_symbols: int, owned: Tensor | None = None) -> OrderList:
    """Check an action and round its fractions.

    Args:
        action: kind, symbol and fraction of each order. Shape: (M, 3), float32.
        num_symbols: K.
        owned: which symbols are the tier's, None for all. Shape: (K,), bool.
    """
    kind, symbol, fraction = action.unbind(-1)
    finite = (action.abs() <= torch.finfo(action.dtype).max).all(-1)
    buys, sells = kind == Kind.BUY, kind == Kind.SELL
    trades = buys | sells
    known = (symbol >= 0) & (symbol < num_symbols) & (symbol == torch.floor(symbol))
    index = torch.where(trades & known & finite, symbol, 0.0).to(torch.int64)
    if owned is not None:
        known = known & owned[index]
    valid = (finite & ((kind == Kind.HOLD) | (trades & known))).all(-1)
    steps = torch.round(torch.where(finite, fraction, 0.0).clamp(0.0, 1.0) * FRACTION_STEPS).double()
    return OrderList(buys & valid, sells & valid, index, steps, valid)


def affordable(money: Money, budget: Tensor, price: Tensor, commission: Tensor) -> Tensor:
    """Return how many shares a budget pays for, commission included. Shape: (), float64."""
    shares = torch.floor(budget / (price * (1.0 + commission)))
    value = shares * price
    # The commission is rounded up, which may cost the last share.
    return shares - torch.where(value + money.commission(value, commission) > budget, 1.0, 0.0)


def capacity(value: Tensor, peak: Tensor) -> Tensor:
    """Return the quarters of a purchase that a drawdown from the peak leaves. Shape: (), float64."""
    drawdown = 1.0 - value / peak
    losses = (drawdown >= 0.03).double() + (drawdown >= 0.05).double() + (drawdown >= 0.08).double()
    return CAPACITY_STEPS - losses


def execute_orders(
    money: Money, orders: OrderList, before: Positions, exposure: Tensor, quotes: Quotes, limits: Limits
) -> Execution:
    """Serve the orders of one day in their sequence.

    Args:
        money: exact arithmetic in float64.
        orders: of the day.
        before: the account before them.
        exposure: value of all positions before them at the closes, ticks. Shape: (), float64.
        quotes: of the day.
        limits: of the tier on the day.

    The rules are those of ``tasks/tiers.md``, rules 2 to 5.
    """
    single = before.average_price.dtype
    zero = torch.zeros_like(before.losing_sells)
    cash, streak, trades = before.cash, before.losing_sells, zero
    traded = costs = torch.zeros_like(cash)
    counts = dict.fromkeys(ORDER_COUNTS, zero)
    fills: list[Tensor] = []
    symbols: list[Tensor] = []
    states: list[tuple[Tensor, Tensor, Tensor]] = []
    for number in range(orders.symbols.shape[-1]):
        symbol, steps = orders.symbols[number], orders.steps[number]
        buys, sells = orders.buys[number], orders.sells[number]
        held, average, days = _latest(before, symbol, symbols, states)
        prices = fill_prices(money, quotes.close(symbol).double(), limits.slippage, limits.commission)
        rsi, tradable = quotes.rsi(symbol), quotes.tradable(symbol) > 0

        sold = torch.where(sells & tradable, torch.floor(steps * held / FRACTION_STEPS), 0.0)
        open_to_buy = buys & ~limits.closed
        late = open_to_buy & (trades >= limits.max_trades)
        budget = torch.floor(steps * limits.capacity * cash / (FRACTION_STEPS * CAPACITY_STEPS))
        wanted = affordable(money, budget, prices.buy, limits.commission)
        wanted = torch.where(open_to_buy & ~late & tradable, wanted, 0.0)
        room = torch.minimum(limits.position_value - held * prices.fill, limits.exposure_value - exposure)
        allowed = torch.floor(room.clamp(min=0.0) / prices.fill.clamp(min=1.0))
        bought = torch.minimum(torch.minimum(wanted, allowed), MAX_SHARES - held)

        bought_value, sold_value = bought * prices.buy, sold * prices.sell
        fee = money.commission(bought_value + sold_value, limits.commission)
        cash = cash + sold_value - bought_value - fee
        change = bought - sold
        exposure = exposure + change * prices.fill
        traded = traded + bought_value + sold_value
        costs = costs + fee + bought * (prices.buy - prices.fill) + sold * (prices.fill - prices.sell)
        buying, selling = bought > 0, sold > 0
        losing = selling & (prices.sell.to(single) < average)
        revenge = buying & (streak >= LOSING_STREAK)
        happened = {
            "regime_violation": buys & limits.closed,
            "overbought_buy": buying & (rsi > OVERBOUGHT),
            "oversold_sell": selling & (rsi < OVERSOLD),
            "position_limit": bought < wanted,
            "trade_limit": late,
            "sell_unheld": sells & (held == 0),
            "losing_streak_buy": revenge,
        }
        counts = {name: counts[name] + flag.to(zero.dtype) for name, flag in happened.items()}
        trades = trades + (buying | selling).to(zero.dtype)
        streak = torch.where(losing, streak + 1.0, torch.where(selling | revenge, 0.0, streak))

        now = held + change
        paid = average * held.to(single) + prices.buy.to(single) * bought.to(single)
        average = torch.where(buying, paid / now.clamp(min=1.0).to(single), average)
        average = torch.where(now > 0, average, 0.0)
        days = torch.where(now > 0, days, 0.0)
        symbols.append(symbol)
        states.append((now, average, days))
        fills.append(change.to(torch.float32))
    holdings, average_price, days_held = _put_back(before, orders, symbols, states)
    positions = Positions(cash, holdings, average_price, days_held, streak)
    return Execution(positions, torch.stack(fills), trades, traded, costs, exposure, counts)


ORDER_COUNTS = (
    "regime_violation",
    "overbought_buy",
    "oversold_sell",
    "position_limit",
    "trade_limit",
    "sell_unheld",
    "losing_streak_buy",
)
"""What orders are counted for."""


def _latest(
    before: Positions, symbol: Tensor, symbols: Sequence[Tensor], states: Sequence[tuple[Tensor, Tensor, Tensor]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return shares, average price and days of a symbol after the orders so far. Shape of each: ()."""
    held, average = before.holdings[symbol].double(), before.average_price[symbol]
    days = before.days_held[symbol]
    for earlier, state in zip(symbols, states, strict=True):
        same = earlier == symbol
        held, average, days = (
            torch.where(same, later, old) for later, old in zip(state, (held, average, days), strict=True)
        )
    return held, average, days


def _put_back(
    before: Positions,
    orders: OrderList,
    symbols: Sequence[Tensor],
    states: Sequence[tuple[Tensor, Tensor, Tensor]],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return shares, average prices and days of all symbols. Shape of each: (K,)."""
    slots = torch.arange(before.holdings.shape[-1], device=before.holdings.device)
    after = (before.holdings, before.average_price, before.days_held)
    for symbol, state in zip(symbols, states, strict=True):
        named = slots == symbol
        after = tuple(  # type: ignore[assignment]
            torch.where(named, new.to(old.dtype), old) for new, old in zip(state, after, strict=True)
        )
    return after
