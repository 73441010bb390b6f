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
        close: function of symbols to their closes in ticks. Shapes: (M,) -> (M,), float32.
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
    close, rsi = quotes.close(orders.symbols), quotes.rsi(orders.symbols)
    tradable = quotes.tradable(orders.symbols) > 0
    prices = fill_prices(money, close, limits.slippage, limits.commission)
    trade_prices = torch.where(orders.buys, prices.buy, prices.sell)
    open_buys = orders.buys & ~limits.closed
    can_buy, can_sell = open_buys & tradable, orders.sells & tradable

    cash, streak, trades = before.cash, before.losing_sells, zero
    traded = costs = torch.zeros_like(cash)
    counts = dict.fromkeys(ORDER_COUNTS, zero)
    fills: list[Tensor] = []
    served: list[tuple[Tensor, Tensor]] = []
    for number in range(orders.symbols.shape[-1]):
        steps, price, fill = orders.steps[number], trade_prices[number].double(), close[number].double()
        held, average = _latest(before, orders.symbols, served)

        sold = torch.where(can_sell[number], torch.floor(steps * held / FRACTION_STEPS), 0.0)
        late = trades >= limits.max_trades
        budget = torch.floor(steps * limits.capacity * cash / (FRACTION_STEPS * CAPACITY_STEPS))
        wanted = affordable(money, budget, price.clamp(min=1.0), limits.commission)
        wanted = torch.where(can_buy[number] & ~late, wanted, 0.0)
        room = torch.minimum(limits.position_value - held * fill, limits.exposure_value - exposure)
        allowed = torch.floor(room.clamp(min=0.0) / fill.clamp(min=1.0))
        bought = torch.minimum(torch.minimum(wanted, allowed), MAX_SHARES - held)

        change, amount = bought - sold, bought + sold
        value = amount * price
        fee = money.commission(value, limits.commission)
        cash = cash - change * price - fee
        exposure = exposure + change * fill
        traded = traded + value
        costs = costs + fee + amount * (price - fill).abs()
        buying, selling = bought > 0, sold > 0
        losing = selling & (price.to(single) < average)
        revenge = buying & (streak >= LOSING_STREAK)
        happened = {
            "regime_violation": orders.buys[number] & limits.closed,
            "overbought_buy": buying & (rsi[number] > OVERBOUGHT),
            "oversold_sell": selling & (rsi[number] < OVERSOLD),
            "position_limit": bought < wanted,
            "trade_limit": open_buys[number] & late,
            "sell_unheld": orders.sells[number] & (held == 0),
            "losing_streak_buy": revenge,
        }
        counts = {name: counts[name] + torch.where(flag, 1.0, 0.0) for name, flag in happened.items()}
        trades = trades + torch.where(amount > 0, 1.0, 0.0)
        streak = torch.where(losing, streak + 1.0, torch.where(selling | revenge, 0.0, streak))

        now = held + change
        paid = average * held.to(single) + price.to(single) * bought.to(single)
        average = torch.where(buying, paid / now.clamp(min=1.0).to(single), average)
        served.append((now, torch.where(now > 0, average, 0.0)))
        fills.append(change.to(torch.float32))
    holdings, average_price, days_held = _put_back(before, orders.symbols, served)
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


def _latest(before: Positions, symbols: Tensor, served: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return shares and average price of the next order's symbol after the orders served. Shape of both: ()."""
    symbol = symbols[len(served)]
    held, average = before.holdings[symbol].double(), before.average_price[symbol]
    for number, (shares, price) in enumerate(served):
        same = symbols[number] == symbol
        held, average = torch.where(same, shares, held), torch.where(same, price, average)
    return held, average


def _put_back(
    before: Positions, symbols: Tensor, served: Sequence[tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return shares, average prices and days of all symbols. Shape of each: (K,)."""
    # All of the shares' type: comparisons and selections of one width are what a CPU does sixteen at a time.
    holdings, average_price, days_held = before.holdings, before.average_price, before.days_held
    kind = holdings.dtype
    slots = torch.arange(len(holdings), device=holdings.device, dtype=kind)
    for number, (shares, price) in enumerate(served):
        symbol = symbols[number].to(kind)
        named = slots == symbol
        holdings = torch.where(named, shares.to(kind), holdings)
        average_price = torch.where(named, price, average_price)
        days_held = torch.where(slots == torch.where(shares > 0, -1.0, symbol), 0.0, days_held)
    return holdings, average_price, days_held
