"""Trading on order books in plain Python, one account at a time, written from ``tasks/crypto_lob/rules.md``."""

import math
from dataclasses import dataclass
from typing import Any

from vecenv.tasks.crypto_lob.config import CryptoLobConfig

ASKS, BIDS = 0, 1
HOLD, TRADE, TARGET, INVALID = range(4)
KEEP = -1
KEPT = {BIDS: (KEEP, 0), ASKS: (KEEP, 0)}
UNITS = 10**9


def up(numerator: int, denominator: int) -> int:
    return -((-numerator) // denominator)


@dataclass
class Book:
    """A tape as lists, by row."""

    price: list[list[list[int]]]
    size: list[list[list[int]]]
    taken: list[list[int]]
    open: list[bool]
    time: list[int]

    def mid(self, row: int) -> int:
        return self.price[row][ASKS][0] + self.price[row][BIDS][0]

    def levels(self, row: int, side: int) -> list[tuple[int, int]]:
        return [(p, s) for p, s in zip(self.price[row][side], self.size[row][side], strict=True) if p > 0]

    def shown(self, row: int, side: int, price: int) -> int:
        return sum(s for p, s in self.levels(row, side) if p == price)


@dataclass
class Resting:
    price: int
    left: int
    ahead: int


class Oracle:
    """One account in one episode, by settings, their rates in whole numbers, lots of a unit, and money at the start."""

    def __init__(
        self, rules: CryptoLobConfig, rates: dict[str, int], unit: int, initial: int, book: Book, row: int
    ) -> None:
        self.rules, self.rates, self.unit, self.initial, self.book, self.row = rules, rates, unit, initial, book, row
        self.position = self.cash = self.equity = self.trade_cost = self.entry = self.best = self.age = self.won = 0
        self.lost = self.traded = self.costs = self.exposed = self.unfilled = self.invalid = self.peak = self.step = 0
        self.drawdown, self.liquidated, self.filled = 0.0, False, [0, 0]
        self.resting: dict[int, Resting | None] = {BIDS: None, ASKS: None}
        self.waiting: list[Any] = [(HOLD, 0, KEPT)] * max(rules.latency - 1, 0)

    @property
    def done(self) -> bool:
        return self.liquidated or self.step >= self.rules.episode_steps

    @property
    def most(self) -> int:
        return self.unit * self.rules.max_position

    def choice(self, action: list[Any]) -> Any:
        rules = self.rules
        if rules.action == "continuous":
            if not math.isfinite(action[0]):
                return INVALID, 0, KEPT
            return TARGET, math.floor(max(-1.0, min(1.0, action[0])) * self.most + 0.5), KEPT
        if rules.action == "target":
            return TARGET, (action[0] - rules.max_position) * self.unit, KEPT
        quotes = KEPT if rules.action == "step" else {}
        for side, away, choice in zip((BIDS, ASKS), (-1, 1), action[1:], strict=False):
            offset = rules.limit_offsets[choice - 1] if choice else 0
            quotes[side] = (self.book.price[self.row][side][0] + away * offset, self.unit if choice else 0)
        return TRADE, (action[0] - 1) * self.unit, quotes

    def advance(self, action: list[Any]) -> None:
        self.step += 1
        self.filled = [0, 0]
        self.waiting.append(self.choice(action))
        self.invalid += self.waiting[-1][0] == INVALID
        heard, last = self.waiting.pop(0), self.step == self.rules.episode_steps
        if self.rules.latency == 0:
            self.orders(heard, last)
        self.time()
        if self.rules.latency:
            self.orders(heard, last)
        mid = self.book.mid(self.row)
        self.equity = self.cash + self.position * mid
        self.exposed += self.position != 0
        self.peak = max(self.peak, self.equity)
        self.drawdown = max(self.drawdown, (self.peak - self.equity) / (self.peak + self.initial))

    def time(self) -> None:
        before, self.row = self.row, self.row + 1
        row, book, rules = self.row, self.book, self.rules
        for side in (BIDS, ASKS):
            order = self.resting[side]
            if order is None or not book.open[row]:
                continue
            sign, reaching = 1 if side == BIDS else -1, 0
            if book.open[before]:
                better = sum(s for p, s in book.levels(before, side) if sign * p > sign * order.price)
                reaching = max(book.taken[row][side] - better, 0)
            crossed = sign * book.price[row][1 - side][0] <= sign * order.price
            fill = order.left if crossed else min(order.left, max(reaching - order.ahead, 0))
            order.ahead = min(max(order.ahead - reaching, 0), book.shown(row, side, order.price))
            order.left -= fill
            value = 2 * order.price * fill
            if fill:
                self.fill(sign * fill, value, up(value * self.rates["maker_fee"], UNITS))
            if order.left == 0:
                self.resting[side] = None
        if self.rates["funding_rate"]:
            every = round(rules.funding_hours * 3_600_000)
            times = book.time[row] // every - book.time[before] // every
            paid = times * up(self.position * book.mid(row) * self.rates["funding_rate"], UNITS)
            self.cash -= paid
            self.trade_cost += paid

    def orders(self, heard: Any, last: bool) -> None:
        rules, book, row = self.rules, self.book, self.row
        mid, held, closes = book.mid(row), self.position, last
        if held:
            self.age += 1
            self.best = max(self.best, mid) if held > 0 else min(self.best, mid)
            stop = self.rates["stop_loss"]
            closes |= bool(stop) and abs(self.best - mid) * UNITS > stop * self.entry
            closes |= 0 < rules.max_holding < self.age
            worth = self.cash + self.initial + held * mid
            self.liquidated = book.open[row] and worth * 10**4 < self.rates["maintenance_margin"] * abs(held) * mid
        kind, lots, quotes = heard
        target = {HOLD: held, TRADE: held + lots, TARGET: lots, INVALID: held}[kind]
        stops = closes or self.liquidated
        target = 0 if stops else max(-self.most, min(self.most, target))
        order = target - held
        filled, value = self.walk(order, last or self.liquidated)
        if filled:
            cost = up(value * self.rates["taker_fee"], UNITS) + up(value * self.rates["slippage"], UNITS)
            self.fill(filled, value, cost)
        if rules.action != "limit":
            return
        for side in (BIDS, ASKS):
            self.place(side, quotes[side], stops)

    def walk(self, order: int, closes: bool) -> tuple[int, int]:
        """Fill level by level; return lots with sign, and their value."""
        book, row = self.book, self.row
        if self.rules.fill == "mid":
            if not book.open[row]:
                self.unfilled += abs(order)
                return 0, 0
            return order, abs(order) * book.mid(row)
        side = ASKS if order > 0 else BIDS
        left, value, deepest = abs(order), 0, 0
        for price, size in book.levels(row, side):
            lots = min(left, size)
            value += 2 * price * lots
            left -= lots
            deepest = price
        self.unfilled += left
        if closes:
            value += 2 * deepest * left
            left = 0
        filled = abs(order) - left
        return (filled if order > 0 else -filled), value

    def fill(self, filled: int, value: int, cost: int) -> None:
        before, after = self.position, self.position + filled
        paid = (value if filled > 0 else -value) + cost
        mid = self.book.mid(self.row)
        self.cash -= paid
        self.position = after
        self.traded += value
        self.costs += cost
        self.filled[0 if filled > 0 else 1] += abs(filled)
        if before == 0:
            self.begin(paid, mid)
        elif after * before < 0:
            closing = (paid * abs(before)) // abs(filled)
            self.end(self.trade_cost + closing)
            self.begin(paid - closing, mid)
        elif after == 0:
            self.end(self.trade_cost + paid)
            self.trade_cost = 0
            self.age = 0
        else:
            self.trade_cost += paid

    def begin(self, paid: int, mid: int) -> None:
        self.trade_cost, self.entry, self.best, self.age = paid, mid, mid, 0

    def end(self, cost: int) -> None:
        self.won += cost < 0
        self.lost += cost > 0

    def place(self, side: int, quote: tuple[int, int], stops: bool) -> None:
        book, row, sign, old = self.book, self.row, 1 if side == BIDS else -1, self.resting[side]
        (price, lots), room = quote, self.most - sign * self.position
        if stops:
            old = None
        elif price == KEEP or not book.open[row]:
            if old is not None:
                old.left = min(old.left, max(room, 0))
        else:
            touch, deepest = book.price[row][1 - side][0], book.levels(row, side)[-1][0]
            lots = max(min(lots, room), 0) if sign * deepest <= sign * price < sign * touch else 0
            if old is not None and old.price == price and lots <= old.left:
                old.left = lots
            else:
                old = Resting(price, lots, book.shown(row, side, price))
        self.resting[side] = old if old is not None and old.left else None
