"""Factors of the book and of trades: imbalances, flows, microprice, spread, returns and volatility.

The number at the end of a name is a time in seconds, or for ``imbalance`` a number of levels. Prices are in basis
points of the mid. Sources: Cont, Kukanov and Stoikov, "The price impact of order book events", Journal of Financial
Econometrics 12(1), 2014 (order-flow imbalance); Stoikov, "The micro-price", Quantitative Finance 18(12), 2018 (here the
mid weighted by the sizes, its first approximation).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from vecenv.tasks.crypto_lob.factors.series import BookSeries

SECONDS = (10, 30, 60, 300)
"""Times of the factors over windows."""

LEVELS = (1, 3, 5, 10)
"""Numbers of levels of imbalances."""

Factor = Callable[[BookSeries], np.ndarray]


def microprice(book: BookSeries) -> np.ndarray:
    """Distance of the mid weighted by the opposite sizes from the mid."""
    bid, ask = book.bid_size[:, 0], book.ask_size[:, 0]
    weighted = (book.bid_price[:, 0] * ask + book.ask_price[:, 0] * bid) / (bid + ask)
    return 1e4 * (weighted - book.mid) / book.mid


def spread(book: BookSeries) -> np.ndarray:
    """Best ask minus best bid."""
    return 1e4 * (book.ask_price[:, 0] - book.bid_price[:, 0]) / book.mid


def imbalance(book: BookSeries, levels: int) -> np.ndarray:
    """Bids minus asks as a share of both, by the coins of the best levels."""
    bid, ask = book.bid_size[:, :levels].sum(1), book.ask_size[:, :levels].sum(1)
    return (bid - ask) / (bid + ask)


def mean_imbalance(book: BookSeries, seconds: float) -> np.ndarray:
    """Mean over a time of the imbalance of five levels."""
    return book.rolling(imbalance(book, 5), seconds).mean().to_numpy()


def order_flow(book: BookSeries) -> np.ndarray:
    """Order-flow imbalance of a row, in coins: Cont, Kukanov and Stoikov (2014), equation (4). 0 in holes and after."""
    flows = []
    for side, sign in (("bid", 1.0), ("ask", -1.0)):
        price, size = getattr(book, f"{side}_price")[:, 0], getattr(book, f"{side}_size")[:, 0]
        price_before, size_before = book.before(price, 1), book.before(size, 1)
        better = sign * price >= sign * price_before
        worse = sign * price <= sign * price_before
        flows.append(sign * (better * size - worse * size_before))
    known = book.open & book.before(book.open, 1)
    known[0] = False
    return np.where(known, flows[0] + flows[1], 0.0)


def flow(book: BookSeries, seconds: float) -> np.ndarray:
    """Order-flow imbalance over a time, over the mean best size times the square root of the rows."""
    best = (book.bid_size[:, 0] + book.ask_size[:, 0]) / 2
    total = book.rolling(order_flow(book), seconds).sum().to_numpy()
    return total / (book.rolling(best, seconds).mean().to_numpy() * np.sqrt(book.rows(seconds)))


def trades(book: BookSeries, seconds: float) -> np.ndarray:
    """Coins bought minus sold over a time, as a share of both; 0 without trades."""
    bought, sold = (book.rolling(part, seconds).sum().to_numpy().clip(min=0.0) for part in (book.bought, book.sold))
    total = bought + sold
    return np.where(total > 1e-12, (bought - sold) / np.where(total > 1e-12, total, 1.0), 0.0)


def mid_return(book: BookSeries, seconds: float) -> np.ndarray:
    """Logarithmic return of the mid over a time."""
    return book.log_mid - book.before(book.log_mid, book.rows(seconds))


def volatility(book: BookSeries, seconds: float) -> np.ndarray:
    """Root mean square of the mid's returns from row to row over a time, for a second."""
    moves = book.log_mid - book.before(book.log_mid, 1)
    squares = book.rolling(moves**2, seconds).mean().to_numpy().clip(min=0.0)
    return np.sqrt(squares / book.step_gap)


def queue_change(book: BookSeries, side: str) -> np.ndarray:
    """Change from the row before of the logarithm of the coins at a best price."""
    size = np.log(getattr(book, f"{side}_size")[:, 0])
    return size - book.before(size, 1)


def stale(book: BookSeries) -> np.ndarray:
    """Seconds since the last row that is no hole."""
    number = np.arange(len(book.open))
    return (number - np.maximum.accumulate(np.where(book.open, number, 0))) * book.step_gap


BOOK_FACTORS: dict[str, Factor] = {
    "microprice": microprice,
    "spread": spread,
    "stale": stale,
    "queue_change_bid": partial(queue_change, side="bid"),
    "queue_change_ask": partial(queue_change, side="ask"),
    **{f"imbalance_{levels}": partial(imbalance, levels=levels) for levels in LEVELS},
    **{
        f"{name}_{seconds}": partial(function, seconds=seconds)
        for name, function in {
            "mean_imbalance": mean_imbalance,
            "flow": flow,
            "trades": trades,
            "return": mid_return,
            "volatility": volatility,
        }.items()
        for seconds in SECONDS
    },
}
