"""Signals of news in plain Python, written from ``tasks/signals/rating/rules.md``, one number at a time."""

import math


class Oracle:
    """One episode."""

    def __init__(self, config: dict, close: list, bar: list, start: int, cash: float) -> None:
        """Begin on a day, with prices in ticks by day and symbol, whether there is one, and settings by name."""
        self.config, self.close, self.bar, self.start, self.cash = config, close, bar, start, cash
        self.symbols, self.start_value, self.value = len(close[0]), cash, cash
        self.holdings, self.days = [0.0] * self.symbols, []
        self.invalid = self.traded = self.costs = 0

    @property
    def day(self):
        return self.start + len(self.days)

    def over(self, day, k):
        """The day on which the move of a symbol after a day is over."""
        first = day + self.config["horizon"]
        return next((later for later in range(first, len(self.bar)) if self.bar[later][k]), first)

    def move(self, day):
        found = [self.close[self.over(day, k)][k] / now - 1 if now else 0.0 for k, now in enumerate(self.close[day])]
        there = [move for move, bar in zip(found, self.bar[day], strict=True) if bar]
        mean = sum(there) / len(there) if there and self.config["demeaned"] else 0.0
        return [move - mean if bar else 0.0 for move, bar in zip(found, self.bar[day], strict=True)]

    def counted(self, signals):
        said = [signal if self.bar[self.day][k] else 0 for k, signal in enumerate(signals)]
        chosen = set(range(self.symbols))
        if n := self.config["picks"]:
            order = sorted(range(self.symbols), key=lambda k: (-said[k], k))
            chosen = {*order[:n], *order[-n:]}
        return [said[k] if k in chosen and abs(said[k]) >= self.config["threshold"] else 0 for k in range(self.symbols)]

    def step(self, signals):
        """Say signals, and return the reward."""
        if any(abs(signal) > 10 for signal in signals):
            self.invalid += 1
            signals = [0] * self.symbols
        config, today = self.config, self.day
        counted, moves = self.counted(signals), self.move(today)
        number = 2 * config["picks"] or self.symbols
        reward = 0.0
        for signal, move in zip(counted, moves, strict=True):
            if config["feedback"] == "return":
                reward += 100 * move * signal / 10
            elif signal and abs(move) > config["move_threshold"] and move:
                reward += 1 if (signal > 0) == (move > 0) else -1
            reward -= config["signal_cost"] * abs(signal) / 10
        self.traded, prices = 0.0, self.close[today]
        for k, signal in enumerate(counted):
            if self.bar[today][k]:
                wanted = signal / (10 * number) * self.value / prices[k]
                self.traded += abs(wanted - self.holdings[k]) * prices[k]
                self.cash -= (wanted - self.holdings[k]) * prices[k]
                self.holdings[k] = wanted
        self.costs = config["commission"] * self.traded
        self.cash -= self.costs
        self.value = self.cash + sum(h * p for h, p in zip(self.holdings, self.close[today + 1], strict=True))
        self.days.append((list(signals), moves, self.bar[today]))
        return reward / number

    @property
    def ended(self):
        return len(self.days) == self.config["episode_length"] or self.value <= 0

    def outcomes(self):
        known = [
            [
                (s, m)
                for k, (s, m, b) in enumerate(zip(*day, strict=True))
                if b and (self.ended or self.over(self.start + number, k) <= self.day)
            ]
            for number, day in enumerate(self.days)
        ]
        daily = [spearman(day) for day in known if day]
        pairs = [pair for day in known for pair in day]
        taken = [(s > 0) == (m > 0) for s, m in pairs if s and m]
        return {
            "rank_ic": sum(daily) / len(daily) if daily else 0.0,
            "pooled_ic": spearman(pairs),
            "hit_share": sum(taken) / len(taken) if taken else 0.0,
            "total_return": self.value / self.start_value - 1,
        }

    def grade(self):
        pairs = [(s, m) for day in self.days for s, m, b in zip(*day, strict=True) if b]
        scale = sum(s * s for s, _ in pairs) * sum(m * m for _, m in pairs)
        return (1 + (sum(s * m for s, m in pairs) / math.sqrt(scale) if scale else 0.0)) / 2


def ranks(values):
    return [sum(v < value for v in values) + (sum(v == value for v in values) - 1) / 2 for value in values]


def spearman(pairs):
    if not pairs:
        return 0.0
    x, y = (ranks(column) for column in zip(*pairs, strict=True))
    n = len(pairs)
    xy = sum(a * b for a, b in zip(x, y, strict=True)) / n - sum(x) * sum(y) / n**2
    xx, yy = (sum(a * a for a in column) / n - (sum(column) / n) ** 2 for column in (x, y))
    return 0.0 if xx <= 1e-12 or yy <= 1e-12 else xy / math.sqrt(xx * yy)
