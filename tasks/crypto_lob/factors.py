"""Factors of order books by name, and their table of a tape, all computed causally in one batch before episodes.

A factor's value is known at its row: it is made of series of the row and of rows before it alone. The number at the end
of a name is a time in seconds, or for ``imbalance`` a number of levels. Prices are in basis points of the mid. Sources:
Cont, Kukanov and Stoikov, "The price impact of order book events", Journal of Financial Econometrics 12(1), 2014
(order-flow imbalance); Stoikov, "The micro-price", Quantitative Finance 18(12), 2018 (here the mid weighted by the
sizes, its first approximation).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from vecenv.tasks.crypto_lob.alphas import ALPHAS
from vecenv.tasks.crypto_lob.clock import ClockedBooks, recordings

if TYPE_CHECKING:
    import pandas as pd

BAR_SECONDS = 10.0
"""Length of the bars of the formulaic alphas, whose days these are."""


@dataclass(frozen=True, eq=False)
class BookSeries(ClockedBooks):
    """Series of the books' rows: prices are 0 where there is no level, and sizes of a hole those of the row before it.

    ``step_gap`` is the seconds between rows.
    """

    step_gap: float

    @cached_property
    def mid(self) -> np.ndarray:
        return (self.bid_price[:, 0] + self.ask_price[:, 0]) / 2

    @cached_property
    def log_mid(self) -> np.ndarray:
        """Logarithm of the mid in basis points. Shape: (T,)."""
        return 1e4 * np.log(self.mid)

    def rows(self, seconds: float) -> int:
        return max(1, round(seconds / self.step_gap))

    def rolling(self, values: np.ndarray, seconds: float) -> pd.api.typing.Rolling:
        """Return windows of a time that end at each row; the first ones are shorter."""
        import pandas as pd

        return pd.Series(values).rolling(self.rows(seconds), min_periods=1)

    def before(self, values: np.ndarray, rows: int) -> np.ndarray:
        """Return the values of so many rows before, of the first row where there are none. Shape: (T,)."""
        return values[np.maximum(np.arange(len(values)) - rows, 0)]

    @cached_property
    def bar(self) -> int:
        return self.rows(BAR_SECONDS)

    @cached_property
    def bar_open(self) -> np.ndarray:
        """Mid a bar before. Shape: (T,)."""
        return self.before(self.mid, self.bar)

    @cached_property
    def bar_high(self) -> np.ndarray:
        """Highest mid of the bar that ends at each row. Shape: (T,)."""
        return self.rolling(self.mid, BAR_SECONDS).max().to_numpy()

    @cached_property
    def bar_low(self) -> np.ndarray:
        return self.rolling(self.mid, BAR_SECONDS).min().to_numpy()

    @cached_property
    def bar_volume(self) -> np.ndarray:
        """Coins traded in the bar. Shape: (T,)."""
        return self.rolling(self.bought + self.sold, BAR_SECONDS).sum().to_numpy().clip(min=0.0)

    @cached_property
    def bar_vwap(self) -> np.ndarray:
        """Mean mid of the bar by volume, the mid where nothing was traded. Shape: (T,)."""
        # Differences from the mid before keep the digits.
        away = self.mid - self.bar_open
        volume = self.bought + self.sold
        weighted = self.rolling(volume * self.mid, BAR_SECONDS).sum().to_numpy()
        total = self.bar_volume
        traded = total > 1e-12
        return np.where(traded, weighted / np.where(traded, total, 1.0), self.bar_open + away)


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


DEFAULT_FACTORS = (
    "microprice",
    "imbalance_1",
    "imbalance_5",
    "mean_imbalance_30",
    "flow_10",
    "flow_60",
    "trades_60",
    "return_10",
    "return_60",
    "volatility_60",
    "spread",
)

FACTORS = {**BOOK_FACTORS, **ALPHAS}
"""Functions of a `BookSeries` by name; each returns a series of shape (T,)."""

LARGEST_VALUE = 50.0
"""Factors are kept within this, of either sign: learners see nothing extreme."""


def check_factors(names: Sequence[str]) -> None:
    """Raise a ValueError if a factor's name is unknown, or named twice."""
    unknown = [name for name in names if name not in FACTORS]
    if unknown:
        raise ValueError(f"unknown factors {', '.join(unknown)}; there are {', '.join(FACTORS)}")
    if len(set(names)) < len(names):
        raise ValueError(f"factors are named twice: {', '.join(names)}")


def book_series(books: ClockedBooks, step_gap: float) -> BookSeries:
    """Return the series of which factors are made; in holes sizes are those of the last row before that is none."""
    rows = np.arange(len(books.open))
    known = np.maximum.accumulate(np.where(books.open, rows, 0))
    prices = {name: np.nan_to_num(getattr(books, name)) for name in ("bid_price", "ask_price")}
    sizes = {name: getattr(books, name)[known] for name in ("bid_size", "ask_size")}
    return BookSeries(**vars(books) | prices | sizes, step_gap=step_gap)


def factor_table(books: ClockedBooks, names: Sequence[str], step_gap: float) -> np.ndarray:
    """Return the factors of all rows. Shape: (T, F), float32."""
    if not names:
        return np.zeros((len(books.open), 0), np.float32)
    # A factor looks back no further than its recording.
    parts = [book_series(part, step_gap) for part in recordings(books, step_gap)]
    columns = [[FACTORS[name](part).clip(-LARGEST_VALUE, LARGEST_VALUE) for name in names] for part in parts]
    return np.concatenate([np.stack(values, axis=1).astype(np.float32) for values in columns])
