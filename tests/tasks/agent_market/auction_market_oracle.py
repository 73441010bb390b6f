"""One market whose orders an auction clears, in Python integers and lists, written from the pages of rules alone."""

from typing import Any

from tests.kernels.auction.auction_oracle import cleared
from tests.tasks.agent_market.market_oracle import MOMENTUM, VALUE, MarketOracle, Words
from vecenv.kernels.order_book.messages import BUY, MAX_PRICE, SELL, Kind

ENTER = {Kind.LIMIT, Kind.MARKET, Kind.IMMEDIATE, Kind.POST_ONLY, Kind.REPLACE_ALL}
AUCTION = 2**12


class AuctionMarketOracle(MarketOracle):
    """One market; ``seen`` counts what has happened in it."""

    def tick(self, orders: list[Words]) -> dict[str, Any]:
        """Do a tick; return its report by the names of `Report`."""
        self._open_tick()
        last = self.doubled_mid >> 1
        low = max(1, last - self.layout.auction // 2)
        everyone = [*self._of_seats(orders, low), *self._of_background(last)]
        told = [(side, price, quantity) for _, side, price, quantity in everyone]
        price, volume, imbalance, filled, _ = cleared(told, last, low, self.layout.auction, self.seen)
        self.counts["messages"] += len(everyone)
        for (owner, side, _, _), shares in zip(everyone, filled, strict=True):
            sign = 1 if side == BUY else -1
            self.cash[owner] -= sign * shares * price
            self.shares[owner] += sign * shares
            if owner < self.layout.seats:
                self.flow.seats[owner][side] += shares
        buyers = volume if imbalance > 0 else (volume + 1) // 2 if imbalance == 0 else 0
        self.flow.volumes = [buyers, volume - buyers]
        self.flow.notional = price * volume
        self.flow.prices = [price] * sum(
            side == BUY and shares > 0 for (_, side, _, _), shares in zip(everyone, filled, strict=True)
        )
        self.doubled_mid = 2 * price
        self.rest = self._left(everyone, filled, low)
        self.seen["traded"] += volume > 0
        best = [side[0][0] if side else 0 for side in self.rest]
        self.seen["no rest on a side"] += 0 in best
        self._take_up(*best)
        return self._told(best)

    def _of_seats(self, orders: list[Words], low: int) -> list[tuple[int, int, int, int]]:
        taken: list[tuple[int, int, int, int]] = []
        for kind, side, price, quantity, owner, _ in orders:
            if kind in (Kind.NOTHING, Kind.CANCEL_ALL):
                continue
            fits = kind in ENTER and 0 <= owner < self.layout.seats and side in (BUY, SELL) and 1 <= quantity <= 2**20
            if kind == Kind.MARKET:
                price = low + self.layout.auction - 1 if side == BUY else low
            elif not 1 <= price <= MAX_PRICE:
                fits = False
            if not fits:
                self.counts["rejected"] += 1
                self.seen["rejected"] += 1
                continue
            # What would meet an earlier order of the seat, even one that was itself rejected for that.
            taken.append((owner, side, price, quantity))
        result = []
        for number, (owner, side, price, quantity) in enumerate(taken):
            against = [other[2] for other in taken[:number] if other[0] == owner and other[1] != side]
            crossed = any(price >= other if side == BUY else price <= other for other in against)
            self.counts["rejected"] += crossed
            self.seen["meets its own"] += crossed
            if not crossed:
                result.append((owner, side, price, quantity))
        return result

    def _of_background(self, last: int) -> list[tuple[int, int, int, int]]:
        first, n, result = self.layout.first, self.n, []
        reach, half = n["auction_spread"], max(1, n["first_spread"] >> 1)
        rises = 5 * sum(self.samples[-20:]) >= 2 * sum(self.samples)
        for agent in range(self.layout.owners - self.layout.seats):
            owner = agent + self.layout.seats
            word = self._words(AUCTION + agent // 512, self.t * 512 + agent % 512)
            quantity, buys = self.sizes[word[0] >> 20], word[1] % 2 == 0
            if owner < first[VALUE]:
                held = self.shares[owner]
                buys = held < 0 if held else buys
                self.seen["a maker turns"] += held != 0
                price = last - half if buys else last + half
                quantity = n["min_quote"]
            elif owner < first[MOMENTUM]:
                price = (
                    self.fundamental + ((self._normal(word[3]) * n["observation_noise"] + 2**15) >> 16) + 2**15
                ) >> 16
                buys = price >= last
            elif owner < first[MOMENTUM + 1]:
                buys = rises
                price = last + reach if buys else last - reach
                self.seen["momentum buys" if buys else "momentum sells"] += 1
            else:
                price = last - reach + ((word[2] * (2 * reach + 1)) >> 32)
            result.append((owner, BUY if buys else SELL, max(1, min(price, MAX_PRICE)), min(quantity, 2**20)))
        return result

    def _left(self, everyone: list[tuple[int, int, int, int]], filled: list[int], low: int) -> list[list[list[int]]]:
        levels: list[dict[int, int]] = [{}, {}]
        end = low + self.layout.auction - 1
        for (_, side, price, quantity), shares in zip(everyone, filled, strict=True):
            inside = price >= low if side == BUY else price <= end
            if inside and quantity > shares:
                shown = max(low, min(price, end))
                levels[side][shown] = levels[side].get(shown, 0) + quantity - shares
        return [
            [[price, levels[side][price]] for price in sorted(levels[side], reverse=side == BUY)]
            for side in (BUY, SELL)
        ]

    def _told(self, best: list[int]) -> dict[str, Any]:
        shown = [(side + [[0, 0]] * 10)[:10] for side in self.rest]
        prices, quantities = ([[level[place] for level in side] for side in shown] for place in (0, 1))
        return self._report() | {"bid": best[BUY], "ask": best[SELL], "prices": prices, "quantities": quantities}
