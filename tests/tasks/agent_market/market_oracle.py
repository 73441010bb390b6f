"""One market of background agents and seats in Python integers and lists, written from the pages of its rules alone."""

from collections import Counter
from types import SimpleNamespace
from typing import Any, NamedTuple

from tests.core.scalar_philox import scalar_philox
from tests.kernels.order_book.book_oracle import Oracle, Order, before, levels_of
from vecenv.kernels.order_book.limits import max_quantity
from vecenv.kernels.order_book.messages import BUY, MAX_PRICE, SELL, Kind, Status
from vecenv.tasks.agent_market.config import (
    CLASSES,
    MAX_FUNDAMENTAL,
    MAX_LATENCY,
    NUM_CANDLES,
    NUM_SAMPLES,
    SHORT_SAMPLES,
)
from vecenv.tasks.agent_market.market import COUNTS, DEPTH, SLOTS_A_TICK, Layout, MarketStream

MAKER, VALUE, MOMENTUM, NOISE = range(4)
"""Classes of agents."""

Words = tuple[int, int, int, int, int, int]
"""Kind, side, price, quantity, owner and target of a message."""


class View(NamedTuple):
    """What a trader sees."""

    bid: int
    ask: int
    fundamental: int

    @property
    def both(self) -> bool:
        return self.bid > 0 and self.ask > 0


def fraction(word: int, of: int) -> int:
    return (word * of) >> 32


def towards_zero(number: int, divisor: int) -> int:
    """A quotient by a positive divisor."""
    return number // divisor if number >= 0 else -(-number // divisor)


class MarketOracle:
    """One market; ``seen`` counts what has happened in it."""

    def __init__(self, words: list[int], settings: tuple[Any, ...], layout: Layout) -> None:
        """Open the market of a key's words, by numbers by name, arrivals, normal quantiles, sizes and growth."""
        self.words, self.layout = words, layout
        self.n, self.arrivals, self.normal, self.sizes, self.growth = settings
        self.seen: Counter[str] = Counter()
        self.t = 0
        self.book = Oracle(layout.room, layout.owners)
        self.cash, self.shares = [0] * layout.owners, [0] * layout.owners
        mean = self.n["mean_price"]
        self.fundamental = mean << 16
        first = self._words(MarketStream.FIRST_VOLATILITY, 0)[0]
        log = (self._normal(first) * self.n["log_volatility_spread"] + 2**15) >> 16
        self.log_volatility = max(-8 * 2**20, min(log, 8 * 2**20))
        self.news = [0, 0, 0, 0]
        self.backlog = [layout.makers, 0, 0, 0]
        wakes = (self._words(MarketStream.NOISE_WAKES, trader)[0] for trader in range(layout.noise))
        self.noise_wakes = sorted(fraction(word, self.n["session_ticks"]) for word in wakes)
        self.noise_served = 0
        self.spreads = [self.n["first_spread"] << 8] * layout.makers
        self.doubled_mid = 2 * mean
        self.samples = [2 * mean] * NUM_SAMPLES
        self.volumes = [0, 0]
        self.views = [View(0, 0, mean << 16)] * MAX_LATENCY
        self.counts = dict.fromkeys(COUNTS, 0)
        self.candles = [[2 * mean, 2 * mean, 2 * mean, 0, 0] for _ in range(NUM_CANDLES)]

    def tick(self, orders: list[Words]) -> dict[str, Any]:
        """Do a tick; return its report by the names of `Report`."""
        self._open_tick()
        self._wake()
        for words in orders:
            told = self._carry_out(words)
            self.seen[f"seat {told.name}"] += 1
        self._maker()
        for slot in range(self.layout.slots):
            self._slot(slot)
        self.counts["carried"] += sum(self.backlog[VALUE:])
        self._close()
        return self._report()

    def _open_tick(self) -> None:
        seats = [[0, 0] for _ in range(self.layout.seats)]
        self.flow = SimpleNamespace(volumes=[0, 0], prices=[], notional=0, seats=seats)
        self._move_fundamental()
        self._move_volatility()
        self._advance_news()

    def _words(self, stream: MarketStream, index: int) -> tuple[int, ...]:
        low, high, env, episode = self.words
        return scalar_philox((env, episode, stream, index % 2**32), (low, high))

    def _normal(self, word: int) -> int:
        return self.normal[word >> 20]

    def _move_fundamental(self) -> None:
        word, n = self._words(MarketStream.FUNDAMENTAL, self.t), self.n
        back = (n["mean_price"] << 16) - self.fundamental
        back = max(-(2**34), min(back, 2**34))
        shock = 0
        if word[1] < n["shock_chance"]:
            size = max(0, n["shock_mean"] + ((self._normal(word[2]) * n["shock_spread"] + 2**15) >> 16)) << 16
            shock = size if word[3] % 2 == 0 else -size
            self.seen["shock"] += 1
        moved = self.fundamental + ((back * n["reversion"] + 2**27) >> 28)
        factor = self.growth[(self.log_volatility + 8 * 2**20 + 2**13) >> 14]
        volatility = (n["volatility"] * factor + 2**15) >> 16
        moved += ((self._normal(word[0]) * volatility + 2**15) >> 16) + shock + self.news[3]
        self.fundamental = max(2**16, min(moved, MAX_FUNDAMENTAL << 16))
        self.seen["fundamental at its end"] += moved != self.fundamental

    def _move_volatility(self) -> None:
        log, n, word = self.log_volatility, self.n, self._words(MarketStream.VOLATILITY, self.t)[0]
        log -= (log * n["log_volatility_reversion"] + 2**27) >> 28
        log += (self._normal(word) * n["log_volatility_noise"] + 2**15) >> 16
        self.log_volatility = max(-8 * 2**20, min(log, 8 * 2**20))
        self.seen["volatility moved"] += log != 0

    def _advance_news(self) -> None:
        word, n = self._words(MarketStream.NEWS, self.t), self.n
        sign, magnitude, left, drift = self.news
        if left:
            left -= 1
        if left:
            self.news = [sign, magnitude, left, drift]
        elif word[0] < n["news_chance"]:
            magnitude, left = 1 + fraction(word[1], n["news_magnitude"]), 1 + fraction(word[3], n["news_duration"])
            sign = 1 if word[2] % 2 == 0 else -1
            self.news = [sign, magnitude, left, towards_zero(sign * (magnitude << 16), left)]
            self.seen["good news" if sign > 0 else "bad news"] += 1
        else:
            self.news = [0, 0, 0, 0]

    def _wake(self) -> None:
        word = self._words(MarketStream.ARRIVALS, self.t)
        for kind in (MAKER, VALUE, MOMENTUM):
            self.backlog[kind] += sum(threshold <= word[kind] for threshold in self.arrivals[kind])
        self.backlog[NOISE] += self.noise_wakes.count(self.t)

    def _carry_out(self, words: Words) -> Status:
        told, owner = self.book.process(*words), words[4]
        self.counts["messages"] += told.status == Status.DONE
        self.counts["rejected"] += told.status not in (Status.DONE, Status.NOTHING)
        self.counts["evicted"] += told.evicted[2] > 0
        self.seen["evicted by a message"] += told.evicted[2] > 0
        self.seen["prevented of a seat"] += told.prevented > 0 and owner < self.layout.seats
        for price, size, other, _ in told.trades:
            for trader, side in ((owner, told.side), (other, 1 - told.side)):
                sign = 1 if side == BUY else -1
                self.cash[trader] -= sign * price * size
                self.shares[trader] += sign * size
                if trader < self.layout.seats:
                    self.flow.seats[trader][side] += size
            self.flow.volumes[told.side] += size
            self.flow.prices.append(price)
            self.flow.notional += price * size
        return told.status

    def _best(self) -> tuple[int, int]:
        bid, ask = (queue[0].price if queue else 0 for queue in self.book.sides)
        return bid, ask

    def _view(self, kind: int) -> View:
        latency = self.n[f"{CLASSES[kind]}_latency"]
        view = self.views[latency - 1] if latency else View(*self._best(), self.fundamental)
        self.seen[f"{CLASSES[kind]} latency {latency}"] += 1
        self.seen["spread too wide"] += view.both and view.ask - view.bid > self.n["max_spread"]
        return view

    def _maker(self) -> None:
        if not self.backlog[MAKER]:
            return
        self.backlog[MAKER] -= 1
        number = fraction(self._words(MarketStream.MAKER, self.t)[0], self.layout.makers)
        owner, n = self.layout.first[MAKER] + number, self.n
        self.book.process(Kind.CANCEL_ALL, BUY, 0, 0, owner, -1)
        seen = self._view(MAKER)
        mid = self.doubled_mid >> 1
        if seen.both:
            shown = min(seen.ask - seen.bid, n["max_spread"])
            self.spreads[number] += ((shown * 256 - self.spreads[number]) * n["spread_alpha"]) >> 8
            if shown == seen.ask - seen.bid:
                mid = (seen.bid + seen.ask) >> 1
        spread, (bought, sold) = self.spreads[number], self.volumes
        both = bought + sold
        centre = mid + (towards_zero((bought - sold) * n["price_skew"], both) if both else 0)
        bid = centre - (spread >> 9)
        ask = max(centre + ((spread + 511) >> 9), bid + 1)
        step = max(1, (spread * n["level_spacing"] + 128) >> 8)
        share = (((both * n["volume_ticks"]) >> 16) * n["share_of_volume"] + 2**15) >> 16
        quantity = min(max(n["min_quote"], share), max_quantity(self.layout.room))
        levels = range(self.layout.levels)
        bids, asks = [bid - level * step for level in levels], [ask + level * step for level in levels]
        placed, evicted, _ = self.book.requote(owner, bids, asks, quantity)
        self.counts["messages"] += 1
        self.counts["evicted"] += evicted
        self.counts["unplaced"] += 2 * self.layout.levels - placed
        self.seen["requotes"] += 1
        self.seen["evicted by a requote"] += evicted
        self.seen["unplaced"] += 2 * self.layout.levels - placed

    def _slot(self, slot: int) -> None:
        waiting = sum(self.backlog[VALUE:])
        if not waiting:
            return
        index = self.t * SLOTS_A_TICK + slot
        word, price_word = self._words(MarketStream.TRADER, index), self._words(MarketStream.TRADER_PRICE, index)
        drawn = fraction(word[0], waiting)
        kind = next(kind for kind in (VALUE, MOMENTUM, NOISE) if drawn < sum(self.backlog[VALUE : kind + 1]))
        self.backlog[kind] -= 1
        if kind == NOISE:
            number = self.noise_served
            self.noise_served += 1
        else:
            number = fraction(word[1], self.layout.value if kind == VALUE else self.layout.momentum)
        view, buys, size = self._view(kind), word[3] % 2 == 0, self.sizes[word[2] >> 20]
        asked = self._value(view, buys, price_word) if kind == VALUE else self._at_once(kind, view, buys)
        self.seen[f"{CLASSES[kind]} messages"] += 1
        if asked is None:
            self.seen[f"{CLASSES[kind]} does nothing"] += 1
            return
        side, price = asked
        price = max(1, min(price, MAX_PRICE))
        owner = self.layout.first[kind] + number
        self._carry_out((Kind.REPLACE_ALL if kind == VALUE else Kind.LIMIT, side, price, size, owner, -1))

    def _value(self, view: View, buys: bool, word: tuple[int, ...]) -> tuple[int, int]:
        """Side and price of a value trader."""
        noise = (self._normal(word[1]) * self.n["observation_noise"] + 2**15) >> 16
        observed = (view.fundamental + noise + 2**15) >> 16
        if not view.both:
            return BUY if buys else SELL, observed
        most, spread = self.n["max_spread"], view.ask - view.bid
        mispriced = observed > view.ask + most or observed < view.bid - most
        aggressive = word[2] < self.n["aggressive_chance"]
        self.seen["value aggressive" if aggressive else "value mispriced" if mispriced else "value inside"] += 1
        distance = fraction(word[0], self.n["depth_spread"] * min(spread, most))
        distance = 0 if aggressive or mispriced else distance
        return (SELL, view.bid + distance) if observed < (view.bid + view.ask) >> 1 else (BUY, view.ask - distance)

    def _at_once(self, kind: int, view: View, buys: bool) -> tuple[int, int] | None:
        """Side and price of a momentum or a noise trader, who trades at what it sees if that is narrow."""
        if not view.both or view.ask - view.bid > self.n["take_spread"]:
            return None
        if kind == MOMENTUM:
            buys = 5 * sum(self.samples[-SHORT_SAMPLES:]) >= 2 * sum(self.samples)
            self.seen["momentum buys" if buys else "momentum sells"] += 1
        return (BUY, view.ask) if buys else (SELL, view.bid)

    def _close(self) -> None:
        bid, ask = self._best()
        self.seen["empty side"] += not bid or not ask
        if bid and ask and ask - bid <= self.n["max_spread"]:
            self.doubled_mid = bid + ask
        self.seen["backlog carried"] += sum(self.backlog[VALUE:]) > 0
        self.seen["makers wait"] += self.backlog[MAKER] > 0
        self._take_up(bid, ask)

    def _take_up(self, bid: int, ask: int) -> None:
        if (self.t + 1) % self.n["momentum_every"] == 0:
            self.samples = [*self.samples[1:], self.doubled_mid]
        rate = 2**16 // self.n["volume_ticks"]
        for side in (BUY, SELL):
            self.volumes[side] += (((self.flow.volumes[side] << 16) - self.volumes[side]) * rate) >> 16
        self.views = [View(bid, ask, self.fundamental), *self.views[:-1]]
        self._add_candle()
        self.t += 1

    def _add_candle(self) -> None:
        marks = [self.doubled_mid, *(2 * price for price in self.flow.prices)]
        tick = [self.doubled_mid, max(marks), min(marks), sum(self.flow.volumes), len(self.flow.prices)]
        tick = [min(number, 2**31 - 1) for number in tick]
        if self.t % self.n["candle_ticks"] == 0:
            self.candles = [*self.candles[1:], tick]
        else:
            _, high, low, volume, trades = self.candles[-1]
            close, top, bottom, more, others = tick
            self.candles[-1] = [close, max(high, top), min(low, bottom), volume + more, trades + others]

    def _report(self) -> dict[str, Any]:
        bid, ask = self._best()
        marks = [self.doubled_mid, *(2 * price for price in self.flow.prices)]
        levels = [levels_of(queue, DEPTH) for queue in self.book.sides]
        seats = range(self.layout.seats)
        own = [[self._own(seat, queue) for queue in self.book.sides] for seat in seats]
        estimate_word = self._words(MarketStream.ARRIVALS, self.t - 1)[3]
        return {
            "bid": bid,
            "ask": ask,
            "doubled_mid": self.doubled_mid,
            "high": min(max(marks), 2**31 - 1),
            "low": min(marks),
            "bought": self.flow.volumes[BUY],
            "sold": self.flow.volumes[SELL],
            "notional": self.flow.notional,
            "trades": len(self.flow.prices),
            "estimate": self.fundamental + self._normal(estimate_word) * self.n["fair_noise"],
            "news": list(self.news),
            "prices": [[price for price, _, _ in side] for side in levels],
            "quantities": [[quantity for _, quantity, _ in side] for side in levels],
            "seat_cash": [self.cash[seat] for seat in seats],
            "seat_shares": [self.shares[seat] for seat in seats],
            "seat_traded": self.flow.seats,
            **{
                f"own_{name}": [[side[place] for side in sides] for sides in own]
                for place, name in enumerate(("quantity", "price", "size", "ahead", "id"))
            },
        }

    def _own(self, seat: int, queue: list[Order]) -> tuple[int, int, int, int, int]:
        """Quantity of a seat's orders on a side; of the best price, size, the quantity before it at its price, id."""
        mine = [order for order in queue if order.owner == seat]
        if not mine:
            return 0, 0, 0, 0, -1
        best = mine[0]
        return sum(order.quantity for order in mine), best.price, best.quantity, before(self.book, best.id), best.id

    def state(self) -> dict[str, Any]:
        """State by the names of `Market`, with the book as lists of orders."""
        named = ("words", "cash", "shares", "fundamental", "log_volatility", "news", "backlog", "noise_wakes")
        named += ("noise_served", "spreads", "doubled_mid", "samples", "volumes")
        return {name: getattr(self, name) for name in named} | {
            "tick": self.t,
            "orders": [[order.told() for order in queue] for queue in self.book.sides],
            "next_id": self.book.next_id,
            "views": [list(view) for view in self.views],
            "counts": list(self.counts.values()),
            "candles": [list(row) for row in zip(*self.candles, strict=True)],
        }
