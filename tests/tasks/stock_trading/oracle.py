"""The stock-trading account in plain Python: one account, one symbol at a time, one rule after another.

Written from ``rules.md`` and ``learner.md`` of ``tasks/stock_trading`` alone, to be read beside them; the vectorised
kernels are held to it.
Money is in ticks: Python integers with whole shares, so nothing rounds by accident, floats otherwise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from vecenv.tasks.stock_trading.config import StockTradingConfig

RATIO_STEPS = 2**16
WHOLE = 2**44


@dataclass(frozen=True)
class Rules(StockTradingConfig):
    """The page's settings under its names; ``gate`` says whether the market's gate series is used."""

    gate: bool = False  # type: ignore[assignment]


@dataclass
class Market:
    """One path of a tape, indexed ``[day][symbol]``."""

    tick_size: float  # currency per tick
    close: Sequence[Sequence[int]]  # ticks, carried over gaps, 0 before a symbol is listed
    open: Sequence[Sequence[int]]  # ticks, carried likewise
    tradable: Sequence[Sequence[bool]]  # has a bar on the day and its own warm-up is over
    gate_series: Sequence[float]  # turbulence or VIX per day
    features: Sequence[Sequence[Sequence[float]]]  # [day][symbol][feature]
    periods_per_year: float = 252


class Account:
    """One account on one path.

    Attributes:
        cash: ticks.
        holdings: shares per symbol, negative when short.
        average_price: average purchase price of each long position in ticks, 0 without one.
        value: portfolio value at the close of ``day``, in ticks.
        traded, costs: of the last step, in ticks.
        invalid_actions: NaN and infinite entries since the start.
        terminated, truncated: whether the account is ruined, whether the length or the data are used up.
    """

    def __init__(self, rules: Rules, market: Market, start_day: int, length: int) -> None:
        """Open the account at the close of ``start_day`` for at most ``length`` steps."""
        self.rules, self.market = rules, market
        self.start_day = self.day = start_day
        self.last_day = min(start_day + length, len(market.close) - 1)
        self.symbols = range(len(market.close[0]))
        self.whole = rules.whole_shares
        self.commission_rate = 0.0 if isinstance(rules.commission, Sequence) else rules.commission
        self.cash: float = math.floor(rules.initial_cash / market.tick_size)
        self.holdings = [_of(rules.initial_holdings, k) for k in self.symbols]
        self.average_price = [float(market.close[start_day][k]) for k in self.symbols]
        self._forget_closed_longs()
        self.start_value = self.value = self.cash + self._total(self.holdings, market.close[start_day])
        self.traded = self.costs = 0.0
        self.invalid_actions = 0
        self.terminated, self.truncated = False, self.day >= self.last_day
        self.return_mean = self.return_square = 0.0
        self.benchmark_parts = [0 for _ in self.symbols]

    def step(self, action: Sequence[float]) -> float:
        """Trade on ``day``, let it pass, and return the reward."""
        if self.terminated or self.truncated:
            raise ValueError("the episode is over")
        rules, market, t = self.rules, self.market, self.day
        at_close = rules.fill == "close"
        self.prices = market.close[t] if at_close else market.open[t + 1]  # rule 1
        self.can_trade = market.tradable[t if at_close else t + 1]
        self.invalid_actions += sum(not math.isfinite(a) for a in action)  # rule 2
        self.traded = self.costs = 0
        self._set_trade_prices()
        self._trade(self._orders(action))
        self._forget_closed_longs()
        self.day += 1  # rule 10
        if rules.shorting:
            borrow_fee = self._up(self._shorts(market.close[self.day]) * rules.borrow_rate / market.periods_per_year)
            self.cash -= borrow_fee
            self.costs += borrow_fee
        before, self.value = self.value, self.cash + self._total(self.holdings, market.close[self.day])
        self.terminated = self.value <= max(rules.ruin_fraction * self.start_value, 0)
        self.truncated = self.day >= self.last_day
        return self._reward(before, self.value)

    def observation(self) -> list[float]:
        """Return ``[b, p, h, f]`` of ``day``, money in currency. Length: K (I + 2) + 1.

        The market's features are columns of the data.
        """
        rules, tick_size, start = self.rules, self.market.tick_size, max(self.start_value, 1)
        closes, features = self.market.close[self.day], self.market.features[self.day]
        if rules.cash_scale is None:
            observed = [self.cash / start]
        else:
            observed = [self.cash * tick_size * rules.cash_scale]
        if rules.price_scale is None:
            observed += [self._relative(closes[k], k) for k in self.symbols]
        else:
            observed += [price * tick_size * rules.price_scale for price in closes]
        if rules.holdings_scale is None:
            observed += [len(closes) * self.holdings[k] * closes[k] / start for k in self.symbols]
        else:
            observed += [shares * rules.holdings_scale for shares in self.holdings]
        places = range(len(features[0]))
        factors = [self._own_factor(place) if rules.feature_scale is None else rules.feature_scale for place in places]
        return observed + [symbol[place] * factors[place] for symbol in features for place in places]

    def _relative(self, price: int, symbol: int) -> float:
        first = next((row[symbol] for row in self.market.close if row[symbol] > 0), 1)
        return 1 + math.log(price / first) if price > 0 else 0.0

    def _own_factor(self, place: int) -> float:
        """Return one over the root mean square of a column over the days so far, and the symbols that show it."""
        seen = [
            self.market.features[day][k][place] ** 2
            for day in range(self.day + 1)
            for k in self.symbols
            if any(row[k] for row in self.market.tradable[: day + 1])
        ]
        return math.sqrt(len(seen) / sum(seen)) if sum(seen) > 0 else 1.0

    def _orders(self, action: Sequence[float]) -> list[float]:
        rules, closes = self.rules, self.market.close[self.day]
        maintenance = (1 + rules.maintenance_margin) * self._shorts(closes)
        margin_call = rules.shorting and self.cash < maintenance
        gated = rules.gate and self.market.gate_series[self.day] >= rules.gate_threshold  # rule 4
        entries = self._entries(action)
        if rules.action == "shares":
            wanted = self._wanted_shares(entries)
        elif len(entries) == len(closes):
            wanted = self._wanted_weights(self._chosen(entries), self.value, entries)
        else:
            stuck = self._total([n * (not can) for n, can in zip(self.holdings, self.can_trade, strict=True)], closes)
            weights = self._tilted([entry or 0.0 for entry in entries])
            wanted = self._wanted_weights(weights, self.value - stuck, [0.0] * len(closes))
        for k in self.symbols:
            stop_price = self._product(1 - rules.stop_loss, self.average_price[k])
            stopped = rules.stop_loss > 0 and self.holdings[k] > 0 and closes[k] <= stop_price  # rule 5
            if margin_call or gated or stopped:
                wanted[k] = -self.holdings[k]
        return [order if can else 0 for order, can in zip(wanted, self.can_trade, strict=True)]  # rule 6

    def _entries(self, action: Sequence[float]) -> list[float | None]:  # rule 2
        return [self._single(max(-1.0, min(1.0, a))) if math.isfinite(a) else None for a in action]

    def _wanted_shares(self, entries: Sequence[float | None]) -> list[float]:  # rule 3, action="shares"
        dead_zone = self._single(self.rules.dead_zone)
        moved = [0.0 if entry is None or abs(entry) <= dead_zone else entry for entry in entries]
        wanted = [self._product(entry, self.rules.hmax) for entry in moved]
        return [math.trunc(shares) for shares in wanted] if self.whole else wanted

    def _chosen(self, entries: Sequence[float | None]) -> list[float]:  # rule 3, action="weights"
        weights = [Fraction(max(entry or 0.0, 0.0)) for entry in entries]
        if self.whole:
            weights = [Fraction(math.floor(weight * RATIO_STEPS), RATIO_STEPS) for weight in weights]
        total = max(sum(weights), Fraction(1))
        shares = [weight / total for weight in weights]
        return [math.floor(share * RATIO_STEPS) / RATIO_STEPS if self.whole else float(share) for share in shares]

    def _tilted(self, entries: Sequence[float]) -> list[float]:  # rule 3, action="tilt"
        rules, largest = self.rules, max(entries)
        portfolio = self._benchmark()
        if not self.whole:
            portfolio = [*portfolio, sum(portfolio) * rules.benchmark_cash / (1 - rules.benchmark_cash)]
            parts = [b * math.exp(rules.tilt_gain * (a - largest)) for b, a in zip(portfolio, entries, strict=True)]
            return [part / sum(parts) if sum(parts) else 0.0 for part in parts[:-1]]
        scale = 2 ** min(16, 23 - len(portfolio).bit_length())
        most = max(portfolio)
        units = [math.floor(self._single(self._single(b / (most or 1)) * scale)) for b in portfolio]
        units.append(math.floor(sum(units) * (rules.benchmark_cash / (1 - rules.benchmark_cash))))
        exponents = [self._product(self._single(a - largest), rules.tilt_gain) for a in entries]
        tilted = [math.floor(self._product(u, self._exp(x))) for u, x in zip(units, exponents, strict=True)]
        return [math.floor(u * RATIO_STEPS / max(sum(tilted), 1)) / RATIO_STEPS for u in tilted[:-1]]

    def _benchmark(self) -> list[float]:
        if self.rules.benchmark == "equal_weight":
            return [float(can) for can in self.can_trade]
        start, now = self.market.close[self.start_day], self.market.close[self.day]
        tradable = self.market.tradable[self.start_day]
        return [
            self._single(now[k] / start[k]) if tradable[k] and self.can_trade[k] and start[k] > 0 else 0.0
            for k in self.symbols
        ]

    def _exp(self, exponent: float) -> float:
        """The exponential function by halving, seven terms of its series, and squaring, in single precision."""
        halvings = 0
        while 2 * self.rules.tilt_gain / 2**halvings > 0.5:
            halvings += 1
        x = self._single(exponent / 2**halvings)
        result = self._single(1 / math.factorial(7))
        for term in range(6, -1, -1):
            result = self._single(self._product(result, x) + self._single(1 / math.factorial(term)))
        for _ in range(halvings):
            result = self._product(result, result)
        return result

    def _wanted_weights(self, weights: Sequence[float], value: float, entries: Sequence[float | None]) -> list[float]:
        rules = self.rules
        dead_zone = min(rules.dead_zone, 0.25 / len(weights)) if rules.action == "tilt" else rules.dead_zone
        wanted: list[float] = [0] * len(weights)
        for k in self.symbols:
            if entries[k] is None or not self.can_trade[k]:
                continue
            commission = _of(rules.commission, k)
            if isinstance(rules.commission, Sequence):
                commission = self._rate(commission)
            price_with_costs = self.prices[k] * (1 + commission + self._rate(_of(rules.slippage, k)))
            target = self._down(self._down(weights[k] * value) / self._up(price_with_costs))
            order = target - self.holdings[k]
            if abs(order) * self.prices[k] > dead_zone * value:
                wanted[k] = order
        return wanted

    def _set_trade_prices(self) -> None:  # rule 7
        self.buy_prices: list[float] = []
        self.sell_prices: list[float] = []
        for k in self.symbols:
            rates = [_of(self.rules.slippage, k)]
            if isinstance(self.rules.commission, Sequence):
                rates.append(self.rules.commission[k])
            buy: float = self.prices[k]
            sell = buy
            for rate in rates:
                cost = self._up(self._product(self.prices[k], self._rate(rate)))
                buy, sell = self._price(buy + cost), self._price(sell - cost)
            self.buy_prices.append(buy)
            self.sell_prices.append(max(sell, 0))

    def _trade(self, orders: Sequence[float]) -> None:
        pairs = list(zip(orders, self.holdings, strict=True))
        sells = [min(max(-order, 0), max(held, 0)) for order, held in pairs]
        covers = [min(max(order, 0), max(-held, 0)) for order, held in pairs]
        buys = [max(order, 0) - cover for (order, _), cover in zip(pairs, covers, strict=True)]
        openings = [max(-order, 0) - sell for (order, _), sell in zip(pairs, sells, strict=True)]
        self._sell(sells)  # rule 8
        self._buy(self._pro_rata(covers, max(self.cash, 0)))  # covers and openings: shorting
        ration = self._pro_rata if self.rules.rationing == "pro_rata" else self._by_size
        self._buy(ration(buys, self._free_cash()))  # rule 9
        if self.rules.shorting:
            margin_rate = self.rules.initial_margin + self.commission_rate
            limit = self._down(self._free_cash() / margin_rate) if margin_rate > 0 else math.inf
            self._sell(self._scaled(openings, limit, self._total(openings, self.sell_prices)))

    def _free_cash(self) -> float:
        requirement = self._up((1 + self.rules.initial_margin) * self._shorts(self.prices))
        return max(self.cash - requirement, 0)

    def _pro_rata(self, wanted: Sequence[float], cash: float) -> Sequence[float]:
        cost = self._total(wanted, self.buy_prices)
        return self._scaled(wanted, cash, cost + self._commission(cost))

    def _scaled(self, wanted: Sequence[float], limit: float, need: float) -> Sequence[float]:
        if need <= limit:
            return wanted
        if not self.whole:
            return [shares * (limit / need) for shares in wanted]
        steps = RATIO_STEPS * limit // need
        return [shares * steps // RATIO_STEPS for shares in wanted]

    def _by_size(self, wanted: Sequence[float], cash: float) -> Sequence[float]:
        budget = cash / (1 + self.commission_rate)
        if self.whole:  # the largest V with V + commission(V) ≤ cash
            budget = next(v for v in range(int(budget) + 1, -1, -1) if v + self._commission(v) <= cash)
        bought: list[float] = [0] * len(wanted)
        for k in sorted(self.symbols, key=lambda k: (-wanted[k], k)):
            if wanted[k] > 0:
                bought[k] = min(wanted[k], self._down(budget / self.buy_prices[k]))
                budget = max(budget - bought[k] * self.buy_prices[k], 0)
        return bought

    def _sell(self, shares: Sequence[float]) -> None:
        proceeds = self._total(shares, self.sell_prices)
        commission = min(self._commission(proceeds), proceeds)
        self.cash += proceeds - commission
        self.holdings = [held - sold for held, sold in zip(self.holdings, shares, strict=True)]
        self._book(shares, self.sell_prices, commission)

    def _buy(self, shares: Sequence[float]) -> None:
        if not any(shares):  # a debt in cash must not pass for a commission
            return
        value = self._total(shares, self.buy_prices)
        commission = min(self._commission(value), self.cash - value)
        self.cash = self.cash - value - commission
        self._book(shares, self.buy_prices, commission)
        for k in self.symbols:
            old = max(self.holdings[k], 0)
            self.holdings[k] += shares[k]
            if shares[k] > 0 and self.holdings[k] > 0:
                had = self._product(self.average_price[k], old)
                paid = self._product(self.buy_prices[k], shares[k])
                self.average_price[k] = self._single(self._single(had + paid) / self._single(old + shares[k]))

    def _forget_closed_longs(self) -> None:
        self.average_price = [self.average_price[k] if self.holdings[k] > 0 else 0.0 for k in self.symbols]

    def _book(self, shares: Sequence[float], trade_prices: Sequence[float], commission: float) -> None:
        self.traded += self._total(shares, trade_prices)
        slipped = [abs(trade_prices[k] - self.prices[k]) for k in self.symbols]
        self.costs += self._total(shares, slipped) + commission

    def _reward(self, before: float, after: float) -> float:
        rules, own = self.rules, self.rules.reward_scale is None
        money = 1 / max(self.start_value, 1) if own else self.market.tick_size
        scale = (1e-3 if rules.reward == "differential_sharpe" else 100) if own else rules.reward_scale
        if rules.reward == "delta_value":
            reward = (after - before) * money
        elif rules.reward == "log_return":
            reward = math.log(max(after / before, 1e-6))
        elif rules.reward == "excess_log_return":
            reward = math.log(max(after / before, 1e-6)) - math.log(self._benchmark_growth())
        elif rules.reward == "differential_sharpe":
            reward = self._differential_sharpe(after / before - 1)
        else:
            r = after / before - 1
            reward = r - rules.risk_aversion * r * r
        reward = self._shaped(reward)
        if rules.min_cash_fraction > 0:
            missing = max(0, rules.min_cash_fraction * after - self.cash)
            reward -= rules.cash_penalty_weight * missing * money * (100 / scale if own else 1)
        reward *= scale
        if self.terminated or self.truncated:
            reward += rules.terminal_bonus * (after / self.start_value - 1)
        return reward

    def _shaped(self, reward: float) -> float:
        """Return the reward before penalty, scale and bonus, for rules that are built on these."""
        return reward

    def _benchmark_growth(self) -> float:
        """Return the growth of the benchmark over the day that has passed."""
        if self.rules.benchmark == "equal_weight":
            return self._restored_growth()
        origin = self.market.close[self.start_day]
        bought = [k for k in self.symbols if self.market.tradable[self.start_day][k] and origin[k] > 0]
        values = [sum(self.market.close[day][k] / origin[k] for k in bought) for day in (self.day - 1, self.day)]
        return values[1] / values[0] if values[0] else 1.0

    def _restored_growth(self) -> float:
        before, after, can = (
            self.market.close[self.day - 1],
            self.market.close[self.day],
            self.market.tradable[self.day - 1],
        )
        parts = list(zip(self.benchmark_parts, can, strict=True))
        free = WHOLE - sum(part for part, now in parts if not now)
        held = [free // sum(can) if now else part for part, now in parts]
        worth = [math.floor(held[k] * (after[k] / before[k])) if held[k] else 0 for k in self.symbols]
        total = WHOLE - sum(held) + sum(worth)
        self.benchmark_parts = [math.floor(part * WHOLE / total) for part in worth]
        return total / WHOLE

    def _differential_sharpe(self, r: float) -> float:
        a, b = self.return_mean, self.return_square
        delta_a, delta_b = r - a, r * r - b
        self.return_mean += self.rules.sharpe_decay * delta_a
        self.return_square += self.rules.sharpe_decay * delta_b
        return (b * delta_a - a * delta_b / 2) / (b - a * a) ** 1.5 if b - a * a > 1e-12 else 0.0

    def _shorts(self, prices: Sequence[float]) -> float:
        return self._total([max(-held, 0) for held in self.holdings], prices)

    def _total(self, shares: Sequence[float], prices: Sequence[float]) -> float:
        return sum(n * price for n, price in zip(shares, prices, strict=True))

    def _commission(self, value: float) -> float:
        return self._up(value * self.commission_rate)

    def _up(self, value: float) -> float:
        return math.ceil(value) if self.whole else value

    def _down(self, value: float) -> float:
        return math.floor(value) if self.whole else value

    def _single(self, value: float) -> float:
        return float(np.float32(value)) if self.whole else value

    def _price(self, price: float) -> float:
        """Round to the 24 significant bits of a price, still a whole number, with whole shares."""
        return int(self._single(price)) if self.whole else price

    def _rate(self, rate: float) -> float:
        """Round a rate down to single precision with whole shares."""
        single = np.float32(rate)
        if self.whole and float(single) > rate:
            single = np.nextafter(single, np.float32(0))
        return float(single) if self.whole else rate

    def _product(self, left: float, right: float) -> float:
        """Multiply in single precision with whole shares, over the real numbers otherwise."""
        return self._single(self._single(left) * self._single(right))


def _of(setting: float | Sequence[float], k: int) -> float:
    return setting[k] if isinstance(setting, Sequence) else setting
