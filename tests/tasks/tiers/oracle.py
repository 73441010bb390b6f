"""The trading tiers in plain Python: one account, one order after another.

Written from ``rules.md`` and ``learner.md`` of ``tasks/tiers`` alone, to be read beside them; the vectorised kernels
are held to it.
Money is in ticks and shares are whole: Python integers. Python's floats are the page's double precision;
NumPy's scalars stand where the page rounds to float32 or to ``dtype``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from vecenv.tasks.tiers.config import TierConfig

HOLD, BUY, SELL, INVALID = range(4)
MOST_SHARES = 2**24 - 1

SIGNAL = {
    "profit": 10.0,
    "loss_hold": -0.10,
    "missed_opportunity": -0.15,
    "patience": 0.01,
    "regime_violation": -0.30,
    "overbought_buy": -0.15,
    "oversold_sell": -0.15,
    "position_limit": -0.10,
    "trade_limit": -0.10,
    "sell_unheld": -0.05,
    "losing_streak_buy": -0.10,
    "long_holding": -0.02,
    "within_limits": 0.02,
    "invalid": -1.0,
    "valid": 0.0,
    "counterfactual": 0.0,
    "episode": 0.0,
    "grade_change": 0.0,
}
MISTAKES = (
    "regime_violation",
    "overbought_buy",
    "oversold_sell",
    "position_limit",
    "trade_limit",
    "loss_hold",
    "missed_opportunity",
)
NO_WEIGHTS = dict.fromkeys(SIGNAL, 0.0)
PRESETS = {
    "signal": SIGNAL,
    "counterfactual": NO_WEIGHTS | {"counterfactual": 1.0},
    "multi_component": NO_WEIGHTS
    | dict.fromkeys(("profit", "valid", "within_limits"), 1.0)
    | dict.fromkeys((*MISTAKES, "sell_unheld"), -1.0),
    "aligned": {name: 0.3 * weight for name, weight in SIGNAL.items()} | {"episode": 0.7},
    "grade_potential": NO_WEIGHTS | {"grade_change": 1.0},
}


@dataclass
class Market:
    """One path of a tape, indexed ``[day][symbol]``."""

    symbols: Sequence[str]
    close: list[list[int]]  # ticks, carried over gaps, 0 before a symbol is listed
    tradable: list[list[bool]]
    rsi: list[list[float]]  # RSI(14)
    tick_size: float  # currency per tick
    features: list[list[list[float]]]  # [day][symbol][12], daily_change to range_state
    context: list[list[float]] = field(default_factory=list)  # [day][series of the whole market]


class TierAccount:
    """One account of one tier on one path, with the fields of the kernels' state under their names.

    Money is in ticks, at the close of ``day``; positions are per symbol of the tape, 0 without shares. ``fills``,
    ``costs``, ``traded`` and ``components`` are of the last day, ``mistakes``, totals and sums since the start;
    ``return_sums`` are of V′ / V − 1 and of its square; ``gate_days`` the closed days of a tier with a gate, and those
    without a BUY of more than nothing.
    """

    def __init__(self, rules: TierConfig, market: Market, start_day: int, grade: float = 0.0) -> None:
        """Open the account in cash at the close of ``start_day``, where its grade is ``grade``."""
        self.rules, self.market = rules, market
        self.weights = PRESETS[rules.reward] | rules.reward_weights
        self.owned = [symbol in rules.symbols for symbol in market.symbols]
        self.symbols = range(len(market.symbols))
        self.in_dtype = np.dtype(rules.dtype).type
        self.start_day = self.day = start_day
        self.terminated = self.truncated = False
        self.cash = self.portfolio_value = self.peak_value = self.start_value = math.floor(
            rules.initial_cash / market.tick_size
        )
        self.holdings = [0 for _ in self.symbols]
        self.average_price = [0.0 for _ in self.symbols]
        self.days_held = [0 for _ in self.symbols]
        self.losing_sells = 0
        self.fills: list[int] = []
        self.costs = self.traded = 0
        self.components = dict.fromkeys(SIGNAL, 0.0)
        self.mistakes = dict.fromkeys(MISTAKES, 0)
        self.num_trades = self.traded_total = self.invalid_days = 0
        self.gate_days, self.return_sums = [0, 0], [0.0, 0.0]
        self.grade = grade
        self.max_drawdown = self.exposure_sum = 0.0

    def step(self, action: Sequence[Sequence[float]], grade: float = 0.0) -> float:
        """Trade M orders of (kind, symbol, fraction) on ``day``, let it pass, and return the reward."""
        if self.terminated or self.truncated:
            raise ValueError(f"the episode of {self.rules.days} days is over")
        self.components = dict.fromkeys(SIGNAL, 0.0)
        self.costs = self.traded = self.trades_today = 0
        self.prices = self.market.close[self.day]
        orders = self._valid_orders(action)
        valid = orders is not None
        orders = orders or [(HOLD, 0, 0)] * len(action)
        self.fills = [self._execute(*order) for order in orders]
        self._add_components(valid, orders)
        exposure = self._worth(self.prices) / self.portfolio_value
        closed, value_before = self.gate_is_closed(), self.portfolio_value
        self._pass_day()
        self.components["episode"] = grade if self.truncated and self.weights["episode"] else 0.0
        self.components["grade_change"] = grade - self.grade if self.weights["grade_change"] else 0.0
        self.grade = grade

        for name in MISTAKES:
            self.mistakes[name] += int(self.components[name])
        self.num_trades += self.trades_today
        self.traded_total += self.traded
        self.invalid_days += not valid
        self.gate_days[0] += closed
        self.gate_days[1] += closed and not any(kind == BUY and q > 0 for kind, _, q in orders)
        self.exposure_sum += exposure
        self.max_drawdown = max(self.max_drawdown, self.drawdown())
        self.return_sums[0] += self.portfolio_value / value_before - 1
        self.return_sums[1] += (self.portfolio_value / value_before - 1) ** 2
        return sum(self.weights[name] * amount for name, amount in self.components.items())

    def observation(self) -> list[float]:
        """Return what the agent sees at the close of ``day``. Length: 16 + context + 14 K + 3 K."""
        rules, market, t = self.rules, self.market, self.day
        share_lower, mean_change = _breadth(market, t)
        observed = [self.day - self.start_day, rules.days, self.start_value * market.tick_size * 2**-20]
        observed += [self.portfolio_value / self.start_value - 1, self.cash / self.portfolio_value]
        observed += [self._worth(market.close[t]) / self.portfolio_value, self.drawdown(), self.losing_sells]
        observed += [self.gate_is_closed(), share_lower, mean_change]
        observed += [rules.max_position, rules.max_exposure, rules.max_trades / 100, rules.commission, rules.slippage]
        observed += market.context[t] if market.context else []
        for k in self.symbols:
            shown = [market.close[t][k] * market.tick_size * 2**-10, market.tradable[t][k], *market.features[t][k]]
            observed += shown if self.owned[k] else [0.0] * len(shown)
        positions = list(zip(self.holdings, market.close[t], self.average_price, strict=True))
        observed += [held * p / self.portfolio_value for held, p, _ in positions]
        observed += [p / average - 1 if held > 0 else 0.0 for held, p, average in positions]
        observed += self.days_held
        return np.array(observed, np.float32).tolist()

    def drawdown(self) -> float:
        """Return 1 − V / peak."""
        return 1 - self.portfolio_value / self.peak_value

    def gate_is_closed(self) -> bool:
        """Whether the tier has a gate and it closes ``day``."""
        return self.rules.gate and gate_closed(self.market, self.day)

    def buy_price(self, k: int) -> int:
        """Return b of ``day``."""
        return int(np.float32(self.market.close[self.day][k] + self._slip(k)))

    def sell_price(self, k: int) -> int:
        """Return s of ``day``."""
        return max(int(np.float32(self.market.close[self.day][k] - self._slip(k))), 0)

    def commission(self, value: int) -> int:
        """Return the commission on ``value``, both in ticks."""
        return min(math.ceil(value * self.rules.commission), value)

    def _valid_orders(self, action: Sequence[Sequence[float]]) -> list[tuple[int, int, int]] | None:  # rule 1
        """Return the orders as (kind, symbol, q), or None if the action is invalid."""
        orders = []
        for kind, symbol, fraction in action:
            if not all(math.isfinite(entry) for entry in (kind, symbol, fraction)) or kind not in (HOLD, BUY, SELL):
                return None
            if kind == HOLD:
                orders.append((HOLD, 0, 0))
                continue
            if symbol not in self.symbols or not self.owned[int(symbol)]:
                return None
            clamped = min(max(fraction, 0.0), 1.0)
            q = round(float(np.float32(clamped) * np.float32(10_000)))  # Python rounds half to even
            orders.append((int(kind), int(symbol), q))
        return orders

    def _slip(self, k: int) -> int:  # rule 2
        rate = np.float32(self.rules.slippage)
        if float(rate) > self.rules.slippage:
            rate = np.nextafter(rate, np.float32(0))
        return math.ceil(np.float32(self.market.close[self.day][k]) * rate)

    def capacity(self) -> int:  # rule 3
        """Return c, quarters."""
        d = self.drawdown()
        return 4 if d < 0.03 else 3 if d < 0.05 else 2 if d < 0.08 else 1

    def _execute(self, kind: int, k: int, q: int) -> int:  # rule 5
        """Serve one order and return the signed shares that it moved."""
        shares = self._buy(k, q) if kind == BUY else -self._sell(k, q) if kind == SELL else 0
        if shares != 0:
            self.trades_today += 1
            change = self.market.close[self.day + 1][k] / self.prices[k] - 1
            self.components["counterfactual"] += change if shares > 0 else -change
        return shares

    def _sell(self, k: int, q: int) -> int:
        if self.holdings[k] == 0:
            self.components["sell_unheld"] += 1
            return 0
        if not self.market.tradable[self.day][k]:
            return 0
        n = q * self.holdings[k] // 10_000
        if n == 0:
            return 0
        s = self.sell_price(k)
        commission = self.commission(n * s)
        self.cash += n * s - commission
        self._book(n * s, n * (self.prices[k] - s) + commission)
        self.components["oversold_sell"] += self.market.rsi[self.day][k] < 30
        losing = self.in_dtype(s) < self.average_price[k]
        self.losing_sells = self.losing_sells + 1 if losing else 0
        self.holdings[k] -= n
        if self.holdings[k] == 0:
            self.average_price[k] = 0.0
        return n

    def _buy(self, k: int, q: int) -> int:
        if self.gate_is_closed():
            self.components["regime_violation"] += 1
            return 0
        if self.trades_today >= self.rules.max_trades:
            self.components["trade_limit"] += 1
            return 0
        if not self.market.tradable[self.day][k]:
            return 0
        b = self.buy_price(k)
        asked = self.shares_asked(q, b, self.cash)
        n = min(asked, self._shares_allowed(k))
        self.components["position_limit"] += n < asked
        if n == 0:
            return 0
        commission = self.commission(n * b)
        self.cash -= n * b + commission
        self._book(n * b, n * (b - self.prices[k]) + commission)
        self.components["overbought_buy"] += self.market.rsi[self.day][k] > 70
        if self.losing_sells >= 3:
            self.components["losing_streak_buy"] += 1
            self.losing_sells = 0
        paid = self.average_price[k] * self.holdings[k] + b * n
        self.average_price[k] = float(self.in_dtype(paid / (self.holdings[k] + n)))
        self.holdings[k] += n
        return n

    def shares_asked(self, q: int, b: int, cash: int) -> int:
        """Return the shares that a BUY of ``q`` at ``b`` asks for."""
        budget = q * self.capacity() * cash // 40_000
        n = math.floor(budget / (b * (1 + self.rules.commission)))
        return n - 1 if n * b + self.commission(n * b) > budget else n

    def _shares_allowed(self, k: int) -> int:
        p = self.prices[k]
        position_room, total_room = self._rooms(k)
        return min(max(position_room, 0) // p, max(total_room, 0) // p, MOST_SHARES - self.holdings[k])

    def _rooms(self, k: int) -> tuple[int, int]:
        """Return what the value of position ``k`` and of all positions may still grow by, in ticks."""
        position_limit = math.floor(self.rules.max_position * self.portfolio_value)
        return position_limit - self.holdings[k] * self.prices[k], self._exposure_limit() - self._worth(self.prices)

    def _exposure_limit(self) -> int:
        return math.floor(self.rules.max_exposure * self.portfolio_value)

    def _book(self, value: int, costs: int) -> None:
        self.traded += value
        self.costs += costs

    def _worth(self, prices: Sequence[int]) -> int:
        return sum(held * price for held, price in zip(self.holdings, prices, strict=True))

    def _add_components(self, valid: bool, orders: Sequence[tuple[int, int, int]]) -> None:
        """Add the components that depend on the day's orders as a whole and on the closes of the day."""
        idle = not any(self.fills)
        loss_hold = idle and any(self._is_at_a_loss(k) for k in self.symbols)
        missed = idle and not loss_hold and any(self._is_opportunity(k) for k in self.symbols)
        all_hold = valid and all(kind == HOLD for kind, _, _ in orders)
        self.components["loss_hold"] = float(loss_hold)
        self.components["missed_opportunity"] = float(missed)
        self.components["patience"] = float(all_hold and not loss_hold and not missed)
        self.components["within_limits"] = float(
            any(self.holdings) and self._worth(self.prices) <= self._exposure_limit()
        )
        self.components["invalid"], self.components["valid"] = float(not valid), float(valid)

    def _is_at_a_loss(self, k: int) -> bool:
        p, threshold, average = map(self.in_dtype, (self.prices[k], 0.95, self.average_price[k]))
        return self.holdings[k] > 0 and bool(p < threshold * average)

    def _is_opportunity(self, k: int) -> bool:
        rsi = self.market.rsi[self.day][k]
        return (rsi < 25 and self._could_be_bought(k)) or (rsi > 75 and self.holdings[k] > 0)

    def _could_be_bought(self, k: int) -> bool:
        if not self.owned[k] or not self.market.tradable[self.day][k] or self.gate_is_closed():
            return False
        single, price = np.float32, np.float32(self.prices[k])
        unit_cost = single(self.buy_price(k)) * (single(1) + single(self.rules.commission))
        affordable = unit_cost <= single(self.cash * self.capacity() / 4)
        position_limit = math.floor(self.rules.max_position * self.portfolio_value)
        fits = single(self.holdings[k] + 1) * price <= single(position_limit)
        return bool(affordable and fits and single(self._worth(self.prices)) + price <= single(self._exposure_limit()))

    def _pass_day(self) -> None:  # rule 6
        self.day += 1
        before, self.portfolio_value = self.portfolio_value, self.cash + self._worth(self.market.close[self.day])
        self.peak_value = max(self.peak_value, self.portfolio_value)
        self.days_held = [days + 1 if held > 0 else 0 for days, held in zip(self.days_held, self.holdings, strict=True)]
        self.terminated = self.portfolio_value == 0
        self.truncated = self.day - self.start_day >= self.rules.days
        self.components["profit"] = (self.portfolio_value - before) / before
        self.components["long_holding"] = float(sum(days > 5 for days in self.days_held))


def gate_closed(market: Market, day: int) -> bool:  # rule 4
    """Whether the breadth of the market closes ``day`` for a tier with a gate."""
    share_lower, mean_change = _breadth(market, day)
    return share_lower > 0.7 or mean_change < -0.005


def _breadth(market: Market, day: int) -> tuple[float, float]:
    """Return the share of symbols that closed lower and their mean change; zeros where none was listed before."""
    if day == 0:
        return 0.0, 0.0
    could = [any(tradable) for tradable in zip(*market.tradable[: day + 1], strict=True)]
    here = [now or not before for now, before in zip(market.tradable[day], could, strict=True)]
    prices = zip(market.close[day], market.close[day - 1], here, strict=True)
    pairs = [(now, before) for now, before, bar in prices if before > 0 and bar]
    if not pairs:
        return 0.0, 0.0
    share_lower = sum(now < before for now, before in pairs) / len(pairs)
    return share_lower, sum(now / before - 1 for now, before in pairs) / len(pairs)
