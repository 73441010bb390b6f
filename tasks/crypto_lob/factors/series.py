"""What factors are made of: series of a tape, each value of its own row and of rows before it alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

BAR_SECONDS = 10.0
"""Length of the bars of the formulaic alphas, whose days these are."""


@dataclass(frozen=True, eq=False)
class BookSeries:
    """Series of T rows. A hole has prices and sizes of the last row before that is none, and nothing is traded in it.

    Prices and sizes in coins, (T, L), are 0 where there is no level; ``bought`` and ``sold`` are coins taken, (T,);
    ``open`` is whether the row is no hole, (T,); ``step_gap`` is the seconds between rows.
    """

    open: np.ndarray
    bid_price: np.ndarray
    bid_size: np.ndarray
    ask_price: np.ndarray
    ask_size: np.ndarray
    bought: np.ndarray
    sold: np.ndarray
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
