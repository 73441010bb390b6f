"""The law of one account: its state, and the sequential execution of a day's orders (kind, symbol, fraction).

The orders of a day share the cash, the trade count and, for equal symbols, the position; all else is independent. So
the kernel works on scalars of one order at a time, not on the K symbols, and scatters the positions at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from tensordict import TensorClass
from torch import Tensor

from vecenv.kernels.materialise import materialise
from vecenv.kernels.money import Money
from vecenv.kernels.orders import fill_prices
from vecenv.tasks.tiers.reward_presets import ORDER_COUNTS


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


Tensors = Mapping[str, Tensor]

FRACTION_STEPS = 10_000
"""Fractions of orders are whole hundredths of a percent, so that shares and budgets are exact."""

MAX_SHARES = 2**24 - 1
"""Largest position of one symbol: float32 holds it exactly."""

LOSING_STREAK = 3
"""Losing sells in a row after which a purchase is a mistake."""

OVERBOUGHT, OVERSOLD = 70.0, 30.0
"""Relative strength above which buying, and below which selling, is a mistake (Wilder, 1978)."""

CAPACITY_STEPS = 4
"""Capacity steps: quarters."""

CAPACITY_DRAWDOWNS = (0.03, 0.05, 0.08)
"""Drawdown thresholds, each of which reduces the capacity of a purchase by a quarter."""


class Kind(IntEnum):
    """Order kind; an invalid order counts as a hold and is flagged."""

    HOLD = 0
    BUY = 1
    SELL = 2
    INVALID = 3


class OrderList(NamedTuple):
    """Orders of one day, decoded. Flags are 1 or 0 in float32: compiled booleans are stored one by one on a CPU.

    ``symbols`` are 0 for holds; ``steps`` are whole hundredths of a percent; ``valid``, shape (), is whether the action
    obeyed the format. Shape of the others: (M,).
    """

    buys: Tensor
    sells: Tensor
    symbols: Tensor
    steps: Tensor
    valid: Tensor


class Positions(NamedTuple):
    """Cash (whole ticks, float64) and losing sells in a row, shape (), shares and average prices, shape (K,)."""

    cash: Tensor
    holdings: Tensor
    average_price: Tensor
    losing_sells: Tensor


class Quotes(NamedTuple):
    """The orders' symbols today: closes in ticks, RSI, 1 where tradable or else 0. Shape of each: (M,), float32."""

    close: Tensor
    rsi: Tensor
    tradable: Tensor


class Limits(NamedTuple):
    """Costs and limits of the tier on the day. Shape of each: ().

    The commission is a rate on the traded value, slippage, a float32 number, one on the price. ``closed`` is the gate's
    refusal of purchases, ``capacity`` the quarters of a purchase that the drawdown allows. Values are in ticks.
    """

    commission: Tensor
    slippage: Tensor
    closed: Tensor
    capacity: Tensor
    max_trades: Tensor
    position_value: Tensor
    exposure_value: Tensor


class Execution(NamedTuple):
    """Result of the orders: money in ticks, float64, the exposure at the closes.

    ``fills`` are shares bought, negative where sold, by order, shape (M,), float32; ``traded`` is the value bought plus
    that sold, at trade prices; ``costs`` are commissions and slippage; ``counts`` are occurrences by reward component.
    """

    positions: Positions
    fills: Tensor
    num_trades: Tensor
    traded: Tensor
    costs: Tensor
    exposure: Tensor
    counts: dict[str, Tensor]


def decode_orders(action: Tensor, num_symbols: int, owned: Tensor | None = None) -> OrderList:
    """Check kind, symbol and fraction of orders, (M, 3), and round the last; without ``owned`` all symbols are."""
    kind, symbol, fraction = action.unbind(-1)
    # Products with zero stay zero unless something is NaN or infinite.
    finite = (action * 0.0).sum(-1) == 0.0
    named = (symbol >= 0) & (symbol < num_symbols) & (symbol == torch.floor(symbol))
    index = torch.where(named, symbol, 0.0).to(torch.int64)
    known = torch.where(finite & named, 1.0, 0.0)
    if owned is not None:
        known = known * owned[index]
    buys, sells = known * _flag(kind == Kind.BUY), known * _flag(kind == Kind.SELL)
    obeyed = buys + sells + _flag(finite & (kind == Kind.HOLD))
    valid = _flag(obeyed.sum(-1) == len(kind))
    buys, sells = valid * buys, valid * sells
    steps = torch.round(torch.where(finite, fraction, 0.0).clamp(0.0, 1.0) * FRACTION_STEPS)
    return OrderList(buys, sells, torch.where(buys + sells > 0, index, 0), steps, valid)


def affordable(money: Money, budget: Tensor, price: Tensor, commission: Tensor) -> Tensor:
    """Return the shares that a budget affords, commission included. Shape: (), float64."""
    shares = torch.floor(budget / (price * (1.0 + commission)))
    value = shares * price
    # Budget and value are whole, so only a rounding of the quotient can cost the last share.
    return shares - torch.where(value + money.commission(value, commission) > budget, 1.0, 0.0)


def capacity(value: Tensor, peak: Tensor) -> Tensor:
    """Return the quarters of a purchase allowed at a drawdown from the peak. Shape: (), float64."""
    drawdown = 1.0 - value / peak
    reached = torch.stack([(drawdown >= loss).double() for loss in CAPACITY_DRAWDOWNS])
    return CAPACITY_STEPS - reached.sum(0)


def execute_orders(
    money: Money, orders: OrderList, before: Positions, exposure: Tensor, quotes: Quotes, limits: Limits
) -> Execution:
    """Execute the orders of one day sequentially, by rules 2 to 5 of ``tasks/tiers/rules.md``.

    ``exposure`` is the value of all positions before them at the closes, in ticks. Shape: (), float64.
    """
    single = before.average_price.dtype
    zero = torch.zeros_like(before.losing_sells)
    cash, streak, trades = before.cash, before.losing_sells, zero
    traded = costs = torch.zeros_like(cash)
    counts = dict.fromkeys(ORDER_COUNTS, zero)
    fills: list[Tensor] = []
    served: list[tuple[Tensor, Tensor]] = []
    for number in range(orders.symbols.shape[-1]):
        buys, sells = orders.buys[number], orders.sells[number]
        close, rsi, tradable = (quote[number] for quote in quotes)
        prices = fill_prices(money, close, limits.slippage, limits.commission)
        steps, fill = orders.steps[number].double(), close.double()
        price = torch.where(buys > 0, prices.buy, prices.sell).double()
        open_buys = torch.where(limits.closed, 0.0, buys)
        held, average = _latest(before, orders.symbols, served)

        sold = torch.where(sells * tradable > 0, torch.floor(steps * held / FRACTION_STEPS), 0.0)
        late = trades >= limits.max_trades
        budget = torch.floor(steps * limits.capacity * cash / (FRACTION_STEPS * CAPACITY_STEPS))
        wanted = affordable(money, budget, price, limits.commission)
        wanted = torch.where((open_buys * tradable > 0) & ~late, wanted, 0.0)
        room = _smaller(limits.position_value - held * fill, limits.exposure_value - exposure)
        allowed = torch.where(room > 0, torch.floor(room / fill), 0.0)
        bought = _smaller(_smaller(wanted, allowed), MAX_SHARES - held)

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
            "overbought_buy": buying & (rsi > OVERBOUGHT),
            "oversold_sell": selling & (rsi < OVERSOLD),
            "position_limit": bought < wanted,
            "trade_limit": (open_buys > 0) & late,
            "sell_unheld": (sells > 0) & (held == 0),
            "losing_streak_buy": revenge,
        }
        counts |= {name: counts[name] + _flag(flag) for name, flag in happened.items()}
        trades = trades + _flag(amount > 0)
        streak = torch.where(losing, streak + 1.0, torch.where(selling | revenge, 0.0, streak))

        now = held + change
        paid = average.double() * held + price * bought
        average = torch.where(buying, (paid / now).to(single), average)
        served.append((now, torch.where(now > 0, average, 0.0)))
        fills.append(change.to(torch.float32))
    counts["regime_violation"] = torch.where(limits.closed, orders.buys.sum(-1), 0.0)
    holdings, average_price = _put_back(before, orders.symbols, served)
    # Few tensors pass the fusion barrier: each is copied.
    money_sums = torch.stack([cash, traded, costs, exposure])
    numbers = torch.stack([streak, trades, *(counts[name] for name in ORDER_COUNTS), *fills])
    money_sums, numbers, holdings, average_price = materialise([money_sums, numbers, holdings, average_price])
    cash, traded, costs, exposure = money_sums.unbind(0)
    streak, trades, *happenings = numbers[: 2 + len(ORDER_COUNTS)].unbind(0)
    return Execution(
        positions=Positions(cash, holdings, average_price, streak),
        fills=numbers[2 + len(ORDER_COUNTS) :],
        num_trades=trades,
        traded=traded,
        costs=costs,
        exposure=exposure,
        counts=dict(zip(ORDER_COUNTS, happenings, strict=True)),
    )


def _latest(before: Positions, symbols: Tensor, served: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return shares and average price of the next order's symbol after the executed orders. Shape of both: ()."""
    symbol = symbols[len(served)]
    held, average = before.holdings[symbol].double(), before.average_price[symbol]
    for number, (shares, price) in enumerate(served):
        same = symbols[number] == symbol
        held, average = torch.where(same, shares, held), torch.where(same, price, average)
    return held, average


def _put_back(before: Positions, symbols: Tensor, served: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return shares and average prices of all symbols. Shape of both: (K,)."""
    # All orders of one symbol write its final position, so the writes need no order.
    left: list[tuple[Tensor, Tensor]] = []
    for number, state in enumerate(served):
        held, average = state
        for later in range(number + 1, len(served)):
            same = symbols[later] == symbols[number]
            held = torch.where(same, served[later][0], held)
            average = torch.where(same, served[later][1], average)
        left.append((held, average))
    shares = torch.stack([held for held, _ in left]).to(before.holdings.dtype)
    prices = torch.stack([average for _, average in left])
    return before.holdings.scatter(0, symbols, shares), before.average_price.scatter(0, symbols, prices)


def _flag(condition: Tensor) -> Tensor:
    return torch.where(condition, 1.0, 0.0)


def _smaller(first: Tensor, second: Tensor) -> Tensor:
    """Return the smaller of two numbers without NaN handling, at half the cost of `torch.minimum`."""
    return torch.where(first < second, first, second)
