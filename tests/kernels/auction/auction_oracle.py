"""The rules of the auction's page in plain Python, with fractions."""

from collections import Counter
from fractions import Fraction

BUY, SELL = 0, 1


def cleared(orders: list[tuple[int, int, int]], reference: int, low: int, levels: int, seen: Counter[str]):
    """Price, volume, imbalance, fills and invalid orders of an auction of (side, price, quantity)."""
    filled = [0] * len(orders)
    invalid = 0
    buys: dict[int, tuple[int, int]] = {}
    sells: dict[int, tuple[int, int]] = {}
    for number, (side, price, quantity) in enumerate(orders):
        if quantity == 0:
            continue
        if side not in (BUY, SELL) or not 1 <= price <= 2**30 or not 1 <= quantity <= 2**20:
            invalid += 1
        elif side == BUY:
            if price >= low:
                buys[number] = (min(price, low + levels - 1), quantity)
        elif price < low + levels:
            sells[number] = (max(price, low), quantity)

    def demand(price: int) -> int:
        return sum(quantity for limit, quantity in buys.values() if limit >= price)

    def supply(price: int) -> int:
        return sum(quantity for limit, quantity in sells.values() if limit <= price)

    def badness(price: int) -> tuple[int, int, int, int]:
        wanted, offered = demand(price), supply(price)
        return -min(wanted, offered), abs(wanted - offered), abs(price - reference), price

    prices = sorted(range(low, low + levels), key=badness)
    price = prices[0]
    volume = min(demand(price), supply(price))
    if volume == 0:
        seen["nothing is traded"] += 1
        return reference, 0, 0, filled, invalid
    if len(prices) > 1:
        equal = sum(one == two for one, two in zip(badness(price), badness(prices[1]), strict=True))
        seen[f"{equal} of the reasons are equal"] += 1
    for side, book in ((BUY, buys), (SELL, sells)):
        served = sorted({limit for limit, _ in book.values()}, reverse=side == BUY)
        left = volume
        for limit in served:
            level = {number: quantity for number, (own, quantity) in book.items() if own == limit}
            total = sum(level.values())
            if total <= left:
                for number, quantity in level.items():
                    filled[number] = quantity
                left -= total
                continue
            exact = {number: Fraction(quantity * left, total) for number, quantity in level.items()}
            for number, share in exact.items():
                filled[number] = share.numerator // share.denominator
            more = left - sum(filled[number] for number in level)
            seen["shares are left over by rounding down"] += more > 0
            seen["the rest is shared"] += left > 0
            ranked = sorted(level, key=lambda number: (-(exact[number] - filled[number]), number))
            for number in ranked[:more]:
                filled[number] += 1
            break
    return price, volume, demand(price) - supply(price), filled, invalid
